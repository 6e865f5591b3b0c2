//! Destination passing: kernels write their results where, and in the order in which, their readers have them, who then copy
//! nothing.
//!
//! - The buffer of a concatenation is made before its parts. A part that an elementwise kernel makes is written there if the
//!   concatenation alone reads it, maybe through reshapes, and if its place is known from the start.
//! - What is read with its axes in another order, but the last one, and needs that order in memory, is written in it: the heads
//!   of attention become the row of a token that way.

use smallvec::SmallVec;

use super::lower::Lowering;
use super::schedule::Operand;
use super::view::View;
use crate::graph::{Dim, Node, Op, ValueId};
use crate::kernel::abi::KernelKind;

impl Lowering<'_> {
    /// Finds the parts of concatenations that are written in place; the last ones first, as they may be made of others.
    pub(super) fn find_destinations(&mut self) {
        let graph = self.graph;
        if !graph.nodes.iter().any(|node| matches!(node.op, Op::Concat(_) | Op::Permute(_))) {
            return;
        }
        let mut readers = vec![0_u32; graph.values.len()];
        let operands = graph.nodes.iter().flat_map(|node| &node.operands);
        operands.chain(graph.outputs.iter().flatten()).for_each(|id| readers[id.index()] += 1);
        for node in graph.nodes.iter().filter(|node| matches!(node.op, Op::Reshape)) {
            if let Some((value, place)) = self.in_other_order(node, &readers) {
                self.destinations.insert(value, place);
            }
        }
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
                if let Some((value, view)) =
                    self.written_by(*id, view, &readers).filter(|(id, _)| self.is_in_parts(*id))
                {
                    let whole = whole.get_or_insert_with(|| self.fresh(ty.dtype(), ty.device(), ty.shape()));
                    self.destinations.insert(value, Operand { buffer: whole.buffer, view });
                }
            }
            self.destinations.extend(whole.map(|whole| (node.first_result, whole)));
        }
    }

    /// The result of a kernel whose axes come in another order before a reshape that needs them so in memory, and where it is
    /// written for that.
    fn in_other_order(&mut self, reshape: &Node, readers: &[u32]) -> Option<(ValueId, Operand)> {
        let graph = self.graph;
        let permuted = *reshape.operands.first()?;
        let permute = graph.node(graph.value(permuted).node);
        let (Op::Permute(axes), Some(value)) = (&permute.op, permute.operands.first()) else { return None };
        // Rows stay rows.
        if readers[permuted.index()] != 1 || axes.last() != axes.len().checked_sub(1).as_ref() {
            return None;
        }
        let (ty, dims) = (graph.ty(permuted), graph.ty(permuted).shape().dims());
        let as_it_is = View::contiguous(graph.ty(*value).shape()).permute(axes);
        if as_it_is.reshape(graph.ty(reshape.first_result).shape()).is_some() {
            return None;
        }
        let mut back: SmallVec<[usize; 4]> = axes.clone();
        axes.iter().enumerate().for_each(|(i, axis)| back[*axis] = i);
        let (value, view) = self.written_by(*value, View::contiguous(dims).permute(&back), readers)?;
        let node = graph.node(graph.value(value).node);
        let Op::Kernel(call) = &node.op else { return None };
        // Rows along an axis are shown to their kernels in an order of their own; elementwise kernels stay beside others.
        let is_program = self.context.kernel(graph, node, call).is_ok_and(|kernel| kernel.kind == KernelKind::Program);
        let is_free = is_program && call.axis.is_none() && node.result_count == 1 && node.chain.is_none();
        let place = is_free.then(|| self.fresh(ty.dtype(), ty.device(), dims))?;
        Some((value, Operand { buffer: place.buffer, view }))
    }

    /// The result of a kernel or a concatenation that is all of a value, and how it is written for the value to be
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
                Op::Concat(_) | Op::Kernel(_) => return Some((id, view)),
                _ => return None,
            }
        }
    }
    /// Whether a value may be written as a part of another: elementwise kernels write whatever strides say.
    fn is_in_parts(&self, id: ValueId) -> bool {
        let node = self.graph.node(self.graph.value(id).node);
        match &node.op {
            Op::Concat(_) => true,
            Op::Kernel(call) => {
                let kernel = self.context.kernel(self.graph, node, call);
                kernel.is_ok_and(|kernel| kernel.kind == KernelKind::Elementwise)
            }
            _ => false,
        }
    }
}
