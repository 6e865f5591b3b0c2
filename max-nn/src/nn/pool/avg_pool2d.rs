//! [`AvgPool2d`]: the mean of each window of an image.

use max_core::graph::ops::PoolOptions;

use crate::Result;
use crate::functional as f;
use crate::nn::{Forward, Module};
use crate::tensor::Tensor;

/// `y = mean over k of x[.. · stride + k]` for the windows of `x`, `[batch, height, width, channels]`, or what
/// `options.input_layout` says. It has no parameters.
///
/// ```
/// # extern crate max_nn as max;
/// # max_kernels::link();
/// use max::nn::{Forward, AvgPool2d};
/// use max::tensor::Tensor;
///
/// let x = Tensor::arange(0, 8, 1)?.reshape([1, 2, 4, 1])?;
/// let y = AvgPool2d::new([2, 2]).forward(&x)?;
/// assert_eq!(y.to_vec::<f32>()?, [2.5, 4.5]);
/// # Ok::<(), max::Error>(())
/// ```
#[derive(Clone, Debug, Module)]
pub struct AvgPool2d {
    /// The height and the width of a window.
    #[module(skip)]
    pub kernel_size: [i64; 2],
    /// Strides, dilations and padding.
    #[module(skip)]
    pub options: PoolOptions,
    /// Whether the zeros around the image count.
    pub count_boundary: bool,
}

impl AvgPool2d {
    /// Windows beside each other; zeros around the image count.
    pub fn new(kernel_size: [i64; 2]) -> AvgPool2d {
        let options = PoolOptions { stride: kernel_size, ..PoolOptions::default() };
        AvgPool2d { kernel_size, options, count_boundary: true }
    }
}

impl Forward for AvgPool2d {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        f::avg_pool2d(x, self.kernel_size, self.options, self.count_boundary)
    }
}
