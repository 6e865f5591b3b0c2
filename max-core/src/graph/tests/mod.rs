//! Tests of graph building: type rules, texts, errors.

mod attention;
mod custom;
mod errors;
mod images;
mod mistakes;
mod philox;
mod places;
mod random;
mod rules;
mod text;

use super::*;
use crate::driver::DeviceRef;
use crate::dtype::DType;

fn f32_type(shape: impl Into<Shape>) -> TensorType {
    TensorType::new(DType::F32, shape, DeviceRef::CPU)
}

/// A graph with inputs of these types, and the inputs as tensors.
#[track_caller]
fn inputs<const N: usize>(types: [TensorType; N]) -> (Graph, [TensorValue; N]) {
    let graph = Graph::new("test", types);
    let values: Vec<_> = graph.inputs().iter().map(|value| value.tensor().unwrap().clone()).collect();
    (graph, values.try_into().unwrap())
}

/// A tensor with this dtype and shape, in a graph of its own.
fn tensor(dtype: DType, shape: impl Into<Shape>) -> TensorValue {
    let (_, [value]) = inputs([TensorType::new(dtype, shape, DeviceRef::CPU)]);
    value
}
