//! Kernels that make random numbers.

use max::dtype::DType;
use max::kernel::ParamArg;

use crate::case::{Case, Problem};
use crate::number::{Num, Values, Want};

/// Philox4x32 of ten rounds, as the paper has it: in each, two words are multiplied, and the halves of the products change places.
pub fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for round in 0..10 {
        if round > 0 {
            key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
        }
        let [p, q] = [(0xD251_1F53u64, counter[0]), (0xCD9E_8D57, counter[2])].map(|(m, word)| m * u64::from(word));
        let high = |product: u64| (product >> 32) as u32;
        counter = [high(q) ^ counter[1] ^ key[0], q as u32, high(p) ^ counter[3] ^ key[1], p as u32];
    }
    counter
}

/// The words of each element.
fn words(p: &Problem) -> impl Iterator<Item = [u32; 4]> {
    let seed = p.values[1][0].int() as u64;
    let halves = |v: u64| [v as u32, (v >> 32) as u32];
    (0..p.dims(0)[0] as u64).map(move |i| philox([i as u32, (i >> 32) as u32, 0, 0], halves(seed)))
}

/// The upper 53 bits of two words.
fn bits(a: u32, b: u32) -> f64 {
    ((u64::from(a) << 32 | u64::from(b)) >> 11) as f64
}

/// A number from 0 up to 1 of 24 bits, of 53 for `f64`.
fn share(p: &Problem, a: u32, b: u32) -> f64 {
    if p.compute() == DType::F64 { bits(a, b) * 0.5f64.powi(53) } else { f64::from(a >> 8) * 0.5f64.powi(24) }
}

/// Exact: no engine may differ by a bit.
fn uniform(p: &Problem) -> Vec<Vec<Want>> {
    let [low, width, last] = ["low", "width", "last"].map(|name| p.number(name));
    let number = |[a, b, ..]: [u32; 4]| {
        let u = share(p, a, b);
        if p.compute() == DType::F64 {
            (low + width * u).min(last)
        } else {
            f64::from((low as f32 + width as f32 * u as f32).min(last as f32))
        }
    };
    vec![words(p).map(|words| Want::exact(Num::Float(number(words)))).collect()]
}

fn gaussian(p: &Problem) -> Vec<Vec<Want>> {
    let [mean, std] = ["mean", "std"].map(|name| p.number(name));
    let number = |[a, b, c, d]: [u32; 4]| {
        let u = match p.compute() {
            DType::F64 => (bits(a, b) + 1.0) * 0.5f64.powi(53),
            _ => f64::from((a as f32 + 1.0) * 0.5f32.powi(32)),
        };
        let length = std * (-2.0 * u.ln()).sqrt();
        let value = mean + length * (share(p, c, d) * std::f64::consts::TAU).cos();
        // The angle is rounded, and it is up to 2 π.
        Want { value: Num::Float(value), scale: mean.abs() + length * std::f64::consts::TAU }
    };
    vec![words(p).map(number).collect()]
}

pub fn cases() -> Vec<Case> {
    let shapes = |s: &[i64]| vec![vec![s[0] * s[1]], vec![1]];
    vec![
        Case::program("random_uniform", shapes, uniform).values(&[Values::Any]).params(|rng| {
            let [low, width, last] = rng.one_of(&[[0.0, 1.0, 1.0], [-1.5, 4.0, 2.25], [100.0, 0.125, 100.0625]]);
            [("low", low), ("width", width), ("last", last)].map(|(name, v)| (name, ParamArg::Float(v))).to_vec()
        }),
        Case::program("random_gaussian", shapes, gaussian).values(&[Values::Any]).ulps(3.0).params(|rng| {
            let [mean, std] = rng.one_of(&[[0.0, 1.0], [-3.0, 0.5], [1e-3, 40.0]]);
            vec![("mean", ParamArg::Float(mean)), ("std", ParamArg::Float(std))]
        }),
    ]
}
