//! Everything that the driver knows, behind one lock.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use cudarc::driver::sys::CUresult;

use crate::device::Gpu;
use crate::faults::{Code, Done, Faults, code};
use crate::graph::Graph;
use crate::module::{Function, Module};
use crate::stream::{Event, Stream};

/// The driver.
pub struct State {
    pub initialized: bool,
    pub version: i32,
    /// The most shared memory that a block may have.
    pub shared: u64,
    /// Where PTX that is loaded is written to.
    pub ptx: Option<PathBuf>,
    pub gpus: Vec<Gpu>,
    /// Page-locked host memory: its address and its layout.
    pub pinned: BTreeMap<usize, std::alloc::Layout>,
    pub streams: HashMap<usize, Stream>,
    pub events: HashMap<usize, Event>,
    pub modules: HashMap<usize, Arc<Module>>,
    pub functions: HashMap<usize, Function>,
    pub graphs: HashMap<usize, Graph>,
    pub executables: HashMap<usize, Graph>,
    pub faults: Faults,
    /// The error that every call returns once a kernel has faulted.
    pub lost: Option<Code>,
    next: usize,
}

fn setting(name: &str, default: usize) -> usize {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name}={text}")))
}

impl State {
    fn new() -> State {
        let of_environment = || vec![setting("FAKE_CUDA_SM", 90) as u32; setting("FAKE_CUDA_DEVICES", 1)];
        let sms = SMS.get().cloned().unwrap_or_else(of_environment);
        // What a program that simulates GPUs for its own tests needs is not known; a test of the driver itself needs little.
        let memory = setting("FAKE_CUDA_MEMORY", if SMS.get().is_some() { 1 << 30 } else { 256 << 20 });
        State {
            initialized: false,
            version: setting("FAKE_CUDA_VERSION", 12080) as i32,
            shared: setting("FAKE_CUDA_SHARED", 227 << 10) as u64,
            ptx: std::env::var_os("FAKE_CUDA_PTX").map(PathBuf::from),
            gpus: sms.iter().enumerate().map(|(i, sm)| Gpu::new(i, *sm, memory)).collect(),
            pinned: BTreeMap::new(),
            streams: HashMap::new(),
            events: HashMap::new(),
            modules: HashMap::new(),
            functions: HashMap::new(),
            graphs: HashMap::new(),
            executables: HashMap::new(),
            faults: Faults::from_environment(),
            lost: None,
            next: 0x1000,
        }
    }

    /// A handle that was never given out.
    pub fn handle(&mut self) -> usize {
        self.next += 0x10;
        self.next
    }

    /// The device whose context is current.
    pub fn current(&self) -> Done<usize> {
        CURRENT.with(Cell::get).ok_or(code(CUresult::CUDA_ERROR_INVALID_CONTEXT))
    }

    pub fn check_device(&self, device: i32) -> Done<usize> {
        let index = usize::try_from(device).ok().filter(|i| *i < self.gpus.len());
        index.ok_or(code(CUresult::CUDA_ERROR_INVALID_DEVICE))
    }

    /// Whether the whole range is page-locked.
    pub fn is_pinned(&self, address: usize, bytes: usize) -> bool {
        let before = self.pinned.range(..=address).next_back();
        before.is_some_and(|(first, layout)| address + bytes <= first + layout.size())
    }
}

thread_local!(static CURRENT: Cell<Option<usize>> = const { Cell::new(None) });

/// Makes the context of a device current on this thread.
pub fn set_current(device: Option<usize>) {
    CURRENT.with(|current| current.set(device));
}

fn lock() -> MutexGuard<'static, State> {
    static STATE: OnceLock<Mutex<State>> = OnceLock::new();
    STATE.get_or_init(|| Mutex::new(State::new())).lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a function may do before the driver is initialized.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Needs {
    Nothing,
    Init,
    Context,
}

/// The compute capabilities of the devices, where the program says it and not the environment.
static SMS: OnceLock<Vec<u32>> = OnceLock::new();

/// Says which devices there are, by their compute capabilities, 90 for 9.0: before the driver is started.
pub fn devices(sms: &[u32]) {
    SMS.get_or_init(|| sms.to_vec());
}

/// Runs a function of the driver. What it returns may be a code that no list of today has.
pub fn call(name: &'static str, needs: Needs, body: impl FnOnce(&mut State) -> Done) -> Code {
    let mut state = lock();
    let run = || {
        state.faults.enter(name)?;
        if needs != Needs::Nothing && !state.initialized {
            return Err(code(CUresult::CUDA_ERROR_NOT_INITIALIZED));
        }
        if needs == Needs::Context {
            state.current()?;
            if let Some(lost) = state.lost {
                return Err(lost);
            }
        }
        body(&mut state)
    };
    run().err().unwrap_or(code(CUresult::CUDA_SUCCESS))
}
