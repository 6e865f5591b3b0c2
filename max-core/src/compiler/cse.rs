//! Common subexpressions: pure nodes with the same op, operands and result types are computed once, where the first one
//! stands.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use smallvec::SmallVec;

use super::rewrite::{identity, rewrite};
use super::{Context, Outcome};
use crate::driver::Tensor;
use crate::graph::{GraphData, Node, Op, ValueId};

/// Constants up to this size are compared by their bytes.
const COMPARED_BYTES: usize = 64;

pub(super) fn share(graph: &mut GraphData, _: &Context<'_>) -> Outcome {
    let mut replaced = identity(graph);
    let mut keep = vec![true; graph.nodes.len()];
    let mut seen: HashMap<u64, SmallVec<[usize; 1]>> = HashMap::with_capacity(graph.nodes.len());
    for (index, node) in graph.nodes.iter().enumerate() {
        if node.chain.is_some() || matches!(node.op, Op::Input(_) | Op::Rebind { .. }) {
            continue;
        }
        let operands: SmallVec<[ValueId; 4]> = node.operands.iter().map(|id| replaced[id.index()]).collect();
        let mut hasher = DefaultHasher::new();
        std::mem::discriminant(&node.op).hash(&mut hasher);
        operands.hash(&mut hasher);
        match &node.op {
            Op::Kernel(call) => call.name.hash(&mut hasher),
            Op::Constant(tensor) => bytes(tensor).hash(&mut hasher),
            _ => {}
        }
        let candidates = seen.entry(hasher.finish()).or_default();
        let equal = |&&other: &&usize| {
            let other = &graph.nodes[other];
            let of_other = other.operands.iter().map(|id| replaced[id.index()]);
            of_other.eq(operands.iter().copied()) && same_op(&other.op, &node.op) && same_results(graph, other, node)
        };
        match candidates.iter().find(equal) {
            None => candidates.push(index),
            Some(&first) => {
                keep[index] = false;
                for (own, other) in node.results().zip(graph.nodes[first].results()) {
                    replaced[own.index()] = other;
                }
            }
        }
    }
    rewrite(graph, &keep, &replaced);
    Ok(())
}

fn same_results(graph: &GraphData, a: &Node, b: &Node) -> bool {
    a.device == b.device && a.results().map(|id| graph.ty(id)).eq(b.results().map(|id| graph.ty(id)))
}

fn same_op(a: &Op, b: &Op) -> bool {
    match (a, b) {
        (Op::Kernel(a), Op::Kernel(b)) => a == b,
        (Op::Constant(a), Op::Constant(b)) => match (bytes(a), bytes(b)) {
            (Some(a), Some(b)) => a == b,
            _ => a.data_ptr() == b.data_ptr(),
        },
        (Op::Permute(a), Op::Permute(b)) => a == b,
        (Op::Slice(a), Op::Slice(b)) => a == b,
        (Op::Concat(a), Op::Concat(b)) => a == b,
        (Op::ShapeToTensor(a), Op::ShapeToTensor(b)) => a == b,
        (Op::Reshape, Op::Reshape) | (Op::BroadcastTo, Op::BroadcastTo) | (Op::TransferTo, Op::TransferTo) => true,
        _ => false,
    }
}

/// The bytes of a small constant.
fn bytes(tensor: &Tensor) -> Option<&[u8]> {
    let readable = tensor.is_host() && tensor.is_contiguous() && tensor.num_bytes() <= COMPARED_BYTES;
    // SAFETY: the memory of a contiguous host tensor, which nobody can write while it is borrowed.
    readable.then(|| unsafe { std::slice::from_raw_parts(tensor.data_ptr(), tensor.num_bytes()) })
}
