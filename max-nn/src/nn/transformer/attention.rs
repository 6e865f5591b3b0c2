//! [`AttentionWithRope`]: attention of a decoder's layer.

use max_core::dtype::DType;
use max_core::graph::Dim;
use max_core::graph::ops::AttentionOptions;

use super::attention_impl::as_cached;
use super::{AttentionImpl, AttentionStep};
use crate::Result;
use crate::functional as f;
use crate::nn::attention::{projections, split_heads};
use crate::nn::kernels::{MhaMaskVariant, RaggedAttentionOptions, flash_attention_ragged, fused_qk_ragged_rope};
use crate::nn::kv_cache::KvCacheParams;
use crate::nn::{Forward, Linear, Module, RmsNorm};
use crate::tensor::Tensor;

/// Causal attention of `x`, `[tokens, hidden]`, whose queries and keys are rotated by their positions, over a cache. With fewer
/// heads of keys, neighbouring heads share one (Ainslie et al.: GQA, 2023).
///
/// ```
/// # extern crate max_nn as max;
/// # max_kernels::link();
/// use max::nn::rope::RotaryFrequencies;
/// use max::nn::transformer::{AttentionImpl, AttentionStep, AttentionWithRope};
/// use max::tensor::Tensor;
///
/// let layer = AttentionWithRope::new(32, 4, 2, 8)?;
/// let angles = RotaryFrequencies::new(8, 10000.0)?.angles(&Tensor::arange(0i64, 5i64, 1i64)?, 5)?;
/// let step = AttentionStep { angles: &angles, cache: None, window: None, mask: None, layer: 0 };
/// assert_eq!(layer.attend(&Tensor::ones([5, 32])?, step)?.shape().to_string(), "[5, 32]");
/// # Ok::<(), max::Error>(())
/// ```
#[derive(Clone, Module)]
pub struct AttentionWithRope {
    /// From `hidden` to `heads · head_dim`.
    pub q_proj: Linear,
    /// From `hidden` to `key heads · head_dim`.
    pub k_proj: Linear,
    /// From `hidden` to `key heads · head_dim`.
    pub v_proj: Linear,
    /// From `heads · head_dim` to `hidden`.
    pub o_proj: Linear,
    /// Normalizes queries before they are rotated: each head, or all of them as one row, by the size of its weight.
    pub q_norm: Option<RmsNorm>,
    /// The same of keys.
    pub k_norm: Option<RmsNorm>,
    /// The number of heads.
    pub num_attention_heads: usize,
    /// The number of heads of keys and values, which divides that of heads.
    pub num_key_value_heads: usize,
    /// The elements of a head.
    pub head_dim: usize,
    /// What scores are multiplied by.
    pub scale: f64,
}

impl AttentionWithRope {
    /// Layers without biases or norms.
    ///
    /// # Errors
    /// When the heads of keys do not divide the heads; when there is no memory for it.
    #[track_caller]
    pub fn new(hidden: usize, heads: usize, key_heads: usize, head_dim: usize) -> Result<AttentionWithRope> {
        let [q_proj, k_proj, v_proj, o_proj] =
            projections("attention_with_rope", hidden, [heads, key_heads], head_dim)?;
        Ok(AttentionWithRope {
            q_proj,
            k_proj,
            v_proj,
            o_proj,
            q_norm: None,
            k_norm: None,
            num_attention_heads: heads,
            num_key_value_heads: key_heads,
            head_dim,
            scale: 1.0 / (head_dim.max(1) as f64).sqrt(),
        })
    }

    /// Attention of the heads of a sequence, as `[new, heads · head_dim]`.
    fn scored(&self, q: Tensor, k: Tensor, v: Tensor, mask: Option<&Tensor>) -> Result<Tensor> {
        let options = AttentionOptions { scale: Some(self.scale), causal: true, queries_last: true };
        let y = match mask {
            Some(mask) => f::attention_masked(q, k, v, mask, options)?,
            None => f::attention(q, k, v, options)?,
        };
        f::flatten(f::transpose(y, 0, 1)?, 1, 2)
    }

    /// `[tokens, heads · head_dim]` as `[tokens, heads, head_dim]`, normalized.
    fn heads(&self, x: Tensor, heads: usize, norm: &Option<RmsNorm>) -> Result<Tensor> {
        let of_head = |norm: &&RmsNorm| norm.weight.shape().dims() == [Dim::from(self.head_dim)];
        let whole = norm.as_ref().filter(|norm| heads > 1 && !of_head(norm));
        let x = whole.map_or(Ok(x.clone()), |norm| norm.call(&x))?;
        let x = split_heads(&x, heads, self.head_dim)?;
        match norm {
            Some(norm) if whole.is_none() => norm.call(&x),
            _ => Ok(x),
        }
    }
}

impl AttentionImpl for AttentionWithRope {
    fn kv_params(&self, dtype: DType) -> KvCacheParams {
        KvCacheParams::new(dtype, self.num_key_value_heads, self.head_dim)
    }

    #[track_caller]
    fn attend(&self, x: &Tensor, step: AttentionStep<'_>) -> Result<Tensor> {
        let q = self.heads(self.q_proj.call(x)?, self.num_attention_heads, &self.q_norm)?;
        let k = self.heads(self.k_proj.call(x)?, self.num_key_value_heads, &self.k_norm)?;
        let v = self.heads(self.v_proj.call(x)?, self.num_key_value_heads, &None)?;
        if let Some(cache) = step.cache {
            let mask_variant = step.window.map_or(MhaMaskVariant::Causal, MhaMaskVariant::SlidingWindowCausal);
            let options = RaggedAttentionOptions { mask_variant, scale: Some(self.scale), ..Default::default() };
            let [q, k, v] = as_cached(cache, step.layer, [q, k, v])?;
            let q = fused_qk_ragged_rope(cache, step.layer, [&q, &k, &v], step.angles)?;
            let y = flash_attention_ragged(cache, step.layer, &q, options)?;
            return self.o_proj.call(&f::cast(y, x.dtype())?);
        }
        let [q, k, v] = [step.angles.apply(&q)?, step.angles.apply(&k)?, v];
        let by_head = |x: &Tensor| f::transpose(x, 0, 1);
        self.o_proj.call(&self.scored(by_head(&q)?, by_head(&k)?, by_head(&v)?, step.mask)?)
    }
}
