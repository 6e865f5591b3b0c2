//! The graph of a step: new tokens of a ragged batch, behind those of a paged cache, to logits.

use max::nn::kv_cache::{KvCacheParams, PagedKvCacheValues};
use max::nn::transformer::Step;
use max::tensor::Tensor;
use max_core::driver::DeviceRef;
use max_core::dtype::DType;
use max_core::graph::{Graph, TensorType, Type, Value};

use crate::error::Result;
use crate::registry::TextModel;

/// The inputs before those of the cache.
const SHARED_INPUTS: usize = 3;

/// The graph of a step, for any number of sequences and tokens. Its inputs: the rows that logits are wanted of, new tokens, their
/// positions, and those of the cache.
pub(super) fn step_graph(model: &dyn TextModel, layers: &[KvCacheParams]) -> Result<Graph> {
    let device = DeviceRef::CPU;
    let mut types: Vec<Type> = vec![
        TensorType::new(DType::I64, ("rows",), device).into(),
        TensorType::new(DType::I64, ("tokens",), device).into(),
        TensorType::new(DType::I64, ("tokens",), device).into(),
    ];
    types.extend(PagedKvCacheValues::input_types(layers, device));
    let graph = Graph::new("step", types);
    let (shared, cache) = graph.inputs().split_at(SHARED_INPUTS);
    let [rows, tokens, positions] = [0, 1, 2].map(|i| shared[i].tensor());
    let step = Step {
        tokens: Tensor::from(tokens?),
        positions: Tensor::from(positions?),
        rows: Some(rows?.into()),
        cache: Some(PagedKvCacheValues::new(cache)?),
    };
    let logits: Value = (&model.logits(&step)?).into();
    graph.output(logits)?;
    Ok(graph)
}
