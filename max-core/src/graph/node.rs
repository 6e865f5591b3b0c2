//! The arena of a graph: nodes in the order in which they were added, and the values that they make.
//!
//! A node stands after everything it uses, so a walk over [`GraphData::nodes`] is a valid execution order. All
//! computation is [`Op::Kernel`], by name; the other ops are structure: inputs, constants, views, buffers.

use std::borrow::Cow;
use std::fmt;
use std::panic::Location;
use std::sync::Arc;

use smallvec::SmallVec;

use super::dim::Dim;
use super::error::GraphError;
use super::shape::Shape;
use super::types::Type;
use crate::driver::{DeviceRef, Tensor};
use crate::dtype::DType;
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
    Slice(SmallVec<[SliceAxis; 4]>),
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
    BufferStoreSlice(SmallVec<[SliceAxis; 4]>),
}

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

/// A kernel by name, with its parameters.
#[derive(Clone, PartialEq, Debug)]
pub struct KernelCall {
    /// The name in the kernel library.
    pub name: Cow<'static, str>,
    /// The axis that a row kernel works along. Operands that the kernel declares with rank 2 are presented to it as
    /// `[all other axes, this axis]`, those of another declared rank as they are.
    pub axis: Option<usize>,
    /// The parameters.
    pub parameters: Parameters,
}

/// The value of one kernel parameter.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub enum ParamValue {
    /// An integer.
    Int(i64),
    /// A truth value.
    Bool(bool),
    /// A floating-point number.
    Float(f64),
    /// A string.
    String(Arc<str>),
    /// A dtype, bound to the kernel's generic of that name.
    DType(DType),
}

impl ParamValue {
    /// The kind, for messages.
    pub fn kind(&self) -> &'static str {
        match self {
            ParamValue::Int(_) => "an integer",
            ParamValue::Bool(_) => "a bool",
            ParamValue::Float(_) => "a float",
            ParamValue::String(_) => "a string",
            ParamValue::DType(_) => "a dtype",
        }
    }
}

impl fmt::Display for ParamValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ParamValue::Int(value) => value.fmt(f),
            ParamValue::Bool(value) => value.fmt(f),
            ParamValue::Float(value) => write!(f, "{value:?}"),
            ParamValue::String(value) => write!(f, "{value:?}"),
            ParamValue::DType(value) => value.fmt(f),
        }
    }
}

macro_rules! param_value {
    ($($ty:ty => $variant:ident: $value:ident, $convert:expr;)*) => {$(
        impl From<$ty> for ParamValue {
            fn from($value: $ty) -> Self {
                ParamValue::$variant($convert)
            }
        }
    )*};
}
param_value! {
    i64 => Int: value, value;
    i32 => Int: value, value.into();
    u32 => Int: value, value.into();
    usize => Int: value, i64::try_from(value).unwrap_or(i64::MAX);
    bool => Bool: value, value;
    f64 => Float: value, value;
    f32 => Float: value, value.into();
    &str => String: value, value.into();
    String => String: value, value.into();
    DType => DType: value, value;
}

/// The parameters of a kernel, by name.
///
/// ```
/// use max_core::graph::Parameters;
///
/// let one = Parameters::from([("value", 10)]);
/// let several = Parameters::new().with("axis", 1).with("mode", "tanh").with("exclusive", true);
/// assert_eq!(several.to_string(), r#"axis = 1, exclusive = true, mode = "tanh""#);
/// # assert_eq!(one.len(), 1);
/// ```
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Parameters {
    /// Sorted by name.
    values: Vec<(Cow<'static, str>, ParamValue)>,
    /// A name that was given a second time.
    repeated: Option<Cow<'static, str>>,
}

impl Parameters {
    /// No parameters.
    pub fn new() -> Self {
        Parameters::default()
    }

    /// These parameters and one more. A name given twice is an error of the op that they are given to.
    pub fn with(mut self, name: impl Into<Cow<'static, str>>, value: impl Into<ParamValue>) -> Self {
        let name = name.into();
        if self.get(&name).is_some() {
            self.repeated = Some(name.clone());
        }
        self.set(name, value.into());
        self
    }

    /// Sets the value of a parameter, whether it has one or not.
    pub(super) fn set(&mut self, name: Cow<'static, str>, value: ParamValue) {
        match self.values.binary_search_by(|(known, _)| known.cmp(&name)) {
            Ok(i) => self.values[i].1 = value,
            Err(i) => self.values.insert(i, (name, value)),
        }
    }

    /// A name that was given twice.
    pub(super) fn repeated(&self) -> Option<&str> {
        self.repeated.as_deref()
    }

    /// The value of a parameter.
    pub fn get(&self, name: &str) -> Option<&ParamValue> {
        self.values.iter().find(|(known, _)| known == name).map(|(_, value)| value)
    }

    /// Names and values, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &ParamValue)> {
        self.values.iter().map(|(name, value)| (name.as_ref(), value))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }
}

impl fmt::Display for Parameters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (name, value)) in self.iter().enumerate() {
            write!(f, "{}{name} = {value}", if i > 0 { ", " } else { "" })?;
        }
        Ok(())
    }
}

impl From<()> for Parameters {
    /// No parameters.
    fn from((): ()) -> Self {
        Parameters::new()
    }
}

impl<N: Into<Cow<'static, str>>, V: Into<ParamValue>> FromIterator<(N, V)> for Parameters {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(items: I) -> Self {
        items.into_iter().fold(Parameters::new(), |all, (name, value)| all.with(name, value))
    }
}

impl<N: Into<Cow<'static, str>>, V: Into<ParamValue>, const LEN: usize> From<[(N, V); LEN]> for Parameters {
    fn from(items: [(N, V); LEN]) -> Self {
        items.into_iter().collect()
    }
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
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Chain {
    /// The effect that has to be done first; `None` for the device's first one.
    pub after: Option<NodeId>,
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
    /// The outputs, by position, once they are set.
    pub outputs: Option<Vec<ValueId>>,
    /// The names of symbolic dims that get a size: from an input's axis or a rebind.
    pub symbols: Vec<Arc<str>>,
    /// The last side effect of each device.
    pub(super) chains: SmallVec<[(DeviceRef, NodeId); 1]>,
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
            outputs: None,
            symbols: Vec::new(),
            chains: SmallVec::new(),
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
        let chain = effect.then(|| Chain { after: self.advance_chain(device, node) });
        let result_count = results.len() as u32;
        self.values.extend(results.into_iter().map(|ty| ValueDef { ty, node }));
        self.nodes.push(Node { op, operands, first_result, result_count, device, chain, location });
        first_result
    }

    fn advance_chain(&mut self, device: DeviceRef, node: NodeId) -> Option<NodeId> {
        match self.chains.iter_mut().find(|(known, _)| *known == device) {
            Some((_, last)) => Some(std::mem::replace(last, node)),
            None => {
                self.chains.push((device, node));
                None
            }
        }
    }
}
