//! The arena of a graph: nodes in the order in which they were added, and the values that they make.
//!
//! A node stands after everything it uses, so a walk over [`GraphData::nodes`] is a valid execution order. All
//! computation is [`Op::Kernel`], by name; the other ops are structure: inputs, constants, views, buffers.

use std::fmt;
use std::ops::Range;
use std::panic::Location;
use std::sync::Arc;

use smallvec::SmallVec;

use super::error::GraphError;
use super::parameters::KernelCall;
use super::symbolic::bind::Symbols;
use super::symbolic::dim::Dim;
use super::symbolic::shape::Shape;
use super::types::Type;
use crate::driver::{DeviceRef, Tensor};
use crate::kernel::KernelLibrary;

/// A value of the graph; prints as `%3`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ValueId(pub(crate) u32);

/// A node of the graph; prints as `n3`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NodeId(pub(crate) u32);

impl ValueId {
    /// The position in [`GraphData::values`].
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl NodeId {
    /// The position in [`GraphData::nodes`].
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for ValueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "%{}", self.0)
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "n{}", self.0)
    }
}

/// What a node does. The types of the results say the rest: a reshape's target is its result's shape.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Op {
    /// The graph's input of this position: a tensor, or a buffer.
    Input(usize),
    /// A contiguous host tensor known when the graph is built; the node's device says where it is used.
    Constant(Tensor),
    /// A constant that a [`WeightsRegistry`](super::weights::WeightsRegistry) has under this name when the graph is loaded.
    ConstantExternal(Arc<str>),
    /// A kernel of the kernel library.
    ///
    /// Of an elementwise kernel all operands have the result's shape: broadcasting stands in the graph as
    /// [`Op::BroadcastTo`]. Buffers among the operands are changed in place if the kernel's signature says so.
    Kernel(KernelCall),
    /// The same elements, in the same order, in the result's shape.
    Reshape,
    /// The operand with its axes in another order: result axis i is operand axis `dims[i]`.
    Permute(SmallVec<[usize; 4]>),
    /// The operand repeated to the result's shape.
    BroadcastTo,
    /// A part of the operand: one entry for each of its axes.
    Slice(SliceAxes),
    /// The operand's windows along an axis, which may overlap. The result has their number there, and behind it an axis of the
    /// elements of each.
    SlidingWindow(Window),
    /// The operands one after the other along this axis.
    Concat(usize),
    /// Asserts at execution that the operand has the result's shape. Symbols new to the graph are bound by it.
    Rebind {
        /// What to print when the assertion fails.
        message: Arc<str>,
    },
    /// The values of the dims as an `int64` tensor.
    ShapeToTensor(Shape),
    /// A copy on the result's device.
    TransferTo,
    /// A tensor with the buffer's contents at this point of the chain.
    BufferLoad,
    /// Writes the second operand, a tensor, to the first, a buffer.
    BufferStore,
    /// Writes it to a part of the buffer, of as many elements of each axis as the tensor has.
    BufferStoreSlice(SliceAxes),
    /// Reads the operand, an `int64` vector, on the host: element i is the size of dim i. Names that are new to the graph
    /// get their size here, of other dims it is asserted.
    BindDims(Shape),
    /// Runs one of two regions, as the first operand, a `bool`, says. What follows it is the input of both.
    Cond {
        /// What runs if it is true.
        then: Arc<GraphData>,
        /// What runs if it is false.
        otherwise: Arc<GraphData>,
    },
    /// Runs the body for as long as the condition gives true. Both take the carried values, as many as there are results,
    /// and then what they read of the graph around them.
    While {
        /// Gives one `bool`.
        condition: Arc<GraphData>,
        /// Gives the carried values of the next round.
        body: Arc<GraphData>,
    },
    /// The results of a subgraph, whose nodes take this one's place when the graph is loaded.
    Call {
        /// The subgraph.
        graph: Arc<GraphData>,
        /// What stands before the names of its weights.
        prefix: Arc<str>,
    },
    /// Prints the operand, or without one the label.
    Print {
        /// What stands before the operand.
        label: Arc<str>,
    },
    /// The operands, unchanged: no effect and nothing that reads a result is moved before it.
    Fence,
    /// Follows the last effect of every device, and comes before the next one of each.
    MergeChains,
}

impl Op {
    /// The regions that it runs, each with its name.
    pub fn regions(&self) -> SmallVec<[(&'static str, &Arc<GraphData>); 2]> {
        match self {
            Op::Cond { then, otherwise } => SmallVec::from_iter([("then", then), ("else", otherwise)]),
            Op::While { condition, body } => SmallVec::from_iter([("condition", condition), ("body", body)]),
            _ => SmallVec::new(),
        }
    }

    /// Whether the result is the operand's memory, seen in another way.
    pub(crate) fn is_view(&self) -> bool {
        use Op::{BroadcastTo, Permute, Rebind, Reshape, Slice, SlidingWindow};
        matches!(self, Reshape | Permute(_) | BroadcastTo | Slice(_) | SlidingWindow(_) | Rebind { .. })
    }

    /// The same, to be changed.
    pub(crate) fn regions_mut(&mut self) -> SmallVec<[&mut Arc<GraphData>; 2]> {
        match self {
            Op::Cond { then, otherwise } => SmallVec::from_iter([then, otherwise]),
            Op::While { condition, body } => SmallVec::from_iter([condition, body]),
            _ => SmallVec::new(),
        }
    }
}

/// The axes of a slice: few enough of them lie in the op that those do not decide its size.
pub type SliceAxes = SmallVec<[SliceAxis; 2]>;

/// Where a slice starts on one axis, and by how many elements it advances; the result's shape says how many it takes.
///
/// On a symbolic axis the bounds are only known at execution, which has to check that start and last element are inside.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct SliceAxis {
    /// The first element taken, counted from 0.
    pub start: Dim,
    /// The step: not zero, negative to walk backwards.
    pub step: i64,
}

/// Windows along an axis: window i has the elements i · `step`, i · `step` + `dilation`, …; the result's shape says how many there are,
/// and of how many elements. The axis and both sizes are static.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Window {
    /// The axis that they lie along.
    pub axis: usize,
    /// From a window to the next one: at least 1.
    pub step: i64,
    /// From an element of a window to its next one: at least 1.
    pub dilation: i64,
}

/// One node: an op, what it takes, what it makes, and where it was added.
#[derive(Clone, Debug)]
pub struct Node {
    /// What it does.
    pub op: Op,
    /// What it takes.
    pub operands: SmallVec<[ValueId; 4]>,
    /// Its first result; the others follow.
    pub first_result: ValueId,
    /// How many results it has.
    pub result_count: u32,
    /// Where it runs.
    pub device: DeviceRef,
    /// Its place among the side effects; `None` for a pure node.
    pub chain: Option<Chain>,
    /// The line that added it.
    pub location: &'static Location<'static>,
}

/// The order of a node among the side effects of its device.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Chain {
    /// The effects that have to be done first: none for the device's first one, several after chains were merged.
    pub after: SmallVec<[NodeId; 1]>,
}

impl Node {
    /// Its results.
    pub fn results(&self) -> impl ExactSizeIterator<Item = ValueId> + use<> {
        let first = self.first_result.0;
        (0..self.result_count).map(move |i| ValueId(first + i))
    }
}

/// A value: its type and the node that makes it.
#[derive(Clone, Debug)]
pub struct ValueDef {
    /// Its type.
    pub ty: Type,
    /// The node that makes it.
    pub node: NodeId,
}

/// A region that is being built, and what the graph was before.
#[derive(Clone, Debug)]
pub(super) struct OpenRegion {
    pub first_node: usize,
    pub first_value: usize,
    /// How many names had a size.
    pub symbols: usize,
    pub chains: SmallVec<[(DeviceRef, NodeId); 1]>,
    pub merged: Option<NodeId>,
}

/// Everything in a graph.
#[derive(Clone, Debug)]
pub struct GraphData {
    /// The graph's name.
    pub name: Arc<str>,
    /// The nodes, each after what it uses.
    pub nodes: Vec<Node>,
    /// The values.
    pub values: Vec<ValueDef>,
    /// The inputs, by position.
    pub inputs: Vec<ValueId>,
    /// The inputs' names, or none of them.
    pub input_names: Vec<Arc<str>>,
    /// The outputs, by position, once they are set.
    pub outputs: Option<Vec<ValueId>>,
    /// The names of symbolic dims that get a size: from an input's axis or a rebind.
    pub symbols: Symbols,
    /// The last side effect of each device.
    pub(super) chains: SmallVec<[(DeviceRef, NodeId); 1]>,
    /// The effect that the first one of every device without a chain follows.
    pub(super) merged: Option<NodeId>,
    /// Regions that are being built, from the outermost to the innermost.
    pub(super) open: Vec<OpenRegion>,
    /// The values of regions that were built: nothing outside may use them.
    pub(super) closed: Vec<Range<u32>>,
    /// So many names were known before anything gave them a size: those of the graph that this one is a subgraph of.
    pub(crate) inherited: usize,
    /// How many names were made up for sizes that the user does not name.
    pub(super) hidden: u32,
    /// Where kernels are found; `None` for those linked into the program.
    pub(super) library: Option<KernelLibrary>,
    /// Mistakes made through operators, which cannot return them.
    pub(super) errors: Vec<GraphError>,
}

impl GraphData {
    pub(super) fn new(name: Arc<str>) -> Self {
        GraphData {
            name,
            nodes: Vec::new(),
            values: Vec::new(),
            inputs: Vec::new(),
            input_names: Vec::new(),
            outputs: None,
            symbols: Symbols::new(),
            chains: SmallVec::new(),
            merged: None,
            open: Vec::new(),
            closed: Vec::new(),
            inherited: 0,
            hidden: 0,
            library: None,
            errors: Vec::new(),
        }
    }

    /// Where the graph's kernels are found.
    pub fn kernel_library(&self) -> KernelLibrary {
        self.library.clone().unwrap_or_default()
    }

    /// A node by id.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.index()]
    }

    /// A value by id.
    pub fn value(&self, id: ValueId) -> &ValueDef {
        &self.values[id.index()]
    }

    /// The type of a value.
    pub fn ty(&self, id: ValueId) -> &Type {
        &self.values[id.index()].ty
    }

    /// Adds a value, whose node the caller makes.
    pub(crate) fn add_value(&mut self, ty: Type) -> ValueId {
        let id = ValueId(self.values.len() as u32);
        self.values.push(ValueDef { ty, node: NodeId(0) });
        id
    }

    /// Adds a node and gives its first result.
    pub(super) fn push(
        &mut self,
        op: Op,
        operands: SmallVec<[ValueId; 4]>,
        results: SmallVec<[Type; 1]>,
        device: DeviceRef,
        effect: bool,
        location: &'static Location<'static>,
    ) -> ValueId {
        // 2^32 nodes do not fit in memory.
        let (node, first_result) = (NodeId(self.nodes.len() as u32), ValueId(self.values.len() as u32));
        let merges = matches!(op, Op::MergeChains | Op::Fence);
        let chain = effect.then(|| if merges { self.merge_chains(node) } else { self.advance_chain(device, node) });
        let result_count = results.len() as u32;
        self.values.extend(results.into_iter().map(|ty| ValueDef { ty, node }));
        self.nodes.push(Node { op, operands, first_result, result_count, device, chain, location });
        first_result
    }

    fn advance_chain(&mut self, device: DeviceRef, node: NodeId) -> Chain {
        let after = match self.chains.iter_mut().find(|(known, _)| *known == device) {
            Some((_, last)) => Some(std::mem::replace(last, node)),
            None => {
                self.chains.push((device, node));
                self.merged
            }
        };
        Chain { after: after.into_iter().collect() }
    }

    /// The chain of a node that all effects until here come before, and all later ones after.
    fn merge_chains(&mut self, node: NodeId) -> Chain {
        let mut after: SmallVec<[NodeId; 1]> = self.chains.iter().map(|(_, last)| *last).collect();
        // Every chain follows the node that merged them before.
        after.extend(self.merged.filter(|_| self.chains.is_empty()));
        after.sort_unstable();
        after.dedup();
        self.chains.iter_mut().for_each(|(_, last)| *last = node);
        self.merged = Some(node);
        Chain { after }
    }

    /// Whether a region changes something: a buffer, or what is printed.
    pub fn has_effects(&self) -> bool {
        self.nodes.iter().any(|node| node.chain.is_some())
    }
}
