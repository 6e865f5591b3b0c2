//! [`DeepseekYarnRotaryEmbedding`]: YaRN as DeepSeek's models use it.

use super::{RotaryEmbedding, inverse_frequencies, rope_kind, yarn_frequencies, yarn_magnitude};
use crate::Result;
use crate::nn::Module;

/// How DeepSeek's models stretch the embedding.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct DeepseekYarnRopeScalingParams {
    /// What slow frequencies are divided by.
    pub scaling_factor: f64,
    /// The longest sequence of the training.
    pub original_max_position_embeddings: usize,
    /// Frequencies that turn more often within the original length stay.
    pub beta_fast: f64,
    /// Frequencies that turn less often within the original length are divided.
    pub beta_slow: f64,
    /// How cosines and sines grow with the logarithm of the factor.
    pub mscale: f64,
    /// How the scale of attention does.
    pub mscale_all_dim: f64,
}

/// [`YarnRotaryEmbedding`](super::YarnRotaryEmbedding) with two magnitudes: of cosines and sines, and of attention's scale. `head_dim`
/// is that of the rotated part of a head. Used as a [`RotaryEmbedding`].
///
/// ```
/// # extern crate max_nn as max;
/// # max_kernels::link();
/// use max::nn::rope::{DeepseekYarnRopeScalingParams, DeepseekYarnRotaryEmbedding};
///
/// let scaling = DeepseekYarnRopeScalingParams {
///     scaling_factor: 40.0, original_max_position_embeddings: 4096, beta_fast: 32.0, beta_slow: 1.0, mscale: 1.0, mscale_all_dim: 1.0,
/// };
/// let rope = DeepseekYarnRotaryEmbedding::new(64, 10000.0, 16, Some(scaling))?;
/// let m = 0.1 * 40f64.ln() + 1.0;
/// assert!((rope.compute_scale(None) - m * m / 8.0).abs() < 1e-12);
/// # Ok::<(), max::Error>(())
/// ```
#[derive(Clone, Module)]
pub struct DeepseekYarnRotaryEmbedding {
    rope: RotaryEmbedding,
    /// How it is stretched, if it is.
    #[module(skip)]
    pub scaling_params: Option<DeepseekYarnRopeScalingParams>,
}

impl DeepseekYarnRotaryEmbedding {
    /// For heads of which `head_dim` elements are rotated.
    ///
    /// # Errors
    /// As [`RotaryEmbedding::new`].
    #[track_caller]
    pub fn new(
        head_dim: usize,
        theta: f64,
        max_seq_len: usize,
        scaling_params: Option<DeepseekYarnRopeScalingParams>,
    ) -> Result<DeepseekYarnRotaryEmbedding> {
        let (mut inv_freq, mut of_table, mut of_scale) = (inverse_frequencies(head_dim, theta)?, 1.0, 1.0);
        if let Some(scaling) = scaling_params {
            let (factor, betas) = (scaling.scaling_factor, (scaling.beta_fast, scaling.beta_slow));
            inv_freq =
                yarn_frequencies((head_dim, theta), factor, betas, scaling.original_max_position_embeddings, true)?;
            of_scale = yarn_magnitude(factor, scaling.mscale_all_dim);
            of_table = yarn_magnitude(factor, scaling.mscale) / of_scale;
        }
        let angle = |position: usize, i: usize| position as f64 * inv_freq[i];
        let mut rope = RotaryEmbedding::with_table(head_dim, max_seq_len, of_table, angle)?;
        rope.scale *= of_scale * of_scale;
        Ok(DeepseekYarnRotaryEmbedding { rope, scaling_params })
    }
}

rope_kind!(DeepseekYarnRotaryEmbedding);
