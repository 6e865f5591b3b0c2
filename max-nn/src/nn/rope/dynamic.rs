//! [`DynamicRotaryEmbedding`]: a base that grows with the sequence.

use super::{RotaryEmbedding, rope_kind};
use crate::Result;
use crate::nn::Module;

/// Dynamic NTK scaling: as long as sequences fit into `max_seq_len` a [`RotaryEmbedding`]; for a longer one, the base grows so that
/// its slowest pair turns as far as before. Used as a [`RotaryEmbedding`].
///
/// ```
/// # extern crate max_nn as max;
/// # max_kernels::link();
/// use max::nn::rope::DynamicRotaryEmbedding;
///
/// let mut rope = DynamicRotaryEmbedding::new(4, 10000.0, 16)?;
/// assert!(!rope.maybe_update_freqs(16)?);
/// assert!(rope.maybe_update_freqs(64)?);
/// assert_eq!(rope.freqs_cis().shape().to_string(), "[128, 2, 2]");
/// assert!(rope.maybe_update_freqs(16)?);
/// # Ok::<(), max::Error>(())
/// ```
#[derive(Clone, Module)]
pub struct DynamicRotaryEmbedding {
    rope: RotaryEmbedding,
    /// The base of sequences of the original length.
    pub theta: f64,
    /// The longest sequence of the training.
    pub original_max_seq_len: usize,
}

impl DynamicRotaryEmbedding {
    /// For heads of `head_dim` elements.
    ///
    /// # Errors
    /// As [`RotaryEmbedding::new`].
    #[track_caller]
    pub fn new(head_dim: usize, theta: f64, max_seq_len: usize) -> Result<DynamicRotaryEmbedding> {
        let rope = RotaryEmbedding::new(head_dim, theta, max_seq_len)?;
        Ok(DynamicRotaryEmbedding { rope, theta, original_max_seq_len: max_seq_len })
    }

    /// Makes the table for sequences of that length, if the present one is not: longer ones than the present need another base,
    /// and those of the original length the original one. Whether it changed.
    ///
    /// # Errors
    /// When there is no memory for the table.
    #[track_caller]
    pub fn maybe_update_freqs(&mut self, seq_len: usize) -> Result<bool> {
        let (original, head_dim) = (self.original_max_seq_len, self.rope.head_dim);
        let interleaved = self.rope.interleaved;
        let (theta, length) = if seq_len > self.rope.max_seq_len {
            let grown = seq_len as f64 / original.max(1) as f64;
            // Heads of two elements have one pair, which the base does not change.
            let power = if head_dim > 2 { head_dim as f64 / (head_dim as f64 - 2.0) } else { 1.0 };
            (self.theta * grown.powf(power), seq_len)
        } else if seq_len <= original && self.rope.max_seq_len > original {
            (self.theta, original)
        } else {
            return Ok(false);
        };
        self.rope = RotaryEmbedding::new(head_dim, theta, length)?.interleaved(interleaved);
        Ok(true)
    }
}

rope_kind!(DynamicRotaryEmbedding);
