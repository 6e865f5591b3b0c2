//! Elementwise kernels.

use max::dtype::DType;

use crate::case::{Case, Problem};
use crate::number::{Num, Want};

/// A function of floats and one of integers.
fn number<const N: usize>(kernel: &'static str, float: fn([f64; N]) -> f64, int: fn([i128; N]) -> i128) -> Case {
    Case::map(kernel, move |_, x| {
        Want::exact(match x[0] {
            Num::Float(_) => Num::Float(float(std::array::from_fn(|i| x[i].float()))),
            Num::Int(_) => Num::Int(int(std::array::from_fn(|i| x[i].int()))),
        })
    })
}

/// A function of floats whose result is exact.
fn float(kernel: &'static str, f: fn(f64) -> f64) -> Case {
    Case::map(kernel, move |_, x| Want::exact(Num::Float(f(x[0].float()))))
}

/// A function of floats with an error relative to its result.
fn math(kernel: &'static str, ulps: f64, f: fn(f64) -> f64) -> Case {
    scaled(kernel, ulps, f, |_, _| 0.0)
}

/// A function of floats with an error relative to the larger of its result and `scale` of the smallest normal number
/// and the argument.
fn scaled(kernel: &'static str, ulps: f64, f: fn(f64) -> f64, scale: fn(f64, f64) -> f64) -> Case {
    Case::map(kernel, move |p, x| {
        let x = x[0].float();
        Want { value: Num::Float(f(x)), scale: scale(p.tiny(), x) }
    })
    .ulps(ulps)
}

/// A comparison.
fn compare(kernel: &'static str, float: fn(f64, f64) -> bool, int: fn(i128, i128) -> bool) -> Case {
    Case::map(kernel, move |_, x| {
        let holds = match x[0] {
            Num::Float(_) => float(x[0].float(), x[1].float()),
            Num::Int(_) => int(x[0].int(), x[1].int()),
        };
        Want::exact(holds.into())
    })
}

/// A function of truth values.
fn logic(kernel: &'static str, f: fn(bool, bool) -> bool) -> Case {
    let truth = |v: Option<&Num>| v.is_some_and(|v| v.int() != 0);
    Case::map(kernel, move |_, x| Want::exact(f(truth(x.first()), truth(x.get(1))).into()))
}

/// IEEE 754-2019 minimum.
fn minimum(x: f64, y: f64) -> f64 {
    match () {
        () if x.is_nan() || y.is_nan() => f64::NAN,
        () if x < y || x == y && x.is_sign_negative() => x,
        () => y,
    }
}

fn maximum(x: f64, y: f64) -> f64 {
    -minimum(-x, -y)
}

fn quiet(x: f64) -> f64 {
    if x.is_nan() { f64::NAN } else { x }
}

fn sigmoid(x: f64) -> f64 {
    if x < 0.0 { x.exp() / (1.0 + x.exp()) } else { 1.0 / (1.0 + (-x).exp()) }
}

fn floor_mod(x: f64, y: f64) -> f64 {
    let r = x % y;
    if r != 0.0 && (r < 0.0) != (y < 0.0) { r + y } else { r }
}

fn floor_mod_int(x: i128, y: i128) -> i128 {
    match y {
        0 => 0,
        _ => (x % y + y) % y,
    }
}

/// By the definition: so many factors, of which 2^128 is a multiple of every dtype's modulus.
fn integer_power(x: i128, y: i128) -> i128 {
    match (x, y) {
        (1, _) => 1,
        (-1, y) => 1 - 2 * (y & 1),
        (_, ..0) => 0,
        (x, 0..1000) => (0..y).fold(1i128, |power, _| power.wrapping_mul(x)),
        // An even number has lost all of its bits by then; the powers of an odd one repeat.
        (x, _) if x & 1 == 0 => 0,
        (x, y) => (0..127)
            .filter(|bit| y >> bit & 1 != 0)
            .fold(1i128, |power, bit| power.wrapping_mul((0..bit).fold(x, |square, _| square.wrapping_mul(square)))),
    }
}

/// What Rust's `as` gives, by way of `f32` to dtypes that kernels compute in `f32`.
fn cast(p: &Problem, x: Num) -> Num {
    let to = p.dtypes[1];
    match x {
        Num::Float(v) if to == DType::Bool => (v != 0.0).into(),
        Num::Float(v) if to.is_float() => Num::Float(if to == DType::F64 { v } else { f64::from(v as f32) }),
        Num::Float(v) => {
            let bits = 8 * to.size_in_bytes() as u32;
            let (lo, hi) = match to.is_signed_integral() {
                true => (-(1i128 << (bits - 1)), (1i128 << (bits - 1)) - 1),
                false => (0, (1i128 << bits) - 1),
            };
            Num::Int((v as i128).clamp(lo, hi))
        }
        Num::Int(v) if to == DType::F64 => Num::Float(v as f64),
        Num::Int(v) if to.is_float() => Num::Float(f64::from(v as f32)),
        Num::Int(v) => Num::Int(v),
    }
}

pub fn cases() -> Vec<Case> {
    vec![
        // Arithmetic.
        number("add", |[x, y]| x + y, |[x, y]| x + y),
        number("sub", |[x, y]| x - y, |[x, y]| x - y),
        number("mul", |[x, y]| x * y, |[x, y]| x.wrapping_mul(y)),
        number("div", |[x, y]| x / y, |[x, y]| x.checked_div(y).unwrap_or(0)),
        number("mod", |[x, y]| floor_mod(x, y), |[x, y]| floor_mod_int(x, y)),
        number("pow_integer", |_: [f64; 2]| f64::NAN, |[x, y]| integer_power(x, y)),
        number("min", |[x, y]| minimum(x, y), |[x, y]| x.min(y)),
        number("max", |[x, y]| maximum(x, y), |[x, y]| x.max(y)),
        number("negate", |[x]| -x, |[x]| -x),
        number("abs", |[x]| x.abs(), |[x]| x.abs()),
        Case::map("where", |_, x| Want::exact(if x[0].int() != 0 { x[1] } else { x[2] })),
        Case::map("copy", |_, x| Want::exact(x[0])),
        Case::map("cast", |p, x| Want::exact(cast(p, x[0]))),
        // Comparison and logic.
        compare("equal", |x, y| x == y, |x, y| x == y),
        compare("not_equal", |x, y| x != y, |x, y| x != y),
        compare("greater", |x, y| x > y, |x, y| x > y),
        compare("greater_equal", |x, y| x >= y, |x, y| x >= y),
        logic("logical_and", |x, y| x && y),
        logic("logical_or", |x, y| x || y),
        logic("logical_xor", |x, y| x != y),
        logic("logical_not", |x, _| !x),
        Case::map("is_nan", |_, x| Want::exact(x[0].is_nan().into())),
        Case::map("is_inf", |_, x| Want::exact(x[0].float().is_infinite().into())),
        // Math. One ulp more than the language states, since the reference has an error of its own for f64.
        math("exp", 5.0, f64::exp),
        math("log", 5.0, f64::ln),
        math("log1p", 5.0, f64::ln_1p),
        float("sqrt", f64::sqrt),
        math("rsqrt", 2.0, |x| 1.0 / x.sqrt()),
        math("sin", 5.0, f64::sin),
        math("cos", 5.0, f64::cos),
        math("acos", 5.0, f64::acos),
        math("tanh", 5.0, f64::tanh),
        math("atanh", 5.0, libm::atanh),
        math("erf", 5.0, libm::erf),
        // A signaling NaN to the power 0 is 1, as a quiet one.
        Case::map("pow", |_, x| Want { value: Num::Float(quiet(x[0].float()).powf(quiet(x[1].float()))), scale: 0.0 })
            .ulps(5.0),
        float("floor", f64::floor),
        float("ceil", f64::ceil),
        float("trunc", f64::trunc),
        float("round", f64::round_ties_even),
        // Activations. Those that add 1 to something near -1 have an error relative to the argument; those that
        // multiply a denormal result have that of its step.
        number("relu", |[x]| maximum(x, 0.0), |[x]| x.max(0)),
        math("sigmoid", 5.0, sigmoid),
        scaled("silu", 6.0, |x| x * sigmoid(x), |tiny, x| x.abs() * tiny),
        scaled("gelu", 6.0, |x| x * 0.5 * (1.0 + libm::erf(x * std::f64::consts::FRAC_1_SQRT_2)), |_, x| x.abs()),
        scaled(
            "gelu_tanh",
            6.0,
            |x| 0.5 * x * (1.0 + (0.797_884_560_802_865_4 * (x + 0.044715 * x * x * x)).tanh()),
            |_, x| x.abs(),
        ),
        // The exponent's rounding error is as many ulps of the result as the exponent is large.
        scaled(
            "gelu_quick",
            8.0,
            |x| x * sigmoid(1.702 * x),
            |tiny, x| (x * sigmoid(1.702 * x)).abs() * (1.0 + x.abs()) + x.abs() * (1.0 + x.abs()) * tiny,
        ),
    ]
}
