//! [`Llama3RotaryEmbedding`]: slow frequencies divided by a factor.

use std::f64::consts::PI;

use super::{RotaryEmbedding, inverse_frequencies, rope_kind};
use crate::Result;
use crate::nn::Module;

/// How Llama 3.1 and later stretch the embedding.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Llama3RopeScalingParams {
    /// What slow frequencies are divided by.
    pub factor: f64,
    /// Waves longer than `orig_max_position` divided by this are slow.
    pub low_freq_factor: f64,
    /// Waves shorter than `orig_max_position` divided by this stay.
    pub high_freq_factor: f64,
    /// The longest sequence of the training.
    pub orig_max_position: usize,
}

impl Llama3RopeScalingParams {
    /// The frequency of each pair of heads of `head_dim` elements.
    ///
    /// # Errors
    /// When `head_dim` is odd or 0.
    #[track_caller]
    pub fn frequencies(&self, head_dim: usize, theta: f64) -> Result<Vec<f64>> {
        let Llama3RopeScalingParams { factor, low_freq_factor, high_freq_factor, orig_max_position } = *self;
        let mut inv_freq = inverse_frequencies(head_dim, theta)?;
        for freq in &mut inv_freq {
            // How often the wave repeats within the sequences of the training.
            let turns = orig_max_position as f64 * *freq / (2.0 * PI);
            let smooth = if low_freq_factor == high_freq_factor {
                f64::from(u8::from(turns >= low_freq_factor))
            } else {
                ((turns - low_freq_factor) / (high_freq_factor - low_freq_factor)).clamp(0.0, 1.0)
            };
            *freq = (1.0 - smooth) * *freq / factor + smooth * *freq;
        }
        Ok(inv_freq)
    }
}

/// Llama 3's rotary embedding: frequencies of long waves are divided by a factor, those of short ones stay, and those between are
/// interpolated. Used as a [`RotaryEmbedding`].
///
/// ```
/// # extern crate max_nn as max;
/// # max_kernels::link();
/// use max::nn::rope::{Llama3RopeScalingParams, Llama3RotaryEmbedding};
///
/// let scaling = Llama3RopeScalingParams { factor: 8.0, low_freq_factor: 1.0, high_freq_factor: 4.0, orig_max_position: 8192 };
/// let rope = Llama3RotaryEmbedding::new(64, 500000.0, 16, Some(scaling))?;
/// assert_eq!(rope.freqs_cis().shape().to_string(), "[32, 32, 2]");
/// # Ok::<(), max::Error>(())
/// ```
#[derive(Clone, Module)]
pub struct Llama3RotaryEmbedding {
    rope: RotaryEmbedding,
    /// How it is stretched, if it is.
    #[module(skip)]
    pub scaling_params: Option<Llama3RopeScalingParams>,
}

impl Llama3RotaryEmbedding {
    /// For heads of `head_dim` elements.
    ///
    /// # Errors
    /// As [`RotaryEmbedding::new`].
    #[track_caller]
    pub fn new(
        head_dim: usize,
        theta: f64,
        max_seq_len: usize,
        scaling_params: Option<Llama3RopeScalingParams>,
    ) -> Result<Llama3RotaryEmbedding> {
        let inv_freq = match &scaling_params {
            Some(scaling) => scaling.frequencies(head_dim, theta)?,
            None => inverse_frequencies(head_dim, theta)?,
        };
        let angle = |position: usize, i: usize| position as f64 * inv_freq[i];
        Ok(Llama3RotaryEmbedding {
            rope: RotaryEmbedding::with_table(head_dim, max_seq_len, 1.0, angle)?,
            scaling_params,
        })
    }
}

rope_kind!(Llama3RotaryEmbedding);
