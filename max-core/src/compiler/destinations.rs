//! Destination passing: elementwise kernels write their results where a concatenation has them, which then copies nothing.
//!
//! The buffer of the concatenation is made before its parts. A part is written there if the concatenation alone reads it,
//! maybe through reshapes, and if its place is known from the start.

use super::lower::Lowering;
use super::schedule::Operand;
use super::view::View;
use crate::graph::{Dim, Op, ValueId};
use crate::kernel::abi::KernelKind;

impl Lowering<'_> {
    /// Finds the parts of concatenations that are written in place; the last ones first, as they may be made of others.
    pub(super) fn find_destinations(&mut self) {
        let graph = self.graph;
        if !graph.nodes.iter().any(|node| matches!(node.op, Op::Concat(_))) {
            return;
        }
        let mut readers = vec![0_u32; graph.values.len()];
        let operands = graph.nodes.iter().flat_map(|node| &node.operands);
        operands.chain(graph.outputs.iter().flatten()).for_each(|id| readers[id.index()] += 1);
        for node in graph.nodes.iter().rev() {
            let Op::Concat(axis) = node.op else { continue };
            let ty = graph.ty(node.first_result);
            // In a later stage, its size is not known when the parts are written.
            if !ty.shape().parameters().iter().all(|name| self.is_named(name.name())) {
                continue;
            }
            let (mut start, mut whole) = (Dim::Static(0), self.destinations.get(&node.first_result).cloned());
            for id in &node.operands {
                let dims = graph.ty(*id).shape().dims();
                let contiguous = View::contiguous(ty.shape());
                let view = whole.as_ref().map_or(&contiguous, |whole| &whole.view).part(axis, &start, dims);
                start = start + &dims[axis];
                if let Some((value, view)) = self.written_by(*id, view, &readers) {
                    let whole = whole.get_or_insert_with(|| self.fresh(ty.dtype(), ty.device(), ty.shape()));
                    self.destinations.insert(value, Operand { buffer: whole.buffer, view });
                }
            }
            self.destinations.extend(whole.map(|whole| (node.first_result, whole)));
        }
    }

    /// The result of an elementwise kernel or a concatenation that is all of a value, and how it is written for the value to be
    /// that view.
    fn written_by(&self, mut id: ValueId, mut view: View, readers: &[u32]) -> Option<(ValueId, View)> {
        let graph = self.graph;
        loop {
            let node = graph.node(graph.value(id).node);
            if readers[id.index()] != 1 {
                return None;
            }
            match &node.op {
                Op::Reshape => {
                    let operand = *node.operands.first()?;
                    let before = view.reshape(graph.ty(operand).shape())?;
                    if !before.reshape(graph.ty(id).shape())?.is_same(&view) {
                        return None;
                    }
                    (id, view) = (operand, before);
                }
                Op::Concat(_) => return Some((id, view)),
                Op::Kernel(call) => {
                    let kernel = self.context.kernel(graph, node, call).ok()?;
                    return (kernel.kind == KernelKind::Elementwise).then_some((id, view));
                }
                _ => return None,
            }
        }
    }
}
