//! The code of `docs/guide/03-rows.md`.

use max::prelude::*;

use crate::{close, run_as};

/// `x / sqrt(mean(x²) + epsilon)` of each row.
#[kernel(op = "guide_normalize")]
fn normalize<T: Float>(y: Out<T, 2>, x: In<T, 2>, #[param] epsilon: f64) {
    let row = program_id(0);
    let x = x.row(row);
    let mean = x.map(|v| v * v).sum() / (x.dim(0) as T);
    let scale = (mean + (epsilon as T)).rsqrt();
    y.row(row).write(x.map(|v| v * scale));
}

/// The mean of each row, and how far its elements are from it on average.
#[kernel(op = "guide_moments")]
fn moments<T: Float>(mean: Out<T, 2>, deviation: Out<T, 2>, x: In<T, 2>) {
    let row = program_id(0);
    let x = x.row(row);
    let n = x.dim(0) as T;
    let (sum, squares) =
        x.fold_with((0.0, 0.0), |(s, q), v| (s + v, q + v * v)).reduce(|(s, q), (t, r)| (s + t, q + r));
    let m = sum / n;
    mean.row(row).set(0, m);
    deviation.row(row).set(0, (squares / n - m * m).max(0).sqrt());
}

/// The elements of blocks of 32 bytes, each behind its scale of 16 bits.
#[kernel(op = "guide_scaled_bytes")]
fn scaled_bytes(y: Out<f32, 2>, x: In<u8, 2>) {
    let row = program_id(0);
    let x = x.row(row);
    let blocks = x.dim(0) / 34;
    let scales = x.numbers::<f16>(0, [(blocks, 34)]).repeat_each::<32>();
    let bytes = x.segments::<32>(2, [(blocks, 34)]);
    y.row(row).write(bytes.zip(scales).map(|(v, scale)| (v as i8) as f32 * scale as f32));
}

/// The largest element so far, in each row.
#[kernel(op = "guide_running_max")]
fn running_max<T: Number>(y: Out<T, 2>, x: In<T, 2>) {
    let row = program_id(0);
    y.row(row).write_scan(x.row(row), T::LOWEST, |a, b| a.max(b));
}

fn rows(x: &[f32]) -> Tensor {
    Tensor::from_slice(x, [2, x.len() / 2]).unwrap()
}

/// Each column divided by its largest element.
#[kernel(op = "guide_column_shares")]
fn column_shares<T: Float>(y: Out<T, 2>, x: In<T, 2>) {
    let part = program_id(0);
    let x = x.columns::<64>(part);
    let largest = x.max().materialize();
    y.columns::<64>(part).write(x.zip(largest).map(|(v, m)| v / m));
}

/// Each element's distance from its row's mean, in standard deviations.
#[kernel(op = "guide_standardize")]
fn standardize<T: Float>(y: Out<T, 2>, x: In<T, 2>, #[param(default = 1e-5)] epsilon: f64) {
    let row = program_id(0);
    let x = x.row(row);
    let (mean, variance) = x.mean_variance();
    let scale = (variance + epsilon as T).rsqrt();
    y.row(row).write(x.map(|v| (v - mean) * scale));
}

/// The sum of each 128 elements.
#[kernel(op = "guide_block_sums")]
fn block_sums<T: Number>(y: Out<T, 1>, x: In<T, 1>) {
    let block = program_id(0);
    y.set(block, x.block::<128>(block).sum());
}

fn sums_of_blocks() -> max::Result<Model> {
    let ty = |n: Dim| TensorType::new(DType::F32, [n], DeviceRef::CPU);
    let graph = Graph::build("sums", [ty(Dim::from("n"))], |_, inputs| {
        // One sum for each block that is begun: `+ - * /` of dims and numbers, where `/` rounds down.
        let blocks = (Dim::from("n") + 127) / 128;
        ops::custom("guide_block_sums", DeviceRef::CPU, inputs, ty(blocks), ())
    })?;
    Ok(InferenceSession::new().load(&graph)?)
}

#[test]
fn results_have_dims_that_follow_from_others() {
    let model = sums_of_blocks().unwrap();
    for (n, sums) in [(300, &[128.0f32, 128.0, 44.0][..]), (128, &[128.0]), (1, &[1.0])] {
        let y = model.execute(&Tensor::full(1.0f32, [n]).unwrap()).unwrap().remove(0);
        assert_eq!(y.as_slice::<f32>().unwrap(), sums);
    }
}

#[test]
fn columns_are_divided_by_their_largest() {
    let x = Tensor::from_slice(&[1.0f32, 8.0, 6.0, 2.0, 4.0, 12.0], [2, 3]).unwrap();
    let y = run_as("guide_column_shares", &[x], &[(DType::F32, &[2, 3])], ()).remove(0);
    close(&y, &[0.5, 1.0, 0.5, 1.0, 0.5, 1.0]);
}

#[test]
fn rows_are_standardized() {
    let x = rows(&[1.0, 3.0, -4.0, -4.0]);
    let y = &run_as("guide_standardize", &[x], &[(DType::F32, &[2, 2])], [("epsilon", 1e-30)])[0];
    close(y, &[-1.0, 1.0, 0.0, 0.0]);
}

#[test]
fn rows_are_normalized() {
    let y = &run_as("guide_normalize", &[rows(&[3.0, 4.0, 0.0, 0.0])], &[(DType::F32, &[2, 2])], [("epsilon", 0.0)])[0];
    let scale = 12.5f32.sqrt();
    let y = y.as_slice::<f32>().unwrap();
    assert!((y[0] - 3.0 / scale).abs() < 1e-6 && (y[1] - 4.0 / scale).abs() < 1e-6, "{y:?}");
    assert!(y[2].is_nan(), "0 / 0 is NaN: {y:?}");
}

#[test]
fn a_tuple_is_reduced_in_one_pass() {
    let x: Vec<f32> = (0..2002).map(|i| (i % 7) as f32).collect();
    let shape: &[i64] = &[2, 1];
    let results = run_as("guide_moments", &[rows(&x)], &[(DType::F32, shape), (DType::F32, shape)], ());
    close(&results[0], &[3.0, 3.0]);
    close(&results[1], &[2.0, 2.0]);
}

#[test]
fn scans_carry_along() {
    let y = &run_as("guide_running_max", &[rows(&[1.0, 3.0, 2.0, -1.0, -2.0, 0.0])], &[(DType::F32, &[2, 3])], ())[0];
    assert_eq!(y.as_slice::<f32>().unwrap(), [1.0, 3.0, 3.0, -1.0, -1.0, 0.0]);
}

#[test]
fn bytes_are_scaled_by_numbers_among_them() {
    let mut bytes = Vec::new();
    for (scale, first) in [(0x3800_u16, -16_i8), (0xc000, 1)] {
        bytes.extend(scale.to_le_bytes());
        bytes.extend((0..32).map(|i| (first + i) as u8));
    }
    let x = Tensor::from_slice(&bytes, [1, 68]).unwrap();
    let y = &run_as("guide_scaled_bytes", &[x], &[(DType::F32, &[1, 64])], ())[0];
    let first = (0..32).map(|i| (i - 16) as f32 * 0.5);
    let expected: Vec<f32> = first.chain((0..32).map(|i| (i + 1) as f32 * -2.0)).collect();
    close(y, &expected);
}
