//! The code of `docs/guide/07-dtypes.md`.

use max::prelude::*;

use crate::{close, f32s, run};

/// The mean of two elements. Integers are halved before they are added, so that nothing wraps.
#[kernel(op = "guide_mean_int")]
fn mean_int<T: Int>(x: T, y: T) -> T {
    (x >> 1) + (y >> 1) + (x & y & 1)
}

/// The larger by magnitude.
#[kernel(op = "guide_max_abs", dtypes(T = [f32, f64]))]
fn max_abs<T: Float>(x: T, y: T) -> T {
    if x.abs() < y.abs() { y } else { x }
}

/// Whether each element can be converted to `U` and back without a loss.
#[kernel(op = "guide_fits", dtypes(T = [i64], U = [i8, u8, i16]))]
fn fits<T: Int, U: Int>(x: T, #[param(default = 0)] slack: i64) -> bool {
    let there_and_back = (x as U) as T;
    (there_and_back - x).abs() <= (slack as T)
}

/// The polynomial 1 + x + … + x^N, by Horner's rule.
#[kernel]
fn geometric<T: Float, const N: usize>(x: T) -> T {
    let mut sum = T::ONE;
    for _ in 0..N {
        sum = sum * x + 1;
    }
    sum
}

/// 1 + x + x² + x³.
#[kernel(op = "guide_cubic")]
fn cubic<T: Float>(x: T) -> T {
    geometric::<T, 3>(x)
}

#[test]
fn bounds_decide_what_is_compiled() {
    let x = Tensor::from_slice(&[255u8, 1, 7], [3]).unwrap();
    let y = &run("guide_mean_int", &[x.clone(), x], &[DType::U8], ())[0];
    assert_eq!(y.as_slice::<u8>().unwrap(), [255, 1, 7]);

    close(&run("guide_max_abs", &[f32s(&[1.0, -3.0]), f32s(&[-2.0, 2.0])], &[DType::F32], ())[0], &[-2.0, -3.0]);
    let halves = Tensor::from_slice(&[f16::ONE], [1]).unwrap();
    let ty = TensorType::new(DType::F16, (1,), DeviceRef::CPU);
    let graph =
        Graph::build("halves", [&ty, &ty], |_, inputs| ops::custom("guide_max_abs", DeviceRef::CPU, inputs, &ty, ()));
    assert!(graph.unwrap_err().to_string().contains("guide_max_abs"), "{halves}");
}

#[test]
fn a_dtype_can_be_a_parameter() {
    let x = Tensor::from_slice(&[100i64, 200, -1, 40_000], [4]).unwrap();
    let fits = |dtype: DType| {
        let y = run("guide_fits", std::slice::from_ref(&x), &[DType::Bool], [("U", dtype)]).remove(0);
        y.to_vec::<bool>().unwrap()
    };
    assert_eq!(fits(DType::I8), [true, false, true, false]);
    assert_eq!(fits(DType::U8), [true, true, false, false]);
    assert_eq!(fits(DType::I16), [true, true, true, false]);
}

#[test]
fn functions_are_generic_over_numbers() {
    close(&run("guide_cubic", &[f32s(&[2.0])], &[DType::F32], ())[0], &[15.0]);
}
