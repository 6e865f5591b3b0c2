//! Everything that the driver knows, behind one lock.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::ffi::{CStr, CString};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use cudarc::driver::sys::{CUcontext, CUresult};

use crate::device::Gpu;
use crate::faults::{Code, Done, Faults, code};
use crate::graph::Graph;
use crate::module::{Function, Module};
use crate::settings::Settings;
use crate::stream::{Event, Stream};

/// The driver.
pub struct State {
    pub initialized: bool,
    pub version: i32,
    /// Multiprocessors of each device.
    pub multiprocessors: i32,
    /// The most shared memory that a block may have.
    pub shared: u64,
    /// The most blocks of a launch that there are.
    pub blocks: u32,
    /// Where PTX that is loaded is written to.
    pub ptx: Option<PathBuf>,
    /// Whether work is done before the next call of any thread, which then returns its error.
    pub eager: bool,
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

impl State {
    fn new(settings: Settings) -> State {
        let Settings { sms, multiprocessors, memory, shared, blocks, version, ptx, eager, faults } = settings;
        State {
            initialized: false,
            version,
            multiprocessors,
            shared,
            blocks,
            ptx,
            eager,
            gpus: sms.iter().enumerate().map(|(i, sm)| Gpu::new(i, *sm, memory)).collect(),
            pinned: BTreeMap::new(),
            streams: HashMap::new(),
            events: HashMap::new(),
            modules: HashMap::new(),
            functions: HashMap::new(),
            graphs: HashMap::new(),
            executables: HashMap::new(),
            faults,
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
        current().ok_or(code(CUresult::CUDA_ERROR_INVALID_CONTEXT))
    }

    pub fn check_device(&self, device: i32) -> Done<usize> {
        let index = usize::try_from(device).ok().filter(|i| *i < self.gpus.len());
        index.ok_or(code(CUresult::CUDA_ERROR_INVALID_DEVICE))
    }

    /// The device of a context that is retained.
    pub fn device_of(&self, context: CUcontext) -> Done<usize> {
        let device = (context as usize).checked_sub(1);
        let retained = |device: &usize| self.gpus.get(*device).is_some_and(|gpu| gpu.retained > 0);
        device.filter(retained).ok_or(code(CUresult::CUDA_ERROR_INVALID_CONTEXT))
    }

    /// Whether the whole range is page-locked.
    pub fn is_pinned(&self, address: usize, bytes: usize) -> bool {
        let before = self.pinned.range(..=address).next_back();
        before.is_some_and(|(first, layout)| address + bytes <= first + layout.size())
    }
}

thread_local! {
    /// The contexts of this thread, by device; the last one is current.
    static CONTEXTS: RefCell<Vec<Option<usize>>> = const { RefCell::new(Vec::new()) };
}

/// Makes the context of a device current on this thread, in the place of the one that is.
pub fn set_current(device: Option<usize>) {
    CONTEXTS.with_borrow_mut(|contexts| {
        contexts.pop();
        contexts.push(device);
    });
}

/// Makes the context of a device current on this thread, before the one that is.
pub fn push_current(device: usize) {
    CONTEXTS.with_borrow_mut(|contexts| contexts.push(Some(device)));
}

/// Takes the current context of this thread away, and makes the one before it current again.
pub fn pop_current() -> Option<usize> {
    CONTEXTS.with_borrow_mut(Vec::pop).flatten()
}

/// The device whose context is current on this thread.
pub fn current() -> Option<usize> {
    CONTEXTS.with_borrow(|contexts| contexts.last().copied().flatten())
}

/// What every function returns where the environment asks for something without sense, and what that is.
pub const REFUSED: Code = code(CUresult::CUDA_ERROR_SYSTEM_NOT_READY);

/// The driver, which the first call starts, or what it was asked for that has no sense.
fn started() -> Result<&'static Mutex<State>, &'static CStr> {
    static STATE: OnceLock<Result<Mutex<State>, CString>> = OnceLock::new();
    let state = STATE.get_or_init(|| {
        let settings = Settings::read(&|name| std::env::var_os(name), SMS.get().map(Vec::as_slice));
        // Variables hold no NUL.
        settings.map(|settings| Mutex::new(State::new(settings))).map_err(|why| CString::new(why).unwrap_or_default())
    });
    state.as_ref().map_err(|why| &**why)
}

/// Why the driver was not started, if it was not.
pub fn refusal() -> Option<&'static CStr> {
    started().err()
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
///
/// A panic does not leave it, which would end the process: a mistake of this driver or of the simulator loses the device.
pub fn call(name: &'static str, needs: Needs, body: impl FnOnce(&mut State) -> Done) -> Code {
    let run = || {
        let mut state = started().map_err(|_| REFUSED)?.lock().unwrap_or_else(PoisonError::into_inner);
        state.faults.enter(name)?;
        if needs != Needs::Nothing && !state.initialized {
            return Err(code(CUresult::CUDA_ERROR_NOT_INITIALIZED));
        }
        if needs == Needs::Context {
            state.current()?;
            if let Some(lost) = state.lost {
                return Err(lost);
            }
            if state.eager {
                (0..state.gpus.len()).try_for_each(|device| state.drain_all(device))?;
            }
        }
        // Nothing is read of a state that a panic may have left half changed: every call that could fails from then on.
        catch_unwind(AssertUnwindSafe(|| body(&mut state))).unwrap_or_else(|_| {
            let unknown = code(CUresult::CUDA_ERROR_UNKNOWN);
            state.lost = Some(unknown);
            Err(unknown)
        })
    };
    run().err().unwrap_or(code(CUresult::CUDA_SUCCESS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_loses_the_device() {
        let outcome =
            |needs, panics| call("cuCtxSynchronize", needs, |_| if panics { panic!("asked for") } else { Ok(()) });
        call("cuInit", Needs::Nothing, |state| {
            state.initialized = true;
            set_current(Some(0));
            Ok(())
        });
        assert_eq!(outcome(Needs::Context, false), 0);
        assert_eq!(outcome(Needs::Context, true), 999);
        assert_eq!(outcome(Needs::Context, false), 999);
    }
}
