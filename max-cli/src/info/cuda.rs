//! The CUDA driver and the GPUs that it knows, asked through the driver's library alone.

use std::ffi::{CStr, c_char, c_int, c_uint};
use std::fmt;

use libloading::{Library, Symbol};

/// The CUDA driver of this machine.
pub struct Driver {
    /// The version of CUDA that it supports: 1000 times the major plus 10 times the minor number.
    version: c_int,
    /// Its GPUs.
    pub gpus: Vec<Gpu>,
}

/// A GPU.
pub struct Gpu {
    name: String,
    capability: (c_int, c_int),
    memory: usize,
}

/// Why there is no driver, or why it does not answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CudaError {
    /// The driver's library is not there.
    #[error("there is no CUDA driver: {reason}")]
    Library {
        /// What the system says.
        reason: String,
    },
    /// The driver's library lacks a function.
    #[error("the CUDA driver has no `{function}`: {reason}")]
    Function {
        /// The function.
        function: &'static str,
        /// What the system says.
        reason: String,
    },
    /// A function failed.
    #[error("the CUDA driver's `{function}` failed with code {code}{text}")]
    Call {
        /// The function.
        function: &'static str,
        /// The driver's error code.
        code: c_int,
        /// What the driver says of that code, after a colon.
        text: String,
    },
}

impl Driver {
    /// The version of CUDA that the driver supports, such as `CUDA 12.8`.
    pub fn version(&self) -> String {
        format!("CUDA {}.{}", self.version / 1000, self.version % 1000 / 10)
    }
}

impl fmt::Display for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (major, minor) = self.capability;
        write!(f, "{}, sm_{major}{minor}, {} GiB", self.name, self.memory >> 30)
    }
}

#[cfg(windows)]
const LIBRARY: &str = "nvcuda.dll";
#[cfg(not(windows))]
const LIBRARY: &str = "libcuda.so.1";

type ErrorString = unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int;

/// The driver's library, loaded.
struct Api(Library);

impl Api {
    fn get<F>(&self, function: &'static str) -> Result<Symbol<'_, F>, CudaError> {
        // SAFETY: every caller names the type that the driver's interface gives to the function.
        unsafe { self.0.get(function.as_bytes()) }
            .map_err(|error| CudaError::Function { function, reason: reason(&error) })
    }

    fn check(&self, function: &'static str, code: c_int) -> Result<(), CudaError> {
        if code == 0 {
            return Ok(());
        }
        let mut text: *const c_char = std::ptr::null();
        if let Ok(error_string) = self.get::<ErrorString>("cuGetErrorString") {
            // SAFETY: it writes one pointer.
            unsafe { error_string(code, &raw mut text) };
        }
        let text = match text.is_null() {
            true => String::new(),
            // SAFETY: it is the driver's own constant string.
            false => format!(": {}", unsafe { CStr::from_ptr(text) }.to_string_lossy()),
        };
        Err(CudaError::Call { function, code, text })
    }

    fn attribute(&self, attribute: c_int, device: c_int) -> Result<c_int, CudaError> {
        const NAME: &str = "cuDeviceGetAttribute";
        let function = self.get::<unsafe extern "C" fn(*mut c_int, c_int, c_int) -> c_int>(NAME)?;
        let mut value = 0;
        // SAFETY: it writes one integer.
        self.check(NAME, unsafe { function(&raw mut value, attribute, device) })?;
        Ok(value)
    }

    fn gpu(&self, ordinal: c_int) -> Result<Gpu, CudaError> {
        const COMPUTE_CAPABILITY_MAJOR: c_int = 75;
        const COMPUTE_CAPABILITY_MINOR: c_int = 76;
        let get = self.get::<unsafe extern "C" fn(*mut c_int, c_int) -> c_int>("cuDeviceGet")?;
        let name = self.get::<unsafe extern "C" fn(*mut c_char, c_int, c_int) -> c_int>("cuDeviceGetName")?;
        let total = self.get::<unsafe extern "C" fn(*mut usize, c_int) -> c_int>("cuDeviceTotalMem_v2")?;
        let (mut device, mut memory) = (0, 0);
        let mut text = [0u8; 256];
        // SAFETY: it writes one integer.
        self.check("cuDeviceGet", unsafe { get(&raw mut device, ordinal) })?;
        // SAFETY: it writes at most that many bytes, the last of them 0.
        self.check("cuDeviceGetName", unsafe { name(text.as_mut_ptr().cast(), text.len() as c_int, device) })?;
        // SAFETY: it writes one `usize`.
        self.check("cuDeviceTotalMem_v2", unsafe { total(&raw mut memory, device) })?;
        let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
        Ok(Gpu {
            name: String::from_utf8_lossy(&text[..end]).into_owned(),
            capability: (
                self.attribute(COMPUTE_CAPABILITY_MAJOR, device)?,
                self.attribute(COMPUTE_CAPABILITY_MINOR, device)?,
            ),
            memory,
        })
    }
}

/// What the system says; the error itself only names the call.
fn reason(error: &libloading::Error) -> String {
    std::error::Error::source(error).unwrap_or(error).to_string()
}

/// Asks the CUDA driver for its version and its GPUs.
///
/// # Errors
/// When there is no driver, or it does not answer.
pub fn probe() -> Result<Driver, CudaError> {
    // SAFETY: the system's own driver; its initializers have no preconditions.
    let library = unsafe { Library::new(LIBRARY) };
    let api = Api(library.map_err(|error| CudaError::Library { reason: reason(&error) })?);
    let init = api.get::<unsafe extern "C" fn(c_uint) -> c_int>("cuInit")?;
    // SAFETY: 0 is the one value that it takes.
    api.check("cuInit", unsafe { init(0) })?;
    let integer = |function: &'static str| {
        let call = api.get::<unsafe extern "C" fn(*mut c_int) -> c_int>(function)?;
        let mut value = 0;
        // SAFETY: both functions asked below write one integer.
        api.check(function, unsafe { call(&raw mut value) })?;
        Ok::<_, CudaError>(value)
    };
    let version = integer("cuDriverGetVersion")?;
    let count = integer("cuDeviceGetCount")?;
    let gpus = (0..count).map(|ordinal| api.gpu(ordinal)).collect::<Result<_, _>>()?;
    // A driver with running threads of its own does not like to be unloaded.
    std::mem::forget(api);
    Ok(Driver { version, gpus })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_driver_and_its_gpus_in_words() {
        let gpu = Gpu { name: "Accelerator".into(), capability: (9, 0), memory: 80 << 30 };
        assert_eq!(gpu.to_string(), "Accelerator, sm_90, 80 GiB");
        assert_eq!(Driver { version: 12080, gpus: vec![gpu] }.version(), "CUDA 12.8");
    }

    #[test]
    fn asking_twice_gives_the_same_answer() {
        let answer = || probe().map(|driver| driver.gpus.len()).map_err(|error| error.to_string());
        assert_eq!(answer(), answer());
    }
}
