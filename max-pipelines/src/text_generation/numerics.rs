//! [`NumericsCheck`]: a debug mode that names the layer whose output is the first that is not finite.

use std::ops::Range;

use max::functional as f;
use max::nn::StateDict;
use max::tensor::Tensor as Value;
use max_core::driver::Tensor;
use max_core::dtype::DType;
use max_core::graph::{Dim, GraphError};

use crate::error::Result;

/// What the rows of a layer's output are.
#[derive(Clone, Copy)]
enum Rows {
    /// The new tokens of a step.
    Tokens,
    /// Those of them whose logits are wanted.
    Wanted,
}

/// The layers whose outputs a step's graph checks, in the order in which they run.
pub(super) struct NumericsCheck {
    layers: Vec<(String, Rows)>,
}

impl NumericsCheck {
    /// Of what layers give in a graph of so many tokens and rows, and the results that it is to have more: a number for each row, 0 or
    /// NaN. Outputs of other rows, such as those of an expert's own tokens, are left out.
    pub(super) fn new(
        activations: &StateDict,
        tokens: &Dim,
        wanted: &Dim,
    ) -> Result<(NumericsCheck, Vec<Value>), GraphError> {
        let (mut layers, mut results) = (Vec::new(), Vec::new());
        for (name, output) in activations.iter() {
            let rows = match output.shape().dims() {
                [rows, _, ..] if rows == tokens => Rows::Tokens,
                [rows, _, ..] if rows == wanted => Rows::Wanted,
                _ => continue,
            };
            if !output.dtype().is_float() {
                continue;
            }
            // A number that is not finite, times 0, is NaN, and so is a sum with it.
            let flat = f::flatten(f::cast(output, DType::F32)?, 1, -1)?;
            results.push(f::squeeze(f::sum(f::mul(flat, 0.0)?, -1)?, -1)?);
            layers.push((name.to_owned(), rows));
        }
        Ok((NumericsCheck { layers }, results))
    }

    /// The first layer whose output is not finite for one of some tokens of a step, and the first of these tokens. `results` are those
    /// of [`new`](Self::new), and `rows` are the tokens whose logits are wanted.
    pub(super) fn first_layer(
        &self,
        results: &[Tensor],
        tokens: &Range<usize>,
        rows: &[i64],
    ) -> Result<Option<(&str, usize)>> {
        for ((name, kind), result) in self.layers.iter().zip(results) {
            let values = result.to_vec::<f32>()?;
            let found = match kind {
                Rows::Tokens => tokens.clone().find(|token| values.get(*token).is_some_and(|value| value.is_nan())),
                Rows::Wanted => rows.iter().zip(&values).find_map(|(row, value)| {
                    let token = usize::try_from(*row).ok().filter(|token| tokens.contains(token))?;
                    value.is_nan().then_some(token)
                }),
            };
            if let Some(token) = found {
                return Ok(Some((name, token)));
            }
        }
        Ok(None)
    }
}
