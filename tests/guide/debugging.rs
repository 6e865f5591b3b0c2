//! The code of `docs/guide/12-debugging.md`.

use max::prelude::*;

use crate::{close, f32s};

fn checked_session() -> InferenceSession {
    InferenceSession::new().reference(true)
}

#[test]
fn the_reference_form_gives_the_same() {
    let ty = TensorType::new(DType::F32, ("n",), DeviceRef::CPU);
    let graph = Graph::build("tanh", [ty], |_, inputs| ops::tanh(&inputs[0])).unwrap();
    let x: Vec<f32> = (-50..50).map(|i| i as f32 / 10.0).collect();
    let reference = checked_session().load(&graph).unwrap().execute(&f32s(&x)).unwrap().remove(0);
    close(&reference, &x.iter().map(|x| x.tanh()).collect::<Vec<f32>>());
}
