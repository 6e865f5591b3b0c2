//! [`MaxPool2d`]: the largest element of each window of an image.

use max_core::graph::ops::PoolOptions;

use crate::Result;
use crate::functional as f;
use crate::nn::{Forward, Module};
use crate::tensor::Tensor;

/// `y = max over k of x[.. · stride + k]` for the windows of `x`, `[batch, height, width, channels]`, or what
/// `options.input_layout` says. It has no parameters.
///
/// ```
/// # extern crate max_nn as max;
/// # max_kernels::link();
/// use max::nn::{Forward, MaxPool2d};
/// use max::tensor::Tensor;
///
/// let x = Tensor::arange(0, 8, 1)?.reshape([1, 2, 4, 1])?;
/// let y = MaxPool2d::new([2, 2]).forward(&x)?;
/// assert_eq!(y.to_vec::<f32>()?, [5.0, 7.0]);
/// # Ok::<(), max::Error>(())
/// ```
#[derive(Clone, Debug, Module)]
pub struct MaxPool2d {
    /// The height and the width of a window.
    #[module(skip)]
    pub kernel_size: [i64; 2],
    /// Strides, dilations and padding.
    #[module(skip)]
    pub options: PoolOptions,
}

impl MaxPool2d {
    /// Windows beside each other.
    pub fn new(kernel_size: [i64; 2]) -> MaxPool2d {
        MaxPool2d { kernel_size, options: PoolOptions { stride: kernel_size, ..PoolOptions::default() } }
    }
}

impl Forward for MaxPool2d {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        f::max_pool2d(x, self.kernel_size, self.options)
    }
}
