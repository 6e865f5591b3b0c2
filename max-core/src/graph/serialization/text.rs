//! The text form of a graph: one line a node, with stable numbers, attributes and types. [`Graph::parse`] reads it back.
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
//! A side effect shows its node number and the effects it follows. Regions and called graphs stand behind the op that runs
//! them, in braces. With `{:#}` each line ends in its source line.
//!
//! [`Graph::parse`]: crate::graph::Graph::parse

use std::fmt;

use crate::driver::Tensor;
use crate::graph::node::{GraphData, Node, Op, ValueId, Window};
use crate::graph::parameters::{ParamValue, Parameters};
use crate::graph::types::list;
use crate::graph::value::number::summary;

/// The names of ops that are no kernels.
pub(super) const STRUCTURE: &[&str] = &[
    "bind_dims",
    "broadcast_to",
    "buffer_load",
    "buffer_store",
    "buffer_store_slice",
    "call",
    "concat",
    "cond",
    "constant",
    "constant_external",
    "fence",
    "graph",
    "input",
    "kernel",
    "merge_device_chains",
    "permute",
    "print",
    "rebind",
    "reshape",
    "return",
    "shape_to_tensor",
    "slice",
    "transfer_to",
    "while_loop",
];

/// How constants are written: their first elements, or where else they are.
pub(super) type Constants<'a> = &'a dyn Fn(&Tensor) -> String;

impl fmt::Display for GraphData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Printer { graph: self, numbers: numbers(self), constants: &summary, indent: 0 }.print(f)
    }
}

/// The graph's text, with other words for its constants.
pub(super) struct WithConstants<'a>(pub &'a GraphData, pub Constants<'a>);

impl fmt::Display for WithConstants<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Printer { graph: self.0, numbers: numbers(self.0), constants: self.1, indent: 0 }.print(f)
    }
}

/// The number of each value: values of regions are none of the graph around them.
fn numbers(graph: &GraphData) -> Vec<u32> {
    let mut numbers = vec![0; graph.values.len()];
    for (number, id) in (0..).zip(graph.nodes.iter().flat_map(Node::results)) {
        numbers[id.index()] = number;
    }
    numbers
}

struct Printer<'a> {
    graph: &'a GraphData,
    numbers: Vec<u32>,
    constants: Constants<'a>,
    indent: usize,
}

impl Printer<'_> {
    fn print(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (graph, indent) = (self.graph, self.indent);
        let input = |(i, id): (usize, &ValueId)| {
            let name = graph.input_names.get(i).map(|name| format!(" {name:?}")).unwrap_or_default();
            format!("{}{name}: {}", self.value(id), graph.ty(*id))
        };
        let inputs: Vec<String> = graph.inputs.iter().enumerate().map(input).collect();
        writeln!(f, "{:indent$}graph {}({}) {{", "", graph_name(&graph.name), inputs.join(", "))?;
        for (index, node) in graph.nodes.iter().enumerate() {
            if !matches!(node.op, Op::Input(_)) {
                self.node(index, node, f)?;
            }
        }
        if let Some(outputs) = &graph.outputs {
            let sep = if outputs.is_empty() { "" } else { " " };
            writeln!(f, "{:indent$}  return{sep}{}", "", self.values(outputs))?;
        }
        writeln!(f, "{:indent$}}}", "")
    }

    fn value(&self, id: &ValueId) -> String {
        format!("%{}", self.numbers[id.index()])
    }

    fn values<'v>(&self, ids: impl IntoIterator<Item = &'v ValueId>) -> String {
        ids.into_iter().map(|id| self.value(id)).collect::<Vec<_>>().join(", ")
    }

    fn node(&self, index: usize, node: &Node, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (results, indent): (Vec<_>, _) = (node.results().collect(), self.indent + 2);
        write!(f, "{:indent$}", "")?;
        if !results.is_empty() {
            write!(f, "{} = ", self.values(&results))?;
        }
        match &node.op {
            Op::Constant(tensor) => write!(f, "constant {}", (self.constants)(tensor))?,
            op => fmt::Display::fmt(op, f)?,
        }
        if !node.operands.is_empty() {
            write!(f, "({})", self.values(&node.operands))?;
        }
        node.op.fmt_attributes(f)?;
        let types: Vec<_> = results.iter().map(|id| self.graph.ty(*id).to_string()).collect();
        if !types.is_empty() {
            write!(f, " : {}", types.join(", "))?;
        }
        if let Some(chain) = &node.chain {
            write!(f, " effect n{index}")?;
            if !chain.after.is_empty() {
                write!(f, " after {}", list(&chain.after))?;
            }
        }
        let called = match &node.op {
            Op::Call { graph, .. } => Some(graph),
            _ => None,
        };
        let regions = node.op.regions();
        let mut inner = regions.iter().map(|(_, region)| *region).chain(called).peekable();
        let has_inner = inner.peek().is_some();
        if has_inner {
            write!(f, " {{")?;
        }
        if f.alternate() {
            write!(f, "  // {}", node.location)?;
        }
        writeln!(f)?;
        for graph in inner {
            Printer { graph, numbers: numbers(graph), constants: self.constants, indent: indent + 2 }.print(f)?;
        }
        if has_inner { writeln!(f, "{:indent$}}}", "") } else { Ok(()) }
    }
}

/// A name that is read back up to the parenthesis behind it.
fn graph_name(name: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || matches!(c, '_' | '.' | '-' | ' ');
    let plain = !name.is_empty() && name.chars().all(is_plain) && name.trim() == name;
    if plain { name.to_owned() } else { format!("{name:?}") }
}

impl fmt::Display for Op {
    /// The op's name; of a kernel, the kernel's name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Op::Input(_) => "input",
            Op::Constant(tensor) => return write!(f, "constant {}", summary(tensor)),
            Op::ConstantExternal(name) => return write!(f, "constant_external {name:?}"),
            Op::Kernel(call) => {
                let name = &*call.name;
                let is_word = |c: char| c.is_alphanumeric() || matches!(c, '_' | '.');
                if name.is_empty() || !name.chars().all(is_word) {
                    return write!(f, "kernel {name:?}");
                }
                let is_taken = STRUCTURE.contains(&name) || !name.starts_with(|c: char| c.is_alphabetic() || c == '_');
                return if is_taken { write!(f, "kernel {name:?}") } else { f.write_str(name) };
            }
            Op::Reshape => "reshape",
            Op::Permute(_) => "permute",
            Op::BroadcastTo => "broadcast_to",
            Op::Slice(_) => "slice",
            Op::SlidingWindow(_) => "sliding_window",
            Op::Concat(_) => "concat",
            Op::Rebind { .. } => "rebind",
            Op::ShapeToTensor(shape) => return write!(f, "shape_to_tensor {shape}"),
            Op::TransferTo => "transfer_to",
            Op::BufferLoad => "buffer_load",
            Op::BufferStore => "buffer_store",
            Op::BufferStoreSlice(_) => "buffer_store_slice",
            Op::BindDims(shape) => return write!(f, "bind_dims {shape}"),
            Op::Cond { .. } => "cond",
            Op::While { .. } => "while_loop",
            Op::Call { .. } => "call",
            Op::Print { .. } => "print",
            Op::Fence => "fence",
            Op::MergeChains => "merge_device_chains",
        })
    }
}

impl Op {
    fn fmt_attributes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Op::Kernel(call) => {
                let axis = call.axis.map(|axis| format!("axis = {axis}"));
                let parameters = Some(parameters(&call.parameters)).filter(|text| !text.is_empty());
                let all: Vec<String> = axis.into_iter().chain(parameters).collect();
                if all.is_empty() { Ok(()) } else { write!(f, " {{{}}}", all.join(", ")) }
            }
            Op::Permute(dims) => write!(f, " {{dims = [{}]}}", list(dims)),
            Op::SlidingWindow(Window { axis, step, dilation }) => {
                write!(f, " {{axis = {axis}, step = {step}, dilation = {dilation}}}")
            }
            Op::Concat(axis) => write!(f, " {{axis = {axis}}}"),
            Op::Slice(axes) | Op::BufferStoreSlice(axes) => {
                let axes: Vec<_> = axes.iter().map(|axis| format!("{} step {}", axis.start, axis.step)).collect();
                write!(f, " {{start = [{}]}}", axes.join(", "))
            }
            Op::Rebind { message } if !message.is_empty() => write!(f, " {{message = {message:?}}}"),
            Op::Call { prefix, .. } if !prefix.is_empty() => write!(f, " {{prefix = {prefix:?}}}"),
            Op::Print { label } => write!(f, " {{label = {label:?}}}"),
            _ => Ok(()),
        }
    }
}

/// Parameters as they are read back: an `axis` of the kernel's own is told from that of its rows, a dim from a word.
fn parameters(parameters: &Parameters) -> String {
    let one = |(name, value): (&str, &ParamValue)| {
        let of = if name == "axis" { "param " } else { "" };
        match value {
            ParamValue::Dim(dim) => format!("{of}{name} = dim({dim})"),
            value => format!("{of}{name} = {value}"),
        }
    };
    parameters.iter().map(one).collect::<Vec<_>>().join(", ")
}
