//! The graph of a step: tokens of several sequences, each behind those of its cache, to logits.

use max::functional as f;
use max::nn::transformer::{KvCacheValues, Step};
use max::tensor::Tensor;
use max_core::driver::DeviceRef;
use max_core::dtype::DType;
use max_core::graph::{Dim, Graph, TensorType, Type, Value};

use crate::error::Result;
use crate::registry::TextModel;

/// The inputs before those of the sequences: the rows that logits are wanted of.
pub(super) const SHARED_INPUTS: usize = 1;

/// The inputs of a sequence before its buffers: its tokens, and as many of nothing as there were before.
pub(super) const SEQUENCE_INPUTS: usize = 2;

/// A graph of `slots` sequences. Its inputs: rows; then for each sequence tokens, a tensor of the length of those before, and the
/// buffers of all layers. A sequence without new tokens costs next to nothing.
pub(super) fn step_graph(model: &dyn TextModel, slots: usize) -> Result<Graph> {
    let device = DeviceRef::CPU;
    let layers = model.kv_params();
    let per_slot = SEQUENCE_INPUTS + 2 * layers.len();
    let mut types: Vec<Type> = vec![TensorType::new(DType::I64, ("rows",), device).into()];
    for slot in 0..slots {
        let (new, past, room) = (dim("new", slot), dim("past", slot), dim("room", slot));
        types.push(TensorType::new(DType::I64, [new], device).into());
        // Only its shape is read: it has no memory.
        types.push(TensorType::new(DType::U8, [past, Dim::from(0)], device).into());
        for layer in &layers {
            types.extend([(); 2].map(|()| Type::from(layer.buffer_type(room.clone(), device))));
        }
    }
    let graph = Graph::new("step", types);
    let (shared, sequences) = graph.inputs().split_at(SHARED_INPUTS);
    let (mut tokens, mut positions, mut caches) = (Vec::new(), Vec::new(), Vec::new());
    for (slot, inputs) in sequences.chunks(per_slot).enumerate() {
        let (new, past) = (dim("new", slot), dim("past", slot));
        tokens.push(Tensor::from(inputs[0].tensor()?));
        let range = max_core::graph::ops::range(&graph, past.clone(), past.clone() + &new, 1, DType::I64, device)?;
        positions.push(f::reshape(range, [new.clone()])?);
        caches.push(KvCacheValues::new(&inputs[SEQUENCE_INPUTS..], past, new)?);
    }
    let joined = |mut parts: Vec<Tensor>| match parts.len() {
        1 => Ok(parts.swap_remove(0)),
        _ => f::concat(parts, 0),
    };
    let step = Step {
        tokens: joined(tokens)?,
        positions: joined(positions)?,
        rows: Some(shared[0].tensor()?.into()),
        sequences: caches,
    };
    let logits = model.logits(&step)?;
    let logits: Value = (&logits).into();
    graph.output(logits)?;
    Ok(graph)
}

fn dim(name: &str, slot: usize) -> Dim {
    Dim::from(format!("{name}_{slot}").as_str())
}
