//! [`YarnRotaryEmbedding`]: YaRN.

use super::{RotaryEmbedding, inverse_frequencies, rope_kind, yarn_frequencies, yarn_magnitude};
use crate::Result;
use crate::nn::Module;

/// How YaRN stretches the embedding.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct YarnScalingParams {
    /// What slow frequencies are divided by.
    pub factor: f64,
    /// Frequencies that turn more often within the original length stay.
    pub beta_fast: f64,
    /// Frequencies that turn less often within the original length are divided.
    pub beta_slow: f64,
    /// The longest sequence of the training.
    pub original_max_position_embeddings: usize,
    /// Whether the ends of the ramp are whole pairs.
    pub truncate: bool,
}

impl YarnScalingParams {
    /// The frequency of each pair of heads of `head_dim` elements.
    ///
    /// # Errors
    /// When `head_dim` is odd or 0.
    #[track_caller]
    pub fn frequencies(&self, head_dim: usize, theta: f64) -> Result<Vec<f64>> {
        let (betas, length) = ((self.beta_fast, self.beta_slow), self.original_max_position_embeddings);
        yarn_frequencies((head_dim, theta), self.factor, betas, length, self.truncate)
    }

    /// What cosines and sines are multiplied by.
    pub fn magnitude(&self) -> f64 {
        yarn_magnitude(self.factor, 1.0)
    }
}

/// YaRN (Peng et al.: YaRN, efficient context window extension, 2023): fast frequencies stay, slow ones are divided by a factor, with
/// a ramp between; cosines and sines are multiplied by `0.1 ln(factor) + 1`. Used as a [`RotaryEmbedding`].
///
/// ```
/// # extern crate max_nn as max;
/// # max_kernels::link();
/// use max::nn::rope::{YarnRotaryEmbedding, YarnScalingParams};
///
/// let scaling = YarnScalingParams {
///     factor: 4.0, beta_fast: 32.0, beta_slow: 1.0, original_max_position_embeddings: 4096, truncate: true,
/// };
/// let rope = YarnRotaryEmbedding::new(64, 10000.0, 16, Some(scaling))?;
/// let first = rope.freqs_cis().i((0, 0, 0))?.item::<f32>()?;
/// assert!((first - (0.1 * 4f32.ln() + 1.0)).abs() < 1e-6);
/// # Ok::<(), max::Error>(())
/// ```
#[derive(Clone, Module)]
pub struct YarnRotaryEmbedding {
    rope: RotaryEmbedding,
    /// How it is stretched, if it is.
    #[module(skip)]
    pub scaling_params: Option<YarnScalingParams>,
}

impl YarnRotaryEmbedding {
    /// For heads of `head_dim` elements.
    ///
    /// # Errors
    /// As [`RotaryEmbedding::new`].
    #[track_caller]
    pub fn new(
        head_dim: usize,
        theta: f64,
        max_seq_len: usize,
        scaling_params: Option<YarnScalingParams>,
    ) -> Result<YarnRotaryEmbedding> {
        let (inv_freq, magnitude) = match scaling_params {
            None => (inverse_frequencies(head_dim, theta)?, 1.0),
            Some(scaling) => (scaling.frequencies(head_dim, theta)?, scaling.magnitude()),
        };
        let angle = |position: usize, i: usize| position as f64 * inv_freq[i];
        let rope = RotaryEmbedding::with_table(head_dim, max_seq_len, magnitude, angle)?;
        Ok(YarnRotaryEmbedding { rope, scaling_params })
    }
}

rope_kind!(YarnRotaryEmbedding);
