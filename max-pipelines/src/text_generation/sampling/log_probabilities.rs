//! [`LogProbabilities`]: how likely the model took tokens to be; and the graph that computes them where logits are.

use max::functional as f;
use max::tensor::Tensor;
use max_core::driver::{DeviceRef, Tensor as DriverTensor};
use max_core::dtype::DType;
use max_core::engine::Model;
use max_core::graph::{Graph, GraphError, TensorType, Value};

use crate::error::{PipelineError, Result};

/// The log probabilities of a token, and of the likeliest in its place. They are natural logarithms of the model's own
/// softmax, before penalties, masks and temperature.
///
/// The lists have one entry for each token. With [`echo`](crate::TextGenerationRequest::echo), those of the first new token
/// begin with an entry for each of the prompt's tokens but the first.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct LogProbabilities {
    /// Those of the tokens themselves.
    pub token_log_probabilities: Vec<f32>,
    /// The likeliest tokens and theirs, the likeliest first; of equally likely ones the least token.
    pub top_log_probabilities: Vec<Vec<(u32, f32)>>,
}

impl LogProbabilities {
    /// Adds `token`, which stands where the model computed `logits`, and the `top` likeliest.
    pub(in crate::text_generation) fn push(&mut self, token: u32, logits: &[f32], top: usize) {
        let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = logits.iter().map(|logit| f64::from(logit - largest).exp()).sum();
        let normalizer = f64::from(largest) + sum.ln();
        let log = |logit: f32| (f64::from(logit) - normalizer) as f32;
        self.token_log_probabilities.push(logits.get(token as usize).map_or(f32::NEG_INFINITY, |logit| log(*logit)));
        let mut likeliest: Vec<(u32, f32)> = (0..).zip(logits.iter().copied()).collect();
        let order = |(a, x): &(u32, f32), (b, y): &(u32, f32)| y.total_cmp(x).then(a.cmp(b));
        if top < likeliest.len() {
            likeliest.select_nth_unstable_by(top, order);
            likeliest.truncate(top);
        }
        likeliest.sort_unstable_by(order);
        self.top_log_probabilities.push(likeliest.into_iter().map(|(token, logit)| (token, log(logit))).collect());
    }
}

/// The graph that [`compute_log_probabilities_ragged`] takes: of up to `2^levels - 1` of the likeliest tokens for each row. Its inputs are
/// logits, `float32` `[tokens, vocabulary]`, which rows of them count, `int64` `[rows]`, and the token of each, `int64` `[rows]`; its results
/// the tokens' log probabilities, `float32` `[rows]`, the largest of each row, `[rows, 2^levels - 1]`, and their tokens, `int64`.
///
/// # Errors
/// When `levels` is 0, or above 16.
#[track_caller]
pub fn log_probabilities_ragged_graph(device: DeviceRef, levels: u32) -> Result<Graph> {
    const OP: &str = "log_probabilities_ragged_graph";
    if !(1..=16).contains(&levels) {
        return Err(GraphError::argument(OP, "levels", levels, "from 1 to 16: 2^levels - 1 tokens of each row").into());
    }
    let indices = || TensorType::new(DType::I64, ("rows",), device);
    let types = [TensorType::new(DType::F32, ("tokens", "vocabulary"), device), indices(), indices()];
    let graph = Graph::build(OP, types, |_, inputs| {
        let [logits, rows, tokens] = [0, 1, 2].map(|i| inputs[i].tensor().map(Tensor::from));
        let log_probabilities = f::logsoftmax(f::gather(logits?, rows?, 0)?, -1)?;
        let of_tokens = f::gather_nd(&log_probabilities, f::unsqueeze(tokens?, 1)?, 1)?;
        let (values, likeliest) = f::top_k(&log_probabilities, (1 << levels) - 1, -1)?;
        Ok([of_tokens, values, likeliest].iter().map(Value::from).collect::<Vec<_>>())
    })?;
    Ok(graph)
}

/// What [`compute_log_probabilities_ragged`] computes on: logits of a ragged batch.
#[derive(Clone, Copy)]
pub struct RaggedLogits<'a> {
    /// Where the tokens of each sequence begin, and where those of the last one end.
    pub input_row_offsets: &'a [usize],
    /// The logits behind each token, `float32` `[tokens, vocabulary]`; needed where a sequence echoes.
    pub logits: Option<&'a DriverTensor>,
    /// The logits behind the last token of each sequence, `float32` `[sequences, vocabulary]`.
    pub next_token_logits: &'a DriverTensor,
    /// The tokens.
    pub tokens: &'a [u32],
    /// The next token of each sequence.
    pub sampled_tokens: &'a [u32],
    /// How many of the likeliest tokens are given for each sequence; for 0 there is nothing.
    pub batch_top_n: &'a [usize],
    /// Whether a sequence has the log probabilities of its tokens, from the second on, before that of the next one.
    pub batch_echo: &'a [bool],
}

/// The log probabilities of the next tokens of a ragged batch, and of tokens that are echoed, by a model of
/// [`log_probabilities_ragged_graph`] on the device of the logits.
///
/// # Errors
/// When there are not as many of one thing as of another; when a token is none of the vocabulary; when a sequence wants
/// more tokens than the graph gives, or an echo without logits;
/// when the model fails.
pub fn compute_log_probabilities_ragged(
    model: &Model,
    batch: &RaggedLogits<'_>,
) -> Result<Vec<Option<LogProbabilities>>> {
    let fail = |argument, value: String, expected| Err(PipelineError::Argument { argument, value, expected });
    let sequences = batch.batch_top_n.len();
    let counts = [
        ("batch_echo", batch.batch_echo.len()),
        ("sampled_tokens", batch.sampled_tokens.len()),
        ("next_token_logits", batch.next_token_logits.shape().first().copied().unwrap_or_default()),
        ("input_row_offsets", batch.input_row_offsets.len().saturating_sub(1)),
    ];
    if let Some((argument, count)) = counts.into_iter().find(|(_, count)| *count != sequences) {
        return fail(argument, format!("of {count} sequences"), "of as many sequences as `batch_top_n`");
    }
    let offsets = batch.input_row_offsets.windows(2).map(|pair| (pair[0], pair[1]));
    if offsets.clone().any(|(from, to)| from > to || to > batch.tokens.len()) {
        let value = format!("{:?}, of {} tokens", batch.input_row_offsets, batch.tokens.len());
        return fail("input_row_offsets", value, "ascending, up to the number of tokens");
    }
    let wanted = || offsets.clone().zip(batch.batch_top_n).zip(batch.batch_echo).enumerate();
    // Of the logits behind each token, with the token that follows.
    let echoed: Vec<(usize, u32)> = wanted()
        .filter(|(_, ((_, top), echo))| **top > 0 && **echo)
        .flat_map(|(_, (((from, to), _), _))| (from + 1..to).map(|next| (next - 1, batch.tokens[next])))
        .collect();
    let next: Vec<(usize, u32)> = wanted()
        .filter(|(_, ((_, top), _))| **top > 0)
        .map(|(sequence, _)| (sequence, batch.sampled_tokens[sequence]))
        .collect();
    let mut echoed = match (batch.logits, &*echoed) {
        (_, []) => Rows::default(),
        (Some(logits), rows) => Rows::compute(model, logits, rows)?,
        (None, _) => return fail("logits", "none".into(), "those behind each token, for a sequence that echoes"),
    };
    let mut next = match &*next {
        [] => Rows::default(),
        rows => Rows::compute(model, batch.next_token_logits, rows)?,
    };
    let mut all = Vec::with_capacity(sequences);
    for (_, (((from, to), top), echo)) in wanted() {
        if *top == 0 {
            all.push(None);
            continue;
        }
        if *top > next.count {
            let expected = "at most the 2^levels - 1 tokens of the model's graph";
            return fail("batch_top_n", top.to_string(), expected);
        }
        let mut found = LogProbabilities::default();
        if *echo {
            (from + 1..to).for_each(|_| echoed.take(*top, &mut found));
        }
        next.take(*top, &mut found);
        all.push(Some(found));
    }
    Ok(all)
}

/// What the graph gives of some rows, which are taken one after the other.
#[derive(Default)]
struct Rows {
    own: Vec<f32>,
    values: Vec<f32>,
    tokens: Vec<i64>,
    /// The likeliest tokens of each row.
    count: usize,
    vocab_size: usize,
    taken: usize,
}

impl Rows {
    /// Of logits, the rows with the token of each.
    fn compute(model: &Model, logits: &DriverTensor, rows: &[(usize, u32)]) -> Result<Rows> {
        let vocab_size = logits.shape().last().copied().unwrap_or_default();
        if let Some((_, token)) = rows.iter().find(|(_, token)| *token as usize >= vocab_size) {
            return Err(PipelineError::Token { token: *token, vocab_size });
        }
        let integers = |values: Vec<i64>| DriverTensor::from_vec(values, [rows.len()])?.to(logits.device());
        let tokens = integers(rows.iter().map(|(_, token)| i64::from(*token)).collect())?;
        let rows = integers(rows.iter().map(|(row, _)| *row as i64).collect())?;
        let results = model.execute([logits, &rows, &tokens])?;
        let [own, values, tokens] = &*results else {
            let (argument, value) = ("model", format!("{} results", results.len()));
            return Err(PipelineError::Argument { argument, value, expected: "of `log_probabilities_ragged_graph`" });
        };
        Ok(Rows {
            own: own.to_vec()?,
            values: values.to_vec()?,
            tokens: tokens.to_vec()?,
            count: values.shape().last().copied().unwrap_or_default(),
            vocab_size,
            taken: 0,
        })
    }

    /// The next row, with its first `top` tokens: fewer where the vocabulary has fewer.
    fn take(&mut self, top: usize, into: &mut LogProbabilities) {
        let (row, first) = (self.taken, self.taken * self.count);
        self.taken += 1;
        into.token_log_probabilities.extend(self.own.get(row));
        let top = first..first + top.min(self.count).min(self.vocab_size);
        let likeliest = self.tokens.get(top.clone()).unwrap_or_default().iter().map(|token| *token as u32);
        let values = self.values.get(top).unwrap_or_default().iter().copied();
        into.top_log_probabilities.push(likeliest.zip(values).collect());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_add_up() {
        let mut found = LogProbabilities::default();
        let logits = [0.0, 2f32.ln(), 5f32.ln(), 2f32.ln()];
        found.push(0, &logits, 4);
        found.push(2, &logits, 2);
        assert!((found.token_log_probabilities[0] - 0.1f32.ln()).abs() < 1e-6);
        let tokens = |i: usize| found.top_log_probabilities[i].iter().map(|(token, _)| *token).collect::<Vec<_>>();
        assert_eq!((tokens(0), tokens(1)), (vec![2, 1, 3, 0], vec![2, 1]));
        let sum: f32 = found.top_log_probabilities[0].iter().map(|(_, log)| log.exp()).sum();
        assert!((sum - 1.0).abs() < 1e-6, "{sum}");
    }
}
