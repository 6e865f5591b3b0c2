//! [`Conv1d`]: convolution over the length of a sequence.

use max_core::graph::ops::ConvOptions;

use super::{channels_first, channels_last, filter_last, weights};
use crate::Result;
use crate::functional as f;
use crate::nn::{Forward, Module};
use crate::tensor::Tensor;

/// The convolution `y[.., o] = Σ weight[k, i, o] · x[.. + k, i] + bias[o]` of `x`, `[batch, length, in]`, with `weight` `[kernel, in / groups, out]`.
///
/// With `permute`, everything is as in PyTorch: the weight is `[out, in / groups, kernel]`, and the channels of
/// input and output stand behind the batch.
///
/// ```
/// # extern crate max_nn as max;
/// # max_kernels::link();
/// use max::nn::{Conv1d, Forward};
/// use max::tensor::Tensor;
///
/// let layer = Conv1d::new(3, 3, 8)?;
/// let y = layer.forward(&Tensor::ones([2, 10, 3])?)?;
/// assert_eq!(y.shape().to_string(), "[2, 8, 8]");
/// # Ok::<(), max::Error>(())
/// ```
#[derive(Clone, Module)]
pub struct Conv1d {
    /// The filter.
    pub weight: Tensor,
    /// `[out]`.
    pub bias: Option<Tensor>,
    /// Strides, dilations, padding and groups.
    #[module(skip)]
    pub options: ConvOptions<1>,
    /// Whether weight, input and output have PyTorch's order of axes.
    pub permute: bool,
}

impl Conv1d {
    /// A layer with a bias, a stride of 1 and no padding.
    ///
    /// # Errors
    /// When there is no memory for it.
    #[track_caller]
    pub fn new(kernel_size: usize, in_channels: usize, out_channels: usize) -> Result<Conv1d> {
        let shape = [kernel_size, in_channels, out_channels];
        let (weight, bias) = weights(&shape, kernel_size * in_channels, out_channels)?;
        Ok(Conv1d { weight, bias, options: ConvOptions::<1>::default(), permute: false })
    }
}

impl Forward for Conv1d {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (x, filter) = match self.permute {
            true => (&f::permute(x, channels_last(1))?, &f::permute(&self.weight, filter_last(1))?),
            false => (x, &self.weight),
        };
        let options = ConvOptions {
            stride: [1, self.options.stride[0]],
            dilation: [1, self.options.dilation[0]],
            padding: [[0, 0], self.options.padding[0]],
            groups: self.options.groups,
            ..ConvOptions::default()
        };
        // A sequence is an image of one row.
        let y = f::conv2d(f::unsqueeze(x, 1)?, f::unsqueeze(filter, 0)?, self.bias.as_ref(), options)?;
        let y = f::squeeze(y, 1)?;
        if self.permute { f::permute(y, channels_first(1)) } else { Ok(y) }
    }
}
