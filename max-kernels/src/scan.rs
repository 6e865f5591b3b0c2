//! Prefix sums of rows.

use max::kernel::prelude::*;

/// The sums of the elements up to each one: without that one if `exclusive`, from the end if `reverse`.
#[kernel(op = "cumsum")]
pub fn cumsum<T: Number>(
    y: Out<T, 2>,
    x: In<T, 2>,
    #[param(default = false)] exclusive: bool,
    #[param(default = false)] reverse: bool,
) {
    let row = program_id(0);
    let x = x.row(row);
    let n = x.dim(0);
    let shift = if exclusive { 1 } else { 0 };
    if reverse {
        y.row(row).reverse().write_scan(x.reverse().slice(-shift, n), 0, |a, b| a + b);
    } else {
        y.row(row).write_scan(x.slice(-shift, n), 0, |a, b| a + b);
    }
}
