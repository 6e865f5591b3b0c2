//! The dtypes that kernels are generic over.
//!
//! [`Any`] ties a dtype to the form it has in memory and the [`Prim`] it computes with: half and 8-bit floats
//! compute in `f32`, everything else in itself. Kernels bound their generics by [`Any`], [`Scalar`], [`Number`],
//! [`Float`], [`Int`] or [`Signed`].

use super::super::symbols;
use super::prim::Prim;
use crate::dtype::{DType, F8E4M3, F8E4M3FNUZ, F8E5M2, F8E5M2FNUZ, bf16, f16, float8};

/// A dtype of which a kernel only moves elements. Such a kernel is compiled once for each size of element, and takes
/// all dtypes of that size.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a dtype that kernels compute with",
    note = "write bool, i8 to i64, u8 to u64, f16, bf16, f32, f64, an 8-bit float, or a generic bounded by Any, Scalar, Number, Float, Int or Signed"
)]
pub trait Any: Copy + 'static {
    /// The type of an element in memory.
    type Mem: Copy + Send + Sync + 'static;
    /// The type that kernels compute with.
    type Compute: Prim;

    /// The dtype.
    fn dtype() -> DType;
    /// An element in memory, widened (exact).
    fn widen(m: Self::Mem) -> Self::Compute;
    /// Rounded to what memory holds: to nearest, ties to even.
    fn narrow(c: Self::Compute) -> Self::Mem;

    /// The dtype, if it is known when the kernel is compiled: not while one is recorded. Code that is chosen by it is not even
    /// compiled for others.
    const STATIC_DTYPE: Option<DType>;
    /// Whether [`Self::Mem`] is `f16`, which some machines convert in hardware.
    const IS_F16: bool = matches!(Self::STATIC_DTYPE, Some(DType::F16));
}

/// A dtype whose values a kernel can look at: all of them, for comparison and conversion.
#[diagnostic::on_unimplemented(
    message = "the kernel moves elements of `{Self}` without knowing what they are",
    note = "bound the generic by Scalar to compare or convert them, by Number to compute with them"
)]
pub trait Scalar: Any {}

/// A dtype with arithmetic: all but `bool` and the 8-bit floats.
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no arithmetic in kernels",
    note = "bound the generic by Number, Float, Int or Signed, or cast first"
)]
pub trait Number: Scalar {}

/// A floating-point dtype: `f16`, `bf16`, `f32`, `f64`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a floating-point dtype",
    note = "bound the generic by Float, or cast: `x as f32`; a literal with a point needs a float"
)]
pub trait Float: Signed {}

/// An integer dtype.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an integer dtype",
    note = "bound the generic by Int, or cast: `x as i64`"
)]
pub trait Int: Number + Bits {}

/// A signed dtype: floats and signed integers.
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no sign",
    note = "bound the generic by Signed or Float, or cast: `x as i64`"
)]
pub trait Signed: Number {}

/// A dtype with bit operations: integers and `bool`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no bit operations in kernels",
    note = "use an integer or bool; `x.to_bits()` gives a float's bits"
)]
pub trait Bits: Scalar {}

/// A dtype with the bits of another: `f32` with `u32` and `i32`, `f64` with `u64` and `i64`, `f16` and `bf16` with `u16` and `i16`,
/// 8-bit floats with `u8` and `i8`.
pub trait SameBits<U: Scalar>: Scalar {}

macro_rules! same {
    ($($t:ident: $($trait:ident)*;)*) => { $(
        impl Any for $t {
            type Mem = $t;
            type Compute = $t;
            #[inline(always)]
            fn dtype() -> DType { <$t as Prim>::DTYPE }
            #[inline(always)]
            fn widen(m: $t) -> $t { m }
            #[inline(always)]
            fn narrow(c: $t) -> $t { c }
            const STATIC_DTYPE: Option<DType> = Some(<$t as Prim>::DTYPE);
        }
        impl Scalar for $t {}
        $(impl $trait for $t {})*
    )* };
}
same! {
    i8: Number Int Signed Bits; i16: Number Int Signed Bits; i32: Number Int Signed Bits; i64: Number Int Signed Bits;
    u8: Number Int Bits; u16: Number Int Bits; u32: Number Int Bits; u64: Number Int Bits;
    f32: Number Float Signed; f64: Number Float Signed;
}

impl Any for bool {
    // A byte, since memory that came from elsewhere may hold more than 0 and 1.
    type Mem = u8;
    type Compute = bool;
    #[inline(always)]
    fn dtype() -> DType {
        DType::Bool
    }
    #[inline(always)]
    fn widen(m: u8) -> bool {
        m != 0
    }
    #[inline(always)]
    fn narrow(c: bool) -> u8 {
        c as u8
    }
    const STATIC_DTYPE: Option<DType> = Some(DType::Bool);
}
impl Scalar for bool {}
impl Bits for bool {}

macro_rules! small_float {
    ($($t:ident $mem:ident $d:ident [$($trait:ident)*] $m:ident => $widen:expr, $c:ident => $narrow:expr;)*) => { $(
        impl Any for $t {
            type Mem = $mem;
            type Compute = f32;
            #[inline(always)]
            fn dtype() -> DType { DType::$d }
            #[inline(always)]
            fn widen($m: $mem) -> f32 { $widen }
            #[inline(always)]
            fn narrow($c: f32) -> $mem { $narrow }
            const STATIC_DTYPE: Option<DType> = Some(DType::$d);
        }
        impl Scalar for $t {}
        $(impl $trait for $t {})*
    )* };
}
small_float! {
    f16 u16 F16 [Number Float Signed] m => f16_to_f32(m), c => f32_to_f16(c);
    bf16 u16 BF16 [Number Float Signed] m => f32::from_bits((m as u32) << 16), c => f32_to_bf16(c);
    F8E4M3 u8 F8E4M3FN [] m => float8::e4m3fn_to_f32(F8E4M3::from_bits(m)), c => float8::e4m3fn_from_f32(c).to_bits();
    F8E5M2 u8 F8E5M2 [] m => float8::e5m2_to_f32(F8E5M2::from_bits(m)), c => float8::e5m2_from_f32(c).to_bits();
    F8E4M3FNUZ u8 F8E4M3FNUZ [] m => F8E4M3FNUZ::from_bits(m).to_f32(), c => F8E4M3FNUZ::from_f32(c).to_bits();
    F8E5M2FNUZ u8 F8E5M2FNUZ [] m => F8E5M2FNUZ::from_bits(m).to_f32(), c => F8E5M2FNUZ::from_f32(c).to_bits();
}

macro_rules! small_bits {
    ($($unsigned:ident $signed:ident: $($float:ident)*;)*) => { $($(
        impl SameBits<$unsigned> for $float {}
        impl SameBits<$signed> for $float {}
        impl SameBits<$float> for $unsigned {}
        impl SameBits<$float> for $signed {}
    )*)* };
}
small_bits! {
    u8 i8: F8E4M3 F8E5M2 F8E4M3FNUZ F8E5M2FNUZ;
    u16 i16: f16 bf16;
}

impl SameBits<u32> for f32 {}
impl SameBits<i32> for f32 {}
impl SameBits<f32> for u32 {}
impl SameBits<f32> for i32 {}
impl SameBits<i32> for u32 {}
impl SameBits<u32> for i32 {}
impl SameBits<u64> for f64 {}
impl SameBits<i64> for f64 {}
impl SameBits<f64> for u64 {}
impl SameBits<f64> for i64 {}
impl SameBits<i64> for u64 {}
impl SameBits<u64> for i64 {}

/// Exact, without a branch or a table, so that loops over it vectorize. Moving the exponent and fraction into place
/// leaves a value too small by 2^112 (127 - 15, the difference of the biases), denormals included; infinities and NaN
/// get the full exponent.
#[inline(always)]
fn f16_to_f32(m: u16) -> f32 {
    let magnitude = f32::from_bits(((m & 0x7fff) as u32) << 13) * f32::from_bits((127 + 112) << 23);
    let special = if m & 0x7c00 == 0x7c00 { 0x7f80_0000 } else { 0 };
    f32::from_bits(magnitude.to_bits() | special | ((m & 0x8000) as u32) << 16)
}

/// To nearest, ties to even, without a branch. A normal result is rounded by adding half a unit in the last place
/// (less one for an even fraction) to the bits; a denormal one by adding a float whose last place is 2^-24.
#[inline(always)]
fn f32_to_f16(c: f32) -> u16 {
    let bits = c.to_bits() & 0x7fff_ffff;
    let odd = (bits >> 13) & 1;
    let normal = bits.wrapping_sub((127 - 15) << 23).wrapping_add(0xfff + odd) >> 13;
    let half = f32::from_bits((127 - 1) << 23); // 0.5 has last place 2^-24
    let denormal = (f32::from_bits(bits) + half).to_bits().wrapping_sub(half.to_bits());
    let special = if bits > 0x7f80_0000 { 0x7e00 } else { 0x7c00 };
    let finite = if bits < (127 - 14) << 23 { denormal } else { normal };
    let magnitude = if bits >= (127 + 16) << 23 { special } else { finite };
    (magnitude | (c.to_bits() >> 16) & 0x8000) as u16
}

/// To nearest, ties to even, by adding half a unit in the last place to the bits; NaN stays NaN.
#[inline(always)]
fn f32_to_bf16(c: f32) -> u16 {
    let bits = c.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
    let nan = (bits >> 16) | 0x40;
    (if c.is_nan() { nan } else { rounded }) as u16
}

/// The dtype bound to a kernel's generic of index `I` while it is recorded or run in reference form. One instantiation
/// of those forms serves every dtype.
#[derive(Clone, Copy, Debug)]
pub enum Sym<const I: usize> {}

impl<const I: usize> Any for Sym<I> {
    type Mem = u8;
    type Compute = bool;
    fn dtype() -> DType {
        symbols::dtype(I)
    }
    fn widen(m: u8) -> bool {
        m != 0
    }
    fn narrow(c: bool) -> u8 {
        c as u8
    }
    const STATIC_DTYPE: Option<DType> = None;
}
impl<const I: usize> Scalar for Sym<I> {}
impl<const I: usize> Number for Sym<I> {}
impl<const I: usize> Float for Sym<I> {}
impl<const I: usize> Int for Sym<I> {}
impl<const I: usize> Signed for Sym<I> {}
impl<const I: usize> Bits for Sym<I> {}

/// The compute dtype of a dtype: `f32` for the small floats, itself otherwise.
#[inline]
pub fn compute_dtype(dtype: DType) -> DType {
    match dtype {
        DType::F16 | DType::BF16 | DType::F8E4M3FN | DType::F8E4M3FNUZ | DType::F8E5M2 | DType::F8E5M2FNUZ => {
            DType::F32
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_f16_and_bf16_widens_as_the_half_crate_does() {
        for bits in 0..=u16::MAX {
            let (ours, theirs) = (f16::widen(bits), half::f16::from_bits(bits).to_f32_const());
            assert!(
                ours.to_bits() == theirs.to_bits() || ours.is_nan() && theirs.is_nan(),
                "f16 {bits:#x}: {ours} {theirs}"
            );
            let (ours, theirs) = (bf16::widen(bits), half::bf16::from_bits(bits).to_f32_const());
            assert!(ours.to_bits() == theirs.to_bits() || ours.is_nan() && theirs.is_nan(), "bf16 {bits:#x}");
        }
    }

    #[test]
    fn narrowing_rounds_to_nearest_even_as_the_half_crate_does() {
        // Every upper half of an f32 with lower halves around the ties.
        for high in 0..=u16::MAX {
            for low in [0u32, 1, 0x0fff, 0x1000, 0x1001, 0x7fff, 0x8000, 0x8001, 0xffff] {
                let x = f32::from_bits((high as u32) << 16 | low);
                let (ours, theirs) = (f16::narrow(x), half::f16::from_f32_const(x));
                assert!(
                    ours == theirs.to_bits() || half::f16::from_bits(ours).is_nan() && theirs.is_nan(),
                    "f16 {x:e}"
                );
                let (ours, theirs) = (bf16::narrow(x), half::bf16::from_f32_const(x));
                assert!(
                    ours == theirs.to_bits() || half::bf16::from_bits(ours).is_nan() && theirs.is_nan(),
                    "bf16 {x:e}"
                );
            }
        }
    }
}
