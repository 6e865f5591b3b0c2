//! Random numbers: functions of a seed and an element's index, and of nothing else.
//!
//! The generator is Philox4x32-10 (Salmon, Moraes, Dror and Shaw: Parallel random numbers: as easy as 1, 2, 3, SC 2011):
//! ten rounds that mix a counter under a key. The key is the seed, the counter the index, so that every element has a
//! block of 128 random bits of its own, whoever computes it.

use max::kernel::prelude::*;

/// Four random words: of the block at a counter, under a key.
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

/// The words of an element.
#[kernel]
pub fn words(seed: i64, index: i64) -> (u32, u32, u32, u32) {
    philox((index as u32, (index >> 32) as u32, 0, 0), (seed as u32, (seed >> 32) as u32))
}

/// The upper 53 bits of two words.
#[kernel]
pub fn bits53(a: u32, b: u32) -> i64 {
    (a as i64) << 21 | (b >> 11) as i64
}

/// A multiple of the dtype's step below 1, from 0 up to 1 without it: 53 bits for `f64`, 24 for what computes in `f32`.
#[kernel]
pub fn share<T: Float>(a: u32, b: u32) -> T {
    if T::EPSILON < 1e-10 { T::from_i64(bits53(a, b)) * SHARE_53 } else { T::from_i64((a >> 8) as i32) * SHARE_24 }
}

/// 2^-53, 2^-32, 2^-24.
const SHARE_53: f64 = 1.0 / (1u64 << 53) as f64;
const SHARE_32: f64 = 1.0 / (1u64 << 32) as f64;
const SHARE_24: f64 = 1.0 / (1u64 << 24) as f64;

/// Numbers from `low` on, over a width, to `last` at most, each as likely: `min(low + width * u, last)` with `u` of 24 bits, of 53 for `f64`.
///
/// A sum that is rounded may reach what it should stay below: so `last`, the largest number of the dtype that it may be.
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
    y.block::<1024>(block).write(lanes(1024).map(|i| {
        let (a, b, _, _) = words(seed, first + i);
        (low + width * share::<T>(a, b)).min(last)
    }));
}

/// Normally distributed numbers, `mean + std * sqrt(-2 log u) * cos(2 π v)` with `u` in (0, 1] and `v` in [0, 1) (Box and Muller: A
/// note on the generation of random normal deviates, 1958).
#[kernel(op = "random_gaussian")]
pub fn random_gaussian<T: Float>(y: Out<T, 1>, seed: In<i64, 1>, #[param] mean: f64, #[param] std: f64) {
    let block = program_id(0);
    let (seed, first) = (seed.at(0), block * 1024);
    let (mean, std) = (T::from_f64(mean), T::from_f64(std));
    y.block::<1024>(block).write(lanes(1024).map(|i| {
        let (a, b, c, d) = words(seed, first + i);
        // All 32 bits, since the smallest number is what bounds the largest result.
        let u = if T::EPSILON < 1e-10 {
            (T::from_i64(bits53(a, b)) + 1) * SHARE_53
        } else {
            (T::from_i64(a) + 1) * SHARE_32
        };
        let turn = share::<T>(c, d) * std::f64::consts::TAU;
        mean + std * ((-2 * u.log()).sqrt() * turn.cos())
    }));
}
