//! [`Api`]: the functions of the CUDA driver's library, found when the program runs.
//!
//! The library is opened by name through the system's loader, once a process, and all functions are looked up at once: a
//! machine without the driver, or with one too old, gives a [`CudaError`] and nothing can fail to be found later. Result
//! codes are plain integers here, because a newer driver returns codes that no list of today has.
//!
//! Tests compare each entry with the prototype in NVIDIA's header, by the compiler: see [`sys`](super::sys).

use std::ffi::{CStr, c_char, c_int, c_uchar, c_uint, c_ulonglong, c_void};
use std::mem;
use std::ptr::NonNull;
use std::sync::OnceLock;

use super::sys::*;
use crate::driver::CudaError;

pub(super) type Code = c_int;

/// Host memory that every context may use: `CU_MEMHOSTALLOC_PORTABLE`, a macro of the header.
pub(super) const MEM_HOST_ALLOC_PORTABLE: c_uint = 1;
/// No failure of what was asked: peer access is there already.
pub(super) const PEER_ACCESS_ALREADY_ENABLED: Code = 704;

/// The names under which the library is looked for, in order: the unversioned one is missing on most machines that only
/// run programs, and where a toolkit is installed it may be an empty stub.
#[cfg(windows)]
const NAMES: &[&str] = &["nvcuda.dll"];
#[cfg(not(windows))]
const NAMES: &[&str] = &["libcuda.so.1", "libcuda.so"];

/// CUDA 11.4: the first version with every function below, and with PTX 7.4.
const OLDEST_VERSION: c_int = 11040;

/// `cuGetErrorName` and `cuGetErrorString`: of a code, which the header's prototype takes as one of its list alone.
type ErrorText = unsafe extern "C" fn(Code, *mut *const c_char) -> Code;

macro_rules! api {
    (
        required { $($name:ident($($arg:ty),* $(,)?);)+ }
        optional { $($later:ident($($later_arg:ty),* $(,)?);)+ }
    ) => {
        /// The driver's functions.
        #[allow(non_snake_case, reason = "the names are the driver's")]
        pub(super) struct Api {
            /// The version of CUDA that the driver supports: 1000 times the major plus 10 times the minor number.
            pub version: c_int,
            cuGetErrorName: ErrorText,
            cuGetErrorString: ErrorText,
            $(pub $name: unsafe extern "C" fn($($arg),*) -> Code,)+
            $(pub $later: Option<unsafe extern "C" fn($($later_arg),*) -> Code>,)+
        }

        impl Api {
            #[allow(non_snake_case, reason = "the names are the driver's")]
            fn find(place: impl Fn(&CStr) -> Option<NonNull<c_void>>) -> Result<Api, CudaError> {
                let name = |name: &'static str| CStr::from_bytes_with_nul(name.as_bytes()).ok().and_then(&place);
                let required = |function: &'static str, with_end: &'static str| {
                    name(with_end).ok_or(CudaError::Symbol { function })
                };
                $(
                    let place = required(stringify!($name), concat!(stringify!($name), "\0"))?;
                    // SAFETY: this is the type that the driver's interface gives to the function of that name: see below.
                    let $name = unsafe { mem::transmute::<NonNull<c_void>, unsafe extern "C" fn($($arg),*) -> Code>(place) };
                )+
                let error_text = |function, with_end| {
                    let place = required(function, with_end)?;
                    // SAFETY: as above.
                    Ok(unsafe { mem::transmute::<NonNull<c_void>, ErrorText>(place) })
                };
                Ok(Api {
                    version: 0,
                    cuGetErrorName: error_text("cuGetErrorName", "cuGetErrorName\0")?,
                    cuGetErrorString: error_text("cuGetErrorString", "cuGetErrorString\0")?,
                    $($name,)+
                    $($later: name(concat!(stringify!($later), "\0")).map(|place| {
                        // SAFETY: as above.
                        unsafe { mem::transmute::<NonNull<c_void>, unsafe extern "C" fn($($later_arg),*) -> Code>(place) }
                    }),)+
                })
            }
        }

        // Each is as NVIDIA's header declares it. (Results are integers here, of the size of the header's enumeration.)
        #[cfg(test)]
        const _: () = {
            use cudarc::driver::sys;
            assert!(mem::size_of::<Code>() == mem::size_of::<sys::CUresult>());
            $(let _: unsafe fn($($arg),*) -> sys::CUresult = sys::$name;)+
            $(let _: unsafe fn($($later_arg),*) -> sys::CUresult = sys::$later;)+
            let _: [unsafe fn(sys::CUresult, *mut *const c_char) -> sys::CUresult; 2] =
                [sys::cuGetErrorName, sys::cuGetErrorString];
        };
    };
}

api! {
    required {
        cuInit(c_uint);
        cuDriverGetVersion(*mut c_int);
        cuDeviceGetCount(*mut c_int);
        cuDeviceGet(*mut CUdevice, c_int);
        cuDeviceGetName(*mut c_char, c_int, CUdevice);
        cuDeviceTotalMem_v2(*mut usize, CUdevice);
        cuDeviceGetAttribute(*mut c_int, CUdevice_attribute, CUdevice);
        cuDeviceCanAccessPeer(*mut c_int, CUdevice, CUdevice);
        cuDevicePrimaryCtxRetain(*mut CUcontext, CUdevice);
        cuDevicePrimaryCtxRelease_v2(CUdevice);
        cuCtxPushCurrent_v2(CUcontext);
        cuCtxPopCurrent_v2(*mut CUcontext);
        cuCtxSynchronize();
        cuCtxEnablePeerAccess(CUcontext, c_uint);
        cuMemGetInfo_v2(*mut usize, *mut usize);
        cuMemAlloc_v2(*mut CUdeviceptr, usize);
        cuMemFree_v2(CUdeviceptr);
        cuMemHostAlloc(*mut *mut c_void, usize, c_uint);
        cuMemFreeHost(*mut c_void);
        cuMemcpyHtoDAsync_v2(CUdeviceptr, *const c_void, usize, CUstream);
        cuMemcpyDtoHAsync_v2(*mut c_void, CUdeviceptr, usize, CUstream);
        cuMemcpyDtoDAsync_v2(CUdeviceptr, CUdeviceptr, usize, CUstream);
        cuMemcpyPeerAsync(CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, usize, CUstream);
        cuMemsetD8Async(CUdeviceptr, c_uchar, usize, CUstream);
        cuStreamCreate(*mut CUstream, c_uint);
        cuStreamDestroy_v2(CUstream);
        cuStreamSynchronize(CUstream);
        cuStreamWaitEvent(CUstream, CUevent, c_uint);
        cuEventCreate(*mut CUevent, c_uint);
        cuEventDestroy_v2(CUevent);
        cuEventRecord(CUevent, CUstream);
        cuModuleLoadDataEx(*mut CUmodule, *const c_void, c_uint, *mut CUjit_option, *mut *mut c_void);
        cuModuleUnload(CUmodule);
        cuModuleGetFunction(*mut CUfunction, CUmodule, *const c_char);
        cuFuncGetAttribute(*mut c_int, CUfunction_attribute, CUfunction);
        cuFuncSetAttribute(CUfunction, CUfunction_attribute, c_int);
        cuLaunchKernel(
            CUfunction, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, CUstream, *mut *mut c_void,
            *mut *mut c_void,
        );
        cuStreamBeginCapture_v2(CUstream, CUstreamCaptureMode);
        cuStreamEndCapture(CUstream, *mut CUgraph);
        cuGraphInstantiateWithFlags(*mut CUgraphExec, CUgraph, c_ulonglong);
        cuGraphLaunch(CUgraphExec, CUstream);
        cuGraphDestroy(CUgraph);
        cuGraphExecDestroy(CUgraphExec);
    }
    // Of CUDA 12.0 and later.
    optional {
        cuTensorMapEncodeTiled(
            *mut CUtensorMap, CUtensorMapDataType, c_uint, *mut c_void, *const u64, *const u64, *const c_uint,
            *const c_uint, CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill,
        );
    }
}

static API: OnceLock<Result<Api, CudaError>> = OnceLock::new();

/// Puts a driver of the program's own in the place of the machine's, for tests without a GPU: `place` gives the address of
/// a function of the driver's interface by its name.
///
/// # Errors
///
/// [`CudaError::InUse`] once anything has asked for the driver; what the given one says when it starts.
///
/// # Safety
///
/// What `place` gives has the type that NVIDIA's `cuda.h` declares for the function of that name, and does what the driver
/// promises.
pub unsafe fn replace_cuda_driver(place: fn(&CStr) -> Option<NonNull<c_void>>) -> Result<(), CudaError> {
    let mut replaced = false;
    let api = API.get_or_init(|| {
        replaced = true;
        Api::find(place)?.start()
    });
    if replaced { api.as_ref().map(|_| ()).map_err(CudaError::clone) } else { Err(CudaError::InUse) }
}

impl Api {
    /// The driver of this machine; the first call opens it.
    pub fn get() -> Result<&'static Api, CudaError> {
        API.get_or_init(Api::open).as_ref().map_err(CudaError::clone)
    }

    fn open() -> Result<Api, CudaError> {
        let mut reason = String::new();
        for &name in NAMES {
            // SAFETY: loading the driver runs its initializers, as any CUDA program does.
            match unsafe { libloading::Library::new(name) } {
                Ok(library) => {
                    // SAFETY: only the address is of interest here.
                    let place = |name: &CStr| unsafe { library.get::<*mut c_void>(name.to_bytes_with_nul()) };
                    let api = Api::find(|name| NonNull::new(*place(name).ok()?))?;
                    // The driver stays for as long as the process: its memory may be freed at any time before that.
                    std::mem::forget(library);
                    return api.start();
                }
                Err(error) if reason.is_empty() => reason = error.to_string(),
                Err(_) => {}
            }
        }
        Err(CudaError::Library { names: NAMES, reason })
    }

    fn start(mut self) -> Result<Api, CudaError> {
        let mut version = 0;
        // SAFETY: it writes one integer.
        self.check("cuDriverGetVersion", unsafe { (self.cuDriverGetVersion)(&raw mut version) })?;
        if version < OLDEST_VERSION {
            return Err(CudaError::Version { found: version, oldest: OLDEST_VERSION });
        }
        self.version = version;
        // SAFETY: it takes no memory.
        self.check("cuInit", unsafe { (self.cuInit)(0) })?;
        Ok(self)
    }

    /// What a function returned, as a result.
    #[inline]
    pub fn check(&self, function: &'static str, code: Code) -> Result<(), CudaError> {
        if code == 0 { Ok(()) } else { Err(self.failure(function, code)) }
    }

    #[cold]
    fn failure(&self, function: &'static str, code: Code) -> CudaError {
        let text = |get: ErrorText| {
            let mut text: *const c_char = std::ptr::null();
            // SAFETY: it writes one pointer, to a constant of the driver, or null for a code that it does not know.
            let known = unsafe { get(code, &raw mut text) } == 0 && !text.is_null();
            // SAFETY: as above, and it ends in 0.
            known.then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
        };
        let name = text(self.cuGetErrorName).unwrap_or_else(|| format!("error {code}"));
        CudaError::Call { function, code, name, text: text(self.cuGetErrorString).unwrap_or_default() }
    }
}
