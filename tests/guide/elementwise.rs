//! The code of `docs/guide/02-elementwise.md`.

use max::prelude::*;

use crate::{close, f32s, run};

/// Moves `x` toward `y`: `weight` 0 gives `x`, and 1 gives `y`.
#[kernel(op = "guide_lerp")]
fn lerp<T: Float>(x: T, y: T, weight: T) -> T {
    x + (y - x) * weight
}

fn half_way() -> max::Result<Model> {
    let rows = TensorType::new(DType::F32, ("rows", 3), DeviceRef::CPU);
    let row = TensorType::new(DType::F32, (3,), DeviceRef::CPU);
    let graph = Graph::build("half_way", [&rows, &row], |graph, inputs| {
        let half = ops::constant(graph, 0.5, DType::F32, DeviceRef::CPU)?;
        let operands = [inputs[0].clone(), inputs[1].clone(), half.into()];
        ops::custom("guide_lerp", DeviceRef::CPU, operands, &rows, ())
    })?;
    Ok(InferenceSession::new().load(&graph)?)
}

/// The sine and the cosine.
#[kernel(op = "guide_sin_cos")]
fn sin_cos<T: Float>(x: T) -> (T, T) {
    (x.sin(), x.cos())
}

/// `x / scale` as the nearest 8-bit integer; what is out of range becomes the closest that is not.
#[kernel(op = "guide_quantize")]
fn quantize(x: f32, #[param] scale: f32) -> i8 {
    (x / scale).round_ties_even() as i8
}

/// The logarithm of `1 + e^x`, without overflow.
#[kernel]
fn softplus<T: Float>(x: T) -> T {
    x.max(0) + (-x.abs()).exp().log1p()
}

/// `x * tanh(softplus(x))` (Misra, 2019).
#[kernel(op = "guide_mish")]
fn mish<T: Float>(x: T) -> T {
    x * softplus(x).tanh()
}

#[test]
fn operands_broadcast() {
    let rows = Tensor::from_slice(&[0.0f32, 2.0, 4.0, 1.0, 1.0, 1.0], [2, 3]).unwrap();
    let row = Tensor::from_slice(&[2.0f32, 2.0, -4.0], [3]).unwrap();
    let y = half_way().unwrap().execute([&rows, &row]).unwrap().remove(0);
    assert_eq!(y.as_slice::<f32>().unwrap(), [1.0, 2.0, 0.0, 1.5, 1.5, -1.5]);
}

#[test]
fn several_results_and_other_dtypes() {
    let x = [0.0f32, 1.0, -2.5];
    let results = run("guide_sin_cos", &[f32s(&x)], &[DType::F32, DType::F32], ());
    close(&results[0], &x.map(f32::sin));
    close(&results[1], &x.map(f32::cos));
    let q = &run("guide_quantize", &[f32s(&[0.5, 0.75, 99.0, -1e9])], &[DType::I8], [("scale", 0.5)])[0];
    assert_eq!(q.as_slice::<i8>().unwrap(), [1, 2, 127, -128]);
}

#[test]
fn kernels_call_kernel_functions() {
    let x = [0.0f32, 1.0, -1.0, 50.0, -50.0];
    let y = &run("guide_mish", &[f32s(&x)], &[DType::F32], ())[0];
    close(y, &x.map(|x| x * x.exp().ln_1p().tanh()));
}
