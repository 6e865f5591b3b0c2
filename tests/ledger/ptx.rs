//! The PTX of every kernel: with each binding of its dtypes, for each target, with parameters open and bound to their
//! defaults, with tf32 where that makes another code, with the tile sizes of all GPUs where a target has its own, and with those
//! for small dims.

use std::fmt::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use max::dtype::DType;
use max::kernel::abi::{KernelDef, ParamBits};
use max::kernel::ptx::{Float32MatmulPrecision, Module, Options, Target, write};
use max::kernel::{KernelLibrary, ir};

use crate::{Entries, Hash, hold};

/// The targets that PTX is written for.
const TARGETS: [Target; 3] = [
    Target { sm: 80, arch_specific: false },
    Target { sm: 90, arch_specific: true },
    Target { sm: 100, arch_specific: false },
];

/// All combinations of the dtypes that a kernel was compiled for.
fn bindings(def: &KernelDef) -> Vec<Vec<DType>> {
    let mut all = vec![Vec::new()];
    for generic in def.generics.as_slice() {
        let dtypes = generic.dtypes.as_slice().iter().filter_map(|code| DType::from_code(*code));
        // Kernels that only move elements are compiled once for each size.
        let dtypes = dtypes.filter(|dtype| generic.code(*dtype) == Some(*dtype as u8)).collect::<Vec<_>>();
        all = all.iter().flat_map(|start| dtypes.iter().map(|&dtype| [&start[..], &[dtype]].concat())).collect();
    }
    all
}

/// The text, and what a launch needs to know besides.
fn hash(module: &Module) -> Hash {
    let Module { text, entry, block_size, resident, shared_bytes, cached_rows, params, grid, grid_terms } = module;
    let mut all = text.clone();
    let axes: Vec<_> = grid.iter().map(|axis| (axis.operand, axis.dim, axis.tile, axis.size)).collect();
    // By their numbers: names of fields and variants are free to change.
    let bytes: Vec<usize> = params.iter().map(|slot| slot.bytes()).collect();
    let _ = write!(all, "{entry} {block_size} {resident:?} {shared_bytes} {cached_rows:?} {bytes:?} {axes:?}");
    if !grid_terms.is_empty() {
        let terms: Vec<_> = grid_terms.iter().map(|term| (term.op as u32, term.index, term.value)).collect();
        let _ = write!(all, " {terms:?}");
    }
    Hash::of(&all)
}

/// The entries of a kernel with one binding.
fn entries(def: &'static KernelDef, dtypes: &[DType]) -> Result<Vec<(String, Hash)>, String> {
    let names: Vec<&str> = dtypes.iter().map(|dtype| dtype.short_name()).collect();
    let name = format!("{}<{}>", def.name.as_str(), names.join(","));
    let defaults: Vec<ParamBits> = def.params.as_slice().iter().map(|param| param.default).collect();
    let mut found = Vec::new();
    for target in TARGETS {
        let plain = Options::new(target);
        let tf32 = Options { float32_matmul_precision: Float32MatmulPrecision::High, ..plain };
        let mut add = |form: &str, text: &str, options: Options| -> Result<Module, String> {
            let fail = |error: &dyn std::fmt::Display| format!("{name}{form} for {target}: {error}");
            let kernel = ir::parse(text).map_err(|e| fail(&e))?;
            let module = write(&kernel, options).map_err(|e| fail(&e))?;
            found.push((format!("ptx {target} {name}{form}"), hash(&module)));
            Ok(module)
        };
        let open = def.ir_text_on(target, dtypes, None).map_err(|e| e.to_string())?;
        let module = add("", &open, plain)?;
        if !defaults.is_empty() {
            let bound = def.ir_text_on(target, dtypes, Some(&defaults)).map_err(|e| e.to_string())?;
            add(" with default parameters", &bound, plain)?;
        }
        let given: Vec<&str> = def
            .operands
            .as_slice()
            .iter()
            .filter_map(|operand| Some(def.given_param(operand)?.name.as_str()))
            .collect();
        if !given.is_empty() {
            let is_given = |name: &str| given.contains(&name);
            let bits = def.params.as_slice().iter().map(|p| if is_given(p.name.as_str()) { 1 } else { p.default });
            let bits: Vec<ParamBits> = bits.collect();
            let all = def.ir_text_on(target, dtypes, Some(&bits)).map_err(|e| e.to_string())?;
            add(" with every operand", &all, plain)?;
        }
        let general = def.ir_text(dtypes, None);
        if general != open {
            add(" with general tiles", &general, plain)?;
        }
        for tile in def.tiles_on(target, dtypes).filter(|tile| !tile.conditions.as_slice().is_empty()) {
            add(&format!(" where {}", def.conditions_of(tile)), &def.ir_text_of(tile, dtypes, None), plain)?;
        }
        if dtypes.contains(&DType::F32) && open.contains(" = dot ") {
            let with_tf32 = add(" with tf32", &open, tf32)?;
            assert_ne!(with_tf32.text, module.text, "{name} for {target}");
        }
    }
    Ok(found)
}

#[test]
fn ptx_is_that_of_the_ledger() {
    max::kernels::link();
    let library = KernelLibrary::linked();
    let built_in = library.tables().filter(|def| def.krate.as_str() == "max-kernels");
    let work: Vec<_> = built_in.flat_map(|def| bindings(def).into_iter().map(move |dtypes| (def, dtypes))).collect();
    let (next, all) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, |n| n.get().min(8)) {
            scope.spawn(|| {
                while let Some((def, dtypes)) = work.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let found = entries(def, dtypes);
                    all.lock().expect("no thread panics while it holds the lock").push(found);
                }
            });
        }
    });
    let all = all.into_inner().expect("no thread panics while it holds the lock");
    let entries: Result<Vec<_>, String> = all.into_iter().collect();
    let entries: Entries = entries.unwrap_or_else(|error| panic!("{error}")).into_iter().flatten().collect();
    assert!(entries.len() > 1000, "{} entries", entries.len());
    hold("ptx", &entries);
}
