//! Elementwise ops: each is one row, which gives the function and the method of [`Tensor`].

use max_core::dtype::DType;
use max_core::graph::ops::{self, GeluApproximation};

use crate::Result;
use crate::tensor::{Operand, Tensor, apply};

macro_rules! unary {
    ($($(#[doc = $doc:literal])+ $name:ident;)+) => {
        $(
            $(#[doc = $doc])+
            ///
            /// # Errors
            /// When the operand's dtype is not taken.
            #[track_caller]
            pub fn $name(x: impl Into<Operand>) -> Result<Tensor> {
                apply(stringify!($name), &mut [x.into()], (), |x, ()| ops::$name(&x[0]))
            }
        )+

        impl Tensor {$(
            $(#[doc = $doc])+
            ///
            /// # Errors
            #[doc = concat!("As [`", stringify!($name), "`](crate::functional::", stringify!($name), ").")]
            #[track_caller]
            pub fn $name(&self) -> Result<Tensor> {
                $name(self)
            }
        )+}
    };
}

macro_rules! binary {
    ($($(#[doc = $doc:literal])+ $name:ident $(as $method:ident)?;)+) => {
        $(
            $(#[doc = $doc])+
            ///
            /// The shapes are broadcast and the dtypes promoted; a number takes the other side's dtype.
            ///
            /// # Errors
            /// When the shapes do not broadcast, when no operand's dtype holds the values of the other, when the dtype is
            /// not taken, and when the operands are on two devices or of two graphs.
            #[track_caller]
            pub fn $name(lhs: impl Into<Operand>, rhs: impl Into<Operand>) -> Result<Tensor> {
                apply(stringify!($name), &mut [lhs.into(), rhs.into()], (), |x, ()| ops::$name(&x[0], &x[1]))
            }
        )+

        impl Tensor {$($(
            #[doc = concat!("See [`", stringify!($name), "`](crate::functional::", stringify!($name), ").")]
            ///
            /// # Errors
            #[doc = concat!("As [`", stringify!($name), "`](crate::functional::", stringify!($name), ").")]
            #[track_caller]
            pub fn $method(&self, rhs: impl Into<Operand>) -> Result<Tensor> {
                $name(self, rhs)
            }
        )?)+}
    };
}

unary! {
    /// The absolute value. The most negative integer stays what it is.
    abs;
    /// The arc cosine; NaN outside of -1 to 1.
    acos;
    /// The inverse hyperbolic tangent.
    atanh;
    /// The smallest integer that is not below the operand.
    ceil;
    /// The cosine of an angle in radians.
    cos;
    /// The error function.
    erf;
    /// e to the power of the operand.
    exp;
    /// The largest integer that is not above the operand.
    floor;
    /// Whether the operand is an infinity of either sign.
    is_inf;
    /// Whether the operand is not a number.
    is_nan;
    /// The natural logarithm.
    log;
    /// The natural logarithm of 1 + x, exact near 0.
    log1p;
    /// The opposite truth value.
    logical_not;
    /// The operand with the opposite sign. Integers wrap.
    negate;
    /// The larger of 0 and the operand.
    relu;
    /// The nearest integer; halfway cases go to the even one.
    round;
    /// 1 / sqrt(x).
    rsqrt;
    /// 1 / (1 + exp(-x)).
    sigmoid;
    /// x · sigmoid(x).
    silu;
    /// The sine of an angle in radians.
    sin;
    /// The square root; NaN below 0.
    sqrt;
    /// The hyperbolic tangent.
    tanh;
    /// The integer towards 0.
    trunc;
}

binary! {
    /// The sum. Integers wrap.
    add;
    /// The quotient. Integers are divided as `float64`.
    div;
    /// Whether both sides are equal. NaN equals nothing.
    equal as equal;
    /// Whether the left side is greater.
    greater as greater;
    /// Whether the left side is greater or equal.
    greater_equal as greater_equal;
    /// Whether both sides are true.
    logical_and as logical_and;
    /// Whether one side or both are true.
    logical_or as logical_or;
    /// Whether exactly one side is true.
    logical_xor as logical_xor;
    /// The larger of both sides, elementwise. For the largest element along an axis see [`max`](super::max()).
    maximum as maximum;
    /// The smaller of both sides, elementwise. For the smallest element along an axis see [`min`](super::min()).
    minimum as minimum;
    /// The remainder with the divisor's sign: x - floor(x / y) · y. An integer modulo 0 is 0.
    mod_;
    /// The product. Integers wrap.
    mul;
    /// Whether both sides differ.
    not_equal as not_equal;
    /// The left side to the power of the right side. Integers wrap; to a negative power they are 0, but for 1 and -1.
    pow as pow;
    /// The difference. Integers wrap.
    sub;
}

/// The Gaussian error linear unit, x · Φ(x).
///
/// # Errors
/// When the operand is not a float tensor.
#[track_caller]
pub fn gelu(x: impl Into<Operand>, approximate: GeluApproximation) -> Result<Tensor> {
    apply("gelu", &mut [x.into()], approximate, |x, approximate| ops::gelu(&x[0], *approximate))
}

/// Where `condition` is true the element of `x`, elsewhere that of `y`. All three are broadcast.
///
/// # Errors
/// When the condition is not `bool`, when `x` and `y` are both numbers, and as [`add`] for `x` and `y`.
#[track_caller]
pub fn where_(condition: impl Into<Operand>, x: impl Into<Operand>, y: impl Into<Operand>) -> Result<Tensor> {
    apply("where", &mut [condition.into(), x.into(), y.into()], (), |x, ()| ops::where_(&x[0], &x[1], &x[2]))
}

/// The elements converted to another dtype: floats to integers towards 0, saturating, NaN to 0; to `bool` by `x != 0`.
///
/// # Errors
/// When there is no such conversion.
#[track_caller]
pub fn cast(x: impl Into<Operand>, dtype: DType) -> Result<Tensor> {
    apply("cast", &mut [x.into()], dtype, |x, dtype| ops::cast(&x[0], *dtype))
}
