//! [`GroupNorm`]: normalization of groups of channels.

use crate::Result;
use crate::functional as f;
use crate::nn::{Forward, Module};
use crate::tensor::Tensor;

/// `(x - mean) / sqrt(variance + eps) * weight + bias` over each group of channels of `x`, `[batch, channels, ..]` (Wu and He:
/// Group normalization, 2018).
///
/// ```
/// # extern crate max_nn as max;
/// # max_kernels::link();
/// use max::nn::{Forward, GroupNorm};
/// use max::tensor::Tensor;
///
/// let x = Tensor::constant([[[1.0f32, 3.0], [-5.0, 5.0]]])?;
/// let y = GroupNorm::new(2, 2)?.forward(&x)?.to_vec::<f32>()?;
/// assert!((y[0] + 1.0).abs() < 1e-4 && (y[3] - 1.0).abs() < 1e-4);
/// # Ok::<(), max::Error>(())
/// ```
#[derive(Clone, Module)]
pub struct GroupNorm {
    /// `[channels]`.
    pub weight: Tensor,
    /// `[channels]`.
    pub bias: Tensor,
    /// The number of groups, which divides that of channels.
    pub num_groups: i64,
    /// Added to the variance.
    pub eps: f64,
}

impl GroupNorm {
    /// Weights of one, biases of zero, `eps` of 1e-5.
    ///
    /// # Errors
    /// When there is no memory for it.
    #[track_caller]
    pub fn new(num_groups: i64, num_channels: usize) -> Result<GroupNorm> {
        let (weight, bias) = (Tensor::ones([num_channels])?, Tensor::zeros([num_channels])?);
        Ok(GroupNorm { weight, bias, num_groups, eps: 1e-5 })
    }
}

impl Forward for GroupNorm {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        f::group_norm(x, &self.weight, &self.bias, self.num_groups, self.eps)
    }
}
