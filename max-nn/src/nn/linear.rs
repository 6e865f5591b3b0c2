//! [`Linear`]: `y = x Wᵀ + b`.

use crate::functional as f;
use crate::nn::{Forward, Module};
use crate::tensor::Tensor;
use crate::{Result, random};

/// A linear transformation: `y = x Wᵀ + b`, of `x`, `[.., in_dim]`, to `[.., out_dim]`, with `weight` `[out_dim, in_dim]` and
/// `bias` `[out_dim]`.
///
/// ```
/// # extern crate max_nn as max;
/// # max_kernels::link();
/// use max::nn::{Forward, Linear};
/// use max::tensor::Tensor;
///
/// let layer = Linear {
///     weight: Tensor::constant([[1.0f32, 2.0], [0.0, -1.0], [3.0, 0.5]])?,
///     bias: Some(Tensor::constant([0.0f32, 1.0, 0.0])?),
/// };
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
        Ok(Linear { weight, bias: Some(random::uniform([out_dim], -bound..bound)?) })
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
        let y = f::matmul(x, f::transpose(weight, 0, 1)?)?;
        match &self.bias {
            Some(bias) => f::add(y, bias),
            None => Ok(y),
        }
    }
}
