//! How the columns of a matrix are divided among threads, where a kernel's programs take more of them than there are for each.

use smallvec::{SmallVec, smallvec};

use super::view::{View, product};
use crate::graph::Dim;

/// Columns that are a line of a cache, of `f32`.
const LEAST: i64 = 16;
/// Elements of an operand that comes from memory, or a cache of all threads, which are fetched ahead only within a row: wide programs
/// serve it best,
const FAR: i64 = 512 << 10;
/// for so many columns could be taken in the time that is lost where those of a row end.
const LOST_FAR: i64 = 150;
/// Of what is near, programs take a block of columns, whose sums stay in registers, and lose little.
const NEAR_WIDTH: i64 = 64;
const LOST_NEAR: i64 = 16;
/// The fewest columns that a program of a CPU walks as a strip, two blocks; of fewer, those of no whole line cost as much as the others.
const STRIP: i64 = 2 * NEAR_WIDTH;
/// Parts of one width for each thread, at most.
const MOST_PARTS: i64 = 4;
/// Of fewer elements than this nothing is gained.
const FEW_ELEMENTS: i64 = 16 << 10;
/// Threads that rows are copied for, to be divided among them.
const THREADS_OF_ROWS: i64 = 8;
/// Fewer programs than this leave threads idle,
pub(super) const FEW_PROGRAMS: i64 = 4;
/// which matters from so many elements on.
pub(super) const MANY_ELEMENTS: i64 = 64 << 10;

/// Columns of one or all of the matrices `[outer, rows, inner]`, as matrices of fewer columns beside each other.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Strip {
    /// All of all matrices, as they are.
    All,
    /// Groups of `width` columns, from one on, of the matrix of that number.
    Groups { outer: i64, first: i64, groups: i64, width: i64 },
}

impl Strip {
    /// The strip of a view `[outer, rows, inner]`, or `[outer, inner]` of what columns were reduced to.
    fn of(self, view: &View) -> View {
        let Strip::Groups { outer, first, groups, width } = self else { return view.clone() };
        let (Some(matrix), Some(column)) = (view.strides.first(), view.strides.last()) else { return view.clone() };
        let offset = &(&view.offset + &(matrix * outer)) + &(column * first);
        let (mut dims, mut strides) = (view.dims.clone(), view.strides.clone());
        if let (Some(dim), Some(stride)) = (dims.first_mut(), strides.first_mut()) {
            (*dim, *stride) = (Dim::Static(groups), column * width);
        }
        if let Some(dim) = dims.last_mut() {
            *dim = Dim::Static(width);
        }
        View::new(offset, dims, strides)
    }
}

/// The views of an operand `[outer, rows, inner]` and of the result beside it that a kernel is launched with, one after the other,
/// so that its programs of `columns` columns each keep that many threads busy. What is known to be small, or not known, is
/// not divided. No column is, so that nothing depends on the number of threads.
pub(super) fn divided(x: &View, to: &View, columns: u64, threads: usize) -> SmallVec<[(View, View); 1]> {
    strips(&x.dims, columns, threads).into_iter().map(|strip| (strip.of(x), strip.of(to))).collect()
}

/// Whether rows are better copied together, and divided among threads: of columns that are less than a vector, and where so many threads would
/// be left idle, however the columns are divided. One thread takes columns as fast as `THREADS_OF_ROWS` copy them, reduce the rows and copy
/// them back.
pub(super) fn rows_serve_better(outer: &Dim, inner: &Dim, threads: usize) -> bool {
    let (Some(outer), Some(inner)) = (outer.as_static(), inner.as_static()) else { return false };
    let programs = outer.saturating_mul(blocks(inner, NEAR_WIDTH));
    inner < LEAST || programs.saturating_mul(THREADS_OF_ROWS) < i64::try_from(threads).unwrap_or(i64::MAX)
}

/// Blocks of that size, at least 1, that are begun.
fn blocks(n: i64, size: i64) -> i64 {
    n / size + i64::from(n % size != 0)
}

/// The division after which the last thread ends first, by the columns that each has to take.
fn strips(dims: &[Dim], columns: u64, threads: usize) -> SmallVec<[Strip; 1]> {
    let all = smallvec![Strip::All];
    let [outer, _, inner] = dims else { return all };
    let (Some(outer), Some(inner)) = (outer.as_static(), inner.as_static()) else { return all };
    let columns = i64::try_from(columns).unwrap_or(i64::MAX).clamp(1, inner.max(1));
    let threads = i64::try_from(threads).unwrap_or(i64::MAX).max(1);
    let elements = product(dims).as_static();
    let is_far = elements.is_none_or(|elements| elements >= FAR);
    let (lost, widest) = if is_far { (LOST_FAR, columns) } else { (LOST_NEAR, columns.min(NEAR_WIDTH)) };
    let time = |programs: i64, width: i64| blocks(programs, threads).saturating_mul(width + lost);
    let together = time(outer.saturating_mul(blocks(inner, columns)), columns);
    let divided = |width: i64| {
        let behind = inner % width;
        let of_one = time(inner / width, width) + if behind > 0 { time(1, behind) } else { 0 };
        of_one.saturating_mul(outer)
    };
    // Whole lines, of which some columns may be left over. Of what is far also strips of one width, whose ends share lines: their last
    // vectors are a pass over all rows, which costs less than a launch for what is left over.
    let parts = (1..=if is_far { MOST_PARTS } else { 0 }).map(|each| each.saturating_mul(threads));
    let equal = parts.filter(|parts| inner % parts == 0).map(|parts| inner / parts);
    let equal = equal.filter(|width| (STRIP..=widest).contains(width));
    let widths = (NEAR_WIDTH / LEAST..=widest / LEAST).rev().map(|lines| lines * LEAST).chain(equal);
    let Some(width) = widths.min_by_key(|width| divided(*width)) else { return all };
    // What is launched more often should save more than a little.
    let is_little = elements.is_some_and(|elements| elements < FEW_ELEMENTS);
    if is_little || divided(width) >= together / 10 * 9 {
        return all;
    }
    let (groups, rest) = (inner / width, inner % width);
    let of_one = |outer| {
        let behind = (rest > 0).then_some(Strip::Groups { outer, first: inner - rest, groups: 1, width: rest });
        std::iter::once(Strip::Groups { outer, first: 0, groups, width }).chain(behind)
    };
    (0..outer).flat_map(of_one).collect()
}
