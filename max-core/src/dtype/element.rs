//! [`Element`]: the Rust types of tensor elements.

use super::{DType, F8E4M3, F8E4M3FNUZ, F8E5M2, F8E5M2FNUZ, bf16, dtype_table, f16, float8};
use std::fmt;

/// A Rust type that tensors hold: `bool`, `i8` … `u64`, [`struct@f16`], [`bf16`], `f32`, `f64` and the four 8-bit floats.
///
/// The trait is sealed: its implementations are the rows of the dtype table.
///
/// # Safety
///
/// `Self` has the size and alignment of `DTYPE`, no padding and no interior mutability, and every bit pattern is a valid
/// value, except for `bool`, where only 0 and 1 are.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not the element type of a tensor",
    note = "element types are bool, i8 to i64, u8 to u64, f16, bf16, f32, f64 and the 8-bit floats of `max::dtype`"
)]
pub unsafe trait Element:
    Copy + Send + Sync + PartialEq + PartialOrd + fmt::Debug + fmt::Display + Default + sealed::Sealed + 'static
{
    /// The dtype of this type.
    const DTYPE: DType;
    /// 0, or `false`.
    const ZERO: Self;
    /// 1, or `true`.
    const ONE: Self;

    /// The value as `f64`: exact but for integers beyond 2^53, which are rounded to the nearest even; `true` is 1.
    fn to_f64(self) -> f64;

    /// The value nearest to `value`.
    ///
    /// - floats: rounded once, to the nearest, ties to even; out of range as [`float8`] and IEEE 754 say
    /// - integers: truncated towards 0 and saturated; NaN is 0
    /// - bool: `value != 0`, so NaN is `true`
    fn from_f64(value: f64) -> Self;
}

mod sealed {
    pub trait Sealed {
        const ROW: super::DType;
    }
}

macro_rules! seal {
    ([] $($variant:ident = $code:literal, $ty:ty, $class:ident, $name:literal, $short:literal;)*) => {
        $(impl sealed::Sealed for $ty {
            const ROW: DType = DType::$variant;
        })*
    };
}
dtype_table!({ seal });

macro_rules! impl_element {
    ($($ty:ty: $zero:expr, $one:expr, $x:ident => $widen:expr, $narrow:expr;)*) => {
        $(
            // SAFETY: the size and alignment of the dtype are defined as those of this type, which is a primitive or a
            // transparent wrapper of `u8` or `u16`.
            unsafe impl Element for $ty {
                const DTYPE: DType = <$ty as sealed::Sealed>::ROW;
                const ZERO: Self = $zero;
                const ONE: Self = $one;
                #[inline(always)]
                fn to_f64(self) -> f64 {
                    let $x = self;
                    $widen
                }
                #[inline(always)]
                fn from_f64($x: f64) -> Self {
                    $narrow
                }
            }
        )*
    };
}

impl_element! {
    bool: false, true, x => u8::from(x).into(), x != 0.0;
    u8: 0, 1, x => x.into(), x as u8;
    i8: 0, 1, x => x.into(), x as i8;
    u16: 0, 1, x => x.into(), x as u16;
    i16: 0, 1, x => x.into(), x as i16;
    u32: 0, 1, x => x.into(), x as u32;
    i32: 0, 1, x => x.into(), x as i32;
    u64: 0, 1, x => x as f64, x as u64;
    i64: 0, 1, x => x as f64, x as i64;
    f32: 0.0, 1.0, x => x.into(), x as f32;
    f64: 0.0, 1.0, x => x, x;
    f16: f16::ZERO, f16::ONE, x => x.to_f64(), f16::from_f32(round_to_odd(x));
    bf16: bf16::ZERO, bf16::ONE, x => x.to_f64(), bf16::from_f32(round_to_odd(x));
    F8E4M3: F8E4M3::from_bits(0), F8E4M3::from_bits(0x38), x => float8::e4m3fn_to_f32(x).into(), float8::e4m3fn_from_f64(x);
    F8E5M2: F8E5M2::from_bits(0), F8E5M2::from_bits(0x3c), x => float8::e5m2_to_f32(x).into(), float8::e5m2_from_f64(x);
    F8E4M3FNUZ: F8E4M3FNUZ::from_bits(0), F8E4M3FNUZ::from_bits(0x40), x => x.to_f32().into(), F8E4M3FNUZ::from_f64(x);
    F8E5M2FNUZ: F8E5M2FNUZ::from_bits(0), F8E5M2FNUZ::from_bits(0x40), x => x.to_f32().into(), F8E5M2FNUZ::from_f64(x);
}

/// Rounds to the `f32` neighbour of `value` whose last place is odd, so that rounding the result to a half type gives what
/// one rounding of `value` would. (The conversions from `f64` of the `half` crate round twice where it uses F16C.)
#[inline(always)]
fn round_to_odd(value: f64) -> f32 {
    let nearest = value as f32;
    let widened = f64::from(nearest);
    if widened == value || value.is_nan() || nearest.to_bits() & 1 == 1 {
        return nearest;
    }
    let away_from_zero = value.abs() > widened.abs();
    f32::from_bits(if away_from_zero { nearest.to_bits() + 1 } else { nearest.to_bits() - 1 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dispatch;

    #[test]
    fn zero_and_one_round_trip() {
        for dtype in DType::ALL {
            dispatch!(dtype, T => {
                assert_eq!(<T as Element>::ZERO.to_f64(), 0.0, "{dtype}");
                assert_eq!(<T as Element>::ONE.to_f64(), 1.0, "{dtype}");
                assert_eq!(<T as Element>::from_f64(1.0), T::ONE, "{dtype}");
                assert_eq!(T::default(), T::ZERO, "{dtype}");
            });
        }
    }

    #[test]
    fn integers_truncate_and_saturate() {
        assert_eq!(i8::from_f64(-1.9), -1);
        assert_eq!(i8::from_f64(1e9), 127);
        assert_eq!(u8::from_f64(-5.0), 0);
        assert_eq!(<i64 as Element>::from_f64(f64::NAN), 0);
        assert_eq!(<u64 as Element>::from_f64(f64::INFINITY), u64::MAX);
    }

    #[test]
    fn bool_is_not_zero() {
        assert!(!bool::from_f64(-0.0));
        assert!(bool::from_f64(0.25));
        assert!(bool::from_f64(f64::NAN));
    }

    /// Rounding from `f64` must not go through `f32`: just above a tie of the half types, below `f32`'s precision.
    #[test]
    fn halves_round_once() {
        let f16_bits = |value| <f16 as Element>::from_f64(value).to_bits();
        let bf16_bits = |value| <bf16 as Element>::from_f64(value).to_bits();
        let tiny = 2f64.powi(-40);
        assert_eq!(f16_bits(1.0 + 2f64.powi(-11) + tiny), 0x3c01);
        assert_eq!(f16_bits(-1.0 - 2f64.powi(-11) - tiny), 0xbc01);
        assert_eq!(f16_bits(1.0 + 2f64.powi(-11)), 0x3c00);
        assert_eq!(f16_bits(-1e-300), 0x8000);
        assert_eq!(bf16_bits(1.0 + 2f64.powi(-8) + tiny), 0x3f81);
        assert_eq!(bf16_bits(1e300), 0x7f80);
        assert_eq!(bf16_bits(f64::NEG_INFINITY), 0xff80);
        assert!(<f16 as Element>::from_f64(f64::NAN).is_nan());
    }

    /// Around the midpoints of neighbours, subnormal ones too.
    #[test]
    fn halves_round_to_the_nearest_even() {
        for bits in (0..0x7bff_u16).step_by(37) {
            let value = |bits| f16::from_bits(bits).to_f64();
            let middle = (value(bits) + value(bits + 1)) / 2.0;
            let round = |value| <f16 as Element>::from_f64(value).to_bits();
            assert_eq!(round(middle.next_down()), bits);
            assert_eq!(round(middle), bits + (bits & 1));
            assert_eq!(round(middle.next_up()), bits + 1);
        }
    }
}
