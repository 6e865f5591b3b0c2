//! [`Run`]: how the steps of a plan are run, and what is noted meanwhile.

use std::cell::{Cell, RefCell};
use std::panic::Location;
use std::time::Instant;

use smallvec::SmallVec;

use super::limits::Limits;
use super::profile::StepTime;
use crate::driver::backend::{Gpu, StreamHandle};
use crate::driver::{Device, DriverError};
use crate::plan::PlannedStep;

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
    pub fn note(&self, step: &PlannedStep, begin: Instant) {
        let time = begin.elapsed();
        let (op, location, device, depth) = (step.name, step.location, step.device, self.depth.get());
        let begin = begin.duration_since(self.start);
        self.steps.borrow_mut().push(StepTime { op, location, device, begin, time, depth });
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
