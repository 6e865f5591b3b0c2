//! Products of few rows by what lies in memory by rows, which is read where it is, and widened on the way.
//!
//! Whoever reads few rows waits for the right operand: to pack it would mean to read it twice and to write it. So each of its
//! rows, times an element of each left row, is added to the sums, in wide blocks, for which memory is read well.
//! [`thin`](super::thin) is the same for the transpose.

use super::gemm::{Left, Product, Sums};
#[cfg(target_arch = "x86_64")]
use super::gemm::{each_sum, load_f32_v3, load_f32_v4, load_f64_v3, load_f64_v4};
#[cfg(target_arch = "x86_64")]
use super::gemm::{some_f32_v3, some_f32_v4, some_f64_v3, some_f64_v4};
#[cfg(target_arch = "x86_64")]
use super::gemm::{store_f32_v3, store_f32_v4, store_f64_v3, store_f64_v4};
use super::level::Level;
#[cfg(target_arch = "x86_64")]
use super::level::load_part;
#[cfg(target_arch = "x86_64")]
use super::widen;
use crate::dtype::DType;
use crate::kernel::lang::{Any, Prim};

/// The most rows that are multiplied here.
pub(super) const ROWS: usize = 8;

/// `left · right`
#[derive(Clone, Copy)]
pub(super) struct Few<P, E> {
    pub depth: usize,
    pub rows: usize,
    pub columns: usize,
    /// Not packed.
    pub left: Left<P>,
    /// The right operand, and from a row to the next: elements of a row lie together.
    pub right: *const E,
    pub right_row: isize,
}

impl<P: Copy> Few<P, P> {
    /// A product whose right operand is in place, of the dtype that it is added in.
    #[inline(always)]
    pub(super) fn of(x: &Product<P>) -> Self {
        let Product { depth, rows, columns, left, right } = *x;
        Few { depth, rows, columns, left, right: right.ptr, right_row: right.step }
    }
}

/// Whether right operands of that dtype are widened where they are read, of products that are added in `sums`.
#[inline(always)]
pub(super) const fn widens(dtype: DType, sums: DType) -> bool {
    matches!((dtype, sums), (DType::F16 | DType::BF16, DType::F32))
}

/// Computes the product, of no more than [`ROWS`] rows, if the level has vectors for it.
///
/// # Safety
/// The operands must have the elements that are described, the sums be readable and writable by this call alone, the machine
/// have the level, and `U` be the dtype that it computes with, or one that [`widens`] to it.
#[inline(always)]
pub(super) unsafe fn multiply<L: Level, U: Any>(x: &Few<U::Compute, U::Mem>, sums: &Sums<U::Compute>) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: by the contract above; `U` computes with the dtype that is matched.
    unsafe {
        let (x, sums) = (std::ptr::from_ref(x), std::ptr::from_ref(sums));
        match (U::Compute::DTYPE, L::AVX512) {
            (DType::F32, true) => few_f32_v4::<L, U>(&*x.cast(), &*sums.cast()),
            (DType::F32, false) => few_f32_v3::<L, U>(&*x.cast(), &*sums.cast()),
            (_, true) => few_f64_v4::<L, U>(&*x.cast(), &*sums.cast()),
            (_, false) => few_f64_v3::<L, U>(&*x.cast(), &*sums.cast()),
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (x, sums);
}

#[cfg(target_arch = "x86_64")]
macro_rules! few {
    (
        $(#[$doc:meta])* $name:ident $steps_of:ident $block:ident $features:literal $p:ident $lanes:literal $step:literal $wide:literal $steps:literal $fetch:literal
        $zero:ident $load:ident $store:ident $splat:ident $fma:ident $some:ident $load_some:ident $store_some:ident
    ) => {
        $(#[$doc])*
        ///
        /// # Safety
        /// As for [`multiply`].
        #[target_feature(enable = $features)]
        unsafe fn $name<L: Level, U: Any>(x: &Few<$p, U::Mem>, sums: &Sums<$p>) {
            // Not more rows of the right operand at a time than memory is read well from.
            let most = if x.rows <= 2 { $steps } else { x.depth };
            let (mut part, mut sums) = (*x, *sums);
            let mut k = 0;
            while k < x.depth {
                part.depth = Ord::min(most, x.depth - k);
                // SAFETY: the part is inside the product, and what comes after the first one is added to it.
                unsafe { $steps_of::<L, U>(&part, &sums) };
                k += part.depth;
                part.left.ptr = x.left.ptr.wrapping_add(k);
                part.right = x.right.wrapping_offset(k as isize * x.right_row);
                (sums.from, sums.from_row) = (sums.to.cast_const(), sums.to_row);
            }
        }

        /// All columns, over some steps of the depth.
        ///
        /// # Safety
        /// As for [`multiply`].
        #[inline(always)]
        unsafe fn $steps_of<L: Level, U: Any>(x: &Few<$p, U::Mem>, sums: &Sums<$p>) {
            const WIDE: usize = $wide * $step;
            const STEP: usize = $step;
            let mut j = 0;
            while j < x.columns {
                let left = x.columns - j;
                let mut i = 0;
                while i < x.rows {
                    macro_rules! block {
                        ($m:literal, $q:expr, $from:expr, $part:literal) => {{
                            // SAFETY: the block is inside the product.
                            unsafe {
                                match i {
                                    0 => $block::<L, U, $m, { $q }, $part, $fetch>(x, sums, [i, j + $from]),
                                    _ => $block::<L, U, $m, { $q }, $part, false>(x, sums, [i, j + $from]),
                                }
                            }
                        }};
                    }
                    i += match (x.rows - i, left) {
                        (4.., WIDE..) => {
                            // Each element of the right operand for four rows, in half as many columns.
                            block!(4, $wide / 2, 0, false);
                            block!(4, $wide / 2, $wide / 2 * $step, false);
                            4
                        }
                        (2.., WIDE..) => {
                            block!(2, $wide, 0, false);
                            2
                        }
                        (_, WIDE..) => {
                            block!(1, $wide, 0, false);
                            1
                        }
                        (2.., STEP..) => {
                            block!(2, 1, 0, false);
                            2
                        }
                        (_, STEP..) => {
                            block!(1, 1, 0, false);
                            1
                        }
                        _ => {
                            block!(1, 1, 0, true);
                            1
                        }
                    };
                }
                j += if left >= WIDE { WIDE } else { STEP };
            }
        }

        /// `M` rows by `Q` times `$step` columns, of which there are fewer if it is a `PART`, over the whole depth; `AHEAD` asks for
        /// the right operand's next rows.
        ///
        /// # Safety
        /// As for [`multiply`]; the rows and columns must be inside.
        #[inline(always)]
        unsafe fn $block<L: Level, U: Any, const M: usize, const Q: usize, const PART: bool, const AHEAD: bool>(
            x: &Few<$p, U::Mem>,
            sums: &Sums<$p>,
            [i, j]: [usize; 2],
        ) {
            use std::arch::x86_64::*;
            const STEP: usize = $step;
            const VECTORS: usize = STEP / $lanes;
            // The right operand's rows of the next product.
            let next = x.right_row * x.depth as isize;
            let columns = x.columns - j;
            // SAFETY: as for the caller.
            unsafe {
                let mut acc = [[[$zero(); VECTORS]; Q]; M];
                let to = sums.to.add(i * sums.to_row + j);
                let some = |p: usize| $some(columns.saturating_sub(p * $lanes));
                if !sums.from.is_null() {
                    let from = sums.from.add(i * sums.from_row + j);
                    each_sum!(r in M, q in Q, at from from, sums.from_row, STEP, {
                        let mut p = 0;
                        while p < VECTORS {
                            let at = at.wrapping_add(p * $lanes);
                            acc[r][q][p] = if PART { $load_some(at, some(p)) } else { $load(at) };
                            p += 1;
                        }
                    });
                }
                let mut a = x.left.ptr.offset(i as isize * x.left.row);
                let mut b = x.right.add(j);
                let mut k = x.depth;
                while k > 0 {
                    let mut v = [[$zero(); VECTORS]; Q];
                    let mut q = 0;
                    while q < Q {
                        let at = b.add(STEP * q);
                        let row = match PART {
                            true => load_part::<L, _, STEP>(at, columns),
                            false => at.cast::<[U::Mem; STEP]>().read_unaligned(),
                        };
                        // A line of them is asked for once.
                        if AHEAD && !PART && (q * size_of::<[U::Mem; STEP]>()).is_multiple_of(64) {
                            let next = b.wrapping_offset(next).wrapping_add(STEP * q).cast::<i8>();
                            let mut byte = 0;
                            while byte < size_of::<[U::Mem; STEP]>() {
                                _mm_prefetch::<_MM_HINT_T0>(next.wrapping_add(byte));
                                byte += 64;
                            }
                        }
                        let row = widen::<L, U, STEP>(&row);
                        let row = row.as_ptr().cast::<$p>();
                        let mut p = 0;
                        while p < VECTORS {
                            v[q][p] = $load(row.add(p * $lanes));
                            p += 1;
                        }
                        q += 1;
                    }
                    let mut r = 0;
                    while r < M {
                        let s = $splat(*a.offset(r as isize * x.left.row));
                        let mut q = 0;
                        while q < Q {
                            let mut p = 0;
                            while p < VECTORS {
                                acc[r][q][p] = $fma(s, v[q][p], acc[r][q][p]);
                                p += 1;
                            }
                            q += 1;
                        }
                        r += 1;
                    }
                    a = a.add(1);
                    b = b.wrapping_offset(x.right_row);
                    k -= 1;
                }
                each_sum!(r in M, q in Q, at from to, sums.to_row, STEP, {
                    let mut p = 0;
                    while p < VECTORS {
                        let at = at.wrapping_add(p * $lanes);
                        if PART {
                            $store_some(at, some(p), acc[r][q][p]);
                        } else {
                            $store(at, acc[r][q][p]);
                        }
                        p += 1;
                    }
                });
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
few! {
    /// In `f32`, with AVX-512.
    few_f32_v4 steps_f32_v4 block_f32_v4 "avx512f,avx512bw,avx512dq,avx512vl,fma,f16c" f32 16 16 8 4096 true
    _mm512_setzero_ps _mm512_loadu_ps _mm512_storeu_ps _mm512_set1_ps _mm512_fmadd_ps
    some_f32_v4 load_f32_v4 store_f32_v4
}
#[cfg(target_arch = "x86_64")]
few! {
    /// In `f64`, with AVX-512.
    few_f64_v4 steps_f64_v4 block_f64_v4 "avx512f,avx512bw,avx512dq,avx512vl,fma,f16c" f64 8 8 8 4096 true
    _mm512_setzero_pd _mm512_loadu_pd _mm512_storeu_pd _mm512_set1_pd _mm512_fmadd_pd
    some_f64_v4 load_f64_v4 store_f64_v4
}
#[cfg(target_arch = "x86_64")]
few! {
    /// In `f32`, with AVX2.
    few_f32_v3 steps_f32_v3 block_f32_v3 "avx2,fma,f16c" f32 8 16 2 8 false
    _mm256_setzero_ps _mm256_loadu_ps _mm256_storeu_ps _mm256_set1_ps _mm256_fmadd_ps
    some_f32_v3 load_f32_v3 store_f32_v3
}
#[cfg(target_arch = "x86_64")]
few! {
    /// In `f64`, with AVX2.
    few_f64_v3 steps_f64_v3 block_f64_v3 "avx2,fma,f16c" f64 4 8 2 8 false
    _mm256_setzero_pd _mm256_loadu_pd _mm256_storeu_pd _mm256_set1_pd _mm256_fmadd_pd
    some_f64_v3 load_f64_v3 store_f64_v3
}
