//! The code of `docs/guide/11-numerics.md`.

use max::kernels::random::uniform;
use max::prelude::*;

use crate::{f32s, run, run_as};

/// Whether x² - y² is the same with one rounding less.
#[kernel(op = "guide_exact", dtypes(T = [f32, f64]))]
fn exact<T: Float>(x: T, y: T) -> bool {
    x * x - y * y == x.mul_add(x, -(y * y))
}

/// A linear layer's weight, `[out, in]`, as training begins with it, and the layer with each result 0 with a probability of `p`.
fn layer(out: i64, inner: i64, p: f64) -> max::Result<Model> {
    let x = TensorType::new(DType::F32, ("rows", inner), DeviceRef::CPU);
    let weight = TensorType::new(DType::F32, (out, inner), DeviceRef::CPU);
    let seed = TensorType::new(DType::I64, (), DeviceRef::CPU);
    let graph = Graph::build("layer", [x, seed], |graph, x| {
        // Always the same: the seed is a constant.
        let first = ops::constant(graph, 0, DType::I64, DeviceRef::CPU)?;
        let weight = ops::random::gaussian(first, weight, 0.0, (1.0 / inner as f64).sqrt())?;
        let y = ops::matmul(&x[0], weight.t()?)?;
        // Another for each seed that the model is executed with.
        let keep = ops::greater_equal(ops::random::uniform_like(&x[1], &y, 0.0..1.0)?, p)?;
        ops::where_(keep, ops::div(y, 1.0 - p)?, 0.0)
    })?;
    Ok(InferenceSession::new().load(&graph)?)
}

fn steps(model: &Model, x: &Tensor, count: i64) -> max::Result<Vec<Tensor>> {
    (0..count).map(|seed| Ok(model.execute((x, &Tensor::scalar(seed)?))?.swap_remove(0))).collect()
}

/// Each element 0 with a probability of `p`, and else divided by `1 - p`.
#[kernel(op = "guide_dropout")]
fn dropout<T: Float>(y: Out<T, 2>, x: In<T, 2>, seed: In<i64, 1>, #[param] p: f64) {
    let row = program_id(0);
    let (seed, first) = (seed.at(0), row * x.dim(1));
    let scale = T::from_f64(1.0 / (1.0 - p));
    y.row(row).write(x.row(row).enumerate().map(|(v, j)| {
        let number = uniform::<f32>(seed, first + j);
        if number < (p as f32) { T::ZERO } else { v * scale }
    }));
}

#[test]
fn products_are_fused_only_on_request() {
    // x² is exact only before it is rounded: the fused form sees the difference.
    let x = 1.0 + f32::EPSILON;
    let fused = x.mul_add(x, -(x * x));
    assert_ne!(fused, 0.0);
    let y = &run("guide_exact", &[f32s(&[3.0, x]), f32s(&[2.0, x])], &[DType::Bool], ())[0];
    let fma = !matches!(max::kernel::form(), Ok(max::kernel::Form::Compiled(level)) if level.name() == "v2" || level.name() == "portable");
    assert_eq!(y.to_vec::<bool>().unwrap(), [true, !fma]);
}

#[test]
fn each_seed_drops_others() {
    let model = layer(300, 4, 0.25).unwrap();
    let x = f32s(&[1.0, -2.0, 0.5, 3.0]).view(DType::F32, Some(&[1, 4])).unwrap();
    let results = steps(&model, &x, 3).unwrap();
    let rows: Vec<Vec<f32>> = results.iter().map(|y| y.to_vec().unwrap()).collect();
    let (a, b) = (&rows[0], &rows[1]);
    assert!(a != b && *b != rows[2]);
    assert_eq!(&steps(&model, &x, 1).unwrap()[0].to_vec::<f32>().unwrap(), a);
    // What neither drops is the same.
    assert!(a.iter().zip(b).all(|(a, b)| a == b || *a == 0.0 || *b == 0.0));
    for row in rows {
        let dropped = row.iter().filter(|v| **v == 0.0).count();
        assert!((45..105).contains(&dropped), "{dropped} of 300");
    }
}

#[test]
fn a_kernel_draws_for_itself() {
    let (rows, columns) = (20, 50);
    let x = Tensor::from_vec(vec![3.0f32; rows * columns], [rows, columns]).unwrap();
    let seed = Tensor::from_slice(&[77i64], [1]).unwrap();
    let shape = [rows as i64, columns as i64];
    let y = &run_as("guide_dropout", &[x, seed], &[(DType::F32, &shape)], [("p", 0.5)])[0];
    let y = y.to_vec::<f32>().unwrap();
    // The same as an op's with that seed.
    let seed = TensorType::new(DType::I64, (), DeviceRef::CPU);
    let ty = TensorType::new(DType::F32, shape, DeviceRef::CPU);
    let graph = Graph::build("draw", [seed], |_, x| ops::random::uniform(&x[0], ty, 0.0..1.0)).unwrap();
    let model = InferenceSession::new().load(&graph).unwrap();
    let numbers = model.execute(&Tensor::scalar(77i64).unwrap()).unwrap()[0].to_vec::<f32>().unwrap();
    let expected: Vec<f32> = numbers.iter().map(|u| if *u < 0.5 { 0.0 } else { 6.0 }).collect();
    assert_eq!(y, expected);
}
