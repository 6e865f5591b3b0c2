//! The error of each function against the same function in a wider format.
//!
//! `f32` is compared at a stride over all bit patterns, so every exponent, both signs, denormals, infinities and NaN
//! are among the arguments; `MAX_MATH_STRIDE=1` compares all of them, which takes minutes a function.

use rayon::prelude::*;

use super::levels::{self, Function};

/// A function, its value in `f64`, and the errors allowed with and without fused multiply-add, in ulp.
struct Case {
    function: Function,
    exact: fn(f64) -> f64,
    ulp: f64,
    ulp_unfused: f64,
}

const fn case(function: Function, exact: fn(f64) -> f64, ulp: f64, ulp_unfused: f64) -> Case {
    Case { function, exact, ulp, ulp_unfused }
}

const CASES: &[Case] = &[
    case(levels::exp(), f64::exp, 1.05, 1.05),
    case(levels::exp2(), f64::exp2, 1.0, 1.3),
    case(levels::exp_m1(), f64::exp_m1, 1.8, 1.85),
    case(levels::log(), f64::ln, 0.9, 0.95),
    case(levels::log2(), f64::log2, 1.85, 1.85),
    case(levels::log10(), f64::log10, 2.0, 2.0),
    case(levels::log1p(), f64::ln_1p, 1.5, 1.5),
    case(levels::sin(), f64::sin, 1.6, 1.6),
    case(levels::cos(), f64::cos, 1.6, 1.6),
    case(levels::tan(), f64::tan, 3.75, 3.75),
    case(levels::asin(), f64::asin, 2.4, 2.4),
    case(levels::acos(), f64::acos, 1.15, 1.15),
    case(levels::atan(), f64::atan, 2.15, 2.2),
    case(levels::sinh(), f64::sinh, 2.2, 2.2),
    case(levels::cosh(), f64::cosh, 1.5, 1.45),
    case(levels::atanh(), libm::atanh, 2.15, 2.15),
    case(levels::recip(), f64::recip, 0.501, 0.501),
    case(levels::power_3(), |x| x.powf(3.0), 0.9, 1.15),
    case(levels::power_minus_1_25(), |x| x.powf(-1.25), 0.9, 1.15),
    case(levels::power_0_078125(), |x| x.powf(0.078125), 0.9, 1.15),
    case(levels::powers_of_0_3125(), |x| 0.3125f64.powf(x), 0.9, 1.15),
    case(levels::powers_of_1_0009765625(), |x| 1.0009765625f64.powf(x), 0.9, 1.15),
    case(levels::powers_of_minus_7(), |x| (-7f64).powf(x), 0.9, 1.15),
    case(levels::tanh(), f64::tanh, 2.55, 2.55),
    case(levels::sigmoid(), |x| if x < 0.0 { x.exp() / (1.0 + x.exp()) } else { 1.0 / (1.0 + (-x).exp()) }, 2.45, 2.45),
    case(levels::erf(), libm::erf, 1.35, 1.6),
    case(levels::rsqrt(), |x| 1.0 / x.sqrt(), 1.5, 1.5),
];

/// What a stride may miss.
pub const SPECIAL: [f64; 9] = [0.0, -0.0, 1.0, -1.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN, 0.5, 5e-324];

/// The error of `got` in steps of a format at `want`: its bits of fraction and largest exponent.
pub fn error(got: f64, want: f64, fraction: i32, largest: i32) -> f64 {
    if want.is_nan() || got.is_nan() {
        return if want.is_nan() && got.is_nan() { 0.0 } else { f64::INFINITY };
    }
    if want == 0.0 || want.is_infinite() {
        return if got.to_bits() == want.to_bits() { 0.0 } else { f64::INFINITY };
    }
    // The step at what overflows is that of the largest numbers; infinity stands for the next after them.
    let unit = |v: f64| ((v.to_bits() >> 52 & 0x7ff) as i32 - 1023).clamp(1 - largest, largest);
    let exponent = unit(want);
    let steps = |v: f64| {
        if v.is_infinite() { (1u64 << (fraction + 1)) as f64 * v.signum() } else { steps(v, exponent - fraction) }
    };
    let over = (1u64 << (fraction + 1)) as f64;
    let bounded = |v: f64| if exponent == largest { v.clamp(-over, over) } else { v };
    (bounded(steps(got)) - bounded(steps(want))).abs()
}

/// `v / 2^exponent`, exact where the quotient is not denormal.
fn steps(v: f64, exponent: i32) -> f64 {
    v * 2f64.powi(-exponent / 2) * 2f64.powi(-exponent - -exponent / 2)
}

pub fn error_f32(got: f32, want: f64) -> f64 {
    error(got as f64, if want.abs() > 3.5e38 { f64::INFINITY.copysign(want) } else { want }, 23, 127)
}

/// The largest error, and where.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Worst {
    ulp: f64,
    x: f64,
}

impl Worst {
    fn add(&mut self, ulp: f64, x: f64) {
        if ulp > self.ulp {
            *self = Worst { ulp, x };
        }
    }
}

/// The largest errors over the arguments `first`, `first + stride`, …, a level each.
fn sweep(case: &Case, stride: u64) -> Vec<Worst> {
    const CHUNK: u64 = 1 << 14;
    let entries = (case.function.f32)();
    let none = || vec![Worst { ulp: 0.0, x: 0.0 }; entries.len()];
    let count = (1u64 << 32).div_ceil(stride);
    let chunk = |chunk: u64| {
        let mut x: Vec<f32> =
            (chunk * CHUNK..count.min((chunk + 1) * CHUNK)).map(|i| f32::from_bits((i * stride) as u32)).collect();
        if chunk == 0 {
            x.extend(SPECIAL.map(|x| x as f32));
        }
        let want: Vec<f64> = x.iter().map(|&x| (case.exact)(x as f64)).collect();
        let mut y = vec![0.0; x.len()];
        let mut worst = none();
        for ((_, f), worst) in entries.iter().zip(&mut worst) {
            f(&x, &mut y);
            for ((&x, &y), &want) in x.iter().zip(&y).zip(&want) {
                worst.add(error_f32(y, want), x as f64);
            }
        }
        worst
    };
    let larger =
        |a: Vec<Worst>, b: Vec<Worst>| a.into_iter().zip(b).map(|(a, b)| if b.ulp > a.ulp { b } else { a }).collect();
    (0..count.div_ceil(CHUNK)).into_par_iter().map(chunk).reduce(none, larger)
}

fn bound(case: &Case, level: &str) -> f64 {
    let fused = matches!(level, "v3" | "v4") || level == "portable" && cfg!(target_arch = "aarch64");
    if fused { case.ulp } else { case.ulp_unfused }
}

#[test]
fn f32_stays_within_the_stated_error() {
    let stride = std::env::var("MAX_MATH_STRIDE").ok().and_then(|s| s.parse().ok()).unwrap_or(10_007);
    let only = std::env::var("MAX_MATH_ONLY").ok();
    for case in CASES.iter().filter(|case| only.as_ref().is_none_or(|only| only == case.function.name)) {
        for ((level, _), worst) in (case.function.f32)().iter().zip(sweep(case, stride)) {
            let (name, bits) = (case.function.name, (worst.x as f32).to_bits());
            println!("{name} f32 {level}: {:.3} ulp at {:e} ({bits:#x})", worst.ulp, worst.x);
            assert!(worst.ulp <= bound(case, level), "{name} at {level}: {worst:?}");
        }
    }
}

/// Numbers of all exponents and numbers that are likely, both signs, and the special ones.
fn arguments_f64() -> Vec<f64> {
    let mut state = 1u64;
    let mut random = || {
        // A linear congruential generator (Knuth's MMIX).
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state ^ state >> 32
    };
    let mut x = SPECIAL.to_vec();
    x.extend([f64::MAX, f64::MIN, f64::MIN_POSITIVE]);
    for _ in 0..100_000 {
        x.push(f64::from_bits(random()));
        let unit = (random() >> 11) as f64 / (1u64 << 53) as f64;
        x.extend([unit, -unit, (unit - 0.5) * 40.0, (unit - 0.5) * 1500.0, 1.0 + (unit - 0.5) * 1e-3]);
    }
    x
}

/// The comparison is with `f64` functions that have errors of their own, of up to one step.
#[test]
fn f64_stays_within_the_stated_error_and_one() {
    let x = arguments_f64();
    let mut y = vec![0.0; x.len()];
    for case in CASES {
        for (level, f) in (case.function.f64)() {
            f(&x, &mut y);
            let mut worst = Worst { ulp: 0.0, x: 0.0 };
            for (&x, &y) in x.iter().zip(&y) {
                worst.add(error(y, (case.exact)(x), 52, 1023), x);
            }
            println!("{} f64 {level}: {:.3} ulp at {:e}", case.function.name, worst.ulp, worst.x);
            assert!(worst.ulp <= bound(case, level) + 1.0, "{} at {level}: {worst:?}", case.function.name);
        }
    }
}

#[test]
fn levels_with_fused_multiply_add_and_the_reference_form_give_the_same_bits() {
    let x: Vec<f32> = (0..20_000u32).map(|i| f32::from_bits(i.wrapping_mul(214_751))).collect();
    let wide: Vec<f64> = arguments_f64().into_iter().step_by(31).collect();
    for case in CASES {
        let name = case.function.name;
        let want: Vec<f32> = x.iter().map(|&x| (case.function.reference_f32)(x)).collect();
        let want_wide: Vec<f64> = wide.iter().map(|&x| (case.function.reference_f64)(x)).collect();
        let fused = |level: &str| bound(case, level) == case.ulp && level != "portable" && level != "v2";
        for (level, f) in (case.function.f32)().into_iter().filter(|(level, _)| fused(level)) {
            let mut y = vec![0.0; x.len()];
            f(&x, &mut y);
            let differ =
                (0..x.len()).find(|&i| y[i].to_bits() != want[i].to_bits() && !(y[i].is_nan() && want[i].is_nan()));
            assert_eq!(differ.map(|i| (x[i], y[i], want[i])), None, "{name} at {level}");
        }
        for (level, f) in (case.function.f64)().into_iter().filter(|(level, _)| fused(level)) {
            let mut y = vec![0.0; wide.len()];
            f(&wide, &mut y);
            let differ = (0..wide.len())
                .find(|&i| y[i].to_bits() != want_wide[i].to_bits() && !(y[i].is_nan() && want_wide[i].is_nan()));
            assert_eq!(differ.map(|i| (wide[i], y[i], want_wide[i])), None, "{name} at {level}");
        }
    }
}
