//! Control flow: ops that run regions of the graph, and calls of subgraphs.
//!
//! A region is what a closure adds to the graph. It may use every value of the graph around it, change buffers, and hold
//! regions itself. Its values end with it: what is needed behind it is returned from the closure.

use smallvec::{SmallVec, smallvec};

use crate::driver::DeviceRef;
use crate::dtype::DType;
use crate::graph::builder::region::{Closed, RegionScope};
use crate::graph::builder::site::{Result, Site, type_error};
use crate::graph::error::GraphErrorKind;
use crate::graph::node::Op;
use crate::graph::ops;
use crate::graph::symbolic::shape::Shape;
use crate::graph::types::Type;
use crate::graph::value::convert::{IntoTypes, IntoValues};
use crate::graph::value::{GraphRef, Operand, TensorValue, Value};

use crate::graph::ops::movement::views::{reshape_at, transfer_to};

/// The results of `then_fn` if `pred`, a `bool` scalar, is true, else those of `else_fn`. Only that branch is executed.
///
/// Both return values of the types `out_types`; with `()`, both only change buffers. On a GPU, the host reads the
/// predicate and waits for it, so that a graph with a `cond` cannot be captured.
///
/// ```
/// # use max_core::{driver::DeviceRef, dtype::DType, graph::{Graph, TensorType, ops}};
/// let x = TensorType::new(DType::F32, ("n",), DeviceRef::CPU);
/// let flag = TensorType::new(DType::Bool, (), DeviceRef::CPU);
/// let graph = Graph::build("scaled", [&x, &flag], |_, inputs| {
///     let x = inputs[0].tensor()?;
///     ops::cond(&inputs[1], x.ty(), || ops::mul(x, 2.0), || Ok(x))
/// })?;
/// assert_eq!(graph.output_types()[0].to_string(), "float32[n]");
/// # Ok::<(), max_core::graph::GraphError>(())
/// ```
///
/// # Errors
/// When the predicate is no `bool` or has more than one element; when a branch returns another number of values, or one of
/// another type; when an output type cannot be or uses a name that gets no size; the error that a branch returns.
#[track_caller]
pub fn cond<T: IntoValues, E: IntoValues>(
    pred: impl Into<Operand>,
    out_types: impl IntoTypes,
    then_fn: impl FnOnce() -> Result<T>,
    else_fn: impl FnOnce() -> Result<E>,
) -> Result<Vec<TensorValue>> {
    let site = Site::new("cond");
    let pred = predicate(&site, "the predicate", pred.into())?;
    let (graph, types) = (pred.graph.clone(), out_types.into_types());
    for ty in &types {
        if ty.is_buffer() {
            return Err(site.error(&graph, [ty], GraphErrorKind::NotATensor { what: "a result" }));
        }
        if let Some(kind) = type_error(ty).or(site.known_symbols(&graph, ty.shape()).err()) {
            return Err(site.error(&graph, [ty], kind));
        }
    }
    let branch = |what, scope: RegionScope, values: Vec<Value>| {
        let ids = results(&site, &graph, what, &types, &values)?;
        close(&site, &graph, scope, 0, ids)
    };
    let scope = RegionScope::open(&graph);
    let then = branch("the first branch", scope, then_fn()?.into_values())?;
    let scope = RegionScope::open(&graph);
    let otherwise = branch("the second branch", scope, else_fn()?.into_values())?;
    let (captures, effect, then, otherwise) = {
        let data = graph.lock();
        let captures = data.captures([&then, &otherwise]);
        let effect = then.has_effects() || otherwise.has_effects();
        let make = |region: Closed, name| region.into_graph(&data, name, &captures, site.location).into();
        let (then, otherwise) = (make(then, "then"), make(otherwise, "else"));
        (captures, effect, then, otherwise)
    };
    let operands = [pred.id].into_iter().chain(captures).collect();
    push(&site, &graph, Op::Cond { then, otherwise }, operands, types, effect)
}

/// Runs `body` for as long as `predicate` gives true: both are given the carried values, at first `initial_values`, and
/// `body` returns those of the next round. The results are the carried values at the end.
///
/// The types of the carried values stay the same. Both closures may read values of the graph around, and `body` may
/// change buffers. A loop that has no end is ended by a
/// [time-out or a cancellation](crate::engine::ExecuteOptions) of the execution.
///
/// ```
/// # use max_core::{driver::DeviceRef, dtype::DType, graph::{Graph, TensorType, ops}};
/// // Doubles x until it is 100 or more.
/// let x = TensorType::new(DType::I32, (), DeviceRef::CPU);
/// let graph = Graph::build("grow", [x], |_, inputs| {
///     ops::while_loop(&inputs[0], |v| ops::greater(100, &v[0]), |v| ops::mul(&v[0], 2))
/// })?;
/// assert_eq!(graph.output_types()[0].to_string(), "int32[]");
/// # Ok::<(), max_core::graph::GraphError>(())
/// ```
///
/// # Errors
/// When there are no initial values, or one is a buffer (closures use buffers of the graph as they are); when the predicate
/// is no `bool`, has more than one element, or changes a buffer; when `body` returns another number of values, or one of
/// another type; the error that a closure returns.
#[track_caller]
pub fn while_loop<P: Into<Operand>, B: IntoValues>(
    initial_values: impl IntoValues,
    predicate_fn: impl FnOnce(&[TensorValue]) -> Result<P>,
    body: impl FnOnce(&[TensorValue]) -> Result<B>,
) -> Result<Vec<TensorValue>> {
    let site = Site::new("while_loop");
    let mut initial = Vec::new();
    for value in initial_values.into_values() {
        initial.push(site.tensor("an initial value", value)?);
    }
    site.one_graph(&initial)?;
    let Some(graph) = initial.first().map(|value| value.graph.clone()) else {
        return site.argument(&[], "initial_values", "empty", "at least one value");
    };
    let types: Vec<Type> = initial.iter().map(|value| Type::Tensor(value.ty.clone())).collect();
    let arguments = || -> Vec<TensorValue> {
        let carried = initial.iter().enumerate();
        let argument =
            |(i, value): (usize, &TensorValue)| site.push(&graph, Op::Input(i), SmallVec::new(), value.ty.clone());
        carried.map(argument).collect()
    };

    let scope = RegionScope::open(&graph);
    let goes_on = predicate_fn(&arguments())?.into();
    let goes_on = predicate(&site, "the predicate", goes_on)?;
    let goes_on = transfer_to(&goes_on, DeviceRef::CPU)?;
    let condition = close(&site, &graph, scope, types.len(), vec![goes_on.id])?;
    if condition.has_effects() {
        let expected = "a closure without side effects; change buffers in the body";
        return site.argument(&[], "predicate", "a closure with side effects", expected);
    }
    let scope = RegionScope::open(&graph);
    let next = body(&arguments())?.into_values();
    let ids = results(&site, &graph, "the body", &types, &next)?;
    let body = close(&site, &graph, scope, types.len(), ids)?;
    let (captures, effect, condition, body) = {
        let data = graph.lock();
        let (captures, effect) = (data.captures([&condition, &body]), body.has_effects());
        let make = |region: Closed, name| region.into_graph(&data, name, &captures, site.location).into();
        let (condition, body) = (make(condition, "condition"), make(body, "body"));
        (captures, effect, condition, body)
    };
    let operands = initial.iter().map(|value| value.id).chain(captures).collect();
    push(&site, &graph, Op::While { condition, body }, operands, types, effect)
}

/// A `bool` with one element, as a scalar.
#[track_caller]
fn predicate(site: &Site, what: &'static str, value: Operand) -> Result<TensorValue> {
    let value = site.tensor(what, value)?;
    site.require(what, &value, "bool", |dtype| dtype == DType::Bool)?;
    if value.shape().num_elements() != 1 {
        let kind = GraphErrorKind::Rank { what, rank: value.rank(), expected: "a scalar".into() };
        return site.fail(&[&value], kind);
    }
    reshape_at(site, &value, Shape::from(()))
}

/// What a region returns, which has to be of these types.
fn results(
    site: &Site,
    graph: &GraphRef,
    what: &'static str,
    types: &[Type],
    values: &[Value],
) -> Result<Vec<crate::graph::ValueId>> {
    let given = || values.iter().map(Value::ty);
    if values.len() != types.len() {
        let kind = GraphErrorKind::ValueCount { what, expected: types.len(), actual: values.len() };
        return Err(site.error(graph, given(), kind));
    }
    let mut ids = Vec::new();
    for (value, ty) in values.iter().zip(types) {
        let tensor = site.tensor("a result", value)?;
        if !tensor.graph.same(graph) {
            let other = tensor.graph.name().clone();
            return Err(site.error(graph, given(), GraphErrorKind::OtherGraph { other }));
        }
        if Type::Tensor(tensor.ty.clone()) != *ty {
            let (actual, expected) = (Box::new(tensor.ty.into()), Box::new(ty.clone()));
            return Err(site.error(graph, given(), GraphErrorKind::TypeMismatch { what, actual, expected }));
        }
        ids.push(tensor.id);
    }
    Ok(ids)
}

fn close(
    site: &Site,
    graph: &GraphRef,
    scope: RegionScope,
    arguments: usize,
    outputs: Vec<crate::graph::ValueId>,
) -> Result<Closed> {
    match scope.close(arguments, outputs) {
        Some(closed) => Ok(closed),
        None => Err(site.error(graph, None::<Type>, GraphErrorKind::EndedRegion)),
    }
}

/// Adds an op that runs regions.
fn push(
    site: &Site,
    graph: &GraphRef,
    op: Op,
    operands: SmallVec<[crate::graph::ValueId; 4]>,
    types: Vec<Type>,
    effect: bool,
) -> Result<Vec<TensorValue>> {
    let values = site.push_values(graph, op, operands, types.into(), DeviceRef::CPU, effect);
    values.iter().map(|value| value.tensor().cloned()).collect()
}

/// The values, unchanged, behind a barrier: whatever was added before it is executed before what reads its results, on all
/// devices.
///
/// # Errors
/// When there are none, or they are of several graphs.
#[track_caller]
pub fn fence(values: impl IntoValues) -> Result<Vec<Value>> {
    let site = Site::new("fence");
    let values = values.into_values();
    let mut tensors = Vec::new();
    for value in values.iter().filter(|value| matches!(value, Value::Tensor(_))) {
        tensors.push(site.tensor("a value", value)?);
    }
    let Some(graph) = values.first().map(|value| value.graph().clone()) else {
        return site.argument(&[], "values", "empty", "at least one value");
    };
    if let Some(stranger) = values.iter().find(|value| !value.graph().same(&graph)) {
        let kind = GraphErrorKind::OtherGraph { other: stranger.graph().name().clone() };
        return Err(site.error(&graph, values.iter().map(Value::ty), kind));
    }
    let operands = tensors.iter().map(|value| value.id).collect();
    let types = tensors.iter().map(|value| Type::Tensor(value.ty.clone())).collect();
    let mut behind = site.push_values(&graph, Op::Fence, operands, types, DeviceRef::CPU, true).into_iter();
    // A buffer is the same before and behind it.
    let result = |value: &Value| match value {
        Value::Tensor(_) => behind.next().unwrap_or_else(|| value.clone()),
        Value::Buffer(_) => value.clone(),
    };
    Ok(values.iter().map(result).collect())
}

/// Prints a tensor, behind its label, to the standard output, each time the graph is executed.
///
/// It is a side effect: on one device, in order with what changes buffers. What lies on a GPU is waited for.
///
/// # Errors
/// When the operand is a number.
#[track_caller]
pub fn print(value: impl Into<Operand>, label: &str) -> Result<()> {
    let site = Site::new("print");
    let value = match value.into() {
        Operand::Buffer(buffer) => ops::buffer_load(&buffer)?,
        other => site.tensor("the operand", other)?,
    };
    let (op, device) = (Op::Print { label: label.into() }, value.device());
    site.push_values(&value.graph, op, smallvec![value.id], SmallVec::new(), device, true);
    Ok(())
}

impl crate::graph::Graph {
    /// Prints a text each time the graph is executed; see [`ops::print`](print()).
    #[track_caller]
    pub fn print(&self, text: &str) {
        let op = Op::Print { label: text.into() };
        let site = Site::new("print");
        site.push_values(self.reference(), op, SmallVec::new(), SmallVec::new(), DeviceRef::CPU, true);
    }

    /// Joins the chains of all devices: what was added before is executed before every effect that is added behind.
    #[track_caller]
    pub fn merge_device_chains(&self) {
        let site = Site::new("merge_device_chains");
        let none = SmallVec::new();
        site.push_values(self.reference(), Op::MergeChains, none, SmallVec::new(), DeviceRef::CPU, true);
    }
}

impl TensorValue {
    /// See [`ops::print`](print()).
    ///
    /// # Errors
    /// As [`ops::print`](print()).
    #[track_caller]
    pub fn print(&self, label: &str) -> Result<()> {
        print(self, label)
    }
}

impl crate::graph::BufferValue {
    /// Prints what the buffer holds at this point; see [`ops::print`](print()).
    ///
    /// # Errors
    /// As [`ops::print`](print()).
    #[track_caller]
    pub fn print(&self, label: &str) -> Result<()> {
        print(self, label)
    }
}
