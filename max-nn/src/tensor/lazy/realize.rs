//! Realization: what a tensor is computed of becomes one graph, which is compiled once and found again by its structure.
//!
//! A region is all that the wanted tensors need and that has no value yet. Its key lists the ops in order, and for each
//! where its operands come from; types are part of an op's identity. Tensors with values, and numbers, are inputs of the
//! region's model: other values run the same model. What somebody else holds a handle of becomes a result as well, so that
//! nothing is computed twice.

use std::cell::Cell;
use std::sync::Arc;

use max_core::driver;
use max_core::engine::EngineError;
use max_core::graph::{self, GraphError};
use smallvec::{SmallVec, smallvec};

use super::attributes::Key;
use super::call::{Argument, Call, Eager};
use super::models;
use super::region::Region;
use crate::Result;

thread_local! {
    /// The memory of the last region.
    static REGION: Cell<Option<Box<Region>>> = const { Cell::new(None) };
    /// The memory of the last key.
    static KEY: Cell<Key> = Cell::default();
}

/// The inputs of a model.
type Inputs<'a> = SmallVec<[&'a driver::Tensor; 8]>;

/// Computes the tensors and all that they need.
///
/// # Errors
/// The first error of what they need, which all of them keep.
pub(crate) fn realize(targets: &[&Eager]) -> Result<()> {
    if let [target] = targets
        && (realize_view(target) || realize_alone(target))
    {
        return Ok(());
    }
    let mut region = REGION.take().unwrap_or_default();
    let result = targets.iter().try_for_each(|target| region.add(target)).and_then(|()| run(&region, targets));
    region.clear();
    REGION.set(Some(region));
    if let Err(error) = &result {
        targets.iter().for_each(|target| target.call.finish(Err(error.clone())));
    }
    result
}

/// A view of a tensor that has memory needs no graph. Whether it was one.
fn realize_view(target: &Eager) -> bool {
    let Some(staged) = target.call.op().filter(|staged| staged.is_view()) else { return false };
    let operand = match target.call.lock().first() {
        Some(Argument::Tensor(operand)) => operand.clone(),
        Some(Argument::Scalar(_)) | None => return false,
    };
    // As deep as chains of staged ops are, which regions alone make long; those are computed.
    if operand.call.depth > 64 || operand.value().is_none() && !realize_view(&operand) {
        return false;
    }
    let Some(Ok(value)) = operand.value() else { return false };
    match staged.view(value) {
        Some(view) => {
            target.call.finish(Ok(smallvec![view]));
            true
        }
        None => false,
    }
}

/// An op of different tensors that all have values keeps its model itself. Whether it was such a one, which is computed now.
fn realize_alone(target: &Eager) -> bool {
    let Some(model) = target.call.op().and_then(|staged| staged.alone.get()) else { return false };
    let arguments = target.call.lock();
    if let Some(outcome) = target.call.outcome() {
        return outcome.is_ok();
    }
    let mut inputs = Inputs::new();
    for (i, argument) in arguments.iter().enumerate() {
        match argument.value() {
            Some(Ok(value)) if !arguments[..i].iter().any(|other| other.is(argument)) => inputs.push(value),
            _ => return false,
        }
    }
    let outputs = model.execute(&inputs[..]);
    drop(inputs);
    drop(arguments);
    match outputs {
        Ok(outputs) => {
            finish(&target.call, &mut outputs.into_iter());
            true
        }
        // The same again, with its message.
        Err(_) => false,
    }
}

fn run(region: &Region, targets: &[&Eager]) -> Result<()> {
    if region.ops.is_empty() {
        return Ok(());
    }
    let wanted = region.wanted(targets);
    let mut key = KEY.take();
    key.clear();
    region.write(&wanted, &mut key);
    let found = models::find(region, &wanted, &key);
    KEY.set(key);
    let mut inputs = Inputs::new();
    region.inputs().for_each(|input| inputs.push(input));
    let mut found = found?;
    let mut outputs = found.model.execute(&inputs[..]);
    if found.is_general && !outputs.as_ref().is_ok_and(|outputs| are_as_inferred(region, &wanted, outputs)) {
        // Sizes do not tell what its class would: it gets a model of its own.
        found = models::own(region, &wanted)?;
        outputs = found.model.execute(&inputs[..]);
    }
    let outputs = outputs.map_err(|error| region.failed(error))?;
    if let [call] = &region.ops[..]
        && let Some(staged) = call.op()
        && region.sources.len() == region.num_operands()
        && !found.is_general
    {
        // Another thread may have been first, with the same.
        let _ = staged.alone.set(found.model);
    }
    let mut outputs = outputs.into_iter();
    for position in wanted {
        finish(&region.ops[position as usize], &mut outputs);
    }
    Ok(())
}

/// Gives an op its results, which are the next.
fn finish(call: &Call, outputs: &mut std::vec::IntoIter<driver::Tensor>) {
    let values = match (call.op().map_or(1, |staged| staged.results.len()), outputs.next()) {
        (1, Some(value)) => smallvec![value],
        (count, first) => first.into_iter().chain(outputs.take(count.saturating_sub(1))).collect(),
    };
    call.finish(Ok(values));
}

/// Whether the results have the shapes that were inferred when the ops were written.
fn are_as_inferred(region: &Region, wanted: &[u32], outputs: &[driver::Tensor]) -> bool {
    let calls = wanted.iter().filter_map(|position| region.ops[*position as usize].op());
    let types = calls.flat_map(|staged| &staged.results);
    types.zip(outputs).all(|(ty, output)| {
        let sizes = output.shape().iter().map(|size| Some(*size as i64));
        ty.dtype == output.dtype() && ty.shape.iter().map(graph::Dim::as_static).eq(sizes)
    })
}

impl Call {
    /// What an execution ended with, as an error of this op.
    pub fn failed(&self, error: EngineError) -> GraphError {
        let op = self.op().map_or("tensor", |staged| staged.op);
        graph::at(self.location, || GraphError::value(op, Arc::new(error)))
    }
}
