//! Types and mistakes of ops that draw random numbers.

use super::*;
use crate::graph::ops::random::{gaussian, gaussian_like, normal, uniform, uniform_like};

#[track_caller]
fn fails(value: Result<TensorValue, GraphError>, text: &str) {
    let error = value.expect_err("an error");
    assert!(error.location().to_string().contains("tests/philox.rs"), "{error}");
    assert_eq!(error.kind().to_string(), text);
}

#[test]
fn draws_have_the_type_asked_for() {
    let (_, [seed, x]) = inputs([TensorType::new(DType::I64, (), DeviceRef::CPU), f32_type(("n", 3))]);
    for shape in [Shape::from(()), Shape::from((0, 4)), Shape::from(("n", 2, "n"))] {
        for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64] {
            let ty = TensorType::new(dtype, shape.clone(), DeviceRef::CPU);
            assert_eq!(uniform(&seed, &ty, 0.0..1.0).unwrap().ty(), &ty);
            assert_eq!(normal(&seed, &ty, 0.0, 1.0).unwrap().ty(), &ty);
        }
    }
    assert_eq!(uniform_like(&seed, &x, -1.0..1.0).unwrap().ty(), x.ty());
    assert_eq!(gaussian_like(&seed, &x, 0.0, 1.0).unwrap().ty(), x.ty());
}

#[test]
fn draws_of_no_seed_are_mistakes() {
    let i64_type = |shape: Shape, device| TensorType::new(DType::I64, shape, device);
    let (_, [seed, vector, int, other]) = inputs([
        i64_type(().into(), DeviceRef::CPU),
        i64_type((1,).into(), DeviceRef::CPU),
        TensorType::new(DType::I32, (), DeviceRef::CPU),
        i64_type(().into(), DeviceRef::gpu(0)),
    ]);
    let ty = f32_type((4,));
    fails(uniform(&vector, &ty, 0.0..1.0), "the seed has type int64[1], but must have type int64[]");
    fails(gaussian(&int, &ty, 0.0, 1.0), "the seed has type int32[], but must have type int64[]");
    fails(
        gaussian(&other, &ty, 0.0, 1.0),
        "the op runs on cpu:0, but the seed is on gpu:0; move it there with `transfer_to`, or give the op that device",
    );
    fails(uniform(3, &ty, 0.0..1.0), "no operand is a tensor; make one with `constant`");
    for dtype in [DType::I32, DType::Bool, DType::F8E4M3FN] {
        let allowed = "but the op takes float16, bfloat16, float32 and float64; cast it with `cast`";
        let text = format!("the result has dtype {dtype}, {allowed}");
        fails(uniform(&seed, TensorType::new(dtype, (4,), DeviceRef::CPU), 0.0..1.0), &text);
    }
    let error = uniform(&seed, f32_type(("rows",)), 0.0..1.0).unwrap_err().to_string();
    assert!(error.starts_with("`random.uniform` at ") && error.contains("`rows`"), "{error}");
    let error = gaussian(&seed, f32_type((-1,)), 0.0, 1.0).unwrap_err().to_string();
    assert!(error.starts_with("`random.gaussian` at ") && error.contains("dim 0 of [-1] is negative"), "{error}");
}

#[test]
fn ranges_that_hold_no_number_are_mistakes() {
    let (_, [seed]) = inputs([TensorType::new(DType::I64, (), DeviceRef::CPU)]);
    let ty = |dtype| TensorType::new(dtype, (4,), DeviceRef::CPU);
    for (dtype, range, shown) in [
        (DType::F32, 1.0..1.0, "1.0..1.0"),
        (DType::F32, 1.0..0.0, "1.0..0.0"),
        (DType::F32, f64::NAN..0.0, "NaN..0.0"),
        (DType::F32, 0.0..f64::NAN, "0.0..NaN"),
        (DType::F64, 0.0..f64::INFINITY, "0.0..inf"),
        (DType::F64, f64::NEG_INFINITY..0.0, "-inf..0.0"),
        // Of an infinite width, or numbers that the dtype does not have.
        (DType::F64, -1e308..1e308, "-1e308..1e308"),
        (DType::F32, -3e38..3e38, "-3e38..3e38"),
        (DType::F16, 0.0..1e5, "0.0..100000.0"),
        // Between two neighbours, and up to one.
        (DType::BF16, 1.001..1.002, "1.001..1.002"),
        (DType::F16, 1.0004..1.0005, "1.0004..1.0005"),
    ] {
        let text = format!("`range` is {shown}, but must be finite, of a finite width, and hold a number of {dtype}");
        fails(uniform(&seed, ty(dtype), range), &text);
    }
    for (dtype, range) in [(DType::F16, 1.0..1.0005), (DType::F16, -65504.0..65504.0), (DType::F64, -0.0..5e-324)] {
        assert!(uniform(&seed, ty(dtype), range.clone()).is_ok(), "{dtype} {range:?}");
    }
}

#[test]
fn deviations_that_are_not_positive_are_mistakes() {
    let (_, [seed]) = inputs([TensorType::new(DType::I64, (), DeviceRef::CPU)]);
    let ty = |dtype| TensorType::new(dtype, (4,), DeviceRef::CPU);
    for (dtype, std, shown) in [
        (DType::F32, 0.0, "0"),
        (DType::F64, -1.0, "-1"),
        (DType::F16, f64::NAN, "NaN"),
        (DType::BF16, f64::INFINITY, "inf"),
    ] {
        let text = format!("`std` is {shown}, but must be positive and finite in {dtype}");
        fails(gaussian(&seed, ty(dtype), 0.0, std), &text);
    }
    for (dtype, mean, shown) in [(DType::F64, f64::NAN, "NaN"), (DType::F16, 1e6, "1000000")] {
        let text = format!("`mean` is {shown}, but must be finite in {dtype}");
        fails(gaussian(&seed, ty(dtype), mean, 1.0), &text);
    }
}
