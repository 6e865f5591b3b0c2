//! Uploads of pageable memory through page-locked buffers.
//!
//! It exists because the driver takes such memory through a small buffer of its own, with one thread: a model's weights then
//! arrive at a fraction of the bus's rate. Here several threads fill one buffer while the device copies from the other.

use std::num::NonZero;
use std::ptr::NonNull;
use std::sync::PoisonError;
use std::thread;

use super::device::{CudaDevice, cuda};
use super::pinned::{Buffer, is_pinned};
use crate::driver::DriverError;
use crate::driver::backend::{Gpu, StreamHandle};

/// Fewer bytes are left to the driver: so many take it about as long as threads take to begin.
const LEAST_BYTES: usize = 4 << 20;
/// Bytes of a buffer.
const BUFFER_BYTES: usize = 16 << 20;
/// The most threads that fill one, and the least bytes of each.
const MAX_THREADS: usize = 8;
const BYTES_OF_A_THREAD: usize = 2 << 20;

/// Copies memory on the host, with several threads if it is much.
///
/// # Safety
/// `from` is valid for reads and `to` for writes of so many bytes, and nobody else touches these.
unsafe fn copy_on_host(from: *const u8, to: *mut u8, bytes: usize) {
    let processors = thread::available_parallelism().map_or(1, NonZero::get);
    let threads = processors.min(MAX_THREADS).min(bytes / BYTES_OF_A_THREAD).max(1);
    let (from, to, part) = (from as usize, to as usize, bytes.div_ceil(threads));
    // SAFETY: by the contract above; parts do not overlap.
    let copy = move |first: usize| unsafe {
        let (from, to) = ((from + first) as *const u8, (to + first) as *mut u8);
        std::ptr::copy_nonoverlapping(from, to, part.min(bytes - first));
    };
    thread::scope(|scope| {
        for first in (part..bytes).step_by(part) {
            if thread::Builder::new().spawn_scoped(scope, move || copy(first)).is_err() {
                copy(first);
            }
        }
        copy(0);
    });
}

impl CudaDevice {
    /// The device's buffers, made at the first need; `None` if they cannot be had. The driver copies without them, or says what is wrong.
    fn buffers<'a>(&self, known: &'a mut Option<[Buffer; 2]>) -> Option<&'a [Buffer; 2]> {
        if known.is_none() {
            let first = self.allocate_pinned(2 * BUFFER_BYTES).ok().flatten()?;
            let second = NonNull::new(first.as_ptr().wrapping_add(BUFFER_BYTES)).unwrap_or(first);
            let streams = self.create_stream().and_then(|a| match self.create_stream() {
                Ok(b) => Ok([a, b]),
                Err(error) => {
                    self.destroy_stream(a);
                    Err(error)
                }
            });
            let Ok([a, b]) = streams else {
                // SAFETY: nobody has it yet.
                unsafe { self.free_pinned(first) };
                return None;
            };
            *known = Some([Buffer { memory: first, stream: a }, Buffer { memory: second, stream: b }]);
        }
        known.as_ref()
    }

    /// Copies much pageable memory to the device, behind the present work of a stream; says whether it was that. Once this has
    /// returned, the copy is done.
    ///
    /// # Safety
    /// As [`upload`](crate::driver::backend::Backend::upload).
    pub(super) unsafe fn upload_pageable(
        &self,
        host: *const u8,
        memory: *mut u8,
        bytes: usize,
        stream: StreamHandle,
    ) -> Result<bool, DriverError> {
        if bytes < LEAST_BYTES || is_pinned(host) {
            return Ok(false);
        }
        // One upload at a time has all of the bus.
        let mut known = self.upload_buffers.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(buffers) = self.buffers(&mut known) else { return Ok(false) };
        let before = self.record_event(stream)?;
        let ordered = buffers.iter().try_for_each(|buffer| self.wait_for_event(buffer.stream, before));
        self.drop_event(before);
        ordered?;
        let copy = |(i, first): (usize, usize)| {
            let (buffer, part) = (&buffers[i % 2], BUFFER_BYTES.min(bytes - first));
            if i >= 2 {
                self.synchronize_stream(buffer.stream)?;
            }
            let (from, to) = (buffer.memory.as_ptr(), memory.wrapping_add(first) as u64);
            // SAFETY: by contract; the device has copied what was in the buffer.
            unsafe { copy_on_host(host.wrapping_add(first), from, part) };
            // SAFETY (of the call): by contract, and the buffer is not written before the copy is done.
            cuda!(self, "copy to device", cuMemcpyHtoDAsync_v2(to, from.cast(), part, self.raw(buffer.stream)))
        };
        let copied = (0..bytes).step_by(BUFFER_BYTES).enumerate().try_for_each(copy);
        // In any case: whoever gets the memory after a failure must not find a copy under way.
        let [first, second] = [0, 1].map(|i| self.synchronize_stream(buffers[i].stream));
        copied.and(first).and(second).map(|()| true)
    }
}
