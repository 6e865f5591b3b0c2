//! Ranges for profilers, by which they tell the ops that kernels belong to: those of NVIDIA's NVTX, without its library.
//!
//! A profiler that wants ranges names a library of its own in `NVTX_INJECTION64_PATH`. Its `InitializeInjectionNvtx2` asks
//! for a table of places, and writes the addresses of its functions there (NVTX 3, `nvtxTypes.h`, module `CORE`). Where no
//! profiler does, nothing is loaded, and a range costs a look at a variable.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::marker::PhantomData;
use std::mem::transmute;
use std::ptr::null_mut;
use std::str::FromStr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::plan::error::EngineError;
use crate::plan::{Labels, Plan, PlannedStep};

/// What a profiler such as Nsight Systems is told of a model's executions; see
/// [`InferenceSession::gpu_profiling`](super::InferenceSession::gpu_profiling).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum GpuProfiling {
    /// Nothing.
    #[default]
    Off,
    /// A range around each launch on a GPU, with the op's name and line.
    On,
    /// Also a range around each execution, with the model's name, and around each step on the host.
    Detailed,
}

impl FromStr for GpuProfiling {
    type Err = EngineError;

    /// `off`, `on` or `detailed`.
    fn from_str(mode: &str) -> Result<GpuProfiling, EngineError> {
        match mode {
            "off" => Ok(GpuProfiling::Off),
            "on" => Ok(GpuProfiling::On),
            "detailed" => Ok(GpuProfiling::Detailed),
            _ => Err(EngineError::Profiling { mode: mode.to_owned() }),
        }
    }
}

impl GpuProfiling {
    /// What `MAX_ENABLE_PROFILING` asks for.
    pub(super) fn of_environment() -> Result<GpuProfiling, EngineError> {
        std::env::var("MAX_ENABLE_PROFILING").map_or(Ok(GpuProfiling::Off), |mode| mode.parse())
    }
}

impl Plan {
    /// The plan, with ranges for profilers.
    pub fn profiled(mut self, mode: GpuProfiling) -> Plan {
        let label = |step: &PlannedStep| {
            let PlannedStep { name, location, device, .. } = step;
            (format!("{name} ({}:{})", location.file(), location.line()), !device.is_cpu())
        };
        self.labels = Labels::new(mode, &self.name, self.steps.iter().map(label));
        self
    }
}

impl Labels {
    /// `steps` gives the text for each step, and whether it is done on a GPU.
    pub fn new(mode: GpuProfiling, model: &str, steps: impl Iterator<Item = (String, bool)>) -> Option<Labels> {
        // Names do not contain NUL; one that does has no range.
        let label = |text: String| CString::new(text).ok();
        let detailed = match mode {
            GpuProfiling::Off => return None,
            GpuProfiling::On => false,
            GpuProfiling::Detailed => true,
        };
        let steps = steps.map(|(text, on_gpu)| (on_gpu || detailed).then(|| label(text)).flatten()).collect();
        Some(Labels { model: detailed.then(|| label(model.to_owned())).flatten(), steps })
    }

    /// The range of an execution.
    pub(super) fn model(&self) -> Option<Range> {
        Range::open(self.model.as_deref()?)
    }

    /// The range of a step.
    pub(super) fn step(&self, index: usize) -> Option<Range> {
        Range::open(self.steps.get(index)?.as_deref()?)
    }
}

/// A range of this thread, which ends when it is dropped.
pub(super) struct Range {
    profiler: &'static Profiler,
    /// It ends on the thread on which it began.
    _thread: PhantomData<*mut ()>,
}

impl Range {
    fn open(name: &CStr) -> Option<Range> {
        static PROFILER: OnceLock<Option<Profiler>> = OnceLock::new();
        let profiler = PROFILER.get_or_init(Profiler::attach).as_ref()?;
        // SAFETY: this is the profiler's `nvtxRangePushA`, and the text ends with NUL.
        unsafe { (profiler.push)(name.as_ptr()) };
        Some(Range { profiler, _thread: PhantomData })
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        // SAFETY: this is the profiler's `nvtxRangePop`; the range that was opened last on this thread is this one.
        unsafe { (self.profiler.pop)() };
    }
}

/// The functions of a profiler, which stays loaded.
struct Profiler {
    push: unsafe extern "C" fn(*const c_char) -> c_int,
    pop: unsafe extern "C" fn() -> c_int,
    _library: libloading::Library,
}

type GetExportTable = extern "C" fn(u32) -> *const c_void;

// `NvtxCallbackModule`, `NvtxCallbackIdCore` and `NvtxExportTableID`.
const MODULE_CORE: c_uint = 1;
const RANGE_PUSH: usize = 9;
const RANGE_POP: usize = 11;
const FUNCTIONS: usize = 16;
const TABLE_CALLBACKS: u32 = 1;
const TABLE_VERSION_INFO: u32 = 3;

/// Where a profiler puts its functions.
static PLACES: [AtomicPtr<c_void>; FUNCTIONS] = [const { AtomicPtr::new(null_mut()) }; FUNCTIONS];

/// `NvtxExportTableCallbacks`.
#[repr(C)]
struct Callbacks {
    size: usize,
    functions: extern "C" fn(c_uint, *mut *const *mut *mut c_void, *mut c_uint) -> c_int,
}

/// `NvtxExportTableVersionInfo`.
#[repr(C)]
struct VersionInfo {
    size: usize,
    version: u32,
    reserved: u32,
    set_profiler_version: extern "C" fn(u32),
}

extern "C" fn tables(id: u32) -> *const c_void {
    static CALLBACKS: Callbacks = Callbacks { size: size_of::<Callbacks>(), functions };
    static VERSION: VersionInfo =
        VersionInfo { size: size_of::<VersionInfo>(), version: 3, reserved: 0, set_profiler_version };
    match id {
        TABLE_CALLBACKS => (&raw const CALLBACKS).cast(),
        TABLE_VERSION_INFO => (&raw const VERSION).cast(),
        _ => std::ptr::null(),
    }
}

extern "C" fn set_profiler_version(_version: u32) {}

extern "C" fn functions(module: c_uint, table: *mut *const *mut *mut c_void, size: *mut c_uint) -> c_int {
    /// The addresses of the places; number 0 is none, and one more ends the table.
    struct Table([*mut *mut c_void; FUNCTIONS + 1]);
    // SAFETY: the addresses are those of a static of atomics.
    unsafe impl Send for Table {}
    // SAFETY: as above.
    unsafe impl Sync for Table {}
    static TABLE: OnceLock<Table> = OnceLock::new();
    if module != MODULE_CORE {
        return 0;
    }
    let places = TABLE.get_or_init(|| {
        let place = |i: usize| if i == 0 { null_mut() } else { PLACES.get(i).map_or(null_mut(), AtomicPtr::as_ptr) };
        Table(std::array::from_fn(place))
    });
    // SAFETY: the caller passes places for the results, or null.
    unsafe {
        if !table.is_null() {
            *table = places.0.as_ptr();
        }
        if !size.is_null() {
            *size = FUNCTIONS as c_uint;
        }
    }
    1
}

impl Profiler {
    /// The profiler that runs this process, if one does.
    fn attach() -> Option<Profiler> {
        let path = std::env::var_os("NVTX_INJECTION64_PATH")?;
        // SAFETY: whoever sets the variable asks for this library, and this function of it, to be run.
        let library = unsafe { libloading::Library::new(path) }.ok()?;
        type Initialize = unsafe extern "C" fn(GetExportTable) -> c_int;
        // SAFETY: as above; this is the function's type.
        let attached = unsafe { library.get::<Initialize>(b"InitializeInjectionNvtx2\0").ok()?(tables) };
        let function = |id: usize| {
            let function = PLACES[id].load(Ordering::Acquire);
            (attached != 0 && !function.is_null()).then_some(function)
        };
        let (push, pop) = (function(RANGE_PUSH)?, function(RANGE_POP)?);
        // SAFETY: these are the types of the functions with these numbers.
        let (push, pop) = unsafe {
            (
                transmute::<*mut c_void, unsafe extern "C" fn(*const c_char) -> c_int>(push),
                transmute::<*mut c_void, unsafe extern "C" fn() -> c_int>(pop),
            )
        };
        Some(Profiler { push, pop, _library: library })
    }
}
