//! Attention of ragged batches over a paged cache, by MAX's names, as part of [`kernels`](super): of a sequence over its own
//! tokens, and over others'.

use max_core::driver;
use max_core::dtype::DType;
use max_core::graph::{Dim, DimSlice, GraphError, Parameters, Shape, TensorType, TensorValue, Value, ops};

use super::{Heads, MhaMaskVariant, RaggedAttentionOptions, grouped, value};
use crate::Result;
use crate::functional as f;
use crate::nn::kv_cache::PagedKvCacheValues;
use crate::tensor::Tensor;

/// Attention of the new tokens of a ragged batch over a layer of the cache, which holds their own keys and values already:
/// prefill, chunked prefill and decode in one. `input` is `[tokens, heads, head size]`, or by key head as
/// [`fused_qk_ragged_rope`](super::fused_qk_ragged_rope) gives it; the result is `[tokens, heads · head size]`.
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
    let (causal, window, chunked) = window(OP, options.mask_variant)?;
    let graph = q.graph();
    let sinks = match options.sink_weights {
        Some(sinks) if sinks.shape().dims() == [heads * group] => sinks.in_graph(&graph)?,
        Some(sinks) => {
            let expected = format!("[{}], one for each head", heads * group);
            return Err(GraphError::argument(OP, "sink_weights", sinks.ty(), expected));
        }
        None => no_sinks(&q)?,
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
    let y = attend(OP, kv_collection, [q, keys, values, sinks], ty, parameters)?;
    let y = f::reshape(y, [heads.clone(), tokens.clone(), group.clone(), size.clone()])?;
    f::reshape(f::permute(y, [1, 0, 2, 3])?, [tokens.clone(), heads * group * size])
}

/// Attention of a ragged batch over keys and values of other tokens, such as an encoder's, which a layer of the cache holds: `input` is
/// `[tokens, heads, head size]`, sequence `s` begins at `input_row_offsets[s]`, `uint32` `[sequences + 1]`, and has the first
/// `kv_input_row_offsets[s + 1] - kv_input_row_offsets[s]` keys of its pages. With a causal mask, the last query sees the last key.
///
/// # Errors
/// As [`flash_attention_ragged`]; when offsets are not `uint32` of one axis.
#[track_caller]
pub fn cross_attention_ragged(
    kv_collection: &PagedKvCacheValues,
    layer: usize,
    input: &Tensor,
    input_row_offsets: &Tensor,
    kv_input_row_offsets: &Tensor,
    options: RaggedAttentionOptions<'_>,
) -> Result<Tensor> {
    const OP: &str = "cross_attention_ragged";
    let mut cross = kv_collection.clone();
    cross.input_row_offsets = value(OP, "input_row_offsets", input_row_offsets)?;
    let sequences = kv_collection.cache_lengths.shape().clone();
    let graph = kv_collection.cache_lengths.graph();
    let counts = |offsets: &Tensor| -> Result<Tensor> {
        let (from, to) = (DimSlice::from(..-1i64), DimSlice::from(1i64..));
        let offsets = Tensor::from(offsets.in_graph(&graph)?);
        let counts = f::sub(f::slice_tensor(&offsets, [to])?, f::slice_tensor(&offsets, [from])?)?;
        let message = "`cross_attention_ragged`: there must be an offset more than sequences in the cache";
        Ok(ops::rebind(value(OP, "offsets", &counts)?, sequences.clone(), message)?.into())
    };
    // Sequences of fewer keys than queries have negative lengths, which wrap around.
    let lengths = f::sub(counts(kv_input_row_offsets)?, counts(input_row_offsets)?)?;
    cross.cache_lengths = value(OP, "kv_input_row_offsets", &lengths)?;
    flash_attention_ragged(&cross, layer, input, options)
}

/// An empty operand for sinks, where queries are.
#[track_caller]
pub(super) fn no_sinks(q: &TensorValue) -> Result<TensorValue> {
    ops::constant(&q.graph(), driver::Tensor::from_vec(Vec::<f32>::new(), [0])?, DType::F32, q.device())
}

/// Programs that attention on a GPU has for few queries: about as many as the device has multiprocessors.
const PROGRAMS: i64 = 128;
/// The rows of a program for few queries, or fewer.
const ROWS: i64 = 16;

/// The attention kernel on queries, keys, values and sinks, with a result of that type, `[key heads, rows, size]`.
///
/// On a GPU, programs divide the keys of few queries among themselves, and a second kernel combines their results. How many
/// there are, dims tell: both ways stand in the graph, each with results of no heads where the other one is taken. What is
/// concatenated is written where it belongs.
#[track_caller]
pub(super) fn attend(
    op: &'static str,
    kv_collection: &PagedKvCacheValues,
    [q, keys, values, sinks]: [TensorValue; 4],
    ty: TensorType,
    parameters: Parameters,
) -> Result<Tensor> {
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
    let (dtype, device) = (ty.dtype, ty.device);
    let [heads, rows, size] = ty.shape.dims() else {
        return Err(GraphError::argument(op, "result", ty, "of the rank of [key heads, rows, size]"));
    };
    let part = |heads: Dim, size: Dim| Shape::from([heads, rows.clone(), size]);
    let attention = |heads: Dim| -> Result<[TensorValue; 2]> {
        let sums = TensorType::new(DType::F32, part(heads.clone(), 1.into()), device);
        let types = [TensorType::new(dtype, part(heads, size.clone()), device), sums];
        let results = ops::custom("flash_attention_ragged", device, operands.clone(), types, parameters.clone())?;
        match &results[..] {
            [y, sums] => Ok([y.tensor()?.clone(), sums.tensor()?.clone()]),
            _ => Err(GraphError::argument(op, "results", results.len(), "two")),
        }
    };
    if !device.is_gpu() {
        return Ok(attention(heads.clone())?[0].clone().into());
    }
    let parts = Dim::from(PROGRAMS) / (heads.clone() * (rows.clone() / ROWS + 1));
    // All heads where there is one part of the keys, else none.
    let whole = heads.clone() * (Dim::from(1) / (parts.clone() / 2 + 1));
    let divided = heads.clone() - whole.clone();
    let of_parts: [Value; 2] = attention(parts * divided.clone())?.map(Value::from);
    let ty = TensorType::new(dtype, part(divided, size.clone()), device);
    let combined = ops::custom("flash_attention_ragged_combine", device, of_parts, [ty], Parameters::new())?;
    let [combined] = &combined[..] else {
        return Err(GraphError::argument(op, "results", combined.len(), "one"));
    };
    let [y, _] = attention(whole)?;
    let y = ops::concat([&y, combined.tensor()?], 0)?;
    Ok(ops::rebind(y, part(heads.clone(), size.clone()), "attention has a result for each head")?.into())
}

/// What the kernel calls a mask: whether it is causal, its window, 0 for all, and whether that is a chunk.
#[track_caller]
pub(super) fn window(op: &'static str, mask_variant: MhaMaskVariant) -> Result<(bool, i64, bool)> {
    let (causal, window, chunked) = match mask_variant {
        MhaMaskVariant::Null => (false, None, false),
        MhaMaskVariant::Causal => (true, None, false),
        MhaMaskVariant::SlidingWindowCausal(window) => (true, Some(window), false),
        MhaMaskVariant::ChunkedCausal(chunk) => (true, Some(chunk), true),
    };
    match window.map(i64::try_from) {
        None => Ok((causal, 0, chunked)),
        Some(Ok(window)) if window > 0 => Ok((causal, window, chunked)),
        _ => Err(GraphError::argument(op, "mask_variant", format!("{mask_variant:?}"), "a window of 1 or more")),
    }
}
