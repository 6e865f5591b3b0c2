//! [`Mlp`]: the gated feed-forward layer of transformers.

use crate::Result;
use crate::functional as f;
use crate::nn::{Activation, Forward, Linear, Module};
use crate::tensor::Tensor;

/// A multi-layer perceptron of three linear layers: `down(activation(gate(x)) * up(x))`, of `[.., hidden_dim]` to the same
/// (Shazeer: GLU variants improve transformer, 2020).
///
/// ```
/// # extern crate max_nn as max;
/// # max_kernels::link();
/// use max::nn::{Activation, Forward, Mlp, ModuleExt};
/// use max::tensor::Tensor;
///
/// let layer = Mlp::new(8, 32, Activation::Silu)?;
/// assert_eq!(layer.num_parameters(), 3 * 8 * 32);
/// assert_eq!(layer.forward(&Tensor::ones([2, 8])?)?.shape().to_string(), "[2, 8]");
/// # Ok::<(), max::Error>(())
/// ```
#[derive(Clone, Module)]
pub struct Mlp {
    /// From `hidden_dim` to `feed_forward_length`, to be activated.
    pub gate_proj: Linear,
    /// From `feed_forward_length` back.
    pub down_proj: Linear,
    /// From `hidden_dim` to `feed_forward_length`.
    pub up_proj: Linear,
    /// What the gate goes through.
    pub activation_function: Activation,
}

impl Mlp {
    /// Layers without biases.
    ///
    /// # Errors
    /// When there is no memory for it.
    #[track_caller]
    pub fn new(hidden_dim: usize, feed_forward_length: usize, activation_function: Activation) -> Result<Mlp> {
        Ok(Mlp {
            gate_proj: Linear::new(hidden_dim, feed_forward_length)?.without_bias(),
            down_proj: Linear::new(feed_forward_length, hidden_dim)?.without_bias(),
            up_proj: Linear::new(hidden_dim, feed_forward_length)?.without_bias(),
            activation_function,
        })
    }
}

impl Forward for Mlp {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let gate = self.activation_function.apply(self.gate_proj.call(x)?)?;
        self.down_proj.call(&f::mul(gate, self.up_proj.call(x)?)?)
    }
}
