//! [`SharedExpertMoE`]: a mixture of experts beside one that all tokens go through.

use max_core::dtype::DType;

use super::MoE;
use crate::Result;
use crate::functional as f;
use crate::module::run_hooks;
use crate::nn::{Forward, Linear, Mlp, Module};
use crate::tensor::Tensor;

/// `moe(x) + sigmoid(gate(x)) · shared(x)` of `x`, `[tokens, hidden]`; without a gate, the shared expert has a weight of one (Dai et
/// al.: DeepSeekMoE, 2024).
///
/// ```
/// # extern crate max_nn as max;
/// # max_kernels::link();
/// use max::nn::transformer::{MoE, SharedExpertMoE};
/// use max::nn::{Activation, Forward, Linear, Mlp};
/// use max::tensor::Tensor;
///
/// let experts = (0..4).map(|_| Mlp::new(8, 16, Activation::Silu)).collect::<Result<_, _>>()?;
/// let layer = SharedExpertMoE {
///     experts: MoE::new(Linear::new(8, 4)?.without_bias(), experts, 2, "layer_0")?,
///     shared_expert: Mlp::new(8, 32, Activation::Silu)?,
///     shared_expert_gate: Some(Linear::new(8, 1)?.without_bias()),
/// };
/// assert_eq!(layer.forward(&Tensor::ones([3, 8])?)?.shape().to_string(), "[3, 8]");
/// # Ok::<(), max::Error>(())
/// ```
#[derive(Clone, Module)]
pub struct SharedExpertMoE {
    /// The experts that tokens choose.
    #[module(name = "")]
    pub experts: MoE,
    /// The expert of all tokens.
    pub shared_expert: Mlp,
    /// From `hidden` to one number.
    pub shared_expert_gate: Option<Linear>,
}

impl Forward for SharedExpertMoE {
    fn prepare(&mut self) -> Result<()> {
        self.experts.prepare()
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.forward_rounded(x, x.dtype())
    }

    fn forward_rounded(&self, x: &Tensor, dtype: DType) -> Result<Tensor> {
        let rounded = f::cast(x, dtype)?;
        let shared = self.shared_expert.call(&rounded)?;
        let shared = match &self.shared_expert_gate {
            Some(gate) => f::mul(f::sigmoid(gate.call(&rounded)?)?, shared)?,
            None => shared,
        };
        f::add(run_hooks(&self.experts, x, self.experts.forward_rounded(x, dtype)?)?, shared)
    }
}
