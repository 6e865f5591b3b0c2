//! Ops over a paged cache of keys and values, by MAX's names: what layers of attention are made of. They are for values of a
//! graph, whose inputs a [`PagedKvCacheValues`] holds.

mod float8;
mod latent_attention;
mod projections;
mod ragged;
mod ragged_attention;
mod sampling;
mod uncached_attention;

use max_core::graph::{BufferValue, Dim, GraphError, TensorType, TensorValue, Value, ops};

use crate::Result;
use crate::functional as f;
use crate::nn::kv_cache::PagedKvCacheValues;
use crate::nn::rope::RotaryAngles;
use crate::tensor::Tensor;
pub use float8::{
    convert_weights_to_fp8_fnuz_if_needed, matmul_static_scaled_float8, needs_fp8_fnuz_conversion,
    normalize_e4m3fn_to_e4m3fnuz,
};
pub use latent_attention::{
    MlaPrefillPlan, flare_mla_decode_ragged, flare_mla_decompress_k_cache, flare_mla_prefill_plan,
};
pub use projections::{
    fused_qkv_ragged_matmul, fused_qkv_ragged_matmul_quantized, fused_qkv_ragged_matmul_scaled_float8,
    matmul_k_cache_ragged, matmul_kv_cache_ragged, swish_glu, unfused_qkv_ragged_matmul_gguf_quantized,
};
pub use ragged::{
    MoeIndices, grouped_matmul_ragged, merge_ragged_tensors, moe_create_indices, sgmv_kernel, sgmv_lora_kernel,
    sgmv_qkv_lora_kernel,
};
pub use ragged_attention::{cross_attention_ragged, flash_attention_ragged};
pub use sampling::{
    Penalties, SamplingOptions, apply_penalties_to_logits, scatter_set_constant, topk_fused_sampling,
    update_frequency_data,
};
pub use uncached_attention::{flare_mla_prefill_ragged, flash_attention_gpu, flash_attention_ragged_gpu};

/// Which keys of its sequence a query sees.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum MhaMaskVariant {
    /// All.
    Null,
    /// Those up to its own position.
    #[default]
    Causal,
    /// Of those the last so many, its own included.
    SlidingWindowCausal(usize),
    /// Of those the ones in its own chunk of so many positions.
    ChunkedCausal(usize),
}

/// How [`flash_attention_ragged`] computes.
#[derive(Clone, Copy, Default)]
pub struct RaggedAttentionOptions<'a> {
    /// Which keys a query sees.
    pub mask_variant: MhaMaskVariant,
    /// What scores are multiplied by; `None` for `1 / sqrt(head size)`.
    pub scale: Option<f64>,
    /// Scores become `cap · tanh(score / cap)`.
    pub soft_cap: Option<f64>,
    /// A score more for each head, `float32`, `[heads]`, which has no value (attention sinks).
    pub sink_weights: Option<&'a Tensor>,
}

/// Queries of new tokens that are rotated, and keys that are rotated and written to a layer of the cache with their values:
/// `q` is `[tokens, heads, head size]`, `k` and `v` are `[tokens, key heads, head size]`. The queries come by the key head that
/// they use, `[key heads, tokens, heads / key heads, head size]`, as [`flash_attention_ragged`] reads them.
///
/// # Errors
/// When an operand is no value of a graph, its type does not fit the cache, or there is no such layer.
#[track_caller]
pub fn fused_qk_ragged_rope(
    kv_collection: &PagedKvCacheValues,
    layer: usize,
    [q, k, v]: [&Tensor; 3],
    angles: &RotaryAngles,
) -> Result<Tensor> {
    const OP: &str = "fused_qk_ragged_rope";
    let cache @ [keys, values] = kv_collection.layer(layer)?;
    let [q, k, v] = [value(OP, "q", q)?, value(OP, "k", k)?, value(OP, "v", v)?];
    let Heads { key_heads, group, size } = grouped(OP, cache, &q)?;
    let tokens = q.shape()[0].clone();
    for (name, x) in [("k", &k), ("v", &v)] {
        fits(OP, name, x, cache, &tokens)?;
    }
    if size < 2 * angles.pairs() as i64 {
        let expected = format!("of {} or more elements a head", 2 * angles.pairs());
        return Err(GraphError::argument(OP, "q", q.ty(), expected));
    }
    let graph = q.graph();
    let [cos, sin] = angles.tables().map(|table| table.in_graph(&graph));
    let ty = TensorType::new(q.dtype(), [Dim::from(key_heads), tokens, Dim::from(group), Dim::from(size)], q.device());
    let operands: [Value; 10] = [
        keys.into(),
        values.into(),
        q.into(),
        k.into(),
        v.into(),
        cos?.into(),
        sin?.into(),
        (&kv_collection.lookup_table).into(),
        (&kv_collection.input_row_offsets).into(),
        (&kv_collection.cache_lengths).into(),
    ];
    let device = ty.device;
    let parameters = [("interleaved", angles.interleaved())];
    one(OP, ops::inplace_custom("fused_qk_ragged_rope", device, operands, [ty], parameters)?)
}

/// Writes keys or values of new tokens, `[tokens, key heads, head size]`, to one of the two buffers of a layer of the cache.
///
/// # Errors
/// When `x` is no value of a graph, or its type does not fit the cache; when there is no such layer.
#[track_caller]
pub fn kv_cache_ragged_store(
    kv_collection: &PagedKvCacheValues,
    layer: usize,
    which: KeysOrValues,
    x: &Tensor,
) -> Result<()> {
    const OP: &str = "kv_cache_ragged_store";
    let cache = kv_collection.layer(layer)?;
    let x = value(OP, "x", x)?;
    let tokens = x.shape().first().cloned().unwrap_or(Dim::from(0));
    fits(OP, "x", &x, cache, &tokens)?;
    let device = x.device();
    let operands: [Value; 5] = [
        which.of(cache).into(),
        x.into(),
        (&kv_collection.lookup_table).into(),
        (&kv_collection.input_row_offsets).into(),
        (&kv_collection.cache_lengths).into(),
    ];
    ops::inplace_custom("kv_cache_ragged_store", device, operands, (), ())?;
    Ok(())
}

/// Which of a layer's two buffers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeysOrValues {
    /// Keys.
    Keys,
    /// Values.
    Values,
}

impl KeysOrValues {
    fn of(self, [keys, values]: &[BufferValue; 2]) -> &BufferValue {
        match self {
            KeysOrValues::Keys => keys,
            KeysOrValues::Values => values,
        }
    }
}

/// Keys or values of the new tokens as they are in a layer of the cache: `[tokens, key heads, head size]`.
///
/// # Errors
/// When there is no such layer.
#[track_caller]
pub fn kv_cache_ragged_read(kv_collection: &PagedKvCacheValues, layer: usize, which: KeysOrValues) -> Result<Tensor> {
    let tokens = kv_collection.token_lengths.shape()[0].clone();
    read_at("kv_cache_ragged_read", kv_collection, layer, which, tokens)
}

/// [`kv_cache_ragged_read`] of as many rows; those behind the new tokens are 0.
#[track_caller]
fn read_at(
    op: &'static str,
    kv_collection: &PagedKvCacheValues,
    layer: usize,
    which: KeysOrValues,
    tokens: Dim,
) -> Result<Tensor> {
    let cache = which.of(kv_collection.layer(layer)?).load()?;
    let [_, heads, _, size] = cache.shape().dims() else {
        return Err(GraphError::argument(op, "cache", cache.ty(), "of the rank of [pages, heads, page, size]"));
    };
    let ty = TensorType::new(cache.dtype(), [tokens, heads.clone(), size.clone()], cache.device());
    let operands: [Value; 4] = [
        cache.into(),
        (&kv_collection.lookup_table).into(),
        (&kv_collection.input_row_offsets).into(),
        (&kv_collection.cache_lengths).into(),
    ];
    let device = ty.device;
    one(op, ops::custom("kv_cache_ragged_read", device, operands, [ty], ())?)
}

/// The most tokens of a sequence in the cache with its new ones: `int64`, `[1]`; of no tokens the least number.
///
/// # Errors
/// When the cache has no lengths, which cannot be.
#[track_caller]
pub fn kv_cache_get_max_seq_len(kv_collection: &PagedKvCacheValues) -> Result<Tensor> {
    f::max(kv_collection.lengths_of_tokens(), 0)
}

/// Adds to keys or values of new tokens in a layer of the cache: `a` is `[tokens, key heads, head size]`, of the new tokens of the last
/// sequences, from sequence `batch_offset` on.
///
/// # Errors
/// When `a` is no value of a graph, or its type does not fit the cache; when there is no such layer.
#[track_caller]
pub fn kv_cache_ragged_radd(
    kv_collection: &PagedKvCacheValues,
    layer: usize,
    which: KeysOrValues,
    a: &Tensor,
    batch_offset: usize,
) -> Result<()> {
    const OP: &str = "kv_cache_ragged_radd";
    let cache = kv_collection.layer(layer)?;
    let a = value(OP, "a", a)?;
    let rows = a.shape().first().cloned().unwrap_or(Dim::from(0));
    fits(OP, "a", &a, cache, &rows)?;
    let tokens = kv_collection.token_lengths.shape()[0].clone();
    let ty = TensorType::new(a.dtype(), [tokens, a.shape()[1].clone(), a.shape()[2].clone()], a.device());
    let operands: [Value; 5] = [
        which.of(cache).load()?.into(),
        a.into(),
        (&kv_collection.lookup_table).into(),
        (&kv_collection.input_row_offsets).into(),
        (&kv_collection.cache_lengths).into(),
    ];
    let (device, parameters) = (ty.device, [("batch_offset", batch_offset as i64)]);
    let sum = one(OP, ops::custom("kv_cache_ragged_radd", device, operands, [ty], parameters)?)?;
    kv_cache_ragged_store(kv_collection, layer, which, &sum)
}

/// Normalizes the keys of the new tokens in a layer of the cache: each head by `gamma`, `[head size]`, or all heads of a token as
/// one row by `[key heads · head size]`. `weight_offset` is added to `gamma`.
///
/// # Errors
/// When `gamma` has another size, or there is no such layer.
#[track_caller]
pub fn rms_norm_key_cache(
    kv_collection: &PagedKvCacheValues,
    layer: usize,
    gamma: &Tensor,
    epsilon: f64,
    weight_offset: f64,
) -> Result<()> {
    let keys = kv_cache_ragged_read(kv_collection, layer, KeysOrValues::Keys)?;
    let shape = keys.shape();
    let (size, all) = (shape[2].clone(), &shape[1] * &shape[2]);
    let gamma = if weight_offset == 0.0 { gamma.clone() } else { f::add(gamma, weight_offset)? };
    let normed = match gamma.shape().dims() {
        [n] if *n == size => f::rms_norm(&keys, gamma, epsilon)?,
        [n] if *n == all => f::reshape(f::rms_norm(f::flatten(&keys, 1, 2)?, gamma, epsilon)?, shape)?,
        _ => {
            let expected = format!("[{size}], the size of a head, or [{all}], that of all");
            return Err(GraphError::argument("rms_norm_key_cache", "gamma", gamma.ty(), expected));
        }
    };
    kv_cache_ragged_store(kv_collection, layer, KeysOrValues::Keys, &normed)
}

/// The one result of a kernel.
fn one(op: &'static str, results: Vec<Value>) -> Result<Tensor> {
    match results.first() {
        Some(result) => Ok(result.tensor()?.into()),
        None => Err(GraphError::argument(op, "results", 0, "one")),
    }
}

#[track_caller]
fn value(op: &'static str, name: &'static str, x: &Tensor) -> Result<TensorValue> {
    match x.graph_value() {
        Some(value) => Ok(value.clone()),
        None => Err(GraphError::argument(op, name, "an eager tensor", "a value of the cache's graph")),
    }
}

/// How the heads of queries share those of a cache.
struct Heads {
    key_heads: i64,
    /// The queries of a token for each of them.
    group: i64,
    size: i64,
}

/// The heads of `q`, `[tokens, heads, head size]`, beside those of a cache.
#[track_caller]
fn grouped(op: &'static str, [keys, _]: &[BufferValue; 2], q: &TensorValue) -> Result<Heads> {
    let sizes = match (q.shape().dims(), keys.ty().shape().dims()) {
        ([_, heads, size], [_, key_heads, _, key_size]) if size == key_size && q.dtype() == keys.ty().dtype() => {
            heads.as_static().zip(key_heads.as_static()).zip(size.as_static())
        }
        _ => None,
    };
    match sizes {
        Some(((heads, key_heads), size)) if key_heads > 0 && heads % key_heads == 0 => {
            Ok(Heads { key_heads, group: heads / key_heads, size })
        }
        _ => {
            let expected = format!(
                "[tokens, heads, head size] of the dtype, head size and a multiple of the heads of {}",
                keys.ty()
            );
            Err(GraphError::argument(op, "q", q.ty(), expected))
        }
    }
}

/// Whether `x` is `[tokens, key heads, head size]`, as a cache keeps it.
#[track_caller]
fn fits(
    op: &'static str,
    name: &'static str,
    x: &TensorValue,
    [keys, _]: &[BufferValue; 2],
    tokens: &Dim,
) -> Result<()> {
    if let ([rows, heads, size], [_, key_heads, _, key_size]) = (x.shape().dims(), keys.ty().shape().dims())
        && (rows, heads, size) == (tokens, key_heads, key_size)
        && x.dtype() == keys.ty().dtype()
    {
        return Ok(());
    }
    let expected = format!("[{tokens}, key heads, head size] of the dtype and heads of {}", keys.ty());
    Err(GraphError::argument(op, name, x.ty(), expected))
}
