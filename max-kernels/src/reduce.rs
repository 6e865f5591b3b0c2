//! Reductions of rows. Half types accumulate in `f32`; sums and products of integers wrap.

use max::kernel::prelude::*;

/// The sum of each row.
#[kernel(op = "sum")]
pub fn sum<T: Number>(y: Out<T, 2>, x: In<T, 2>) {
    let row = program_id(0);
    y.row(row).set(0, x.row(row).sum());
}

/// The mean of each row; integers add in 64 bits, and their mean is rounded toward zero.
#[kernel(op = "mean")]
pub fn mean<T: Number>(y: Out<T, 2>, x: In<T, 2>) {
    let row = program_id(0);
    y.row(row).set(0, x.row(row).mean());
}

/// The product of each row.
#[kernel(op = "prod")]
pub fn prod<T: Number>(y: Out<T, 2>, x: In<T, 2>) {
    let row = program_id(0);
    y.row(row).set(0, x.row(row).prod());
}

/// The largest element of each row; NaN if any is NaN.
#[kernel(op = "reduce_max")]
pub fn reduce_max<T: Number>(y: Out<T, 2>, x: In<T, 2>) {
    let row = program_id(0);
    y.row(row).set(0, x.row(row).max());
}

/// The smallest element of each row; NaN if any is NaN.
#[kernel(op = "reduce_min")]
pub fn reduce_min<T: Number>(y: Out<T, 2>, x: In<T, 2>) {
    let row = program_id(0);
    y.row(row).set(0, x.row(row).min());
}

/// The position of the largest element of each row: the first of equal ones, the first NaN if there is one; of an
/// empty row its length.
#[kernel(op = "argmax")]
pub fn argmax<T: Number>(y: Out<i64, 2>, x: In<T, 2>) {
    let row = program_id(0);
    let x = x.row(row);
    // The largest value, then the first place where it stands: two plain reductions.
    let m = x.max();
    let n = x.dim(0);
    let first = x.enumerate().map(|(v, i)| if v == m || v != v { i } else { n }).min();
    y.row(row).set(0, first.min(n));
}

/// The position of the smallest element of each row: the first of equal ones, the first NaN if there is one; of an
/// empty row its length.
#[kernel(op = "argmin")]
pub fn argmin<T: Number>(y: Out<i64, 2>, x: In<T, 2>) {
    let row = program_id(0);
    let x = x.row(row);
    let m = x.min();
    let n = x.dim(0);
    let first = x.enumerate().map(|(v, i)| if v == m || v != v { i } else { n }).min();
    y.row(row).set(0, first.min(n));
}
