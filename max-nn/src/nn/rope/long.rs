//! [`LongRoPERotaryEmbedding`]: LongRoPE, as Phi-3.5 uses it.

use max_core::graph::GraphError;

use super::{RotaryEmbedding, inverse_frequencies, rope_kind};
use crate::Result;
use crate::nn::Module;

/// How LongRoPE stretches the embedding.
#[derive(Clone, PartialEq, Debug)]
pub struct LongRoPEScalingParams {
    /// What the frequency of each pair is divided by, for positions of the original length.
    pub short_factor: Vec<f64>,
    /// And for those beyond.
    pub long_factor: Vec<f64>,
    /// The longest sequence of the training.
    pub original_max_position: usize,
    /// The longest sequence now.
    pub max_position_embeddings: usize,
}

impl LongRoPEScalingParams {
    /// What cosines and sines are multiplied by.
    pub fn magnitude(&self) -> f64 {
        let (now, original) = (self.max_position_embeddings as f64, self.original_max_position as f64);
        let grown = now > original && original > 1.0;
        if grown { (1.0 + (now / original).ln() / original.ln()).sqrt() } else { 1.0 }
    }
}

/// LongRoPE (Ding et al., 2024): the frequency of each pair is divided by a factor of its own, of which there is one list for
/// positions of the original length, and one for those beyond. Used as a [`RotaryEmbedding`].
///
/// ```
/// # extern crate max_nn as max;
/// # max_kernels::link();
/// use max::nn::rope::{LongRoPERotaryEmbedding, LongRoPEScalingParams};
///
/// let scaling = LongRoPEScalingParams {
///     short_factor: vec![1.0; 2], long_factor: vec![4.0; 2], original_max_position: 8, max_position_embeddings: 32,
/// };
/// let rope = LongRoPERotaryEmbedding::new(4, 10000.0, 32, Some(scaling))?;
/// let cos = |position: isize| rope.freqs_cis().i((position, 0, 0))?.item::<f32>();
/// assert!((cos(7)? - 7f32.cos()).abs() < 1e-6 && (cos(8)? - 2f32.cos()).abs() < 1e-6);
/// # Ok::<(), max::Error>(())
/// ```
#[derive(Clone, Module)]
pub struct LongRoPERotaryEmbedding {
    rope: RotaryEmbedding,
    /// How it is stretched, if it is.
    #[module(skip)]
    pub scaling_params: Option<LongRoPEScalingParams>,
}

impl LongRoPERotaryEmbedding {
    /// For heads of `head_dim` elements.
    ///
    /// # Errors
    /// As [`RotaryEmbedding::new`]; when there is not one factor for each pair.
    #[track_caller]
    pub fn new(
        head_dim: usize,
        theta: f64,
        max_seq_len: usize,
        scaling_params: Option<LongRoPEScalingParams>,
    ) -> Result<LongRoPERotaryEmbedding> {
        let inv_freq = inverse_frequencies(head_dim, theta)?;
        let rope = match &scaling_params {
            None => RotaryEmbedding::with_table(head_dim, max_seq_len, 1.0, |p, i| p as f64 * inv_freq[i])?,
            Some(scaling) => {
                for factors in [&scaling.short_factor, &scaling.long_factor] {
                    if factors.len() != inv_freq.len() || factors.contains(&0.0) {
                        let expected = format!("{} numbers, none 0: one for each pair", inv_freq.len());
                        let given = format!("{factors:?}");
                        return Err(GraphError::argument("rotary_embedding", "factors", given, expected));
                    }
                }
                let mut rope = RotaryEmbedding::with_table(head_dim, max_seq_len, 1.0, |position, i| {
                    let is_short = position < scaling.original_max_position;
                    let factors = if is_short { &scaling.short_factor } else { &scaling.long_factor };
                    position as f64 * inv_freq[i] / factors[i]
                })?;
                rope.scale *= scaling.magnitude();
                rope
            }
        };
        Ok(LongRoPERotaryEmbedding { rope, scaling_params })
    }
}

rope_kind!(LongRoPERotaryEmbedding);
