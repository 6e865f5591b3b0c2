//! Graphs of one op against values that other implementations computed: one safetensors file an op, with inputs, wanted
//! outputs and, as JSON in its metadata, the op's arguments and tolerances. The README beside this file describes them.
//!
//! `MAX_GOLDEN_DIR` names another folder of such files. `MAX_GOLDEN_DEVICE` says what runs the ops: `cpu` (the default, in
//! compiled and in reference form), `sim` (a GPU whose PTX is simulated) or `gpu` (the machine's).

mod apply;

use std::io::Write;
use std::path::{Path, PathBuf};

use apply::{Arguments, apply};
use max::dispatch;
use max::dtype::Element;
use max::prelude::*;
use safetensors::SafeTensors;
use serde_json::Value as Json;

/// The folder of golden values, wherever the package of this test is in the repository.
fn folder() -> PathBuf {
    if let Some(folder) = std::env::var_os("MAX_GOLDEN_DIR") {
        return folder.into();
    }
    let packages = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    let source = packages.map(|folder| folder.join(file!())).find(|path| path.is_file());
    source.and_then(|path| path.parent().map(Path::to_path_buf)).expect("the folder of this test")
}

/// Writes a line past the test harness, which keeps what tests print to itself.
fn say(line: &str) {
    writeln!(std::io::stdout(), "{line}").expect("standard output");
}

fn dtype(of: safetensors::Dtype) -> DType {
    match of {
        safetensors::Dtype::BOOL => DType::Bool,
        safetensors::Dtype::U8 => DType::U8,
        safetensors::Dtype::I32 => DType::I32,
        safetensors::Dtype::I64 => DType::I64,
        safetensors::Dtype::F16 => DType::F16,
        safetensors::Dtype::BF16 => DType::BF16,
        safetensors::Dtype::F32 => DType::F32,
        safetensors::Dtype::F64 => DType::F64,
        other => panic!("no golden value has dtype {other:?}"),
    }
}

fn tensor(file: &SafeTensors, name: &Json) -> max::Result<Tensor> {
    let view = file.tensor(name.as_str().expect("a name")).expect("a tensor of that name");
    let mut bytes = Tensor::zeros(DType::U8, [view.data().len()], &Device::cpu())?;
    bytes.as_mut_slice::<u8>()?.copy_from_slice(view.data());
    Ok(bytes.view(dtype(view.dtype()), Some(view.shape()))?)
}

/// The first element that is not as near as it should be.
fn difference(got: &Tensor, want: &Tensor, rtol: f64, atol: f64) -> max::Result<Option<String>> {
    let (got, want) = (got.contiguous()?, want.contiguous()?);
    Ok(dispatch!(want.dtype(), T => {
        let (got, want) = (got.to_vec::<T>()?, want.to_vec::<T>()?);
        let is_float = T::DTYPE.is_float();
        let is_near = |got: T, want: T| {
            let (g, w) = (got.to_f64(), want.to_f64());
            got == want || is_float && ((g - w).abs() <= atol + rtol * w.abs() || g.is_nan() && w.is_nan())
        };
        let far = got.iter().zip(&want).position(|(got, want)| !is_near(*got, *want));
        far.map(|i| format!("element {i} is {}, not {}", got[i], want[i]))
    }))
}

/// What is wrong with one case.
fn check(file: &SafeTensors, case: &Json, sessions: &[InferenceSession], device: Device) -> Result<(), String> {
    let (id, op) = (case["id"].as_str().expect("an id"), case["op"].as_str().expect("an op"));
    let run = || -> max::Result<Option<String>> {
        let named = |key: &str| -> max::Result<Vec<Tensor>> {
            case[key].as_array().expect("a list").iter().map(|name| tensor(file, name)).collect()
        };
        let (inputs, wanted) = (named("inputs")?, named("outputs")?);
        let of = DeviceRef::from(&device);
        let types: Vec<TensorType> = inputs.iter().map(|t| TensorType::new(t.dtype(), t.shape(), of)).collect();
        let graph = Graph::build(id, types, |graph, x| apply((graph, of), op, &Arguments(&case["params"]), x))?;
        let inputs = inputs.iter().map(|input| input.to(&device)).collect::<Result<Vec<_>, _>>()?;
        let tolerance = |key: &str| case[key].as_f64().expect("a tolerance");
        for session in sessions {
            let outputs = session.load(&graph)?.execute(&inputs)?;
            if outputs.len() != wanted.len() {
                return Ok(Some(format!("{} outputs, not {}", outputs.len(), wanted.len())));
            }
            for (got, want) in outputs.iter().zip(&wanted) {
                let (a, b) = ((got.dtype(), got.shape()), (want.dtype(), want.shape()));
                if a != b {
                    return Ok(Some(format!("got {a:?}, not {b:?}")));
                }
                let far = difference(&got.to(&Device::cpu())?, want, tolerance("rtol"), tolerance("atol"))?;
                if far.is_some() {
                    return Ok(far);
                }
            }
        }
        Ok(None)
    };
    match run() {
        Ok(None) => Ok(()),
        Ok(Some(wrong)) => Err(format!("{id}: {wrong}")),
        Err(error) => Err(format!("{id}: {error}")),
    }
}

/// Runs this test in a process whose loader finds the simulated driver.
#[cfg(target_os = "linux")]
fn on_simulated_gpu() {
    let folder = tempfile::tempdir().expect("a folder");
    let test = std::env::current_exe().expect("a path");
    let driver = test.with_file_name("libfake_cuda.so");
    std::os::unix::fs::symlink(driver, folder.path().join("libcuda.so.1")).expect("a link");
    let mut child = std::process::Command::new(test);
    child.args(["golden_values_are_reproduced", "--exact", "--nocapture"]);
    child.env("LD_LIBRARY_PATH", folder.path()).env("MAX_GOLDEN_DEVICE", "gpu");
    let status = child.status().expect("a child");
    assert!(status.success(), "on a simulated GPU: {status}");
}

#[test]
fn golden_values_are_reproduced() {
    let device = match std::env::var("MAX_GOLDEN_DEVICE").as_deref() {
        Err(_) | Ok("cpu") => Device::cpu(),
        Ok("gpu") => Device::accelerator(0).expect("MAX_GOLDEN_DEVICE=gpu needs a GPU"),
        #[cfg(target_os = "linux")]
        Ok("sim") => return on_simulated_gpu(),
        Ok(other) => panic!("MAX_GOLDEN_DEVICE is `{other}`, not one of `cpu`, `sim`, `gpu`"),
    };
    let mut sessions = vec![InferenceSession::with_devices([device])];
    if device == Device::cpu() {
        sessions.push(InferenceSession::new().reference(true));
    }
    let folder = folder();
    let files = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<PathBuf> = files.map(|file| file.expect("a file").path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "safetensors"));
    files.sort();
    let (mut passed, mut failed) = (0, 0);
    for path in files {
        let bytes = std::fs::read(&path).expect("a readable file");
        let file = SafeTensors::deserialize(&bytes).expect("a safetensors file");
        let (_, header) = SafeTensors::read_metadata(&bytes).expect("its header");
        let cases = &header.metadata().as_ref().expect("its metadata")["cases"];
        for case in serde_json::from_str::<Vec<Json>>(cases).expect("a list") {
            match check(&file, &case, &sessions, device) {
                Ok(()) => passed += 1,
                Err(wrong) => {
                    failed += 1;
                    say(&format!("FAILED {wrong}"));
                }
            }
        }
    }
    say(&format!("{passed} passed, {failed} failed"));
    assert_eq!(failed, 0, "cases failed");
    // Another folder may have other cases.
    if std::env::var_os("MAX_GOLDEN_DIR").is_none() {
        assert!(passed >= 334, "{passed} cases");
    }
}
