//! [`RaggedAttention`]: attention of a ragged batch whose positions, if any, are in its tokens already.

use max_core::dtype::DType;
use max_core::graph::GraphError;

use super::attention_impl::as_cached;
use super::{AttentionImpl, AttentionStep};
use crate::Result;
use crate::functional as f;
use crate::nn::attention::{projections, split_heads};
use crate::nn::kernels::{
    KeysOrValues, MhaMaskVariant, RaggedAttentionOptions, flash_attention_gpu, flash_attention_ragged,
    kv_cache_ragged_store,
};
use crate::nn::kv_cache::KvCacheParams;
use crate::nn::{Forward, Linear, Module};
use crate::tensor::Tensor;

/// Attention of `x`, `[tokens, hidden]`, over a cache, without rotary embeddings: as of models whose embeddings have positions, such as
/// GPT-2's, or of encoders, which see all tokens ([`MhaMaskVariant::Null`]). With fewer heads of keys, neighbouring heads share one
/// (Ainslie et al.: GQA, 2023).
///
/// ```
/// # extern crate max_nn as max;
/// # max_kernels::link();
/// use max::nn::kernels::MhaMaskVariant;
/// use max::nn::transformer::RaggedAttention;
/// use max::nn::Forward;
/// use max::tensor::Tensor;
///
/// let mut layer = RaggedAttention::new(MhaMaskVariant::Causal, 32, 4, 2, 8)?;
/// layer.q_proj.bias = Some(Tensor::zeros([32])?);
/// layer.clip_qkv = Some(0.1);
/// // Without a cache, tokens are one sequence.
/// assert_eq!(layer.forward(&Tensor::ones([5, 32])?)?.shape().to_string(), "[5, 32]");
/// # Ok::<(), max::Error>(())
/// ```
#[derive(Clone, Module)]
pub struct RaggedAttention {
    /// From `hidden` to `heads · head_dim`.
    pub q_proj: Linear,
    /// From `hidden` to `key heads · head_dim`.
    pub k_proj: Linear,
    /// From `hidden` to `key heads · head_dim`.
    pub v_proj: Linear,
    /// From `heads · head_dim` to `hidden`.
    pub o_proj: Linear,
    /// The number of heads.
    pub num_attention_heads: usize,
    /// The number of heads of keys and values, which divides that of heads.
    pub num_key_value_heads: usize,
    /// The elements of a head.
    pub head_dim: usize,
    /// Which keys a query sees, unless the step has a window.
    #[module(skip)]
    pub mask_variant: MhaMaskVariant,
    /// What scores are multiplied by.
    pub scale: f64,
    /// Weights of queries, keys and values are taken as between `-clip_qkv` and `clip_qkv`.
    #[module(skip)]
    pub clip_qkv: Option<f64>,
}

impl RaggedAttention {
    /// Layers without biases.
    ///
    /// # Errors
    /// When the heads of keys do not divide the heads; when there is no memory for it.
    #[track_caller]
    pub fn new(
        mask_variant: MhaMaskVariant,
        hidden: usize,
        heads: usize,
        key_heads: usize,
        head_dim: usize,
    ) -> Result<RaggedAttention> {
        let [q_proj, k_proj, v_proj, o_proj] = projections("ragged_attention", hidden, [heads, key_heads], head_dim)?;
        Ok(RaggedAttention {
            q_proj,
            k_proj,
            v_proj,
            o_proj,
            num_attention_heads: heads,
            num_key_value_heads: key_heads,
            head_dim,
            mask_variant,
            scale: 1.0 / (head_dim.max(1) as f64).sqrt(),
            clip_qkv: None,
        })
    }

    /// The rows of the weights of queries, keys and values, clipped: `[(heads + 2 · key heads) · head_dim, hidden]`, as
    /// [`fused_qkv_ragged_matmul`](crate::nn::kernels::fused_qkv_ragged_matmul) takes them.
    ///
    /// # Errors
    /// When there is a `clip_qkv` and a weight is quantized; when there is no memory for it.
    #[track_caller]
    pub fn wqkv(&self) -> Result<Tensor> {
        let [q, k, v] = [&self.q_proj, &self.k_proj, &self.v_proj].map(|linear| self.clipped(linear));
        f::concat([q?.weight, k?.weight, v?.weight], 0)
    }

    /// A layer with clipped weights. Of a graph they are computed once, when it is built.
    #[track_caller]
    fn clipped(&self, linear: &Linear) -> Result<Linear> {
        let Some(clip) = self.clip_qkv else { return Ok(linear.clone()) };
        if let Some(encoding) = linear.quantization_encoding {
            let found = format!("{clip}, with weights in {encoding}");
            return Err(GraphError::argument(
                "ragged_attention",
                "clip_qkv",
                found,
                "none: these have no numbers to clip",
            ));
        }
        Ok(Linear { weight: f::maximum(f::minimum(&linear.weight, clip)?, -clip)?, ..linear.clone() })
    }

    /// What a projection makes of `x`, as `[tokens, heads, head_dim]`.
    #[track_caller]
    fn projected(&self, linear: &Linear, x: &Tensor, heads: usize) -> Result<Tensor> {
        split_heads(&self.clipped(linear)?.call(x)?, heads, self.head_dim)
    }

    #[track_caller]
    fn heads(&self, x: &Tensor) -> Result<[Tensor; 3]> {
        if x.rank() != 2 {
            return Err(GraphError::argument("ragged_attention", "x", x.ty(), "of the rank of [tokens, hidden]"));
        }
        Ok([
            self.projected(&self.q_proj, x, self.num_attention_heads)?,
            self.projected(&self.k_proj, x, self.num_key_value_heads)?,
            self.projected(&self.v_proj, x, self.num_key_value_heads)?,
        ])
    }

    /// Of tokens that are one sequence.
    #[track_caller]
    fn alone(&self, x: &Tensor, mask_variant: MhaMaskVariant) -> Result<Tensor> {
        let [q, k, v] = self.heads(x)?.map(|x| f::unsqueeze(x, 0));
        let y = flash_attention_gpu(&q?, &k?, &v?, mask_variant, Some(self.scale), None)?;
        self.o_proj.call(&f::flatten(f::squeeze(y, 0)?, 1, 2)?)
    }
}

impl Forward for RaggedAttention {
    /// Attention of tokens that are one sequence, without a cache.
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.alone(x, self.mask_variant)
    }
}

impl AttentionImpl for RaggedAttention {
    fn kv_params(&self, dtype: DType) -> KvCacheParams {
        KvCacheParams::new(dtype, self.num_key_value_heads, self.head_dim)
    }

    #[track_caller]
    fn attend(&self, x: &Tensor, step: AttentionStep<'_>) -> Result<Tensor> {
        let mask_variant = step.window.map_or(self.mask_variant, MhaMaskVariant::SlidingWindowCausal);
        let Some(cache) = step.cache else { return self.alone(x, mask_variant) };
        let [q, k, v] = as_cached(cache, step.layer, self.heads(x)?)?;
        kv_cache_ragged_store(cache, step.layer, KeysOrValues::Keys, &k)?;
        kv_cache_ragged_store(cache, step.layer, KeysOrValues::Values, &v)?;
        let options = RaggedAttentionOptions { mask_variant, scale: Some(self.scale), ..Default::default() };
        let y = flash_attention_ragged(cache, step.layer, &q, options)?;
        self.o_proj.call(&f::cast(y, x.dtype())?)
    }
}
