//! [`Embedding`]: rows of a table, by index.

use max_core::graph::quantization::QuantizationEncoding;

use crate::functional as f;
use crate::nn::{Forward, Module};
use crate::tensor::Tensor;
use crate::{Result, random};

/// A table of vectors: `y[i] = weight[x[i]]`, of integers `[..]` to `[.., hidden_dim]`, with `weight` `[vocab_size, hidden_dim]`.
///
/// With a `quantization_encoding`, `weight` is bytes of blocks, `[vocab_size, hidden_dim / elements_per_block * block_size]`: the rows
/// that are looked up are dequantized, to `float32`.
///
/// ```
/// # extern crate max_nn as max;
/// # max_kernels::link();
/// use max::nn::{Embedding, Forward};
/// use max::tensor::Tensor;
///
/// let table = Embedding { weight: Tensor::constant([[0.0f32, 1.0], [2.0, 3.0], [4.0, 5.0]])?, quantization_encoding: None };
/// let y = table.forward(&Tensor::constant([2i64, 0])?)?;
/// assert_eq!(y.to_vec::<f32>()?, [4.0, 5.0, 0.0, 1.0]);
/// # Ok::<(), max::Error>(())
/// ```
#[derive(Clone, Module)]
pub struct Embedding {
    /// `[vocab_size, hidden_dim]`.
    pub weight: Tensor,
    /// How the blocks of `weight` are quantized; `None` where it has numbers.
    pub quantization_encoding: Option<QuantizationEncoding>,
}

impl Embedding {
    /// A table of normally distributed vectors.
    ///
    /// # Errors
    /// When there is no memory for it.
    #[track_caller]
    pub fn new(vocab_size: usize, hidden_dim: usize) -> Result<Embedding> {
        Ok(Embedding { weight: random::normal([vocab_size, hidden_dim], 0.0, 1.0)?, quantization_encoding: None })
    }
}

impl Forward for Embedding {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let rows = f::gather(&self.weight, x, 0)?;
        match self.quantization_encoding {
            Some(encoding) => f::dequantize(encoding, rows),
            None => Ok(rows),
        }
    }
}
