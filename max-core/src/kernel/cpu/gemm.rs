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

/// `left · right`
#[derive(Clone, Copy)]
pub(super) struct Product<P> {
    pub depth: usize,
    pub rows: usize,
    /// A multiple of a vector's lanes.
    pub columns: usize,
    pub left: Panels<P>,
    pub right: Panels<P>,
    /// Whether the left operand's elements of one step of a group lie together, and the steps one after the other.
    pub packed: bool,
}

/// What a product is added to, and where the sums go: `to = from + left · right`.
#[derive(Clone, Copy)]
pub(super) struct Sums<P> {
    /// Null for zeros.
    pub from: *const P,
    pub to: *mut P,
    /// From a row to the next.
    pub from_row: usize,
    pub to_row: usize,
}

/// What a block asks for while it computes, so that memory works meanwhile.
#[derive(Clone, Copy)]
struct Soon<P> {
    /// The left operand's next rows.
    left: *const P,
    /// A part of the right operand's next panel, and how far to go there with each step of the depth.
    right: *const P,
    right_step: isize,
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
        const _: () =
            assert!(matches!(register_block($group == 12, size_of::<$p>()), [$group, width] if width == 2 * $lanes));

        $(#[$doc])*
        ///
        /// # Safety
        /// The operands must have the elements that the product describes, the sums be readable and writable by this call
        /// alone, and the machine must have the features.
        #[target_feature(enable = $features)]
        pub(super) unsafe fn $name(x: &Product<$p>, sums: &Sums<$p>) {
            // SAFETY: by the contract above; every block of rows and columns is inside the product.
            unsafe {
                // Whoever reads few rows waits for the right operand.
                if x.rows <= 8 && !x.packed && x.right.group == 2 * $lanes {
                    return $few(x, sums);
                }
                // Each group of rows asks for a part of the next panel.
                let part = x.right.group as usize / x.rows.div_ceil($group);
                let mut j = 0;
                while j < x.columns {
                    let b = x.right.ptr.offset((j / (2 * $lanes)) as isize * x.right.group);
                    let wide = x.columns - j >= 2 * $lanes;
                    let mut i = 0;
                    while i < x.rows {
                        let a = x.left.ptr.offset((i / $group) as isize * x.left.group + (i % $group) as isize * x.left.row);
                        let soon = Soon {
                            // Rows are read for the first time with the first columns.
                            left: if j == 0 { a.wrapping_offset(x.left.group) } else { a },
                            right: b.wrapping_offset(x.right.group).wrapping_add(i / $group * part),
                            right_step: (part / x.depth) as isize,
                        };
                        macro_rules! rows {
                            ($m:literal) => {{
                                match (wide, x.packed) {
                                    (true, true) => $micro::<$m, 2, true, false>(x, a, b, sums, [i, j], soon),
                                    (true, false) => $micro::<$m, 2, false, false>(x, a, b, sums, [i, j], soon),
                                    (false, true) => $micro::<$m, 1, true, false>(x, a, b, sums, [i, j], soon),
                                    (false, false) => $micro::<$m, 1, false, false>(x, a, b, sums, [i, j], soon),
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
        unsafe fn $few(x: &Product<$p>, sums: &Sums<$p>) {
            // SAFETY: every block of rows and columns is inside the product.
            unsafe {
                let mut j = 0;
                while j < x.columns {
                    let wide = x.columns - j >= $wide * $lanes;
                    let mut i = 0;
                    while i < x.rows {
                        let a = x.left.ptr.offset(i as isize * x.left.row);
                        let soon = Soon { left: a, right: a, right_step: 0 };
                        macro_rules! block {
                            ($m:literal, $q:expr, $from:expr) => {{
                                let (b, at) = (x.right.ptr.add(j + $from), [i, j + $from]);
                                match i {
                                    0 => $micro::<$m, { $q }, false, true>(x, a, b, sums, at, soon),
                                    _ => $micro::<$m, { $q }, false, false>(x, a, b, sums, at, soon),
                                }
                            }};
                        }
                        i += match (x.rows - i, wide) {
                            (4.., true) => {
                                // Each element of the right operand for four rows, in half as many columns.
                                block!(4, $wide / 2, 0);
                                block!(4, $wide / 2, $wide / 2 * $lanes);
                                4
                            }
                            (2.., true) => {
                                block!(2, $wide, 0);
                                2
                            }
                            (_, true) => {
                                block!(1, $wide, 0);
                                1
                            }
                            (2.., false) => {
                                block!(2, 1, 0);
                                2
                            }
                            (_, false) => {
                                block!(1, 1, 0);
                                1
                            }
                        };
                    }
                    j += if wide { $wide * $lanes } else { $lanes };
                }
            }
        }

        /// `M` rows by `Q` vectors of columns, over the whole depth; `AHEAD` asks for the right operand's next rows, which
        /// are in place.
        #[inline(always)]
        unsafe fn $micro<const M: usize, const Q: usize, const PACKED: bool, const AHEAD: bool>(
            x: &Product<$p>,
            mut a: *const $p,
            mut b: *const $p,
            sums: &Sums<$p>,
            [i, j]: [usize; 2],
            mut soon: Soon<$p>,
        ) {
            use std::arch::x86_64::*;
            // The right operand's rows of the next product.
            let next = x.right.step * x.depth as isize;
            // SAFETY: as for the caller.
            unsafe {
                let mut acc = [[$zero(); Q]; M];
                let to = sums.to.add(i * sums.to_row + j);
                let mut r = 0;
                while !sums.from.is_null() && r < M {
                    let from = sums.from.add((i + r) * sums.from_row + j);
                    let mut q = 0;
                    while q < Q {
                        acc[r][q] = $load(from.add($lanes * q));
                        q += 1;
                    }
                    r += 1;
                }
                let (row, a_step) = if PACKED { (1, $group) } else { (x.left.row, x.left.step) };
                let mut k = x.depth;
                while k > 0 {
                    if PACKED && M == $group {
                        _mm_prefetch::<_MM_HINT_T1>(soon.left.cast());
                        _mm_prefetch::<_MM_HINT_T1>(soon.right.cast());
                        soon.left = soon.left.wrapping_offset(a_step);
                        soon.right = soon.right.wrapping_offset(soon.right_step);
                    }
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
                        $store(to.add(r * sums.to_row + $lanes * q), acc[r][q]);
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
pub(super) unsafe fn multiply<L: Level, P: Prim>(x: &Product<P>, sums: &Sums<P>) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: by the contract above; `P` is the dtype that it is matched to be.
    unsafe {
        let (x, sums) = (std::ptr::from_ref(x), std::ptr::from_ref(sums));
        match (P::DTYPE, L::AVX512) {
            (DType::F32, true) => f32_v4(&*x.cast(), &*sums.cast()),
            (DType::F32, false) => f32_v3(&*x.cast(), &*sums.cast()),
            (_, true) => f64_v4(&*x.cast(), &*sums.cast()),
            (_, false) => f64_v3(&*x.cast(), &*sums.cast()),
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (x, sums);
}
