//! [`CudaDevice`]: a GPU, and calls of the driver for it.

use std::ffi::{CStr, c_int};
use std::ptr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::api::{Api, Code, PEER_ACCESS_ALREADY_ENABLED};
use super::map_counts::MapCounts;
use super::pinned::Buffer;
use super::sys::{CUcontext, CUdevice, CUdevice_attribute, CUstream, CUstream_flags};
use crate::driver::backend::{MIN_COMPUTE_CAPABILITY, StreamHandle};
use crate::driver::launch_journal::Journal;
use crate::driver::{CudaError, DeviceRef, DriverError, LaunchedOps};

/// A GPU.
pub(super) struct CudaDevice {
    pub api: &'static Api,
    pub name: DeviceRef,
    pub context: CUcontext,
    /// Its own stream.
    pub stream: CUstream,
    pub multiprocessors: u32,
    /// The most shared memory that a block may ask for.
    pub shared_bytes: u32,
    pub compute_capability: u32,
    /// Whether every launch is waited for.
    pub wait_for_launches: bool,
    /// Whether what the driver's compiler says of kernels is shown.
    pub shows_jit_log: bool,
    pub ordinal: CUdevice,
    pub architecture: String,
    pub product: String,
    pub total_memory: usize,
    /// What is launched on its own stream.
    pub journal: Journal,
    /// What became of tensor maps.
    pub maps: MapCounts,
    /// What pageable memory goes through on its way to the device.
    pub upload_buffers: Mutex<Option<[Buffer; 2]>>,
    /// The contexts of other GPUs whose memory copies were allowed to reach directly, or could not be.
    peers: Mutex<Vec<usize>>,
    /// The process that opened it: a context is of no use in one that was forked.
    process: u32,
    /// The fault that destroyed the context, and what may have caused it.
    lost: OnceLock<(CudaError, Arc<LaunchedOps>)>,
}

// SAFETY: the driver's handles may be used on any thread.
unsafe impl Send for CudaDevice {}
// SAFETY: as above, at the same time.
unsafe impl Sync for CudaDevice {}

/// Whether an environment variable asks for something.
fn is_set(name: &str) -> bool {
    std::env::var_os(name).is_some_and(|value| !value.is_empty() && value != "0")
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
    ordinal: CUdevice,
}

impl Drop for Retained {
    fn drop(&mut self) {
        // SAFETY: retained once, by `open`. That this fails as well is of no consequence.
        let _ = unsafe { (self.api.cuDevicePrimaryCtxRelease_v2)(self.ordinal) };
    }
}

impl CudaDevice {
    /// Makes a GPU ready, for as long as the process runs.
    pub fn open(id: u32) -> Result<CudaDevice, CudaError> {
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
        let sm = attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)? * 10
            + attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        let multiprocessors = attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        let shared_bytes = attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?;
        if sm < MIN_COMPUTE_CAPABILITY {
            return Err(CudaError::Architecture { sm, oldest: MIN_COMPUTE_CAPABILITY });
        }
        let mut name = [0u8; 256];
        // SAFETY: it writes at most that many bytes, the last of them 0.
        let code = unsafe { (api.cuDeviceGetName)(name.as_mut_ptr().cast(), name.len() as c_int, ordinal) };
        api.check("cuDeviceGetName", code)?;
        let product = CStr::from_bytes_until_nul(&name).unwrap_or_default().to_string_lossy().into_owned();
        let mut total_memory = 0;
        // SAFETY: it writes one integer.
        api.check("cuDeviceTotalMem_v2", unsafe { (api.cuDeviceTotalMem_v2)(&raw mut total_memory, ordinal) })?;

        let mut context = ptr::null_mut();
        // SAFETY: it writes one handle.
        let code = unsafe { (api.cuDevicePrimaryCtxRetain)(&raw mut context, ordinal) };
        api.check("cuDevicePrimaryCtxRetain", code)?;
        let retained = Retained { api, ordinal };
        let mut stream = ptr::null_mut();
        with_context(api, context, "cuStreamCreate", |api| {
            // SAFETY: it writes one handle.
            unsafe { (api.cuStreamCreate)(&raw mut stream, CUstream_flags::CU_STREAM_NON_BLOCKING as u32) }
        })?;
        std::mem::forget(retained);
        Ok(CudaDevice {
            api,
            name: DeviceRef::gpu(id),
            context,
            stream,
            multiprocessors,
            shared_bytes,
            compute_capability: sm,
            wait_for_launches: is_set("MAX_GPU_SYNC"),
            shows_jit_log: is_set("MAX_GPU_JIT_LOG"),
            ordinal,
            architecture: format!("sm_{sm}"),
            product,
            total_memory,
            journal: Journal::new(),
            maps: MapCounts::default(),
            upload_buffers: Mutex::new(None),
            peers: Mutex::new(Vec::new()),
            process: std::process::id(),
            lost: OnceLock::new(),
        })
    }

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
        let outcome = with_context(self.api, self.context, function, call);
        outcome.map_err(|source| self.error(op, source))
    }

    #[cold]
    pub fn error(&self, op: &'static str, source: CudaError) -> DriverError {
        let source = source.explained(self.process, std::process::id());
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

    /// The driver's handle of a stream.
    pub fn raw(&self, stream: StreamHandle) -> CUstream {
        if stream == StreamHandle::default() { self.stream } else { stream.0 as CUstream }
    }

    /// Lets copies from the memory of another context go without the host, where that is possible: asked once for each.
    pub fn try_peer(&self, other: CUcontext) {
        let mut asked = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        if !asked.contains(&(other as usize)) {
            asked.push(other as usize);
            // Where it is not, the driver copies through the host.
            let _ = self.enable_peer(other);
        }
    }

    /// Lets kernels and copies here use the memory of another context, where that is possible.
    pub fn enable_peer(&self, other: CUcontext) -> Result<(), DriverError> {
        self.call("peer access", "cuCtxEnablePeerAccess", |api| {
            // SAFETY: both contexts are retained for as long as the process runs.
            match unsafe { (api.cuCtxEnablePeerAccess)(other, 0) } {
                PEER_ACCESS_ALREADY_ENABLED => 0,
                code => code,
            }
        })
    }
}

/// Calls a function with a context current, which must be retained, and then puts back what was current on this thread
/// before: other users of the driver in this process have contexts of their own.
fn with_context(
    api: &'static Api,
    context: CUcontext,
    function: &'static str,
    call: impl FnOnce(&'static Api) -> Code,
) -> Result<(), CudaError> {
    // SAFETY: the context is retained.
    api.check("cuCtxPushCurrent_v2", unsafe { (api.cuCtxPushCurrent_v2)(context) })?;
    let code = call(api);
    let mut popped = ptr::null_mut();
    // SAFETY: it writes one handle. It takes back the push above: a failure of it is one of the context, which the next
    // call reports.
    let _ = unsafe { (api.cuCtxPopCurrent_v2)(&raw mut popped) };
    api.check(function, code)
}
