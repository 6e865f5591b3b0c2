//! Constant folding: what depends on constants alone, and is small, is computed at load, by the kernels that would compute
//! it at each execution.

use super::rewrite::{identity, rewrite};
use super::{Context, Outcome, compile_after};
use crate::driver::DeviceRef;
use crate::engine::plan::Plan;
use crate::graph::{GraphData, Node, Op, Type};

/// Results up to this size are computed at load.
const FOLDED_BYTES: i64 = 64 << 10;

pub(super) fn fold(graph: &mut GraphData, context: &Context<'_>) -> Outcome {
    let mut known = vec![false; graph.nodes.len()];
    for (index, node) in graph.nodes.iter().enumerate() {
        let operands_known = node.operands.iter().all(|id| known[graph.value(*id).node.index()]);
        known[index] = match &node.op {
            Op::Constant(_) => true,
            Op::ShapeToTensor(shape) => shape.is_static(),
            _ => operands_known && (is_view(node) || is_computed(node)) && is_small(graph, node),
        };
    }
    // Of what is known, views stay: they cost nothing. What others read of the rest becomes constants.
    let folded = |index: usize| known[index] && is_computed(&graph.nodes[index]);
    let mut read = vec![false; graph.values.len()];
    for (index, node) in graph.nodes.iter().enumerate() {
        if !folded(index) {
            node.operands.iter().for_each(|id| read[id.index()] = true);
        }
    }
    graph.outputs.iter().flatten().for_each(|id| read[id.index()] = true);
    let of_interest = |&index: &usize| folded(index) && read[graph.nodes[index].first_result.index()];
    let constants: Vec<usize> = (0..graph.nodes.len()).filter(of_interest).collect();
    if constants.is_empty() {
        return Ok(());
    }

    let mut part = graph.clone();
    part.outputs = Some(constants.iter().map(|&index| graph.nodes[index].first_result).collect());
    part.inputs.clear();
    rewrite(&mut part, &known, &identity(graph));
    // Wherever the values are used, the host computes them.
    part.nodes.iter_mut().for_each(|node| node.device = DeviceRef::CPU);
    for value in &mut part.values {
        if let Type::Tensor(ty) = &mut value.ty {
            ty.device = DeviceRef::CPU;
        }
    }
    let (part, draft) = compile_after("fold", part, context)?;
    let results = Plan::new(&part, draft, context)?.run(&mut [])?;
    for (index, tensor) in constants.into_iter().zip(results) {
        let node = &mut graph.nodes[index];
        node.op = Op::Constant(tensor);
        node.operands.clear();
    }
    Ok(())
}

fn is_view(node: &Node) -> bool {
    matches!(node.op, Op::Reshape | Op::Permute(_) | Op::BroadcastTo | Op::Slice(_) | Op::TransferTo)
}

/// Whether a node computes a single result without side effects.
fn is_computed(node: &Node) -> bool {
    let computes = matches!(node.op, Op::Kernel(_) | Op::Concat(_) | Op::ShapeToTensor(_));
    computes && node.chain.is_none() && node.result_count == 1
}

/// Whether the results take few bytes; of a view, those that it could take as a constant do not count.
fn is_small(graph: &GraphData, node: &Node) -> bool {
    is_view(node)
        || node.results().all(|id| {
            let ty = graph.ty(id);
            let bytes = ty.shape().num_elements() * ty.dtype().size_in_bytes();
            bytes.as_static().is_some_and(|bytes| bytes <= FOLDED_BYTES)
        })
}
