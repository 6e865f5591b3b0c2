//! Prefix sums of rows.

use max::kernel::prelude::*;

/// The sums of the elements up to each one: without that one if `exclusive`, from the end if `reverse`.
#[kernel(op = "cumsum", dtypes(T = [f16, bf16, f32, f64, i32, i64, u64]))]
pub fn cumsum<T: Number>(
    y: Out<T, 2>,
    x: In<T, 2>,
    #[param(default = false)] exclusive: bool,
    #[param(default = false)] reverse: bool,
) {
    let row = program_id(0);
    let x = x.row(row);
    if reverse {
        y.row(row).reverse().write_any_scan(x.reverse(), exclusive, 0, |a, b| a + b);
    } else {
        y.row(row).write_any_scan(x, exclusive, 0, |a, b| a + b);
    }
}
