//! What the rest of the driver asks of a GPU: memory, copies, streams, and kernels.

use std::ffi::c_void;
use std::ptr::NonNull;

use super::api::MEM_HOST_ALLOC_PORTABLE;
use super::device::{CudaDevice, cuda};
use super::module;
use super::pinned::{forget_pinned, note_pinned};
use super::sys::{CUcontext, CUdevice, CUstream_flags, CUstreamCaptureMode};
use crate::driver::backend::{
    Backend, CapturedWork, CodeObject, Gpu, GpuFunction, StreamHandle, TargetDesc, TensorMap,
};
use crate::driver::launch_journal::Journal;
use crate::driver::{CudaError, DriverError, TensorMapStats};

/// Makes a GPU ready, for as long as the process runs.
pub(in crate::driver) fn open(id: u32) -> Result<&'static dyn Gpu, CudaError> {
    Ok(Box::leak(Box::new(CudaDevice::open(id)?)))
}

impl CudaDevice {
    /// Calls what waits for all launches on the device's own stream.
    fn waiting(&self, wait: impl FnOnce() -> Result<(), DriverError>) -> Result<(), DriverError> {
        let launched = self.journal.count();
        wait()?;
        self.journal.wait(launched);
        Ok(())
    }

    /// As [`call`](Self::call), for memory: `None` if there is not enough.
    fn allocation<T>(
        outcome: Result<(), DriverError>,
        memory: impl FnOnce() -> Option<T>,
    ) -> Result<Option<T>, DriverError> {
        match outcome {
            Ok(()) => Ok(memory()),
            Err(DriverError::Cuda { source, .. }) if source.is_out_of_memory() => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl Backend for CudaDevice {
    fn api(&self) -> &'static str {
        "cuda"
    }

    fn architecture_name(&self) -> Option<&str> {
        Some(&self.architecture)
    }

    fn cache_limit(&self) -> Option<usize> {
        Some(self.total_memory)
    }

    fn synchronize(&self) -> Result<(), DriverError> {
        self.waiting(|| cuda!(self, "synchronize", cuCtxSynchronize()))
    }

    fn allocate(&self, bytes: usize, _used: usize) -> Result<Option<NonNull<u8>>, DriverError> {
        let mut memory = 0;
        // SAFETY (of the call): it writes one address.
        let outcome = cuda!(self, "allocate", cuMemAlloc_v2(&raw mut memory, bytes));
        Self::allocation(outcome, || NonNull::new(memory as *mut u8))
    }

    unsafe fn free(&self, memory: NonNull<u8>, _: usize) {
        // Work that is queued may still use the memory. A failure means that the context is gone, and the memory with it,
        // or that the process ends.
        let _ = self.synchronize_stream(StreamHandle::default());
        // SAFETY (of the call): by contract, the memory is the driver's and nobody else uses it.
        let _ = cuda!(self, "free", cuMemFree_v2(memory.as_ptr() as u64));
    }

    unsafe fn fill(&self, memory: *mut u8, value: u8, bytes: usize, stream: StreamHandle) -> Result<(), DriverError> {
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY (of the call): by contract.
        cuda!(self, "fill", cuMemsetD8Async(memory as u64, value, bytes, self.raw(stream)))
    }

    unsafe fn upload(
        &self,
        host: *const u8,
        memory: *mut u8,
        bytes: usize,
        stream: StreamHandle,
    ) -> Result<(), DriverError> {
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: by contract.
        if unsafe { self.upload_pageable(host, memory, bytes, stream)? } {
            return Ok(());
        }
        // SAFETY (of the call): by contract.
        cuda!(self, "copy to device", cuMemcpyHtoDAsync_v2(memory as u64, host.cast(), bytes, self.raw(stream)))?;
        // Of page-locked memory the driver makes no copy of its own: it is read until the work is done.
        self.synchronize_stream(stream)
    }

    unsafe fn download(
        &self,
        memory: *const u8,
        host: *mut u8,
        bytes: usize,
        stream: StreamHandle,
    ) -> Result<(), DriverError> {
        if bytes > 0 {
            // SAFETY (of the call): by contract, and the host's memory is not let go before the copy is done.
            cuda!(self, "copy from device", cuMemcpyDtoHAsync_v2(host.cast(), memory as u64, bytes, self.raw(stream)))?;
        }
        self.synchronize_stream(stream)
    }

    unsafe fn copy(&self, from: *const u8, to: *mut u8, bytes: usize, stream: StreamHandle) -> Result<(), DriverError> {
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY (of the call): by contract.
        cuda!(self, "copy on device", cuMemcpyDtoDAsync_v2(to as u64, from as u64, bytes, self.raw(stream)))
    }

    fn gpu(&'static self) -> Option<&'static dyn Gpu> {
        Some(self)
    }
}

impl Gpu for CudaDevice {
    fn target(&self) -> TargetDesc {
        TargetDesc {
            compute_capability: self.compute_capability,
            isa_version: module::ptx_version(self.api.version),
            shared_bytes: self.shared_bytes,
        }
    }

    fn product(&self) -> &str {
        &self.product
    }

    fn memory(&self) -> Result<(usize, usize), DriverError> {
        let (mut free, mut total) = (0, 0);
        // SAFETY (of the call): it writes two integers.
        cuda!(self, "memory", cuMemGetInfo_v2(&raw mut free, &raw mut total))?;
        Ok((free, total))
    }

    fn can_access(&self, other: &dyn Gpu, id: u32) -> bool {
        let mut can = 0;
        // SAFETY (of the call): it writes one integer.
        let asked = cuda!(self, "can_access", cuDeviceCanAccessPeer(&raw mut can, self.ordinal, id as CUdevice));
        asked.is_ok() && can != 0 && self.enable_peer(other.context() as CUcontext).is_ok()
    }

    fn create_stream(&self) -> Result<StreamHandle, DriverError> {
        let mut stream = std::ptr::null_mut();
        let flags = CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY (of the call): it writes one handle.
        cuda!(self, "new stream", cuStreamCreate(&raw mut stream, flags))?;
        Ok(StreamHandle(stream as usize))
    }

    fn destroy_stream(&self, stream: StreamHandle) {
        // SAFETY (of the call): the stream's last owner gives it up. A failure is of no consequence: see `free`.
        let _ = cuda!(self, "end of stream", cuStreamDestroy_v2(self.raw(stream)));
    }

    fn synchronize_stream(&self, stream: StreamHandle) -> Result<(), DriverError> {
        // SAFETY (of the call): the stream is alive.
        let wait = || cuda!(self, "synchronize", cuStreamSynchronize(self.raw(stream)));
        if stream == StreamHandle::default() { self.waiting(wait) } else { wait() }
    }

    fn record(&self, stream: StreamHandle) -> Result<usize, DriverError> {
        self.record_event(stream)
    }

    fn wait_event(&self, stream: StreamHandle, event: usize) -> Result<(), DriverError> {
        self.wait_for_event(stream, event)
    }

    fn destroy_event(&self, event: usize) {
        self.drop_event(event);
    }

    fn allocate_pinned(&self, bytes: usize) -> Result<Option<NonNull<u8>>, DriverError> {
        let mut memory: *mut c_void = std::ptr::null_mut();
        // SAFETY (of the call): it writes one address.
        let outcome = cuda!(self, "allocate pinned", cuMemHostAlloc(&raw mut memory, bytes, MEM_HOST_ALLOC_PORTABLE));
        let memory = Self::allocation(outcome, || NonNull::new(memory.cast()))?;
        if let Some(memory) = memory {
            note_pinned(memory, bytes);
        }
        Ok(memory)
    }

    unsafe fn free_pinned(&self, memory: NonNull<u8>) {
        forget_pinned(memory);
        // SAFETY (of the call): by contract. A failure is of no consequence: see `free`.
        let _ = cuda!(self, "free pinned", cuMemFreeHost(memory.as_ptr().cast()));
    }

    unsafe fn copy_from(
        &self,
        source: &dyn Gpu,
        from: *const u8,
        to: *mut u8,
        bytes: usize,
        stream: StreamHandle,
    ) -> Result<(), DriverError> {
        if bytes == 0 {
            return Ok(());
        }
        let other = source.context() as CUcontext;
        self.try_peer(other);
        let (to, from) = (to as u64, from as u64);
        // SAFETY (of the call): by contract.
        cuda!(self, "copy between devices", cuMemcpyPeerAsync(to, self.context, from, other, bytes, self.raw(stream)))
    }

    fn context(&self) -> usize {
        self.context as usize
    }

    fn journal(&self) -> &Journal {
        &self.journal
    }

    fn load(&self, kernel: &str, code: &CodeObject<'_>) -> Result<GpuFunction, DriverError> {
        self.load_code(kernel, code)
    }

    fn tensor_map(&self, map: &TensorMap) -> Option<[u64; 16]> {
        self.tensor_map_of(map)
    }

    fn note_mapped(&self, is_mapped: bool) {
        self.maps.note_launch(is_mapped);
    }

    fn tensor_map_stats(&self) -> TensorMapStats {
        self.maps.stats()
    }

    unsafe fn launch(
        &self,
        function: &GpuFunction,
        size: (u32, u32),
        args: &mut [u64],
        stream: StreamHandle,
    ) -> Result<(), DriverError> {
        // SAFETY: by contract.
        unsafe { self.launch_function(function, size, args, stream) }
    }

    fn begin_capture(&self, stream: StreamHandle) -> Result<(), DriverError> {
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY (of the call): the stream is alive.
        cuda!(self, "capture", cuStreamBeginCapture_v2(self.raw(stream), mode))
    }

    fn end_capture(&'static self, stream: StreamHandle) -> Result<Box<dyn CapturedWork>, DriverError> {
        self.captured(stream)
    }
}
