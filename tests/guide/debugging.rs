//! The code of `docs/guide/12-debugging.md`.

use max::engine::GpuDebug;
use max::prelude::*;

use crate::{close, f32s, run};

fn checked_session() -> InferenceSession {
    InferenceSession::new().reference(true)
}

#[kernel(op = "guide_printing")]
fn printing<T: Float>(y: Out<T, 2>, x: In<T, 2>) {
    let row = program_id(0);
    let norm = x.row(row).map(|v| v * v).sum().sqrt();
    print("row, norm", (row, norm));
    x.row(row).enumerate().for_each(|(v, j)| {
        if v > norm {
            print("larger than the norm", (j, v));
        }
    });
    y.row(row).write(x.row(row).map(|v| v / norm));
}

/// What it prints is tested with the kernel language.
#[test]
fn a_kernel_that_prints_computes_as_well() {
    let x = Tensor::from_slice(&[3.0f32, 4.0, 5.0, 12.0], [2, 2]).unwrap();
    let y = run("guide_printing", &[x], &[DType::F32], ()).remove(0);
    close(&y, &[0.6, 0.8, 5.0 / 13.0, 12.0 / 13.0]);
}

fn with_everything(device: Device) -> InferenceSession {
    InferenceSession::with_devices([device]).gpu_debug(GpuDebug { lines: true, bounds: true })
}

#[test]
fn the_reference_form_gives_the_same() {
    let ty = TensorType::new(DType::F32, ("n",), DeviceRef::CPU);
    let graph = Graph::build("tanh", [ty], |_, inputs| ops::tanh(&inputs[0])).unwrap();
    let x: Vec<f32> = (-50..50).map(|i| i as f32 / 10.0).collect();
    let reference = checked_session().load(&graph).unwrap().execute(&f32s(&x)).unwrap().remove(0);
    close(&reference, &x.iter().map(|x| x.tanh()).collect::<Vec<f32>>());
}

/// Without a GPU there is nothing to say of it: the model is the same.
#[test]
fn a_session_for_debugging_runs() {
    let ty = TensorType::new(DType::F32, ("n",), DeviceRef::CPU);
    let graph = Graph::build("abs", [ty], |_, inputs| ops::abs(&inputs[0])).unwrap();
    let outputs = with_everything(Device::cpu()).load(&graph).unwrap().execute(&f32s(&[-1.0, 2.0])).unwrap();
    assert_eq!(outputs[0].to_vec::<f32>().unwrap(), [1.0, 2.0]);
}
