//! Products of few rows with the transpose of what lies in memory by rows: sums along both operands, which are read where
//! they are.
//!
//! [`gemm`](super::gemm) would have the right operand transposed first, which costs more than a few rows make of it, and
//! memory is the limit: the scores of attention for one token are such a product. Four rows meet four columns at a time,
//! so that sixteen sums grow in registers, and the lanes of all sixteen are added up together at the end.

use super::level::{Level, load_part};
use super::widen;
use crate::kernel::lang::Any;

/// The most rows that are multiplied here.
pub(super) const ROWS: usize = 8;
/// Elements along both operands that are read at once.
const STEP: usize = 16;
/// Columns that are read side by side.
const COLUMNS: usize = 4;
/// How far ahead the right operand's memory is asked for, in bytes, at least: by whole groups of columns, which are read next.
const AHEAD: isize = 4096;
/// The unit of memory, in bytes.
const LINE: usize = 64;

/// `acc += left · rightᵀ`
pub(super) struct Thin<E> {
    pub depth: usize,
    pub rows: usize,
    /// Columns of `acc`: rows of the right operand.
    pub columns: usize,
    /// The left operand, whose rows lie `left_row` elements apart.
    pub left: *const f32,
    pub left_row: isize,
    /// The right operand, whose rows lie `right_row` elements apart.
    pub right: *const E,
    pub right_row: isize,
    pub acc: *mut f32,
    pub acc_row: usize,
}

/// Computes the product.
///
/// # Safety
/// The operands must have the elements that are described, `acc` be writable by this call alone, `U` compute in `f32`,
/// and the machine must have the level, which is v3 or v4.
#[inline(always)]
pub(super) unsafe fn multiply<L: Level, U: Any>(x: &Thin<U::Mem>) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: by the contract above.
    unsafe {
        if L::AVX512 { thin_v4::<L, U>(x) } else { thin_v3::<L, U>(x) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = x;
}

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

#[cfg(target_arch = "x86_64")]
macro_rules! thin {
    ($name:ident $block:ident $features:literal $lanes:literal $zero:ident $load:ident $fma:ident $sums:ident) => {
        /// # Safety
        /// As for [`multiply`].
        #[target_feature(enable = $features)]
        unsafe fn $name<L: Level, U: Any>(x: &Thin<U::Mem>) {
            let group = (x.right_row * (COLUMNS * size_of::<U::Mem>()) as isize).max(1);
            let ahead = (AHEAD + group - 1) / group * group;
            let mut j = 0;
            while j < x.columns {
                let mut i = 0;
                // SAFETY: the rows and columns are the product's.
                unsafe {
                    while i + 4 <= x.rows {
                        $block::<L, U, 4>(x, i, j, ahead);
                        i += 4;
                    }
                    if i + 2 <= x.rows {
                        $block::<L, U, 2>(x, i, j, ahead);
                        i += 2;
                    }
                    if i < x.rows {
                        $block::<L, U, 1>(x, i, j, ahead);
                    }
                }
                j += COLUMNS;
            }
        }

        /// `M` rows by [`COLUMNS`] columns, over the whole depth; `ahead` of what is read in the right operand is asked for.
        ///
        /// # Safety
        /// As for [`multiply`]; the first row and column must be inside.
        #[inline(always)]
        unsafe fn $block<L: Level, U: Any, const M: usize>(x: &Thin<U::Mem>, i: usize, j: usize, ahead: isize) {
            // SAFETY: by the contract above. Past the last column it is read again, and its sum dropped.
            unsafe {
                let left = x.left.offset(i as isize * x.left_row);
                let mut right = [x.right; COLUMNS];
                let mut c = 0;
                while c < COLUMNS {
                    right[c] = x.right.offset(Ord::min(j + c, x.columns - 1) as isize * x.right_row);
                    c += 1;
                }
                let mut acc = [[$zero(); COLUMNS]; 4];
                let mut k = 0;
                while k < x.depth {
                    let w = Ord::min(x.depth - k, STEP);
                    let mut a = [[0.0; STEP]; M];
                    let mut r = 0;
                    while r < M {
                        let p = left.offset(r as isize * x.left_row).add(k);
                        a[r] = if w == STEP {
                            p.cast::<[f32; STEP]>().read_unaligned()
                        } else {
                            load_part::<L, _, STEP>(p, w)
                        };
                        r += 1;
                    }
                    let mut c = 0;
                    while c < COLUMNS {
                        let p = right[c].add(k);
                        if k * size_of::<U::Mem>() % LINE == 0 {
                            _mm_prefetch::<_MM_HINT_T0>(p.cast::<i8>().wrapping_offset(ahead));
                        }
                        let b = if w == STEP {
                            p.cast::<[U::Mem; STEP]>().read_unaligned()
                        } else {
                            load_part::<L, _, STEP>(p, w)
                        };
                        let b = widen::<L, U, STEP>(&b);
                        let b: *const f32 = b.as_ptr().cast();
                        let mut part = 0;
                        while part < STEP {
                            let b = $load(b.add(part));
                            let mut r = 0;
                            while r < M {
                                acc[r][c] = $fma($load(a[r].as_ptr().add(part)), b, acc[r][c]);
                                r += 1;
                            }
                            part += $lanes;
                        }
                        c += 1;
                    }
                    k += STEP;
                }
                let sums: [[f32; COLUMNS]; 4] = $sums(acc);
                let mut r = 0;
                while r < M {
                    let to = x.acc.add((i + r) * x.acc_row + j);
                    let mut c = 0;
                    while c < Ord::min(COLUMNS, x.columns - j) {
                        *to.add(c) += sums[r][c];
                        c += 1;
                    }
                    r += 1;
                }
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
thin!(thin_v4 block_v4 "avx512f,avx512bw,avx512dq,avx512vl,fma,f16c" 16
    _mm512_setzero_ps _mm512_loadu_ps _mm512_fmadd_ps sums_v4);
#[cfg(target_arch = "x86_64")]
thin!(thin_v3 block_v3 "avx2,fma,f16c" 8 _mm256_setzero_ps _mm256_loadu_ps _mm256_fmadd_ps sums_v3);

/// The sum of the lanes of each vector.
///
/// # Safety
/// The machine must have AVX-512.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn sums_v4(v: [[__m512; COLUMNS]; 4]) -> [[f32; COLUMNS]; 4] {
    // SAFETY: by the contract above; the result is as large as a vector.
    unsafe {
        // Each quarter of a vector now holds a part of each column's sum.
        let (p, q, r, s) = (quarters(v[0]), quarters(v[1]), quarters(v[2]), quarters(v[3]));
        let pq = _mm512_add_ps(_mm512_shuffle_f32x4::<0x88>(p, q), _mm512_shuffle_f32x4::<0xdd>(p, q));
        let rs = _mm512_add_ps(_mm512_shuffle_f32x4::<0x88>(r, s), _mm512_shuffle_f32x4::<0xdd>(r, s));
        let all = _mm512_add_ps(_mm512_shuffle_f32x4::<0x88>(pq, rs), _mm512_shuffle_f32x4::<0xdd>(pq, rs));
        std::mem::transmute(all)
    }
}

/// Four vectors' sums of every fourth lane, side by side in each quarter.
///
/// # Safety
/// The machine must have AVX-512.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn quarters([a, b, c, d]: [__m512; COLUMNS]) -> __m512 {
    // SAFETY: by the contract above.
    unsafe {
        let ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
        let cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
        let (ab, cd) = (_mm512_castps_pd(ab), _mm512_castps_pd(cd));
        let (low, high) = (_mm512_unpacklo_pd(ab, cd), _mm512_unpackhi_pd(ab, cd));
        _mm512_add_ps(_mm512_castpd_ps(low), _mm512_castpd_ps(high))
    }
}

/// The sum of the lanes of each vector.
///
/// # Safety
/// The machine must have AVX2.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn sums_v3(v: [[__m256; COLUMNS]; 4]) -> [[f32; COLUMNS]; 4] {
    // SAFETY: by the contract above; a row is as large as half a vector.
    unsafe {
        let mut sums = [[0.0; COLUMNS]; 4];
        let mut r = 0;
        while r < 4 {
            let [a, b, c, d] = v[r];
            let all = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
            let row = _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps::<1>(all));
            _mm_storeu_ps(sums[r].as_mut_ptr(), row);
            r += 1;
        }
        sums
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;
    use crate::kernel::cpu::{V3, V4};

    fn check<L: Level>() {
        for (rows, columns, depth) in [(1, 1, 1), (2, 3, 15), (3, 4, 16), (4, 5, 17), (5, 9, 128), (8, 33, 70)] {
            let (left_row, right_row, acc_row) = (depth + 3, depth + 1, columns + 2);
            let left: Vec<f32> = (0..rows * left_row).map(|i| (i * 7 % 11) as f32 - 5.0).collect();
            let right: Vec<f32> = (0..columns * right_row).map(|i| (i * 5 % 13) as f32 - 6.0).collect();
            let mut acc: Vec<f32> = (0..rows * acc_row).map(|i| i as f32).collect();
            let want: Vec<f32> = (0..rows * acc_row)
                .map(|i| {
                    let (r, c) = (i / acc_row, i % acc_row);
                    let product = |k: usize| left[r * left_row + k] * right[c * right_row + k];
                    i as f32 + if c < columns { (0..depth).map(product).sum() } else { 0.0 }
                })
                .collect();
            let product = Thin {
                depth,
                rows,
                columns,
                left: left.as_ptr(),
                left_row: left_row as isize,
                right: right.as_ptr(),
                right_row: right_row as isize,
                acc: acc.as_mut_ptr(),
                acc_row,
            };
            // SAFETY: the vectors have the elements described, and the caller asked for the level.
            unsafe { multiply::<L, f32>(&product) };
            assert_eq!(acc, want, "{rows} x {columns} x {depth}");
        }
    }

    #[test]
    fn products_are_those_of_their_definition() {
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c") {
            check::<V3>();
        }
        if is_x86_feature_detected!("avx512bw") && is_x86_feature_detected!("avx512vl") {
            check::<V4>();
        }
    }
}
