//! Rows of scaled integers by few columns: words are multiplied in the registers in which they were unpacked, or written for
//! columns that lie [side by side](super::interleaved_int8).

use std::arch::x86_64::*;
use std::cell::Cell;
use std::ptr;

use super::interleaved_int8::{PAIR, Panel, PrefetchCursor, ROWS};
use super::microkernel_int8::{add_offsets, add_sums, add_words, dot_vector, scale_row, spread_scales, sum_of};
use super::unpacking::{HALF, each_lane, fill_scales, in_blocks, in_halves};
use super::{Column, Columns, Left};
use crate::kernel::cpu::Cpu;
use crate::kernel::cpu::isa::{BLOCK, Level, TAIL};
use crate::kernel::cpu_features;
use crate::kernel::lang::{Lanes, Scale, ScaledRow};

/// Two vectors of partial sums, to which words are added in turn: one sum waits for the one before.
pub(super) type Sums = [[f32; TAIL]; 2];

/// Which groups of a block of words have their sums in which lanes of `sums_of_groups`, two lanes each.
pub(super) struct LaneOrder {
    /// By lanes.
    pub groups: [usize; TAIL / 2],
    /// By groups; those behind have none in the first vector.
    pub places: [usize; TAIL / 2],
}

impl LaneOrder {
    const fn new(groups: [usize; TAIL / 2]) -> Self {
        let (mut places, mut place) = ([0; TAIL / 2], 0);
        while place < TAIL / 2 {
            places[groups[place]] = place;
            place += 1;
        }
        LaneOrder { groups, places }
    }

    /// That of groups of so many words, whose block may be [transposed](is_transposed).
    #[inline]
    pub const fn of(words: usize, transposes: bool) -> &'static Self {
        // Of groups of 4 words the first half.
        const FOUR: LaneOrder = LaneOrder::new([0, 4, 1, 5, 2, 6, 3, 7]);
        const EIGHT: LaneOrder = LaneOrder::new([0, 2, 1, 3, 4, 6, 5, 7]);
        const TRANSPOSED: LaneOrder = LaneOrder::new([0, 1, 2, 3, 4, 5, 6, 7]);
        match (words, transposes) {
            (4, _) => &FOUR,
            (_, false) => &EIGHT,
            (_, true) => &TRANSPOSED,
        }
    }
}

/// Rows whose packed bytes are prefetched while those before are multiplied are shorter than so many: four of them stay in L2.
const MAX_NEXT_ROW: usize = 64 << 10;

/// Columns, and what rows are multiplied with them in.
pub(super) struct Few<'a> {
    pub(super) left: &'a Left,
    pub(super) right: Right<'a>,
    /// Where products are added, and how far its rows are apart.
    pub(super) to: (*mut f32, usize),
    has_vnni: bool,
    /// Where in memory the rows ended that a panel multiplied last.
    behind: Cell<usize>,
}

/// Columns, one after the other or side by side.
pub(super) enum Right<'a> {
    Columns {
        columns: Columns,
        /// A row's scales times those of each column.
        scaled: *mut f32,
        /// Of each row and column.
        sums: *mut Sums,
    },
    Panel(&'a Panel),
}

/// Groups of a tile of `K` integers a row, with `G` scales a row and `H` a column.
struct Groups<const K: usize, const G: usize, const H: usize>;

impl<const K: usize, const G: usize, const H: usize> Groups<K, G, H> {
    /// Words of a group.
    const WORDS: usize = K / G / 4;
    /// Words of a column that have one scale.
    const RIGHT_WORDS: usize = K / H / 4;
    /// Whether words of a block have one scale of the column. Products are then scaled by the row's scales, which all columns share in
    /// registers, and their sum by the column's.
    const BY_BLOCKS: bool = Self::RIGHT_WORDS.is_multiple_of(BLOCK);

    /// Whether a block's products are added as integers until each lane has half of a group.
    const fn in_lanes<L: Level>() -> bool {
        L::AVX512 && has_lanes(Self::WORDS, Self::RIGHT_WORDS)
    }

    /// Whether the words of a block are multiplied [transposed](is_transposed).
    const fn transposes<L: Level, W: ScaledRow<Cpu<L>>>() -> bool {
        is_transposed::<L, W>([K, G, H])
    }
}

/// What turns the sign of words of signed bytes: they are multiplied without one.
const fn bias(is_signed: bool) -> i32 {
    if is_signed { i32::from_ne_bytes([0x80; 4]) } else { 0 }
}

/// Whether there are [lanes](LaneOrder) of groups of so many words, of which so many have one scale of a column.
pub(super) const fn has_lanes(words: usize, right_words: usize) -> bool {
    (words == 4 || words == 8) && (right_words == words || right_words == BLOCK)
}

/// Whether the four vectors of a block, of rows of `K` integers with `G` scales, by columns with `H`, are multiplied as their transpose, of
/// which an element is four words: it has both halves of a group of 8 words in the same lanes, so one sum is of both; and as nibbles lie,
/// those of the same bytes in two vectors. What has a sign is read as it lies, and what is multiplied by several columns: its sums go to the
/// lanes that one column's have.
pub(super) const fn is_transposed<L: Level, W: ScaledRow<Cpu<L>>>([k, g, h]: [usize; 3]) -> bool {
    let words = k / g / 4;
    L::AVX512 && !W::IS_SIGNED && words == 8 && has_lanes(words, k / h / 4)
}

/// Whether such lanes can be [loaded](Lanes::TRANSPOSES) so.
const fn comes_transposed<L: Level, W: Lanes<Cpu<L>>>(_: &W) -> bool {
    W::TRANSPOSES
}

impl<'a> Few<'a> {
    /// There must be the memory that the columns name: a row of scales of each column, with a vector more, and the sums of all rows.
    pub fn new<L: Level>(left: &'a Left, right: Right<'a>, to: (*mut f32, usize)) -> Self {
        if let Right::Columns { columns, scaled, .. } = &right {
            // SAFETY: there is room; zeros are floats.
            unsafe { scaled.write_bytes(0, columns.count * left.scales_row) };
        }
        let has_vnni = L::AVX512 && cpu_features::matrix_units().int8.is_some();
        Few { left, right, to, has_vnni, behind: Cell::new(0) }
    }

    /// Multiplies row `i` by all columns of a tile of up to `C`; `begins_with_zero` as for [`Kind`](super::Kind).
    ///
    /// # Safety
    /// There must be that row; the level must have AVX2, and the caller its features.
    #[inline(always)]
    pub unsafe fn multiply_row<
        L: Level,
        W: ScaledRow<Cpu<L>>,
        const K: usize,
        const G: usize,
        const H: usize,
        const C: usize,
    >(
        &self,
        row: W,
        i: usize,
        begins_with_zero: bool,
    ) {
        let left = self.left;
        // Of one column, sums stay in registers.
        let mut one: Sums = [[0.0; TAIL]; 2];
        // Where a row is written that is multiplied later.
        let place = i % ROWS;
        // SAFETY: there is room for a row of scales, and for each column's; the level is the caller's.
        unsafe {
            if const { C == 1 } {
                if let Right::Columns { columns, scaled, .. } = &self.right {
                    let (to, has_offsets) = ((&columns.first, *scaled), W::Scale::HAS_OFFSET && !begins_with_zero);
                    self.scale_one::<L, W::Scale, _, K, G, H>(row.scales(), to, has_offsets, &mut one[0]);
                }
            } else {
                // A panel reads one scale at a time, and none behind the last; its sums begin when it is multiplied.
                let is_panel = matches!(self.right, Right::Panel(_));
                let (at, room) = if is_panel { (place, left.groups) } else { (0, left.scales_row) };
                fill_scales::<L, W::Scale, _, true, true>(row.scales(), left.row_scales(at), [left.groups, room]);
                if const { Groups::<K, G, H>::BY_BLOCKS } && !is_panel {
                    self.begin_row::<true>(i);
                } else if !is_panel {
                    self.begin_row::<false>(i);
                }
            }
        }
        let (words, count) = (row.words(), left.steps / 4);
        let end = Ord::min(Ord::max(words.len().0, 0) as usize, count);
        // Vectors behind the last whole block, which are multiplied together as well.
        let mut rest = [0; BLOCK];
        // The next rows come while rows are multiplied by a panel.
        let is_panel = const { C > 1 } && matches!(self.right, Right::Panel(_));
        in_blocks!(words, count, of BLOCK, true, |first, w, plain, N, WHOLE| {
            let mut block = [0; N];
            // For a panel words are written as they lie.
            let transposes = C == 1 && const { Groups::<K, G, H>::transposes::<L, W>() } && comes_transposed(&words);
            let how = [plain, !is_panel, transposes];
            each_lane::<L, _, N, WHOLE, true>(words, first, w, how, |k, word| block[k] = word.0);
            // SAFETY: columns are as long as a row, and have a scale for each group, as rows do; and there is room for rows.
            unsafe {
                match &self.right {
                    Right::Columns { columns, scaled, sums } => {
                        let is_block = WHOLE || const { !Groups::<K, G, H>::in_lanes::<L>() };
                        let at = if is_block { 0 } else { first % BLOCK };
                        let mut from = block.as_ptr();
                        if !is_block {
                            rest.as_mut_ptr().add(at).cast::<[i32; N]>().write_unaligned(block);
                            from = rest.as_ptr();
                        }
                        if is_block || at + N == BLOCK || first + N >= end {
                            let mut other = [0; BLOCK];
                            if const { C == 1 && Groups::<K, G, H>::transposes::<L, W>() } && !(transposes && WHOLE) {
                                transpose_words(from, &mut other);
                                from = other.as_ptr();
                                // Of a block that is not whole the words behind the last are multiplied, too.
                                if !WHOLE {
                                    rest = [0; BLOCK];
                                }
                            }
                            let (words, first) = ((from, (at + N) / TAIL), first - at);
                            if const { C == 1 } {
                                let scales = scales_of::<L, W, N, K, G, H>(*scaled, first);
                                let from = (first, begins_with_zero);
                                self.add_block::<L, W, N, K, G, H, C>(words, from, &columns.first, &scales, &mut one);
                            } else {
                                let sums = sums.wrapping_add(i * columns.count);
                                // The row's scales, or those times the column's.
                                let mut scales = [[0.0; TAIL]; BLOCK / TAIL];
                                if const { Groups::<K, G, H>::BY_BLOCKS } {
                                    scales = scales_of::<L, W, N, K, G, H>(left.scales, first);
                                }
                                let mut c = 0;
                                while c < columns.count {
                                    if const { !Groups::<K, G, H>::BY_BLOCKS } {
                                        scales = scales_of::<L, W, N, K, G, H>(scaled.add(c * left.scales_row), first);
                                    }
                                    // A copy stays in registers, which memory that others may read does not.
                                    let mut sum = *sums.add(c);
                                    let from = (first, begins_with_zero);
                                    let column = columns.column(c);
                                    self.add_block::<L, W, N, K, G, H, C>(words, from, &column, &scales, &mut sum);
                                    sums.add(c).write(sum);
                                    c += 1;
                                }
                            }
                        }
                    }
                    Right::Panel(_) if const { C > 1 && Groups::<K, G, H>::in_lanes::<L>() } => {
                        let mut k = 0;
                        while k < N {
                            block[k] ^= bias(W::IS_SIGNED);
                            k += 1;
                        }
                        let to = left.integers.wrapping_add(place * left.row).cast_mut().cast::<i32>();
                        to.add(first).cast::<[i32; N]>().write_unaligned(block);
                    }
                    Right::Panel(_) => {}
                }
            }
        });
        // SAFETY: as above.
        unsafe {
            if const { C == 1 } {
                *self.to.0.add(i * self.to.1) += sum_of(one.as_ptr().cast());
            } else if let Right::Panel(panel) = &self.right
                && (place + 1 == ROWS || end < count)
            {
                self.end_row(panel, i, [end, words.behind()]);
            }
        }
    }

    /// Begins the sums of row `i`, of whose groups scales were written: all columns', with the row's offsets if it has any, times the sums
    /// of their groups. `BY_BLOCKS` as for [`Groups`].
    ///
    /// # Safety
    /// There must be the row; the level must have AVX2.
    #[inline(never)]
    unsafe fn begin_row<const BY_BLOCKS: bool>(&self, i: usize) {
        let Right::Columns { columns, scaled, sums } = &self.right else { return };
        for c in 0..columns.count {
            // SAFETY: by the contract above; there is room for the sums and scales of each.
            unsafe {
                let sums = sums.add(i * columns.count + c);
                sums.write([[0.0; TAIL]; 2]);
                if !BY_BLOCKS {
                    scale_row(self.left, &columns.column(c), scaled.add(c * self.left.scales_row));
                }
                if !self.left.offsets.is_null() {
                    add_offsets(self.left, &columns.column(c), &mut (*sums)[0]);
                }
            }
        }
    }

    /// Ends row `i` of those that a panel multiplies, if it is the last of [`ROWS`], which are multiplied then, or shorter than a column: so
    /// many of its words were written, and it ends at that address.
    ///
    /// # Safety
    /// There must be room for all words.
    #[inline(never)]
    unsafe fn end_row(&self, panel: &Panel, i: usize, [words, behind]: [usize; 2]) {
        let (left, place) = (self.left, i % ROWS);
        let row = left.integers.wrapping_add(place * left.row).cast_mut().cast::<i32>();
        for k in words.next_multiple_of(TAIL)..left.steps / 4 {
            // SAFETY: by the contract above.
            unsafe { row.add(k).write(bias(left.is_signed)) };
        }
        if place + 1 == ROWS {
            // What follows in memory is, most of the time, as long, and what is unpacked next.
            let bytes = behind.wrapping_sub(self.behind.replace(behind));
            let bytes = if bytes < ROWS * MAX_NEXT_ROW { bytes } else { 0 };
            let next = PrefetchCursor::new(behind, bytes, left.groups.div_ceil(PAIR));
            // SAFETY: all rows were written, and the sums are there; there are panels where there is VNNI.
            unsafe { self.multiply_panel(panel, [i + 1 - ROWS, ROWS], next) };
        }
    }

    /// Multiplies the rows that were written, which are the sum's from `first` on.
    ///
    /// # Safety
    /// There must be these; the machine must have AVX-512 VNNI.
    unsafe fn multiply_panel(&self, panel: &Panel, [first, rows]: [usize; 2], next: PrefetchCursor) {
        let (to, step) = self.to;
        // SAFETY: by the contract above.
        unsafe { panel.multiply(self.left, rows, (to.add(first * step), step), next) };
    }

    /// Writes a row's scales, times those of the only column where they differ in a block, and adds its offsets times the sums of the
    /// column's groups.
    ///
    /// # Safety
    /// There must be a column, and room for the scales.
    #[inline(always)]
    unsafe fn scale_one<
        L: Level,
        S: Scale<Cpu<L>>,
        A: Lanes<Cpu<L>, Item = S>,
        const K: usize,
        const G: usize,
        const H: usize,
    >(
        &self,
        scales: A,
        (column, to): (&Column, *mut f32),
        has_offsets: bool,
        sums: &mut [f32; TAIL],
    ) {
        macro_rules! scaled {
            ($size:expr) => {
                in_halves!(scales, self.left.groups, of $size, true, |first, w, N, WHOLE| {
                    self.scale_block::<L, S, A, N, WHOLE, K, G, H>(scales, (first, w), (column, to), has_offsets, sums);
                })
            };
        }
        // As many as vectors of both levels have room for in registers.
        // SAFETY: by the contract above.
        let len = unsafe { if const { L::AVX512 } { scaled!(2 * TAIL) } else { scaled!(TAIL) } };
        for g in len..self.left.groups {
            // SAFETY: as above.
            unsafe { to.add(g).write(0.0) };
        }
    }

    /// The same for `w` scales from `first` on.
    ///
    /// # Safety
    /// As for that.
    #[inline(always)]
    unsafe fn scale_block<
        L: Level,
        S: Scale<Cpu<L>>,
        A: Lanes<Cpu<L>, Item = S>,
        const N: usize,
        const WHOLE: bool,
        const K: usize,
        const G: usize,
        const H: usize,
    >(
        &self,
        scales: A,
        (first, w): (usize, usize),
        (column, to): (&Column, *mut f32),
        has_offsets: bool,
        sums: &mut [f32; TAIL],
    ) {
        let mut of_column = [1.0; N];
        // SAFETY: behind the last of a column's scales and sums is a vector of zeros, and room for one behind the row's.
        unsafe {
            if const { !Groups::<K, G, H>::BY_BLOCKS } {
                of_column = column.scales.add(first).cast::<[f32; N]>().read_unaligned();
            }
            let (mut scaled, mut offsets) = ([0.0; N], [0.0; N]);
            each_lane::<L, A, N, WHOLE, false>(scales, first, w, [WHOLE, true, false], |k, scale| {
                let (scale, offset) = scale.parts();
                (scaled[k], offsets[k]) = (scale.0 * of_column[k], offset.0);
            });
            to.add(first).cast::<[f32; N]>().write_unaligned(scaled);
            // Those of half a vector are added to its first lanes, or to its last: then where no code is for that alone.
            let is_known = const { N >= TAIL || WHOLE };
            let begin = if is_known { 0 } else { first % TAIL };
            let mut k = 0;
            while has_offsets && k < N {
                let of_column = column.offset_sums.add(first - begin + k).cast::<[f32; TAIL]>().read_unaligned();
                let mut j = 0;
                while j < TAIL && (!is_known || k + j < N) {
                    let sum = offsets[(k + j) % N].mul_add(of_column[j], sums[j]);
                    sums[j] = if !is_known && (j < HALF) != (begin == 0) { sums[j] } else { sum };
                    j += 1;
                }
                k += TAIL;
            }
        }
    }

    /// Adds the products of a block of words, of so many vectors, from word `first` of a row on, by a column, with the [scales](scales_of)
    /// of the block.
    ///
    /// # Safety
    /// The column must be as long, and have a scale for each group; the level must have AVX2.
    #[inline(always)]
    unsafe fn add_block<
        L: Level,
        W: ScaledRow<Cpu<L>>,
        const N: usize,
        const K: usize,
        const G: usize,
        const H: usize,
        const C: usize,
    >(
        &self,
        (words, vectors): (*const i32, usize),
        (first, begins_with_zero): (usize, bool),
        right: &Column,
        scales: &[[f32; TAIL]; BLOCK / TAIL],
        sums: &mut Sums,
    ) {
        let begins = begins_with_zero || W::IS_SIGNED && self.has_vnni;
        let column = |k: usize| right.integers.wrapping_add(4 * (first + k));
        let of_block = if const { Groups::<K, G, H>::BY_BLOCKS } {
            // SAFETY: by the contract above.
            unsafe { *right.scales.add(first / Groups::<K, G, H>::WORDS) }
        } else {
            1.0
        };
        if const { Groups::<K, G, H>::in_lanes::<L>() } {
            // SAFETY: by the contract above; vectors behind the last are not multiplied.
            unsafe {
                let mut dots = [_mm512_setzero_si512(); BLOCK / TAIL];
                let transposes = const { Groups::<K, G, H>::transposes::<L, W>() };
                let both = C == 1 && transposes;
                let mut v = 0;
                while v < BLOCK / TAIL {
                    if both || v < vectors {
                        let sum = &mut dots[if both { v / 2 } else { v }];
                        if begins && !(both && v % 2 > 0) {
                            // Of a transposed block, the sums of two vectors.
                            let at = if both { first / 2 + v / 2 * TAIL } else { first + v * TAIL };
                            *sum = _mm512_loadu_si512(right.sums.add(at).cast());
                        }
                        let (words, column) = (words.add(v * TAIL), column(v * TAIL));
                        *sum = if W::IS_SIGNED {
                            dot_vector::<true>(words, column, *sum, self.has_vnni)
                        } else {
                            dot_vector::<false>(words, column, *sum, self.has_vnni)
                        };
                    }
                    v += 1;
                }
                let (all, count) = sums_of_groups(dots, Groups::<K, G, H>::WORDS, [transposes, both]);
                let mut v = 0;
                while v < count {
                    let (sum, scale) = (sums[v].as_mut_ptr(), _mm512_loadu_ps(scales[v].as_ptr()));
                    let (dots, mut scale) = (_mm512_cvtepi32_ps(all[v]), scale);
                    let mut dots = dots;
                    if const { Groups::<K, G, H>::BY_BLOCKS } {
                        (dots, scale) = (_mm512_mul_ps(dots, scale), _mm512_set1_ps(of_block));
                    }
                    _mm512_storeu_ps(sum, _mm512_fmadd_ps(dots, scale, _mm512_loadu_ps(sum)));
                    v += 1;
                }
            }
            return;
        }
        let mut block = [0.0; TAIL];
        let mut k = 0;
        while k < N {
            let to = if const { Groups::<K, G, H>::BY_BLOCKS } { &mut block } else { &mut sums[k / TAIL % 2] };
            // SAFETY: by the contract above.
            unsafe {
                let (words, sums) = (words.add(k), if begins { right.sums.add(first + k) } else { ptr::null() });
                if W::IS_SIGNED {
                    add_words::<L, true>(words, (column(k), sums), &scales[k / TAIL], self.has_vnni, to);
                } else {
                    add_words::<L, false>(words, (column(k), sums), &scales[k / TAIL], self.has_vnni, to);
                }
            }
            k += TAIL;
        }
        if const { Groups::<K, G, H>::BY_BLOCKS } {
            let mut j = 0;
            while j < TAIL {
                sums[1][j] = block[j].mul_add(of_block, sums[1][j]);
                j += 1;
            }
        }
    }

    /// Adds the products of all of `rows` that were not added yet, in a tile of several columns.
    ///
    /// # Safety
    /// All must have been multiplied, and the sums be there.
    #[inline(never)]
    pub unsafe fn finish(&self, rows: usize) {
        // SAFETY: by the contract above; the level has AVX2, and VNNI where there are panels.
        unsafe {
            match &self.right {
                Right::Columns { columns, sums, .. } => add_sums(*sums, [rows, columns.count], self.to),
                Right::Panel(panel) => {
                    let none = PrefetchCursor::new(0, 0, 1);
                    self.multiply_panel(panel, [rows - rows % ROWS, rows % ROWS], none);
                }
            }
        }
    }
}

/// The scales of a block's words from word `first` on, by that of each group of the row: of each word, or of the [lanes](LaneOrder) of groups.
///
/// # Safety
/// There must be a vector of scales behind each; the level must have AVX2, and its kernels' features.
#[inline(always)]
unsafe fn scales_of<L: Level, W: ScaledRow<Cpu<L>>, const N: usize, const K: usize, const G: usize, const H: usize>(
    scales: *const f32,
    first: usize,
) -> [[f32; TAIL]; BLOCK / TAIL] {
    let mut all = [[0.0; TAIL]; BLOCK / TAIL];
    let words = Groups::<K, G, H>::WORDS;
    // SAFETY: by the contract above.
    unsafe {
        if const { Groups::<K, G, H>::in_lanes::<L>() } {
            let scales = _mm512_loadu_ps(scales.add(first / words));
            let order = LaneOrder::of(words, const { Groups::<K, G, H>::transposes::<L, W>() });
            let lanes = |more: i32| {
                let mut groups = [0; TAIL];
                let mut lane = 0;
                while lane < TAIL {
                    groups[lane] = order.groups[lane / 2] as i32 + more;
                    lane += 1;
                }
                _mm512_loadu_si512(groups.as_ptr().cast())
            };
            _mm512_storeu_ps(all[0].as_mut_ptr(), _mm512_permutexvar_ps(lanes(0), scales));
            _mm512_storeu_ps(all[1].as_mut_ptr(), _mm512_permutexvar_ps(lanes(8), scales));
            return all;
        }
        let mut k = 0;
        while k < N {
            all[k / TAIL] = spread_scales::<L>(scales.add((first + k) / words), words);
            k += TAIL;
        }
    }
    all
}

/// The sums of the products of each group of a block, in two [lanes](LaneOrder): of the even words, and of the odd ones. Says how many
/// vectors there are. Lanes are those of a block that is [transposed](is_transposed); if `both`, it is, and the first two vectors have the
/// sums of four words.
///
/// # Safety
/// The machine must have AVX-512.
#[inline(always)]
unsafe fn sums_of_groups(
    dots: [__m512i; BLOCK / TAIL],
    words: usize,
    [transposes, both]: [bool; 2],
) -> ([__m512i; 2], usize) {
    // SAFETY: by the contract above.
    unsafe {
        // Of each four words the even ones, and the odd ones, from both vectors.
        let halves = |a, b| _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
        let a = halves(dots[0], dots[1]);
        if both {
            return ([a, a], 1);
        }
        let b = halves(dots[2], dots[3]);
        if words == 4 {
            return ([a, b], 2);
        }
        let [even, odd] = [_mm512_shuffle_i32x4::<0x88>(a, b), _mm512_shuffle_i32x4::<0xdd>(a, b)];
        let mut sums = _mm512_add_epi32(even, odd);
        if transposes {
            sums = _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 1, 3, 4, 6, 5, 7), sums);
        }
        ([sums, even], 1)
    }
}

/// Writes the integers of a column, and the sums of each four of them, in whole blocks, [transposed](is_transposed): of the sums those of
/// two vectors, added.
///
/// # Safety
/// The column must have so many blocks; the machine must have AVX-512.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn transpose_column(right: &Column, blocks: usize) {
    for b in 0..blocks {
        let (integers, sums) =
            (right.integers.wrapping_add(4 * BLOCK * b).cast_mut(), right.sums.wrapping_add(BLOCK * b));
        // SAFETY: by the contract above; what a block's sums are written to was read.
        unsafe {
            let block = quads_of([0, 1, 2, 3].map(|v| _mm512_loadu_si512(integers.add(64 * v).cast())));
            for (v, vector) in block.into_iter().enumerate() {
                _mm512_storeu_si512(integers.add(64 * v).cast(), vector);
            }
            let [a, b_, c, d] = quads_of([0, 1, 2, 3].map(|v| _mm512_loadu_si512(sums.add(TAIL * v).cast())));
            let to = right.sums.add(BLOCK / 2 * b);
            _mm512_storeu_si512(to.cast(), _mm512_add_epi32(a, b_));
            _mm512_storeu_si512(to.add(TAIL).cast(), _mm512_add_epi32(c, d));
        }
    }
}

/// Writes the words of a block [transposed](is_transposed).
///
/// # Safety
/// There must be a block; the machine must have AVX-512.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn transpose_words(from: *const i32, to: &mut [i32; BLOCK]) {
    // SAFETY: by the contract above; a block has four vectors.
    unsafe {
        let mut block = [_mm512_setzero_si512(); BLOCK / TAIL];
        let mut v = 0;
        while v < BLOCK / TAIL {
            block[v] = _mm512_loadu_si512(from.add(TAIL * v).cast());
            v += 1;
        }
        block = quads_of(block);
        let mut v = 0;
        while v < BLOCK / TAIL {
            _mm512_storeu_si512(to.as_mut_ptr().add(TAIL * v).cast(), block[v]);
            v += 1;
        }
    }
}

/// The transpose of four vectors, of which an element is four words.
#[inline]
#[target_feature(enable = "avx512f")]
fn quads_of([a, b, c, d]: [__m512i; 4]) -> [__m512i; 4] {
    let evens = [_mm512_shuffle_i32x4::<0x88>(a, b), _mm512_shuffle_i32x4::<0x88>(c, d)];
    let odds = [_mm512_shuffle_i32x4::<0xdd>(a, b), _mm512_shuffle_i32x4::<0xdd>(c, d)];
    // Of two vectors, the first quad of either, and the third.
    let both = |[ab, cd]: [__m512i; 2]| [_mm512_shuffle_i32x4::<0x88>(ab, cd), _mm512_shuffle_i32x4::<0xdd>(ab, cd)];
    let ([first, third], [second, fourth]) = (both(evens), both(odds));
    [first, second, third, fourth]
}
