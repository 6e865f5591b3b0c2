//! A library of ops: kernels in a crate of their own, which any program can use by linking it.

use max::prelude::*;

/// The larger of 0 and `x`, squared: the activation of Primer (So et al., 2021).
#[kernel(op = "relu_squared")]
pub fn relu_squared<T: Number>(x: T) -> T {
    let y = x.max(0);
    y * y
}
