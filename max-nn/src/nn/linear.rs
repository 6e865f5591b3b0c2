//! [`Linear`]: `y = x Wᵀ + b`.

use max_core::dtype::DType;
use max_core::graph::quantization::QuantizationEncoding;

use crate::functional as f;
use crate::nn::{Forward, InputOrder, Module};
use crate::tensor::Tensor;
use crate::{Result, random};

/// A linear transformation: `y = x Wᵀ + b`, of `x`, `[.., in_dim]`, to `[.., out_dim]`, with `weight` `[out_dim, in_dim]` and
/// `bias` `[out_dim]`.
///
/// With a `quantization_encoding`, `weight` is bytes of blocks, `[out_dim, in_dim / elements_per_block * block_size]`, which are
/// multiplied as they lie (see [`qmatmul`](f::qmatmul)), in the order of `input_order` if there is one.
/// [`load_state_dict`](crate::nn::ModuleExt::load_state_dict) sets all of them from a file with quantized weights.
///
/// ```
/// # extern crate max_nn as max;
/// # max_kernels::link();
/// use max::nn::{Forward, Linear};
/// use max::tensor::Tensor;
///
/// let weight = Tensor::constant([[1.0f32, 2.0], [0.0, -1.0], [3.0, 0.5]])?;
/// let layer = Linear { bias: Some(Tensor::constant([0.0f32, 1.0, 0.0])?), ..Linear::of(weight) };
/// let y = layer.forward(&Tensor::constant([[2.0f32, 4.0]])?)?;
/// assert_eq!(y.to_vec::<f32>()?, [10.0, -3.0, 8.0]);
/// # Ok::<(), max::Error>(())
/// ```
#[derive(Clone, Module)]
pub struct Linear {
    /// `[out_dim, in_dim]`.
    pub weight: Tensor,
    /// `[out_dim]`.
    pub bias: Option<Tensor>,
    /// How the blocks of `weight` are quantized; `None` where it has numbers.
    pub quantization_encoding: Option<QuantizationEncoding>,
    /// The order in which blocks take the elements of `x`.
    pub input_order: InputOrder,
}

impl Linear {
    /// A layer with a bias, its parameters uniformly distributed between `±1 / sqrt(in_dim)`.
    ///
    /// # Errors
    /// When there is no memory for it.
    #[track_caller]
    pub fn new(in_dim: usize, out_dim: usize) -> Result<Linear> {
        let bound = 1.0 / (in_dim.max(1) as f64).sqrt();
        let weight = random::uniform([out_dim, in_dim], -bound..bound)?;
        let bias = Some(random::uniform([out_dim], -bound..bound)?);
        Ok(Linear { bias, ..Linear::of(weight) })
    }

    /// A layer of a weight, without a bias.
    pub fn of(weight: Tensor) -> Linear {
        Linear { weight, bias: None, quantization_encoding: None, input_order: InputOrder(None) }
    }

    /// A layer of a quantized weight, without a bias: bytes of blocks.
    pub fn quantized(weight: Tensor, encoding: QuantizationEncoding) -> Linear {
        Linear { quantization_encoding: Some(encoding), ..Linear::of(weight) }
    }

    /// This layer without a bias.
    #[must_use]
    pub fn without_bias(self) -> Linear {
        Linear { bias: None, ..self }
    }
}

impl Forward for Linear {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        // In a graph, the constant is the weight as it lies, and its transpose a view there.
        let weight = match x.graph_value() {
            Some(value) => self.weight.in_graph(&value.graph())?.into(),
            None => self.weight.clone(),
        };
        let y = match self.quantization_encoding {
            // Blocks are multiplied in `float32`.
            Some(encoding) => {
                let ordered = match &self.input_order.0 {
                    Some(order) => &f::gather(x, order, -1)?,
                    None => x,
                };
                f::cast(f::qmatmul(encoding, f::cast(ordered, DType::F32)?, weight)?, x.dtype())?
            }
            None => f::matmul(x, f::transpose(weight, 0, 1)?)?,
        };
        match &self.bias {
            Some(bias) => f::add(y, bias),
            None => Ok(y),
        }
    }
}
