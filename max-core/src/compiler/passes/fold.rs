//! Constant folding: what depends on constants alone, and surely comes to an end, is computed at load, by the kernels that would
//! compute it at each execution. It is not where its result takes much more memory than the constants.

use std::collections::HashMap;

use super::super::context::{Context, Outcome};
use super::rewrite::{identity, rewrite};
use crate::driver::{DeviceRef, Tensor};
use crate::dtype::DType;
use crate::graph::{GraphData, Node, Op, ParamValue, Type};
use crate::kernel::abi::{GenericDef, KernelDef};
use crate::kernel::ir;

/// Results up to this size are computed at load, whatever the size of the constants.
const FOLDED_BYTES: i64 = 64 << 10;
/// Others are if they are no larger than so many times the constants: half types may become `f32`.
const GROWTH: i64 = 2;

/// `evaluate` compiles a graph without inputs, and executes it.
pub(in crate::compiler) fn fold(
    graph: &mut GraphData,
    context: &Context<'_>,
    evaluate: impl FnOnce(GraphData) -> Outcome<Vec<Tensor>>,
) -> Outcome {
    let mut known = vec![false; graph.nodes.len()];
    // The bytes of the constants that each node depends on; one that is read twice counts twice.
    let mut sources = vec![0_i64; graph.nodes.len()];
    let mut ends = Ends::default();
    for (index, node) in graph.nodes.iter().enumerate() {
        let makers = || node.operands.iter().map(|id| graph.value(*id).node.index());
        let operands_known = makers().all(|maker| known[maker]);
        sources[index] = makers().fold(0, |all, maker| all.saturating_add(sources[maker]));
        known[index] = match &node.op {
            Op::Constant(tensor) => {
                sources[index] = i64::try_from(tensor.num_bytes()).unwrap_or(i64::MAX);
                true
            }
            Op::ShapeToTensor(shape) => shape.is_static(),
            _ => {
                let folds = operands_known && (is_view(graph, node) || is_computed(node));
                folds && ends.of_node(graph, node, context)
            }
        };
    }
    let all = graph.nodes.iter().zip(&sources).filter(|(node, _)| matches!(node.op, Op::Constant(_)));
    let all = all.fold(0_i64, |all, (_, bytes)| all.saturating_add(*bytes));
    // Of what is known, views stay: they cost nothing. What others read of the rest becomes constants.
    let mut read = vec![false; graph.values.len()];
    graph.outputs.iter().flatten().for_each(|id| read[id.index()] = true);
    let mut constants = Vec::new();
    for (index, node) in graph.nodes.iter().enumerate().rev() {
        let is_read = node.results().any(|id| read[id.index()]);
        let folds = known[index] && is_computed(node);
        match folds && (!is_read || is_small(graph, node, sources[index].min(all))) {
            true if is_read => constants.push(index),
            true => {}
            false => node.operands.iter().for_each(|id| read[id.index()] = true),
        }
    }
    constants.reverse();
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
    for (index, tensor) in constants.into_iter().zip(evaluate(part)?) {
        let node = &mut graph.nodes[index];
        node.op = Op::Constant(tensor);
        node.operands.clear();
    }
    Ok(())
}

/// Whether a node is a view that no size at execution changes.
fn is_view(graph: &GraphData, node: &Node) -> bool {
    let same = match &node.op {
        Op::Slice(axes) => axes.iter().all(|axis| axis.start.is_static()),
        // It asserts something at execution.
        Op::Rebind { .. } => false,
        Op::TransferTo => true,
        op => op.is_view(),
    };
    same && node.results().all(|id| graph.ty(id).shape().is_static())
}

/// Whether a node computes a single result without side effects.
fn is_computed(node: &Node) -> bool {
    let computes = match &node.op {
        Op::Kernel(call) => !call.parameters.iter().any(|(_, value)| matches!(value, ParamValue::Dim(_))),
        op => matches!(op, Op::Concat(_) | Op::ShapeToTensor(_)),
    };
    computes && node.chain.is_none() && node.result_count == 1
}

/// Which kernels have an end, as all have without a `while`: who loads a model gets it, or an error.
#[derive(Default)]
struct Ends(HashMap<*const KernelDef, bool>);

impl Ends {
    /// Whether what a node computes has an end.
    fn of_node(&mut self, graph: &GraphData, node: &Node, context: &Context<'_>) -> bool {
        let Op::Kernel(call) = &node.op else { return true };
        // One that is not there is an error of its own.
        let Ok(kernel) = context.kernel(graph, node, call) else { return true };
        self.of_kernel(kernel, || {
            // The form of its loops is the same for all of its dtypes.
            let first = |generic: &GenericDef| {
                generic.dtypes.as_slice().first().and_then(|code| DType::from_code(*code)).unwrap_or(DType::F32)
            };
            let dtypes: Vec<DType> = kernel.generics.as_slice().iter().map(first).collect();
            kernel.ir_text(&dtypes, None)
        })
    }

    /// Whether a kernel has; `text` is its IR, which is asked for once.
    fn of_kernel(&mut self, kernel: &'static KernelDef, text: impl FnOnce() -> String) -> bool {
        fn block_ends(block: &ir::Block) -> bool {
            let inner = |inst: &ir::Inst| inst.op.blocks().into_iter().all(|(inner, _)| block_ends(inner));
            block.insts.iter().all(|inst| !matches!(inst.op, ir::Op::While { .. }) && inner(inst))
        }
        *self.0.entry(kernel).or_insert_with(|| ir::parse(&text()).is_ok_and(|kernel| block_ends(&kernel.body)))
    }
}

/// Whether the results take few bytes, or not many more than the `sources` that they are computed from.
fn is_small(graph: &GraphData, node: &Node, sources: i64) -> bool {
    let limit = sources.saturating_mul(GROWTH).max(FOLDED_BYTES);
    node.results().all(|id| {
        let ty = graph.ty(id);
        let bytes = ty.shape().num_elements() * ty.dtype().size_in_bytes();
        bytes.as_static().is_some_and(|bytes| bytes <= limit)
    })
}

#[cfg(test)]
mod tests {
    use super::Ends;
    use crate::dtype::DType;
    use crate::kernel::{Kernel, kernel};

    #[kernel(op = "t_once", dtypes(T = [f32]))]
    fn once<T: Float>(x: T) -> T {
        x + 1
    }

    #[test]
    fn a_kernel_is_looked_at_once() {
        let (mut ends, def, mut looks) = (Ends::default(), once::def(), 0);
        for _ in 0..2 {
            let text = || {
                looks += 1;
                def.ir_text(&[DType::F32], None)
            };
            assert!(ends.of_kernel(def, text));
        }
        assert_eq!(looks, 1);
    }
}
