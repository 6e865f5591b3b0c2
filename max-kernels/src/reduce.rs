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

/// The variance of each row: the mean of the squares of the differences from the mean.
#[kernel(op = "var")]
pub fn var<T: Float>(y: Out<T, 2>, x: In<T, 2>) {
    let row = program_id(0);
    let x = x.row(row);
    let mean = x.mean();
    y.row(row).set(0, x.map(|v| (v - mean) * (v - mean)).mean());
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

/// Elements of a row whose positions are told apart by 32 bits, which are as many as most dtypes have: positions take no more
/// registers than elements.
const PART: i64 = 1 << 20;

/// The position of the largest element of each row, of the smallest one if `smallest`: the first of equal ones, the first NaN
/// if there is one; of an empty row its length.
#[kernel(op = "argmax")]
pub fn argmax<T: Number>(y: Out<i64, 2>, x: In<T, 2>, #[param(default = false)] smallest: bool) {
    let row = program_id(0);
    let x = x.row(row);
    let n = x.dim(0);
    // Nothing is beyond the last value in order where there is nothing else.
    let last = if smallest { T::HIGHEST } else { T::LOWEST };
    let mut best = last;
    let mut at = 0;
    for first in range(0, n, PART) {
        let (m, i) = x
            .slice(first, (n - first).min(PART))
            .enumerate()
            .map(|(v, i)| (v, i as i32))
            .fold_with((last, i32::MAX), |(m, at), (v, i)| if beyond(v, m, smallest) { (v, i) } else { (m, at) })
            .reduce(|(m, at), (v, i)| if beyond(v, m, smallest) || (same(v, m) && i < at) { (v, i) } else { (m, at) });
        if beyond(m, best, smallest) {
            best = m;
            at = first + i as i64;
        }
    }
    y.row(row).set(0, at);
}

/// Whether `v` is larger than `m`, or smaller if `smallest`; NaN is beyond everything else.
#[kernel]
pub fn beyond<T: Number>(v: T, m: T, smallest: bool) -> bool {
    m == m && !select(smallest, v >= m, v <= m)
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
