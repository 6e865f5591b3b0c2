//! Activation functions.

use max::kernel::prelude::*;

/// The larger of 0 and `x`; NaN of NaN. By one comparison: `max` asks for NaN and for the signs of zeros, too.
#[kernel(op = "relu")]
pub fn relu<T: Number>(x: T) -> T {
    if x <= 0 { T::ZERO } else { x }
}

/// `1 / (1 + exp(-x))`
#[kernel(op = "sigmoid")]
pub fn sigmoid<T: Float>(x: T) -> T {
    x.sigmoid()
}

/// `x * sigmoid(x)` (Elfwing, Uchibe and Doya, 2017).
#[kernel(op = "silu")]
pub fn silu<T: Float>(x: T) -> T {
    x * x.sigmoid()
}

/// The Gaussian error linear unit `x * Φ(x)` (Hendrycks and Gimpel, 2016), with the error function.
#[kernel(op = "gelu")]
pub fn gelu<T: Float>(x: T) -> T {
    x * 0.5 * (1.0 + (x * std::f64::consts::FRAC_1_SQRT_2).erf())
}

const SQRT_2_OVER_PI: f64 = 0.797_884_560_802_865_4;

/// The same paper's approximation `0.5 x (1 + tanh(√(2/π) (x + 0.044715 x³)))`.
#[kernel(op = "gelu_tanh")]
pub fn gelu_tanh<T: Float>(x: T) -> T {
    0.5 * x * (1.0 + (SQRT_2_OVER_PI * (x + 0.044715 * x * x * x)).tanh())
}

/// The same paper's approximation `x sigmoid(1.702 x)`.
#[kernel(op = "gelu_quick")]
pub fn gelu_quick<T: Float>(x: T) -> T {
    x * (x * 1.702).sigmoid()
}
