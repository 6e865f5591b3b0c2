//! Vectors as the microkernels see them: [`Simd`], with an implementation for each dtype and instruction set.
//!
//! It exists so that a microkernel is one generic function. What is generic here has no target features of its own: it is
//! inlined into an entry that has them.

use std::arch::x86_64::*;

use crate::kernel::lang::Prim;

/// A vector register and its instructions.
///
/// # Safety
/// Of all functions: the machine must have the instruction set, and they must be inlined into a function that enables it.
pub(in crate::kernel::cpu) trait Simd {
    /// What a lane holds.
    type Element: Prim;
    /// The register.
    type Vector: Copy;
    /// A choice of lanes.
    type Mask: Copy;
    /// Lanes of a vector.
    const LANES: usize;
    /// Whether there are 32 registers, of a cache line each; otherwise there are 16, of half a line.
    const AVX512: bool;

    /// Zeros.
    unsafe fn zero() -> Self::Vector;
    /// One element in all lanes.
    unsafe fn splat(x: Self::Element) -> Self::Vector;
    /// All lanes, which must be readable; aligned or not.
    unsafe fn load(from: *const Self::Element) -> Self::Vector;
    /// All lanes, which must be writable.
    unsafe fn store(to: *mut Self::Element, v: Self::Vector);
    /// `a * b + c`
    unsafe fn fma(a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector;
    /// The first `n` lanes, or all of them.
    unsafe fn first(n: usize) -> Self::Mask;
    /// The lanes of a mask, which must be readable; zeros in the others.
    unsafe fn load_masked(from: *const Self::Element, mask: Self::Mask) -> Self::Vector;
    /// The lanes of a mask, which must be writable.
    unsafe fn store_masked(to: *mut Self::Element, mask: Self::Mask, v: Self::Vector);
}

macro_rules! simd {
    ($(
        $(#[$doc:meta])*
        $name:ident of $element:ty: $vector:ty, $mask:ty, lanes = $lanes:literal, avx512 = $avx512:literal {
            zero: $zero:expr,
            splat: |$x:ident| $splat:expr,
            load: |$from:ident| $load:expr,
            store: |$to:ident, $v:ident| $store:expr,
            fma: |$a:ident, $b:ident, $c:ident| $fma:expr,
            first: |$n:ident| $first:expr,
            load_masked: |$masked_from:ident, $load_mask:ident| $load_masked:expr,
            store_masked: |$masked_to:ident, $store_mask:ident, $masked_v:ident| $store_masked:expr,
        }
    )*) => { $(
        $(#[$doc])*
        pub(in crate::kernel::cpu) struct $name;

        impl Simd for $name {
            type Element = $element;
            type Vector = $vector;
            type Mask = $mask;
            const LANES: usize = $lanes;
            const AVX512: bool = $avx512;
            #[inline(always)]
            unsafe fn zero() -> $vector {
                // SAFETY: by the contract of the trait, as in all others.
                unsafe { $zero }
            }
            #[inline(always)]
            unsafe fn splat($x: $element) -> $vector {
                // SAFETY: as above.
                unsafe { $splat }
            }
            #[inline(always)]
            unsafe fn load($from: *const $element) -> $vector {
                // SAFETY: as above.
                unsafe { $load }
            }
            #[inline(always)]
            unsafe fn store($to: *mut $element, $v: $vector) {
                // SAFETY: as above.
                unsafe { $store }
            }
            #[inline(always)]
            unsafe fn fma($a: $vector, $b: $vector, $c: $vector) -> $vector {
                // SAFETY: as above.
                unsafe { $fma }
            }
            #[inline(always)]
            unsafe fn first($n: usize) -> $mask {
                // SAFETY: as above.
                unsafe { $first }
            }
            #[inline(always)]
            unsafe fn load_masked($masked_from: *const $element, $load_mask: $mask) -> $vector {
                // SAFETY: as above.
                unsafe { $load_masked }
            }
            #[inline(always)]
            unsafe fn store_masked($masked_to: *mut $element, $store_mask: $mask, $masked_v: $vector) {
                // SAFETY: as above.
                unsafe { $store_masked }
            }
        }
    )* };
}

simd! {
    /// `f32` by AVX-512.
    F32x16 of f32: __m512, __mmask16, lanes = 16, avx512 = true {
        zero: _mm512_setzero_ps(),
        splat: |x| _mm512_set1_ps(x),
        load: |from| _mm512_loadu_ps(from),
        store: |to, v| _mm512_storeu_ps(to, v),
        fma: |a, b, c| _mm512_fmadd_ps(a, b, c),
        first: |n| _cvtu32_mask16((1 << Ord::min(n, 16)) - 1),
        load_masked: |from, mask| _mm512_maskz_loadu_ps(mask, from),
        store_masked: |to, mask, v| _mm512_mask_storeu_ps(to, mask, v),
    }
    /// `f64` by AVX-512.
    F64x8 of f64: __m512d, __mmask8, lanes = 8, avx512 = true {
        zero: _mm512_setzero_pd(),
        splat: |x| _mm512_set1_pd(x),
        load: |from| _mm512_loadu_pd(from),
        store: |to, v| _mm512_storeu_pd(to, v),
        fma: |a, b, c| _mm512_fmadd_pd(a, b, c),
        first: |n| _cvtu32_mask8((1 << Ord::min(n, 8)) - 1),
        load_masked: |from, mask| _mm512_maskz_loadu_pd(mask, from),
        store_masked: |to, mask, v| _mm512_mask_storeu_pd(to, mask, v),
    }
    /// Pairs of 16-bit integers by AVX-512, whose products are added in `i32` and wrap around: an element is two steps
    /// of K.
    I16PairsX16 of i32: __m512i, __mmask16, lanes = 16, avx512 = true {
        zero: _mm512_setzero_si512(),
        splat: |x| _mm512_set1_epi32(x),
        load: |from| _mm512_loadu_si512(from.cast()),
        store: |to, v| _mm512_storeu_si512(to.cast(), v),
        fma: |a, b, c| _mm512_add_epi32(c, _mm512_madd_epi16(a, b)),
        first: |n| _cvtu32_mask16((1 << Ord::min(n, 16)) - 1),
        load_masked: |from, mask| _mm512_maskz_loadu_epi32(mask, from),
        store_masked: |to, mask, v| _mm512_mask_storeu_epi32(to, mask, v),
    }
    /// `f32` by AVX2.
    F32x8 of f32: __m256, __m256i, lanes = 8, avx512 = false {
        zero: _mm256_setzero_ps(),
        splat: |x| _mm256_set1_ps(x),
        load: |from| _mm256_loadu_ps(from),
        store: |to, v| _mm256_storeu_ps(to, v),
        fma: |a, b, c| _mm256_fmadd_ps(a, b, c),
        first: |n| first_of_8(n),
        load_masked: |from, mask| _mm256_maskload_ps(from, mask),
        store_masked: |to, mask, v| _mm256_maskstore_ps(to, mask, v),
    }
    /// `f64` by AVX2.
    F64x4 of f64: __m256d, __m256i, lanes = 4, avx512 = false {
        zero: _mm256_setzero_pd(),
        splat: |x| _mm256_set1_pd(x),
        load: |from| _mm256_loadu_pd(from),
        store: |to, v| _mm256_storeu_pd(to, v),
        fma: |a, b, c| _mm256_fmadd_pd(a, b, c),
        first: |n| _mm256_cmpgt_epi64(_mm256_set1_epi64x(Ord::min(n, 4) as i64), _mm256_setr_epi64x(0, 1, 2, 3)),
        load_masked: |from, mask| _mm256_maskload_pd(from, mask),
        store_masked: |to, mask, v| _mm256_maskstore_pd(to, mask, v),
    }
    /// Pairs of 16-bit integers by AVX2, as by AVX-512.
    I16PairsX8 of i32: __m256i, __m256i, lanes = 8, avx512 = false {
        zero: _mm256_setzero_si256(),
        splat: |x| _mm256_set1_epi32(x),
        load: |from| _mm256_loadu_si256(from.cast()),
        store: |to, v| _mm256_storeu_si256(to.cast(), v),
        fma: |a, b, c| _mm256_add_epi32(c, _mm256_madd_epi16(a, b)),
        first: |n| first_of_8(n),
        load_masked: |from, mask| _mm256_maskload_epi32(from, mask),
        store_masked: |to, mask, v| _mm256_maskstore_epi32(to, mask, v),
    }
}

/// The first `n` of eight lanes.
///
/// # Safety
/// The machine must have AVX2.
#[inline(always)]
unsafe fn first_of_8(n: usize) -> __m256i {
    // SAFETY: by the contract above.
    unsafe { _mm256_cmpgt_epi32(_mm256_set1_epi32(Ord::min(n, 8) as i32), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)) }
}
