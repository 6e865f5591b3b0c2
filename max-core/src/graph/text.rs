//! The text form of a graph: one line a node, with stable numbers, attributes and types.
//!
//! ```text
//! graph counter(%0: buffer float32[4]) {
//!   %1 = buffer_load(%0) : float32[4] effect n1
//!   %2 = sum(%1) {axis = 0} : float32[1]
//!   buffer_store(%0, %1) effect n3 after n1
//!   return %2
//! }
//! ```
//!
//! A side effect shows its node number and the effect it follows. With `{:#}` each line ends in its source line.

use std::fmt;

use super::error::list;
use super::node::{GraphData, Node, Op};

impl fmt::Display for GraphData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inputs: Vec<String> = self.inputs.iter().map(|id| format!("{id}: {}", self.ty(*id))).collect();
        writeln!(f, "graph {}({}) {{", self.name, inputs.join(", "))?;
        for (index, node) in self.nodes.iter().enumerate() {
            if !matches!(node.op, Op::Input(_)) {
                self.fmt_node(index, node, f)?;
            }
        }
        if let Some(outputs) = &self.outputs {
            let sep = if outputs.is_empty() { "" } else { " " };
            writeln!(f, "  return{sep}{}", list(outputs))?;
        }
        writeln!(f, "}}")
    }
}

impl GraphData {
    fn fmt_node(&self, index: usize, node: &Node, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let results: Vec<_> = node.results().collect();
        f.write_str("  ")?;
        if !results.is_empty() {
            write!(f, "{} = ", list(&results))?;
        }
        fmt::Display::fmt(&node.op, f)?;
        if !node.operands.is_empty() {
            write!(f, "({})", list(&node.operands))?;
        }
        node.op.fmt_attributes(f)?;
        let types: Vec<_> = results.iter().map(|id| self.ty(*id).to_string()).collect();
        if !types.is_empty() {
            write!(f, " : {}", types.join(", "))?;
        }
        if let Some(chain) = node.chain {
            write!(f, " effect n{index}")?;
            if let Some(after) = chain.after {
                write!(f, " after {after}")?;
            }
        }
        if f.alternate() {
            write!(f, "  // {}", node.location)?;
        }
        writeln!(f)
    }
}

impl fmt::Display for Op {
    /// The op's name; of a kernel, the kernel's name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Op::Input(_) => "input",
            Op::Constant(tensor) => return write!(f, "constant {}", super::ops::summary(tensor)),
            Op::ConstantExternal(name) => return write!(f, "constant_external {name:?}"),
            Op::Kernel(call) => &call.name,
            Op::Reshape => "reshape",
            Op::Permute(_) => "permute",
            Op::BroadcastTo => "broadcast_to",
            Op::Slice(_) => "slice",
            Op::Concat(_) => "concat",
            Op::Rebind { .. } => "rebind",
            Op::ShapeToTensor(shape) => return write!(f, "shape_to_tensor {shape}"),
            Op::TransferTo => "transfer_to",
            Op::BufferLoad => "buffer_load",
            Op::BufferStore => "buffer_store",
            Op::BufferStoreSlice(_) => "buffer_store_slice",
        })
    }
}

impl Op {
    fn fmt_attributes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Op::Kernel(call) => {
                let axis = call.axis.map(|axis| format!("axis = {axis}"));
                let parameters = Some(call.parameters.to_string()).filter(|text| !text.is_empty());
                let all: Vec<String> = axis.into_iter().chain(parameters).collect();
                if all.is_empty() { Ok(()) } else { write!(f, " {{{}}}", all.join(", ")) }
            }
            Op::Permute(dims) => write!(f, " {{dims = [{}]}}", list(dims)),
            Op::Concat(axis) => write!(f, " {{axis = {axis}}}"),
            Op::Slice(axes) | Op::BufferStoreSlice(axes) => {
                let axes: Vec<_> = axes.iter().map(|axis| format!("{} step {}", axis.start, axis.step)).collect();
                write!(f, " {{start = [{}]}}", axes.join(", "))
            }
            Op::Rebind { message } if !message.is_empty() => {
                write!(f, " {{message = {message:?}}}")
            }
            Op::Input(_)
            | Op::Constant(_)
            | Op::ConstantExternal(_)
            | Op::Reshape
            | Op::BroadcastTo
            | Op::Rebind { .. }
            | Op::ShapeToTensor(_)
            | Op::TransferTo
            | Op::BufferLoad
            | Op::BufferStore => Ok(()),
        }
    }
}
