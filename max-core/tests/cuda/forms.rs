//! Forms of kernels with tile sizes for one kind of GPU alone: where there is none, and how often they are recorded.

use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};

use max::driver::Device;
use max::dtype::DType;
use max::kernel;
use max::kernel::abi::{Binding, Contract, KernelDef};
use max::kernel::{Form, Kernel};

products! {
    fitting "fitting_form" gpu(BM = 64, BN = 64, BK = 32), sm_90a(BM = 128);
    // More shared memory than a block has, a factor of more elements, and a result of as many as there are no numbers for.
    deep "deep_form" gpu(BM = 64, BN = 64, BK = 32), sm_90a(BK = 512);
    large "large_form" gpu(BM = 64, BN = 64, BK = 32), sm_90a(BK = 1024);
    huge "huge_form" gpu(BM = 64, BN = 64, BK = 32), sm_90a(BM = 65536, BN = 65536);
}

fn gpu() -> Device {
    Device::accelerator(0).unwrap()
}

fn loads(log: &str) -> usize {
    std::fs::read_to_string(log).unwrap().lines().filter(|line| *line == "cuModuleLoadDataEx").count()
}

static RECORDED: AtomicUsize = AtomicUsize::new(0);

/// Records a kernel, and counts that.
unsafe extern "C" fn record<K: Kernel>(
    binding: *const Binding,
    out: *mut c_void,
    sink: unsafe extern "C" fn(*mut c_void, *const u8, usize),
) {
    RECORDED.fetch_add(1, Ordering::Relaxed);
    // SAFETY: by the same contract.
    unsafe { (K::def().record)(binding, out, sink) };
}

/// How often a kernel is recorded when it is loaded on a GPU, and when it is loaded again. (Binding records it once more, to
/// find what it multiplies.)
fn recorded<K: Kernel>() -> [usize; 2] {
    // SAFETY: the table is the kernel's own, but for a recorder that calls its own.
    let contract = unsafe { Contract::upheld() };
    let def: &'static KernelDef = Box::leak(Box::new(KernelDef { record: record::<K>, contract, ..*K::def() }));
    [0; 2].map(|_| {
        let bound = def.bind(&[DType::F32; 3], |_| None, Form::Reference).unwrap();
        let before = RECORDED.load(Ordering::Relaxed);
        bound.on_gpu(&gpu(), 1).unwrap();
        RECORDED.load(Ordering::Relaxed) - before
    })
}

gpu_test! {
    fn a_form_without_room_leaves_the_general_one("FAKE_CUDA_LOG" = concat!(env!("CARGO_TARGET_TMPDIR"), "/forms.log")) {
        let log = concat!(env!("CARGO_TARGET_TMPDIR"), "/forms.log");
        // The log begins with the driver.
        gpu();
        for (def, modules) in [(fitting::def(), 2), (deep::def(), 1), (large::def(), 1), (huge::def(), 1)] {
            let before = loads(log);
            let bound = def.bind(&[DType::F32; 3], |_| None, Form::Reference).unwrap();
            bound.on_gpu(&gpu(), 1).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(loads(log) - before, modules, "{}", def.name.as_str());
        }
    }

    /// Also that there is no room is found once.
    fn forms_are_recorded_once() {
        assert_eq!(recorded::<fitting>(), [2, 0]);
        assert_eq!(recorded::<deep>(), [2, 0]);
        assert_eq!(recorded::<huge>(), [2, 0]);
    }

    /// Other GPUs have no such form.
    fn another_kind_of_gpu_records_none("FAKE_CUDA_SM" = "80") {
        assert_eq!(recorded::<fitting>(), [1, 0]);
    }
}
