//! [`GraphError`]: a mistake in a graph, with the op, its operands and the caller's line.

use std::borrow::Cow;
use std::fmt;
use std::panic::{Location, RefUnwindSafe, UnwindSafe};
use std::sync::Arc;

use super::signature::SignatureError;
use super::symbolic::dim::{Dim, DimError};
use super::symbolic::shape::Shape;
use super::types::{Type, list};
use super::weights::WeightsError;
use crate::driver::{DeviceRef, DriverError};
use crate::dtype::DType;

/// A mistake found while a graph is built. Cheap to clone.
///
/// It prints as the op, the caller's line, what is wrong, what to do, and the operands' types; `Debug` prints the same,
/// so that an `unwrap` reads well.
#[derive(Clone)]
#[non_exhaustive]
pub struct GraphError(Arc<Inner>);

struct Inner {
    op: Cow<'static, str>,
    graph: Option<Arc<str>>,
    operands: Vec<Type>,
    location: &'static Location<'static>,
    kind: GraphErrorKind,
}

impl GraphError {
    pub(super) fn new(
        op: Cow<'static, str>,
        graph: Option<Arc<str>>,
        operands: Vec<Type>,
        location: &'static Location<'static>,
        kind: GraphErrorKind,
    ) -> Self {
        GraphError(Arc::new(Inner { op, graph, operands, location, kind }))
    }

    /// The same mistake of an op outside of any graph.
    #[must_use]
    pub fn outside_of_graph(&self) -> GraphError {
        let Inner { op, operands, location, kind, .. } = &*self.0;
        GraphError::new(op.clone(), None, operands.clone(), location, kind.clone())
    }

    /// The op that was being added, by the name of its function in [`ops`](super::ops).
    pub fn op(&self) -> &str {
        &self.0.op
    }

    /// The graph's name, where one was at hand.
    pub fn graph(&self) -> Option<&str> {
        self.0.graph.as_deref()
    }

    /// The types of the op's operands.
    pub fn operands(&self) -> &[Type] {
        &self.0.operands
    }

    /// The line that added the op.
    pub fn location(&self) -> &'static Location<'static> {
        self.0.location
    }

    /// What is wrong.
    pub fn kind(&self) -> &GraphErrorKind {
        &self.0.kind
    }
}

// What it holds does not change; of an error of the system, which it may have been made of, rustc does not know.
impl UnwindSafe for GraphError {}
impl RefUnwindSafe for GraphError {}

impl From<DriverError> for GraphError {
    /// A tensor that could not be made while a graph is built, at the line of the `?`.
    #[track_caller]
    fn from(error: DriverError) -> Self {
        GraphError::new("tensor".into(), None, Vec::new(), Location::caller(), error.into())
    }
}

impl From<WeightsError> for GraphError {
    /// A weight that could not be had while a graph is built, at the line of the `?`.
    #[track_caller]
    fn from(error: WeightsError) -> Self {
        let kind = GraphErrorKind::Weights { source: Arc::new(error) };
        GraphError::new("weight".into(), None, Vec::new(), Location::caller(), kind)
    }
}

impl fmt::Display for GraphError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { op, graph, operands, location, kind } = &*self.0;
        write!(f, "`{op}` at {location}")?;
        if let Some(graph) = graph {
            write!(f, " in graph `{graph}`")?;
        }
        write!(f, ": {kind}")?;
        for (i, ty) in operands.iter().enumerate() {
            write!(f, "{}{ty}", if i == 0 { "\n  operands: " } else { ", " })?;
        }
        Ok(())
    }
}

impl std::error::Error for GraphError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        std::error::Error::source(&self.0.kind)
    }
}

/// What a [`GraphError`] is about.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum GraphErrorKind {
    /// Dtypes of which none holds all values of the others.
    #[error("no dtype of {} holds the values of the others; cast explicitly with `cast`", list(dtypes))]
    Promotion {
        /// The operands' dtypes.
        dtypes: Vec<DType>,
    },
    /// A dtype that the op does not take.
    #[error("{what} has dtype {dtype}, but the op takes {allowed}; cast it with `cast`")]
    UnsupportedDType {
        /// Which operand.
        what: &'static str,
        /// Its dtype.
        dtype: DType,
        /// What would be taken.
        allowed: &'static str,
    },
    /// A number that the tensor's dtype cannot hold.
    #[error("{value} is not representable as {dtype}; cast the tensor, or write a value that fits")]
    Unrepresentable {
        /// The number.
        value: String,
        /// The dtype it should have had.
        dtype: DType,
    },
    /// Shapes that do not broadcast.
    #[error(
        "shapes {lhs} and {rhs} do not broadcast: aligned at the last axis, two dims must be equal or one of them 1; \
         insert axes with `unsqueeze`, or assert equal dims with `rebind`"
    )]
    Broadcast {
        /// One shape.
        lhs: Box<Shape>,
        /// The other.
        rhs: Box<Shape>,
    },
    /// A shape that cannot be broadcast to the one asked for.
    #[error("{from} does not broadcast to {to}: each dim must be 1 or equal the target's, aligned at the last axis")]
    BroadcastTo {
        /// The operand's shape.
        from: Box<Shape>,
        /// The shape asked for.
        to: Box<Shape>,
    },
    /// A reshape that changes the number of elements.
    #[error("{from} has {} elements, {to} has {}; both must be equal for every size of the symbols", from.num_elements(), to.num_elements())]
    Reshape {
        /// The operand's shape.
        from: Box<Shape>,
        /// The shape asked for.
        to: Box<Shape>,
    },
    /// The dim of a `-1` in a reshape cannot be computed.
    #[error("the dim for -1 is {elements} / {known}, which is not whole for every size; write the dim instead of -1")]
    ReshapeWildcard {
        /// The operand's number of elements.
        elements: Dim,
        /// The product of the other dims.
        known: Dim,
    },
    /// Two dims that have to be equal.
    #[error("{what} must be equal, got {lhs} and {rhs}; {}", to_equal(lhs, rhs))]
    DimMismatch {
        /// Which dims.
        what: &'static str,
        /// One dim.
        lhs: Dim,
        /// The other.
        rhs: Dim,
    },
    /// A dim that has to have another value.
    #[error("{what} is {dim}, but must be {expected}")]
    DimValue {
        /// Which dim.
        what: &'static str,
        /// Its value.
        dim: Dim,
        /// What it must be.
        expected: &'static str,
    },
    /// A tensor of the wrong rank.
    #[error("{what} has rank {rank}, but must have {expected}")]
    Rank {
        /// Which operand.
        what: &'static str,
        /// Its rank.
        rank: usize,
        /// The ranks that are taken.
        expected: Cow<'static, str>,
    },
    /// An axis that the tensor does not have.
    #[error("axis {axis} is out of range for rank {rank}; axes are {}", axis_range(*rank))]
    Axis {
        /// The axis as given.
        axis: i64,
        /// The rank it is taken of.
        rank: usize,
    },
    /// A list of axes that is not a permutation.
    #[error("{dims:?} is not a permutation of the {rank} axes; name each axis once")]
    Permutation {
        /// The axes as given.
        dims: Vec<i64>,
        /// The tensor's rank.
        rank: usize,
    },
    /// Operands on different devices.
    #[error("the operands are on {}; move them to one device with `transfer_to`", list(devices))]
    Devices {
        /// The operands' devices.
        devices: Vec<DeviceRef>,
    },
    /// A value on another device than the one that the op was given.
    #[error("the op runs on {device}, but {what} is on {actual}; {}", to_device(what, device))]
    OpDevice {
        /// Which value.
        what: &'static str,
        /// Its device.
        actual: DeviceRef,
        /// The op's device.
        device: DeviceRef,
    },
    /// A type that has to be another.
    #[error("{what} has type {actual}, but must have type {expected}")]
    TypeMismatch {
        /// Which value.
        what: &'static str,
        /// Its type.
        actual: Box<Type>,
        /// The type it must have.
        expected: Box<Type>,
    },
    /// A value of another graph.
    #[error(
        "an operand belongs to another graph, `{other}`; a graph's ops take only its own values, pass it in as an input"
    )]
    OtherGraph {
        /// The graph that the operand belongs to.
        other: Arc<str>,
    },
    /// A buffer where a tensor is taken.
    #[error("{what} is a buffer, but the op takes a tensor; read the buffer with `buffer_load`")]
    NotATensor {
        /// Which operand.
        what: &'static str,
    },
    /// A tensor where a buffer is taken.
    #[error("{what} is a tensor, but the op takes a buffer; declare the input with a `BufferType`")]
    NotABuffer {
        /// Which operand.
        what: &'static str,
    },
    /// Only numbers, where a tensor has to say the dtype and the device.
    #[error("no operand is a tensor; make one with `constant`")]
    NoTensor,
    /// A list of operands that may not be empty.
    #[error("the op takes at least one tensor, got none")]
    NoOperands,
    /// An argument outside of what the op takes.
    #[error("`{argument}` is {value}, but must be {expected}")]
    Argument {
        /// The argument's name.
        argument: &'static str,
        /// Its value.
        value: String,
        /// What it may be.
        expected: Cow<'static, str>,
    },
    /// A tensor that could not be made or read.
    #[error("{source}")]
    Driver {
        /// Why.
        source: Arc<DriverError>,
    },
    /// A tensor whose value could not be computed, in a layer above graphs.
    #[error("{source}")]
    Value {
        /// Why.
        source: Arc<dyn std::error::Error + Send + Sync>,
    },
    /// A weight that could not be found or read.
    #[error("{source}")]
    Weights {
        /// Why.
        source: Arc<WeightsError>,
    },
    /// A weight declared a second time with another type.
    #[error("weight `{name}` was declared as {first} at {line}; a name has one type")]
    WeightTwice {
        /// The name.
        name: Arc<str>,
        /// The first type.
        first: Box<Type>,
        /// Where it was declared.
        line: &'static Location<'static>,
    },
    /// A symbolic dim whose name is no identifier.
    #[error("`{name}` is not the name of a dim: write letters, digits and `_`, not a digit first")]
    DimName {
        /// The name.
        name: String,
    },
    /// A dim that is negative, whatever the sizes.
    #[error("dim {axis} of {shape} is negative; give its size, or a name whose size inputs give")]
    NegativeDim {
        /// The shape.
        shape: Box<Shape>,
        /// The axis.
        axis: usize,
    },
    /// A tensor larger than memory can be.
    #[error("a tensor of type {ty} exceeds 2^63 - 1 bytes")]
    TooLarge {
        /// The type.
        ty: Box<Type>,
    },
    /// A dim that nothing gives a size.
    #[error("{source}")]
    Dim {
        /// What is wrong with the dim.
        #[from]
        source: DimError,
    },
    /// A value of a branch or a loop that is used behind it.
    #[error(
        "the value was made inside a region of the graph that has ended; return it from there, and use the op's result"
    )]
    EndedRegion,
    /// Outputs that are set inside a region.
    #[error(
        "a region of the graph is being built; return its results from the closure, and set the graph's outputs behind it"
    )]
    OutputInRegion,
    /// A region or subgraph with another number of values.
    #[error("{what}: {expected} values are expected, got {actual}")]
    ValueCount {
        /// What gives or takes them.
        what: &'static str,
        /// How many there should be.
        expected: usize,
        /// How many there are.
        actual: usize,
    },
    /// A subgraph's input that the caller's value does not fit.
    #[error(
        "argument {index} is {actual}, but the subgraph takes {expected}{}; cast, transfer or `rebind` it",
        note(bound)
    )]
    CallArgument {
        /// The argument.
        index: usize,
        /// Its type.
        actual: Box<Type>,
        /// The declared type.
        expected: Box<Type>,
        /// The sizes that arguments gave to names.
        bound: String,
    },
    /// A text that is no graph.
    #[error("line {line}, column {column}: {reason}")]
    Text {
        /// The line, from 1 on.
        line: usize,
        /// The column, in bytes, from 1 on.
        column: usize,
        /// What is wrong there.
        reason: String,
    },
    /// The outputs were set before.
    #[error("the graph's outputs are already set; call `output` once, with all of them")]
    OutputTwice,
    /// A graph without outputs was to be used.
    #[error("the graph has no outputs; call `output`, with no values if it only changes buffers")]
    NoOutput,
    /// A kernel that the library does not have, or that does not fit the op.
    #[error("{source}")]
    Kernel {
        /// What is wrong.
        #[from]
        source: SignatureError,
    },
}

/// What a dim must be that an op has to know when the graph is built.
pub(super) const STATIC: &str = "static: declare it as a number, or assert its size with `rebind`";

fn to_equal(lhs: &Dim, rhs: &Dim) -> &'static str {
    match lhs.is_static() && rhs.is_static() {
        true => "reshape, transpose or slice an operand",
        false => "assert equal dims with `rebind`",
    }
}

fn to_device(what: &str, device: &DeviceRef) -> String {
    match what {
        "a result" => format!("declare its type on {device}"),
        _ => "move it there with `transfer_to`, or give the op that device".to_owned(),
    }
}

fn axis_range(rank: usize) -> String {
    match rank {
        0 => "none: a scalar has no axes".to_owned(),
        _ => format!("-{rank} to {}", rank - 1),
    }
}

/// What the names of a subgraph stand for at a call.
fn note(bound: &str) -> String {
    if bound.is_empty() { String::new() } else { format!(", with {bound}") }
}
