//! Scaled integers with scales of two levels by many columns, with AVX2: products are multiplied by integer scales, and the sums of a
//! block by its factor.
//!
//! `vpmaddwd`, which widens sums of two products to 32 bits, multiplies by the scale instead of 1. So a group costs an addition where a
//! conversion, a product of scales and two FMAs were. Sums of a column's groups are pairs of 16 bits, which it multiplies by a row's minima.

use std::arch::x86_64::*;

use super::Left;
use super::gemv_two_level_scales::read_block;
use super::microkernel_int8::{AVX2_COLUMNS, Packed, largest, store_sums};
use crate::kernel::cpu::Cpu;
use crate::kernel::cpu::isa::{BLOCK, Level};
use crate::kernel::lang::{Lanes, Scale, ScaledRow};

/// Writes row `i` of the left operand with the scales of both levels, in blocks of `GROUPS` groups.
///
/// # Safety
/// There must be room for it, and for its [factors](Left::factors).
#[inline(always)]
pub(super) unsafe fn fill_levels<L: Level, W: ScaledRow<Cpu<L>>, const GROUPS: usize>(left: &Left, row: W, i: usize) {
    let (words, scales) = (row.words(), row.scales());
    let len = Ord::min(Ord::max(words.len().0, 0) as usize, left.steps / 4);
    let groups = Ord::min(Ord::max(scales.len().0, 0) as usize, left.groups);
    let is_plain = words.plain(0, len as i64) && scales.plain(0, groups as i64);
    let whole = if is_plain { Ord::min(len / BLOCK, groups / GROUPS) } else { 0 };
    let to = left.integers.wrapping_add(i * left.row).cast_mut().cast::<[i32; BLOCK]>();
    let [pairs, minima] = left.row_scales(i);
    let (pairs, minima) = (pairs.cast::<[i32; GROUPS]>(), minima.cast::<[i16; GROUPS]>());
    let factors = left.factors.wrapping_add(i * left.factors_row).cast_mut().cast::<[f32; 2]>();
    for b in 0..left.steps / 4 / BLOCK {
        let block = if b < whole {
            read_block::<L, W, GROUPS, true>(row, b, [BLOCK, GROUPS])
        } else {
            let rest = [len.saturating_sub(b * BLOCK), groups.saturating_sub(b * GROUPS)];
            read_block::<L, W, GROUPS, false>(row, b, rest)
        };
        let widen = |byte: u8| if block.is_signed { i16::from(byte as i8) } else { i16::from(byte) };
        let (mut twice, mut of_offsets) = ([0; GROUPS], [0; GROUPS]);
        let mut g = 0;
        while g < GROUPS {
            let scale = widen(block.scales[g]);
            twice[g] = i32::from(scale) << 16 | i32::from(scale as u16);
            of_offsets[g] = if W::HAS_ZERO { scale } else { widen(block.minima[g]) };
            g += 1;
        }
        // SAFETY: by the contract above.
        unsafe {
            to.add(b).write_unaligned(block.words);
            pairs.add(b).write_unaligned(twice);
            if W::Scale::HAS_OFFSET {
                minima.add(b).write_unaligned(of_offsets);
            }
            factors.add(b).write_unaligned(block.factors);
        }
    }
}

/// `sum += left · right`, of so many rows and columns, the rows `step` elements apart.
///
/// # Safety
/// The operands and the sum must be there, rows as [`fill_levels`] writes them; the machine must have the features.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn multiply(
    left: &Left,
    right: &Packed,
    [rows, columns]: [usize; 2],
    (sum, step): (*mut f32, usize),
) {
    // So many sums of two products fit 16 bits.
    // SAFETY: by the contract above.
    let depth = i16::MAX as usize / (2 * 127 * Ord::max(unsafe { largest(left, rows) }, 1));
    let depth = Ord::min(depth, left.steps / left.groups / 4);
    let mut j = 0;
    while j < columns {
        let panels = Ord::min((columns - j).div_ceil(AVX2_COLUMNS), 2);
        let mut i = 0;
        while i < rows {
            let many = if rows - i == 4 { 2 } else { Ord::min(rows - i, 3) };
            let block = match (many, panels, depth) {
                (3, 2, 8..) => block::<3, 2, 8>,
                (3, 2, 4..) => block::<3, 2, 4>,
                (3, 2, 2..) => block::<3, 2, 2>,
                (3, 2, _) => block::<3, 2, 1>,
                (3, _, 2..) => block::<3, 1, 2>,
                (3, ..) => block::<3, 1, 1>,
                (2, 2, 2..) => block::<2, 2, 2>,
                (2, 2, _) => block::<2, 2, 1>,
                (2, _, 2..) => block::<2, 1, 2>,
                (2, ..) => block::<2, 1, 1>,
                (_, 2, _) => block::<1, 2, 1>,
                _ => block::<1, 1, 1>,
            };
            // SAFETY: by the contract above.
            unsafe { block(left, right, [i, j, columns], (sum, step)) };
            i += many;
        }
        j += panels * AVX2_COLUMNS;
    }
}

/// The same of `R` rows and `V` panels, whose sums and those of a block stay in registers: `DEPTH` sums of two products are added before
/// they are widened.
///
/// # Safety
/// As for [`multiply`]; so many must fit 16 bits, and divide a group.
#[target_feature(enable = "avx2,fma")]
unsafe fn block<const R: usize, const V: usize, const DEPTH: usize>(
    left: &Left,
    right: &Packed,
    [i, j, columns]: [usize; 3],
    (sum, step): (*mut f32, usize),
) {
    let (quads, across) = (left.steps / left.groups / 4, right.across);
    let groups = BLOCK / quads;
    let has_zero = left.zero != 0x80;
    let mut sums = [[_mm256_setzero_ps(); V]; R];
    // SAFETY: by the contract above.
    unsafe {
        let mut a = left.integers.add(i * left.row).cast::<i32>();
        let mut b = right.integers.add(j * left.steps).cast_const();
        let (row, panel) = (left.row / 4, AVX2_COLUMNS * left.steps);
        let levels = left.scales.add(i * left.scales_row).cast::<i32>();
        for first in (0..left.groups).step_by(groups) {
            let mut dots = [[_mm256_setzero_si256(); V]; R];
            for g in first..first + groups {
                for _ in 0..quads / DEPTH {
                    let mut part = [[_mm256_setzero_si256(); V]; R];
                    let mut q = 0;
                    while q < DEPTH {
                        let mut bs = [_mm256_setzero_si256(); V];
                        let mut v = 0;
                        while v < V {
                            bs[v] = _mm256_loadu_si256(b.add(v * panel + 32 * q).cast());
                            v += 1;
                        }
                        let mut r = 0;
                        while r < R {
                            let word = _mm256_set1_epi32(a.add(r * row + q).read_unaligned());
                            let mut v = 0;
                            while v < V {
                                part[r][v] = _mm256_add_epi16(part[r][v], _mm256_maddubs_epi16(word, bs[v]));
                                v += 1;
                            }
                            r += 1;
                        }
                        q += 1;
                    }
                    a = a.add(DEPTH);
                    b = b.add(32 * DEPTH);
                    let mut r = 0;
                    while r < R {
                        let scale = _mm256_set1_epi32(*levels.add(r * left.scales_row + g));
                        let mut v = 0;
                        while v < V {
                            dots[r][v] = _mm256_add_epi32(dots[r][v], _mm256_madd_epi16(part[r][v], scale));
                            v += 1;
                        }
                        r += 1;
                    }
                }
            }
            let mut r = 0;
            while r < R {
                let factors = left.factors.add((i + r) * left.factors_row + 2 * (first / groups));
                let [factor, of_minima] = [0, 1].map(
                    #[inline(always)]
                    |f| _mm256_broadcast_ss(&*factors.add(f)),
                );
                let mut v = 0;
                while v < V {
                    let at = j + v * AVX2_COLUMNS;
                    let scale = _mm256_loadu_ps(right.scales.add(first * across + at));
                    let mut dot = dots[r][v];
                    if !left.offsets.is_null() {
                        let minima = left.offsets.add((i + r) * left.scales_row).cast::<i32>();
                        let mut all = _mm256_setzero_si256();
                        for pair in first / 2..(first + groups) / 2 {
                            let of_columns = _mm256_loadu_si256(right.sums.add(pair * across + at).cast());
                            let minima = _mm256_set1_epi32(*minima.add(pair));
                            all = _mm256_add_epi32(all, _mm256_madd_epi16(minima, of_columns));
                        }
                        if has_zero {
                            let zero = _mm256_set1_epi32(i32::from(left.zero) - 0x80);
                            dot = _mm256_sub_epi32(dot, _mm256_mullo_epi32(all, zero));
                        } else {
                            let scale = _mm256_mul_ps(of_minima, scale);
                            sums[r][v] = _mm256_fnmadd_ps(_mm256_cvtepi32_ps(all), scale, sums[r][v]);
                        }
                    }
                    sums[r][v] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), _mm256_mul_ps(factor, scale), sums[r][v]);
                    v += 1;
                }
                r += 1;
            }
        }
        store_sums(&sums, [i, j, columns], (sum, step));
    }
}
