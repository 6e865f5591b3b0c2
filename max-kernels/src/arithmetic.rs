//! Arithmetic on elements.

use max::kernel::prelude::*;

/// The sum. Integers wrap.
#[kernel(op = "add")]
pub fn add<T: Number>(x: T, y: T) -> T {
    x + y
}

/// The difference. Integers wrap.
#[kernel(op = "sub")]
pub fn sub<T: Number>(x: T, y: T) -> T {
    x - y
}

/// The product. Integers wrap.
#[kernel(op = "mul")]
pub fn mul<T: Number>(x: T, y: T) -> T {
    x * y
}

/// The quotient. Integers round toward zero, and `x / 0` is 0.
#[kernel(op = "div")]
pub fn div<T: Number>(x: T, y: T) -> T {
    x / y
}

/// The remainder with the divisor's sign: `x - floor(x / y) * y`. An integer modulo 0 is 0.
#[kernel(op = "mod")]
pub fn modulo<T: Number>(x: T, y: T) -> T {
    let r = x % y;
    if r != 0 && (r < 0) != (y < 0) { r + y } else { r }
}

/// The smaller; NaN if either is NaN.
#[kernel(op = "min")]
pub fn minimum<T: Number>(x: T, y: T) -> T {
    x.min(y)
}

/// The larger; NaN if either is NaN.
#[kernel(op = "max")]
pub fn maximum<T: Number>(x: T, y: T) -> T {
    x.max(y)
}

/// The opposite. Integers wrap.
#[kernel(op = "negate")]
pub fn negate<T: Number>(x: T) -> T {
    // Times -1 rather than 0 - x: the opposite of 0.0 is -0.0.
    x * (T::ZERO - T::ONE)
}

/// The magnitude; the most negative integer stays itself.
#[kernel(op = "abs")]
pub fn abs<T: Number>(x: T) -> T {
    x.abs()
}

/// `x` where the condition holds, elsewhere `y`.
#[kernel(op = "where")]
pub fn choose<T: Any>(condition: bool, x: T, y: T) -> T {
    if condition { x } else { y }
}
