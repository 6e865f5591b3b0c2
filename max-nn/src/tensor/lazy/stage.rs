//! Staging: an op is checked, its result types are inferred, and it waits until somebody reads a result.
//!
//! Inference adds the op to a graph of its own, once for each combination of attributes and operand types. After that,
//! the same op is found by a hash.

use std::cell::RefCell;
use std::hash::BuildHasherDefault;
use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use max_core::driver;
use max_core::dtype::DType;
use max_core::engine::Model;
use max_core::graph::{self, Graph, Scalar, TensorType, TensorValue, Value, ops};
use smallvec::{SmallVec, smallvec};

use super::attributes::{Attributes, Key, KeyMap};
use super::call::{Argument, Arguments, Eager};
use super::context;
use super::realize::realize;
use crate::Result;
use crate::tensor::{Operand, Repr, Tensor, Tensors};

/// The results of an op in a graph.
pub(crate) type Values = SmallVec<[TensorValue; 1]>;

/// How an op is added to a graph: its operands are all tensors of the graph, or numbers.
pub(crate) type Add<A, R> = fn(&[graph::Operand], &A) -> Result<R>;

/// How a view is made of a tensor that has memory; `None` where elements would have to move.
pub(crate) type View<A> = fn(&driver::Tensor, &A, &TensorType) -> Option<driver::Tensor>;

/// What an op returns: one value, two, or a list of them.
pub(crate) trait Outcome: 'static {
    type Tensors;

    fn values(self) -> Values;

    fn tensors(results: Results) -> Self::Tensors;
}

impl Outcome for TensorValue {
    type Tensors = Tensor;

    fn values(self) -> Values {
        smallvec![self]
    }

    fn tensors(results: Results) -> Tensor {
        results.first()
    }
}

impl Outcome for (TensorValue, TensorValue) {
    type Tensors = (Tensor, Tensor);

    fn values(self) -> Values {
        smallvec![self.0, self.1]
    }

    fn tensors(results: Results) -> (Tensor, Tensor) {
        let second = results.get(1);
        (results.first(), second)
    }
}

impl Outcome for Vec<TensorValue> {
    type Tensors = Vec<Tensor>;

    fn values(self) -> Values {
        self.into()
    }

    fn tensors(results: Results) -> Vec<Tensor> {
        let count = match &results {
            Results::Graph(values) => values.len(),
            Results::Eager(first) => first.call.op().map_or(1, |staged| staged.results.len()),
        };
        (0..count).map(|i| results.get(i)).collect()
    }
}

/// The results of an op that was applied, whose number is the op's.
pub(crate) enum Results {
    /// To tensors of a graph.
    Graph(Values),
    /// To others: the first one.
    Eager(Eager),
}

impl Results {
    fn first(self) -> Tensor {
        match self {
            Results::Graph(mut values) => values.swap_remove(0).into(),
            Results::Eager(first) => Tensor(Repr::Eager(first)),
        }
    }

    fn get(&self, i: usize) -> Tensor {
        match self {
            Results::Graph(values) => values[i].clone().into(),
            Results::Eager(first) => Tensor(Repr::Eager(Eager { call: first.call.clone(), output: i as u32 })),
        }
    }
}

/// An op with its attributes, whatever type those have: staging is compiled once, and not for each of them.
trait Op: Send + Sync {
    /// Writes what tells it from others of its name.
    fn write(&self, key: &mut Key);
    /// Adds it to the graph of its operands.
    fn add(&self, operands: &[graph::Operand]) -> Result<Values>;
    /// Whether its result can be a part of the operand's memory.
    fn is_view(&self) -> bool;
    /// That part, as a tensor of a type.
    fn view(&self, operand: &driver::Tensor, ty: &TensorType) -> Option<driver::Tensor>;
    /// The same, to be kept.
    fn boxed(&self) -> Box<dyn Op>;
}

struct WithAttributes<A, R> {
    attributes: A,
    add: Add<A, R>,
    view: Option<View<A>>,
}

impl<A: Attributes, R: Outcome> Op for WithAttributes<A, R> {
    fn write(&self, key: &mut Key) {
        key.word(self.add as usize as u64);
        self.attributes.write(key);
    }

    fn add(&self, operands: &[graph::Operand]) -> Result<Values> {
        (self.add)(operands, &self.attributes).map(Outcome::values)
    }

    fn is_view(&self) -> bool {
        self.view.is_some()
    }

    fn view(&self, operand: &driver::Tensor, ty: &TensorType) -> Option<driver::Tensor> {
        self.view.and_then(|view| view(operand, &self.attributes, ty))
    }

    fn boxed(&self) -> Box<dyn Op> {
        let WithAttributes { attributes, add, view } = self;
        Box::new(WithAttributes { attributes: attributes.clone(), add: *add, view: *view })
    }
}

/// An op with its attributes and operand types: what all calls of it share.
pub(crate) struct Staged {
    /// Never used for another.
    pub id: u64,
    /// The same for those that differ in the sizes of operands alone.
    pub kind: u64,
    pub op: &'static str,
    pub results: SmallVec<[TensorType; 1]>,
    /// The model of the op alone, of different tensors.
    pub alone: OnceLock<Model>,
    with_attributes: Box<dyn Op>,
}

impl Staged {
    /// Adds the op to the graph of its operands.
    pub fn add(&self, operands: &[graph::Operand]) -> Result<Values> {
        self.with_attributes.add(operands)
    }

    /// Whether the result can be a part of the operand's memory, where the operand has any.
    pub fn is_view(&self) -> bool {
        self.with_attributes.is_view()
    }

    /// The result as a view of the operand's memory.
    pub fn view(&self, operand: &driver::Tensor) -> Option<driver::Tensor> {
        self.with_attributes.view(operand, self.results.first()?)
    }
}

/// The most ops that are remembered: a program that never repeats itself must not fill memory.
const REMEMBERED: usize = 1 << 14;

static IDS: AtomicU64 = AtomicU64::new(0);

/// All ops that were staged, and the kinds of them.
#[derive(Default)]
pub(super) struct Known {
    ops: KeyMap<Arc<Staged>>,
    kinds: KeyMap<u64>,
}

pub(super) static KNOWN: Mutex<Known> = Mutex::new(Known {
    ops: KeyMap::with_hasher(BuildHasherDefault::new()),
    kinds: KeyMap::with_hasher(BuildHasherDefault::new()),
});

/// What this thread has used, so that finding it again takes no lock.
#[derive(Default)]
struct Near {
    /// The key of the last op.
    key: Key,
    ops: KeyMap<Arc<Staged>>,
    numbers: Numbers,
}

thread_local! {
    static NEAR: RefCell<Near> = RefCell::default();
}

/// Applies an op.
#[track_caller]
pub(crate) fn apply<A: Attributes, R: Outcome>(
    op: &'static str,
    operands: &mut [Operand],
    attributes: A,
    add: Add<A, R>,
) -> Result<R::Tensors> {
    let with_attributes = WithAttributes { attributes, add, view: None };
    stage(op, operands, &with_attributes, Location::caller()).map(R::tensors)
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
    let with_attributes = WithAttributes { attributes, add, view: Some(view) };
    stage(op, &mut [operand], &with_attributes, Location::caller()).map(Results::first)
}

fn stage(
    op: &'static str,
    operands: &mut [Operand],
    with_attributes: &dyn Op,
    location: &'static Location<'static>,
) -> Result<Results> {
    let of_graph = operands.iter().find_map(|operand| match operand {
        Operand::Tensor(Tensor(Repr::Graph(value))) => Some(Some(value)),
        Operand::Buffer(_) => Some(None),
        _ => None,
    });
    if let Some(value) = of_graph {
        let graph = value.map(|value| value.graph());
        let results = graph::at(location, || {
            let operands = operands.iter().map(|operand| operand.in_graph(graph.as_ref()));
            with_attributes.add(&operands.collect::<Result<SmallVec<[_; 4]>>>()?)
        })?;
        return Ok(Results::Graph(results));
    }
    let near = NEAR.with_borrow_mut(|Near { key, ops, numbers }| {
        write(key, op, with_attributes, operands, Key::ty);
        let staged = ops.get(key.words()).cloned();
        let arguments = if staged.is_some() { arguments(operands, numbers) } else { None };
        (staged, arguments)
    });
    let (staged, arguments) = match near {
        (Some(staged), arguments) => (staged, arguments),
        (None, _) => {
            let staged = graph::at(location, || infer(op, operands, with_attributes))?;
            (staged, NEAR.with_borrow_mut(|near| arguments(operands, &mut near.numbers)))
        }
    };
    let Some(arguments) = arguments else {
        // A number that the dtype does not hold: the op itself says so.
        return Err(graph::at(location, || match in_own_graph(op, operands, with_attributes) {
            Err(error) => error,
            Ok(_) => graph::GraphError::argument(op, "operands", "a number", "one that the tensor's dtype holds"),
        }));
    };
    let tensor = Eager::staged(staged, arguments, location);
    if tensor.call.depth > context::longest_chain() {
        // Whoever reads it gets the error of what fails here.
        let _ = realize(&[&tensor]);
    }
    Ok(Results::Eager(tensor))
}

/// Writes what tells the op from others.
fn write(
    key: &mut Key,
    op: &'static str,
    with_attributes: &dyn Op,
    operands: &[Operand],
    ty: fn(&mut Key, &TensorType),
) {
    key.clear();
    key.word(op.as_ptr() as u64);
    with_attributes.write(key);
    operands.iter().for_each(|operand| operand.write(key, ty));
}

/// Adds the op to a graph of its own, whose inputs are the operands.
fn in_own_graph(op: &'static str, operands: &[Operand], with_attributes: &dyn Op) -> Result<Values> {
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
    with_attributes.add(&operands).map_err(|error| error.outside_of_graph())
}

/// Checks the op, infers the types of its results, and remembers it.
fn infer(op: &'static str, operands: &[Operand], with_attributes: &dyn Op) -> Result<Arc<Staged>> {
    let key: Box<[u64]> = NEAR.with_borrow(|near| near.key.words().into());
    let known = || KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let of_all = known().ops.get(&key).cloned();
    let staged = match of_all {
        Some(staged) => staged,
        None => {
            let values = in_own_graph(op, operands, with_attributes)?;
            let results = values.iter().map(|value| value.ty().clone()).collect();
            let mut kind = Key::default();
            write(&mut kind, op, with_attributes, operands, Key::kind);
            let id = IDS.fetch_add(1, Ordering::Relaxed);
            let mut all = known();
            if all.ops.len() >= REMEMBERED {
                *all = Known::default();
            }
            let kind = *all.kinds.entry(kind.words().into()).or_insert(id);
            let with_attributes = with_attributes.boxed();
            let staged = Arc::new(Staged { id, kind, op, results, alone: OnceLock::new(), with_attributes });
            all.ops.entry(key.clone()).or_insert(staged).clone()
        }
    };
    NEAR.with_borrow_mut(|near| {
        if near.ops.len() >= REMEMBERED {
            near.ops.clear();
        }
        near.ops.insert(key, staged.clone());
    });
    Ok(staged)
}

/// The operands of an eager op, moved out of `operands`; numbers take the dtype of the last tensor. `None`, and nothing is
/// moved, if it does not hold one.
fn arguments(operands: &mut [Operand], numbers: &mut Numbers) -> Option<Arguments> {
    let mut scalars: SmallVec<[Arc<driver::Tensor>; 2]> = SmallVec::new();
    if operands.iter().any(|operand| matches!(operand, Operand::Scalar(_))) {
        let like = operands.iter().rev().find_map(Operand::eager_type)?;
        for operand in operands.iter() {
            if let Operand::Scalar(value) = operand {
                scalars.push(numbers.get(*value, like)?);
            }
        }
    }
    let mut scalars = scalars.into_iter();
    let mut arguments = Arguments::new();
    for operand in operands {
        arguments.push(match std::mem::replace(operand, Operand::Scalar(Scalar::Int(0))) {
            Operand::Tensor(Tensor(Repr::Eager(tensor))) => Argument::Tensor(tensor),
            Operand::Scalar(_) => Argument::Scalar(scalars.next()?),
            Operand::Tensor(Tensor(Repr::Graph(_))) | Operand::Buffer(_) => return None,
        });
    }
    Some(arguments)
}

/// How many numbers are remembered.
const NUMBERS: usize = 32;

/// A number as a tensor, by its kind, its bits and its dtype.
type Number = ((u8, i128, DType), Arc<driver::Tensor>);

/// Numbers that were operands, as tensors of the host: a literal in a loop is made once.
#[derive(Default)]
struct Numbers([Option<Number>; NUMBERS]);

impl Numbers {
    /// The number in the dtype of a tensor, and on its device; `None` if the dtype does not hold it.
    fn get(&mut self, value: Scalar, like: &TensorType) -> Option<Arc<driver::Tensor>> {
        let make = || value.to_tensor(like.dtype).ok();
        let key = match value {
            Scalar::Int(value) => (0, value, like.dtype),
            Scalar::Float(value) => (1, i128::from(value.to_bits()), like.dtype),
            _ => return Some(Arc::new(on_device(make()?, like)?)),
        };
        if !like.device.is_cpu() {
            return Some(Arc::new(on_device(make()?, like)?));
        }
        let place = ((key.1 as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize % NUMBERS;
        match &self.0[place] {
            Some((known, number)) if *known == key => Some(number.clone()),
            _ => {
                let number = Arc::new(make()?);
                self.0[place] = Some((key, number.clone()));
                Some(number)
            }
        }
    }
}

/// A number of the host on the device of a tensor.
fn on_device(number: driver::Tensor, like: &TensorType) -> Option<driver::Tensor> {
    match like.device.is_cpu() {
        true => Some(number),
        false => number.to(&context::device(like.device).ok()?).ok(),
    }
}

impl Operand {
    fn eager_type(&self) -> Option<&TensorType> {
        match self {
            Operand::Tensor(Tensor(Repr::Eager(tensor))) => Some(tensor.ty()),
            _ => None,
        }
    }

    fn write(&self, key: &mut Key, ty: fn(&mut Key, &TensorType)) {
        match self {
            Operand::Tensor(tensor) => ty(key, tensor.ty()),
            Operand::Scalar(Scalar::Bool(_)) => key.word(254),
            Operand::Scalar(Scalar::Int(_)) => key.word(253),
            Operand::Scalar(_) => key.word(252),
            Operand::Buffer(_) => key.word(251),
        }
    }

    /// The operand as a value of a graph: an eager tensor is a constant there.
    fn in_graph(&self, graph: Option<&Graph>) -> Result<graph::Operand> {
        Ok(match (self, graph) {
            (Operand::Tensor(Tensor(Repr::Graph(value))), _) => (**value).clone().into(),
            (Operand::Tensor(tensor @ Tensor(Repr::Eager(_))), Some(graph)) => tensor.in_graph(graph)?.into(),
            // A buffer comes first: the op says what to do about it.
            (Operand::Tensor(Tensor(Repr::Eager(_))), None) => graph::Operand::Scalar(Scalar::Int(0)),
            (Operand::Scalar(value), _) => graph::Operand::Scalar(*value),
            (Operand::Buffer(value), _) => (**value).clone().into(),
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
            Repr::Graph(value) => Ok((**value).clone()),
            Repr::Eager(tensor) => {
                let ty = tensor.ty();
                ops::constant(graph, self.value_at("constant")?, ty.dtype, ty.device)
            }
        }
    }

    /// The tensors that a graph computes, as its outputs.
    pub(crate) fn to_outputs(tensors: &impl Tensors) -> Vec<Value> {
        let mut values = Vec::new();
        tensors.for_each(&mut |tensor| values.push(tensor.into()));
        values
    }

    /// The inputs of a graph, as tensors.
    pub(crate) fn of_inputs(inputs: &[Value]) -> Result<Vec<Tensor>> {
        inputs.iter().map(|input| Ok(input.tensor()?.clone().into())).collect()
    }
}
