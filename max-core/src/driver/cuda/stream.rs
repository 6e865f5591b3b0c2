//! Events between streams, and captures of a stream.

use std::ptr;

use super::device::{CudaDevice, cuda};
use super::sys::{CUevent, CUevent_flags, CUgraphExec};
use crate::driver::DriverError;
use crate::driver::backend::{CapturedWork, Gpu, StreamHandle};

impl CudaDevice {
    /// An event behind the present work of a stream.
    pub(super) fn record_event(&self, stream: StreamHandle) -> Result<usize, DriverError> {
        let (mut event, flags) = (ptr::null_mut(), CUevent_flags::CU_EVENT_DISABLE_TIMING as u32);
        // SAFETY (of the call): it writes one handle.
        cuda!(self, "new event", cuEventCreate(&raw mut event, flags))?;
        // SAFETY (of the call): the event was just made, the stream is alive.
        let recorded = cuda!(self, "record event", cuEventRecord(event, self.raw(stream)));
        if recorded.is_err() {
            self.drop_event(event as usize);
        }
        recorded.map(|()| event as usize)
    }

    pub(super) fn wait_for_event(&self, stream: StreamHandle, event: usize) -> Result<(), DriverError> {
        let event = event as CUevent;
        // SAFETY (of the call): the event and the stream are alive.
        cuda!(self, "wait for stream", cuStreamWaitEvent(self.raw(stream), event, 0))
    }

    /// The driver keeps what waits for the event.
    pub(super) fn drop_event(&self, event: usize) {
        // SAFETY (of the call): the event's owner gives it up. A failure means that the context is gone.
        let _ = cuda!(self, "end of event", cuEventDestroy_v2(event as CUevent));
    }

    /// Ends a capture and makes what was captured ready to be launched.
    pub(super) fn captured(&'static self, stream: StreamHandle) -> Result<Box<dyn CapturedWork>, DriverError> {
        let mut graph = ptr::null_mut();
        // SAFETY (of the call): it writes one handle.
        cuda!(self, "capture", cuStreamEndCapture(self.raw(stream), &raw mut graph))?;
        let mut executable = ptr::null_mut();
        // SAFETY (of the call): the graph was just made; it writes one handle.
        let made = cuda!(self, "capture", cuGraphInstantiateWithFlags(&raw mut executable, graph, 0));
        // SAFETY (of the call): what was made of the graph does not need it any more.
        let _ = cuda!(self, "capture", cuGraphDestroy(graph));
        made?;
        Ok(Box::new(CapturedGraph { device: self, executable }))
    }
}

/// A captured graph.
struct CapturedGraph {
    device: &'static CudaDevice,
    executable: CUgraphExec,
}

// SAFETY: the driver's handles may be used on any thread.
unsafe impl Send for CapturedGraph {}
// SAFETY: as above; a graph that is launched from several threads at once is ordered by the driver.
unsafe impl Sync for CapturedGraph {}

impl CapturedWork for CapturedGraph {
    fn launch(&self, stream: StreamHandle) -> Result<(), DriverError> {
        let device = self.device;
        // SAFETY (of the call): the graph lives as long as `self`, and what it touches is kept by its owner.
        cuda!(device, "replay", cuGraphLaunch(self.executable, device.raw(stream)))?;
        if device.wait_for_launches { device.synchronize_stream(stream) } else { Ok(()) }
    }
}

impl Drop for CapturedGraph {
    fn drop(&mut self) {
        // SAFETY (of the call): nothing launches it any more; the driver keeps it until launches are done.
        let _ = cuda!(self.device, "end of capture", cuGraphExecDestroy(self.executable));
    }
}
