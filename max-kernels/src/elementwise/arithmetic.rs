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

/// `x` to the power of `y`, by the squares of `x`. Integers wrap; what is left of a fraction is 0, but for powers of 1 and -1.
#[kernel(op = "pow_integer")]
pub fn pow_integer<T: Int>(x: T, y: T) -> T {
    let mut power = T::ONE;
    let mut square = x;
    let mut left = y;
    while left > 0 {
        power = if left & 1 != 0 { power * square } else { power };
        square = square * square;
        left = left >> 1;
    }
    // Below 0 nothing was multiplied, and a fraction of another number than 1 and -1 has no whole part.
    let fraction = if x == 1 || x + T::ONE == 0 { if y & 1 != 0 { x } else { T::ONE } } else { T::ZERO };
    if y < 0 { fraction } else { power }
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
