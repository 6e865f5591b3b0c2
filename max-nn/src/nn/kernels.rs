//! Ops over a paged cache of keys and values, by MAX's names: what layers of attention are made of. They are for values of a
//! graph, whose inputs a [`PagedKvCacheValues`] holds.

use max_core::driver;
use max_core::graph::{BufferValue, Dim, GraphError, Parameters, TensorType, TensorValue, Value, ops};

use super::kv_cache::PagedKvCacheValues;
pub use super::projections::{
    fused_qkv_ragged_matmul, matmul_k_cache_ragged, matmul_kv_cache_ragged, swish_glu,
    unfused_qkv_ragged_matmul_gguf_quantized,
};
use crate::Result;
use crate::functional as f;
use crate::nn::rope::RotaryAngles;
use crate::tensor::Tensor;

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
    let cache = which.of(kv_collection.layer(layer)?).load()?;
    let [_, heads, _, size] = cache.shape().dims() else {
        return Err(GraphError::argument(
            "kv_cache_ragged_read",
            "cache",
            cache.ty(),
            "of the rank of [pages, heads, page, size]",
        ));
    };
    let tokens = kv_collection.token_lengths.shape()[0].clone();
    let ty = TensorType::new(cache.dtype(), [tokens, heads.clone(), size.clone()], cache.device());
    let operands: [Value; 4] = [
        cache.into(),
        (&kv_collection.lookup_table).into(),
        (&kv_collection.input_row_offsets).into(),
        (&kv_collection.cache_lengths).into(),
    ];
    let device = ty.device;
    one("kv_cache_ragged_read", ops::custom("kv_cache_ragged_read", device, operands, [ty], ())?)
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

/// Attention of the new tokens of a ragged batch over a layer of the cache, which holds their own keys and values already:
/// prefill, chunked prefill and decode in one. `input` is `[tokens, heads, head size]`, or by key head as
/// [`fused_qk_ragged_rope`] gives it; the result is `[tokens, heads · head size]`.
///
/// # Errors
/// When `input` is no value of a graph, or its type does not fit the cache; when there is no such layer; when a window is 0.
#[track_caller]
pub fn flash_attention_ragged(
    kv_collection: &PagedKvCacheValues,
    layer: usize,
    input: &Tensor,
    options: RaggedAttentionOptions<'_>,
) -> Result<Tensor> {
    const OP: &str = "flash_attention_ragged";
    let cache = kv_collection.layer(layer)?;
    let by_key_head = match input.rank() {
        4 => input.clone(),
        _ => {
            let q = value(OP, "input", input)?;
            let Heads { key_heads, group, size } = grouped(OP, cache, &q)?;
            let dims = [q.shape()[0].clone(), key_heads.into(), group.into(), size.into()];
            f::permute(f::reshape(input, dims)?, [1, 0, 2, 3])?
        }
    };
    let q = value(OP, "input", &by_key_head)?;
    let [heads, tokens, group, size] = q.shape().dims() else {
        return Err(GraphError::argument(OP, "input", q.ty(), "of the rank of [tokens, heads, head size]"));
    };
    let (Some(queries), Some(head)) = (group.as_static(), size.as_static()) else {
        return Err(GraphError::argument(OP, "input", q.ty(), "of static heads"));
    };
    let [keys, values] = [cache[0].load()?, cache[1].load()?];
    if keys.dtype() != q.dtype() || &keys.shape()[1] != heads || &keys.shape()[3] != size {
        return Err(GraphError::argument(
            OP,
            "input",
            q.ty(),
            format!("of the dtype and heads of the cache, {}", keys.ty()),
        ));
    }
    let (causal, window, chunked) = match options.mask_variant {
        MhaMaskVariant::Null => (false, None, false),
        MhaMaskVariant::Causal => (true, None, false),
        MhaMaskVariant::SlidingWindowCausal(window) => (true, Some(window), false),
        MhaMaskVariant::ChunkedCausal(chunk) => (true, Some(chunk), true),
    };
    let window = match window.map(i64::try_from) {
        None => 0,
        Some(Ok(window)) if window > 0 => window,
        _ => {
            return Err(GraphError::argument(
                OP,
                "mask_variant",
                format!("{:?}", options.mask_variant),
                "a window of 1 or more",
            ));
        }
    };
    let graph = q.graph();
    let sinks = match options.sink_weights {
        Some(sinks) if sinks.shape().dims() == [heads * group] => sinks.in_graph(&graph)?,
        Some(sinks) => {
            let expected = format!("[{}], one for each head", heads * group);
            return Err(GraphError::argument(OP, "sink_weights", sinks.ty(), expected));
        }
        None => Tensor::constant(driver::Tensor::from_vec(Vec::<f32>::new(), [0])?)?.in_graph(&graph)?,
    };
    let flat = f::flatten(&by_key_head, 1, 2)?;
    let q = value(OP, "input", &flat)?;
    let ty = q.ty().clone();
    let parameters = Parameters::new()
        .with("scale", options.scale.unwrap_or(1.0 / (head.max(1) as f64).sqrt()))
        .with("group", queries)
        .with("causal", causal)
        .with("window", window)
        .with("chunked", chunked)
        .with("softcap", options.soft_cap.unwrap_or(0.0));
    let operands: [Value; 8] = [
        q.into(),
        keys.into(),
        values.into(),
        (&kv_collection.lookup_table).into(),
        (&kv_collection.input_row_offsets).into(),
        (&kv_collection.cache_lengths).into(),
        sinks.into(),
        (&kv_collection.max_new_tokens).into(),
    ];
    let device = ty.device;
    let y = one(OP, ops::custom("flash_attention_ragged", device, operands, [ty], parameters)?)?;
    let y = f::reshape(y, [heads.clone(), tokens.clone(), group.clone(), size.clone()])?;
    f::reshape(f::permute(y, [1, 0, 2, 3])?, [tokens.clone(), heads * group * size])
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
