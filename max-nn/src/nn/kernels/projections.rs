//! Products of a ragged batch with the weights of queries, keys and values, of which keys and values go to a paged cache; by MAX's
//! names, as part of [`kernels`](super). Each is made of the product and of
//! [`kv_cache_ragged_store`](super::kv_cache_ragged_store).

use max_core::dtype::DType;
use max_core::graph::quantization::QuantizationEncoding;
use max_core::graph::{Dim, GraphError, ops};

use super::{KeysOrValues, kv_cache_ragged_store, value};
use crate::Result;
use crate::functional as f;
use crate::nn::kv_cache::PagedKvCacheValues;
use crate::nn::{Forward, InputOrder, Linear};
use crate::tensor::Tensor;

/// The queries of new tokens, `[tokens, n_heads · head size]`, whose keys and values are written to a layer of the cache: `input` is
/// `[tokens, hidden]`, and `wqkv` the rows of queries, keys and values,
/// `[(n_heads + 2 · key heads) · head size, hidden]`, with a `bias` of as many.
///
/// # Errors
/// When an operand is no value of the cache's graph, its type does not fit the cache, or there is no such layer.
#[track_caller]
pub fn fused_qkv_ragged_matmul(
    kv_collection: &PagedKvCacheValues,
    layer: usize,
    input: &Tensor,
    wqkv: &Tensor,
    n_heads: usize,
    bias: Option<&Tensor>,
) -> Result<Tensor> {
    stored(kv_collection, layer, Linear { bias: bias.cloned(), ..Linear::of(wqkv.clone()) }.forward(input)?, n_heads)
}

/// As [`fused_qkv_ragged_matmul`], with rows of quantized blocks, such as those of GPTQ, which take `input` in an order of their own if
/// there is one.
///
/// # Errors
/// As [`fused_qkv_ragged_matmul`]; when the bytes are no whole blocks.
#[track_caller]
pub fn fused_qkv_ragged_matmul_quantized(
    kv_collection: &PagedKvCacheValues,
    layer: usize,
    input: &Tensor,
    (wqkv, encoding): (&Tensor, QuantizationEncoding),
    n_heads: usize,
    input_order: Option<&Tensor>,
    bias: Option<&Tensor>,
) -> Result<Tensor> {
    let input_order = InputOrder(input_order.cloned());
    let linear = Linear { bias: bias.cloned(), input_order, ..Linear::quantized(wqkv.clone(), encoding) };
    stored(kv_collection, layer, linear.forward(input)?, n_heads)
}

/// As [`fused_qkv_ragged_matmul`], of 8-bit floats of one dtype with scales, as [`ops::dynamic_scaled_matmul`] takes them: of `input` one,
/// `[1, tokens]`, or one for each part of a row, `[parts, tokens]`; of `wqkv` one, `[rows, 1]`, or one for each of its blocks. Results are of
/// the dtype of the cache.
///
/// # Errors
/// As [`fused_qkv_ragged_matmul`], and as [`ops::dynamic_scaled_matmul`].
#[track_caller]
pub fn fused_qkv_ragged_matmul_scaled_float8(
    kv_collection: &PagedKvCacheValues,
    layer: usize,
    [input, wqkv]: [&Tensor; 2],
    n_heads: usize,
    [input_scale, weight_scale]: [&Tensor; 2],
    bias: Option<&Tensor>,
) -> Result<Tensor> {
    const OP: &str = "fused_qkv_ragged_matmul_scaled_float8";
    let [keys, _] = kv_collection.layer(layer)?;
    let (dtype, graph) = (keys.ty().dtype(), kv_collection.cache_lengths.graph());
    let [x, weight, of_x, of_weight] = [
        value(OP, "input", input)?,
        wqkv.in_graph(&graph)?,
        input_scale.in_graph(&graph)?,
        weight_scale.in_graph(&graph)?,
    ];
    let all = Tensor::from(ops::dynamic_scaled_matmul(x, weight, of_x, of_weight, DType::F32)?);
    let all = match bias {
        Some(bias) => f::add(all, f::cast(bias, DType::F32)?)?,
        None => all,
    };
    stored(kv_collection, layer, f::cast(all, dtype)?, n_heads)
}

/// As [`fused_qkv_ragged_matmul`], with a quantized weight for each of queries, keys and values: bytes of blocks, as
/// [`Linear`] has them.
///
/// # Errors
/// As [`fused_qkv_ragged_matmul`]; when the bytes are no whole blocks.
#[track_caller]
pub fn unfused_qkv_ragged_matmul_gguf_quantized(
    kv_collection: &PagedKvCacheValues,
    layer: usize,
    input: &Tensor,
    [q, k, v]: [(&Tensor, QuantizationEncoding); 3],
) -> Result<Tensor> {
    let product = |(weight, encoding): (&Tensor, QuantizationEncoding)| {
        Linear::quantized(weight.clone(), encoding).forward(input)
    };
    store(kv_collection, layer, KeysOrValues::Keys, &product(k)?)?;
    store(kv_collection, layer, KeysOrValues::Values, &product(v)?)?;
    product(q)
}

/// Writes keys and values of new tokens to a layer of the cache: `hidden_states` is `[tokens, hidden]`, and `weight` the rows of keys and
/// values, `[2 · key heads · head size, hidden]`.
///
/// # Errors
/// As [`fused_qkv_ragged_matmul`].
#[track_caller]
pub fn matmul_kv_cache_ragged(
    kv_collection: &PagedKvCacheValues,
    layer: usize,
    hidden_states: &Tensor,
    weight: &Tensor,
) -> Result<()> {
    fused_qkv_ragged_matmul(kv_collection, layer, hidden_states, weight, 0, None).map(drop)
}

/// Writes keys of new tokens to a layer of the cache: `weight` is `[key heads · head size, hidden]`.
///
/// # Errors
/// As [`fused_qkv_ragged_matmul`].
#[track_caller]
pub fn matmul_k_cache_ragged(
    kv_collection: &PagedKvCacheValues,
    layer: usize,
    hidden_states: &Tensor,
    weight: &Tensor,
) -> Result<()> {
    let linear = Linear::of(weight.clone());
    store(kv_collection, layer, KeysOrValues::Keys, &linear.forward(hidden_states)?)
}

/// `silu(a b0ᵀ) · (a b1ᵀ)`, of `a`, `[rows, hidden]`, and `b0` and `b1`, `[out, hidden]`.
///
/// # Errors
/// When the types do not fit.
#[track_caller]
pub fn swish_glu(a: &Tensor, b0: &Tensor, b1: &Tensor) -> Result<Tensor> {
    let product = |b: &Tensor| Linear::of(b.clone()).forward(a);
    f::mul(f::silu(product(b0)?)?, product(b1)?)
}

/// The queries of the rows of all three; keys and values are written.
#[track_caller]
fn stored(kv_collection: &PagedKvCacheValues, layer: usize, all: Tensor, n_heads: usize) -> Result<Tensor> {
    let [key_heads, size] = heads(kv_collection, layer)?;
    let (queries, keys) = (Dim::from(n_heads) * &size, &key_heads * &size);
    let [q, k, v] = parts(f::split(all, [queries, keys.clone(), keys], -1)?)?;
    store(kv_collection, layer, KeysOrValues::Keys, &k)?;
    store(kv_collection, layer, KeysOrValues::Values, &v)?;
    Ok(q)
}

/// The heads of a layer of the cache, and their size.
#[track_caller]
fn heads(kv_collection: &PagedKvCacheValues, layer: usize) -> Result<[Dim; 2]> {
    let [keys, _] = kv_collection.layer(layer)?;
    match keys.ty().shape().dims() {
        [_, heads, _, size] => Ok([heads.clone(), size.clone()]),
        _ => Err(GraphError::argument("fused_qkv_ragged_matmul", "cache", keys.ty(), "[pages, heads, page, size]")),
    }
}

/// Writes `[tokens, key heads · head size]`.
#[track_caller]
fn store(kv_collection: &PagedKvCacheValues, layer: usize, which: KeysOrValues, x: &Tensor) -> Result<()> {
    let [heads, size] = heads(kv_collection, layer)?;
    let tokens = x.shape().first().cloned().unwrap_or(Dim::from(0));
    kv_cache_ragged_store(kv_collection, layer, which, &f::reshape(x, [tokens, heads, size])?)
}

#[track_caller]
fn parts(parts: Vec<Tensor>) -> Result<[Tensor; 3]> {
    parts.try_into().map_err(|parts: Vec<Tensor>| GraphError::argument("split", "results", parts.len(), "three"))
}
