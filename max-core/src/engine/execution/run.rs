//! [`Run`]: how the steps of a plan are run, and what is noted meanwhile.

use std::cell::{Cell, RefCell};
use std::panic::Location;
use std::time::Instant;

use smallvec::SmallVec;

use crate::driver::backend::{Gpu, StreamHandle};
use crate::driver::{Device, DriverError};
use crate::engine::limits::Limits;
use crate::engine::profile::StepTime;
use crate::graph::ops::kernel_facts;
use crate::kernel::TensorArg;
use crate::plan::{Arg, PlannedStep};

/// What a GPU was given to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Launch {
    pub op: &'static str,
    pub location: &'static Location<'static>,
    /// The dims of all arguments, one after the other.
    pub dims: SmallVec<[i64; 12]>,
}

/// Measures the steps of an execution.
pub(super) struct Clock {
    pub start: Instant,
    pub steps: RefCell<Vec<StepTime>>,
    /// How many regions are being executed.
    pub depth: Cell<usize>,
}

impl Clock {
    /// Notes a step that ends now.
    pub fn note(&self, step: &PlannedStep, begin: Instant, work: Work) {
        let time = begin.elapsed();
        let (op, location, device, depth) = (step.name, step.location, step.device, self.depth.get());
        let begin = begin.duration_since(self.start);
        let (kernel, Work { bytes, operations }) = (step.action.kernel(), work);
        self.steps.borrow_mut().push(StepTime {
            op,
            kernel,
            location,
            device,
            begin,
            time,
            bytes,
            operations,
            floor: None,
            depth,
        });
    }
}

/// What a step reads and writes, and how often it multiplies or adds, where that is known.
#[derive(Clone, Copy, Default)]
pub(super) struct Work {
    pub bytes: u64,
    pub operations: Option<u64>,
}

impl Work {
    /// Of a step with these arguments.
    pub fn of(step: &PlannedStep, args: &[Arg], tensors: &[TensorArg<'_>]) -> Work {
        // What is the same for all elements, which the strides of a broadcast say, is read once.
        let read = |tensor: &TensorArg<'_>| {
            let dims = tensor.dims.iter().zip(tensor.strides).filter(|(_, stride)| **stride != 0);
            dims.map(|(dim, _)| (*dim).max(0) as u64).product::<u64>()
        };
        let bytes = tensors.iter().zip(args).map(|(tensor, arg)| read(tensor) * u64::from(arg.element_size)).sum();
        // Operands of the kernel come before those of regions beside it.
        let operations = step.action.program().and_then(|(name, params)| {
            let dims: SmallVec<[&[i64]; 8]> = tensors.iter().map(|tensor| tensor.dims).collect();
            kernel_facts::operations(name)?(&dims, params)
        });
        Work { bytes, operations }
    }
}

impl PlannedStep {
    /// A span around the step: the op, its line, the kernel, the device.
    #[cold]
    pub(super) fn span(&self) -> tracing::Span {
        let (line, kernel, device) = (self.location, self.action.kernel(), self.device);
        tracing::trace_span!("step", op = self.name, kernel, line = %line, device = %device)
    }
}

/// How the steps of a plan are run.
#[derive(Clone, Copy)]
pub(super) struct Run<'a> {
    /// What was called, for messages.
    pub call: &'static str,
    /// Where work that is worth several threads is done.
    pub pool: Option<&'a rayon_core::ThreadPool>,
    /// The stream of every GPU.
    pub stream: StreamHandle,
    /// The GPU that captures what is added to that stream.
    pub capture: Option<(&'a Device, &'static dyn Gpu)>,
    /// Gets what is launched.
    pub trace: Option<&'a RefCell<Vec<Launch>>>,
    /// When it ends before it is done.
    pub limits: Option<&'a Limits>,
    /// Gets how long each step took.
    pub clock: Option<&'a Clock>,
}

impl Run<'_> {
    /// An execution on the caller's thread, and on the default streams.
    pub fn of(call: &'static str) -> Run<'static> {
        Run { call, pool: None, stream: StreamHandle::default(), capture: None, trace: None, limits: None, clock: None }
    }
}

/// Copies from a device to the host, and waits for that.
///
/// # Safety
/// `from` is valid for reads of `bytes` bytes on the device, and `to` for writes on the host.
pub(super) unsafe fn read(
    device: &Device,
    from: *const u8,
    to: *mut u8,
    bytes: usize,
    run: Run<'_>,
) -> Result<(), DriverError> {
    // SAFETY: by the contract above.
    unsafe {
        match device.gpu() {
            Some(_) => device.backend().download(from, to, bytes, run.stream),
            None => {
                to.copy_from_nonoverlapping(from, bytes);
                Ok(())
            }
        }
    }
}
