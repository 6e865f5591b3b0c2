//! [`token_sampler`]: the graph from logits to the next tokens of a batch.

use max::functional as f;
use max::nn::kernels::{
    Penalties, SamplingOptions, apply_penalties_to_logits, scatter_set_constant, topk_fused_sampling,
};
use max::tensor::Tensor;
use max_core::driver::DeviceRef;
use max_core::dtype::DType;
use max_core::graph::{BufferType, Dim, DimSlice, Graph, GraphError, TensorType, Type, Value, ops};

use crate::error::Result;

/// What the graph of [`token_sampler`] takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SamplingConfig {
    /// The dtype of the logits that come in.
    pub in_dtype: DType,
    /// The dtype that they are sampled in, and returned in.
    pub out_dtype: DType,
    /// Whether there is a mask of the tokens that may be drawn.
    pub enable_structured_output: bool,
    /// Whether a sequence has any number of rows, of which the last counts.
    pub enable_variable_logits: bool,
    /// Whether there are penalties for tokens that came before.
    pub do_penalties: bool,
    /// Whether there are tokens that must not be drawn yet.
    pub enable_min_tokens: bool,
}

impl Default for SamplingConfig {
    /// Logits of `float32`, and nothing else.
    fn default() -> Self {
        SamplingConfig {
            in_dtype: DType::F32,
            out_dtype: DType::F32,
            enable_structured_output: false,
            enable_variable_logits: false,
            do_penalties: false,
            enable_min_tokens: false,
        }
    }
}

/// The graph from logits to the next token of each sequence, by [`topk_fused_sampling`]. Its inputs, in this order:
///
/// | input | type | if |
/// | --- | --- | --- |
/// | logits | `in_dtype`, `[batch, vocabulary]`, with variable logits `[rows, vocabulary]`; a buffer, which changes, with penalties or minimal tokens | |
/// | the tokens so far | `int64`, `[batch, previous]` | |
/// | `top_k` | `int64`, `[batch]` | |
/// | temperature, `top_p`, `min_p` | `float32`, `[batch]` each | |
/// | seeds | `int64`, `[batch]` | |
/// | where the rows of each sequence begin, and where the last ones end | `int64`, `[offsets]` | `enable_variable_logits` |
/// | frequency data, and its offsets | `int32`, `[entries, 2]`; `uint32`, `[frequency_offsets]` | `do_penalties` |
/// | frequency, presence and repetition penalties | `float32`, `[batch]` each | `do_penalties` |
/// | rows and tokens that are ruled out | `int64`, `[ruled_out, 2]` | `enable_min_tokens` |
/// | the tokens that may be drawn | `bool`, `[batch, vocabulary]` | `enable_structured_output` |
///
/// Its results are the tokens, `int64` `[batch, 1]`, those so far with them, `[batch, previous + 1]`, and with `return_logits` the logits
/// that they were drawn from, `out_dtype` `[batch, vocabulary]`. A token is -1 where a row has none.
///
/// ```
/// # max_kernels::link();
/// use max_core::driver::{DeviceRef, Tensor};
/// use max_core::engine::InferenceSession;
/// use max_pipelines::{SamplingConfig, token_sampler};
///
/// let model = InferenceSession::new().load(&token_sampler(&SamplingConfig::default(), DeviceRef::CPU, false)?)?;
/// let logits = Tensor::from_slice(&[0.5f32, 3.0, 1.0], [1, 3])?;
/// let (so_far, one, zero) = (Tensor::from_slice(&[7i64], [1, 1])?, Tensor::from_slice(&[1.0f32], [1])?, [0.0f32]);
/// let (min_p, seed) = (Tensor::from_slice(&zero, [1])?, Tensor::from_slice(&[42i64], [1])?);
/// let results = model.execute([&logits, &so_far, &Tensor::from_slice(&[1i64], [1])?, &one, &one, &min_p, &seed])?;
/// assert_eq!(results[0].to_vec::<i64>()?, [1]);
/// assert_eq!(results[1].to_vec::<i64>()?, [7, 1]);
/// # Ok::<(), max_pipelines::PipelineError>(())
/// ```
///
/// # Errors
/// When a dtype is none of `float16`, `bfloat16`, `float32` and `float64`; of variable logits with penalties or minimal tokens, whose rows
/// would not be those of sequences.
#[track_caller]
pub fn token_sampler(config: &SamplingConfig, device: DeviceRef, return_logits: bool) -> Result<Graph> {
    const OP: &str = "token_sampler";
    let in_place = config.do_penalties || config.enable_min_tokens;
    for (name, dtype) in [("in_dtype", config.in_dtype), ("out_dtype", config.out_dtype)] {
        if !dtype.is_float() || dtype.is_float8() {
            let expected = "float16, bfloat16, float32 or float64";
            return Err(GraphError::argument(OP, name, dtype, expected).into());
        }
    }
    if in_place && config.enable_variable_logits {
        let expected = "false with `do_penalties` or `enable_min_tokens`: gather the last rows before";
        return Err(GraphError::argument(OP, "enable_variable_logits", true, expected).into());
    }
    let rows = if config.enable_variable_logits { "rows" } else { "batch" };
    let vector = |dtype, size: &str| Type::from(TensorType::new(dtype, (size,), device));
    let matrix =
        |dtype, rows: &str, columns: Dim| Type::from(TensorType::new(dtype, [Dim::from(rows), columns], device));
    let logits = TensorType::new(config.in_dtype, (rows, "vocabulary"), device);
    let floats = || [(); 3].map(|()| vector(DType::F32, "batch"));
    let mut types = vec![
        if in_place { BufferType::new(logits.dtype, logits.shape, device).into() } else { logits.into() },
        matrix(DType::I64, "batch", Dim::from("previous")),
        vector(DType::I64, "batch"),
    ];
    types.extend(floats());
    types.push(vector(DType::I64, "batch"));
    if config.enable_variable_logits {
        types.push(vector(DType::I64, "offsets"));
    }
    if config.do_penalties {
        types.extend([matrix(DType::I32, "entries", 2.into()), vector(DType::U32, "frequency_offsets")]);
        types.extend(floats());
    }
    if config.enable_min_tokens {
        types.push(matrix(DType::I64, "ruled_out", 2.into()));
    }
    if config.enable_structured_output {
        types.push(matrix(DType::Bool, "batch", Dim::from("vocabulary")));
    }
    let graph = Graph::new(OP, types);
    let (logits, rest) = graph.inputs().split_at(1);
    let rest = rest.iter().map(|input| Ok(Tensor::from(input.tensor()?)));
    let mut rest = rest.collect::<Result<Vec<Tensor>, GraphError>>()?.into_iter();
    let mut next = || rest.next().ok_or_else(|| GraphError::argument(OP, "inputs", 0, "one more"));
    let (previous, top_k) = (next()?, next()?);
    let (temperature, top_p, min_p) = (next()?.into(), next()?.into(), next()?.into());
    let options = SamplingOptions { temperature, top_p, min_p, seed: next()?.into() };
    let offsets = if config.enable_variable_logits { Some(next()?) } else { None };
    if config.do_penalties {
        let (data, offsets) = (next()?, next()?);
        let [frequency_penalty, presence_penalty, repetition_penalty] = [next()?, next()?, next()?].map(Into::into);
        let penalties = Penalties { frequency_penalty, presence_penalty, repetition_penalty };
        apply_penalties_to_logits(logits[0].buffer()?, &data, &offsets, &penalties)?;
    }
    if config.enable_min_tokens {
        scatter_set_constant(logits[0].buffer()?, &next()?, f64::NEG_INFINITY)?;
    }
    let mut logits = Tensor::from(if in_place { logits[0].buffer()?.load()? } else { logits[0].tensor()?.clone() });
    if let Some(offsets) = offsets {
        let last = f::sub(f::slice_tensor(offsets, [DimSlice::from(1i64..)])?, 1i64)?;
        let message = "`token_sampler`: there must be an offset more than sequences";
        let last = ops::rebind(Value::from(&last).tensor()?, [Dim::from("batch")], message)?;
        logits = f::gather(logits, Tensor::from(last), 0)?;
    }
    logits = f::cast(logits, config.out_dtype)?;
    if config.enable_structured_output {
        logits = f::where_(next()?, logits, f64::NEG_INFINITY)?;
    }
    let tokens = topk_fused_sampling(&logits, top_k, &options)?;
    let generated = f::concat([&previous, &tokens], 1)?;
    let results = [&tokens, &generated].into_iter().chain(return_logits.then_some(&logits));
    graph.output(results.map(Value::from).collect::<Vec<_>>())?;
    Ok(graph)
}
