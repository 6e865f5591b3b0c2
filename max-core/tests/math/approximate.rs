//! `exp2_as`: the function that is as exact as a dtype needs, and whose bits may differ on a GPU.

use max::dtype::DType;
use max::kernel::{Form, Kernel, KernelLibrary, prelude::*};

use crate::compute;
use crate::targets::simulate;

#[kernel(op = "t_exp2_as_bf16", dtypes(T = [f32, f64]))]
fn for_halves<T: Float>(x: T) -> T {
    x.exp2_as::<bf16>()
}

#[kernel(op = "t_exp2_as_f16", dtypes(T = [f32]))]
fn for_f16<T: Float>(x: T) -> T {
    x.exp2_as::<f16>()
}

#[kernel(op = "t_exp2_as_itself", dtypes(T = [f32, f64]))]
fn for_itself<T: Float>(x: T) -> T {
    x.exp2_as::<T>()
}

#[kernel(op = "t_exp2_exact", dtypes(T = [f32, f64]))]
fn exact<T: Float>(x: T) -> T {
    x.exp2()
}

fn forms() -> impl Iterator<Item = Form> {
    KernelLibrary::linked().levels().into_iter().map(Form::Compiled).chain([Form::Reference])
}

/// Every 4001st bit pattern, and what is special.
fn arguments() -> Vec<f32> {
    let special = [
        0.0,
        -0.0,
        1.0,
        -126.0,
        -127.0,
        -151.0,
        127.0,
        128.0,
        200.0,
        -1e30,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
    ];
    let all = (0..u32::MAX / 4001).map(|i| f32::from_bits(i * 4001));
    special.into_iter().chain(all).collect()
}

fn check(name: &str, x: &[f32], y: &[f32]) {
    for (&x, &y) in x.iter().zip(y) {
        let want = f64::from(x).exp2();
        let right = if x.is_nan() {
            y.is_nan()
        } else if x == 0.0 {
            y == 1.0
        } else if want < f64::from(f32::MIN_POSITIVE) {
            (0.0..=f64::from(f32::MIN_POSITIVE)).contains(&f64::from(y))
        } else if want >= 2f64.powi(128) {
            y == f32::INFINITY
        } else if want > 2f64.powf(127.5) && y == f32::INFINITY {
            // The one factor of the last half of an octave is already infinite.
            true
        } else {
            (f64::from(y) / want - 1.0).abs() <= 2f64.powi(-22)
        };
        assert!(right, "{name}: 2^{x} = {y}, not {want}");
    }
}

#[test]
fn halves_have_the_digits_that_they_need() {
    let x = arguments();
    for def in [for_halves::def(), for_f16::def()] {
        for form in forms() {
            check(&format!("{form:?}"), &x, &compute(def, DType::F32, form, &[&x]));
        }
    }
    let some: Vec<f32> = x.iter().step_by(499).chain(&x[..13]).copied().collect();
    check("PTX", &some, &simulate(for_halves::def(), DType::F32, &[&some]));
}

#[test]
fn wider_floats_have_all_digits() {
    let x = arguments();
    let wide: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
    for form in forms() {
        let bits = |def| compute::<f32>(def, DType::F32, form, &[&x]).iter().map(|y| y.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(for_itself::def()), bits(exact::def()), "{form:?}");
        let bits =
            |def| compute::<f64>(def, DType::F64, form, &[&wide]).iter().map(|y| y.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(for_halves::def()), bits(exact::def()), "{form:?}, computed in f64");
    }
}
