//! Comparison and logic.

use max::kernel::prelude::*;

/// Whether both are equal; NaN equals nothing.
#[kernel(op = "equal")]
pub fn equal<T: Scalar>(x: T, y: T) -> bool {
    x == y
}

/// Whether both differ.
#[kernel(op = "not_equal")]
pub fn not_equal<T: Scalar>(x: T, y: T) -> bool {
    x != y
}

/// Whether `x` is greater.
#[kernel(op = "greater")]
pub fn greater<T: Number>(x: T, y: T) -> bool {
    x > y
}

/// Whether `x` is greater or equal.
#[kernel(op = "greater_equal")]
pub fn greater_equal<T: Number>(x: T, y: T) -> bool {
    x >= y
}

/// Whether both hold.
#[kernel(op = "logical_and")]
pub fn logical_and(x: bool, y: bool) -> bool {
    x && y
}

/// Whether either holds.
#[kernel(op = "logical_or")]
pub fn logical_or(x: bool, y: bool) -> bool {
    x || y
}

/// Whether exactly one holds.
#[kernel(op = "logical_xor")]
pub fn logical_xor(x: bool, y: bool) -> bool {
    x ^ y
}

/// The opposite.
#[kernel(op = "logical_not")]
pub fn logical_not(x: bool) -> bool {
    !x
}

/// Whether this is NaN.
#[kernel(op = "is_nan")]
pub fn is_nan<T: Float>(x: T) -> bool {
    x.is_nan()
}

/// Whether this is an infinity of either sign.
#[kernel(op = "is_inf")]
pub fn is_inf<T: Float>(x: T) -> bool {
    x.is_infinite()
}
