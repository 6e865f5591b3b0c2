//! Kernels that the tests load at run time.

use max::prelude::*;

max::extension!();

/// `x * scale + y`
#[kernel(op = "extension_axpy")]
pub fn axpy<T: Number>(x: T, y: T, #[param(default = 2)] scale: i64) -> T {
    x * (scale as T) + y
}

/// Each row divided by its largest element.
#[kernel(op = "extension_peak")]
pub fn peak<T: Float>(y: Out<T, 2>, x: In<T, 2>) {
    let row = program_id(0);
    let x = x.row(row);
    let m = x.max();
    y.row(row).write(x.map(|v| v / m));
}
