//! Common subexpressions: pure nodes with the same op, operands and result types are computed once, where the first one
//! stands.

use std::hash::{BuildHasher, Hash, Hasher};

use smallvec::SmallVec;

use super::super::context::{Context, Outcome};
use super::rewrite::{identity, rewrite};
use crate::driver::Tensor;
use crate::graph::{GraphData, Node, Op, ParamValue, ValueId};
use crate::hash_map::{HashMap, RandomState};
use crate::steps;

/// Constants up to this size are compared by their bytes.
const COMPARED_BYTES: usize = 64;
/// A node is compared with so many others of the same hash: more are of parameters that equal nothing, such as NaN.
const MAX_CANDIDATES: usize = 8;

pub(in crate::compiler) fn share(graph: &mut GraphData, _: &Context<'_>) -> Outcome {
    let mut replaced = identity(graph);
    let mut keep = vec![true; graph.nodes.len()];
    let mut seen: HashMap<u64, SmallVec<[usize; 1]>> =
        HashMap::with_capacity_and_hasher(graph.nodes.len(), RandomState::default());
    for (index, node) in graph.nodes.iter().enumerate() {
        let keeps = matches!(node.op, Op::Input(_) | Op::Rebind { .. } | Op::BindDims(_));
        if node.chain.is_some() || keeps || !node.op.regions().is_empty() {
            continue;
        }
        let operands: SmallVec<[ValueId; 4]> = node.operands.iter().map(|id| replaced[id.index()]).collect();
        let mut hasher = seen.hasher().build_hasher();
        operands.hash(&mut hasher);
        hash_op(&node.op, &mut hasher);
        node.results().for_each(|id| graph.ty(id).hash(&mut hasher));
        let candidates = seen.entry(hasher.finish()).or_default();
        let equal = |&&other: &&usize| {
            steps::count(1);
            let other = &graph.nodes[other];
            let of_other = other.operands.iter().map(|id| replaced[id.index()]);
            of_other.eq(operands.iter().copied()) && same_op(&other.op, &node.op) && same_results(graph, other, node)
        };
        match candidates.iter().find(equal) {
            None if candidates.len() < MAX_CANDIDATES => candidates.push(index),
            None => {}
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

/// All that an op says: many that differ in that alone may read one value, and must not meet in one entry of the map.
fn hash_op(op: &Op, hasher: &mut impl Hasher) {
    std::mem::discriminant(op).hash(hasher);
    match op {
        Op::Kernel(call) => {
            call.name.hash(hasher);
            call.axis.hash(hasher);
            for (name, value) in call.parameters.iter() {
                name.hash(hasher);
                hash_param(value, hasher);
            }
        }
        Op::Constant(tensor) => match bytes(tensor) {
            Some(bytes) => bytes.hash(hasher),
            None => tensor.data_ptr().hash(hasher),
        },
        Op::Permute(axes) => axes.hash(hasher),
        Op::Slice(axes) => axes.hash(hasher),
        Op::SlidingWindow(window) => window.hash(hasher),
        Op::Concat(axis) => axis.hash(hasher),
        Op::ShapeToTensor(shape) => shape.hash(hasher),
        _ => {}
    }
}

fn hash_param(value: &ParamValue, hasher: &mut impl Hasher) {
    match value {
        ParamValue::Int(v) => v.hash(hasher),
        ParamValue::Dim(v) => v.hash(hasher),
        ParamValue::Bool(v) => v.hash(hasher),
        ParamValue::Float(v) => v.to_bits().hash(hasher),
        ParamValue::String(v) => v.hash(hasher),
        ParamValue::DType(v) => v.hash(hasher),
    }
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
        (Op::SlidingWindow(a), Op::SlidingWindow(b)) => a == b,
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
