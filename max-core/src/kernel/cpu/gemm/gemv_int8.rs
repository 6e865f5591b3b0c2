//! Rows of scaled integers by few columns: words are multiplied in the registers in which they were unpacked.

use super::super::Cpu;
use super::super::isa::{BLOCK, Level, TAIL};
use super::dot_scaled::{Column, FEW, Left, each_lane, fill_scales, in_blocks};
use super::microkernel_int8::{add_sums, add_words, scale_row};
use crate::kernel::cpu_features;
use crate::kernel::lang::{Lanes, Scale, ScaledRow};

/// Two vectors of partial sums, to which words are added in turn: one sum waits for the one before.
pub(super) type Sums = [[f32; TAIL]; 2];

/// Columns, and what rows are multiplied with them in.
pub(super) struct Few<'a> {
    left: &'a Left,
    columns: [Column; FEW],
    count: usize,
    /// A row's scales times those of each column.
    scaled: *mut f32,
    /// Of each row and column.
    sums: *mut Sums,
    has_vnni: bool,
}

impl<'a> Few<'a> {
    /// There must be room for a row of scales of each column, and for the sums of all rows.
    pub fn new<L: Level>(
        left: &'a Left,
        (columns, count): ([Column; FEW], usize),
        scaled: *mut f32,
        sums: *mut Sums,
    ) -> Self {
        let has_vnni = L::AVX512 && cpu_features::matrix_units().int8.is_some();
        Few { left, columns, count, scaled, sums, has_vnni }
    }

    /// Multiplies row `i`, of whose words `group` have one scale, by all columns, of which there is but `ONE`.
    ///
    /// # Safety
    /// There must be that row; the level must have AVX2, and the caller its features.
    #[inline(always)]
    pub unsafe fn multiply_row<L: Level, W: ScaledRow<Cpu<L>>, const ONE: bool>(&self, row: W, group: usize, i: usize) {
        let (left, sums) = (self.left, self.sums.wrapping_add(i * self.count));
        // Of one column, sums stay in registers.
        let mut one: Sums = [[0.0; TAIL]; 2];
        if ONE {
            // SAFETY: by the contract above.
            unsafe { self.scale_one::<L, W::Scale, _>(row.scales(), &mut one[0]) };
        } else {
            // SAFETY: there is room for a row of scales, and for each column's.
            unsafe {
                let to = [left.scales.cast_mut(), left.offsets.cast_mut()];
                fill_scales::<L, W::Scale, _, true, true>(row.scales(), to, [left.groups, left.scales_row]);
                let mut c = 0;
                while c < self.count && c < FEW {
                    let sums = sums.add(c);
                    sums.write([[0.0; TAIL]; 2]);
                    scale_row(left, &self.columns[c], self.scaled.add(c * left.scales_row), &mut (*sums)[0]);
                    c += 1;
                }
            }
        }
        let words = row.words();
        in_blocks!(words, left.steps / 4, of BLOCK, true, |first, w, plain, N, WHOLE| {
            let mut block = [0; N];
            each_lane::<L, _, N, WHOLE, true>(words, first, w, plain, |k, word| block[k] = word.0);
            let place = (first, group);
            if ONE {
                // SAFETY: columns are as long as a row, and have a scale for each group, as rows do.
                unsafe {
                    let right = (&self.columns[0], self.scaled);
                    add_block::<L, W, N>(&block, place, right, self.has_vnni, &mut one);
                }
            } else {
                let mut c = 0;
                while c < self.count && c < FEW {
                    let right = (&self.columns[c], self.scaled.wrapping_add(c * left.scales_row));
                    // SAFETY: as above. A copy stays in registers, which memory that others may read does not.
                    unsafe {
                        let mut sum = *sums.add(c);
                        add_block::<L, W, N>(&block, place, right, self.has_vnni, &mut sum);
                        sums.add(c).write(sum);
                    }
                    c += 1;
                }
            }
        });
        if ONE {
            // SAFETY: as above.
            unsafe { sums.write(one) };
        }
    }

    /// Writes a row's scales times those of the only column, and adds its offsets times the sums of the column's groups.
    ///
    /// # Safety
    /// There must be a column, and room for the scales.
    #[inline(always)]
    unsafe fn scale_one<L: Level, S: Scale<Cpu<L>>, A: Lanes<Cpu<L>, Item = S>>(
        &self,
        scales: A,
        sums: &mut [f32; TAIL],
    ) {
        let column = &self.columns[0];
        let len = in_blocks!(scales, self.left.groups, of 2 * TAIL, true, |first, w, plain, N, WHOLE| {
            // SAFETY: behind the last of a column's scales and sums is a vector of zeros, and room for one behind the row's.
            unsafe {
                let of_column = column.scales.add(first).cast::<[f32; N]>().read_unaligned();
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

    /// Adds the products of all of `rows` to sums whose rows are so far apart.
    ///
    /// # Safety
    /// All must have been multiplied, and the sums be there.
    #[inline(never)]
    pub unsafe fn add_to(&self, rows: usize, (to, step): (*mut f32, usize)) {
        // SAFETY: by the contract above; the level has AVX2.
        unsafe { add_sums(self.sums, [rows, self.count], (to, step)) };
    }
}

/// Adds the products of a block of words, from word `first` of a row on, by a column, where a group is of so many words.
///
/// # Safety
/// The column must be as long, and have a scale for each group; the level must have AVX2.
#[inline(always)]
unsafe fn add_block<L: Level, W: ScaledRow<Cpu<L>>, const N: usize>(
    words: &[i32; N],
    (first, group): (usize, usize),
    (right, scales): (&Column, *mut f32),
    has_vnni: bool,
    sums: &mut Sums,
) {
    let mut k = 0;
    while k < N {
        // SAFETY: by the contract above.
        unsafe {
            let (words, sums) = (words.as_ptr().add(k), &mut sums[k / TAIL % 2]);
            let column = (right.integers.add(4 * (first + k)), right.sums.add(first + k).cast_const());
            let scales = (scales.add((first + k) / group).cast_const(), group);
            if W::IS_SIGNED {
                add_words::<L, true>(words, column, scales, has_vnni, sums);
            } else {
                add_words::<L, false>(words, column, scales, has_vnni, sums);
            }
        }
        k += TAIL;
    }
}
