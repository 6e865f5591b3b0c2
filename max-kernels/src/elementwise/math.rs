//! Math functions of elements. What they compute, and how exactly, stands with the language's own functions.

use max::kernel::prelude::*;

/// e to the power of `x`.
#[kernel(op = "exp")]
pub fn exp<T: Float>(x: T) -> T {
    x.exp()
}

/// The natural logarithm.
#[kernel(op = "log")]
pub fn log<T: Float>(x: T) -> T {
    x.log()
}

/// The natural logarithm of `1 + x`, exact near 0.
#[kernel(op = "log1p")]
pub fn log1p<T: Float>(x: T) -> T {
    x.log1p()
}

/// The square root.
#[kernel(op = "sqrt")]
pub fn sqrt<T: Float>(x: T) -> T {
    x.sqrt()
}

/// `1 / sqrt(x)`
#[kernel(op = "rsqrt")]
pub fn rsqrt<T: Float>(x: T) -> T {
    x.rsqrt()
}

/// The hyperbolic tangent.
#[kernel(op = "tanh")]
pub fn tanh<T: Float>(x: T) -> T {
    x.tanh()
}

/// The error function.
#[kernel(op = "erf")]
pub fn erf<T: Float>(x: T) -> T {
    x.erf()
}

/// The largest integral value not above `x`.
#[kernel(op = "floor")]
pub fn floor<T: Float>(x: T) -> T {
    x.floor()
}

/// The smallest integral value not below `x`.
#[kernel(op = "ceil")]
pub fn ceil<T: Float>(x: T) -> T {
    x.ceil()
}

/// The integral part.
#[kernel(op = "trunc")]
pub fn trunc<T: Float>(x: T) -> T {
    x.trunc()
}

/// The nearest integral value, ties to even.
#[kernel(op = "round")]
pub fn round<T: Float>(x: T) -> T {
    x.round_ties_even()
}

/// The sine, in radians.
#[kernel(op = "sin")]
pub fn sin<T: Float>(x: T) -> T {
    x.sin()
}

/// The cosine, in radians.
#[kernel(op = "cos")]
pub fn cos<T: Float>(x: T) -> T {
    x.cos()
}

/// The inverse hyperbolic tangent.
#[kernel(op = "atanh")]
pub fn atanh<T: Float>(x: T) -> T {
    x.atanh()
}

/// The arc cosine.
#[kernel(op = "acos")]
pub fn acos<T: Float>(x: T) -> T {
    x.acos()
}

/// `x` to the power of `y`.
#[kernel(op = "pow")]
pub fn pow<T: Float>(x: T, y: T) -> T {
    x.powf(y)
}
