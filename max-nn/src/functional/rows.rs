//! Ops along an axis: reductions, softmax, scans and norms.

use max_core::graph::ops;

use crate::Result;
use crate::tensor::{Operand, Tensor, apply};

macro_rules! reductions {
    ($($(#[doc = $doc:literal])+ $name:ident;)+) => {
        $(
            $(#[doc = $doc])+
            /// The axis stays, with size 1; negative axes count from the end.
            ///
            /// # Errors
            /// When the axis is out of range, when the operand is `bool`, or when the axis is empty and the op has no
            /// value for that.
            #[track_caller]
            pub fn $name(x: impl Into<Operand>, axis: i64) -> Result<Tensor> {
                apply(stringify!($name), &mut [x.into()], axis, |x, axis| ops::$name(&x[0], *axis))
            }
        )+

        impl Tensor {$(
            $(#[doc = $doc])+
            ///
            /// # Errors
            #[doc = concat!("As [`", stringify!($name), "`](crate::functional::", stringify!($name), "()).")]
            #[track_caller]
            pub fn $name(&self, axis: i64) -> Result<Tensor> {
                $name(self, axis)
            }
        )+}
    };
}
reductions! {
    /// The position of the largest element along an axis, the first of several, as `int64`.
    argmax;
    /// The position of the smallest element along an axis, the first of several, as `int64`.
    argmin;
    /// The largest element along an axis.
    max;
    /// The mean along an axis. Of integers it is rounded towards 0.
    mean;
    /// The smallest element along an axis.
    min;
    /// The product along an axis; 1 of none.
    prod;
    /// The sum along an axis; 0 of none.
    sum;
}

/// exp(x) divided by its sum along an axis, which MAX's op takes to be the last.
///
/// # Errors
/// When the operand is not a float tensor, or the axis is out of range.
#[track_caller]
pub fn softmax(x: impl Into<Operand>, axis: i64) -> Result<Tensor> {
    apply("softmax", &mut [x.into()], axis, |x, axis| ops::softmax(&x[0], *axis))
}

/// The logarithm of [`softmax`].
///
/// # Errors
/// As [`softmax`].
#[track_caller]
pub fn logsoftmax(x: impl Into<Operand>, axis: i64) -> Result<Tensor> {
    apply("logsoftmax", &mut [x.into()], axis, |x, axis| ops::logsoftmax(&x[0], *axis))
}

/// The sums of all elements up to each along an axis: without itself if `exclusive`, from the end if `reverse`.
///
/// # Errors
/// When the operand is `bool`, or the axis is out of range.
#[track_caller]
pub fn cumsum(x: impl Into<Operand>, axis: i64, exclusive: bool, reverse: bool) -> Result<Tensor> {
    let attributes = (axis, exclusive, reverse);
    apply("cumsum", &mut [x.into()], attributes, |x, (axis, exclusive, reverse)| {
        ops::cumsum(&x[0], *axis, *exclusive, *reverse)
    })
}

/// `(x - mean) / sqrt(variance + epsilon) * gamma + beta` along the last axis.
///
/// # Errors
/// When an operand is not a float tensor, or `gamma` and `beta` do not have the size of the last axis.
#[track_caller]
pub fn layer_norm(
    input: impl Into<Operand>,
    gamma: impl Into<Operand>,
    beta: impl Into<Operand>,
    epsilon: f64,
) -> Result<Tensor> {
    apply("layer_norm", &mut [input.into(), gamma.into(), beta.into()], epsilon, |x, epsilon| {
        ops::layer_norm(&x[0], &x[1], &x[2], *epsilon)
    })
}

/// `x / sqrt(mean(x²) + epsilon) * weight` along the last axis.
///
/// # Errors
/// When an operand is not a float tensor, or the weight does not have the size of the last axis.
#[track_caller]
pub fn rms_norm(input: impl Into<Operand>, weight: impl Into<Operand>, epsilon: f64) -> Result<Tensor> {
    apply("rms_norm", &mut [input.into(), weight.into()], epsilon, |x, epsilon| ops::rms_norm(&x[0], &x[1], *epsilon))
}

/// [`layer_norm`] of each group of channels, which are the second axis; `gamma` and `beta` have one number a channel.
///
/// # Errors
/// When an operand is not a float tensor, when the channels are no multiple of the groups, or another number than those of
/// `gamma` and `beta`.
#[track_caller]
pub fn group_norm(
    input: impl Into<Operand>,
    gamma: impl Into<Operand>,
    beta: impl Into<Operand>,
    num_groups: i64,
    epsilon: f64,
) -> Result<Tensor> {
    let attributes = (num_groups, epsilon);
    apply("group_norm", &mut [input.into(), gamma.into(), beta.into()], attributes, |x, (num_groups, epsilon)| {
        ops::group_norm(&x[0], &x[1], &x[2], *num_groups, *epsilon)
    })
}
