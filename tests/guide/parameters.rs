//! The code of `docs/guide/08-parameters.md`.

use max::prelude::*;

use crate::{close, f32s, run};

/// Limits `x` to a range, and optionally counts from its middle.
#[kernel(op = "guide_limit")]
fn limit<T: Float>(x: T, #[param] low: f64, #[param] high: f64, #[param(default = false)] centered: bool) -> T {
    let y = x.clamp(low as T, high as T);
    if centered { y - ((low + high) / 2.0) as T } else { y }
}

/// An activation function by name.
#[kernel(op = "guide_activate", dtypes(T = [f32, bf16]))]
fn activate<T: Float>(x: T, #[param(default = "relu", choices("relu", "silu", "tanh"))] kind: &str) -> T {
    if kind == "tanh" {
        x.tanh()
    } else if kind == "silu" {
        x * x.sigmoid()
    } else {
        x.max(0)
    }
}

fn limited(centered: bool) -> max::Result<Model> {
    let ty = TensorType::new(DType::F32, ("n",), DeviceRef::CPU);
    let graph = Graph::build("limited", [&ty], |_, inputs| {
        let parameters = Parameters::new().with("low", -1.0).with("high", 3.0).with("centered", centered);
        ops::custom("guide_limit", DeviceRef::CPU, inputs, &ty, parameters)
    })?;
    Ok(InferenceSession::new().load(&graph)?)
}

#[test]
fn parameters_reach_the_kernel() {
    let x = f32s(&[-5.0, 0.0, 5.0]);
    for (centered, expected) in [(false, [-1.0, 0.0, 3.0]), (true, [-2.0, -1.0, 2.0])] {
        let y = limited(centered).unwrap().execute(&x).unwrap().remove(0);
        assert_eq!(y.as_slice::<f32>().unwrap(), expected);
    }
}

#[test]
fn strings_choose() {
    let x = [-1.0f32, 2.0];
    close(&run("guide_activate", &[f32s(&x)], &[DType::F32], ())[0], &[0.0, 2.0]);
    close(&run("guide_activate", &[f32s(&x)], &[DType::F32], [("kind", "tanh")])[0], &x.map(f32::tanh));
    let silu = x.map(|x| x / (1.0 + (-x).exp()));
    close(&run("guide_activate", &[f32s(&x)], &[DType::F32], [("kind", "silu")])[0], &silu);
    let ty = TensorType::new(DType::F32, (2,), DeviceRef::CPU);
    let graph = Graph::build("unknown", [&ty], |_, inputs| {
        ops::custom("guide_activate", DeviceRef::CPU, inputs, &ty, [("kind", "gelu")])
    });
    let error = graph.unwrap_err().to_string();
    assert!(error.contains("gelu") && error.contains("silu"), "{error}");
}
