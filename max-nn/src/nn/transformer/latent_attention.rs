//! [`LatentAttentionWithRope`]: attention whose keys and values come of one latent a token.

use max_core::dtype::DType;
use max_core::graph::ops::AttentionOptions;
use max_core::graph::{Dim, DimSlice, GraphError, Shape};

use super::attention_impl::as_cached;
use super::{AttentionImpl, AttentionStep};
use crate::Result;
use crate::functional as f;
use crate::nn::kernels::{KeysOrValues, MhaMaskVariant, flare_mla_decode_ragged, kv_cache_ragged_store};
use crate::nn::kv_cache::KvCacheParams;
use crate::nn::{Forward, Linear, Module, RmsNorm};
use crate::random;
use crate::tensor::Tensor;

/// The sizes of a [`LatentAttentionWithRope`], by the names that DeepSeek's configurations have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LatentDims {
    /// The elements of a token's vector.
    pub hidden_size: usize,
    /// The heads.
    pub num_attention_heads: usize,
    /// The rank of the queries' matrix, if it is a product of two.
    pub q_lora_rank: Option<usize>,
    /// The elements of a latent.
    pub kv_lora_rank: usize,
    /// The elements of a head's queries and keys that are not rotated.
    pub qk_nope_head_dim: usize,
    /// Those that are, of keys the same for all heads.
    pub qk_rope_head_dim: usize,
    /// The elements of a head's values.
    pub v_head_dim: usize,
}

impl LatentDims {
    /// The elements of a head's queries.
    pub fn qk_head_dim(&self) -> usize {
        self.qk_nope_head_dim + self.qk_rope_head_dim
    }

    /// What a token keeps: its latent, and the rotated part of its keys.
    pub fn cached(&self) -> usize {
        self.kv_lora_rank + self.qk_rope_head_dim
    }
}

/// Where the queries of a [`LatentAttentionWithRope`] come from.
#[derive(Clone, Module)]
pub enum LatentQueries {
    /// A matrix.
    Full {
        /// From `hidden` to `heads · (nope + rope)`.
        q_proj: Linear,
    },
    /// A product of two, with a norm between.
    LowRank {
        /// From `hidden` to the rank.
        q_a_proj: Linear,
        /// Between the two.
        q_a_layernorm: RmsNorm,
        /// From the rank to `heads · (nope + rope)`.
        q_b_proj: Linear,
    },
}

impl Forward for LatentQueries {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        match self {
            LatentQueries::Full { q_proj } => q_proj.call(x),
            LatentQueries::LowRank { q_a_proj, q_a_layernorm, q_b_proj } => {
                q_b_proj.call(&q_a_layernorm.call(&q_a_proj.call(x)?)?)
            }
        }
    }
}

/// Causal multi-head latent attention of `x`, `[tokens, hidden]` (DeepSeek-AI: DeepSeek-V2, 2024): the cache keeps of a token a latent and
/// a rotated key that all heads share, and no values. The matrix of keys is multiplied into the queries and that of values into what
/// attention gives, so that latents are read as they are.
///
/// ```
/// # extern crate max_nn as max;
/// # max_kernels::link();
/// use max::nn::rope::RotaryFrequencies;
/// use max::nn::transformer::{AttentionImpl, AttentionStep, LatentAttentionWithRope, LatentDims};
/// use max::tensor::Tensor;
///
/// let layer = LatentAttentionWithRope::new(LatentDims {
///     hidden_size: 32,
///     num_attention_heads: 4,
///     q_lora_rank: Some(12),
///     kv_lora_rank: 16,
///     qk_nope_head_dim: 8,
///     qk_rope_head_dim: 4,
///     v_head_dim: 6,
/// })?;
/// let angles = RotaryFrequencies::new(4, 10000.0)?.interleaved(true).angles(&Tensor::arange(0i64, 5i64, 1i64)?, 5)?;
/// let step = AttentionStep { angles: &angles, cache: None, window: None, mask: None, layer: 0 };
/// assert_eq!(layer.attend(&Tensor::ones([5, 32])?, step)?.shape().to_string(), "[5, 32]");
/// # Ok::<(), max::Error>(())
/// ```
#[derive(Clone, Module)]
pub struct LatentAttentionWithRope {
    /// From `hidden` to the queries of all heads.
    #[module(name = "")]
    pub queries: LatentQueries,
    /// From `hidden` to a token's latent, and behind it the key that is rotated.
    pub kv_a_proj_with_mqa: Linear,
    /// Normalizes latents.
    pub kv_a_layernorm: RmsNorm,
    /// From a latent to keys and values: `[heads · (nope + value), latent]`, the keys of each head before its values.
    #[module(name = "kv_b_proj.weight")]
    pub kv_b_proj: Tensor,
    /// From `heads · value` to `hidden`.
    pub o_proj: Linear,
    /// Its sizes.
    #[module(skip)]
    pub dims: LatentDims,
    /// What scores are multiplied by.
    pub scale: f64,
}

impl LatentAttentionWithRope {
    /// Layers without biases.
    ///
    /// # Errors
    /// When a size is 0; when there is no memory for it.
    #[track_caller]
    pub fn new(dims: LatentDims) -> Result<LatentAttentionWithRope> {
        let LatentDims { hidden_size: hidden, num_attention_heads: heads, kv_lora_rank: latent, .. } = dims;
        let sizes = [hidden, heads, dims.q_lora_rank.unwrap_or(1), latent, dims.qk_nope_head_dim];
        if sizes.contains(&0) || dims.qk_rope_head_dim == 0 || dims.v_head_dim == 0 {
            return Err(GraphError::argument("latent_attention", "dims", format!("{dims:?}"), "sizes of 1 or more"));
        }
        let linear = |from: usize, to: usize| Linear::new(from, to).map(Linear::without_bias);
        let width = heads * dims.qk_head_dim();
        let bound = 1.0 / (latent as f64).sqrt();
        Ok(LatentAttentionWithRope {
            queries: match dims.q_lora_rank {
                None => LatentQueries::Full { q_proj: linear(hidden, width)? },
                Some(rank) => LatentQueries::LowRank {
                    q_a_proj: linear(hidden, rank)?,
                    q_a_layernorm: RmsNorm::new(rank)?,
                    q_b_proj: linear(rank, width)?,
                },
            },
            kv_a_proj_with_mqa: linear(hidden, dims.cached())?,
            kv_a_layernorm: RmsNorm::new(latent)?,
            kv_b_proj: random::uniform([heads * (dims.qk_nope_head_dim + dims.v_head_dim), latent], -bound..bound)?,
            o_proj: linear(heads * dims.v_head_dim, hidden)?,
            dims,
            scale: 1.0 / (dims.qk_head_dim() as f64).sqrt(),
        })
    }

    /// The matrices of keys and of values, `[heads, nope or value, latent]`.
    fn kv_b(&self, like: &Tensor) -> Result<[Tensor; 2]> {
        let weight = match like.graph_value() {
            Some(value) => self.kv_b_proj.in_graph(&value.graph())?.into(),
            None => self.kv_b_proj.clone(),
        };
        let LatentDims { num_attention_heads: heads, qk_nope_head_dim: nope, v_head_dim, kv_lora_rank, .. } = self.dims;
        let weight = f::reshape(weight, [heads, nope + v_head_dim, kv_lora_rank])?;
        let rows = |rows: DimSlice| f::slice_tensor(&weight, [DimSlice::from(..), rows]);
        Ok([rows(DimSlice::from(..nope as i64))?, rows(DimSlice::from(nope as i64..))?])
    }
}

/// The first `at` elements of the last axis, and the others.
fn parted(x: &Tensor, at: usize) -> Result<[Tensor; 2]> {
    let part = |slice: DimSlice| f::slice_tensor(x, (DimSlice::Ellipsis, slice));
    Ok([part(DimSlice::from(..at as i64))?, part(DimSlice::from(at as i64..))?])
}

/// The first two axes in the other order: tokens by head, and back.
fn turned(x: &Tensor) -> Result<Tensor> {
    f::transpose(x, 0, 1)
}

impl AttentionImpl for LatentAttentionWithRope {
    fn kv_params(&self, dtype: DType) -> KvCacheParams {
        KvCacheParams { is_mla: true, ..KvCacheParams::new(dtype, 1, self.dims.cached()) }
    }

    #[track_caller]
    fn attend(&self, x: &Tensor, step: AttentionStep<'_>) -> Result<Tensor> {
        let LatentDims { num_attention_heads: heads, qk_nope_head_dim: nope, kv_lora_rank: latent, .. } = self.dims;
        let q = self.queries.call(x)?;
        let dims = q.shape().dims()[..1].iter().cloned().chain([Dim::from(heads), Dim::from(self.dims.qk_head_dim())]);
        let [q, q_rope] = parted(&f::reshape(&q, dims.collect::<Shape>())?, nope)?;
        let [latents, k_rope] = parted(&self.kv_a_proj_with_mqa.call(x)?, latent)?;
        let latents = f::unsqueeze(self.kv_a_layernorm.call(&latents)?, 1)?;
        let k_rope = step.angles.apply(&f::unsqueeze(k_rope, 1)?)?;
        let [of_keys, of_values] = self.kv_b(x)?;
        let q = turned(&f::matmul(turned(&q)?, of_keys)?)?;
        let q = f::concat([q, step.angles.apply(&q_rope)?], -1)?;
        let keys = f::concat([latents.clone(), k_rope], -1)?;
        let y = match step.cache {
            Some(cache) => {
                let mask = step.window.map_or(MhaMaskVariant::Causal, MhaMaskVariant::SlidingWindowCausal);
                let [q, keys] = as_cached(cache, step.layer, [q, keys])?;
                kv_cache_ragged_store(cache, step.layer, KeysOrValues::Keys, &keys)?;
                let rope = self.dims.qk_rope_head_dim;
                let y = flare_mla_decode_ragged(cache, step.layer, &q, mask, self.scale, rope)?;
                turned(&f::cast(y, x.dtype())?)?
            }
            None => {
                let options = AttentionOptions { scale: Some(self.scale), causal: true, queries_last: true };
                let [q, keys, latents] = [turned(&q)?, turned(&keys)?, turned(&latents)?];
                match step.mask {
                    Some(mask) => f::attention_masked(q, keys, latents, mask, options)?,
                    None => f::attention(q, keys, latents, options)?,
                }
            }
        };
        let y = f::matmul(y, f::transpose(of_values, 1, 2)?)?;
        self.o_proj.call(&f::flatten(turned(&y)?, 1, 2)?)
    }
}
