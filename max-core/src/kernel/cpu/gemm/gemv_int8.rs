//! Rows of scaled integers by few columns: words are multiplied in the registers in which they were unpacked.

use super::super::Cpu;
use super::super::isa::{BLOCK, Level, TAIL};
use super::dot_scaled::{Column, Columns, Left, each_lane, fill_scales, in_blocks};
use super::microkernel_int8::{add_offsets, add_sums, add_words, scale_row, spread_scales};
use crate::kernel::cpu_features;
use crate::kernel::lang::{Lanes, Scale, ScaledRow};

/// Two vectors of partial sums, to which words are added in turn: one sum waits for the one before.
pub(super) type Sums = [[f32; TAIL]; 2];

/// Columns, and what rows are multiplied with them in.
pub(super) struct Few<'a> {
    left: &'a Left,
    right: Columns,
    /// A row's scales times those of each column.
    scaled: *mut f32,
    /// Of each row and column.
    sums: *mut Sums,
    has_vnni: bool,
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
}

impl<'a> Few<'a> {
    /// There must be room for a row of scales of each column, and for the sums of all rows.
    pub fn new<L: Level>(left: &'a Left, right: Columns, scaled: *mut f32, sums: *mut Sums) -> Self {
        let has_vnni = L::AVX512 && cpu_features::matrix_units().int8.is_some();
        Few { left, right, scaled, sums, has_vnni }
    }

    /// Multiplies row `i` by all columns of a tile of up to `C`.
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
    ) {
        let (left, right) = (self.left, &self.right);
        let sums = self.sums.wrapping_add(i * right.count);
        // Of one column, sums stay in registers.
        let mut one: Sums = [[0.0; TAIL]; 2];
        // SAFETY: there is room for a row of scales, and for each column's; the level is the caller's.
        unsafe {
            if const { C == 1 } {
                self.scale_one::<L, W::Scale, _, K, G, H>(row.scales(), &mut one[0]);
            } else {
                let to = [left.scales.cast_mut(), left.offsets.cast_mut()];
                fill_scales::<L, W::Scale, _, true, true>(row.scales(), to, [left.groups, left.scales_row]);
                for c in 0..right.count {
                    let sums = sums.add(c);
                    sums.write([[0.0; TAIL]; 2]);
                    let column = right.column(c);
                    if const { !Groups::<K, G, H>::BY_BLOCKS } {
                        scale_row(left, &column, self.scaled.add(c * left.scales_row));
                    }
                    if W::Scale::HAS_OFFSET {
                        add_offsets(left, &column, &mut (*sums)[0]);
                    }
                }
            }
        }
        let words = row.words();
        in_blocks!(words, left.steps / 4, of BLOCK, true, |first, w, plain, N, WHOLE| {
            let mut block = [0; N];
            each_lane::<L, _, N, WHOLE, true>(words, first, w, plain, |k, word| block[k] = word.0);
            // SAFETY: columns are as long as a row, and have a scale for each group, as rows do.
            unsafe {
                if const { C == 1 } {
                    let scales = spread::<L, N, K, G, H>(self.scaled, first);
                    self.add_block::<L, W, N, K, G, H>(&block, first, &right.first, &scales, &mut one);
                } else {
                    // The row's scales, or those times the column's.
                    let mut scales = [[0.0; TAIL]; BLOCK / TAIL];
                    if const { Groups::<K, G, H>::BY_BLOCKS } {
                        scales = spread::<L, N, K, G, H>(left.scales, first);
                    }
                    let mut c = 0;
                    while c < right.count {
                        if const { !Groups::<K, G, H>::BY_BLOCKS } {
                            scales = spread::<L, N, K, G, H>(self.scaled.add(c * left.scales_row), first);
                        }
                        // A copy stays in registers, which memory that others may read does not.
                        let mut sum = *sums.add(c);
                        self.add_block::<L, W, N, K, G, H>(&block, first, &right.column(c), &scales, &mut sum);
                        sums.add(c).write(sum);
                        c += 1;
                    }
                }
            }
        });
        if const { C == 1 } {
            // SAFETY: as above.
            unsafe { sums.write(one) };
        }
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
        sums: &mut [f32; TAIL],
    ) {
        let column = &self.right.first;
        let len = in_blocks!(scales, self.left.groups, of 2 * TAIL, true, |first, w, plain, N, WHOLE| {
            // SAFETY: behind the last of a column's scales and sums is a vector of zeros, and room for one behind the row's.
            unsafe {
                let mut of_column = [1.0; N];
                if const { !Groups::<K, G, H>::BY_BLOCKS } {
                    of_column = column.scales.add(first).cast::<[f32; N]>().read_unaligned();
                }
                let (mut scaled, mut offsets) = ([0.0; N], [0.0; N]);
                each_lane::<L, A, N, WHOLE, true>(scales, first, w, plain, |k, scale| {
                    let (scale, offset) = scale.parts();
                    (scaled[k], offsets[k]) = (scale.0 * of_column[k], offset.0);
                });
                self.scaled.add(first).cast::<[f32; N]>().write_unaligned(scaled);
                let mut k = 0;
                while S::HAS_OFFSET && k < N {
                    let of_column = column.offset_sums.add(first + k).cast::<[f32; TAIL]>().read_unaligned();
                    let mut j = 0;
                    while j < TAIL {
                        sums[j] = offsets[k + j].mul_add(of_column[j], sums[j]);
                        j += 1;
                    }
                    k += TAIL;
                }
            }
        });
        for g in len..self.left.groups {
            // SAFETY: as above.
            unsafe { self.scaled.add(g).write(0.0) };
        }
    }

    /// Adds the products of a block of words, from word `first` of a row on, by a column, with the scale of each word.
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
    >(
        &self,
        words: &[i32; N],
        first: usize,
        right: &Column,
        scales: &[[f32; TAIL]; BLOCK / TAIL],
        sums: &mut Sums,
    ) {
        let mut of_block = [0.0; TAIL];
        let mut k = 0;
        while k < N {
            let to = if const { Groups::<K, G, H>::BY_BLOCKS } { &mut of_block } else { &mut sums[k / TAIL % 2] };
            // SAFETY: by the contract above.
            unsafe {
                let words = words.as_ptr().add(k);
                let column = (right.integers.add(4 * (first + k)), right.sums.add(first + k).cast_const());
                if W::IS_SIGNED {
                    add_words::<L, true>(words, column, &scales[k / TAIL], self.has_vnni, to);
                } else {
                    add_words::<L, false>(words, column, &scales[k / TAIL], self.has_vnni, to);
                }
            }
            k += TAIL;
        }
        if const { Groups::<K, G, H>::BY_BLOCKS } {
            // SAFETY: as above.
            let scale = unsafe { *right.scales.add(first / Groups::<K, G, H>::WORDS) };
            let mut j = 0;
            while j < TAIL {
                sums[1][j] = of_block[j].mul_add(scale, sums[1][j]);
                j += 1;
            }
        }
    }

    /// Adds the products of all of `rows` to sums whose rows are so far apart.
    ///
    /// # Safety
    /// All must have been multiplied, and the sums be there.
    #[inline(never)]
    pub unsafe fn add_to(&self, rows: usize, (to, step): (*mut f32, usize)) {
        // SAFETY: by the contract above; the level has AVX2.
        unsafe { add_sums(self.sums, [rows, self.right.count], (to, step)) };
    }
}

/// The scales of a block's words from word `first` on, by that of each group of the row.
///
/// # Safety
/// There must be a vector of scales behind each; the level must have AVX2, and its kernels' features.
#[inline(always)]
unsafe fn spread<L: Level, const N: usize, const K: usize, const G: usize, const H: usize>(
    scales: *const f32,
    first: usize,
) -> [[f32; TAIL]; BLOCK / TAIL] {
    let mut all = [[0.0; TAIL]; BLOCK / TAIL];
    let mut k = 0;
    while k < N {
        // SAFETY: by the contract above.
        all[k / TAIL] =
            unsafe { spread_scales::<L>(scales.add((first + k) / Groups::<K, G, H>::WORDS), Groups::<K, G, H>::WORDS) };
        k += TAIL;
    }
    all
}
