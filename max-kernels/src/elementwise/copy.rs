//! Copies.

use max::kernel::prelude::*;

/// The same element: what materializes a view.
#[kernel(op = "copy")]
pub fn copy<T: Any>(x: T) -> T {
    x
}
