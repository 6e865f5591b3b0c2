//! Random numbers: functions of a seed and an index, and of nothing else.
//!
//! The generator is Philox4x32-10 (Salmon, Moraes, Dror and Shaw: Parallel random numbers: as easy as 1, 2, 3, SC 2011):
//! ten rounds that mix a counter under a key. The key is the seed, the counter the index, so that every index has 128
//! random bits of its own, whoever computes them. Kernels of one's own call [`uniform()`] and [`normal()`] with an index for each
//! number that they draw.

use max::kernel::prelude::*;

/// Four random words: of a counter under a key.
#[kernel]
pub fn philox(counter: (u32, u32, u32, u32), key: (u32, u32)) -> (u32, u32, u32, u32) {
    let (mut a, mut b, mut c, mut d) = counter;
    let (mut k, mut l) = key;
    for _ in 0..10 {
        let p = a as u64 * 0xd251_1f53;
        let q = c as u64 * 0xcd9e_8d57;
        a = (q >> 32) as u32 ^ b ^ k;
        b = q as u32;
        c = (p >> 32) as u32 ^ d ^ l;
        d = p as u32;
        // The golden ratio, and the root of 3 less 1.
        k += 0x9e37_79b9;
        l += 0xbb67_ae85;
    }
    (a, b, c, d)
}

/// Four random words: of an index under a seed.
#[kernel]
pub fn words(seed: i64, index: i64) -> (u32, u32, u32, u32) {
    philox((index as u32, (index >> 32) as u32, 0, 0), (seed as u32, (seed >> 32) as u32))
}

/// The upper 53 bits of two words.
#[kernel]
pub fn bits53(a: u32, b: u32) -> i64 {
    (a as i64) << 21 | (b >> 11) as i64
}

const SHARE_53: f64 = 1.0 / (1u64 << 53) as f64;
const SHARE_32: f64 = 1.0 / (1u64 << 32) as f64;
const SHARE_24: f64 = 1.0 / (1u64 << 24) as f64;

/// What two words are of their largest: from 0 up to 1, without that. 53 bits of them for `f64`, 24 for what computes in `f32`, so that
/// nothing is rounded.
#[kernel]
pub fn share<T: Float>(a: u32, b: u32) -> T {
    if T::EPSILON < 1e-10 { T::from_i64(bits53(a, b)) * SHARE_53 } else { T::from_i64((a >> 8) as i32) * SHARE_24 }
}

/// The number of an index under a seed, from 0 up to 1, without that, each as likely.
#[kernel]
pub fn uniform<T: Float>(seed: i64, index: i64) -> T {
    let (a, b, _, _) = words(seed, index);
    share::<T>(a, b)
}

/// The number of an index under a seed, of a normal distribution of mean 0 and standard deviation 1: `sqrt(-2 log u) cos(2 π v)` with `u`
/// in (0, 1] and `v` in [0, 1) (Box and Muller: A note on the generation of random normal deviates, 1958).
#[kernel]
pub fn normal<T: Float>(seed: i64, index: i64) -> T {
    let (a, b, c, d) = words(seed, index);
    // Of a word all its bits, since the smallest number is what bounds the results.
    let wide = T::EPSILON < 1e-10;
    let u = if wide { (T::from_i64(bits53(a, b)) + 1) * SHARE_53 } else { (T::from_i64(a) + 1) * SHARE_32 };
    let turn = share::<T>(c, d) * std::f64::consts::TAU;
    (-2 * u.log()).sqrt() * turn.cos()
}

/// The number of an index under a seed, of an exponential distribution of mean 1: `-log(1 - u)`, with a `u` of 64 bits. Like `u`, small
/// numbers have all digits of `T`: the smallest of many is as exact as any.
#[kernel]
pub fn exponential<T: Float>(seed: i64, index: i64) -> T {
    let (a, b, _, _) = words(seed, index);
    let last = T::ONE - if T::EPSILON < 1e-10 { SHARE_53 } else { SHARE_24 };
    let u = T::from_i64(a) * SHARE_32 + (T::from_i64(b) + 0.5) * (SHARE_32 * SHARE_32);
    -(-u.min(last)).log1p()
}

/// Numbers from `low` on, over a width, each as likely: `min(low + width * u, last)` with the [`uniform()`] number of each element's
/// index.
///
/// The sum is rounded, and may become the number that it should stay below: so `last`, the one before.
#[kernel(op = "random_uniform")]
pub fn random_uniform<T: Float>(
    y: Out<T, 1>,
    seed: In<i64, 1>,
    #[param] low: f64,
    #[param] width: f64,
    #[param] last: f64,
) {
    let block = program_id(0);
    let (seed, first) = (seed.at(0), block * 1024);
    let (low, width, last) = (T::from_f64(low), T::from_f64(width), T::from_f64(last));
    y.block::<1024>(block).write(lanes(1024).map(|i| (low + width * uniform::<T>(seed, first + i)).min(last)));
}

/// Normally distributed numbers: `mean + std * z` with the [`normal()`] number of each element's index.
#[kernel(op = "random_gaussian")]
pub fn random_gaussian<T: Float>(y: Out<T, 1>, seed: In<i64, 1>, #[param] mean: f64, #[param] std: f64) {
    let block = program_id(0);
    let (seed, first) = (seed.at(0), block * 1024);
    let (mean, std) = (T::from_f64(mean), T::from_f64(std));
    y.block::<1024>(block).write(lanes(1024).map(|i| mean + std * normal::<T>(seed, first + i)));
}
