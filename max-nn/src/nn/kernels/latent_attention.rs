//! Multi-head latent attention (DeepSeek-AI: DeepSeek-V2, 2024) over a paged cache, by MAX's names, as part of
//! [`kernels`](super): the keys of a layer's cache have one head of `latent + rope` elements, which is all that a token keeps.
//! Values are the latent part of keys.

use max_core::dtype::DType;
use max_core::graph::{Dim, DimSlice, GraphError, Parameters, TensorType, TensorValue, ops};

use super::ragged_attention::{attend, no_sinks, window};
use super::{KeysOrValues, MhaMaskVariant, read_at, value};
use crate::Result;
use crate::functional as f;
use crate::nn::kv_cache::PagedKvCacheValues;
use crate::tensor::Tensor;

/// Attention of the new tokens of a ragged batch over the latents that a layer of the cache holds. Each head of `input`, `[tokens, heads,
/// latent + rope]`, is a query that the matrix of keys was multiplied into, and its rotated part; `qk_rope_dim` elements are that. The
/// result is `[tokens, heads, latent]`, of which a matrix makes values. Decode and prefill are the same.
///
/// Scores are multiplied by `scale`: for heads of 128 elements and 64 rotated ones `1 / sqrt(192)`.
///
/// # Errors
/// When `input` is no value of a graph, or its type does not fit the cache, whose keys have one head; when the rotated part is all of
/// it; when there is no such layer; when a window is 0.
#[track_caller]
pub fn flare_mla_decode_ragged(
    kv_collection: &PagedKvCacheValues,
    layer: usize,
    input: &Tensor,
    mask_variant: MhaMaskVariant,
    scale: f64,
    qk_rope_dim: usize,
) -> Result<Tensor> {
    const OP: &str = "flare_mla_decode_ragged";
    let q = value(OP, "input", input)?;
    let keys = kv_collection.layer(layer)?[0].load()?;
    let sizes = match (q.shape().dims(), keys.shape().dims()) {
        ([tokens, heads, size], [_, one, _, key_size])
            if *one == 1 && size == key_size && q.dtype() == keys.dtype() =>
        {
            heads.as_static().zip(size.as_static()).map(|(heads, size)| (tokens.clone(), heads, size))
        }
        _ => None,
    };
    let Some((tokens, heads, size)) = sizes else {
        let expected = format!("[tokens, heads, latent + rope] of the dtype and the one head of {}", keys.ty());
        return Err(GraphError::argument(OP, "input", q.ty(), expected));
    };
    let latent = latent_size(OP, size, qk_rope_dim)?;
    let (causal, window, chunked) = window(OP, mask_variant)?;
    let rows = tokens.clone() * heads;
    let q = value(OP, "input", &f::reshape(input, [Dim::from(1), rows.clone(), size.into()])?)?;
    let ty = TensorType::new(q.dtype(), [Dim::from(1), rows, latent.into()], q.device());
    let parameters = Parameters::new()
        .with("scale", scale)
        .with("group", heads)
        .with("causal", causal)
        .with("window", window)
        .with("chunked", chunked);
    let sinks = no_sinks(&q)?;
    // Of the values, which are the keys, the kernel reads as many columns as the result has.
    let y = attend(OP, kv_collection, [q, keys.clone(), keys, sinks], ty, parameters)?;
    f::reshape(y, [tokens, heads.into(), latent.into()])
}

/// How tokens of sequences, cached and new ones, go through a buffer: see [`flare_mla_prefill_plan`].
#[derive(Clone)]
pub struct MlaPrefillPlan {
    /// Where the tokens of each sequence begin in the buffer, and where those of the last one end: `uint32`, `[chunks, sequences + 1]`.
    pub buffer_row_offsets: Tensor,
    /// The first token of each sequence that is in the buffer: `uint32`, `[chunks, sequences]`.
    pub cache_offsets: Tensor,
    /// The tokens in the buffer, `int32`, `[chunks]`.
    pub buffer_lengths: Tensor,
}

/// Plans how the tokens of all sequences, those in the cache and the new ones, go through a buffer of `buffer_size` rows: behind each
/// other, in `max_chunks` parts of which the last may be empty.
///
/// # Errors
/// When the buffer has no rows.
#[track_caller]
pub fn flare_mla_prefill_plan(
    kv_collection: &PagedKvCacheValues,
    buffer_size: usize,
    max_chunks: usize,
) -> Result<MlaPrefillPlan> {
    const OP: &str = "flare_mla_prefill_plan";
    let Some(rows) = i64::try_from(buffer_size).ok().filter(|rows| *rows > 0) else {
        return Err(GraphError::argument(OP, "buffer_size", buffer_size, "1 or more"));
    };
    let wide = |x: &TensorValue| f::cast(x, DType::I64);
    let (begins, cached) = (wide(&kv_collection.input_row_offsets)?, wide(&kv_collection.cache_lengths)?);
    let part = |slice: DimSlice| f::slice_tensor(&begins, [slice]);
    let new = f::sub(part(DimSlice::from(1i64..))?, part(DimSlice::from(..-1i64))?)?;
    let message = "`flare_mla_prefill_plan`: there must be an offset more than sequences in the cache";
    let new = ops::rebind(value(OP, "offsets", &new)?, kv_collection.cache_lengths.shape().clone(), message)?;
    let lengths = f::add(cached, Tensor::from(new))?;
    // Where the tokens of each sequence end, all behind each other.
    let ends = f::cumsum(&lengths, 0, false, false)?;
    let begins = f::sub(&ends, &lengths)?;
    let firsts: Vec<i64> = (0..max_chunks as i64).map(|chunk| chunk.saturating_mul(rows)).collect();
    let firsts = Tensor::constant(max_core::driver::Tensor::from_vec(firsts, [max_chunks, 1])?)?;
    let within = |x: Tensor, most: &Tensor| f::minimum(f::maximum(x, 0i64)?, most);
    let rows = Tensor::constant(rows)?;
    let zero = f::sub(&firsts, &firsts)?;
    let ends = within(f::sub(f::unsqueeze(ends, 0)?, &firsts)?, &rows)?;
    let lengths = f::unsqueeze(lengths, 0)?;
    let cache_offsets = within(f::sub(&firsts, f::unsqueeze(begins, 0)?)?, &lengths)?;
    let offsets = f::concat([&zero, &ends], 1)?;
    let last = f::max(&offsets, 1)?;
    Ok(MlaPrefillPlan {
        buffer_row_offsets: f::cast(offsets, DType::U32)?,
        cache_offsets: f::cast(cache_offsets, DType::U32)?,
        buffer_lengths: f::cast(f::squeeze(last, 1)?, DType::I32)?,
    })
}

/// The latents of a part of a plan times the transpose of a matrix, `[n, latent]`: keys or values of all heads, `[buffer size, n]`. Rows
/// behind the tokens of the buffer are 0. `buffer_row_offsets_1d` and `cache_offsets_1d` are rows of a
/// [plan](flare_mla_prefill_plan)'s tensors.
///
/// # Errors
/// When the offsets are not `uint32` of one axis; when the weight does not fit the cache, whose keys have one head; when there is no such
/// layer.
#[track_caller]
pub fn flare_mla_decompress_k_cache(
    kv_collection: &PagedKvCacheValues,
    layer: usize,
    buffer_row_offsets_1d: &Tensor,
    cache_offsets_1d: &Tensor,
    weight: &Tensor,
    buffer_size: usize,
) -> Result<Tensor> {
    const OP: &str = "flare_mla_decompress_k_cache";
    for (name, x) in [("buffer_row_offsets_1d", buffer_row_offsets_1d), ("cache_offsets_1d", cache_offsets_1d)] {
        if x.rank() != 1 || x.dtype() != DType::U32 {
            return Err(GraphError::argument(OP, name, x.ty(), "uint32 of one axis"));
        }
    }
    let graph = kv_collection.cache_lengths.graph();
    let mut part = kv_collection.clone();
    part.input_row_offsets = buffer_row_offsets_1d.in_graph(&graph)?;
    part.cache_lengths = cache_offsets_1d.in_graph(&graph)?;
    let keys = read_at(OP, &part, layer, KeysOrValues::Keys, buffer_size.into())?;
    let (shape, weight_shape) = (keys.shape(), weight.shape());
    let sizes = match (shape.dims(), weight_shape.dims()) {
        ([_, heads, size], [_, latent]) if *heads == 1 => size.as_static().zip(latent.as_static()),
        _ => None,
    };
    let Some(latent) = sizes.filter(|(size, latent)| latent <= size).map(|(_, latent)| latent) else {
        let expected = format!("[n, latent] of at most as many elements as the one head of {}", keys.ty());
        return Err(GraphError::argument(OP, "weight", weight.ty(), expected));
    };
    let latents = f::slice_tensor(f::squeeze(keys, 1)?, [DimSlice::from(..), DimSlice::from(..latent)])?;
    f::matmul(latents, f::transpose(weight, 0, 1)?)
}

#[track_caller]
fn latent_size(op: &'static str, size: i64, rope: usize) -> Result<i64> {
    match i64::try_from(rope).ok().and_then(|rope| size.checked_sub(rope)).filter(|latent| *latent > 0) {
        Some(latent) => Ok(latent),
        None => Err(GraphError::argument(op, "qk_rope_dim", rope, format!("less than {size}, the elements of a head"))),
    }
}
