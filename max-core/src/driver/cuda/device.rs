//! [`CudaDevice`]: a GPU, its memory, and copies.

use std::ffi::{CStr, c_int, c_void};
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

use super::api::{Api, Code, Context, Ordinal, Stream, constant};
use super::module;
use crate::driver::backend::{Backend, CapturedWork, Gpu, GpuFunction, StreamHandle, TensorMap};
use crate::driver::launched::Journal;
use crate::driver::{CudaError, Device, DeviceRef, DriverError, LaunchedOps};
use crate::kernel::ptx;

/// A GPU.
pub(super) struct CudaDevice {
    pub api: &'static Api,
    pub name: DeviceRef,
    pub context: Context,
    /// Its own stream.
    pub stream: Stream,
    pub multiprocessors: u32,
    /// The most shared memory that a block may ask for.
    pub shared_bytes: u32,
    pub target: ptx::Target,
    /// Whether every launch is waited for.
    pub wait_for_launches: bool,
    ordinal: Ordinal,
    architecture: String,
    product: String,
    total_memory: usize,
    /// What is launched on its own stream.
    journal: Journal,
    /// The fault that destroyed the context, and what may have caused it.
    lost: OnceLock<(CudaError, Arc<LaunchedOps>)>,
}

/// Calls a function of the driver with the device's context current.
macro_rules! cuda {
    ($device:expr, $op:expr, $function:ident($($arg:expr),* $(,)?)) => {{
        let device = $device;
        device.call($op, stringify!($function), |api| {
            // SAFETY: the caller's comment says why the arguments are as the function demands.
            unsafe { (api.$function)($($arg),*) }
        })
    }};
}
pub(super) use cuda;

/// How many GPUs the driver knows.
pub(in crate::driver) fn count() -> Result<u32, CudaError> {
    static COUNT: OnceLock<Result<u32, CudaError>> = OnceLock::new();
    let ask = || {
        let api = Api::get()?;
        let mut count = 0;
        // SAFETY: it writes one integer.
        api.check("cuDeviceGetCount", unsafe { (api.cuDeviceGetCount)(&raw mut count) })?;
        Ok(count.try_into().unwrap_or(0))
    };
    COUNT.get_or_init(ask).clone()
}

/// A retained context, released unless the device takes it over.
struct Retained {
    api: &'static Api,
    ordinal: Ordinal,
    context: Context,
}

impl Drop for Retained {
    fn drop(&mut self) {
        // SAFETY: retained once, by `open`. That this fails as well is of no consequence.
        let _ = unsafe { (self.api.cuDevicePrimaryCtxRelease_v2)(self.ordinal) };
    }
}

/// Makes a GPU ready, for as long as the process runs.
pub(in crate::driver) fn open(id: u32) -> Result<&'static dyn Gpu, CudaError> {
    let api = Api::get()?;
    let mut ordinal = 0;
    // SAFETY: it writes one integer.
    api.check("cuDeviceGet", unsafe { (api.cuDeviceGet)(&raw mut ordinal, id as c_int) })?;
    let attribute = |attribute| {
        let mut value = 0;
        // SAFETY: it writes one integer.
        let code = unsafe { (api.cuDeviceGetAttribute)(&raw mut value, attribute, ordinal) };
        api.check("cuDeviceGetAttribute", code).map(|()| value as u32)
    };
    let sm = attribute(constant::COMPUTE_CAPABILITY_MAJOR)? * 10 + attribute(constant::COMPUTE_CAPABILITY_MINOR)?;
    let multiprocessors = attribute(constant::MULTIPROCESSOR_COUNT)?;
    let shared_bytes = attribute(constant::MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?;
    let target = module::target(sm, api.version).ok_or(CudaError::Architecture { sm, oldest: ptx::Target::MIN_SM })?;
    let mut name = [0u8; 256];
    // SAFETY: it writes at most that many bytes, the last of them 0.
    let code = unsafe { (api.cuDeviceGetName)(name.as_mut_ptr().cast(), name.len() as c_int, ordinal) };
    api.check("cuDeviceGetName", code)?;
    let product = CStr::from_bytes_until_nul(&name).unwrap_or_default().to_string_lossy().into_owned();
    let mut total_memory = 0;
    // SAFETY: it writes one integer.
    api.check("cuDeviceTotalMem_v2", unsafe { (api.cuDeviceTotalMem_v2)(&raw mut total_memory, ordinal) })?;

    let mut context = Context::NULL;
    // SAFETY: it writes one handle.
    let code = unsafe { (api.cuDevicePrimaryCtxRetain)(&raw mut context, ordinal) };
    api.check("cuDevicePrimaryCtxRetain", code)?;
    let retained = Retained { api, ordinal, context };
    // SAFETY: the context was retained above.
    api.check("cuCtxSetCurrent", unsafe { (api.cuCtxSetCurrent)(retained.context) })?;
    let mut stream = Stream::NULL;
    // SAFETY: it writes one handle.
    let code = unsafe { (api.cuStreamCreate)(&raw mut stream, constant::STREAM_NON_BLOCKING) };
    api.check("cuStreamCreate", code)?;
    std::mem::forget(retained);
    Ok(Box::leak(Box::new(CudaDevice {
        api,
        name: DeviceRef::gpu(id),
        context,
        stream,
        multiprocessors,
        shared_bytes,
        target,
        wait_for_launches: std::env::var_os("MAX_GPU_SYNC").is_some_and(|value| !value.is_empty() && value != "0"),
        ordinal,
        architecture: format!("sm_{sm}"),
        product,
        total_memory,
        journal: Journal::new(),
        lost: OnceLock::new(),
    })))
}

impl CudaDevice {
    /// Calls a function with the context current; a fault of the device is kept.
    pub fn call(
        &self,
        op: &'static str,
        function: &'static str,
        call: impl FnOnce(&'static Api) -> Code,
    ) -> Result<(), DriverError> {
        if let Some(fault) = self.lost.get() {
            return Err(self.is_lost(op, fault));
        }
        // SAFETY: the context is retained for as long as the process runs.
        let current = unsafe { (self.api.cuCtxSetCurrent)(self.context) };
        let outcome =
            self.api.check("cuCtxSetCurrent", current).and_then(|()| self.api.check(function, call(self.api)));
        outcome.map_err(|source| self.error(op, source))
    }

    #[cold]
    pub fn error(&self, op: &'static str, source: CudaError) -> DriverError {
        if source.is_sticky() {
            return self.is_lost(op, self.lost.get_or_init(|| (source, self.journal.pending().into())));
        }
        DriverError::Cuda { op, device: self.name, source: source.into() }
    }

    #[cold]
    fn is_lost(&self, op: &'static str, (source, launched): &(CudaError, Arc<LaunchedOps>)) -> DriverError {
        let (source, launched) = (source.clone().into(), launched.clone());
        DriverError::DeviceLost { op, device: self.name, source, launched }
    }

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

    /// The driver's handle of a stream.
    pub fn raw(&self, stream: StreamHandle) -> Stream {
        if stream == StreamHandle::default() { self.stream } else { Stream(stream.0 as *mut c_void) }
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

    fn allocate(&self, bytes: usize) -> Result<Option<NonNull<u8>>, DriverError> {
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
    fn target(&self) -> ptx::Target {
        self.target
    }

    fn ptx_version(&self) -> u32 {
        module::ptx_version(self.api.version)
    }

    fn shared_bytes(&self) -> u32 {
        self.shared_bytes
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

    fn can_access(&self, other: &Device) -> bool {
        let mut can = 0;
        // SAFETY (of the call): it writes one integer.
        let asked = cuda!(self, "can_access", cuDeviceCanAccessPeer(&raw mut can, self.ordinal, other.id() as Ordinal));
        asked.is_ok() && can != 0 && other.api() == "cuda"
    }

    fn create_stream(&self) -> Result<StreamHandle, DriverError> {
        let mut stream = Stream::NULL;
        // SAFETY (of the call): it writes one handle.
        cuda!(self, "new stream", cuStreamCreate(&raw mut stream, constant::STREAM_NON_BLOCKING))?;
        Ok(StreamHandle(stream.0 as usize))
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
        let outcome =
            cuda!(self, "allocate pinned", cuMemHostAlloc(&raw mut memory, bytes, constant::HOST_ALLOC_PORTABLE));
        Self::allocation(outcome, || NonNull::new(memory.cast()))
    }

    unsafe fn free_pinned(&self, memory: NonNull<u8>) {
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
        let other = Context(source.context() as *mut c_void);
        let (to, from) = (to as u64, from as u64);
        // SAFETY (of the call): by contract.
        cuda!(self, "copy between devices", cuMemcpyPeerAsync(to, self.context, from, other, bytes, self.raw(stream)))
    }

    fn context(&self) -> usize {
        self.context.0 as usize
    }

    fn journal(&self) -> &Journal {
        &self.journal
    }

    fn load(&self, kernel: &str, module: &ptx::Module) -> Result<GpuFunction, DriverError> {
        self.load_module(kernel, module)
    }

    fn tensor_map(&self, map: &TensorMap) -> Option<[u64; 16]> {
        self.tensor_map_of(map)
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
        // SAFETY (of the call): the stream is alive.
        cuda!(self, "capture", cuStreamBeginCapture_v2(self.raw(stream), constant::CAPTURE_THREAD_LOCAL))
    }

    fn end_capture(&'static self, stream: StreamHandle) -> Result<Box<dyn CapturedWork>, DriverError> {
        self.captured(stream)
    }
}
