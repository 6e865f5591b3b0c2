//! [`EngineError`]: why a graph does not load, or a model does not execute.

use std::fmt;
use std::panic::Location;
use std::path::PathBuf;
use std::sync::Arc;

use crate::driver::{DeviceRef, DriverError, Tensor};
use crate::dtype::DType;
use crate::graph::weights::WeightsError;
use crate::graph::{BindError, Dim, DimError, GraphError, Shape, Type};
use crate::kernel::{GpuError, KernelError};

/// What a tensor that was passed to a model is; prints as `float32[3, 4]`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ActualType {
    /// The type of its elements.
    pub dtype: DType,
    /// Its sizes.
    pub shape: Vec<usize>,
    /// Its strides, in elements.
    pub strides: Vec<isize>,
    /// Where it is.
    pub device: DeviceRef,
}

impl From<&Tensor> for ActualType {
    fn from(tensor: &Tensor) -> Self {
        let (shape, strides) = (tensor.shape().to_vec(), tensor.strides().to_vec());
        ActualType { dtype: tensor.dtype(), shape, strides, device: tensor.device().into() }
    }
}

impl fmt::Display for ActualType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{:?}", self.dtype, self.shape)?;
        if self.device == DeviceRef::CPU { Ok(()) } else { write!(f, " on {}", self.device) }
    }
}

/// An input of a model, for messages: `input 1 (`input1`: float32[batch, 4])`.
#[derive(Clone, PartialEq, Debug)]
pub struct InputRef {
    /// The model's name.
    pub model: Arc<str>,
    /// The position.
    pub index: usize,
    /// The name.
    pub name: Arc<str>,
    /// The declared type.
    pub ty: Type,
}

impl fmt::Display for InputRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "model `{}`, input {} (`{}`: {})", self.model, self.index, self.name, self.ty)
    }
}

/// An op of a model, for messages.
#[derive(Clone, PartialEq, Debug)]
pub struct OpRef {
    /// The model's name.
    pub model: Arc<str>,
    /// The op's name.
    pub op: Arc<str>,
    /// The line that added it to the graph.
    pub location: &'static Location<'static>,
}

impl fmt::Display for OpRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "model `{}`, `{}` at {}", self.model, self.op, self.location)
    }
}

/// How an op's operands and its kernel disagree.
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum OperandError {
    /// Another number of operands and results than in the kernel's signature.
    #[error("the kernel has {expected} operands and results, the op {actual}")]
    Count {
        /// In the signature.
        expected: usize,
        /// In the graph.
        actual: usize,
    },
    /// Another rank than in the kernel's signature.
    #[error("`{operand}` has rank {actual}, the kernel takes rank {expected}; reshape it with `reshape`")]
    Rank {
        /// The operand, by its name in the signature.
        operand: &'static str,
        /// In the signature.
        expected: usize,
        /// In the graph.
        actual: usize,
    },
    /// Operands of an elementwise kernel with different shapes.
    #[error("an elementwise kernel takes operands of one shape, but `{operand}` is {actual} and the first is {first}")]
    Shape {
        /// The operand, by its name in the signature.
        operand: &'static str,
        /// Its shape.
        actual: Box<Shape>,
        /// The first operand's shape.
        first: Box<Shape>,
    },
    /// A tensor where the kernel changes its operand.
    #[error("the kernel changes `{operand}` in place, so it has to be a buffer: declare the input with a `BufferType`")]
    NotABuffer {
        /// The operand, by its name in the signature.
        operand: &'static str,
    },
    /// One buffer for two operands that the kernel changes.
    #[error("`{first}` and `{second}` are the same buffer, and the kernel changes both")]
    SameBuffer {
        /// One operand.
        first: &'static str,
        /// The other.
        second: &'static str,
    },
}

/// What a model needs memory for.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub enum MemoryOf {
    /// The result of an op, which the model returns.
    Result(OpRef),
    /// Intermediate values; the largest of them is that of this op.
    Intermediates(OpRef),
    /// A copy of an input: of one that is not contiguous, or a capture's own.
    InputCopy(Box<InputRef>),
}

/// Why a graph does not load, or a model does not execute.
///
/// Errors of execution come before anything is computed: no result is returned and no buffer is changed. `Debug` prints
/// the message, so that an `unwrap` reads well.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    // Sessions.
    /// The threads of a session could not be started.
    #[error("a session with {num_threads} threads: {reason}; leave the number out for the default")]
    Threads {
        /// The number asked for.
        num_threads: usize,
        /// What went wrong.
        reason: String,
    },
    /// `MAX_ENABLE_PROFILING` is none of the modes.
    #[error("MAX_ENABLE_PROFILING is `{mode}`; give it `off`, `on` or `detailed`, or leave it out")]
    Profiling {
        /// Its value.
        mode: String,
    },
    /// `MAX_DUMP` has a name that is no pass.
    #[error("MAX_DUMP has `{name}`, which is no pass; the passes are {passes}, and `all` stands for all of them")]
    Dump {
        /// The name.
        name: String,
        /// The names that there are.
        passes: String,
    },
    /// An extension that does not load.
    #[error("custom extension {}: {source}", path.display())]
    Extension {
        /// The file.
        path: PathBuf,
        /// What went wrong.
        source: Box<KernelError>,
    },
    /// The environment names a form of kernels that there is not.
    #[error(transparent)]
    Form(Box<KernelError>),

    // Loading.
    /// The graph has a mistake, or no outputs.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// An op on a device that the session does not have.
    #[error(
        "{op}: it runs on {device}, but the session has {}; move it with `transfer_to`, or create the session with that device",
        crate::plan::error::devices(available)
    )]
    Device {
        /// The op.
        op: OpRef,
        /// Its device.
        device: DeviceRef,
        /// The session's devices.
        available: Vec<DeviceRef>,
    },
    /// A weight that the graph declares, and the registry does not have as declared.
    #[error("{op}: {source}")]
    Weight {
        /// The op that declares it.
        op: OpRef,
        /// What is wrong.
        source: Box<WeightsError>,
    },
    /// A kernel that is not there, or does not take the op's dtypes or parameters.
    #[error("{op}: {source}")]
    Kernel {
        /// The op.
        op: OpRef,
        /// What is wrong.
        source: Box<KernelError>,
    },
    /// A kernel whose signature does not fit the op.
    #[error("{op}: {source}\n  kernel: {signature}")]
    Operand {
        /// The op.
        op: OpRef,
        /// The kernel's signature.
        signature: &'static str,
        /// What is wrong.
        source: Box<OperandError>,
    },
    /// A size that nothing binds.
    #[error("model `{model}`: {source}")]
    Dim {
        /// The model's name.
        model: Arc<str>,
        /// What is wrong.
        source: DimError,
    },

    /// A GPU does not load or run an op's kernel. Where it is run, buffers that the model changes may have been changed.
    #[error("{op} on {device}: {source}")]
    Gpu {
        /// The op.
        op: OpRef,
        /// The GPU.
        device: DeviceRef,
        /// What is wrong.
        source: Box<GpuError>,
    },

    /// A GPU or its driver fails outside of any one op: in a capture or a replay, between launches, or because it is lost
    /// ([`DriverError::DeviceLost`] has the ops that may have lost it).
    #[error("model `{model}` on {device}, `{call}`: {source}")]
    Driver {
        /// The model.
        model: Arc<str>,
        /// The device.
        device: DeviceRef,
        /// What was called: `load`, `execute`, `capture`, `replay` or `debug_verify_replay`.
        call: &'static str,
        /// Why.
        source: DriverError,
    },

    /// A model cannot be captured: something in it does not happen on the one GPU alone.
    #[error("{op} on {device}: it cannot be captured, because {reason}")]
    CaptureUnsafe {
        /// The op.
        op: OpRef,
        /// Where it runs.
        device: DeviceRef,
        /// What stands in the way.
        reason: &'static str,
    },
    /// A model with an input or a result that is not on the one GPU is captured.
    #[error("model `{model}`: `{name}` is on {device}, but all inputs and results of a capture have to be on one GPU")]
    CaptureDevice {
        /// The model.
        model: Arc<str>,
        /// The input or result.
        name: Arc<str>,
        /// Where it is.
        device: DeviceRef,
    },
    /// A model without inputs is captured or replayed.
    #[error("model `{model}` has no inputs, and only what depends on inputs is captured; execute it")]
    CaptureWithoutInputs {
        /// The model.
        model: Arc<str>,
    },
    /// Nothing was captured under a key.
    #[error(
        "model `{model}` on {device}, `{call}`: nothing was captured under key {key}; there are {known:?}: call `capture` first"
    )]
    NotCaptured {
        /// The model.
        model: Arc<str>,
        /// Where it runs.
        device: DeviceRef,
        /// What was called: `replay` or `debug_verify_replay`.
        call: &'static str,
        /// The key asked for.
        key: u64,
        /// The keys that there are.
        known: Vec<u64>,
    },
    /// An input of a replay has another shape than the capture's.
    #[error(
        "{input}: got {actual}, but the shape {captured:?} was captured under key {key}; capture this one under another key"
    )]
    ReplayShape {
        /// The input.
        input: Box<InputRef>,
        /// What was given.
        actual: Box<ActualType>,
        /// The key.
        key: u64,
        /// The shape at the capture.
        captured: Vec<usize>,
    },
    /// An execution launches something else than what was captured.
    #[error("model `{model}` on {device}: launch {position} is {actual}, but {captured} was captured under key {key}")]
    ReplayTrace {
        /// The model.
        model: Arc<str>,
        /// Where it runs.
        device: DeviceRef,
        /// The key.
        key: u64,
        /// The number of the first launch that differs, from 0.
        position: usize,
        /// What is launched.
        actual: String,
        /// What was captured.
        captured: String,
    },

    // Inputs.
    /// Another number of inputs than the model takes.
    #[error("model `{model}` takes {expected} inputs, got {actual}\n  {signature}")]
    InputCount {
        /// The model's name.
        model: Arc<str>,
        /// How many it takes.
        expected: usize,
        /// How many were given.
        actual: usize,
        /// Its signature.
        signature: Arc<str>,
    },
    /// A name that is no input's.
    #[error("model `{model}` has no input `{name}`\n  {signature}")]
    UnknownInput {
        /// The model's name.
        model: Arc<str>,
        /// The name given.
        name: String,
        /// Its signature.
        signature: Arc<str>,
    },
    /// An input given twice.
    #[error("{input}: it was given twice")]
    DuplicateInput {
        /// The input.
        input: Box<InputRef>,
    },
    /// An input that was not given.
    #[error("{input}: it was not given")]
    MissingInput {
        /// The input.
        input: Box<InputRef>,
    },
    /// An input of another dtype.
    #[error("{input}: got {actual}; cast it, or declare the input as {}", actual.dtype)]
    InputDType {
        /// The input.
        input: Box<InputRef>,
        /// What was given.
        actual: Box<ActualType>,
    },
    /// An input of a shape that does not fit the declared one.
    #[error("{input}: got {actual}: {source}")]
    InputShape {
        /// The input.
        input: Box<InputRef>,
        /// What was given.
        actual: Box<ActualType>,
        /// What does not fit.
        source: Box<BindError>,
    },
    /// An input on another device.
    #[error("{input}: got {actual}, which is on {}; copy it there with `Tensor::to`", actual.device)]
    InputDevice {
        /// The input.
        input: Box<InputRef>,
        /// What was given.
        actual: Box<ActualType>,
    },
    /// A buffer with gaps or in another order than row-major. (Of a tensor that is read, a copy is made.)
    #[error(
        "{input}: got {actual} with strides {:?}, which is not contiguous, and the model changes it in place, where a copy \
         would be changed instead; pass the tensor that it is a view of, or a copy by `.copy()`, and copy the result back",
        actual.strides
    )]
    InputNotContiguous {
        /// The input.
        input: Box<InputRef>,
        /// What was given.
        actual: Box<ActualType>,
    },
    /// A tensor that may not be changed, where the model takes a buffer.
    #[error("{input}: the model changes this buffer in place; pass it as `&mut tensor`")]
    InputNotMutable {
        /// The input.
        input: Box<InputRef>,
    },
    /// A buffer that cannot be written, because it is shared or read-only.
    #[error("{input}: {source}")]
    InputBuffer {
        /// The input.
        input: Box<InputRef>,
        /// Why.
        source: DriverError,
    },

    // Sizes.
    /// A `rebind` whose assertion does not hold.
    #[error("{op}: the operand has shape {actual:?}, not {declared}{}", crate::plan::error::note(message))]
    Rebind {
        /// The op.
        op: OpRef,
        /// The operand's sizes.
        actual: Vec<i64>,
        /// The shape asserted.
        declared: Box<Shape>,
        /// The op's message.
        message: Arc<str>,
    },
    /// Sizes that a step computed, and that are not those declared.
    #[error(
        "{op}: the sizes are {actual:?}, but {declared} was declared; give the dim another name, or check the data"
    )]
    BoundDims {
        /// The op.
        op: OpRef,
        /// The sizes.
        actual: Vec<i64>,
        /// What was declared.
        declared: Box<Shape>,
    },
    /// An index outside of the axis that it is of, in a session that checks them. Buffers that the model changes may have been
    /// changed.
    #[error(
        "{op}: index {index} at {position:?} of the indices is outside of an axis of {limit} elements, which takes {} to {}; \
         without `check_indices`, what it names is 0 where it is read, and nothing where it is written",
        -limit,
        limit - 1
    )]
    Index {
        /// The op.
        op: OpRef,
        /// The index.
        index: i64,
        /// Where it stands among the indices, as the kernel takes them.
        position: Vec<i64>,
        /// The size of the axis.
        limit: i64,
    },
    /// An execution that was cancelled, or took longer than it may.
    #[error("{op}: the execution was stopped before it: {reason}")]
    Stopped {
        /// The op that was not executed any more.
        op: OpRef,
        /// Why.
        reason: &'static str,
    },
    /// A slice outside of its operand.
    #[error("{op}: {} of axis {axis}, which has {size}", crate::plan::error::taken(*start, *count, *step))]
    Slice {
        /// The op.
        op: OpRef,
        /// The axis.
        axis: usize,
        /// The axis's size.
        size: i64,
        /// The first element.
        start: i64,
        /// How many elements; negative where the range ends before it starts.
        count: i64,
        /// The step.
        step: i64,
    },
    /// A size below 0, or a tensor larger than memory can be.
    #[error("{op}: no tensor can have shape {shape:?} of {dtype} (declared {declared})")]
    Extent {
        /// The op.
        op: OpRef,
        /// The sizes.
        shape: Vec<i64>,
        /// The dtype.
        dtype: DType,
        /// The shape in the graph.
        declared: Box<Shape>,
    },
    /// An expression over sizes without a value.
    #[error("model `{model}`: {source}")]
    Size {
        /// The model's name.
        model: Arc<str>,
        /// Why.
        source: DimError,
    },
    /// Memory for results or intermediate values could not be had.
    #[error("model `{model}`{}: {source}", crate::plan::error::needing(of.as_deref()))]
    Memory {
        /// The model's name.
        model: Arc<str>,
        /// What the memory is for, if it is for values.
        of: Option<Box<MemoryOf>>,
        /// Why.
        source: DriverError,
    },
    /// Intermediate values of more bytes than there are addresses.
    #[error("model `{model}`: the intermediate values exceed 2^63 - 1 bytes; the largest is {largest}")]
    ArenaSize {
        /// The model's name.
        model: Arc<str>,
        /// The largest of their sizes, in bytes.
        largest: Dim,
    },
}

/// What a GPU says of an op.
#[cold]
pub(crate) fn gpu_error(
    (model, call): (&Arc<str>, &'static str),
    (name, location): (&'static str, &'static Location<'static>),
    device: DeviceRef,
    source: impl Into<GpuError>,
) -> EngineError {
    match source.into() {
        // Lost before this op, or with others.
        GpuError::Driver(source @ DriverError::DeviceLost { .. }) if !is_lost_in(&source, name, location) => {
            driver_error((model, call), device, None, source)
        }
        source => {
            let op = OpRef { model: model.clone(), op: name.into(), location };
            EngineError::Gpu { op, device, source: Box::new(source) }
        }
    }
}

/// Whether it is this op that a device was lost in.
fn is_lost_in(error: &DriverError, name: &str, location: &Location<'_>) -> bool {
    let DriverError::DeviceLost { launched, .. } = error else { return false };
    launched.only().is_some_and(|only| only.op == name && only.location == Some(location))
}

/// What a device says, or the system, outside of an op, in a call of a session or a model.
#[cold]
pub(crate) fn driver_error(
    (model, call): (&Arc<str>, &'static str),
    device: DeviceRef,
    of: Option<MemoryOf>,
    source: DriverError,
) -> EngineError {
    let model = model.clone();
    match (&source, of) {
        (DriverError::OutOfMemory { .. } | DriverError::SizeOverflow { .. }, of) => {
            EngineError::Memory { model, of: of.map(Box::new), source }
        }
        (_, Some(of)) if !matches!(source, DriverError::DeviceLost { .. }) => {
            EngineError::Memory { model, of: Some(Box::new(of)), source }
        }
        _ => EngineError::Driver { model, device, call, source },
    }
}

pub(crate) fn needing(of: Option<&MemoryOf>) -> String {
    match of {
        Some(MemoryOf::Result(op)) => format!(", the result of `{}` at {}", op.op, op.location),
        Some(MemoryOf::Intermediates(op)) => {
            format!(", intermediate values, the largest that of `{}` at {}", op.op, op.location)
        }
        Some(MemoryOf::InputCopy(input)) => {
            format!(", a copy of input {} (`{}`: {})", input.index, input.name, input.ty)
        }
        None => String::new(),
    }
}

pub(crate) fn taken(start: i64, count: i64, step: i64) -> String {
    if count < 0 {
        return format!("its range starts at {start} and ends {} steps of {step} before that,", count.unsigned_abs());
    }
    format!("it takes {count} elements from {start} by steps of {step}")
}

pub(crate) fn devices(devices: &[DeviceRef]) -> String {
    devices.iter().map(DeviceRef::to_string).collect::<Vec<_>>().join(", ")
}

pub(crate) fn note(message: &str) -> String {
    if message.is_empty() { String::new() } else { format!(": {message}") }
}
