//! The graph of a step: new tokens of a ragged batch, behind those of a paged cache, to logits.

use max::nn::kv_cache::{KvCacheParams, PagedKvCacheValues};
use max::nn::record_activations;
use max::nn::transformer::Step;
use max::tensor::Tensor;
use max_core::driver::DeviceRef;
use max_core::dtype::DType;
use max_core::graph::{Dim, Graph, TensorType, Type, Value};

use super::lora::lora_manager::LoraManager;
use super::numerics::NumericsCheck;
use crate::error::Result;
use crate::registry::TextModel;

/// The inputs before those of the cache.
const SHARED_INPUTS: usize = 3;

/// The graph of a step, for any number of sequences and tokens. Its inputs: the rows that logits are wanted of, new tokens, their
/// positions, those of adapters, and those of the cache. Its results: the logits, and what a check of numerics reads.
pub(super) fn step_graph(
    model: &dyn TextModel,
    layers: &[KvCacheParams],
    check_numerics: bool,
    lora: Option<&LoraManager>,
) -> Result<(Graph, Option<NumericsCheck>)> {
    let device = DeviceRef::CPU;
    let mut types: Vec<Type> = vec![
        TensorType::new(DType::I64, ("rows",), device).into(),
        TensorType::new(DType::I64, ("tokens",), device).into(),
        TensorType::new(DType::I64, ("tokens",), device).into(),
    ];
    let adapters = lora.map(LoraManager::input_types).unwrap_or_default();
    let behind = SHARED_INPUTS + adapters.len();
    types.extend(adapters.into_iter().map(Type::from));
    types.extend(PagedKvCacheValues::input_types(layers, device));
    let graph = Graph::new("step", types);
    let (shared, cache) = graph.inputs().split_at(behind);
    let cache = PagedKvCacheValues::new(cache)?;
    let [rows, tokens, positions] = [0, 1, 2].map(|i| shared[i].tensor());
    let step = Step {
        tokens: Tensor::from(tokens?),
        positions: Tensor::from(positions?),
        rows: Some(rows?.into()),
        cache: Some(cache.clone()),
    };
    let adapters = shared[SHARED_INPUTS..].iter().map(|value| value.tensor().cloned());
    let adapters = adapters.collect::<Result<Vec<_>, _>>()?;
    if !check_numerics {
        let logits = match lora {
            Some(lora) => lora.adapted(model, &adapters, &cache.input_row_offsets, || model.logits(&step))?,
            None => model.logits(&step)?,
        };
        let logits: Value = (&logits).into();
        graph.output(logits)?;
        return Ok((graph, None));
    }
    // What adapters add is part of a layer's output.
    let record = || record_activations(model, || model.logits(&step));
    let (logits, activations) = match lora {
        Some(lora) => lora.adapted(model, &adapters, &cache.input_row_offsets, record)?,
        None => record()?,
    };
    let (check, flags) = NumericsCheck::new(&activations, &Dim::from("tokens"), &Dim::from("rows"))?;
    graph.output(std::iter::once(&logits).chain(&flags).map(Value::from).collect::<Vec<_>>())?;
    Ok((graph, Some(check)))
}
