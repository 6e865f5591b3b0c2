//! Conversion of elements.

use max::kernel::prelude::*;

/// Converts to another dtype: floats to integers truncate and saturate, NaN becomes 0, integers wrap; to `bool`:
/// whether it is not 0; to a small float: rounded to nearest, ties to even.
#[kernel(op = "cast")]
pub fn cast<T: Scalar, U: Scalar>(x: T) -> U {
    x as U
}
