//! [`Api`]: the functions of the CUDA driver's library, found when the program runs.
//!
//! The library is opened by name through the system's loader, once a process, and all functions are looked up at once: a
//! machine without the driver, or with one too old, gives a [`CudaError`] and nothing can fail to be found later. Result
//! codes are plain integers here, because a newer driver returns codes that no list of today has.

use std::ffi::{CStr, c_char, c_int, c_uchar, c_uint, c_ulonglong, c_void};
use std::mem;
use std::ptr::NonNull;
use std::sync::OnceLock;

use crate::driver::CudaError;

pub(super) type Code = c_int;
pub(super) type DevicePtr = u64;
pub(super) type Ordinal = c_int;

/// A handle of the driver: it is only passed back.
macro_rules! handles {
    ($($(#[doc = $doc:literal])* $name:ident;)+) => {$(
        $(#[doc = $doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(transparent)]
        pub(super) struct $name(pub *mut c_void);
        // SAFETY: the driver's handles may be used on any thread.
        unsafe impl Send for $name {}
        // SAFETY: as above.
        unsafe impl Sync for $name {}
        impl $name {
            /// Where a function is to write a handle.
            #[allow(dead_code, reason = "some handles are only ever given by the caller")]
            pub const NULL: $name = $name(std::ptr::null_mut());
        }
    )+};
}
handles! {
    /// A context: the state of one device in this process.
    Context;
    /// A queue of work.
    Stream;
    /// A place in a stream.
    Event;
    /// Loaded code.
    Module;
    /// A kernel of a module.
    Function;
    /// Captured work.
    Graph;
    /// Captured work, ready to be launched.
    GraphExec;
}

/// The names under which the library is looked for, in order: the unversioned one is missing on most machines that only
/// run programs, and where a toolkit is installed it may be an empty stub.
#[cfg(windows)]
const NAMES: &[&str] = &["nvcuda.dll"];
#[cfg(not(windows))]
const NAMES: &[&str] = &["libcuda.so.1", "libcuda.so"];

/// CUDA 11.4: the first version with every function below, and with PTX 7.4.
const OLDEST_VERSION: c_int = 11040;

/// Makes a tensor map: where to; the type of the elements; the number of axes; the address; dims, strides, the box, and steps
/// in it; and the ways of interleaving, swizzling, caching and filling.
pub(super) type EncodeTiled = unsafe extern "C" fn(
    *mut c_void,
    c_int,
    c_uint,
    *mut c_void,
    *const u64,
    *const u64,
    *const c_uint,
    *const c_uint,
    c_int,
    c_int,
    c_int,
    c_int,
) -> Code;

macro_rules! api {
    ($($name:ident($($arg:ty),*);)+) => {
        /// The driver's functions.
        #[allow(non_snake_case, reason = "the names are the driver's")]
        pub(super) struct Api {
            /// The version of CUDA that the driver supports: 1000 times the major plus 10 times the minor number.
            pub version: c_int,
            /// Of CUDA 12.0 and later.
            pub cuTensorMapEncodeTiled: Option<EncodeTiled>,
            $(pub $name: unsafe extern "C" fn($($arg),*) -> Code,)+
        }

        impl Api {
            #[allow(non_snake_case, reason = "the names are the driver's")]
            fn find(place: impl Fn(&CStr) -> Option<NonNull<c_void>>) -> Result<Api, CudaError> {
                let name = |name: &'static str| CStr::from_bytes_with_nul(name.as_bytes()).ok().and_then(&place);
                $(
                    let place = name(concat!(stringify!($name), "\0"));
                    let place = place.ok_or(CudaError::Symbol { function: stringify!($name) })?;
                    // SAFETY: this is the type that the driver's interface gives to the function of that name.
                    let $name = unsafe { mem::transmute::<NonNull<c_void>, unsafe extern "C" fn($($arg),*) -> Code>(place) };
                )+
                let encode = name("cuTensorMapEncodeTiled\0");
                // SAFETY: as above.
                let encode = encode.map(|place| unsafe { mem::transmute::<NonNull<c_void>, EncodeTiled>(place) });
                Ok(Api { version: 0, cuTensorMapEncodeTiled: encode, $($name,)+ })
            }
        }
    };
}

api! {
    cuInit(c_uint);
    cuDriverGetVersion(*mut c_int);
    cuGetErrorName(Code, *mut *const c_char);
    cuGetErrorString(Code, *mut *const c_char);
    cuDeviceGetCount(*mut c_int);
    cuDeviceGet(*mut Ordinal, c_int);
    cuDeviceGetName(*mut c_char, c_int, Ordinal);
    cuDeviceTotalMem_v2(*mut usize, Ordinal);
    cuDeviceGetAttribute(*mut c_int, c_int, Ordinal);
    cuDeviceCanAccessPeer(*mut c_int, Ordinal, Ordinal);
    cuDevicePrimaryCtxRetain(*mut Context, Ordinal);
    cuDevicePrimaryCtxRelease_v2(Ordinal);
    cuCtxSetCurrent(Context);
    cuCtxSynchronize();
    cuMemGetInfo_v2(*mut usize, *mut usize);
    cuMemAlloc_v2(*mut DevicePtr, usize);
    cuMemFree_v2(DevicePtr);
    cuMemHostAlloc(*mut *mut c_void, usize, c_uint);
    cuMemFreeHost(*mut c_void);
    cuMemcpyHtoDAsync_v2(DevicePtr, *const c_void, usize, Stream);
    cuMemcpyDtoHAsync_v2(*mut c_void, DevicePtr, usize, Stream);
    cuMemcpyDtoDAsync_v2(DevicePtr, DevicePtr, usize, Stream);
    cuMemcpyPeerAsync(DevicePtr, Context, DevicePtr, Context, usize, Stream);
    cuMemsetD8Async(DevicePtr, c_uchar, usize, Stream);
    cuStreamCreate(*mut Stream, c_uint);
    cuStreamDestroy_v2(Stream);
    cuStreamSynchronize(Stream);
    cuStreamWaitEvent(Stream, Event, c_uint);
    cuEventCreate(*mut Event, c_uint);
    cuEventDestroy_v2(Event);
    cuEventRecord(Event, Stream);
    cuModuleLoadDataEx(*mut Module, *const c_void, c_uint, *mut c_int, *mut *mut c_void);
    cuModuleUnload(Module);
    cuModuleGetFunction(*mut Function, Module, *const c_char);
    cuFuncGetAttribute(*mut c_int, c_int, Function);
    cuFuncSetAttribute(Function, c_int, c_int);
    cuLaunchKernel(
        Function, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Stream, *mut *mut c_void, *mut *mut c_void
    );
    cuStreamBeginCapture_v2(Stream, c_int);
    cuStreamEndCapture(Stream, *mut Graph);
    cuGraphInstantiateWithFlags(*mut GraphExec, Graph, c_ulonglong);
    cuGraphLaunch(GraphExec, Stream);
    cuGraphDestroy(Graph);
    cuGraphExecDestroy(GraphExec);
}

/// Constants of the driver's interface.
pub(super) mod constant {
    use std::ffi::{c_int, c_uint};

    pub const MULTIPROCESSOR_COUNT: c_int = 16;
    pub const COMPUTE_CAPABILITY_MAJOR: c_int = 75;
    pub const COMPUTE_CAPABILITY_MINOR: c_int = 76;
    pub const MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: c_int = 97;
    pub const FUNCTION_SHARED_SIZE_BYTES: c_int = 1;
    pub const FUNCTION_MAX_DYNAMIC_SHARED_SIZE_BYTES: c_int = 8;
    pub const JIT_ERROR_LOG_BUFFER: c_int = 5;
    pub const JIT_ERROR_LOG_BUFFER_SIZE_BYTES: c_int = 6;
    /// A stream that does not wait for the legacy default stream, which other code of the process may use.
    pub const STREAM_NON_BLOCKING: c_uint = 1;
    pub const EVENT_DISABLE_TIMING: c_uint = 2;
    /// Host memory that every context may use.
    pub const HOST_ALLOC_PORTABLE: c_uint = 1;
    /// Unsigned integers, by their bytes: elements are only moved.
    pub const TENSOR_MAP_UINTS: [(usize, c_int); 3] = [(1, 0), (2, 1), (4, 2)];
    pub const TENSOR_MAP_INTERLEAVE_NONE: c_int = 0;
    pub const TENSOR_MAP_L2_PROMOTION_128B: c_int = 2;
    pub const TENSOR_MAP_FILL_ZEROS: c_int = 0;
    /// A capture that only calls of the capturing thread can spoil.
    pub const CAPTURE_THREAD_LOCAL: c_int = 1;
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
        let text = |get: unsafe extern "C" fn(Code, *mut *const c_char) -> Code| {
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
