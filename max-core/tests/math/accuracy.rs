//! The error of each function against the same function in a wider format.
//!
//! `f32` is compared at a stride over all bit patterns, so every exponent, both signs, denormals, infinities and NaN
//! are among the arguments; `MAX_MATH_STRIDE=1` compares all of them, which takes minutes a function.

use max::dtype::DType;
use max::kernel::abi::Level;
use max::kernel::{Form, KernelLibrary};
use rayon::prelude::*;

use crate::{compute, kernels};

/// A function, its value in `f64`, and the errors allowed with and without fused multiply-add, in ulp.
struct Case {
    name: &'static str,
    /// The argument that stays as it is, of functions of two: the first or the second.
    fixed: Option<(usize, f64)>,
    exact: fn(f64) -> f64,
    ulp: f64,
    ulp_unfused: f64,
}

const fn case(name: &'static str, exact: fn(f64) -> f64, ulp: f64, ulp_unfused: f64) -> Case {
    Case { name, fixed: None, exact, ulp, ulp_unfused }
}

const fn power(base: Option<f64>, exponent: f64, exact: fn(f64) -> f64) -> Case {
    let fixed = match base {
        Some(base) => (0, base),
        None => (1, exponent),
    };
    Case { name: "powf", fixed: Some(fixed), exact, ulp: 0.9, ulp_unfused: 1.15 }
}

/// A function of a fixed first (0) or second argument (1).
const fn of_two(name: &'static str, fixed: (usize, f64), exact: fn(f64) -> f64, ulp: f64) -> Case {
    Case { name, fixed: Some(fixed), exact, ulp, ulp_unfused: ulp }
}

const CASES: &[Case] = &[
    case("exp", f64::exp, 1.05, 1.05),
    case("exp2", f64::exp2, 1.0, 1.3),
    case("exp_m1", f64::exp_m1, 1.8, 1.85),
    case("log", f64::ln, 0.9, 0.95),
    case("log2", f64::log2, 1.85, 1.85),
    case("log10", f64::log10, 2.0, 2.0),
    case("log1p", f64::ln_1p, 1.5, 1.5),
    case("sin", f64::sin, 1.6, 1.6),
    case("cos", f64::cos, 1.6, 1.6),
    case("tan", f64::tan, 3.75, 3.75),
    case("asin", f64::asin, 2.4, 2.4),
    case("acos", f64::acos, 1.15, 1.15),
    case("atan", f64::atan, 2.15, 2.2),
    case("sinh", f64::sinh, 2.2, 2.2),
    case("cosh", f64::cosh, 1.5, 1.45),
    case("atanh", libm::atanh, 2.15, 2.15),
    case("recip", f64::recip, 0.501, 0.501),
    case("tanh", f64::tanh, 2.55, 2.55),
    case("sigmoid", |x| if x < 0.0 { x.exp() / (1.0 + x.exp()) } else { 1.0 / (1.0 + (-x).exp()) }, 2.45, 2.45),
    case("erf", libm::erf, 1.35, 1.6),
    case("rsqrt", |x| 1.0 / x.sqrt(), 1.5, 1.5),
    power(None, 3.0, |x| x.powf(3.0)),
    power(None, -1.25, |x| x.powf(-1.25)),
    power(None, 0.078125, |x| x.powf(0.078125)),
    power(Some(0.3125), 0.0, |x| 0.3125f64.powf(x)),
    power(Some(1.0009765625), 0.0, |x| 1.0009765625f64.powf(x)),
    power(Some(-7.0), 0.0, |x| (-7f64).powf(x)),
    case("round", f64::round, 0.0, 0.0),
    case("fract", f64::fract, 0.0, 0.0),
    case("sign", |x| if x == 0.0 { x } else { x.signum() }, 0.0, 0.0),
    case("asinh", libm::asinh, 1.85, 1.85),
    case("acosh", |x| if x < 1.0 { f64::NAN } else { libm::acosh(x) }, 2.0, 2.0),
    case("cube", |x| x * x * x, 1.5, 1.5),
    of_two("copysign", (0, -3.0), |y| 3f64.copysign(y), 0.0),
    of_two("copysign", (1, -3.0), |x| x.copysign(-3.0), 0.0),
    of_two("hypot", (0, 0.75), |y| y.hypot(0.75), 2.05),
    of_two("hypot", (1, 1e-30), |x| x.hypot(1e-30), 2.05),
    of_two("atan2", (0, 0.75), |x| 0.75f64.atan2(x), 2.5),
    of_two("atan2", (0, -1e30), |x| (-1e30f64).atan2(x), 2.5),
    of_two("atan2", (1, 0.75), |y| y.atan2(0.75), 2.5),
    of_two("atan2", (1, -0.75), |y| y.atan2(-0.75), 2.5),
];

impl Case {
    fn compute<T: bytemuck::Pod>(&self, dtype: DType, form: Form, x: &[T], convert: fn(f64) -> T) -> Vec<T> {
        let other = self.fixed.map(|(at, value)| (at, vec![convert(value); x.len()]));
        let args = match &other {
            None => vec![x],
            Some((0, base)) => vec![base, x],
            Some((_, exponent)) => vec![x, exponent],
        };
        compute(kernels::get(self.name), dtype, form, &args)
    }

    fn f32(&self, form: Form, x: &[f32]) -> Vec<f32> {
        self.compute(DType::F32, form, x, |x| x as f32)
    }

    fn f64(&self, form: Form, x: &[f64]) -> Vec<f64> {
        self.compute(DType::F64, form, x, |x| x)
    }

    fn bound(&self, level: Level) -> f64 {
        if fused(level) { self.ulp } else { self.ulp_unfused }
    }
}

fn fused(level: Level) -> bool {
    level >= Level::V3 || cfg!(target_arch = "aarch64")
}

/// The levels that kernels of a dtype are compiled for, of those that this machine has.
fn levels(dtype: DType) -> impl Iterator<Item = Level> {
    let lowest = match dtype {
        _ if cfg!(not(target_arch = "x86_64")) => Level::Portable,
        DType::F32 => Level::V2,
        _ => Level::V3,
    };
    KernelLibrary::linked().levels().into_iter().filter(move |level| *level >= lowest)
}

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

/// The largest error at a level over the arguments 0, `stride`, … as bits.
fn sweep(case: &Case, level: Level, stride: u64) -> Worst {
    const CHUNK: u64 = 1 << 14;
    let count = (1u64 << 32).div_ceil(stride);
    let chunk = |chunk: u64| {
        let indices = chunk * CHUNK..count.min((chunk + 1) * CHUNK);
        let mut x: Vec<f32> = indices.map(|i| f32::from_bits((i * stride) as u32)).collect();
        if chunk == 0 {
            x.extend(SPECIAL.map(|x| x as f32));
        }
        let mut worst = Worst { ulp: 0.0, x: 0.0 };
        for (&x, y) in x.iter().zip(case.f32(Form::Compiled(level), &x)) {
            worst.add(error_f32(y, (case.exact)(x as f64)), x as f64);
        }
        worst
    };
    let larger = |a: Worst, b: Worst| if b.ulp > a.ulp { b } else { a };
    (0..count.div_ceil(CHUNK)).into_par_iter().map(chunk).reduce(|| Worst { ulp: 0.0, x: 0.0 }, larger)
}

#[test]
fn f32_stays_within_the_stated_error() {
    let stride = std::env::var("MAX_MATH_STRIDE").ok().and_then(|s| s.parse().ok()).unwrap_or(10_007);
    for case in CASES {
        for level in levels(DType::F32) {
            let worst = sweep(case, level, stride);
            let (name, level_name, bits) = (case.name, level.name(), (worst.x as f32).to_bits());
            println!("{name} f32 {level_name}: {:.3} ulp at {:e} ({bits:#x})", worst.ulp, worst.x);
            assert!(worst.ulp <= case.bound(level), "{name} at {level_name}: {worst:?}");
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
    for case in CASES {
        for level in levels(DType::F64) {
            let mut worst = Worst { ulp: 0.0, x: 0.0 };
            for (&x, y) in x.iter().zip(case.f64(Form::Compiled(level), &x)) {
                worst.add(error(y, (case.exact)(x), 52, 1023), x);
            }
            assert!(worst.ulp <= case.bound(level) + 1.0, "{} at {}: {worst:?}", case.name, level.name());
        }
    }
}

#[test]
fn levels_with_fused_multiply_add_and_the_reference_form_give_the_same_bits() {
    let x: Vec<f32> = (0..20_000u32).map(|i| f32::from_bits(i.wrapping_mul(214_751))).collect();
    let wide: Vec<f64> = arguments_f64().into_iter().step_by(31).collect();
    for case in CASES {
        let want = case.f32(Form::Reference, &x);
        for level in levels(DType::F32).filter(|level| fused(*level)) {
            let got = case.f32(Form::Compiled(level), &x);
            let same = |i: &usize| got[*i].to_bits() == want[*i].to_bits() || got[*i].is_nan() && want[*i].is_nan();
            let differ = (0..x.len()).find(|i| !same(i)).map(|i| (x[i], got[i], want[i]));
            assert_eq!(differ, None, "{} at {}", case.name, level.name());
        }
        let want = case.f64(Form::Reference, &wide);
        for level in levels(DType::F64).filter(|level| fused(*level)) {
            let got = case.f64(Form::Compiled(level), &wide);
            let same = |i: &usize| got[*i].to_bits() == want[*i].to_bits() || got[*i].is_nan() && want[*i].is_nan();
            let differ = (0..wide.len()).find(|i| !same(i)).map(|i| (wide[i], got[i], want[i]));
            assert_eq!(differ, None, "{} at {}", case.name, level.name());
        }
    }
}
