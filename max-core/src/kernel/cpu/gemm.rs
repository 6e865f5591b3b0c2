//! Products of blocks: the loops that keep accumulators in vector registers.
//!
//! A block's columns are taken in panels of two vectors, its rows in groups of [`Product::GROUP`]. For each step of the
//! depth, a panel's two vectors are loaded and multiplied by one element of each row of the group: 12 rows of 2 vectors
//! of 16 lanes leave room for both in AVX-512's 32 registers, 6 rows in AVX2's 16. The loops are written over `std::arch`
//! vectors: over plain arrays, LLVM's choice of the axis to vectorize depends on the block's shape.
//!
//! The functions here are compiled once, for their level, and called by every kernel's `dot`: a call for thousands of
//! multiplications costs nothing, and kernels stay small.

use super::level::Level;
use crate::dtype::DType;
use crate::kernel::lang::Prim;

/// One operand's elements as the loops take them.
#[derive(Clone, Copy)]
pub(super) struct Panels<P> {
    /// The first element.
    pub ptr: *const P,
    /// From a step of the depth to the next.
    pub step: isize,
    /// From a row (of the left operand) to the next.
    pub row: isize,
    /// From a group of rows, or a panel of columns, to the next.
    pub group: isize,
}

/// `acc += left · right`
pub(super) struct Product<P> {
    pub depth: usize,
    /// Rows of `acc` to update.
    pub rows: usize,
    /// Columns of `acc`: a multiple of a vector's lanes.
    pub columns: usize,
    pub left: Panels<P>,
    pub right: Panels<P>,
    /// Whether the left operand's elements of one step of a group lie together, and the steps one after the other.
    pub packed: bool,
    pub acc: *mut P,
    /// From a row of `acc` to the next.
    pub acc_row: usize,
}

/// The shape of the blocks that a level keeps in registers: rows of a group, and columns of a panel.
#[inline(always)]
pub(crate) const fn register_block(avx512: bool, element_size: usize) -> [usize; 2] {
    if avx512 { [12, 128 / element_size] } else { [6, 64 / element_size] }
}

#[cfg(target_arch = "x86_64")]
macro_rules! block {
    (
        $(#[$doc:meta])* $name:ident $micro:ident $few:ident $features:literal $p:ident $vector:ident $lanes:literal $group:literal $wide:literal
        $zero:ident $load:ident $store:ident $splat:ident $fma:ident
    ) => {
        $(#[$doc])*
        ///
        /// # Safety
        /// The operands must have the elements that the product describes, `acc` be writable by this call alone, and
        /// the machine must have the features.
        #[target_feature(enable = $features)]
        pub(super) unsafe fn $name(x: &Product<$p>) {
            // SAFETY: by the contract above; every block of rows and columns is inside the product.
            unsafe {
                // Whoever reads few rows waits for the right operand.
                if x.rows <= 8 && !x.packed && x.right.group == 2 * $lanes {
                    return $few(x);
                }
                let mut j = 0;
                while j < x.columns {
                    let b = x.right.ptr.offset((j / (2 * $lanes)) as isize * x.right.group);
                    let wide = x.columns - j >= 2 * $lanes;
                    let mut i = 0;
                    while i < x.rows {
                        let a = x.left.ptr.offset((i / $group) as isize * x.left.group + (i % $group) as isize * x.left.row);
                        let c = x.acc.add(i * x.acc_row + j);
                        macro_rules! rows {
                            ($m:literal) => {{
                                match (wide, x.packed) {
                                    (true, true) => $micro::<$m, 2, true, false>(x, a, b, c),
                                    (true, false) => $micro::<$m, 2, false, false>(x, a, b, c),
                                    (false, true) => $micro::<$m, 1, true, false>(x, a, b, c),
                                    (false, false) => $micro::<$m, 1, false, false>(x, a, b, c),
                                }
                                i += $m;
                            }};
                        }
                        match x.rows - i {
                            n if n >= $group => rows!($group),
                            n if n >= 8 && $group > 8 => rows!(8),
                            n if n >= 4 => rows!(4),
                            n if n >= 2 => rows!(2),
                            _ => rows!(1),
                        }
                    }
                    j += 2 * $lanes;
                }
            }
        }

        /// Few rows by a right operand that is read in place: wider panels, since memory is the limit.
        ///
        /// # Safety
        /// As for the block.
        #[inline(always)]
        unsafe fn $few(x: &Product<$p>) {
            // SAFETY: every block of rows and columns is inside the product.
            unsafe {
                let mut j = 0;
                while j < x.columns {
                    let wide = x.columns - j >= $wide * $lanes;
                    let mut i = 0;
                    while i < x.rows {
                        let a = x.left.ptr.offset(i as isize * x.left.row);
                        let (b, c) = (x.right.ptr.add(j), x.acc.add(i * x.acc_row + j));
                        if wide && x.rows - i >= 4 {
                            // Each element of the right operand for four rows, in half as many columns.
                            let half = $wide / 2 * $lanes;
                            if i == 0 {
                                $micro::<4, { $wide / 2 }, false, true>(x, a, b, c);
                                $micro::<4, { $wide / 2 }, false, true>(x, a, b.add(half), c.add(half));
                            } else {
                                $micro::<4, { $wide / 2 }, false, false>(x, a, b, c);
                                $micro::<4, { $wide / 2 }, false, false>(x, a, b.add(half), c.add(half));
                            }
                            i += 4;
                            continue;
                        }
                        match (x.rows - i, wide) {
                            (1, true) if i == 0 => $micro::<1, $wide, false, true>(x, a, b, c),
                            (1, true) => $micro::<1, $wide, false, false>(x, a, b, c),
                            (_, true) if i == 0 => $micro::<2, $wide, false, true>(x, a, b, c),
                            (_, true) => $micro::<2, $wide, false, false>(x, a, b, c),
                            (1, false) => $micro::<1, 1, false, false>(x, a, b, c),
                            (_, false) => $micro::<2, 1, false, false>(x, a, b, c),
                        }
                        i += 2;
                    }
                    j += if wide { $wide * $lanes } else { $lanes };
                }
            }
        }

        /// `M` rows by `Q` vectors of columns, over the whole depth; `AHEAD` asks for what the next product reads.
        #[inline(always)]
        unsafe fn $micro<const M: usize, const Q: usize, const PACKED: bool, const AHEAD: bool>(
            x: &Product<$p>,
            mut a: *const $p,
            mut b: *const $p,
            c: *mut $p,
        ) {
            use std::arch::x86_64::*;
            // The right operand's rows of the next product.
            let next = x.right.step * x.depth as isize;
            // SAFETY: as for the caller.
            unsafe {
                let mut acc = [[$zero(); Q]; M];
                let mut r = 0;
                while r < M {
                    let mut q = 0;
                    while q < Q {
                        acc[r][q] = $load(c.add(r * x.acc_row + $lanes * q));
                        q += 1;
                    }
                    r += 1;
                }
                let (row, a_step) = if PACKED { (1, $group) } else { (x.left.row, x.left.step) };
                let mut k = x.depth;
                while k > 0 {
                    let mut v = [$zero(); Q];
                    let mut q = 0;
                    while q < Q {
                        v[q] = $load(b.add($lanes * q));
                        if AHEAD {
                            _mm_prefetch::<_MM_HINT_T0>(b.wrapping_offset(next).wrapping_add($lanes * q).cast());
                        }
                        q += 1;
                    }
                    let mut r = 0;
                    while r < M {
                        let s = $splat(*a.offset(r as isize * row));
                        let mut q = 0;
                        while q < Q {
                            acc[r][q] = $fma(s, v[q], acc[r][q]);
                            q += 1;
                        }
                        r += 1;
                    }
                    a = a.offset(a_step);
                    b = b.offset(x.right.step);
                    k -= 1;
                }
                let mut r = 0;
                while r < M {
                    let mut q = 0;
                    while q < Q {
                        $store(c.add(r * x.acc_row + $lanes * q), acc[r][q]);
                        q += 1;
                    }
                    r += 1;
                }
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
block! {
    /// In `f32`, with AVX-512.
    f32_v4 micro_f32_v4 few_f32_v4 "avx512f,avx512bw,avx512dq,avx512vl,fma" f32 __m512 16 12 8
    _mm512_setzero_ps _mm512_loadu_ps _mm512_storeu_ps _mm512_set1_ps _mm512_fmadd_ps
}
#[cfg(target_arch = "x86_64")]
block! {
    /// In `f64`, with AVX-512.
    f64_v4 micro_f64_v4 few_f64_v4 "avx512f,avx512bw,avx512dq,avx512vl,fma" f64 __m512d 8 12 8
    _mm512_setzero_pd _mm512_loadu_pd _mm512_storeu_pd _mm512_set1_pd _mm512_fmadd_pd
}
#[cfg(target_arch = "x86_64")]
block! {
    /// In `f32`, with AVX2.
    f32_v3 micro_f32_v3 few_f32_v3 "avx2,fma" f32 __m256 8 6 4
    _mm256_setzero_ps _mm256_loadu_ps _mm256_storeu_ps _mm256_set1_ps _mm256_fmadd_ps
}
#[cfg(target_arch = "x86_64")]
block! {
    /// In `f64`, with AVX2.
    f64_v3 micro_f64_v3 few_f64_v3 "avx2,fma" f64 __m256d 4 6 4
    _mm256_setzero_pd _mm256_loadu_pd _mm256_storeu_pd _mm256_set1_pd _mm256_fmadd_pd
}

/// Computes the product at the level, if that has vectors for it.
///
/// # Safety
/// As for the blocks above, whose dtype `P` must be.
#[inline(always)]
pub(super) unsafe fn multiply<L: Level, P: Prim>(x: &Product<P>) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: by the contract above; `P` is the dtype that it is matched to be.
    unsafe {
        let x = std::ptr::from_ref(x);
        match (P::DTYPE, L::AVX512) {
            (DType::F32, true) => f32_v4(&*x.cast()),
            (DType::F32, false) => f32_v3(&*x.cast()),
            (_, true) => f64_v4(&*x.cast()),
            (_, false) => f64_v3(&*x.cast()),
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = x;
}
