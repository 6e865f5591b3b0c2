//! [`RmsNorm`]: normalization of the last axis by its root mean square.

use max_core::dtype::DType;

use crate::Result;
use crate::functional as f;
use crate::nn::{Forward, Module};
use crate::tensor::Tensor;

/// `x / sqrt(mean(x²) + eps) * (weight + weight_offset)` along the last axis (Zhang and Sennrich: Root mean square layer
/// normalization, 2019). It is computed in `float32`.
///
/// ```
/// # extern crate max_nn as max;
/// # max_kernels::link();
/// use max::nn::{Forward, RmsNorm};
/// use max::tensor::Tensor;
///
/// let y = RmsNorm::new(2)?.forward(&Tensor::constant([[3.0f32, 3.0]])?)?.to_vec::<f32>()?;
/// assert!((y[0] - 1.0).abs() < 1e-4);
/// # Ok::<(), max::Error>(())
/// ```
#[derive(Clone, Module)]
pub struct RmsNorm {
    /// `[dim]`.
    pub weight: Tensor,
    /// Added to the mean of the squares.
    pub eps: f64,
    /// Added to the weight: 1 in models whose weights are stored around 0.
    pub weight_offset: f64,
    /// Whether half types are multiplied by the weight before they are rounded (Gemma), or after (Llama).
    pub multiply_before_cast: bool,
}

impl RmsNorm {
    /// Weights of one, `eps` of 1e-6, multiplied before the result is rounded.
    ///
    /// # Errors
    /// When there is no memory for it.
    #[track_caller]
    pub fn new(dim: usize) -> Result<RmsNorm> {
        Ok(RmsNorm { weight: Tensor::ones([dim])?, eps: 1e-6, weight_offset: 0.0, multiply_before_cast: true })
    }
}

impl Forward for RmsNorm {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let weight = f::cast(&self.weight, x.dtype())?;
        let weight = if self.weight_offset == 0.0 { weight } else { f::add(weight, self.weight_offset)? };
        if self.multiply_before_cast || x.dtype() == DType::F32 {
            f::rms_norm(x, weight, self.eps)
        } else {
            f::mul(f::rms_norm(x, Tensor::ones_like(&weight)?, self.eps)?, weight)
        }
    }
}
