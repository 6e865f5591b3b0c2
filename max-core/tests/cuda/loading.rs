//! Kernels that threads load at the same time.

use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::Duration;

use max::driver::Device;
use max::dtype::DType;
use max::kernel;
use max::kernel::abi::{
    Access, Binding, Contract, DTypeRef, KernelDef, KernelKind, LaunchArgs, List, OperandDef, Str, TABLE_VERSION,
};
use max::kernel::{Form, Kernel};

#[kernel(op = "loaded_meanwhile", dtypes(T = [f32]))]
fn meanwhile<T: Number>(x: T) -> T {
    x + 1
}

/// How far it is: 1 while the slow kernel records, 2 once another was loaded.
static STAGE: (Mutex<u32>, Condvar) = (Mutex::new(0), Condvar::new());
static RECORDED: AtomicUsize = AtomicUsize::new(0);

fn set_stage(stage: u32) {
    *STAGE.0.lock().unwrap() = stage;
    STAGE.1.notify_all();
}

/// Whether it got so far in time.
fn reaches(stage: u32) -> bool {
    let (held, condition) = (STAGE.0.lock().unwrap(), &STAGE.1);
    let (held, _) = condition.wait_timeout_while(held, Duration::from_secs(60), |now| *now < stage).unwrap();
    *held >= stage
}

unsafe extern "C" fn record_slowly(
    _: *const Binding,
    out: *mut c_void,
    sink: unsafe extern "C" fn(*mut c_void, *const u8, usize),
) {
    RECORDED.fetch_add(1, Ordering::Relaxed);
    set_stage(1);
    let ir = "kernel \"slow\" elementwise (in x: f32, out y: f32) |%0: f32| { yield %0 }";
    let text = if reaches(2) { ir } else { "no other kernel was loaded meanwhile" };
    // SAFETY: the bytes are valid during the call, and `out` is what the sink was given with.
    unsafe { sink(out, text.as_ptr(), text.len()) };
}

unsafe extern "C" fn reference(_: *const Binding, _: *const LaunchArgs, _: i64, _: i64) {}

const fn operand(name: &'static str, access: Access) -> OperandDef {
    OperandDef {
        name: Str::new(name),
        access,
        dtype: DTypeRef::fixed(DType::F32),
        rank: -1,
        zero_init: false,
        written: List::new(&[]),
        part: List::new(&[]),
    }
}

static OPERANDS: [OperandDef; 2] = [operand("x", Access::In), operand("y", Access::Out)];
static SLOW: KernelDef = KernelDef {
    version: TABLE_VERSION,
    kind: KernelKind::Elementwise,
    name: Str::new("slow"),
    krate: Str::new("loading"),
    file: Str::new(file!()),
    line: line!(),
    doc: Str::new(""),
    signature: Str::new("fn slow(x: f32) -> f32"),
    optimized: true,
    operands: List::new(&OPERANDS),
    generics: List::new(&[]),
    params: List::new(&[]),
    may_hold_tiles: false,
    tile_names: List::new(&[]),
    gpu_tile: List::new(&[]),
    gpu_tiles: List::new(&[]),
    variants: List::new(&[]),
    grid: List::new(&[]),
    grid_terms: List::new(&[]),
    nondeterministic: false,
    columns: None,
    transposed: None,
    instances: List::new(&[]),
    record: record_slowly,
    reference,
    // SAFETY: it writes its result on a GPU as its IR says, and runs nowhere else.
    contract: unsafe { Contract::upheld() },
};

/// Loads a kernel of two operands of `f32`.
fn load(def: &'static KernelDef) -> Result<(), String> {
    let bound = def.bind(&[DType::F32; 2], |_| None, Form::Reference).map_err(|e| e.to_string())?;
    let gpu = Device::accelerator(0).map_err(|e| e.to_string())?;
    bound.on_gpu(&gpu, 1).map(drop).map_err(|e| e.to_string())
}

gpu_test! {
    /// Who loads one kernel does not wait for who loads another, only for who loads the same.
    fn a_kernel_is_loaded_while_another_is() {
        let slow: Vec<_> = (0..2).map(|_| std::thread::spawn(|| load(&SLOW))).collect();
        assert!(reaches(1));
        assert_eq!(load(meanwhile::def()), Ok(()));
        set_stage(2);
        for thread in slow {
            assert_eq!(thread.join().unwrap(), Ok(()));
        }
        assert_eq!(RECORDED.load(Ordering::Relaxed), 1);
    }
}
