//! [`MoE`]: a mixture of experts.

use max_core::dtype::DType;
use max_core::graph::{Dim, DimSlice, GraphError, TensorValue, ops};

use super::{ExpertGroups, ScoringFunc};
use crate::Result;
use crate::functional as f;
use crate::nn::kernels::{grouped_matmul_ragged, moe_create_indices};
use crate::nn::{Activation, Forward, LayerList, Linear, Mlp, Module};
use crate::tensor::Tensor;

/// A feed-forward layer of several, of which each token of `x`, `[tokens, hidden]`, goes through a few: those that `gate` gives the
/// largest scores, weighted by the softmax of these (Shazeer et al., 2017). Scores may be sigmoids, experts may be chosen in
/// groups, and by other scores than those that weigh them (DeepSeek-AI: DeepSeek-V3, 2024). Scores are computed in the dtype of the gate's
/// weight.
///
/// In a graph, an expert multiplies the tokens that chose it, and no others: the host reads how many these are. Experts whose weights are
/// [stacked](Self::stack_experts) are multiplied by one kernel, and the host reads nothing.
///
/// ```
/// # extern crate max_nn as max;
/// # max_kernels::link();
/// use max::nn::transformer::MoE;
/// use max::nn::{Activation, Forward, Linear, Mlp};
/// use max::tensor::Tensor;
///
/// let experts = (0..4).map(|_| Mlp::new(8, 16, Activation::Silu)).collect::<Result<_, _>>()?;
/// let layer = MoE::new(Linear::new(8, 4)?.without_bias(), experts, 2, "layer_0")?;
/// assert_eq!(layer.forward(&Tensor::ones([3, 8])?)?.shape().to_string(), "[3, 8]");
/// # Ok::<(), max::Error>(())
/// ```
#[derive(Clone, Module)]
pub struct MoE {
    /// From `hidden` to a score for each expert.
    pub gate: Linear,
    /// The experts.
    pub experts: LayerList<Mlp>,
    /// The experts as one tensor for each of their layers, in place of the list.
    pub stacked: Option<StackedExperts>,
    /// How many experts a token goes through.
    pub num_experts_per_token: usize,
    /// What becomes of the gate's results.
    #[module(skip)]
    pub scoring_func: ScoringFunc,
    /// What is added to the scores of experts to choose among them, `float32` `[experts]`: the weights of those that are chosen do
    /// without it.
    pub e_score_correction_bias: Option<Tensor>,
    /// The groups that experts are in, if only those of some groups are chosen from.
    #[module(skip)]
    pub groups: Option<ExpertGroups>,
    /// Whether the weights of a token's experts are divided by their sum.
    pub norm_topk_prob: bool,
    /// What weights are multiplied by.
    pub routed_scaling_factor: f64,
    /// Another for each layer of a model: the dims of its graph are named by it.
    name: String,
}

impl MoE {
    /// Of these parts. No two layers of a model have the same name, which is of letters, digits and `_`.
    ///
    /// # Errors
    /// When a token goes through no expert, or through more than there are.
    #[track_caller]
    pub fn new(gate: Linear, experts: Vec<Mlp>, num_experts_per_token: usize, name: impl Into<String>) -> Result<MoE> {
        if num_experts_per_token == 0 || num_experts_per_token > experts.len() {
            let expected = format!("from 1 to the number of experts, {}", experts.len());
            return Err(GraphError::argument("moe", "num_experts_per_token", num_experts_per_token, expected));
        }
        let (experts, name) = (LayerList::from(experts), name.into());
        Ok(MoE {
            gate,
            experts,
            stacked: None,
            num_experts_per_token,
            scoring_func: ScoringFunc::Softmax,
            e_score_correction_bias: None,
            groups: None,
            norm_topk_prob: true,
            routed_scaling_factor: 1.0,
            name,
        })
    }

    /// Puts the weights of all experts behind each other: one copy of them, which takes the place of the list. Experts that are
    /// quantized, have biases, or differ in shape or activation stay as they are: whether they were stacked.
    ///
    /// # Errors
    /// When there is no memory for it; then the experts are as they were.
    pub fn stack_experts(&mut self) -> Result<bool> {
        let Some(stacked) = StackedExperts::of(&self.experts)? else { return Ok(false) };
        self.stacked = Some(stacked);
        self.experts = LayerList::from(Vec::new());
        Ok(true)
    }

    /// What the experts make of the tokens that chose them, `[tokens · experts per token, hidden]`, in the order of `chosen`.
    fn routed(&self, x: &Tensor, chosen: &Tensor) -> Result<Tensor> {
        let count = self.experts.len() as i64;
        let chosen = f::flatten(chosen, 0, 1)?;
        // Tokens in the order of their experts, and how many each of them has.
        let order = f::argsort(&chosen, true)?;
        let Some(graph) = order.graph_value().map(TensorValue::graph) else {
            return Err(GraphError::argument("moe", "x", "an eager tensor", "a value of a graph"));
        };
        let tokens = ops::range(&graph, 0, x.shape()[0].clone(), 1, DType::I64, x.device())?;
        let tokens = f::repeat_interleave(tokens, self.num_experts_per_token as i64, Some(0))?;
        let rows = f::gather(x, f::gather(tokens, &order, 0)?, 0)?;
        let experts = f::cast(Tensor::arange(0, count, 1)?, DType::I64)?;
        let is_of = f::equal(f::unsqueeze(chosen, 0)?, f::unsqueeze(experts, 1)?)?;
        let counts = f::squeeze(f::sum(f::cast(is_of, DType::I64)?, 1)?, 1)?;
        let names = (0..count).map(|expert| Dim::from(format!("{}_expert_{expert}", self.name).as_str()));
        let sizes = ops::to_dims(counts.in_graph(&graph)?, names.collect::<max_core::graph::Shape>())?;
        let (mut start, mut made) = (Dim::from(0), Vec::new());
        for (expert, size) in self.experts.iter().zip(sizes.iter()) {
            let stop = start.clone() + size;
            made.push(expert.call(&f::slice_tensor(&rows, [DimSlice::range(start, stop.clone())])?)?);
            start = stop;
        }
        f::gather(f::concat(made, 0)?, f::argsort(order, true)?, 0)
    }
}

impl Forward for MoE {
    fn prepare(&mut self) -> Result<()> {
        self.stack_experts().map(drop)
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.forward_rounded(x, x.dtype())
    }

    /// Experts are chosen by `x` before it is rounded.
    fn forward_rounded(&self, x: &Tensor, dtype: DType) -> Result<Tensor> {
        let (weights, chosen) = self.route(x)?;
        let rounded = &f::cast(x, dtype)?;
        if let Some(experts) = &self.stacked {
            let y = experts.routed(rounded, &f::flatten(&chosen, 0, 1)?, self.num_experts_per_token)?;
            return combined(x, &y, &weights, &chosen);
        }
        if x.graph_value().is_none() {
            // Without dims that data decide, all experts are asked.
            let mut total = f::mul(x, 0.0)?;
            for (i, expert) in self.experts.iter().enumerate() {
                let share = f::sum(f::where_(f::equal(&chosen, i as i64)?, &weights, 0.0)?, -1)?;
                total = f::add(total, f::mul(expert.call(rounded)?, f::cast(share, x.dtype())?)?)?;
            }
            return Ok(total);
        }
        let y = self.routed(rounded, &chosen)?;
        combined(x, &y, &weights, &chosen)
    }
}

/// What the experts of each token of `x` made of it, `[tokens · experts per token, hidden]`, by their weights.
fn combined(x: &Tensor, y: &Tensor, weights: &Tensor, chosen: &Tensor) -> Result<Tensor> {
    let mut dims = chosen.shape().dims().to_vec();
    dims.extend(x.shape().dims().last().cloned());
    let y = f::cast(f::reshape(y, dims)?, DType::F32)?;
    let y = f::sum(f::mul(y, f::unsqueeze(weights, -1)?)?, 1)?;
    f::cast(f::squeeze(y, 1)?, x.dtype())
}

/// Experts whose weights lie behind each other.
#[derive(Clone, Module)]
pub struct StackedExperts {
    /// `[experts, feed_forward_length, hidden]`, to be activated.
    pub gate_proj: Tensor,
    /// `[experts, hidden, feed_forward_length]`.
    pub down_proj: Tensor,
    /// `[experts, feed_forward_length, hidden]`.
    pub up_proj: Tensor,
    /// What the gate goes through.
    pub activation_function: Activation,
}

impl StackedExperts {
    /// Of experts; `None` where they do not have weights of one shape and dtype, without biases.
    fn of(experts: &LayerList<Mlp>) -> Result<Option<StackedExperts>> {
        let Some(first) = experts.first() else { return Ok(None) };
        let plain = |layer: &Linear| {
            let floats = matches!(layer.weight.dtype(), DType::F16 | DType::BF16 | DType::F32);
            floats && layer.bias.is_none() && layer.quantization_encoding.is_none()
        };
        let layers = |expert: &Mlp| [&expert.gate_proj, &expert.down_proj, &expert.up_proj].map(Clone::clone);
        for expert in experts.iter() {
            let alike =
                layers(expert).iter().zip(layers(first)).all(|(a, b)| plain(a) && a.weight.ty() == b.weight.ty());
            if !alike || expert.activation_function != first.activation_function {
                return Ok(None);
            }
        }
        let stack = |layer: fn(&Mlp) -> &Linear| -> Result<Tensor> {
            let stacked = f::stack(experts.iter().map(|expert| &layer(expert).weight), 0)?;
            stacked.realize()?;
            Ok(stacked)
        };
        Ok(Some(StackedExperts {
            gate_proj: stack(|expert| &expert.gate_proj)?,
            down_proj: stack(|expert| &expert.down_proj)?,
            up_proj: stack(|expert| &expert.up_proj)?,
            activation_function: first.activation_function,
        }))
    }

    /// What they make of the tokens of `x` that chose them, in the order of `chosen`, `[tokens · experts per token]`.
    fn routed(&self, x: &Tensor, chosen: &Tensor, per_token: usize) -> Result<Tensor> {
        let experts = self.gate_proj.shape()[0].as_static().and_then(|count| usize::try_from(count).ok());
        let indices = moe_create_indices(chosen, experts.unwrap_or_default())?;
        let grouped = |x: &Tensor, weight: &Tensor| {
            let weight = match x.graph_value() {
                Some(value) => weight.in_graph(&value.graph())?.into(),
                None => weight.clone(),
            };
            grouped_matmul_ragged(x, &weight, &indices.expert_start_indices, &indices.expert_ids)
        };
        let tokens = f::cast(f::div(&indices.token_expert_order, per_token as i64)?, DType::I32)?;
        let rows = f::gather(x, tokens, 0)?;
        let gate = self.activation_function.apply(grouped(&rows, &self.gate_proj)?)?;
        let y = grouped(&f::mul(gate, grouped(&rows, &self.up_proj)?)?, &self.down_proj)?;
        f::gather(y, &indices.restore_token_order, 0)
    }
}
