//! A kernel for each function.

use max::kernel::{Kernel, abi::KernelDef, prelude::*};

#[kernel(op = "t_exp", dtypes(T = [f32, f64]))]
fn exp<T: Float>(x: T) -> T {
    x.exp()
}

#[kernel(op = "t_exp2", dtypes(T = [f32, f64]))]
fn exp2<T: Float>(x: T) -> T {
    x.exp2()
}

#[kernel(op = "t_exp_m1", dtypes(T = [f32, f64]))]
fn exp_m1<T: Float>(x: T) -> T {
    x.exp_m1()
}

#[kernel(op = "t_log", dtypes(T = [f32, f64]))]
fn log<T: Float>(x: T) -> T {
    x.log()
}

#[kernel(op = "t_log2", dtypes(T = [f32, f64]))]
fn log2<T: Float>(x: T) -> T {
    x.log2()
}

#[kernel(op = "t_log10", dtypes(T = [f32, f64]))]
fn log10<T: Float>(x: T) -> T {
    x.log10()
}

#[kernel(op = "t_log1p", dtypes(T = [f32, f64]))]
fn log1p<T: Float>(x: T) -> T {
    x.log1p()
}

#[kernel(op = "t_sin", dtypes(T = [f32, f64]))]
fn sin<T: Float>(x: T) -> T {
    x.sin()
}

#[kernel(op = "t_cos", dtypes(T = [f32, f64]))]
fn cos<T: Float>(x: T) -> T {
    x.cos()
}

#[kernel(op = "t_tan", dtypes(T = [f32, f64]))]
fn tan<T: Float>(x: T) -> T {
    x.tan()
}

#[kernel(op = "t_asin", dtypes(T = [f32, f64]))]
fn asin<T: Float>(x: T) -> T {
    x.asin()
}

#[kernel(op = "t_acos", dtypes(T = [f32, f64]))]
fn acos<T: Float>(x: T) -> T {
    x.acos()
}

#[kernel(op = "t_atan", dtypes(T = [f32, f64]))]
fn atan<T: Float>(x: T) -> T {
    x.atan()
}

#[kernel(op = "t_sinh", dtypes(T = [f32, f64]))]
fn sinh<T: Float>(x: T) -> T {
    x.sinh()
}

#[kernel(op = "t_cosh", dtypes(T = [f32, f64]))]
fn cosh<T: Float>(x: T) -> T {
    x.cosh()
}

#[kernel(op = "t_tanh", dtypes(T = [f32, f64]))]
fn tanh<T: Float>(x: T) -> T {
    x.tanh()
}

#[kernel(op = "t_atanh", dtypes(T = [f32, f64]))]
fn atanh<T: Float>(x: T) -> T {
    x.atanh()
}

#[kernel(op = "t_sigmoid", dtypes(T = [f32, f64]))]
fn sigmoid<T: Float>(x: T) -> T {
    x.sigmoid()
}

#[kernel(op = "t_erf", dtypes(T = [f32, f64]))]
fn erf<T: Float>(x: T) -> T {
    x.erf()
}

#[kernel(op = "t_rsqrt", dtypes(T = [f32, f64]))]
fn rsqrt<T: Float>(x: T) -> T {
    x.rsqrt()
}

#[kernel(op = "t_recip", dtypes(T = [f32, f64]))]
fn recip<T: Float>(x: T) -> T {
    x.recip()
}

#[kernel(op = "t_powf", dtypes(T = [f32, f64]))]
fn powf<T: Float>(x: T, y: T) -> T {
    x.powf(y)
}

#[kernel(op = "t_round", dtypes(T = [f32, f64]))]
fn round<T: Float>(x: T) -> T {
    x.round()
}

#[kernel(op = "t_fract", dtypes(T = [f32, f64]))]
fn fract<T: Float>(x: T) -> T {
    x.fract()
}

#[kernel(op = "t_asinh", dtypes(T = [f32, f64]))]
fn asinh<T: Float>(x: T) -> T {
    x.asinh()
}

#[kernel(op = "t_acosh", dtypes(T = [f32, f64]))]
fn acosh<T: Float>(x: T) -> T {
    x.acosh()
}

#[kernel(op = "t_sign", dtypes(T = [f32, f64]))]
fn sign<T: Float>(x: T) -> T {
    x.sign()
}

#[kernel(op = "t_cube", dtypes(T = [f32, f64]))]
fn cube<T: Float>(x: T) -> T {
    x.powi(3)
}

#[kernel(op = "t_inverse_square", dtypes(T = [f32, f64]))]
fn inverse_square<T: Float>(x: T) -> T {
    x.powi(-2)
}

#[kernel(op = "t_copysign", dtypes(T = [f32, f64]))]
fn copysign<T: Float>(x: T, y: T) -> T {
    x.copysign(y)
}

#[kernel(op = "t_hypot", dtypes(T = [f32, f64]))]
fn hypot<T: Float>(x: T, y: T) -> T {
    x.hypot(y)
}

#[kernel(op = "t_atan2", dtypes(T = [f32, f64]))]
fn atan2<T: Float>(x: T, y: T) -> T {
    x.atan2(y)
}

/// All of them, by name.
pub fn all() -> Vec<(&'static str, &'static KernelDef)> {
    vec![
        ("exp", exp::def()),
        ("exp2", exp2::def()),
        ("exp_m1", exp_m1::def()),
        ("log", log::def()),
        ("log2", log2::def()),
        ("log10", log10::def()),
        ("log1p", log1p::def()),
        ("sin", sin::def()),
        ("cos", cos::def()),
        ("tan", tan::def()),
        ("asin", asin::def()),
        ("acos", acos::def()),
        ("atan", atan::def()),
        ("sinh", sinh::def()),
        ("cosh", cosh::def()),
        ("tanh", tanh::def()),
        ("atanh", atanh::def()),
        ("sigmoid", sigmoid::def()),
        ("erf", erf::def()),
        ("rsqrt", rsqrt::def()),
        ("recip", recip::def()),
        ("powf", powf::def()),
        ("round", round::def()),
        ("fract", fract::def()),
        ("asinh", asinh::def()),
        ("acosh", acosh::def()),
        ("sign", sign::def()),
        ("cube", cube::def()),
        ("inverse_square", inverse_square::def()),
        ("copysign", copysign::def()),
        ("hypot", hypot::def()),
        ("atan2", atan2::def()),
    ]
}

/// The one of that name.
pub fn get(name: &str) -> &'static KernelDef {
    all().into_iter().find(|(n, _)| *n == name).unwrap_or_else(|| panic!("no kernel {name}")).1
}
