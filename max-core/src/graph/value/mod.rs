//! The handles of a graph's values: [`Value`], [`TensorValue`], [`BufferValue`], and [`Operand`], what ops accept.
//!
//! A handle knows its graph and its type, and is cheap to clone. A [`TensorValue`] made by an operator (`x + y`) that
//! failed is *poisoned*: it carries the error, which every op that uses it returns, and which `Graph::output` and
//! loading the graph return in any case.

pub(super) mod convert;
pub(super) mod number;

use std::fmt;
use std::panic::Location;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::error::{GraphError, GraphErrorKind};
use super::node::{GraphData, ValueId};
use super::symbolic::dim::Dim;
use super::symbolic::shape::Shape;
use super::types::{BufferType, TensorType, Type};
use crate::driver::DeviceRef;
use crate::dtype::{DType, bf16, f16};

/// A shared reference to a graph under construction.
#[derive(Clone)]
pub(super) struct GraphRef(Arc<GraphCell>);

struct GraphCell {
    name: Arc<str>,
    data: Mutex<GraphData>,
}

impl GraphRef {
    pub(super) fn new(name: Arc<str>) -> Self {
        let data = Mutex::new(GraphData::new(name.clone()));
        GraphRef(Arc::new(GraphCell { name, data }))
    }

    pub(super) fn name(&self) -> &Arc<str> {
        &self.0.name
    }

    pub(super) fn same(&self, other: &GraphRef) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The data. Every change is one `push`, so a panic elsewhere leaves it whole.
    pub(super) fn lock(&self) -> MutexGuard<'_, GraphData> {
        self.0.data.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A tensor in a graph: what an op gives and takes.
///
/// Arithmetic operators (`+ - * / %`, unary `-`, `& | ^ !` on `bool`) take values and numbers on either side:
/// `x * 2.0 + 1.0`. They cannot return an error, so a mistake in them is returned by `Graph::output`, with the
/// operator's line. Named ops and methods return a `Result`.
#[derive(Clone)]
pub struct TensorValue {
    pub(super) graph: GraphRef,
    pub(super) id: ValueId,
    pub(super) ty: TensorType,
    /// The mistake that this value stands for.
    pub(super) error: Option<GraphError>,
}

impl TensorValue {
    /// Its type.
    pub fn ty(&self) -> &TensorType {
        &self.ty
    }

    /// The type of its elements.
    pub fn dtype(&self) -> DType {
        self.ty.dtype
    }

    /// Its dims.
    pub fn shape(&self) -> &Shape {
        &self.ty.shape
    }

    /// The number of its axes.
    pub fn rank(&self) -> usize {
        self.ty.rank()
    }

    /// Where it is.
    pub fn device(&self) -> DeviceRef {
        self.ty.device
    }

    /// A value that stands for a mistake: every op that uses it returns the error, and so does `Graph::output`.
    pub fn of_error(error: GraphError) -> TensorValue {
        let (graph, ty) = (GraphRef::new("error".into()), TensorType::new(DType::F32, (), DeviceRef::CPU));
        TensorValue { graph, id: ValueId(0), ty, error: Some(error) }
    }

    /// A value that stands for a mistake, recorded in the graph.
    pub(super) fn poisoned(like: &TensorValue, error: GraphError) -> Self {
        like.graph.lock().errors.push(error.clone());
        TensorValue { error: Some(error), ..like.clone() }
    }
}

/// A buffer in a graph: a tensor that ops may change in place.
#[derive(Clone)]
pub struct BufferValue {
    pub(super) graph: GraphRef,
    pub(super) id: ValueId,
    pub(super) ty: BufferType,
}

impl BufferValue {
    /// Its type.
    pub fn ty(&self) -> &BufferType {
        &self.ty
    }

    /// The type of its elements.
    pub fn dtype(&self) -> DType {
        self.ty.dtype()
    }

    /// Its dims.
    pub fn shape(&self) -> &Shape {
        self.ty.shape()
    }

    /// The number of its axes.
    pub fn rank(&self) -> usize {
        self.ty.shape().rank()
    }

    /// Where it is.
    pub fn device(&self) -> DeviceRef {
        self.ty.device()
    }
}

/// Any value of a graph.
#[derive(Clone)]
#[non_exhaustive]
pub enum Value {
    /// An immutable tensor.
    Tensor(TensorValue),
    /// A buffer.
    Buffer(BufferValue),
}

impl Value {
    /// The value as a tensor.
    ///
    /// # Errors
    /// When it is a buffer.
    #[track_caller]
    pub fn tensor(&self) -> Result<&TensorValue, GraphError> {
        match self {
            Value::Tensor(value) => Ok(value),
            Value::Buffer(_) => Err(self.wrong_kind(GraphErrorKind::NotATensor { what: "the value" })),
        }
    }

    /// The value as a buffer.
    ///
    /// # Errors
    /// When it is a tensor.
    #[track_caller]
    pub fn buffer(&self) -> Result<&BufferValue, GraphError> {
        match self {
            Value::Buffer(value) => Ok(value),
            Value::Tensor(_) => Err(self.wrong_kind(GraphErrorKind::NotABuffer { what: "the value" })),
        }
    }

    #[track_caller]
    fn wrong_kind(&self, kind: GraphErrorKind) -> GraphError {
        GraphError::new("value".into(), Some(self.graph().name().clone()), vec![self.ty()], Location::caller(), kind)
    }

    /// Its type.
    pub fn ty(&self) -> Type {
        match self {
            Value::Tensor(value) => value.ty.clone().into(),
            Value::Buffer(value) => value.ty.clone().into(),
        }
    }

    pub(super) fn graph(&self) -> &GraphRef {
        match self {
            Value::Tensor(value) => &value.graph,
            Value::Buffer(value) => &value.graph,
        }
    }

    pub(super) fn id(&self) -> ValueId {
        match self {
            Value::Tensor(value) => value.id,
            Value::Buffer(value) => value.id,
        }
    }

    pub(super) fn error(&self) -> Option<&GraphError> {
        match self {
            Value::Tensor(value) => value.error.as_ref(),
            Value::Buffer(_) => None,
        }
    }
}

macro_rules! value_debug {
    ($($ty:ty: $value:ident => $id:expr, $type:expr;)*) => {$(
        impl fmt::Debug for $ty {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let $value = self;
                write!(f, "{}: {}", $id, $type)
            }
        }
    )*};
}
value_debug! {
    TensorValue: value => value.id, value.ty;
    BufferValue: value => value.id, value.ty;
    Value: value => value.id(), value.ty();
}

/// A number on one side of an op: it takes the dtype of the tensor on the other side.
#[derive(Clone, Copy, PartialEq, Debug)]
#[non_exhaustive]
pub enum Scalar {
    /// Any integer.
    Int(i128),
    /// Any floating-point number.
    Float(f64),
    /// A truth value.
    Bool(bool),
}

impl fmt::Display for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scalar::Int(value) => value.fmt(f),
            Scalar::Float(value) => write!(f, "{value:?}"),
            Scalar::Bool(value) => value.fmt(f),
        }
    }
}

/// What an op accepts as a tensor: a value of the graph, or, beside one, a number or a dim.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Operand {
    /// A tensor.
    Tensor(TensorValue),
    /// A buffer: accepted here so that the op can say what to do about it.
    Buffer(BufferValue),
    /// A number.
    Scalar(Scalar),
    /// The size of a dim, beside a tensor: it takes that one's dtype.
    Dim(Dim),
    /// The sizes of dims, as a vector, beside a tensor.
    Shape(Shape),
}

impl From<Scalar> for Operand {
    fn from(value: Scalar) -> Self {
        Operand::Scalar(value)
    }
}

macro_rules! from_scalar {
    ($($ty:ty => $variant:ident: $value:ident, $convert:expr;)*) => {$(
        impl From<$ty> for Scalar {
            fn from($value: $ty) -> Self {
                Scalar::$variant($convert)
            }
        }

        impl From<$ty> for Operand {
            fn from(value: $ty) -> Self {
                Operand::Scalar(value.into())
            }
        }
    )*};
}
from_scalar! {
    bool => Bool: value, value;
    i8 => Int: value, value.into();
    i16 => Int: value, value.into();
    i32 => Int: value, value.into();
    i64 => Int: value, value.into();
    u8 => Int: value, value.into();
    u16 => Int: value, value.into();
    u32 => Int: value, value.into();
    u64 => Int: value, value.into();
    usize => Int: value, value as i128;
    f16 => Float: value, value.into();
    bf16 => Float: value, value.into();
    f32 => Float: value, value.into();
    f64 => Float: value, value;
}

macro_rules! from_value {
    ($($from:ty => $to:ident: $value:ident, $convert:expr;)*) => {$(
        impl From<$from> for $to {
            fn from($value: $from) -> Self {
                $convert
            }
        }
    )*};
}
from_value! {
    TensorValue => Operand: value, Operand::Tensor(value);
    &TensorValue => Operand: value, Operand::Tensor(value.clone());
    &BufferValue => Operand: value, Operand::Buffer(value.clone());
    BufferValue => Operand: value, Operand::Buffer(value);
    &Value => Operand: value, value.clone().into();
    Value => Operand: value, match value {
        Value::Tensor(value) => Operand::Tensor(value),
        Value::Buffer(value) => Operand::Buffer(value),
    };
    &Operand => Operand: value, value.clone();
    Dim => Operand: value, Operand::Dim(value);
    &Dim => Operand: value, Operand::Dim(value.clone());
    Shape => Operand: value, Operand::Shape(value);
    &Shape => Operand: value, Operand::Shape(value.clone());
    TensorValue => Value: value, Value::Tensor(value);
    &TensorValue => Value: value, Value::Tensor(value.clone());
    BufferValue => Value: value, Value::Buffer(value);
    &BufferValue => Value: value, Value::Buffer(value.clone());
    &Value => Value: value, value.clone();
}
