//! GEMV and skinny GEMM: up to [`ROWS`] rows times a row-major B, which is read in place and widened on the way.
//!
//! It exists because with so few rows GEMM is bound by the bandwidth of B: packing would read B twice and write it
//! once.
//!
//! Each row of B, times an element of each row of A, is added to the accumulators, in wide column blocks that hardware
//! prefetchers follow. [`gemv_t`](super::gemv_t) is the same with B transposed.

use super::super::isa::Level;
#[cfg(target_arch = "x86_64")]
use super::super::isa::load_part;
#[cfg(target_arch = "x86_64")]
use super::super::widen;
use super::microkernel::{Accumulators, Gemm, Lhs};
#[cfg(target_arch = "x86_64")]
use super::microkernel::{
    each_accumulator, masked_load_f32_v3, masked_load_f32_v4, masked_load_f64_v3, masked_load_f64_v4,
};
#[cfg(target_arch = "x86_64")]
use super::microkernel::{lane_mask_f32_v3, lane_mask_f32_v4, lane_mask_f64_v3, lane_mask_f64_v4};
#[cfg(target_arch = "x86_64")]
use super::microkernel::{masked_store_f32_v3, masked_store_f32_v4, masked_store_f64_v3, masked_store_f64_v4};
use crate::dtype::DType;
use crate::kernel::lang::Any;
#[cfg(target_arch = "x86_64")]
use crate::kernel::lang::Prim;

/// The most rows that are multiplied here.
pub(in crate::kernel::cpu) const ROWS: usize = 8;

/// `lhs · rhs`
#[derive(Clone, Copy)]
pub(in crate::kernel::cpu) struct Gemv<P, E> {
    pub depth: usize,
    pub rows: usize,
    pub columns: usize,
    /// Not packed.
    pub lhs: Lhs<P>,
    /// The right operand, and from a row to the next: elements of a row lie together.
    pub rhs: *const E,
    pub rhs_row: isize,
}

impl<P: Copy> Gemv<P, P> {
    /// A GEMM whose right operand is in place, of the dtype that it is added in.
    #[inline(always)]
    pub(in crate::kernel::cpu) fn of(x: &Gemm<P>) -> Self {
        let Gemm { depth, rows, columns, lhs, rhs } = *x;
        Gemv { depth, rows, columns, lhs, rhs: rhs.ptr, rhs_row: rhs.step }
    }
}

/// Whether a B of that dtype is widened as it is read, for accumulators of dtype `accumulator`.
#[inline(always)]
pub(in crate::kernel::cpu) const fn widens(dtype: DType, accumulator: DType) -> bool {
    matches!((dtype, accumulator), (DType::F16 | DType::BF16, DType::F32))
}

/// Computes the GEMM, of no more than [`ROWS`] rows, if the level has vectors for it.
///
/// # Safety
/// The operands must have the elements that are described, the accumulators be readable and writable by this call
/// alone, the machine have the level, and `U` be the dtype that it computes with, or one that [`widens`] to it.
#[inline(always)]
pub(in crate::kernel::cpu) unsafe fn multiply<L: Level, U: Any>(
    x: &Gemv<U::Compute, U::Mem>,
    accumulators: &Accumulators<U::Compute>,
) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: by the contract above; `U` computes with the dtype that is matched.
    unsafe {
        let (x, accumulators) = (std::ptr::from_ref(x), std::ptr::from_ref(accumulators));
        match (U::Compute::DTYPE, L::AVX512) {
            (DType::F32, true) => gemv_f32_v4::<L, U>(&*x.cast(), &*accumulators.cast()),
            (DType::F32, false) => gemv_f32_v3::<L, U>(&*x.cast(), &*accumulators.cast()),
            (_, true) => gemv_f64_v4::<L, U>(&*x.cast(), &*accumulators.cast()),
            (_, false) => gemv_f64_v3::<L, U>(&*x.cast(), &*accumulators.cast()),
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (x, accumulators);
}

#[cfg(target_arch = "x86_64")]
macro_rules! gemv {
    (
        $(#[$doc:meta])* $name:ident $steps_of:ident $block:ident $features:literal $p:ident $lanes:literal $step:literal $wide:literal $steps:literal $fetch:literal
        $zero:ident $load:ident $store:ident $splat:ident $fma:ident $lane_mask:ident $masked_load:ident $masked_store:ident
    ) => {
        $(#[$doc])*
        ///
        /// # Safety
        /// As for [`multiply`].
        #[target_feature(enable = $features)]
        unsafe fn $name<L: Level, U: Any>(x: &Gemv<$p, U::Mem>, accumulators: &Accumulators<$p>) {
            // Hardware prefetchers follow only so many rows of B at a time.
            let most = if x.rows <= 2 { $steps } else { x.depth };
            let (mut part, mut accumulators) = (*x, *accumulators);
            let mut k = 0;
            while k < x.depth {
                part.depth = Ord::min(most, x.depth - k);
                // SAFETY: the part is inside the GEMM, and what comes after the first one is added to it.
                unsafe { $steps_of::<L, U>(&part, &accumulators) };
                k += part.depth;
                part.lhs.ptr = x.lhs.ptr.wrapping_add(k);
                part.rhs = x.rhs.wrapping_offset(k as isize * x.rhs_row);
                (accumulators.from, accumulators.from_row) = (accumulators.to.cast_const(), accumulators.to_row);
            }
        }

        /// All columns, over a block of K.
        ///
        /// # Safety
        /// As for [`multiply`].
        #[inline(always)]
        unsafe fn $steps_of<L: Level, U: Any>(x: &Gemv<$p, U::Mem>, accumulators: &Accumulators<$p>) {
            const WIDE: usize = $wide * $step;
            const STEP: usize = $step;
            let mut j = 0;
            while j < x.columns {
                let remaining = x.columns - j;
                let mut i = 0;
                while i < x.rows {
                    macro_rules! block {
                        ($m:literal, $q:expr, $from:expr, $part:literal) => {{
                            // SAFETY: the block is inside the GEMM.
                            unsafe {
                                match i {
                                    0 => $block::<L, U, $m, { $q }, $part, $fetch>(x, accumulators, [i, j + $from]),
                                    _ => $block::<L, U, $m, { $q }, $part, false>(x, accumulators, [i, j + $from]),
                                }
                            }
                        }};
                    }
                    i += match (x.rows - i, remaining) {
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
                j += if remaining >= WIDE { WIDE } else { STEP };
            }
        }

        /// `M` rows by `Q` times `$step` columns, fewer if `MASKED`, over all of K; `PREFETCH` prefetches
        /// the right operand's next rows.
        ///
        /// # Safety
        /// As for [`multiply`]; the rows and columns must be inside.
        #[inline(always)]
        unsafe fn $block<L: Level, U: Any, const M: usize, const Q: usize, const MASKED: bool, const PREFETCH: bool>(
            x: &Gemv<$p, U::Mem>,
            accumulators: &Accumulators<$p>,
            [i, j]: [usize; 2],
        ) {
            use std::arch::x86_64::*;
            const STEP: usize = $step;
            const VECTORS: usize = STEP / $lanes;
            // The right operand's rows of the next GEMM.
            let next = x.rhs_row.wrapping_mul(x.depth as isize);
            let columns = x.columns - j;
            // SAFETY: as for the caller.
            unsafe {
                let mut acc = [[[$zero(); VECTORS]; Q]; M];
                let to = accumulators.to.add(i * accumulators.to_row + j);
                let some = |p: usize| $lane_mask(columns.saturating_sub(p * $lanes));
                if !accumulators.from.is_null() {
                    let from = accumulators.from.add(i * accumulators.from_row + j);
                    each_accumulator!(r in M, q in Q, at from from, accumulators.from_row, STEP, {
                        let mut p = 0;
                        while p < VECTORS {
                            let at = at.wrapping_add(p * $lanes);
                            acc[r][q][p] = if MASKED { $masked_load(at, some(p)) } else { $load(at) };
                            p += 1;
                        }
                    });
                }
                let mut a = x.lhs.ptr.offset(i as isize * x.lhs.row);
                let mut b = x.rhs.add(j);
                let mut k = x.depth;
                while k > 0 {
                    let mut v = [[$zero(); VECTORS]; Q];
                    let mut q = 0;
                    while q < Q {
                        let at = b.add(STEP * q);
                        let row = match MASKED {
                            true => load_part::<L, _, STEP>(at, columns),
                            false => at.cast::<[U::Mem; STEP]>().read_unaligned(),
                        };
                        // A line of them is prefetched once.
                        if PREFETCH && !MASKED && (q * size_of::<[U::Mem; STEP]>()).is_multiple_of(64) {
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
                        let s = $splat(*a.offset(r as isize * x.lhs.row));
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
                    b = b.wrapping_offset(x.rhs_row);
                    k -= 1;
                }
                each_accumulator!(r in M, q in Q, at from to, accumulators.to_row, STEP, {
                    let mut p = 0;
                    while p < VECTORS {
                        let at = at.wrapping_add(p * $lanes);
                        if MASKED {
                            $masked_store(at, some(p), acc[r][q][p]);
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
gemv! {
    /// In `f32`, with AVX-512.
    gemv_f32_v4 steps_f32_v4 block_f32_v4 "avx512f,avx512bw,avx512dq,avx512vl,fma,f16c" f32 16 16 8 4096 true
    _mm512_setzero_ps _mm512_loadu_ps _mm512_storeu_ps _mm512_set1_ps _mm512_fmadd_ps
    lane_mask_f32_v4 masked_load_f32_v4 masked_store_f32_v4
}
#[cfg(target_arch = "x86_64")]
gemv! {
    /// In `f64`, with AVX-512.
    gemv_f64_v4 steps_f64_v4 block_f64_v4 "avx512f,avx512bw,avx512dq,avx512vl,fma,f16c" f64 8 8 8 4096 true
    _mm512_setzero_pd _mm512_loadu_pd _mm512_storeu_pd _mm512_set1_pd _mm512_fmadd_pd
    lane_mask_f64_v4 masked_load_f64_v4 masked_store_f64_v4
}
#[cfg(target_arch = "x86_64")]
gemv! {
    /// In `f32`, with AVX2.
    gemv_f32_v3 steps_f32_v3 block_f32_v3 "avx2,fma,f16c" f32 8 16 2 8 false
    _mm256_setzero_ps _mm256_loadu_ps _mm256_storeu_ps _mm256_set1_ps _mm256_fmadd_ps
    lane_mask_f32_v3 masked_load_f32_v3 masked_store_f32_v3
}
#[cfg(target_arch = "x86_64")]
gemv! {
    /// In `f64`, with AVX2.
    gemv_f64_v3 steps_f64_v3 block_f64_v3 "avx2,fma,f16c" f64 4 8 2 8 false
    _mm256_setzero_pd _mm256_loadu_pd _mm256_storeu_pd _mm256_set1_pd _mm256_fmadd_pd
    lane_mask_f64_v3 masked_load_f64_v3 masked_store_f64_v3
}
