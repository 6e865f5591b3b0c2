//! [`Conv2d`]: convolution over the height and the width of an image.

use max_core::graph::ops::ConvOptions;

use super::{channels_first, channels_last, filter_last, weights};
use crate::Result;
use crate::functional as f;
use crate::nn::{Forward, Module};
use crate::tensor::Tensor;

/// The convolution `y[.., o] = Σ weight[k, i, o] · x[.. + k, i] + bias[o]` of `x`, `[batch, height, width, in]`, with `weight` `[height, width, in / groups, out]`.
///
/// With `permute`, everything is as in PyTorch: the weight is `[out, in / groups, height, width]`, and the channels of
/// input and output stand behind the batch.
///
/// ```
/// # extern crate max_nn as max;
/// # max_kernels::link();
/// use max::nn::{Conv2d, Forward};
/// use max::tensor::Tensor;
///
/// let layer = Conv2d::new([3, 3], 3, 8)?;
/// let y = layer.forward(&Tensor::ones([2, 10, 9, 3])?)?;
/// assert_eq!(y.shape().to_string(), "[2, 8, 7, 8]");
/// # Ok::<(), max::Error>(())
/// ```
#[derive(Clone, Module)]
pub struct Conv2d {
    /// The filter.
    pub weight: Tensor,
    /// `[out]`.
    pub bias: Option<Tensor>,
    /// Strides, dilations, padding and groups.
    #[module(skip)]
    pub options: ConvOptions<2>,
    /// Whether weight, input and output have PyTorch's order of axes.
    pub permute: bool,
}

impl Conv2d {
    /// A layer with a bias, a stride of 1 and no padding.
    ///
    /// # Errors
    /// When there is no memory for it.
    #[track_caller]
    pub fn new(kernel_size: [usize; 2], in_channels: usize, out_channels: usize) -> Result<Conv2d> {
        let shape = [kernel_size[0], kernel_size[1], in_channels, out_channels];
        let (weight, bias) = weights(&shape, kernel_size.iter().product::<usize>() * in_channels, out_channels)?;
        Ok(Conv2d { weight, bias, options: ConvOptions::<2>::default(), permute: false })
    }
}

impl Forward for Conv2d {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (x, filter) = match self.permute {
            true => (&f::permute(x, channels_last(2))?, &f::permute(&self.weight, filter_last(2))?),
            false => (x, &self.weight),
        };
        let y = f::conv2d(x, filter, self.bias.as_ref(), self.options)?;
        if self.permute { f::permute(y, channels_first(2)) } else { Ok(y) }
    }
}
