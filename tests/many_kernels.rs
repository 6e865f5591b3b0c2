//! Loading a graph takes as long with a thousand more kernels registered as without them.

use std::ffi::c_void;
use std::time::{Duration, Instant};

use max::kernel::abi::{Binding, Contract, KernelDef, KernelKind, LaunchArgs, List, Str, TABLE_VERSION};
use max::kernel::{Registration, inventory};
use max::kernels::{activation::relu, arithmetic::add, math::tanh, matmul::matmul, softmax::softmax};
use max::prelude::*;

unsafe extern "C" fn record(_: *const Binding, _: *mut c_void, _: unsafe extern "C" fn(*mut c_void, *const u8, usize)) {
}

unsafe extern "C" fn reference(_: *const Binding, _: *const LaunchArgs, _: i64, _: i64) {}

/// A kernel that nothing uses; each registered one has a name of its own.
const EXTRA: KernelDef = KernelDef {
    version: TABLE_VERSION,
    kind: KernelKind::Elementwise,
    name: Str::new("extra"),
    krate: Str::new("many_kernels"),
    file: Str::new(file!()),
    line: line!(),
    doc: Str::new(""),
    signature: Str::new("extra()"),
    optimized: true,
    operands: List::new(&[]),
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
    record,
    reference,
    // SAFETY: nothing runs it.
    contract: unsafe { Contract::upheld() },
};

/// Registers a kernel for each number of three digits.
macro_rules! register {
    ($a:literal $b:literal $c:literal) => {
        const _: () = {
            static DEF: KernelDef = KernelDef { name: Str::new(concat!("extra_", $a, $b, $c)), ..EXTRA };
            inventory::submit! { Registration(&DEF) }
        };
    };
    ($($digit:literal)*) => {
        register! { $($digit)* 0 }
        register! { $($digit)* 1 }
        register! { $($digit)* 2 }
        register! { $($digit)* 3 }
        register! { $($digit)* 4 }
        register! { $($digit)* 5 }
        register! { $($digit)* 6 }
        register! { $($digit)* 7 }
        register! { $($digit)* 8 }
        register! { $($digit)* 9 }
    };
}
register! {}

/// How long it takes to build and load a graph of 100 ops with the kernels of `library`.
fn load_time(library: &KernelLibrary) -> Duration {
    let start = Instant::now();
    let ty = TensorType::new(DType::F32, [64, 64], DeviceRef::CPU);
    let graph = Graph::new("many", [&ty, &ty]);
    graph.set_kernel_library(library.clone());
    let (mut x, w) = (graph.inputs()[0].clone(), &graph.inputs()[1]);
    for i in 0..100 {
        let next = match i % 5 {
            0 => ops::relu(&x),
            1 => ops::softmax(&x, -1),
            2 => ops::matmul(&x, w),
            3 => ops::tanh(&x),
            _ => ops::add(&x, w),
        };
        x = next.expect("the op fits").into();
    }
    graph.output(x).expect("the graph has no mistake");
    InferenceSession::new().library(library.clone()).load(&graph).expect("the library has every kernel");
    start.elapsed()
}

#[test]
fn unused_kernels_do_not_make_loading_slower() {
    let many = KernelLibrary::linked();
    assert!(many.get("extra_000").is_ok() && many.get("extra_999").is_ok());
    assert!(many.iter().count() > 1000);
    let few = KernelLibrary::empty().with::<relu>().and_then(|library| library.with::<softmax>());
    let few = few.and_then(|library| library.with::<matmul>()).and_then(|library| library.with::<tanh>());
    let few = few.and_then(|library| library.with::<add>()).expect("their names differ");
    assert_eq!(few.iter().count(), 5);

    // In turn, so that whatever else the machine does slows both down.
    let (mut with, mut without): (Vec<_>, Vec<_>) = (0..301).map(|_| (load_time(&many), load_time(&few))).unzip();
    with.sort_unstable();
    without.sort_unstable();
    let (with, without) = (with[150], without[150]);
    assert!(with < 2 * without, "{with:?} with a thousand more kernels, {without:?} without");
}
