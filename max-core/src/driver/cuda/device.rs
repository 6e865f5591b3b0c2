//! [`CudaDevice`]: a GPU, and calls of the driver for it.

use std::ffi::{CStr, c_int, c_void};
use std::sync::{Arc, OnceLock};

use super::api::{Api, Code, Context, Ordinal, Stream, constant};
use crate::driver::backend::{MIN_COMPUTE_CAPABILITY, StreamHandle};
use crate::driver::launch_journal::Journal;
use crate::driver::{CudaError, DeviceRef, DriverError, LaunchedOps};

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
    pub compute_capability: u32,
    /// Whether every launch is waited for.
    pub wait_for_launches: bool,
    pub ordinal: Ordinal,
    pub architecture: String,
    pub product: String,
    pub total_memory: usize,
    /// What is launched on its own stream.
    pub journal: Journal,
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
        let sm = attribute(constant::COMPUTE_CAPABILITY_MAJOR)? * 10 + attribute(constant::COMPUTE_CAPABILITY_MINOR)?;
        let multiprocessors = attribute(constant::MULTIPROCESSOR_COUNT)?;
        let shared_bytes = attribute(constant::MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?;
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
        Ok(CudaDevice {
            api,
            name: DeviceRef::gpu(id),
            context,
            stream,
            multiprocessors,
            shared_bytes,
            compute_capability: sm,
            wait_for_launches: std::env::var_os("MAX_GPU_SYNC").is_some_and(|value| !value.is_empty() && value != "0"),
            ordinal,
            architecture: format!("sm_{sm}"),
            product,
            total_memory,
            journal: Journal::new(),
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

    /// The driver's handle of a stream.
    pub fn raw(&self, stream: StreamHandle) -> Stream {
        if stream == StreamHandle::default() { self.stream } else { Stream(stream.0 as *mut c_void) }
    }
}
