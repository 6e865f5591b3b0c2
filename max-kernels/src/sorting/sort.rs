//! Sorting of rows, which keeps equal elements in order: runs of elements by the number of elements before each one, and then pairs of
//! runs merged, launch after launch, until one is left.
//!
//! Results are written whole before they are in order, so that nobody has to fill them with zeros.

use max::kernel::prelude::*;

use crate::reduction::reduce::{before, same};

/// Elements of a run.
const RUN: i64 = 512;

/// The rank of each element in its run of 512: how many elements of that come before it. NaN is the largest.
///
/// Each element is compared with all others of its run, `N` elements with one other at a time (rank sort; Knuth: The Art of Computer
/// Programming 3, 5.2, algorithm C). Those in front of the `N` need not be told from those behind by their positions: equal ones count in
/// front and do not behind. Among the `N`, equal ones are looked for where ranks add up to less than those of as many different elements.
#[kernel(
    op = "rank_runs",
    dtypes(T = [f16, bf16, f32, f64, i32, i64, u64]),
    tile(N = 64, gpu(N = 256))
)]
pub fn rank_runs<T: Number>(ranks: Out<i32, 2>, x: In<T, 2>, #[param] descending: bool) {
    let [row, part] = program_id();
    let first = part * N;
    let begin = first / RUN * RUN;
    let end = (begin + RUN).min(x.dim(1));
    let last = (first + N).min(end);
    let own = x.tile::<1, N>(row, part).load();
    let x = x.row(row);
    let mut rank = Tile::<i32, 1, N>::zeros();
    if own.map(|v| if v == v { 0i32 } else { 1 }).row_max().item() > 0 {
        // Comparisons without NaN do not order it.
        for j in begin..end {
            let u = x.at(j);
            let at = (j - first) as i32;
            let count =
                own.map_indexed(
                    |_, i, v| {
                        if before(u, v, descending) || (same(u, v) && at < i as i32) { 1i32 } else { 0 }
                    },
                );
            rank = rank + count;
        }
    } else if descending {
        rank = add_ranks_within::<T, N>(own, x, first, last, true);
        rank = add_ranks::<T, N>(rank, own, x, begin, first, true, false);
        rank = add_ranks::<T, N>(rank, own, x, last, end, true, true);
    } else {
        rank = add_ranks_within::<T, N>(own, x, first, last, false);
        rank = add_ranks::<T, N>(rank, own, x, begin, first, false, false);
        rank = add_ranks::<T, N>(rank, own, x, last, end, false, true);
    }
    ranks.tile::<1, N>(row, part).write(rank);
}

/// Whether `u` comes before `v`, which is not NaN, or if not `strict` equals it.
#[kernel]
fn precedes<T: Number>(u: T, v: T, descending: bool, strict: bool) -> bool {
    if descending { if strict { !(u <= v) } else { !(u < v) } } else { if strict { u < v } else { u <= v } }
}

/// Ranks, and for each element of `x` from `from` to `to` that comes before one of `own`, 1 more.
#[kernel]
fn add_ranks<T: Number, const N: usize>(
    ranks: Tile<i32, 1, N>,
    own: Tile<T, 1, N>,
    x: In<T, 1>,
    from: i64,
    to: i64,
    descending: bool,
    strict: bool,
) -> Tile<i32, 1, N> {
    let mut ranks = ranks;
    // As a number that is not known before, it is added under a mask: of a known one LLVM makes two instructions.
    let one = x.len().min(1) as i32;
    let even = from + (to - from).max(0) / 8 * 8;
    for j in (from..even).step_by(8) {
        let (a, b, c, d) = (x.at(j), x.at(j + 1), x.at(j + 2), x.at(j + 3));
        let (e, f, g, h) = (x.at(j + 4), x.at(j + 5), x.at(j + 6), x.at(j + 7));
        ranks = ranks.zip_map(own, |r, v| {
            let r = if precedes(a, v, descending, strict) { r + one } else { r };
            let r = if precedes(b, v, descending, strict) { r + one } else { r };
            let r = if precedes(c, v, descending, strict) { r + one } else { r };
            let r = if precedes(d, v, descending, strict) { r + one } else { r };
            let r = if precedes(e, v, descending, strict) { r + one } else { r };
            let r = if precedes(f, v, descending, strict) { r + one } else { r };
            let r = if precedes(g, v, descending, strict) { r + one } else { r };
            if precedes(h, v, descending, strict) { r + one } else { r }
        });
    }
    for j in even..to {
        let u = x.at(j);
        ranks = ranks.zip_map(own, |r, v| if precedes(u, v, descending, strict) { r + one } else { r });
    }
    ranks
}

/// The ranks of `own`, which are the elements of `x` from `from` to `to`, among themselves.
#[kernel]
fn add_ranks_within<T: Number, const N: usize>(
    own: Tile<T, 1, N>,
    x: In<T, 1>,
    from: i64,
    to: i64,
    descending: bool,
) -> Tile<i32, 1, N> {
    let zeros = Tile::<i32, 1, N>::zeros();
    let mut ranks = add_ranks::<T, N>(zeros, own, x, from, to, descending, true);
    let count = (to - from) as i32;
    let sum = ranks.map_indexed(|_, i, r| if (i as i32) < count { r } else { 0 }).row_sum().item();
    if sum < count * (count - 1) / 2 {
        let index = own.map_indexed(|_, i, _| i as i32);
        for j in from..to {
            let u = x.at(j);
            let at = (j - from) as i32;
            let equal = index.zip_map(own, |i, v| if u == v && i > at { 1i32 } else { 0 });
            ranks = ranks + equal;
        }
    }
    ranks
}

/// The elements of each run of 512, at the places that are their ranks, as far as rows of results reach; and their positions in the row,
/// or what `at` has in place of these.
#[kernel(op = "sort_runs", dtypes(T = [f16, bf16, f32, f64, i32, i64, u64]), tile(R = 512))]
pub fn sort_runs<T: Number>(
    values: Out<T, 2>,
    positions: Out<i64, 2>,
    x: In<T, 2>,
    ranks: In<i32, 2>,
    at: Option<In<i64, 2>>,
) {
    let [row, part] = program_id();
    let x = x.row(row).block::<R>(part);
    let ranks = ranks.row(row).block::<R>(part);
    let taken = (values.dim(1) - part * R).min(x.len());
    values.select(row).block::<R>(part).write(x.slice(0, taken));
    positions.select(row).block::<R>(part).write(lanes(taken));
    x.zip(ranks).enumerate().for_each(|((v, rank), i)| {
        let place = rank as i64;
        if place < taken {
            values.select(row).block::<R>(part).set(place, v);
            let mut position = part * R + i;
            if let Some(at) = at {
                position = at.row(row).at(position);
            }
            positions.select(row).block::<R>(part).set(place, position);
        }
    });
}

/// Each two neighbouring runs of `run` elements of each row, sorted already, merged into one. A lane writes `E` neighbouring
/// elements of a result; how much of both runs comes before these, it finds by bisection (Odeh et al.: Merge Path, 2012).
#[kernel(op = "merge_runs", dtypes(T = [f16, bf16, f32, f64, i32, i64, u64]), tile(N = 1024, E = 1024, gpu(N = 256, E = 1)))]
pub fn merge_runs<T: Number>(
    values: Out<T, 2>,
    positions: Out<i64, 2>,
    x: In<T, 2>,
    at: In<i64, 2>,
    #[param] run: i64,
    #[param] descending: bool,
) {
    let [row, part] = program_id();
    let x = x.row(row);
    let at = at.row(row);
    let n = x.len();
    let first = part * N;
    let last = (first + N).min(n);
    values.select(row).block::<N>(part).write(x.block::<N>(part));
    positions.select(row).block::<N>(part).write(at.block::<N>(part));
    lanes((last - first + E - 1) / E).for_each(|lane| {
        let mut j = first + lane * E;
        let stop = (j + E).min(last);
        while j < stop {
            let pair = j / (2 * run) * (2 * run);
            let done = j - pair;
            let middle = (pair + run).min(n);
            let end = (pair + 2 * run).min(n);
            // Of the elements that are done, as many are of the left run as come before the others of the right one.
            let mut low = (done - (end - middle)).max(0);
            let mut high = done.min(middle - pair);
            while low < high {
                let i = (low + high) / 2;
                if before(x.at(middle + done - i - 1), x.at(pair + i), descending) {
                    high = i;
                } else {
                    low = i + 1;
                }
            }
            let mut left = pair + low;
            let mut right = middle + done - low;
            let until = stop.min(end);
            while j < until {
                let (a, b) = (x.at(left), x.at(right));
                let take = left < middle && (right >= end || !before(b, a, descending));
                let from = if take { left } else { right };
                values.select(row).block::<N>(part).set(j - first, if take { a } else { b });
                positions.select(row).block::<N>(part).set(j - first, at.at(from));
                left = if take { left + 1 } else { left };
                right = if take { right } else { right + 1 };
                j += 1;
            }
        }
    });
}
