//! Convolutions, pooling, padding and resizing.

use max_core::graph::ops::{self, ConvOptions, FoldOptions, InterpolationMode, PadMode, PoolOptions};
use max_core::graph::{self, Shape, TensorValue};

use crate::Result;
use crate::tensor::{Operand, Tensor, apply};

/// A filter's operands, with a bias where there is one.
fn operands(x: impl Into<Operand>, filter: impl Into<Operand>, bias: Option<&Tensor>) -> Vec<Operand> {
    [x.into(), filter.into()].into_iter().chain(bias.map(Operand::from)).collect()
}

/// The third operand.
fn bias(operands: &[graph::Operand]) -> Option<&TensorValue> {
    match operands.get(2) {
        Some(graph::Operand::Tensor(value)) => Some(value),
        _ => None,
    }
}

/// The convolution of `x`, `[batch, height, width, channels]`, with a filter, `[height, width, channels / groups, out]`.
///
/// # Errors
/// As [`ops::conv2d`].
#[track_caller]
pub fn conv2d(
    x: impl Into<Operand>,
    filter: impl Into<Operand>,
    bias_of_channels: Option<&Tensor>,
    options: ConvOptions<2>,
) -> Result<Tensor> {
    apply("conv2d", &mut operands(x, filter, bias_of_channels), options, |x, options| {
        ops::conv2d(&x[0], &x[1], bias(x), *options)
    })
}

/// The convolution of `x`, `[batch, depth, height, width, channels]`, with a filter, `[depth, height, width, channels, out]`.
///
/// # Errors
/// As [`ops::conv3d`].
#[track_caller]
pub fn conv3d(
    x: impl Into<Operand>,
    filter: impl Into<Operand>,
    bias_of_channels: Option<&Tensor>,
    options: ConvOptions<3>,
) -> Result<Tensor> {
    apply("conv3d", &mut operands(x, filter, bias_of_channels), options, |x, options| {
        ops::conv3d(&x[0], &x[1], bias(x), *options)
    })
}

/// The transposed convolution of `x`, `[batch, height, width, channels]`, with a filter, `[height, width, out, channels]`.
///
/// # Errors
/// As [`ops::conv2d_transpose`].
#[track_caller]
pub fn conv2d_transpose(
    x: impl Into<Operand>,
    filter: impl Into<Operand>,
    bias_of_channels: Option<&Tensor>,
    options: ConvOptions<2>,
    output_paddings: [i64; 2],
) -> Result<Tensor> {
    let attributes = (options, output_paddings);
    apply("conv2d_transpose", &mut operands(x, filter, bias_of_channels), attributes, |x, (options, paddings)| {
        ops::conv2d_transpose(&x[0], &x[1], bias(x), *options, *paddings)
    })
}

/// The largest element of each window of `[batch, height, width, channels]`.
///
/// # Errors
/// As [`ops::max_pool2d`].
#[track_caller]
pub fn max_pool2d(input: impl Into<Operand>, kernel_size: [i64; 2], options: PoolOptions) -> Result<Tensor> {
    apply("max_pool2d", &mut [input.into()], (kernel_size, options), |x, (kernel_size, options)| {
        ops::max_pool2d(&x[0], *kernel_size, *options)
    })
}

/// The mean of each window of `[batch, height, width, channels]`; of the padding too, if `count_boundary`.
///
/// # Errors
/// As [`ops::avg_pool2d`].
#[track_caller]
pub fn avg_pool2d(
    input: impl Into<Operand>,
    kernel_size: [i64; 2],
    options: PoolOptions,
    count_boundary: bool,
) -> Result<Tensor> {
    let attributes = (kernel_size, options, count_boundary);
    apply("avg_pool2d", &mut [input.into()], attributes, |x, (kernel_size, options, count_boundary)| {
        ops::avg_pool2d(&x[0], *kernel_size, *options, *count_boundary)
    })
}

/// The sums of columns of windows, put together to an image: the opposite of taking windows.
///
/// # Errors
/// As [`ops::fold`].
#[track_caller]
pub fn fold(
    input: impl Into<Operand>,
    output_size: [i64; 2],
    kernel_size: [i64; 2],
    options: FoldOptions,
) -> Result<Tensor> {
    let attributes = (output_size, kernel_size, options);
    apply("fold", &mut [input.into()], attributes, |x, (output_size, kernel_size, options)| {
        ops::fold(&x[0], *output_size, *kernel_size, *options)
    })
}

/// The image in another shape.
///
/// # Errors
/// As [`ops::resize`].
#[track_caller]
pub fn resize(input: impl Into<Operand>, shape: impl Into<Shape>, interpolation: InterpolationMode) -> Result<Tensor> {
    apply("resize", &mut [input.into()], (shape.into(), interpolation), |x, (shape, interpolation)| {
        ops::resize(&x[0], shape, *interpolation)
    })
}

/// With elements before and after each axis: `paddings` are two numbers an axis.
///
/// # Errors
/// As [`ops::pad`].
#[track_caller]
pub fn pad(input: impl Into<Operand>, paddings: impl AsRef<[i64]>, mode: PadMode) -> Result<Tensor> {
    apply("pad", &mut [input.into()], (paddings.as_ref().to_vec(), mode), |x, (paddings, mode)| {
        ops::pad(&x[0], paddings, *mode)
    })
}
