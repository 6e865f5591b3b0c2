//! Attention whose keys and values are operands, without a cache, by MAX's names, as part of [`kernels`](super): of padded and of
//! ragged batches, and prefill of latent attention in parts. All of them run one kernel, which is told the rows of each sequence.

use max_core::dtype::DType;
use max_core::graph::{Dim, DimSlice, GraphError, Parameters, TensorType, ops};

use super::ragged_attention::window;
use super::{KeysOrValues, MhaMaskVariant, read_at};
use crate::Result;
use crate::functional as f;
use crate::nn::kv_cache::PagedKvCacheValues;
use crate::tensor::Tensor;

/// Attention of a batch of padded sequences: `q` is `[batch, tokens, heads, head size]`, `k` and `v` are `[batch, keys, key heads, head size]`
/// of as many heads or a divisor; the result is as `q`. Scores are multiplied by `scale`, `None` for `1 / sqrt(head size)`.
///
/// With `valid_length`, `uint32` `[batch]`, only so many tokens and keys of each sequence count: results behind these are 0.
///
/// ```
/// # extern crate max_nn as max;
/// # max_kernels::link();
/// use max::nn::kernels::{MhaMaskVariant, flash_attention_gpu};
/// use max::tensor::Tensor;
///
/// let x = Tensor::constant([[[[1.0f32, 2.0]], [[3.0, 4.0]]]])?;
/// let one = Tensor::constant([1u32])?;
/// let y = flash_attention_gpu(&x, &x, &x, MhaMaskVariant::Null, None, Some(&one))?;
/// // One key, and one query.
/// assert_eq!(y.to_vec::<f32>()?, [1.0, 2.0, 0.0, 0.0]);
/// # Ok::<(), max::Error>(())
/// ```
///
/// # Errors
/// When the types do not fit, heads or their size are not static, or a window is 0.
#[track_caller]
pub fn flash_attention_gpu(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    mask_variant: MhaMaskVariant,
    scale: Option<f64>,
    valid_length: Option<&Tensor>,
) -> Result<Tensor> {
    const OP: &str = "flash_attention_gpu";
    let shape = q.shape().clone();
    let [batch, tokens, ..] = shape.dims() else {
        return Err(GraphError::argument(OP, "q", q.ty(), "[batch, tokens, heads, head size]"));
    };
    let keys = k.shape().dims().get(1).unwrap_or(tokens).clone();
    let operands =
        [flat(OP, "q", q, [batch, tokens])?, flat(OP, "k", k, [batch, &keys])?, flat(OP, "v", v, [batch, &keys])?];
    if let Some(valid) = valid_length
        && (valid.dtype() != DType::U32 || valid.shape().dims() != [batch.clone()])
    {
        return Err(GraphError::argument(OP, "valid_length", valid.ty(), format!("uint32, [{batch}]")));
    }
    // The first token and the first key of each sequence, and how many count.
    let sequences = numbers(q, batch)?;
    let (first_token, first_key) = (times(&sequences, tokens)?, times(&sequences, &keys)?);
    let zero = f::mul(&sequences, 0i64)?;
    let ends = |first: &Tensor, most: &Dim| match valid_length {
        None => plus(first, most),
        Some(valid) => f::add(first, f::minimum(f::cast(valid, DType::I64)?, plus(&zero, most)?)?),
    };
    let (end_token, end_key) = (ends(&first_token, tokens)?, ends(&first_key, &keys)?);
    let spans = f::stack([&first_token, &end_token, &first_key, &end_key, &zero, &zero], 1)?;
    let (y, _) = attend(OP, operands.each_ref(), &spans, mask_variant, scale)?;
    f::reshape(y, shape)
}

/// Attention of a ragged batch without a cache: `q` is `[tokens, heads, head size]`, `k` and `v` are `[tokens, key heads, head size]` of as
/// many heads or a divisor, and sequence `s` begins at `input_row_offsets[s]`, `uint32` `[sequences + 1]`; the result is as `q`. Scores are
/// multiplied by `scale`, `None` for `1 / sqrt(head size)`. How long the longest sequence is need not be said.
///
/// ```
/// # extern crate max_nn as max;
/// # max_kernels::link();
/// use max::nn::kernels::{MhaMaskVariant, flash_attention_ragged_gpu};
/// use max::tensor::Tensor;
///
/// let x = Tensor::constant([[[1.0f32, 2.0]], [[3.0, 4.0]], [[5.0, 6.0]]])?;
/// // Sequences of one token each.
/// let offsets = Tensor::constant([0u32, 1, 2, 3])?;
/// let y = flash_attention_ragged_gpu(&x, &x, &x, &offsets, MhaMaskVariant::Causal, None)?;
/// assert_eq!(y.to_vec::<f32>()?, x.to_vec::<f32>()?);
/// # Ok::<(), max::Error>(())
/// ```
///
/// # Errors
/// When the types do not fit, heads or their size are not static, or a window is 0.
#[track_caller]
pub fn flash_attention_ragged_gpu(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    input_row_offsets: &Tensor,
    mask_variant: MhaMaskVariant,
    scale: Option<f64>,
) -> Result<Tensor> {
    const OP: &str = "flash_attention_ragged_gpu";
    let [begins, ends] = bounds(OP, "input_row_offsets", input_row_offsets)?;
    let zero = f::mul(&begins, 0i64)?;
    let spans = f::stack([&begins, &ends, &begins, &ends, &zero, &zero], 1)?;
    Ok(attend(OP, [q, k, v], &spans, mask_variant, scale)?.0)
}

/// A part of the attention of new tokens over latents of a layer of the cache, whose keys and values are in a buffer: see
/// [`flare_mla_prefill_plan`](super::flare_mla_prefill_plan), whose rows `buffer_row_offsets` and `cache_offsets` are, and
/// [`flare_mla_decompress_k_cache`](super::flare_mla_decompress_k_cache), which fills it. `input` is `[tokens, heads, head size +
/// rope]`, the queries with their rotated parts; `k` and `v` are `[buffer rows, heads, size]` or `[buffer rows, heads · size]`, and the rotated
/// part of keys is what the cache has.
///
/// Its results are the attention over all parts up to this one, `[tokens, heads, size of v]`, and the logarithms of the sums of the
/// exponentials of scores, `float32` `[tokens, heads]`: both go into the call for the next part as `previous`.
///
/// # Errors
/// When the types do not fit; when there is no such layer; when a window is 0.
#[track_caller]
#[allow(clippy::too_many_arguments, reason = "MAX's")]
pub fn flare_mla_prefill_ragged(
    kv_collection: &PagedKvCacheValues,
    layer: usize,
    input: &Tensor,
    [k, v]: [&Tensor; 2],
    buffer_row_offsets: &Tensor,
    cache_offsets: &Tensor,
    mask_variant: MhaMaskVariant,
    scale: f64,
    qk_rope_dim: usize,
    previous: Option<(&Tensor, &Tensor)>,
) -> Result<(Tensor, Tensor)> {
    const OP: &str = "flare_mla_prefill_ragged";
    let shape = input.shape();
    let heads = match shape.dims() {
        [_, heads, _] => heads.clone(),
        _ => return Err(GraphError::argument(OP, "input", input.ty(), "[tokens, heads, head size + rope]")),
    };
    let (k, v) = (by_head(OP, "k", k, &heads)?, by_head(OP, "v", v, &heads)?);
    let graph = kv_collection.cache_lengths.graph();
    let [first_key, end_key] = bounds(OP, "buffer_row_offsets", buffer_row_offsets)?;
    if cache_offsets.rank() != 1 || cache_offsets.dtype() != DType::U32 {
        return Err(GraphError::argument(OP, "cache_offsets", cache_offsets.ty(), "uint32 of one axis"));
    }
    // The rotated parts of keys, which all heads share.
    let mut part = kv_collection.clone();
    part.input_row_offsets = buffer_row_offsets.in_graph(&graph)?;
    part.cache_lengths = cache_offsets.in_graph(&graph)?;
    let rows = k.shape()[0].clone();
    let keys = read_at(OP, &part, layer, KeysOrValues::Keys, rows.clone())?;
    let rope = match (keys.shape().dims(), i64::try_from(qk_rope_dim)) {
        ([_, one, size], Ok(rope)) if *one == 1 && size.as_static().is_some_and(|size| rope < size) => rope,
        _ => {
            let expected = format!("less than the elements of the one head of {}", keys.ty());
            return Err(GraphError::argument(OP, "qk_rope_dim", qk_rope_dim, expected));
        }
    };
    let rotated = match rope {
        0 => None,
        _ => {
            let rotated = f::slice_tensor(keys, (DimSlice::Ellipsis, DimSlice::from(-rope..)))?;
            Some(f::broadcast_to(rotated, [rows, heads, rope.into()])?)
        }
    };
    let k = f::concat(std::iter::once(&k).chain(&rotated), -1)?;
    let sequences = kv_collection.cache_lengths.shape();
    let message = "`flare_mla_prefill_ragged`: there must be an offset more than sequences in the cache";
    let of_each = |x: Tensor| -> Result<Tensor> {
        Ok(ops::rebind(f::cast(x, DType::I64)?.in_graph(&graph)?, sequences.clone(), message)?.into())
    };
    let [first_token, end_token] = bounds(OP, "input_row_offsets", &(&kv_collection.input_row_offsets).into())?;
    let spans =
        [first_token, end_token, first_key, end_key, (&kv_collection.cache_lengths).into(), cache_offsets.clone()];
    let spans = f::stack(spans.map(of_each).into_iter().collect::<Result<Vec<_>>>()?, 1)?;
    let (y, logarithms) = attend(OP, [input, &k, &v], &spans, mask_variant, Some(scale))?;
    let Some((before, of_before)) = previous else { return Ok((y, logarithms)) };
    if before.ty() != y.ty() || of_before.ty() != logarithms.ty() {
        let expected = format!("{} and {}, as this call's results", y.ty(), logarithms.ty());
        return Err(GraphError::argument(OP, "previous", format!("{} and {}", before.ty(), of_before.ty()), expected));
    }
    // Finite, so that rows that have seen no key yet have weights of 0.
    let largest = f::maximum(f::maximum(of_before, &logarithms)?, f32::MIN)?;
    let weights = [of_before, &logarithms].map(|x| f::exp(f::sub(x, &largest)?));
    let [of_before, of_new] = [weights[0].clone()?, weights[1].clone()?];
    let total = f::add(&of_before, &of_new)?;
    let share = |x: &Tensor, weight: &Tensor| -> Result<Tensor> {
        let share = f::div(weight, f::maximum(&total, f32::MIN_POSITIVE)?)?;
        f::mul(f::cast(x, DType::F32)?, f::unsqueeze(share, 2)?)
    };
    let sum = f::add(share(before, &of_before)?, share(&y, &of_new)?)?;
    Ok((f::cast(sum, y.dtype())?, f::add(largest, f::log(&total)?)?))
}

/// `[batch, tokens, heads, head size]` with the tokens of all sequences behind each other.
#[track_caller]
fn flat(op: &'static str, name: &'static str, x: &Tensor, [batch, tokens]: [&Dim; 2]) -> Result<Tensor> {
    match x.shape().dims() {
        [rows, of_each, _, _] if rows == batch && of_each == tokens => f::flatten(x, 0, 1),
        _ => Err(GraphError::argument(op, name, x.ty(), format!("[{batch}, {tokens}, heads, head size]"))),
    }
}

/// `[rows, heads, size]`, also of `[rows, heads · size]`.
#[track_caller]
fn by_head(op: &'static str, name: &'static str, x: &Tensor, heads: &Dim) -> Result<Tensor> {
    match (x.shape().dims(), heads.as_static()) {
        ([_, of_x, _], _) if of_x == heads => Ok(x.clone()),
        ([rows, all], Some(heads)) if heads > 0 && all.as_static().is_some_and(|all| all % heads == 0) => {
            f::reshape(x, [rows.clone(), Dim::from(heads), all / heads])
        }
        _ => {
            let expected = format!("[buffer rows, {heads}, size], or with heads behind each other");
            Err(GraphError::argument(op, name, x.ty(), expected))
        }
    }
}

/// Attention of `[tokens, heads, size]` over `[keys, key heads, size]` and `[keys, key heads, size of v]`, in `spans` as the kernel has them:
/// `[tokens, heads, size of v]`, and the logarithms of the sums of exponentials, `[tokens, heads]`.
#[track_caller]
fn attend(
    op: &'static str,
    [q, k, v]: [&Tensor; 3],
    spans: &Tensor,
    mask_variant: MhaMaskVariant,
    scale: Option<f64>,
) -> Result<(Tensor, Tensor)> {
    let (q_shape, k_shape, v_shape) = (q.shape(), k.shape(), v.shape());
    let sizes = match (q_shape.dims(), k_shape.dims()) {
        ([_, heads, size], [_, key_heads, key_size]) if size == key_size => {
            heads.as_static().zip(key_heads.as_static()).zip(size.as_static())
        }
        _ => None,
    };
    let sizes = sizes.filter(|((heads, key_heads), _)| *key_heads > 0 && heads % key_heads == 0);
    let (Some(((heads, key_heads), size)), [tokens, ..]) = (sizes, q_shape.dims()) else {
        let expected = format!("of a head size of {}, with static heads of which those of keys are a divisor", k.ty());
        return Err(GraphError::argument(op, "q", q.ty(), expected));
    };
    if !matches!(q.dtype(), DType::F16 | DType::BF16 | DType::F32) {
        return Err(GraphError::argument(op, "q", q.ty(), "float16, bfloat16 or float32"));
    }
    let value_size = match v_shape.dims() {
        [rows, value_heads, value_size] if *rows == k_shape[0] && *value_heads == k_shape[1] => value_size.clone(),
        _ => return Err(GraphError::argument(op, "v", v.ty(), format!("of the rows and heads of {}", k.ty()))),
    };
    for (name, x) in [("k", k), ("v", v)] {
        if x.dtype() != q.dtype() {
            return Err(GraphError::argument(op, name, x.ty(), format!("of the dtype of {}", q.ty())));
        }
    }
    let (causal, window, chunked) = window(op, mask_variant)?;
    // A weight of 0 does not leave out what is no number. So values that are none are 0, and their keys are none.
    let is_number = f::equal(f::sub(v, v)?, 0.0)?;
    let nothing = f::sum(f::sub(v, v)?, -1)?;
    let (k, v) = (f::add(k, nothing)?, f::where_(is_number, v, 0.0)?);
    let group = heads / key_heads;
    let rows = tokens * group;
    let dims = [tokens.clone(), key_heads.into(), group.into(), size.into()];
    let q = f::permute(f::reshape(q, dims)?, [1, 0, 2, 3])?;
    let q = f::reshape(q, [Dim::from(key_heads), rows.clone(), size.into()])?;
    let (k, v) = (f::permute(k, [1, 0, 2])?, f::permute(v, [1, 0, 2])?);
    let ty = |dtype, size: Dim| TensorType::new(dtype, [Dim::from(key_heads), rows.clone(), size], q.device());
    let types = [ty(q.dtype(), value_size.clone()), ty(DType::F32, 1.into())];
    let parameters = Parameters::new()
        .with("scale", scale.unwrap_or(1.0 / (size.max(1) as f64).sqrt()))
        .with("group", group)
        .with("causal", causal)
        .with("window", window)
        .with("chunked", chunked);
    let results = f::custom("attention_ragged", q.device(), [&q, &k, &v, spans], types, parameters)?;
    let [y, logarithms] = &*results else {
        return Err(GraphError::argument(op, "results", results.len(), "two"));
    };
    let by_token = |x: &Tensor, size: Dim| {
        let x = f::reshape(x, [Dim::from(key_heads), tokens.clone(), group.into(), size.clone()])?;
        f::reshape(f::permute(x, [1, 0, 2, 3])?, [tokens.clone(), heads.into(), size])
    };
    Ok((by_token(y, value_size)?, f::squeeze(by_token(logarithms, 1.into())?, 2)?))
}

/// Where the rows of sequences begin and end, `int64`, of `uint32` offsets.
#[track_caller]
fn bounds(op: &'static str, name: &'static str, offsets: &Tensor) -> Result<[Tensor; 2]> {
    if offsets.rank() != 1 || offsets.dtype() != DType::U32 {
        return Err(GraphError::argument(op, name, offsets.ty(), "uint32, [sequences + 1]"));
    }
    let offsets = f::cast(offsets, DType::I64)?;
    let part = |part: DimSlice| f::slice_tensor(&offsets, [part]);
    Ok([part(DimSlice::from(..-1i64))?, part(DimSlice::from(1i64..))?])
}

/// The numbers below a dim, beside `like`: `int64`, `[dim]`.
#[track_caller]
fn numbers(like: &Tensor, dim: &Dim) -> Result<Tensor> {
    match (like.graph_value(), dim.as_static()) {
        (Some(value), _) => Ok(ops::range(&value.graph(), 0, dim, 1, DType::I64, like.device())?.into()),
        (None, Some(dim)) => f::range(0, dim, 1, DType::I64, like.device()),
        (None, None) => Err(GraphError::argument("range", "dim", dim, "a number")),
    }
}

/// Numbers times a dim.
#[track_caller]
fn times(x: &Tensor, dim: &Dim) -> Result<Tensor> {
    match (x.graph_value(), dim.as_static()) {
        (_, Some(dim)) => f::mul(x, dim),
        (Some(x), None) => Ok(ops::mul(x, dim)?.into()),
        (None, None) => Err(GraphError::argument("mul", "dim", dim, "a number")),
    }
}

/// Numbers and a dim.
#[track_caller]
fn plus(x: &Tensor, dim: &Dim) -> Result<Tensor> {
    match (x.graph_value(), dim.as_static()) {
        (_, Some(dim)) => f::add(x, dim),
        (Some(x), None) => Ok(ops::add(x, dim)?.into()),
        (None, None) => Err(GraphError::argument("add", "dim", dim, "a number")),
    }
}
