use std::ffi::c_void;

use max::kernel::abi::*;
use max::kernel::{Kernel, KernelLibrary};

unsafe extern "C" fn record(_: *const Binding, _: *mut c_void, _: unsafe extern "C" fn(*mut c_void, *const u8, usize)) {}
unsafe extern "C" fn reference(_: *const Binding, _: *const LaunchArgs, _: i64, _: i64) {}

/// Of a result, it says that it writes all of it; it writes nothing.
static DEF: KernelDef = KernelDef {
    version: TABLE_VERSION,
    kind: KernelKind::Elementwise,
    name: Str::new("fake"),
    krate: Str::new("me"),
    file: Str::new("me.rs"),
    line: 1,
    doc: Str::new(""),
    signature: Str::new("fn fake() -> u64"),
    optimized: true,
    operands: List::new(&[OperandDef {
        name: Str::new("out"),
        access: Access::Out,
        dtype: DTypeRef::generic(0),
        rank: -1,
        zero_init: false,
        written: List::new(&[]),
        part: List::new(&[]),
    }]),
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
};

struct Fake;

impl Kernel for Fake {
    fn def() -> &'static KernelDef {
        &DEF
    }
}

#[max::kernel::kernel(op = "ui")]
fn rows(x: f32) -> f32 {
    x
}

fn main() {
    let _library = KernelLibrary::linked().with::<Fake>();
    // A table of ours with another function in it.
    let _taken = KernelDef { contract: rows::def().contract, record, ..DEF };
}
