//! [`TransformerBlock`]: attention and a feed-forward layer, each around a residual.

use max_core::dtype::DType;

use super::{AttentionImpl, AttentionStep, AttentionWithRope};
use crate::Result;
use crate::functional as f;
use crate::module::run_hooks;
use crate::nn::{Forward, Module, RmsNorm};
use crate::tensor::Tensor;

/// A layer of a [`Transformer`](super::Transformer): `h = x + attention(norm(x))`, then `h + mlp(norm(h))`. Each of the norms may
/// be missing; models that normalize what is added to the residual have one behind the layer as well.
#[derive(Module)]
pub struct TransformerBlock<A = AttentionWithRope> {
    /// Before attention.
    pub input_layernorm: Option<RmsNorm>,
    /// Attention.
    pub self_attn: A,
    /// Of what attention adds.
    pub attention_output_norm: Option<RmsNorm>,
    /// Before the feed-forward layer; its name is the one that Llama's weights have.
    pub post_attention_layernorm: Option<RmsNorm>,
    /// The feed-forward layer: an [`Mlp`](crate::nn::Mlp), an [`MoE`](super::MoE) or one of your own.
    pub mlp: Box<dyn Forward>,
    /// Of what the feed-forward layer adds.
    pub mlp_output_norm: Option<RmsNorm>,
    /// What both are multiplied by before they are added.
    pub residual_multiplier: f64,
    /// Which of the model's rotary embeddings it uses.
    pub rope: usize,
    /// How many tokens a token sees, itself included; all before it where there is no window.
    #[module(skip)]
    pub sliding_window: Option<usize>,
}

impl<A: AttentionImpl> TransformerBlock<A> {
    /// A layer of those parts, without norms of what they add.
    pub fn new(
        self_attn: A,
        mlp: Box<dyn Forward>,
        input_layernorm: RmsNorm,
        post_attention_layernorm: RmsNorm,
    ) -> TransformerBlock<A> {
        TransformerBlock {
            input_layernorm: Some(input_layernorm),
            self_attn,
            attention_output_norm: None,
            post_attention_layernorm: Some(post_attention_layernorm),
            mlp,
            mlp_output_norm: None,
            residual_multiplier: 1.0,
            rope: 0,
            sliding_window: None,
        }
    }

    /// What `x`, `[tokens, hidden]`, becomes. Attention and the feed-forward layer compute in `dtype`; norms and what is added up have the
    /// dtype of `x`, which may be `float32` where `dtype` is of 16 bits.
    ///
    /// # Errors
    /// Those of the parts.
    #[track_caller]
    pub fn step(&self, x: &Tensor, dtype: DType, step: AttentionStep<'_>) -> Result<Tensor> {
        let residual = x.dtype();
        let attended = self.self_attn.attend(&f::cast(normalized(&self.input_layernorm, x)?, dtype)?, step)?;
        let x = self.added(x, normalized(&self.attention_output_norm, &f::cast(attended, residual)?)?)?;
        let seen = normalized(&self.post_attention_layernorm, &x)?;
        let fed = run_hooks(&self.mlp, &seen, self.mlp.forward_rounded(&seen, dtype)?)?;
        self.added(&x, normalized(&self.mlp_output_norm, &f::cast(fed, residual)?)?)
    }

    fn added(&self, x: &Tensor, more: Tensor) -> Result<Tensor> {
        let more = if self.residual_multiplier == 1.0 { more } else { f::mul(more, self.residual_multiplier)? };
        f::add(x, more)
    }
}

fn normalized(norm: &Option<RmsNorm>, x: &Tensor) -> Result<Tensor> {
    norm.as_ref().map_or_else(|| Ok(x.clone()), |norm| norm.call(x))
}
