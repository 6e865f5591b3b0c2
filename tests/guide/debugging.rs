//! The code of `docs/guide/12-debugging.md`.

use max::engine::GpuDebug;
use max::prelude::*;

use crate::{close, f32s};

fn checked_session() -> InferenceSession {
    InferenceSession::new().reference(true)
}

fn with_lines(device: Device) -> InferenceSession {
    InferenceSession::with_devices([device]).gpu_debug(GpuDebug { lines: true })
}

#[test]
fn the_reference_form_gives_the_same() {
    let ty = TensorType::new(DType::F32, ("n",), DeviceRef::CPU);
    let graph = Graph::build("tanh", [ty], |_, inputs| ops::tanh(&inputs[0])).unwrap();
    let x: Vec<f32> = (-50..50).map(|i| i as f32 / 10.0).collect();
    let reference = checked_session().load(&graph).unwrap().execute(&f32s(&x)).unwrap().remove(0);
    close(&reference, &x.iter().map(|x| x.tanh()).collect::<Vec<f32>>());
}

/// Without a GPU there is nothing to say lines of: the model is the same.
#[test]
fn a_session_with_lines_runs() {
    let ty = TensorType::new(DType::F32, ("n",), DeviceRef::CPU);
    let graph = Graph::build("abs", [ty], |_, inputs| ops::abs(&inputs[0])).unwrap();
    let outputs = with_lines(Device::cpu()).load(&graph).unwrap().execute(&f32s(&[-1.0, 2.0])).unwrap();
    assert_eq!(outputs[0].to_vec::<f32>().unwrap(), [1.0, 2.0]);
}
