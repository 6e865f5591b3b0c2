//! [`AttentionImpl`]: what a decoder's layer asks of its attention.

use max_core::dtype::DType;

use crate::Result;
use crate::functional as f;
use crate::nn::kv_cache::{KvCacheParams, PagedKvCacheValues};
use crate::nn::rope::RotaryAngles;
use crate::nn::{Field, Module};
use crate::tensor::Tensor;

/// What a layer's attention takes beside the tokens: it is the same for all layers of a kind.
#[derive(Clone, Copy)]
pub struct AttentionStep<'a> {
    /// How queries and keys are rotated.
    pub angles: &'a RotaryAngles,
    /// The sequences whose tokens lie behind each other, with keys and values of earlier tokens; without it, all tokens are one
    /// sequence from its beginning.
    pub cache: Option<&'a PagedKvCacheValues>,
    /// How many tokens a token sees, itself included; all before it where there is no window.
    pub window: Option<usize>,
    /// Without a cache, what is added to the scores, `[tokens, tokens]`: negative infinity where a key is outside of the window.
    pub mask: Option<&'a Tensor>,
    /// Which of the cache's layers this is.
    pub layer: usize,
}

/// Attention of a [`TransformerBlock`](super::TransformerBlock): an [`AttentionWithRope`](super::AttentionWithRope), a
/// [`LatentAttentionWithRope`](super::LatentAttentionWithRope), a [`RaggedAttention`](super::RaggedAttention), or one of your own.
pub trait AttentionImpl: Module + Field + 'static {
    /// What a token leaves in the cache of a layer, in `dtype`.
    fn kv_params(&self, dtype: DType) -> KvCacheParams;

    /// What `x`, `[tokens, hidden]`, becomes: the same shape and dtype. The cache may have another dtype
    /// ([`PagedKvCacheValues::dtype`]), to which queries, keys and values are then converted.
    ///
    /// # Errors
    /// When dtype or shape of `x` do not fit, or the cache has no such layer.
    #[track_caller]
    fn attend(&self, x: &Tensor, step: AttentionStep<'_>) -> Result<Tensor>;
}

/// Queries, keys and values in the dtype of a layer of the cache.
#[track_caller]
pub(super) fn as_cached<const N: usize>(
    cache: &PagedKvCacheValues,
    layer: usize,
    heads: [Tensor; N],
) -> Result<[Tensor; N]> {
    let dtype = cache.dtype(layer)?;
    let mut cached = heads;
    for x in &mut cached {
        *x = f::cast(&*x, dtype)?;
    }
    Ok(cached)
}
