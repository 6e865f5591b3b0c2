//! Copies.

use max::kernel::prelude::*;

/// The same element: what materializes a view.
#[kernel(op = "copy")]
pub fn copy<T: Scalar>(x: T) -> T {
    x
}
