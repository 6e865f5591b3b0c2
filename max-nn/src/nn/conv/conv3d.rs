//! [`Conv3d`]: convolution over the depth, the height and the width of a volume.

use max_core::graph::ops::ConvOptions;

use super::{channels_first, channels_last, filter_last, weights};
use crate::Result;
use crate::functional as f;
use crate::nn::{Forward, Module};
use crate::tensor::Tensor;

/// The convolution `y[.., o] = Σ weight[k, i, o] · x[.. + k, i] + bias[o]` of `x`, `[batch, depth, height, width, in]`, with `weight`
/// `[depth, height, width, in / groups, out]`.
///
/// With `permute`, everything is as in PyTorch: the weight is `[out, in / groups, depth, height, width]`, and the channels of
/// input and output stand behind the batch.
///
/// ```
/// # extern crate max_nn as max;
/// # max_kernels::link();
/// use max::nn::{Conv3d, Forward};
/// use max::tensor::Tensor;
///
/// let layer = Conv3d::new([3, 3, 3], 3, 8)?;
/// let y = layer.forward(&Tensor::ones([1, 5, 4, 4, 3])?)?;
/// assert_eq!(y.shape().to_string(), "[1, 3, 2, 2, 8]");
/// # Ok::<(), max::Error>(())
/// ```
#[derive(Clone, Module)]
pub struct Conv3d {
    /// The filter.
    pub weight: Tensor,
    /// `[out]`.
    pub bias: Option<Tensor>,
    /// Strides, dilations, padding and groups.
    #[module(skip)]
    pub options: ConvOptions<3>,
    /// Whether weight, input and output have PyTorch's order of axes.
    pub permute: bool,
}

impl Conv3d {
    /// A layer with a bias, a stride of 1 and no padding.
    ///
    /// # Errors
    /// When there is no memory for it.
    #[track_caller]
    pub fn new(kernel_size: [usize; 3], in_channels: usize, out_channels: usize) -> Result<Conv3d> {
        let shape = [kernel_size[0], kernel_size[1], kernel_size[2], in_channels, out_channels];
        let (weight, bias) = weights(&shape, kernel_size.iter().product::<usize>() * in_channels, out_channels)?;
        Ok(Conv3d { weight, bias, options: ConvOptions::<3>::default(), permute: false })
    }
}

impl Forward for Conv3d {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (x, filter) = match self.permute {
            true => (&f::permute(x, channels_last(3))?, &f::permute(&self.weight, filter_last(3))?),
            false => (x, &self.weight),
        };
        let y = f::conv3d(x, filter, self.bias.as_ref(), self.options)?;
        if self.permute { f::permute(y, channels_first(3)) } else { Ok(y) }
    }
}
