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

fn axpy(graph: &Graph) -> Result<Vec<Value>, max::graph::GraphError> {
    let [x, y] = [0, 1].map(|i| graph.inputs()[i].clone());
    let ty = TensorType::new(DType::F32, ("n",), DeviceRef::CPU);
    ops::custom("extension_axpy", DeviceRef::CPU, [x, y], [ty], [("scale", 10)])
}

#[test]
fn kernels_of_an_extension_run_like_linked_ones() {
    let path = extension();
    let library = KernelLibrary::linked().with_extension(&path).expect("an extension");
    assert!(library.get("extension_axpy").is_ok() && library.get("relu").is_ok());
    // Loading it again adds nothing, and is no conflict.
    assert!(library.with_extension(&path).is_ok());

    let ty = TensorType::new(DType::F32, ("n",), DeviceRef::CPU);
    let graph = Graph::new("extended", [ty.clone(), ty]);
    assert!(axpy(&graph).is_err(), "unknown before it is loaded");
    graph.add_extension(&path).expect("an extension");
    let sum = axpy(&graph).expect("known now").remove(0);
    // Built-in ops around it.
    let y = ops::relu(ops::sub(&sum, 1.0).expect("a value")).expect("a value");
    graph.output([y]).expect("an output");

    let model =
        InferenceSession::new().custom_extensions([&path]).expect("an extension").load(&graph).expect("a model");
    let (x, y) = ([1.0f32, 2.0, -3.0], [0.5f32, 0.25, 0.125]);
    let inputs = [Tensor::from_slice(&x, [3]).expect("a tensor"), Tensor::from_slice(&y, [3]).expect("a tensor")];
    let outputs = model.execute([&inputs[0], &inputs[1]]).expect("a run");
    assert_eq!(outputs[0].to_vec::<f32>().expect("floats"), [9.5, 19.25, 0.0]);
}

#[test]
fn the_ptx_of_an_extension_is_at_hand() {
    let library = KernelLibrary::linked().with_extension(extension()).expect("an extension");
    let text = library.get("extension_peak").expect("a kernel").ir_text(&[DType::F32], None);
    let kernel = max::kernel::ir::parse(&text).expect("the IR parses");
    let target = max::kernel::ptx::Target { sm: 80, arch_specific: false };
    let module = max::kernel::ptx::write(&kernel, max::kernel::ptx::Options::new(target)).expect("PTX");
    assert!(module.text.contains(".visible .entry"), "{}", module.text);
}

fn refused(path: &Path) -> KernelError {
    KernelLibrary::linked().with_extension(path).expect_err("no extension")
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
    std::fs::remove_dir_all(&folder).expect("our own folder");
}
