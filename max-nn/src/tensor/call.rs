//! [`Call`]: a node of the lazily staged graph, and what became of it.

use std::panic::Location;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use max_core::driver;
use max_core::graph::{GraphError, TensorType};
use smallvec::{SmallVec, smallvec};

use super::stage::Staged;

/// A tensor of the eager world: a result of a call.
#[derive(Clone)]
pub(crate) struct Eager {
    pub call: Arc<Call>,
    pub output: u32,
}

/// An op applied to operands, or a tensor that has memory from the start.
pub(crate) struct Call {
    pub what: What,
    /// How many ops depend on each other here, without a value.
    pub depth: u32,
    /// The line that applied the op.
    pub location: &'static Location<'static>,
    state: Mutex<State>,
}

/// What a call computes.
pub(crate) enum What {
    /// Nothing: the tensor was given.
    Source(TensorType),
    /// An op, which is shared by all calls of it with operands of these types.
    Op(Arc<Staged>),
}

/// What became of a call.
pub(crate) enum State {
    /// Nothing yet: what it takes.
    Staged(Arguments),
    /// Its results have values.
    Realized(SmallVec<[driver::Tensor; 1]>),
    /// It could not be computed.
    Failed(GraphError),
}

pub(crate) type Arguments = SmallVec<[Argument; 3]>;

/// An operand of a call.
#[derive(Clone)]
pub(crate) enum Argument {
    Tensor(Eager),
    /// A number, as a tensor: so that another number is the same region. Behind a pointer, since it is large.
    Scalar(Arc<driver::Tensor>),
}

impl Eager {
    /// A tensor that has memory.
    pub fn of_driver(tensor: driver::Tensor, location: &'static Location<'static>) -> Eager {
        let ty = TensorType::new(tensor.dtype(), tensor.shape(), tensor.device().into());
        let state = Mutex::new(State::Realized(smallvec![tensor]));
        Eager { call: Arc::new(Call { what: What::Source(ty), depth: 0, location, state }), output: 0 }
    }

    /// The first result of an op that is not computed yet.
    pub fn staged(staged: Arc<Staged>, arguments: Arguments, location: &'static Location<'static>) -> Eager {
        let depth = |argument: &Argument| match argument {
            Argument::Tensor(tensor) => tensor.call.staged_depth(),
            Argument::Scalar(_) => 0,
        };
        let depth = 1 + arguments.iter().map(depth).max().unwrap_or_default();
        let state = Mutex::new(State::Staged(arguments));
        Eager { call: Arc::new(Call { what: What::Op(staged), depth, location, state }), output: 0 }
    }

    pub fn ty(&self) -> &TensorType {
        match &self.call.what {
            What::Source(ty) => ty,
            What::Op(staged) => &staged.results[self.output as usize],
        }
    }

    /// The value, if there is one.
    pub fn value(&self) -> Option<Result<driver::Tensor, GraphError>> {
        match &*self.call.state() {
            State::Staged(_) => None,
            State::Realized(values) => Some(Ok(values[self.output as usize].clone())),
            State::Failed(error) => Some(Err(error.clone())),
        }
    }
}

impl Call {
    /// Every change of a state is one assignment, so a panic elsewhere leaves it whole.
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The op.
    pub fn op(&self) -> Option<&Arc<Staged>> {
        match &self.what {
            What::Source(_) => None,
            What::Op(staged) => Some(staged),
        }
    }

    fn staged_depth(&self) -> u32 {
        if self.depth > 0 && matches!(&*self.state(), State::Staged(_)) { self.depth } else { 0 }
    }

    /// Notes what became of it, unless something has already.
    pub fn finish(&self, outcome: Result<SmallVec<[driver::Tensor; 1]>, GraphError>) {
        let mut state = self.state();
        if let State::Staged(_) = &*state {
            let next = match outcome {
                Ok(values) => State::Realized(values),
                Err(error) => State::Failed(error),
            };
            let old = std::mem::replace(&mut *state, next);
            drop(state);
            // What it was computed of may go now, outside of the lock.
            drop(old);
        }
    }

    /// A result, to be changed in place, if it has a value.
    pub fn realized_mut(&mut self, output: u32) -> Option<&mut driver::Tensor> {
        match self.state.get_mut().unwrap_or_else(PoisonError::into_inner) {
            State::Realized(values) => values.get_mut(output as usize),
            State::Staged(_) | State::Failed(_) => None,
        }
    }
}

impl Drop for Call {
    /// Without recursion: a chain of staged ops may be long.
    fn drop(&mut self) {
        let mut waiting = take_arguments(self);
        while let Some(argument) = waiting.pop() {
            if let Argument::Tensor(tensor) = argument
                && let Some(mut call) = Arc::into_inner(tensor.call)
            {
                waiting.extend(take_arguments(&mut call));
            }
        }
    }
}

fn take_arguments(call: &mut Call) -> Arguments {
    match call.state.get_mut().unwrap_or_else(PoisonError::into_inner) {
        State::Staged(arguments) => std::mem::take(arguments),
        State::Realized(_) | State::Failed(_) => Arguments::new(),
    }
}
