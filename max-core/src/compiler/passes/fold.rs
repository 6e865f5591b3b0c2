//! Constant folding: what depends on constants alone, is small, and surely comes to an end, is computed at load, by the kernels
//! that would compute it at each execution.

use std::collections::HashMap;

use super::super::context::{Context, Outcome};
use super::rewrite::{identity, rewrite};
use crate::driver::{DeviceRef, Tensor};
use crate::dtype::DType;
use crate::graph::{GraphData, Node, Op, ParamValue, Type};
use crate::kernel::abi::{GenericDef, KernelDef};
use crate::kernel::ir;

/// Results up to this size are computed at load.
const FOLDED_BYTES: i64 = 64 << 10;

/// `evaluate` compiles a graph without inputs, and executes it.
pub(in crate::compiler) fn fold(
    graph: &mut GraphData,
    context: &Context<'_>,
    evaluate: impl FnOnce(GraphData) -> Outcome<Vec<Tensor>>,
) -> Outcome {
    let mut known = vec![false; graph.nodes.len()];
    let mut ends = Ends::default();
    for (index, node) in graph.nodes.iter().enumerate() {
        let operands_known = node.operands.iter().all(|id| known[graph.value(*id).node.index()]);
        known[index] = match &node.op {
            Op::Constant(_) => true,
            Op::ShapeToTensor(shape) => shape.is_static(),
            _ => {
                let folds = operands_known && (is_view(graph, node) || is_computed(node)) && is_small(graph, node);
                folds && ends.of_node(graph, node, context)
            }
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
        Op::Reshape | Op::Permute(_) | Op::BroadcastTo | Op::TransferTo => true,
        _ => false,
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

/// Whether the results take few bytes; of a view, those that it could take as a constant do not count.
fn is_small(graph: &GraphData, node: &Node) -> bool {
    is_view(graph, node)
        || node.results().all(|id| {
            let ty = graph.ty(id);
            let bytes = ty.shape().num_elements() * ty.dtype().size_in_bytes();
            bytes.as_static().is_some_and(|bytes| bytes <= FOLDED_BYTES)
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
