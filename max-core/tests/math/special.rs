//! Functions of two arguments at zeros, infinities, NaN, integers and extremes follow C.

use max::dtype::DType;
use max::kernel::{Form, form};

use crate::accuracy::{SPECIAL, error, error_f32};
use crate::{compute, kernels};

const MORE: [f64; 16] = [
    2.0,
    -2.0,
    3.0,
    -3.0,
    0.25,
    -0.5,
    2.5,
    -7.0,
    16_777_217.0,
    -9_007_199_254_740_991.0,
    1e19,
    1e300,
    -1e300,
    1e-300,
    -1e-40,
    0.999_999,
];

/// All pairs of special values.
fn pairs() -> (Vec<f64>, Vec<f64>) {
    let values: Vec<f64> = SPECIAL.into_iter().chain(MORE).collect();
    values.iter().flat_map(|&x| values.iter().map(move |&y| (x, y))).unzip()
}

#[test]
fn special_coordinates_are_as_in_c() {
    type OfTwo = fn(f64, f64) -> f64;
    let functions: [(&str, OfTwo); 3] = [("hypot", f64::hypot), ("atan2", f64::atan2), ("copysign", f64::copysign)];
    let (x, y) = pairs();
    let (narrow_x, narrow_y): (Vec<f32>, Vec<f32>) = x.iter().zip(&y).map(|(&x, &y)| (x as f32, y as f32)).unzip();
    for (name, exact) in functions {
        for form in [Form::Reference, form().expect("the machine's own")] {
            let got = compute(kernels::get(name), DType::F64, form, &[&x, &y]);
            for ((&x, &y), got) in x.iter().zip(&y).zip(got) {
                assert!(error(got, exact(x, y), 52, 1023) <= 3.5, "{name}({x:e}, {y:e}) is {got:e}");
            }
            let got = compute(kernels::get(name), DType::F32, form, &[&narrow_x, &narrow_y]);
            for ((&x, &y), got) in narrow_x.iter().zip(&narrow_y).zip(got) {
                let want = exact(x as f64, y as f64);
                let want = if want.abs() < 1e-46 { 0f64.copysign(want) } else { want };
                assert!(error_f32(got, want) <= 2.5, "{name}({x:e}, {y:e}) is {got:e}, not {want:e}");
            }
        }
    }
}

#[test]
fn special_bases_and_exponents_are_as_in_c() {
    let (x, y) = pairs();
    let (narrow_x, narrow_y): (Vec<f32>, Vec<f32>) = x.iter().zip(&y).map(|(&x, &y)| (x as f32, y as f32)).unzip();
    for form in [Form::Reference, form().expect("the machine's own")] {
        let got = compute(kernels::get("powf"), DType::F64, form, &[&x, &y]);
        for ((&x, &y), got) in x.iter().zip(&y).zip(got) {
            assert!(error(got, x.powf(y), 52, 1023) <= 2.0, "{x:e}^{y:e} is {got:e}, not {:e}", x.powf(y));
        }
        let got = compute(kernels::get("powf"), DType::F32, form, &[&narrow_x, &narrow_y]);
        for ((&x, &y), got) in narrow_x.iter().zip(&narrow_y).zip(got) {
            let want = (x as f64).powf(y as f64);
            // What rounds to zero has a zero's sign.
            let want = if want.abs() < 1e-46 { 0f64.copysign(want) } else { want };
            assert!(error_f32(got, want) <= 1.0, "{x:e}^{y:e} is {got:e}, not {want:e}");
        }
    }
}
