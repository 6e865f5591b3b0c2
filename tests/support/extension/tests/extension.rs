//! Kernels loaded at run time from a dynamic library, and what is refused.

use std::path::{Path, PathBuf};
use std::process::Command;

use max::kernel::KernelError;
use max::prelude::*;

/// This package as a dynamic library, which cargo builds in the folder of this test.
fn extension() -> PathBuf {
    use std::env::consts::{DLL_PREFIX, DLL_SUFFIX};
    let test = std::env::current_exe().expect("a path");
    test.with_file_name(format!("{DLL_PREFIX}extension_ops{DLL_SUFFIX}"))
}

fn load(library: KernelLibrary, path: &Path) -> Result<KernelLibrary, KernelError> {
    // SAFETY: the file is this package's, or one that a test wrote; loading it does nothing.
    unsafe { library.with_extension(path) }
}

fn axpy(graph: &Graph) -> Result<Vec<Value>, max::graph::GraphError> {
    let [x, y] = [0, 1].map(|i| graph.inputs()[i].clone());
    let ty = TensorType::new(DType::F32, ("n",), DeviceRef::CPU);
    ops::custom("extension_axpy", DeviceRef::CPU, [x, y], [ty], [("scale", 10)])
}

#[test]
fn kernels_of_an_extension_run_like_linked_ones() {
    let path = extension();
    let library = load(KernelLibrary::linked(), &path).expect("an extension");
    assert!(library.get("extension_axpy").is_ok() && library.get("relu").is_ok());
    // Loading it again adds nothing, and is no conflict.
    assert!(load(library, &path).is_ok());

    let ty = TensorType::new(DType::F32, ("n",), DeviceRef::CPU);
    let graph = Graph::new("extended", [ty.clone(), ty]);
    assert!(axpy(&graph).is_err(), "unknown before it is loaded");
    // SAFETY: cargo built the file of this package.
    unsafe { graph.add_extension(&path) }.expect("an extension");
    let sum = axpy(&graph).expect("known now").remove(0);
    // Built-in ops around it.
    let y = ops::relu(ops::sub(&sum, 1.0).expect("a value")).expect("a value");
    graph.output([y]).expect("an output");

    // SAFETY: cargo built the file of this package.
    let session = unsafe { InferenceSession::new().custom_extensions([&path]) }.expect("an extension");
    let model = session.load(&graph).expect("a model");
    let (x, y) = ([1.0f32, 2.0, -3.0], [0.5f32, 0.25, 0.125]);
    let inputs = [Tensor::from_slice(&x, [3]).expect("a tensor"), Tensor::from_slice(&y, [3]).expect("a tensor")];
    let outputs = model.execute([&inputs[0], &inputs[1]]).expect("a run");
    assert_eq!(outputs[0].to_vec::<f32>().expect("floats"), [9.5, 19.25, 0.0]);
}

#[test]
fn the_ptx_of_an_extension_is_at_hand() {
    let library = load(KernelLibrary::linked(), &extension()).expect("an extension");
    let text = library.get("extension_peak").expect("a kernel").ir_text(&[DType::F32], None);
    let kernel = max::kernel::ir::parse(&text).expect("the IR parses");
    let target = max::kernel::ptx::Target { sm: 80, arch_specific: false };
    let module = max::kernel::ptx::write(&kernel, max::kernel::ptx::Options::new(target)).expect("PTX");
    assert!(module.text.contains(".visible .entry"), "{}", module.text);
}

fn refused(path: &Path) -> KernelError {
    load(KernelLibrary::linked(), path).expect_err("no extension")
}

#[test]
fn what_is_no_extension_is_refused() {
    let folder = std::env::temp_dir().join(format!("max-extension-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");

    let missing = folder.join("missing.so");
    let error = refused(&missing);
    assert!(matches!(&error, KernelError::Load { path, .. } if *path == missing), "{error}");

    let corrupt = folder.join("corrupt.so");
    std::fs::write(&corrupt, b"\x7fELF and then nothing that a loader likes").expect("a file");
    let error = refused(&corrupt);
    assert!(matches!(error, KernelError::Load { .. }) && error.to_string().contains("corrupt.so"), "{error}");

    let library = |name: &str, source: &str| {
        let (from, to) = (folder.join(format!("{name}.rs")), folder.join(format!("{name}.so")));
        std::fs::write(&from, source).expect("a file");
        let mut rustc = Command::new("rustc");
        rustc.args(["--crate-type", "cdylib", "--edition", "2024", "-o"]).arg(&to).arg(&from);
        assert!(rustc.status().expect("rustc runs").success());
        to
    };
    let plain = library("plain", "#[unsafe(no_mangle)] pub extern \"C\" fn nothing() {}");
    let error = refused(&plain);
    assert!(
        matches!(error, KernelError::NotAnExtension { .. }) && error.to_string().contains("max::extension!"),
        "{error}"
    );

    let newer = library(
        "newer",
        "static TABLE: [u32; 16] = [999; 16]; #[unsafe(no_mangle)] pub extern \"C\" fn max_extension() -> *const u32 { TABLE.as_ptr() }",
    );
    let error = refused(&newer);
    assert!(matches!(error, KernelError::Version { found: 999, .. }) && error.to_string().contains("999"), "{error}");

    let null =
        library("null", "#[unsafe(no_mangle)] pub extern \"C\" fn max_extension() -> *const u8 { std::ptr::null() }");
    let error = refused(&null);
    assert!(matches!(&error, KernelError::Table { path, .. } if *path == null), "{error}");
    let text = error.to_string();
    assert!(text.contains("null.so") && text.contains("returns null; put `max::extension!();`"), "{text}");

    // The right version, and nothing else.
    let source = format!(
        "static TABLE: [u64; 16] = [{}; 16]; #[unsafe(no_mangle)] pub extern \"C\" fn max_extension() -> *const u64 {{ TABLE.as_ptr() }}",
        max::kernel::abi::TABLE_VERSION
    );
    let hollow = library("hollow", &source);
    let text = refused(&hollow).to_string();
    assert!(text.contains("hollow.so cannot be used: it was compiled for"), "{text}");
    std::fs::remove_dir_all(&folder).expect("our own folder");
}
