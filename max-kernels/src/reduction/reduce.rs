//! Reductions of rows. Half types accumulate in `f32`; sums and products of integers wrap.

use max::kernel::prelude::*;

/// The sum of each row.
#[kernel(op = "sum", dtypes(T = [f16, bf16, f32, f64, i32, i64, u64]))]
pub fn sum<T: Number>(y: Out<T, 2>, x: In<T, 2>) {
    let row = program_id(0);
    y.row(row).set(0, x.row(row).sum());
}

/// The mean of each row; integers add in 64 bits, and their mean is rounded toward zero.
#[kernel(op = "mean", dtypes(T = [f16, bf16, f32, f64, i32, i64, u64]))]
pub fn mean<T: Number>(y: Out<T, 2>, x: In<T, 2>) {
    let row = program_id(0);
    y.row(row).set(0, x.row(row).mean());
}

/// The variance of each row: the mean of the squares of the differences from the mean.
#[kernel(op = "var")]
pub fn var<T: Float>(y: Out<T, 2>, x: In<T, 2>) {
    let row = program_id(0);
    let (_, variance) = x.row(row).mean_variance();
    y.row(row).set(0, variance);
}

/// The product of each row.
#[kernel(op = "prod", dtypes(T = [f16, bf16, f32, f64, i32, i64, u64]))]
pub fn prod<T: Number>(y: Out<T, 2>, x: In<T, 2>) {
    let row = program_id(0);
    y.row(row).set(0, x.row(row).prod());
}

/// The largest element of each row; NaN if any is NaN.
#[kernel(op = "reduce_max", dtypes(T = [f16, bf16, f32, f64, i32, i64, u64]))]
pub fn reduce_max<T: Number>(y: Out<T, 2>, x: In<T, 2>) {
    let row = program_id(0);
    y.row(row).set(0, x.row(row).max());
}

/// The smallest element of each row; NaN if any is NaN.
#[kernel(op = "reduce_min", dtypes(T = [f16, bf16, f32, f64, i32, i64, u64]))]
pub fn reduce_min<T: Number>(y: Out<T, 2>, x: In<T, 2>) {
    let row = program_id(0);
    y.row(row).set(0, x.row(row).min());
}

/// The position of the largest element of each row, of the smallest one if `smallest`: the first of equal ones, the first NaN
/// if there is one; of an empty row 0.
#[kernel(op = "argmax", dtypes(T = [f16, bf16, f32, f64, i32, i64, u64]))]
pub fn argmax<T: Number>(y: Out<i64, 2>, x: In<T, 2>, #[param(default = false)] smallest: bool) {
    let row = program_id(0);
    let x = x.row(row);
    if smallest {
        y.row(row).set(0, x.argmin());
    } else {
        y.row(row).set(0, x.argmax());
    }
}

/// Whether `v` is larger than `m`, NaN being the largest.
#[kernel]
pub fn above<T: Number>(v: T, m: T) -> bool {
    m == m && !(v <= m)
}

/// Whether `a` comes before `b` in an order, NaN being the largest.
#[kernel]
pub fn before<T: Number>(a: T, b: T, descending: bool) -> bool {
    if descending { above(a, b) } else { above(b, a) }
}

/// Whether neither is larger; NaN equals NaN.
#[kernel]
pub fn same<T: Number>(a: T, b: T) -> bool {
    a == b || (a != a && b != b)
}
