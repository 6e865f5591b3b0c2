//! [`Site`]: where an op is being added, and the checks and node building that all ops share.

use std::borrow::Cow;
use std::cell::Cell;
use std::fmt;
use std::panic::Location;
use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use crate::driver::DeviceRef;
use crate::dtype::DType;
use crate::graph::error::{GraphError, GraphErrorKind};
use crate::graph::node::{Op, ValueId};
use crate::graph::parameters::{KernelCall, Parameters};
use crate::graph::promotion;
use crate::graph::signature::{Call, Seen, verify};
use crate::graph::symbolic::dim::Dim;
use crate::graph::symbolic::shape::Shape;
use crate::graph::types::{TensorType, Type};
use crate::graph::value::{BufferValue, GraphRef, Operand, TensorValue, Value};
use crate::kernel::ptx::LARGEST_DIM;

pub(in crate::graph) type Result<T> = std::result::Result<T, GraphError>;

thread_local! {
    /// The line that ops are said to be added at, where it is not that of their caller.
    static LOCATION: Cell<Option<&'static Location<'static>>> = const { Cell::new(None) };
}

/// Runs `body`, whose ops are said to be added at `location`: for layers above graphs, whose callers' lines those are.
pub fn at<R>(location: &'static Location<'static>, body: impl FnOnce() -> R) -> R {
    struct Restored(Option<&'static Location<'static>>);

    impl Drop for Restored {
        fn drop(&mut self) {
            LOCATION.set(self.0);
        }
    }

    // Also where `body` panics.
    let _restored = Restored(LOCATION.replace(Some(location)));
    body()
}

/// An op being added, and the line that adds it.
pub(in crate::graph) struct Site {
    pub(in crate::graph) op: Cow<'static, str>,
    pub(in crate::graph) location: &'static Location<'static>,
}

impl Site {
    #[track_caller]
    pub(in crate::graph) fn new(op: impl Into<Cow<'static, str>>) -> Self {
        Site { op: op.into(), location: LOCATION.get().unwrap_or(Location::caller()) }
    }

    pub(in crate::graph) fn error<T: Into<Type>>(
        &self,
        graph: &GraphRef,
        operands: impl IntoIterator<Item = T>,
        kind: GraphErrorKind,
    ) -> GraphError {
        let operands = operands.into_iter().map(Into::into).collect();
        GraphError::new(self.op.clone(), Some(graph.name().clone()), operands, self.location, kind)
    }

    /// An error about one tensor or several of one graph.
    pub(in crate::graph) fn fail<T>(&self, operands: &[&TensorValue], kind: GraphErrorKind) -> Result<T> {
        let types = operands.iter().map(|value| value.ty.clone().into()).collect();
        let graph = operands.first().map(|value| value.graph.name().clone());
        Err(GraphError::new(self.op.clone(), graph, types, self.location, kind))
    }

    /// An operand that has to be a tensor.
    pub(in crate::graph) fn tensor(&self, what: &'static str, operand: impl Into<Operand>) -> Result<TensorValue> {
        match operand.into() {
            Operand::Tensor(TensorValue { error: Some(error), .. }) => Err(error),
            Operand::Tensor(value) if value.graph.lock().is_closed(value.id) => {
                self.fail(&[&value], GraphErrorKind::EndedRegion)
            }
            Operand::Tensor(value) => Ok(value),
            Operand::Buffer(value) => Err(self.error(&value.graph, [&value.ty], GraphErrorKind::NotATensor { what })),
            Operand::Scalar(_) | Operand::Dim(_) | Operand::Shape(_) => self.fail(&[], GraphErrorKind::NoTensor),
        }
    }

    /// Checks that all are of one graph.
    pub(in crate::graph) fn one_graph<'a>(&self, values: impl IntoIterator<Item = &'a TensorValue>) -> Result<()> {
        let mut values = values.into_iter();
        let Some(first) = values.next() else {
            return Ok(());
        };
        match values.find(|value| !value.graph.same(&first.graph)) {
            None => Ok(()),
            Some(stranger) => {
                let other = stranger.graph.name().clone();
                self.fail(&[first, stranger], GraphErrorKind::OtherGraph { other })
            }
        }
    }

    /// Checks that all are of one graph and on one device.
    pub(in crate::graph) fn together(&self, values: &[&TensorValue]) -> Result<()> {
        self.one_graph(values.iter().copied())?;
        let mut devices: Vec<DeviceRef> = values.iter().map(|value| value.device()).collect();
        devices.dedup();
        if devices.len() > 1 { self.fail(values, GraphErrorKind::Devices { devices }) } else { Ok(()) }
    }

    /// The operands as tensors of one dtype: numbers become constants, tensors are cast where that loses nothing.
    pub(in crate::graph) fn promote<const N: usize>(&self, operands: [Operand; N]) -> Result<[TensorValue; N]> {
        let mut tensors: [Option<TensorValue>; N] = [const { None }; N];
        for (slot, operand) in tensors.iter_mut().zip(&operands) {
            if matches!(operand, Operand::Tensor(_) | Operand::Buffer(_)) {
                *slot = Some(self.tensor("an operand", operand)?);
            }
        }
        let known: SmallVec<[&TensorValue; N]> = tensors.iter().flatten().collect();
        self.together(&known)?;
        let Some(like) = known.first().map(|value| (*value).clone()) else {
            return self.fail(&[], GraphErrorKind::NoTensor);
        };
        let Some(dtype) = promotion::common(known.iter().map(|value| value.dtype())) else {
            let dtypes = known.iter().map(|value| value.dtype()).collect();
            return self.fail(&known, GraphErrorKind::Promotion { dtypes });
        };
        let mut result: [TensorValue; N] = std::array::from_fn(|_| like.clone());
        for ((slot, operand), tensor) in result.iter_mut().zip(operands).zip(&tensors) {
            *slot = match (operand, tensor) {
                (operand, None) => self.beside(&like, &operand, dtype)?,
                (_, Some(tensor)) => self.cast(tensor.clone(), dtype)?,
            };
        }
        Ok(result)
    }

    pub(in crate::graph) fn cast(&self, value: TensorValue, dtype: DType) -> Result<TensorValue> {
        if value.dtype() == dtype {
            return Ok(value);
        }
        let ty = value.ty.with_dtype(dtype);
        self.kernel("cast", &[&value], ty, Parameters::new())
    }

    /// The operand repeated to a shape that it is known to broadcast to.
    pub(in crate::graph) fn broadcast(&self, value: TensorValue, shape: &Shape) -> Result<TensorValue> {
        if value.shape() == shape {
            return Ok(value);
        }
        let ty = value.ty.with_shape(shape.clone());
        self.view(Op::BroadcastTo, &value, ty)
    }

    /// The operands broadcast to one shape.
    pub(in crate::graph) fn broadcast_all<const N: usize>(&self, values: [TensorValue; N]) -> Result<[TensorValue; N]> {
        let Some(first) = values.first() else {
            return Ok(values);
        };
        let mut shape = first.shape().clone();
        for value in &values[1..] {
            shape = match shape.broadcast(value.shape()) {
                Some(shape) => shape,
                None => {
                    let (lhs, rhs) = (Box::new(shape), Box::new(value.shape().clone()));
                    let all: SmallVec<[&TensorValue; N]> = values.iter().collect();
                    return self.fail(&all, GraphErrorKind::Broadcast { lhs, rhs });
                }
            };
        }
        let mut result = values;
        for value in &mut result {
            *value = self.broadcast(value.clone(), &shape)?;
        }
        Ok(result)
    }

    /// The axis as an index, or an error.
    pub(in crate::graph) fn axis(&self, value: &TensorValue, axis: i64) -> Result<usize> {
        let rank = value.rank();
        match value.shape().axis(axis) {
            Some(axis) => Ok(axis),
            None => self.fail(&[value], GraphErrorKind::Axis { axis, rank }),
        }
    }

    /// Checks an operand's dtype.
    pub(in crate::graph) fn require(
        &self,
        what: &'static str,
        value: &TensorValue,
        allowed: &'static str,
        test: impl Fn(DType) -> bool,
    ) -> Result<()> {
        let dtype = value.dtype();
        if test(dtype) {
            Ok(())
        } else {
            self.fail(&[value], GraphErrorKind::UnsupportedDType { what, dtype, allowed })
        }
    }

    pub(in crate::graph) fn argument<T>(
        &self,
        operands: &[&TensorValue],
        argument: &'static str,
        value: impl ToString,
        expected: impl Into<Cow<'static, str>>,
    ) -> Result<T> {
        let kind = GraphErrorKind::Argument { argument, value: value.to_string(), expected: expected.into() };
        self.fail(operands, kind)
    }

    /// Adds a kernel with one result.
    pub(in crate::graph) fn kernel(
        &self,
        name: &'static str,
        operands: &[&TensorValue],
        result: TensorType,
        parameters: Parameters,
    ) -> Result<TensorValue> {
        self.kernel_on_axis(name, operands, None, result, parameters)
    }

    /// Adds a kernel that works on rows along an axis.
    pub(in crate::graph) fn kernel_on_axis(
        &self,
        name: &'static str,
        operands: &[&TensorValue],
        axis: Option<usize>,
        result: TensorType,
        parameters: Parameters,
    ) -> Result<TensorValue> {
        let parameters = self.verify_built_in(name, operands, &[&result], parameters)?;
        let op = Op::Kernel(KernelCall { name: name.into(), axis, parameters });
        self.node(op, operands, result)
    }

    /// Checks a built-in op against its kernel, if the graph's library has it: a missing kernel is found at load, so that
    /// a graph can be built, printed and tested without any.
    pub(in crate::graph) fn verify_built_in(
        &self,
        name: &'static str,
        operands: &[&TensorValue],
        results: &[&TensorType],
        mut parameters: Parameters,
    ) -> Result<Parameters> {
        let Some(first) = operands.first() else { return Ok(parameters) };
        let library = first.graph.lock().kernel_library();
        if let Ok(kernel) = library.get(name) {
            let values: SmallVec<[Seen; 4]> = operands.iter().map(|value| Seen::tensor(&value.ty)).collect();
            let results: SmallVec<[Seen; 2]> = results.iter().map(|ty| Seen::tensor(ty)).collect();
            if let Err(error) = verify(kernel, &values, &results, &mut parameters, Call::BuiltIn) {
                return self.fail(operands, error.into());
            }
        }
        Ok(parameters)
    }

    /// Adds a view of one operand.
    pub(in crate::graph) fn view(&self, op: Op, value: &TensorValue, result: TensorType) -> Result<TensorValue> {
        self.node(op, &[value], result)
    }

    /// Adds a pure node with one result.
    pub(in crate::graph) fn node(&self, op: Op, operands: &[&TensorValue], result: TensorType) -> Result<TensorValue> {
        let Some(first) = operands.first() else {
            return self.fail(operands, GraphErrorKind::NoOperands);
        };
        let result = self.checked(operands, result)?;
        let ids = operands.iter().map(|value| value.id).collect();
        Ok(self.push(&first.graph, op, ids, result))
    }

    /// Checks that a result type can exist.
    pub(in crate::graph) fn checked(&self, operands: &[&TensorValue], ty: TensorType) -> Result<TensorType> {
        match type_error(&Type::Tensor(ty.clone())) {
            None => Ok(ty),
            Some(kind) => self.fail(operands, kind),
        }
    }

    /// Checks that a shape written by the user has only symbols that get a size somewhere in the graph.
    pub(in crate::graph) fn known_symbols(
        &self,
        graph: &GraphRef,
        shape: &Shape,
    ) -> std::result::Result<(), GraphErrorKind> {
        if shape.is_static() {
            return Ok(());
        }
        let data = graph.lock();
        for dim in shape.iter() {
            let mut unknown = None;
            dim.for_each_symbol(&mut |name| {
                if unknown.is_none() && data.symbols.find(name).is_none() {
                    unknown = Some(name.clone());
                }
            });
            if let Some(name) = unknown {
                return Err(dim.unbound(&name).into());
            }
        }
        Ok(())
    }

    pub(in crate::graph) fn push(
        &self,
        graph: &GraphRef,
        op: Op,
        operands: SmallVec<[ValueId; 4]>,
        ty: TensorType,
    ) -> TensorValue {
        let results = smallvec![Type::Tensor(ty.clone())];
        self.note_ended(graph, &operands);
        let id = graph.lock().push(op, operands, results, ty.device, false, self.location);
        TensorValue { graph: graph.clone(), id, ty, error: None }
    }

    /// Notes it as a mistake in the graph if an operand is a value of a region that has ended.
    pub(super) fn note_ended(&self, graph: &GraphRef, operands: &[ValueId]) {
        let mut data = graph.lock();
        if let Some(id) = operands.iter().find(|id| data.is_closed(**id)) {
            let (name, ty) = (Some(data.name.clone()), vec![data.ty(*id).clone()]);
            let error = GraphError::new(self.op.clone(), name, ty, self.location, GraphErrorKind::EndedRegion);
            data.errors.push(error);
        }
    }

    /// Adds a node with any results, and a side effect if it has one.
    pub(in crate::graph) fn push_values(
        &self,
        graph: &GraphRef,
        op: Op,
        operands: SmallVec<[ValueId; 4]>,
        results: SmallVec<[Type; 1]>,
        device: DeviceRef,
        effect: bool,
    ) -> Vec<Value> {
        let types = results.clone();
        self.note_ended(graph, &operands);
        let first = graph.lock().push(op, operands, results, device, effect, self.location);
        let handle = |(i, ty): (usize, Type)| {
            let (graph, id) = (graph.clone(), ValueId(first.0 + i as u32));
            match ty {
                Type::Tensor(ty) => Value::Tensor(TensorValue { graph, id, ty, error: None }),
                Type::Buffer(ty) => Value::Buffer(BufferValue { graph, id, ty }),
            }
        };
        types.into_iter().enumerate().map(handle).collect()
    }
}

impl GraphError {
    /// An argument outside of what an op or a layer takes, at the caller's line.
    #[track_caller]
    pub fn argument(
        op: impl Into<Cow<'static, str>>,
        argument: &'static str,
        value: impl fmt::Display,
        expected: impl Into<Cow<'static, str>>,
    ) -> GraphError {
        let kind = GraphErrorKind::Argument { argument, value: value.to_string(), expected: expected.into() };
        let site = Site::new(op);
        GraphError::new(site.op, None, Vec::new(), site.location, kind)
    }

    /// That the value of a tensor could not be computed, at the caller's line.
    #[track_caller]
    pub fn value(op: impl Into<Cow<'static, str>>, source: Arc<dyn std::error::Error + Send + Sync>) -> GraphError {
        let site = Site::new(op);
        GraphError::new(site.op, None, Vec::new(), site.location, GraphErrorKind::Value { source })
    }
}

/// Why no value can have this type.
pub(in crate::graph) fn type_error(ty: &Type) -> Option<GraphErrorKind> {
    let shape = ty.shape();
    let mut bytes = i64::try_from(ty.dtype().size_in_bytes()).ok();
    for (axis, dim) in shape.iter().enumerate() {
        let Dim::Static(size) = dim else { continue };
        if *size < 0 {
            return Some(GraphErrorKind::NegativeDim { shape: Box::new(shape.clone()), axis });
        }
        // A dim of 0 makes the tensor empty, but its strides still have to be representable.
        bytes = bytes.filter(|_| *size <= LARGEST_DIM).and_then(|bytes| bytes.checked_mul((*size).max(1)));
    }
    if bytes.is_none() {
        return Some(GraphErrorKind::TooLarge { ty: Box::new(ty.clone()) });
    }
    let mut bad = None;
    for dim in shape.iter() {
        dim.for_each_symbol(&mut |name| {
            if bad.is_none() && !is_identifier(name) {
                bad = Some(name.clone());
            }
        });
    }
    bad.map(|name| GraphErrorKind::DimName { name: name.to_string() })
}

fn is_identifier(name: &str) -> bool {
    let mut chars = name.chars();
    chars.next().is_some_and(|c| c.is_alphabetic() || c == '_') && chars.all(|c| c.is_alphanumeric() || c == '_')
}
