//! [`Activation`]: activation functions by name.

use max_core::graph::ops::GeluApproximation;

use crate::Result;
use crate::functional as f;
use crate::tensor::{Operand, Tensor};

/// An activation function.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Activation {
    /// x · sigmoid(x).
    #[default]
    Silu,
    /// x · Φ(x).
    Gelu,
    /// [`Gelu`](Self::Gelu), approximated by a hyperbolic tangent.
    GeluTanh,
    /// The larger of 0 and x.
    Relu,
    /// The hyperbolic tangent.
    Tanh,
    /// 1 / (1 + exp(-x)).
    Sigmoid,
}

impl Activation {
    /// The function of each element.
    ///
    /// # Errors
    /// When the operand is not a float tensor.
    #[track_caller]
    pub fn apply(self, x: impl Into<Operand>) -> Result<Tensor> {
        match self {
            Activation::Silu => f::silu(x),
            Activation::Gelu => f::gelu(x, GeluApproximation::None),
            Activation::GeluTanh => f::gelu(x, GeluApproximation::Tanh),
            Activation::Relu => f::relu(x),
            Activation::Tanh => f::tanh(x),
            Activation::Sigmoid => f::sigmoid(x),
        }
    }
}
