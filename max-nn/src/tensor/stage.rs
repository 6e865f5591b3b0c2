//! Staging: an op is checked, its result types are inferred, and it waits until somebody reads a result.
//!
//! Inference adds the op to a graph of its own, once for each combination of attributes and operand types. After that,
//! the same op is found by a hash.

use std::cell::RefCell;
use std::hash::BuildHasherDefault;
use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use max_core::driver;
use max_core::graph::{self, Graph, Scalar, TensorType, TensorValue, Value, ops};
use smallvec::{SmallVec, smallvec};

use super::attributes::{Attributes, Key, KeyMap};
use super::call::{Argument, Arguments, Eager};
use super::context;
use super::realize::realize;
use super::{Operand, Repr, Tensor};
use crate::Result;

/// The results of an op in a graph.
pub(crate) type Values = SmallVec<[TensorValue; 1]>;

/// How an op is added to a graph: its operands are all tensors of the graph, or numbers.
pub(crate) type Add<A, R> = fn(&[graph::Operand], &A) -> Result<R>;

/// How a view is made of a tensor that has memory; `None` where elements would have to move.
pub(crate) type View<A> = fn(&driver::Tensor, &A, &TensorType) -> Option<driver::Tensor>;

type AnyAdd = Box<dyn Fn(&[graph::Operand]) -> Result<Values> + Send + Sync>;
type AnyView = Box<dyn Fn(&driver::Tensor, &TensorType) -> Option<driver::Tensor> + Send + Sync>;

/// What an op returns: one value, two, or a list of them.
pub(crate) trait Outcome: 'static {
    type Tensors;

    fn values(self) -> Values;

    /// The same of tensors, `at` of which gives those with the same positions.
    fn tensors(count: usize, at: impl Fn(usize) -> Tensor) -> Self::Tensors;
}

impl Outcome for TensorValue {
    type Tensors = Tensor;

    fn values(self) -> Values {
        smallvec![self]
    }

    fn tensors(_: usize, at: impl Fn(usize) -> Tensor) -> Tensor {
        at(0)
    }
}

impl Outcome for (TensorValue, TensorValue) {
    type Tensors = (Tensor, Tensor);

    fn values(self) -> Values {
        smallvec![self.0, self.1]
    }

    fn tensors(_: usize, at: impl Fn(usize) -> Tensor) -> (Tensor, Tensor) {
        (at(0), at(1))
    }
}

impl Outcome for Vec<TensorValue> {
    type Tensors = Vec<Tensor>;

    fn values(self) -> Values {
        self.into()
    }

    fn tensors(count: usize, at: impl Fn(usize) -> Tensor) -> Vec<Tensor> {
        (0..count).map(at).collect()
    }
}

/// An op with its attributes and operand types: what all calls of it share.
pub(crate) struct Staged {
    /// Never used for another.
    pub id: u64,
    pub op: &'static str,
    pub results: SmallVec<[TensorType; 1]>,
    add: AnyAdd,
    view: Option<AnyView>,
}

impl Staged {
    /// Adds the op to the graph of its operands.
    pub fn add(&self, operands: &[graph::Operand]) -> Result<Values> {
        (self.add)(operands)
    }

    /// Whether the result can be a part of the operand's memory, where the operand has any.
    pub fn is_view(&self) -> bool {
        self.view.is_some()
    }

    /// The result as a view of the operand's memory.
    pub fn view(&self, operand: &driver::Tensor) -> Option<driver::Tensor> {
        self.view.as_ref().and_then(|view| view(operand, self.results.first()?))
    }
}

/// The most ops that are remembered: a program that never repeats itself must not fill memory.
const REMEMBERED: usize = 1 << 14;

static IDS: AtomicU64 = AtomicU64::new(0);
static STAGED: Mutex<KeyMap<Arc<Staged>>> = Mutex::new(KeyMap::with_hasher(BuildHasherDefault::new()));

thread_local! {
    /// What this thread has used, so that finding it again takes no lock.
    static NEAR: RefCell<(Key, KeyMap<Arc<Staged>>)> = RefCell::default();
}

/// Applies an op.
#[track_caller]
pub(crate) fn apply<A: Attributes, R: Outcome>(
    op: &'static str,
    operands: &[Operand],
    attributes: A,
    add: Add<A, R>,
) -> Result<R::Tensors> {
    stage(op, operands, attributes, add, None)
}

/// Applies an op whose result is a view of its operand.
#[track_caller]
pub(crate) fn apply_view<A: Attributes>(
    op: &'static str,
    operand: Operand,
    attributes: A,
    add: Add<A, TensorValue>,
    view: View<A>,
) -> Result<Tensor> {
    stage(op, &[operand], attributes, add, Some(view))
}

#[track_caller]
fn stage<A: Attributes, R: Outcome>(
    op: &'static str,
    operands: &[Operand],
    attributes: A,
    add: Add<A, R>,
    view: Option<View<A>>,
) -> Result<R::Tensors> {
    let location = Location::caller();
    let of_graph = operands.iter().find_map(|operand| match operand {
        Operand::Tensor(Tensor(Repr::Graph(value))) => Some(Some(value)),
        Operand::Buffer(_) => Some(None),
        _ => None,
    });
    if let Some(value) = of_graph {
        let graph = value.map(TensorValue::graph);
        let results = graph::at(location, || {
            let operands = operands.iter().map(|operand| operand.in_graph(graph.as_ref()));
            add(&operands.collect::<Result<SmallVec<[_; 4]>>>()?, &attributes)
        })?;
        let values = results.values();
        return Ok(R::tensors(values.len(), |i| values[i].clone().into()));
    }
    let staged = NEAR.with_borrow_mut(|(key, near)| {
        key.clear();
        key.word(op.as_ptr() as u64);
        key.word(add as usize as u64);
        attributes.write(key);
        operands.iter().for_each(|operand| operand.write(key));
        near.get(key.bytes()).cloned()
    });
    let staged = match staged {
        Some(staged) => staged,
        None => graph::at(location, || infer(op, operands, &attributes, add, view))?,
    };
    let Some(arguments) = arguments(operands) else {
        // A number that the dtype does not hold: the op itself says so.
        return Err(graph::at(location, || match in_own_graph(op, operands, &attributes, add) {
            Err(error) => error,
            Ok(_) => graph::GraphError::argument(op, "operands", "a number", "one that the tensor's dtype holds"),
        }));
    };
    let tensor = Eager::staged(staged, arguments, location);
    if tensor.call.depth > context::longest_chain() {
        // Whoever reads it gets the error of what fails here.
        let _ = realize(&[&tensor]);
    }
    let count = tensor.call.op().map_or(1, |staged| staged.results.len());
    Ok(R::tensors(count, |i| Tensor(Repr::Eager(Eager { output: i as u32, ..tensor.clone() }))))
}

/// Adds the op to a graph of its own, whose inputs are the operands.
fn in_own_graph<A, R: Outcome>(
    op: &'static str,
    operands: &[Operand],
    attributes: &A,
    add: Add<A, R>,
) -> Result<Values> {
    let types: Vec<&TensorType> = operands.iter().filter_map(Operand::eager_type).collect();
    let graph = Graph::new(op, types);
    let mut inputs = graph.inputs().iter();
    let operands: SmallVec<[graph::Operand; 4]> = operands
        .iter()
        .filter_map(|operand| match operand {
            Operand::Scalar(value) => Some(graph::Operand::Scalar(*value)),
            _ => inputs.next().map(graph::Operand::from),
        })
        .collect();
    add(&operands, attributes).map(Outcome::values).map_err(|error| error.outside_of_graph())
}

/// Checks the op, infers the types of its results, and remembers it.
fn infer<A: Attributes, R: Outcome>(
    op: &'static str,
    operands: &[Operand],
    attributes: &A,
    add: Add<A, R>,
    view: Option<View<A>>,
) -> Result<Arc<Staged>> {
    let key: Box<[u8]> = NEAR.with_borrow(|(key, _)| key.bytes().into());
    let known = STAGED.lock().unwrap_or_else(PoisonError::into_inner).get(&key).cloned();
    let staged = match known {
        Some(staged) => staged,
        None => {
            let values = in_own_graph(op, operands, attributes, add)?;
            let results = values.iter().map(|value| value.ty().clone()).collect();
            let (a, b) = (attributes.clone(), attributes.clone());
            let staged = Arc::new(Staged {
                id: IDS.fetch_add(1, Ordering::Relaxed),
                op,
                results,
                add: Box::new(move |operands| add(operands, &a).map(Outcome::values)),
                view: view.map(|view| -> AnyView { Box::new(move |tensor, ty| view(tensor, &b, ty)) }),
            });
            let mut all = STAGED.lock().unwrap_or_else(PoisonError::into_inner);
            if all.len() >= REMEMBERED {
                all.clear();
            }
            all.entry(key.clone()).or_insert(staged).clone()
        }
    };
    NEAR.with_borrow_mut(|(_, near)| {
        if near.len() >= REMEMBERED {
            near.clear();
        }
        near.insert(key, staged.clone());
    });
    Ok(staged)
}

/// The operands of an eager op; numbers take the dtype of the last tensor. `None` if it does not hold one.
fn arguments(operands: &[Operand]) -> Option<Arguments> {
    let like = operands.iter().rev().find_map(Operand::eager_type);
    operands
        .iter()
        .map(|operand| match operand {
            Operand::Tensor(Tensor(Repr::Eager(tensor))) => Some(Argument::Tensor(tensor.clone())),
            Operand::Scalar(value) => {
                let like = like?;
                let number = value.to_tensor(like.dtype).ok()?;
                match like.device.is_cpu() {
                    true => Some(Argument::Scalar(Arc::new(number))),
                    false => number.to(&context::device(like.device).ok()?).ok().map(Arc::new).map(Argument::Scalar),
                }
            }
            Operand::Tensor(Tensor(Repr::Graph(_))) | Operand::Buffer(_) => None,
        })
        .collect()
}

impl Operand {
    fn eager_type(&self) -> Option<&TensorType> {
        match self {
            Operand::Tensor(Tensor(Repr::Eager(tensor))) => Some(tensor.ty()),
            _ => None,
        }
    }

    fn write(&self, key: &mut Key) {
        match self {
            Operand::Tensor(tensor) => key.ty(tensor.ty()),
            Operand::Scalar(Scalar::Bool(_)) => key.byte(254),
            Operand::Scalar(Scalar::Int(_)) => key.byte(253),
            Operand::Scalar(_) => key.byte(252),
            Operand::Buffer(_) => key.byte(251),
        }
    }

    /// The operand as a value of a graph: an eager tensor is a constant there.
    fn in_graph(&self, graph: Option<&Graph>) -> Result<graph::Operand> {
        Ok(match (self, graph) {
            (Operand::Tensor(Tensor(Repr::Graph(value))), _) => value.into(),
            (Operand::Tensor(tensor @ Tensor(Repr::Eager(_))), Some(graph)) => tensor.in_graph(graph)?.into(),
            // A buffer comes first: the op says what to do about it.
            (Operand::Tensor(Tensor(Repr::Eager(_))), None) => graph::Operand::Scalar(Scalar::Int(0)),
            (Operand::Scalar(value), _) => graph::Operand::Scalar(*value),
            (Operand::Buffer(value), _) => value.into(),
        })
    }
}

impl Tensor {
    /// The tensor in a graph: a constant, if it is an eager one.
    ///
    /// # Errors
    /// When its value cannot be computed.
    pub(crate) fn in_graph(&self, graph: &Graph) -> Result<TensorValue> {
        match &self.0 {
            Repr::Graph(value) => Ok(value.clone()),
            Repr::Eager(tensor) => {
                let ty = tensor.ty();
                ops::constant(graph, self.value_at("constant")?, ty.dtype, ty.device)
            }
        }
    }

    /// The inputs of a graph, as tensors.
    pub(crate) fn of_inputs(inputs: &[Value]) -> Result<Vec<Tensor>> {
        inputs.iter().map(|input| Ok(input.tensor()?.clone().into())).collect()
    }
}
