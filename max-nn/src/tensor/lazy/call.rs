//! [`Call`]: a node of the lazily staged graph, and what became of it.

use std::panic::Location;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

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
    /// What it takes; nothing once it has an outcome.
    arguments: Mutex<Arguments>,
    /// What became of it, which is read without a lock.
    outcome: OnceLock<Result<Outputs, GraphError>>,
}

/// What a call computes.
pub(crate) enum What {
    /// Nothing: the tensor was given.
    Source(TensorType),
    /// An op, which is shared by all calls of it with operands of these types.
    Op(Arc<Staged>),
}

/// The values of a call's results.
pub(crate) type Outputs = SmallVec<[driver::Tensor; 1]>;

pub(crate) type Arguments = SmallVec<[Argument; 3]>;

/// An operand of a call.
#[derive(Clone)]
pub(crate) enum Argument {
    Tensor(Eager),
    /// A number, as a tensor: so that another number is the same region. Behind a pointer, since it is large.
    Scalar(Arc<driver::Tensor>),
}

/// The type of a tensor of the driver: its dtype, its shape, and its device.
///
/// ```
/// # extern crate max_nn as max;
/// use max::{driver, tensor::driver_tensor_type};
///
/// assert_eq!(driver_tensor_type(&driver::Tensor::full(1.0f32, [2, 3])?).to_string(), "float32[2, 3]");
/// # Ok::<(), max::Error>(())
/// ```
pub fn driver_tensor_type(tensor: &driver::Tensor) -> TensorType {
    tensor.into()
}

impl Argument {
    /// The value, if there is one.
    #[inline]
    pub fn value(&self) -> Option<Result<&driver::Tensor, &GraphError>> {
        match self {
            Argument::Tensor(tensor) => tensor.value(),
            Argument::Scalar(value) => Some(Ok(value)),
        }
    }

    /// Whether both are the same tensor. Numbers never are, so that the same region may have others.
    #[inline]
    pub fn is(&self, other: &Argument) -> bool {
        match (self, other) {
            (Argument::Tensor(a), Argument::Tensor(b)) => Arc::ptr_eq(&a.call, &b.call) && a.output == b.output,
            _ => false,
        }
    }
}

impl Eager {
    /// A tensor that has memory.
    pub fn of_driver(tensor: driver::Tensor, location: &'static Location<'static>) -> Eager {
        let ty = driver_tensor_type(&tensor);
        let outcome = OnceLock::from(Ok(smallvec![tensor]));
        let call = Call { what: What::Source(ty), depth: 0, location, arguments: Mutex::default(), outcome };
        Eager { call: Arc::new(call), output: 0 }
    }

    /// The first result of an op that is not computed yet.
    #[inline]
    pub fn staged(staged: Arc<Staged>, arguments: Arguments, location: &'static Location<'static>) -> Eager {
        let depth = |argument: &Argument| match argument {
            Argument::Tensor(tensor) => tensor.call.staged_depth(),
            Argument::Scalar(_) => 0,
        };
        let depth = 1 + arguments.iter().map(depth).max().unwrap_or_default();
        let (arguments, outcome) = (Mutex::new(arguments), OnceLock::new());
        Eager { call: Arc::new(Call { what: What::Op(staged), depth, location, arguments, outcome }), output: 0 }
    }

    #[inline]
    pub fn ty(&self) -> &TensorType {
        match &self.call.what {
            What::Source(ty) => ty,
            What::Op(staged) => &staged.results[self.output as usize],
        }
    }

    /// The value, if there is one.
    #[inline]
    pub fn value(&self) -> Option<Result<&driver::Tensor, &GraphError>> {
        let outcome = self.call.outcome.get()?;
        Some(outcome.as_ref().map(|values| &values[self.output as usize]))
    }
}

impl Call {
    /// What it takes, which nobody changes meanwhile; nothing is left once it has an outcome. Every change is one assignment, so
    /// a panic elsewhere leaves them whole.
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, Arguments> {
        self.arguments.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What became of it.
    #[inline]
    pub fn outcome(&self) -> Option<&Result<Outputs, GraphError>> {
        self.outcome.get()
    }

    /// The op.
    #[inline]
    pub fn op(&self) -> Option<&Arc<Staged>> {
        match &self.what {
            What::Source(_) => None,
            What::Op(staged) => Some(staged),
        }
    }

    #[inline]
    fn staged_depth(&self) -> u32 {
        if self.depth > 0 && self.outcome.get().is_none() { self.depth } else { 0 }
    }

    /// Notes what became of it, unless something has already.
    pub fn finish(&self, outcome: Result<Outputs, GraphError>) {
        if self.outcome.set(outcome).is_ok() {
            let arguments = std::mem::take(&mut *self.lock());
            // What it was computed of may go now, outside of the lock.
            drop(arguments);
        }
    }

    /// A result, to be changed in place, if it has a value.
    pub fn realized_mut(&mut self, output: u32) -> Option<&mut driver::Tensor> {
        self.outcome.get_mut()?.as_mut().ok()?.get_mut(output as usize)
    }
}

impl Drop for Call {
    /// Without recursion: a chain of staged ops may be long.
    fn drop(&mut self) {
        let mut waiting = match self.arguments.get_mut() {
            Ok(arguments) if arguments.is_empty() => return,
            _ => take_arguments(self),
        };
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
    std::mem::take(call.arguments.get_mut().unwrap_or_else(PoisonError::into_inner))
}
