//! [`ConvTranspose2d`]: transposed convolution over the height and the width of an image.

use max_core::graph::ops::ConvOptions;

use super::{channels_first, channels_last, weights};
use crate::Result;
use crate::functional as f;
use crate::nn::{Forward, Module};
use crate::tensor::Tensor;

/// The transposed convolution `y[.. + stride · .. + k, o] += weight[k, o, i] · x[.., i]`, plus `bias[o]`, of `x`,
/// `[batch, height, width, in]`, with `weight` `[height, width, out, in]`: each pixel paints a filter (Zeiler et al.:
/// Deconvolutional networks, 2010).
///
/// With `permute`, everything is as in PyTorch: the weight is `[in, out, height, width]`, and the channels of input and output
/// stand behind the batch.
///
/// ```
/// # extern crate max_nn as max;
/// # max_kernels::link();
/// use max::nn::{ConvTranspose2d, Forward};
/// use max::tensor::Tensor;
///
/// let mut layer = ConvTranspose2d::new([2, 2], 3, 8)?;
/// layer.options.stride = [2, 2];
/// let y = layer.forward(&Tensor::ones([2, 10, 9, 3])?)?;
/// assert_eq!(y.shape().to_string(), "[2, 20, 18, 8]");
/// # Ok::<(), max::Error>(())
/// ```
#[derive(Clone, Module)]
pub struct ConvTranspose2d {
    /// The filter.
    pub weight: Tensor,
    /// `[out]`.
    pub bias: Option<Tensor>,
    /// Strides, dilations, and what is cut off the result; one group.
    #[module(skip)]
    pub options: ConvOptions<2>,
    /// What is added to the result's height and width, where a stride leaves its size open.
    #[module(skip)]
    pub output_paddings: [i64; 2],
    /// Whether weight, input and output have PyTorch's order of axes.
    pub permute: bool,
}

impl ConvTranspose2d {
    /// A layer with a bias, a stride of 1 and no padding.
    ///
    /// # Errors
    /// When there is no memory for it.
    #[track_caller]
    pub fn new(kernel_size: [usize; 2], in_channels: usize, out_channels: usize) -> Result<ConvTranspose2d> {
        let shape = [kernel_size[0], kernel_size[1], out_channels, in_channels];
        let (weight, bias) = weights(&shape, kernel_size.iter().product::<usize>() * out_channels, out_channels)?;
        let options = ConvOptions::<2>::default();
        Ok(ConvTranspose2d { weight, bias, options, output_paddings: [0, 0], permute: false })
    }
}

impl Forward for ConvTranspose2d {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (x, filter) = match self.permute {
            true => (&f::permute(x, channels_last(2))?, &f::permute(&self.weight, [2, 3, 1, 0])?),
            false => (x, &self.weight),
        };
        let y = f::conv2d_transpose(x, filter, self.bias.as_ref(), self.options, self.output_paddings)?;
        if self.permute { f::permute(y, channels_first(2)) } else { Ok(y) }
    }
}
