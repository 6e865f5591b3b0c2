//! [`LayerNorm`]: normalization of the last axis.

use crate::Result;
use crate::functional as f;
use crate::nn::{Forward, Module};
use crate::tensor::Tensor;

/// `(x - mean) / sqrt(variance + eps) * weight + bias` along the last axis (Ba, Kiros and Hinton: Layer normalization, 2016).
///
/// ```
/// # extern crate max_nn as max;
/// # max_kernels::link();
/// use max::nn::{Forward, LayerNorm};
/// use max::tensor::Tensor;
///
/// let y = LayerNorm::new(2)?.forward(&Tensor::constant([[1.0f32, 3.0]])?)?.to_vec::<f32>()?;
/// assert!((y[0] + 1.0).abs() < 1e-4 && (y[1] - 1.0).abs() < 1e-4);
/// # Ok::<(), max::Error>(())
/// ```
#[derive(Clone, Module)]
pub struct LayerNorm {
    /// `[dims]`.
    pub weight: Tensor,
    /// `[dims]`.
    pub bias: Option<Tensor>,
    /// Added to the variance.
    pub eps: f64,
}

impl LayerNorm {
    /// Weights of one, biases of zero, `eps` of 1e-5.
    ///
    /// # Errors
    /// When there is no memory for it.
    #[track_caller]
    pub fn new(dims: usize) -> Result<LayerNorm> {
        Ok(LayerNorm { weight: Tensor::ones([dims])?, bias: Some(Tensor::zeros([dims])?), eps: 1e-5 })
    }

    /// This layer without a bias.
    #[must_use]
    pub fn without_bias(self) -> LayerNorm {
        LayerNorm { bias: None, ..self }
    }
}

impl Forward for LayerNorm {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        match &self.bias {
            Some(bias) => f::layer_norm(x, &self.weight, bias, self.eps),
            None => f::layer_norm(x, &self.weight, Tensor::zeros_like(&self.weight)?, self.eps),
        }
    }
}
