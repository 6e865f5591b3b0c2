//! Softmax of rows, shifted by the largest element so that no exponential overflows.

use max::kernel::prelude::*;

/// `exp(x) / sum(exp(x))` of each row.
#[kernel(op = "softmax")]
pub fn softmax<T: Float>(y: Out<T, 2>, x: In<T, 2>) {
    let row = program_id(0);
    let (e, sum) = x.row(row).shifted_exp();
    let scale = 1.0 / sum;
    y.row(row).write(e.map(|e| e * scale));
}

/// `x - log(sum(exp(x)))` of each row.
#[kernel(op = "logsoftmax")]
pub fn logsoftmax<T: Float>(y: Out<T, 2>, x: In<T, 2>) {
    let row = program_id(0);
    let x = x.row(row);
    let (m, s) = x.max_exp_sum();
    let shift = m + s.log();
    y.row(row).write(x.map(|v| v - shift));
}
