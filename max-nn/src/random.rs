//! Random tensors: the same numbers for a seed on every device and any number of threads.
//!
//! The generator is Philox: a tensor's numbers are a function of a key and of an element's position. Every draw takes the next
//! key, which advances one atomic counter of the process; [`set_seed`] starts it anew. A draw is an op like others: it is computed
//! when it is read, fused with what reads it, and compiles nothing new, since its key is an input.
//!
//! ```
//! # extern crate max_nn as max;
//! # max_kernels::link();
//! use max::random;
//!
//! random::set_seed(7);
//! let x = random::normal([2, 3], 0.0, 1.0)?;
//! random::set_seed(7);
//! assert_eq!(x.to_vec::<f32>()?, random::normal([2, 3], 0.0, 1.0)?.to_vec::<f32>()?);
//! # Ok::<(), max::Error>(())
//! ```

use std::ops::Range;
use std::sync::atomic::{AtomicI64, Ordering};

use max_core::driver;
use max_core::graph::{Shape, TensorType, ops};

use crate::Result;
use crate::tensor::{Like, Operand, Tensor, apply, defaults, device};

/// The key of the next draw.
static NEXT: AtomicI64 = AtomicI64::new(first_key(0));

/// The first key of a seed: far from those of others, so that draws of near seeds have nothing in common (splitmix64, of Steele, Lea
/// and Flood, Fast splittable pseudorandom number generators, 2014).
const fn first_key(seed: u64) -> i64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z ^ (z >> 31)) as i64
}

/// Starts anew: after the same seed, the same draws give the same numbers. A program begins as after `set_seed(0)`.
///
/// The order of draws on several threads is theirs; for numbers that do not depend on it, draw on one.
pub fn set_seed(seed: u64) {
    NEXT.store(first_key(seed), Ordering::Relaxed);
}

/// The key of a draw, on the device that draws.
#[track_caller]
fn key(ty: &TensorType) -> Result<Operand> {
    let key = driver::Tensor::scalar(NEXT.fetch_add(1, Ordering::Relaxed))?;
    Ok(if ty.device.is_cpu() { key } else { key.to(&device(ty.device)?)? }.into())
}

/// A tensor of the default dtype, on the default device.
fn default_type(shape: impl Into<Shape>) -> TensorType {
    let (dtype, device) = defaults(None, None);
    TensorType::new(dtype, shape, device)
}

/// Normally distributed numbers, of the default dtype, on the default device.
///
/// # Errors
/// When the default dtype is none of `float16`, `bfloat16`, `float32` and `float64`; when `mean` is not finite, or `std` not
/// positive and finite; when a dim is symbolic.
#[track_caller]
pub fn gaussian(shape: impl Into<Shape>, mean: f64, std: f64) -> Result<Tensor> {
    gaussian_like(default_type(shape), mean, std)
}

/// [`gaussian`], of the dtype, the shape and on the device of `like`.
///
/// # Errors
/// As [`gaussian`].
#[track_caller]
pub fn gaussian_like(like: impl Like, mean: f64, std: f64) -> Result<Tensor> {
    let ty = like.tensor_type().clone();
    apply("random.gaussian", &mut [key(&ty)?], (ty, mean, std), |x, (ty, mean, std)| {
        ops::random::gaussian(&x[0], ty, *mean, *std)
    })
}

pub use {gaussian as normal, gaussian_like as normal_like};

/// Numbers from `range.start` up to `range.end`, without that, each as likely; of the default dtype, on the default device.
///
/// # Errors
/// When the default dtype is none of `float16`, `bfloat16`, `float32` and `float64`; when the range is empty or not finite; when a
/// dim is symbolic.
#[track_caller]
pub fn uniform(shape: impl Into<Shape>, range: Range<f64>) -> Result<Tensor> {
    uniform_like(default_type(shape), range)
}

/// [`uniform`], of the dtype, the shape and on the device of `like`.
///
/// # Errors
/// As [`uniform`].
#[track_caller]
pub fn uniform_like(like: impl Like, range: Range<f64>) -> Result<Tensor> {
    let ty = like.tensor_type().clone();
    apply("random.uniform", &mut [key(&ty)?], (ty, range.start, range.end), |x, (ty, start, end)| {
        ops::random::uniform(&x[0], ty, *start..*end)
    })
}
