//! [`rejection_sampler`] and [`rejection_sampler_with_residuals`]: graphs that verify drafted tokens, so that what is taken is distributed as
//! the target's own tokens (Leviathan, Kalman and Matias: Fast Inference from Transformers via Speculative Decoding, 2023).

use max::functional as f;
use max::nn::kernels::{SamplingOptions, topk_fused_sampling};
use max::tensor::Tensor;
use max_core::driver::DeviceRef;
use max_core::dtype::DType;
use max_core::graph::{Dim, DimSlice, Graph, GraphError, Shape, TensorType, Value, ops};

use crate::error::Result;

/// How far the seeds of rows are apart, so that executions with near seeds share none.
const APART: i64 = 1 << 40;

/// The graph that verifies drafted tokens of which only the draft's own probability is known. Its inputs, in this order:
///
/// | input | type |
/// | --- | --- |
/// | the drafted tokens | `int64`, `[batch, steps]` |
/// | their log probabilities in the draft | `float32`, `[batch, steps]` |
/// | logits of the target: of each sequence, those in the place of each drafted token, and those behind the last one | `float32`, `[rows, vocabulary]` |
/// | where the rows of each sequence begin, and where the last ones end | `int64`, `[offsets]` |
/// | a number that is added to `seed`, another one for each execution | `int64`, `[]` |
///
/// Its results are the number of drafted tokens that are taken, `int64` `[batch, 1]`, and the token behind these, `[batch, 1]`, drawn from
/// the target's logits there. That leaves tokens a little more to the draft than the target would:
/// [`rejection_sampler_with_residuals`] does not, and needs all logits of the draft for it.
///
/// # Errors
/// None that an argument could cause; a `Result` as of all graphs.
#[track_caller]
pub fn rejection_sampler(device: DeviceRef, seed: i64) -> Result<Graph> {
    let ty = |dtype, shape: Shape| TensorType::new(dtype, shape, device);
    let drafted = Shape::from(["batch", "steps"].map(Dim::from));
    let types = [
        ty(DType::I64, drafted.clone()),
        ty(DType::F32, drafted),
        ty(DType::F32, ["rows", "vocabulary"].map(Dim::from).into()),
        ty(DType::I64, [Dim::from("offsets")].into()),
        ty(DType::I64, Shape::default()),
    ];
    let graph = Graph::new("rejection_sampler", types);
    let [tokens, draft, target, offsets, more] = inputs(&graph)?;
    let draws = Draws { seed: f::add(more, seed)?, begins: begins(&graph, &offsets)?, target: target.clone() };
    let in_target = f::softmax(draws.rows_of(&tokens)?, -1)?;
    let (_, accepted) = accepted(&draws, &of_tokens(&in_target, &tokens)?, &f::exp(draft)?)?;
    let taken = taken(&draws, &accepted)?;
    let behind = f::gather(target, f::add(&draws.begins, f::squeeze(&taken, 1)?)?, 0)?;
    let token = draws.draw(&behind, 0)?;
    graph.output([&taken, &token].map(Value::from))?;
    Ok(graph)
}

/// The graph that verifies drafted tokens by the logits of both models. Its inputs are as those of [`rejection_sampler`], but for the second:
/// the draft's logits in the place of each drafted token, `float32` `[batch, steps, vocabulary]`.
///
/// Its results are the number of drafted tokens that are taken, `int64` `[batch, 1]`; a token for the place of each drafted one, which is to
/// be taken where that is the first not to be, `[batch, steps]`; and one for the place behind the last, if all are taken, `[batch, 1]`. Tokens
/// are distributed as those of the target. With `debug` there are the probabilities that each drafted token is taken with, and the random
/// numbers that decided it, `float32` `[batch, steps]` each.
///
/// # Errors
/// None that an argument could cause; a `Result` as of all graphs.
#[track_caller]
pub fn rejection_sampler_with_residuals(device: DeviceRef, seed: i64, debug: bool) -> Result<Graph> {
    let ty = |dtype, shape: Shape| TensorType::new(dtype, shape, device);
    let types = [
        ty(DType::I64, ["batch", "steps"].map(Dim::from).into()),
        ty(DType::F32, ["batch", "steps", "vocabulary"].map(Dim::from).into()),
        ty(DType::F32, ["rows", "vocabulary"].map(Dim::from).into()),
        ty(DType::I64, [Dim::from("offsets")].into()),
        ty(DType::I64, Shape::default()),
    ];
    let graph = Graph::new("rejection_sampler_with_residuals", types);
    let [tokens, draft, target, offsets, more] = inputs(&graph)?;
    let draws = Draws { seed: f::add(more, seed)?, begins: begins(&graph, &offsets)?, target: target.clone() };
    let in_target = f::softmax(draws.rows_of(&tokens)?, -1)?;
    let in_draft = f::softmax(draft, -1)?;
    let [of_target, of_draft] = [of_tokens(&in_target, &tokens)?, of_tokens(&in_draft, &tokens)?];
    let (random, accepted) = accepted(&draws, &of_target, &of_draft)?;
    let taken = taken(&draws, &accepted)?;
    // What the target has more of a token than the draft. Rounding may leave nothing of two distributions that are the same.
    let residual = f::maximum(f::sub(&in_target, in_draft)?, 0.0)?;
    let is_left = f::greater(f::max(&residual, -1)?, 0.0)?;
    let residual = f::log(f::where_(is_left, residual, in_target)?)?;
    let dims = [Dim::from("batch") * Dim::from("steps"), Dim::from("vocabulary")];
    let recovered = draws.draw(&f::reshape(residual, dims)?, 1)?;
    let recovered = f::reshape(recovered, [Dim::from("batch"), Dim::from("steps")])?;
    let last = ops::add(Value::from(&draws.begins).tensor()?, Dim::from("steps"))?;
    let bonus = draws.draw(&f::gather(target, Tensor::from(last), 0)?, 0)?;
    let mut results = vec![taken, recovered, bonus];
    if debug {
        results.extend([f::minimum(f::div(of_target, of_draft)?, 1.0)?, random]);
    }
    graph.output(results.iter().map(Value::from).collect::<Vec<_>>())?;
    Ok(graph)
}

/// The inputs of a graph, all tensors.
fn inputs(graph: &Graph) -> Result<[Tensor; 5], GraphError> {
    let all = graph.inputs().iter().map(|input| Ok(Tensor::from(input.tensor()?)));
    let all = all.collect::<Result<Vec<_>, GraphError>>()?;
    all.try_into().map_err(|all: Vec<Tensor>| GraphError::argument("inputs", "inputs", all.len(), "five"))
}

/// The first row of each sequence: `[batch]`.
fn begins(graph: &Graph, offsets: &Tensor) -> Result<Tensor, GraphError> {
    let begins = f::slice_tensor(offsets, [DimSlice::from(..-1i64)])?;
    let message = format!("`{}`: there must be an offset more than sequences", graph.name());
    Ok(ops::rebind(Value::from(&begins).tensor()?, [Dim::from("batch")], &message)?.into())
}

/// What tokens are drawn with.
struct Draws {
    seed: Tensor,
    /// The first row of each sequence in the target's logits.
    begins: Tensor,
    target: Tensor,
}

impl Draws {
    /// The target's logits in the places of drafted tokens: `[batch, steps, vocabulary]`.
    fn rows_of(&self, tokens: &Tensor) -> Result<Tensor, GraphError> {
        let steps = numbers(tokens, &Dim::from("steps"))?;
        let rows = f::add(f::unsqueeze(&self.begins, 1)?, f::unsqueeze(steps, 0)?)?;
        f::gather(&self.target, rows, 0)
    }

    /// A token of each row of logits, of all tokens. Draws of one graph differ in `purpose`.
    fn draw(&self, logits: &Tensor, purpose: i64) -> Result<Tensor, GraphError> {
        let rows = numbers(logits, &logits.shape()[0])?;
        let row = f::add(f::mul(rows, 2i64)?, purpose + 1)?;
        let seeds = f::add(f::mul(row, APART)?, &self.seed)?;
        topk_fused_sampling(logits, -1i64, &SamplingOptions { seed: seeds.into(), ..SamplingOptions::default() })
    }
}

/// The numbers below a dim, in the graph of `like`: `int64`, `[dim]`.
fn numbers(like: &Tensor, dim: &Dim) -> Result<Tensor, GraphError> {
    let value = Value::from(like);
    Ok(ops::range(&value.tensor()?.graph(), 0, dim, 1, DType::I64, like.device())?.into())
}

/// The probability of each token, `[batch, steps]`, of `[batch, steps, vocabulary]`.
fn of_tokens(probabilities: &Tensor, tokens: &Tensor) -> Result<Tensor, GraphError> {
    f::gather_nd(probabilities, f::unsqueeze(tokens, 2)?, 2)
}

/// Random numbers, and which tokens are taken by them: `[batch, steps]` each.
fn accepted(draws: &Draws, of_target: &Tensor, of_draft: &Tensor) -> Result<(Tensor, Tensor), GraphError> {
    let seed = Value::from(&draws.seed);
    let random = Tensor::from(ops::random::uniform(seed.tensor()?, of_target.ty(), 0.0..1.0)?);
    let accepted = f::greater(of_target, f::mul(&random, of_draft)?)?;
    Ok((random, accepted))
}

/// How many tokens of each sequence come before the first that is not taken: `[batch, 1]`.
fn taken(draws: &Draws, accepted: &Tensor) -> Result<Tensor, GraphError> {
    let rejected = f::cast(f::logical_not(accepted)?, DType::I64)?;
    // One more, behind the last.
    let behind = f::unsqueeze(f::add(f::mul(&draws.begins, 0i64)?, 1i64)?, 1)?;
    f::argmax(f::concat([&rejected, &behind], 1)?, -1)
}
