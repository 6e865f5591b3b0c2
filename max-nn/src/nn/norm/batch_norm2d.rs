//! [`BatchNorm2d`]: normalization of channels by statistics that training has found.

use crate::Result;
use crate::functional as f;
use crate::nn::{Forward, Module};
use crate::tensor::Tensor;

/// `(x - running_mean) / sqrt(running_var + eps) * weight + bias` for each channel of `x`, `[batch, channels, height, width]`: batch
/// normalization as it is after training (Ioffe and Szegedy, 2015).
///
/// ```
/// # extern crate max_nn as max;
/// # max_kernels::link();
/// use max::nn::{BatchNorm2d, Forward};
/// use max::tensor::Tensor;
///
/// let mut layer = BatchNorm2d::new(2)?;
/// layer.running_mean = Tensor::constant([1.0f32, 0.0])?;
/// layer.running_var = Tensor::constant([4.0f32, 1.0])?;
/// let y = layer.forward(&Tensor::full([1, 2, 1, 1], 3.0)?)?.to_vec::<f32>()?;
/// assert!((y[0] - 1.0).abs() < 1e-4 && (y[1] - 3.0).abs() < 1e-4);
/// # Ok::<(), max::Error>(())
/// ```
#[derive(Clone, Module)]
pub struct BatchNorm2d {
    /// `[channels]`.
    pub weight: Tensor,
    /// `[channels]`.
    pub bias: Tensor,
    /// `[channels]`.
    #[module(buffer)]
    pub running_mean: Tensor,
    /// `[channels]`.
    #[module(buffer)]
    pub running_var: Tensor,
    /// Added to the variance.
    pub eps: f64,
}

impl BatchNorm2d {
    /// Weights and variances of one, biases and means of zero, `eps` of 1e-5.
    ///
    /// # Errors
    /// When there is no memory for it.
    #[track_caller]
    pub fn new(num_channels: usize) -> Result<BatchNorm2d> {
        let (ones, zeros) = (Tensor::ones([num_channels])?, Tensor::zeros([num_channels])?);
        let (weight, bias) = (ones.clone(), zeros.clone());
        Ok(BatchNorm2d { weight, bias, running_mean: zeros, running_var: ones, eps: 1e-5 })
    }
}

impl Forward for BatchNorm2d {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let of_channels = |x: &Tensor| f::unsqueeze(f::unsqueeze(x, 1)?, 2);
        let scale = f::mul(&self.weight, f::rsqrt(f::add(&self.running_var, self.eps)?)?)?;
        let centered = f::sub(x, of_channels(&self.running_mean)?)?;
        f::add(f::mul(centered, of_channels(&scale)?)?, of_channels(&self.bias)?)
    }
}
