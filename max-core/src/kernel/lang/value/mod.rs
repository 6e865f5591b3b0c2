//! [`Val`]: a number in a kernel, and what can be done with it.

pub(super) mod derived;
pub(super) mod prim;
pub(super) mod scalar;
pub(super) mod sealed;

use std::ops;

use self::prim::op;
use self::scalar::{Any, Bits, Float, Int, Number, SameBits, Scalar, Signed};
use super::target::Target;

/// A number of dtype `T` in a kernel: an element, or a value uniform over the program instance.
///
/// Half and 8-bit floats compute in `f32` and are rounded when they are stored, cast to, or handed to another op.
/// Integers wrap; `x / 0` and `x % 0` are 0. Nothing here panics.
pub struct Val<M: Target, T: Any>(pub(crate) M::Val<T>);

impl<M: Target, T: Any> Clone for Val<M, T> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}
impl<M: Target, T: Any> Copy for Val<M, T> {}

macro_rules! operators {
    ($($trait:ident $method:ident $op:ident $bound:ident),* $(,)?) => { $(
        impl<M: Target, T: $bound> ops::$trait for Val<M, T> {
            type Output = Self;
            #[inline(always)]
            #[track_caller]
            fn $method(self, b: Self) -> Self {
                Val(M::binary::<T, op::$op>(self.0, b.0))
            }
        }
    )* };
}
operators! {
    Add add Add Number, Sub sub Sub Number, Mul mul Mul Number, Div div Div Number, Rem rem Rem Number,
    BitAnd bitand And Bits, BitOr bitor Or Bits, BitXor bitxor Xor Bits, Shl shl Shl Int, Shr shr Shr Int,
}

impl<M: Target, T: Signed> ops::Neg for Val<M, T> {
    type Output = Self;
    #[inline(always)]
    #[track_caller]
    fn neg(self) -> Self {
        Val(M::unary::<T, op::Neg>(self.0))
    }
}

impl<M: Target, T: Bits> ops::Not for Val<M, T> {
    type Output = Self;
    #[inline(always)]
    #[track_caller]
    fn not(self) -> Self {
        Val(M::unary::<T, op::Not>(self.0))
    }
}

impl<M: Target, T: Scalar> Val<M, T> {
    /// Converts to another dtype, as Rust's `as`: floats to integers truncate and saturate, NaN becomes 0, integers
    /// wrap, anything to `bool` is `x != 0`. To a small float: rounded to nearest, ties to even.
    #[inline(always)]
    #[track_caller]
    pub fn cast<U: Scalar>(self) -> Val<M, U> {
        Val(M::cast::<T, U>(self.0))
    }

    /// Converts to a number that `U` computes with: as [`cast`](Self::cast), but to a half type not rounded to 16 bits,
    /// since those compute in `f32`. This is what `T::from_i64(n)` and `T::from_f64(v)` mean in a kernel.
    #[inline(always)]
    #[track_caller]
    pub fn convert<U: Number>(self) -> Val<M, U> {
        if U::dtype().is_half() { Val(M::rename::<f32, U>(M::cast::<T, f32>(self.0))) } else { self.cast() }
    }

    /// The largest value of the dtype: of a float, the largest finite one.
    #[inline(always)]
    #[track_caller]
    pub fn max_value() -> Self {
        Val(M::limit::<T>(true))
    }

    /// The smallest value of the dtype: of a float, the most negative finite one.
    #[inline(always)]
    #[track_caller]
    pub fn min_value() -> Self {
        Val(M::limit::<T>(false))
    }

    /// The identity of `max`: negative infinity, or an integer's smallest value.
    #[inline(always)]
    #[track_caller]
    pub fn lowest() -> Self {
        // Integers saturate.
        Val(M::float::<T>(f64::NEG_INFINITY))
    }

    /// The identity of `min`: infinity, or an integer's largest value.
    #[inline(always)]
    #[track_caller]
    pub fn highest() -> Self {
        Val(M::float::<T>(f64::INFINITY))
    }

    /// Zero.
    #[inline(always)]
    #[track_caller]
    pub fn zero() -> Self {
        Val(M::int::<T>(0))
    }

    /// One.
    #[inline(always)]
    #[track_caller]
    pub fn one() -> Self {
        Val(M::int::<T>(1))
    }
}

impl<M: Target, T: Number> Val<M, T> {
    /// The smaller of two values; NaN if either is NaN, and -0 is below +0 (IEEE 754-2019 `minimum`).
    #[inline(always)]
    #[track_caller]
    pub fn min(self, b: Self) -> Self {
        Val(M::binary::<T, op::Min>(self.0, b.0))
    }

    /// The larger of two values; NaN if either is NaN, and -0 is below +0 (IEEE 754-2019 `maximum`).
    #[inline(always)]
    #[track_caller]
    pub fn max(self, b: Self) -> Self {
        Val(M::binary::<T, op::Max>(self.0, b.0))
    }

    /// At least `lo` and at most `hi`.
    #[inline(always)]
    #[track_caller]
    pub fn clamp(self, lo: Self, hi: Self) -> Self {
        self.max(lo).min(hi)
    }

    /// The magnitude; the most negative integer stays itself.
    #[inline(always)]
    #[track_caller]
    pub fn abs(self) -> Self {
        Val(M::unary::<T, op::Abs>(self.0))
    }

    /// `self * b + c`, rounded once (on a machine without fused multiply-add, twice).
    #[inline(always)]
    #[track_caller]
    pub fn mul_add(self, b: Self, c: Self) -> Self {
        Val(M::fma::<T>(self.0, b.0, c.0))
    }
}

impl<M: Target, T: Float> Val<M, T> {
    /// Positive infinity.
    #[inline(always)]
    #[track_caller]
    pub fn infinity() -> Self {
        Val(M::float::<T>(f64::INFINITY))
    }

    /// Negative infinity.
    #[inline(always)]
    #[track_caller]
    pub fn neg_infinity() -> Self {
        Val(M::float::<T>(f64::NEG_INFINITY))
    }

    /// Not a number.
    #[inline(always)]
    #[track_caller]
    pub fn nan() -> Self {
        Val(M::float::<T>(f64::NAN))
    }

    /// The distance from 1 to the next larger value of the dtype.
    #[inline(always)]
    #[track_caller]
    pub fn epsilon() -> Self {
        Val(M::epsilon::<T>())
    }

    /// The smallest positive normal value of the dtype.
    #[inline(always)]
    #[track_caller]
    pub fn min_positive() -> Self {
        Val(M::min_positive::<T>())
    }

    /// Whether this is NaN.
    #[inline(always)]
    #[track_caller]
    pub fn is_nan(self) -> Val<M, bool> {
        Val(M::cmp::<T, op::Ne>(self.0, self.0))
    }

    /// Whether this is an infinity.
    #[inline(always)]
    #[track_caller]
    pub fn is_infinite(self) -> Val<M, bool> {
        Val(M::cmp::<T, op::Eq>(self.abs().0, Self::infinity().0))
    }

    /// The correctly rounded square root.
    #[inline(always)]
    #[track_caller]
    pub fn sqrt(self) -> Self {
        Val(M::unary::<T, op::Sqrt>(self.0))
    }

    /// The largest integral value not above this.
    #[inline(always)]
    #[track_caller]
    pub fn floor(self) -> Self {
        Val(M::unary::<T, op::Floor>(self.0))
    }

    /// The smallest integral value not below this.
    #[inline(always)]
    #[track_caller]
    pub fn ceil(self) -> Self {
        Val(M::unary::<T, op::Ceil>(self.0))
    }

    /// The integral part.
    #[inline(always)]
    #[track_caller]
    pub fn trunc(self) -> Self {
        Val(M::unary::<T, op::Trunc>(self.0))
    }

    /// The nearest integral value, ties to even.
    #[inline(always)]
    #[track_caller]
    pub fn round_ties_even(self) -> Self {
        Val(M::unary::<T, op::RoundEven>(self.0))
    }
}

impl<M: Target, T: Scalar> Val<M, T> {
    /// The same bits as another dtype of the same size: `f32`, `i32`, `u32`, or `f64`, `i64`, `u64`; a small float, which is
    /// rounded to its dtype, and an integer of its size.
    #[inline(always)]
    #[track_caller]
    pub fn bitcast<U: Scalar>(self) -> Val<M, U>
    where
        T: SameBits<U>,
    {
        Val(M::bitcast::<T, U>(self.0))
    }
}

/// A string parameter, known by its hash; all that a kernel can do is compare it with a literal.
pub struct Str<M: Target>(pub(crate) Val<M, u64>);

impl<M: Target> Clone for Str<M> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<M: Target> Copy for Str<M> {}
