//! Ops of sampling, by MAX's names, as part of [`kernels`](super): the next token of each row of logits, and what changes logits
//! before.

use max_core::dtype::DType;
use max_core::graph::{BufferValue, Dim, GraphError, Scalar, TensorType, Value, ops};

use super::value;
use crate::Result;
use crate::functional as f;
use crate::tensor::{Operand, Tensor};

/// The most tokens of a vocabulary: the kernels add up shares of 2^40 in 64 bits.
const MOST_TOKENS: i64 = 1 << 22;

/// How [`topk_fused_sampling`] draws. Each is a number for all rows, or a tensor: one number, or `[rows]`, one for each row.
#[derive(Clone)]
pub struct SamplingOptions {
    /// What logits are divided by. Where it is not above 0, the likeliest token is taken.
    pub temperature: Operand,
    /// The likeliest tokens are drawn from whose probabilities, among the `top_k` likeliest, add up to this.
    pub top_p: Operand,
    /// The least probability of a token, relative to the likeliest one's.
    pub min_p: Operand,
    /// The seeds, integers. A row's token depends on its own seed, logits and options, and on nothing else: not on other rows, threads or
    /// the device. Two rows with the same of all have the same token.
    pub seed: Operand,
}

impl Default for SamplingOptions {
    /// By the model's own probabilities, with the seed 0.
    fn default() -> Self {
        let [one, zero] = [1.0f32, 0.0].map(Operand::from);
        SamplingOptions { temperature: one.clone(), top_p: one, min_p: zero, seed: 0i64.into() }
    }
}

/// The next token of each row of `logits`, floats `[rows, vocabulary]`: `int64`, `[rows, 1]`. One of the `top_k` likeliest tokens is drawn by
/// its probability, and of all tokens if that is below 1; with 1 it is the likeliest, always. `top_k` is a number or a tensor of integers,
/// as the [options](SamplingOptions) are. Of equally likely tokens the first come first.
///
/// A row that has no token has -1: one with a logit that is NaN, or whose largest logit is infinite.
///
/// No `max_k` or `min_top_p` is needed: a row is not sorted, and its time hardly depends on either.
///
/// ```
/// # extern crate max_nn as max;
/// # max_kernels::link();
/// use max::nn::kernels::{SamplingOptions, topk_fused_sampling};
/// use max::tensor::Tensor;
///
/// let logits = Tensor::constant([[1.0f32, 4.0, 2.0], [9.0, 8.5, -3.0]])?;
/// // The likeliest token of the first row, one of two of the second.
/// let top_k = Tensor::constant([1i64, 2])?;
/// let options = SamplingOptions { seed: Tensor::constant([7i64, 11])?.into(), ..SamplingOptions::default() };
/// let tokens = topk_fused_sampling(&logits, &top_k, &options)?.to_vec::<i64>()?;
/// assert_eq!(tokens[0], 1);
/// assert!(tokens[1] == 0 || tokens[1] == 1);
/// # Ok::<(), max::Error>(())
/// ```
///
/// # Errors
/// When `logits` is not of floats `[rows, vocabulary]`, or a vocabulary has more than 2^22 tokens, whose shares would not add up in 64 bits; when an option is no number and not
/// of one number for each row; when `top_k` or the seeds are no integers.
#[track_caller]
pub fn topk_fused_sampling(logits: &Tensor, top_k: impl Into<Operand>, options: &SamplingOptions) -> Result<Tensor> {
    const OP: &str = "topk_fused_sampling";
    let shape = logits.shape();
    let dims = match shape.dims() {
        [rows, tokens] if tokens.as_static().is_none_or(|tokens| (0..=MOST_TOKENS).contains(&tokens)) => Some(rows),
        _ => None,
    };
    let Some(rows) = dims.filter(|_| is_float(logits.dtype())) else {
        let expected = "float16, bfloat16, float32 or float64, [rows, vocabulary], of up to 2^22 tokens";
        return Err(GraphError::argument(OP, "logits", logits.ty(), expected));
    };
    let SamplingOptions { temperature, top_p, min_p, seed } = options;
    let beside = (logits, rows);
    let top_k = per_row(OP, "top_k", &top_k.into(), beside, DType::I64)?;
    let temperature = per_row(OP, "temperature", temperature, beside, DType::F32)?;
    let top_p = per_row(OP, "top_p", top_p, beside, DType::F32)?;
    let min_p = per_row(OP, "min_p", min_p, beside, DType::F32)?;
    let seed = per_row(OP, "seed", seed, beside, DType::I64)?;
    let device = logits.device();
    let ty = |dtype, columns: i64| TensorType::new(dtype, [rows.clone(), Dim::from(columns)], device);
    // What is left of each row by `top_k` and `min_p`, of that by `top_p`, and the draw.
    let types = [ty(DType::I64, 1), ty(logits.dtype(), 2), ty(DType::I32, 1)];
    let left = f::custom("sampling_top_k", device, [logits, &top_k, &temperature, &min_p], types, ())?;
    let [tokens, bounds, rooms] = &*left else {
        return Err(GraphError::argument(OP, "results", left.len(), "three"));
    };
    let types = [ty(logits.dtype(), 1), ty(DType::I32, 1)];
    let left = f::custom("sampling_top_p", device, [logits, tokens, bounds, rooms, &temperature, &top_p], types, ())?;
    let [edges, ends] = &*left else {
        return Err(GraphError::argument(OP, "results", left.len(), "two"));
    };
    let operands = [logits, tokens, bounds, edges, ends, &temperature, &seed];
    let results = f::custom("sampling_draw", device, operands, ty(DType::I64, 1), ())?;
    results.into_iter().next().ok_or_else(|| GraphError::argument(OP, "results", 0, "one"))
}

/// What [`apply_penalties_to_logits`] takes from logits. Each is a number for all rows, or a tensor: one number, or `[rows]`.
#[derive(Clone)]
pub struct Penalties {
    /// What a token's logit loses for each time that it came.
    pub frequency_penalty: Operand,
    /// What a token's logit loses if it came.
    pub presence_penalty: Operand,
    /// What a token's logit is divided by (multiplied, below 0).
    pub repetition_penalty: Operand,
}

impl Default for Penalties {
    /// None.
    fn default() -> Self {
        let [zero, one] = [0.0f32, 1.0].map(Operand::from);
        Penalties { frequency_penalty: zero.clone(), presence_penalty: zero, repetition_penalty: one }
    }
}

/// Lowers the logits of tokens that rows have seen, in the buffer, floats `[rows, vocabulary]`. `frequency_data` is `int32`
/// `[entries, 2]`: a token, and how often it came. Row `r` has the entries from `frequency_offsets[r]`, `uint32` `[rows + 1]`, to the next
/// offset.
///
/// All tokens of entries count as repeated, and those that came at least once lose the other penalties. Entries of no token of the
/// vocabulary, such as -1, change nothing.
///
/// # Errors
/// When an operand is no value of the buffer's graph, or has another type; when a penalty is no float and not of one for each row.
#[track_caller]
pub fn apply_penalties_to_logits(
    logits_buffer: &BufferValue,
    frequency_data: &Tensor,
    frequency_offsets: &Tensor,
    penalties: &Penalties,
) -> Result<()> {
    const OP: &str = "apply_penalties_to_logits";
    let ty = logits_buffer.ty();
    let rows = match ty.shape().dims() {
        [rows, _] if is_float(ty.dtype()) => rows,
        _ => {
            let expected = "float16, bfloat16, float32 or float64, [rows, vocabulary]";
            return Err(GraphError::argument(OP, "logits_buffer", ty, expected));
        }
    };
    let [data, offsets] = entries(OP, frequency_data, frequency_offsets, rows)?;
    let Penalties { frequency_penalty, presence_penalty, repetition_penalty } = penalties;
    let beside = (frequency_data, rows);
    let frequency = per_row(OP, "frequency_penalty", frequency_penalty, beside, DType::F32)?;
    let presence = per_row(OP, "presence_penalty", presence_penalty, beside, DType::F32)?;
    let repetition = per_row(OP, "repetition_penalty", repetition_penalty, beside, DType::F32)?;
    let operands: [Value; 6] = [
        logits_buffer.into(),
        data,
        offsets,
        value(OP, "frequency_penalty", &frequency)?.into(),
        value(OP, "presence_penalty", &presence)?.into(),
        value(OP, "repetition_penalty", &repetition)?.into(),
    ];
    ops::inplace_custom(OP, logits_buffer.device(), operands, (), ())?;
    Ok(())
}

/// Counts the next token of each sequence: `frequency_data` and `frequency_offsets` are as [`apply_penalties_to_logits`] has them, the data
/// in a buffer, and `tokens` is of integers, `[sequences]` or `[sequences, 1]`. A token that has no entry gets the first one of its sequence
/// that is free, whose token is below 0; without any, and for a token below 0, nothing changes.
///
/// # Errors
/// When an operand is no value of the buffer's graph, or has another type.
#[track_caller]
pub fn update_frequency_data(frequency_data: &BufferValue, frequency_offsets: &Tensor, tokens: &Tensor) -> Result<()> {
    const OP: &str = "update_frequency_data";
    let tokens = match tokens.shape().dims() {
        [_] if tokens.dtype().is_integral() => tokens.clone(),
        [_, one] if tokens.dtype().is_integral() && *one == 1 => f::squeeze(tokens, 1)?,
        _ => return Err(GraphError::argument(OP, "tokens", tokens.ty(), "integers, [sequences] or [sequences, 1]")),
    };
    // The buffer as it is before: the kernel reads this, and writes that.
    let before = Tensor::from(frequency_data.load()?);
    let [before, offsets] = entries(OP, &before, frequency_offsets, &tokens.shape()[0])?;
    let tokens = value(OP, "tokens", &f::cast(tokens, DType::I64)?)?;
    let operands: [Value; 4] = [frequency_data.into(), before, offsets, tokens.into()];
    ops::inplace_custom(OP, frequency_data.device(), operands, (), ())?;
    Ok(())
}

/// Writes one number to the elements of a buffer that `indices`, `int32` or `int64` `[count, rank]`, names: the logits of tokens that must not
/// be drawn, for instance. Negative indices count from the end; an index outside writes nothing.
///
/// # Errors
/// When `indices` is no value of the buffer's graph, or does not have an index for each axis of the buffer; when the buffer's dtype does not
/// hold `fill_val`.
#[track_caller]
pub fn scatter_set_constant(data: &BufferValue, indices: &Tensor, fill_val: impl Into<Scalar>) -> Result<()> {
    const OP: &str = "scatter_set_constant";
    let (ty, fill_val) = (data.ty(), fill_val.into());
    let rank = ty.shape().dims().len();
    match indices.shape().dims() {
        [_, axes] if axes.as_static() == Some(rank as i64) && matches!(indices.dtype(), DType::I32 | DType::I64) => {}
        _ => {
            let expected = format!("int32 or int64, [count, {rank}], an index for each axis of {ty}");
            return Err(GraphError::argument(OP, "indices", indices.ty(), expected));
        }
    }
    let Ok(constant) = fill_val.to_tensor(ty.dtype()) else {
        return Err(GraphError::argument(OP, "fill_val", fill_val, format!("one that {} holds", ty.dtype())));
    };
    let number = match fill_val {
        Scalar::Float(number) => Some(number),
        // A parameter would round others.
        Scalar::Int(number) if number.unsigned_abs() <= 1 << 53 => Some(number as f64),
        _ => None,
    };
    let indices = value(OP, "indices", indices)?;
    match number {
        Some(number) if rank == 2 && is_number(ty.dtype()) => {
            let operands: [Value; 2] = [data.into(), indices.into()];
            ops::inplace_custom(OP, data.device(), operands, (), [("value", number)])?;
            Ok(())
        }
        _ => {
            let updates = ops::constant(&indices.graph(), constant, ty.dtype(), data.device())?;
            let updates = ops::broadcast_to(updates, [indices.shape()[0].clone()])?;
            data.store(ops::scatter_nd(data.load()?, updates, indices)?)
        }
    }
}

/// The two operands that say how often tokens came.
#[track_caller]
fn entries(op: &'static str, data: &Tensor, offsets: &Tensor, rows: &Dim) -> Result<[Value; 2]> {
    match data.shape().dims() {
        [_, two] if *two == 2 && data.dtype() == DType::I32 => {}
        _ => return Err(GraphError::argument(op, "frequency_data", data.ty(), "int32, [entries, 2]")),
    }
    let one_more = match (offsets.shape().dims(), rows.as_static()) {
        ([count], Some(rows)) => count.as_static().is_none_or(|count| count == rows + 1),
        ([_], None) => true,
        _ => false,
    };
    if !one_more || offsets.dtype() != DType::U32 {
        return Err(GraphError::argument(op, "frequency_offsets", offsets.ty(), format!("uint32, [{}]", rows + 1)));
    }
    Ok([value(op, "frequency_data", data)?.into(), value(op, "frequency_offsets", offsets)?.into()])
}

/// A number for each row, of a dtype, beside `like`.
#[track_caller]
fn per_row(
    op: &'static str,
    name: &'static str,
    x: &Operand,
    (like, rows): (&Tensor, &Dim),
    dtype: DType,
) -> Result<Tensor> {
    let expected = || {
        let kind = if dtype.is_float() { "floats" } else { "integers" };
        format!("a number, or {kind}, [{rows}], one for each row")
    };
    let all = |x: Tensor| f::broadcast_to(f::reshape(x, [1])?, [rows.clone()]);
    match x {
        Operand::Scalar(Scalar::Float(number)) if !dtype.is_float() => {
            Err(GraphError::argument(op, name, number, expected()))
        }
        Operand::Scalar(number) => match (number.to_tensor(dtype), like.graph_value()) {
            (Ok(x), Some(like)) => all(ops::constant(&like.graph(), x, dtype, like.device())?.into()),
            (Ok(_), None) => all(Tensor::full_like(TensorType::new(dtype, (), like.device()), *number)?),
            (Err(_), _) => Err(GraphError::argument(op, name, number, expected())),
        },
        Operand::Tensor(x) if dtype.is_float() == is_float(x.dtype()) && is_number(x.dtype()) => {
            match x.shape().dims() {
                [] => all(f::cast(x, dtype)?),
                [count] if count == rows => f::cast(x, dtype),
                _ => Err(GraphError::argument(op, name, x.ty(), expected())),
            }
        }
        Operand::Tensor(x) => Err(GraphError::argument(op, name, x.ty(), expected())),
        Operand::Buffer(x) => Err(GraphError::argument(op, name, x.ty(), format!("{}; load the buffer", expected()))),
    }
}

fn is_float(dtype: DType) -> bool {
    dtype.is_float() && !dtype.is_float8()
}

fn is_number(dtype: DType) -> bool {
    is_float(dtype) || dtype.is_integral()
}
