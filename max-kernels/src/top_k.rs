//! The largest and smallest elements of rows.

use max::kernel::prelude::*;

use crate::reduce::{above, same};

// Each round takes the first of the elements that come next in order: after the last one taken, which is `last` at
// `last_at`. NaN equals NaN here and is above everything, as `above` and `same` say; `v != v` is how NaN is known.

/// The `k` largest elements of each row, largest first, and their positions; `k` is the length of the results. Of equal
/// elements the first comes first; NaN counts as larger than everything.
#[kernel(op = "top_k")]
pub fn top_k<T: Number>(values: Out<T, 2>, positions: Out<i64, 2>, x: In<T, 2>) {
    let row = program_id(0);
    let x = x.row(row);
    let n = x.dim(0);
    let mut last = T::HIGHEST;
    let mut last_at = -1;
    for j in 0..values.dim(1) {
        let bound = last;
        let after = last_at;
        let best = x
            .enumerate()
            .map(|(v, i)| if after < 0 || above(bound, v) || (same(v, bound) && i > after) { v } else { T::LOWEST })
            .max();
        let at = x
            .enumerate()
            .map(|(v, i)| if same(v, best) && (after < 0 || above(bound, v) || i > after) { i } else { n })
            .min();
        last = x.at(at);
        last_at = at;
        values.row(row).set(j, last);
        positions.row(row).set(j, at);
    }
}

/// The `k` smallest elements of each row, smallest first, and their positions; NaN comes last.
#[kernel(op = "bottom_k")]
pub fn bottom_k<T: Number>(values: Out<T, 2>, positions: Out<i64, 2>, x: In<T, 2>) {
    let row = program_id(0);
    let x = x.row(row);
    let n = x.dim(0);
    let mut last = T::LOWEST;
    let mut last_at = -1;
    for j in 0..values.dim(1) {
        let bound = last;
        let after = last_at;
        // `min` gives NaN if any is NaN, so those stand aside: they are taken when nothing else is left.
        let best =
            x.enumerate()
                .map(|(v, i)| {
                    if v == v && (after < 0 || above(v, bound) || (same(v, bound) && i > after)) {
                        v
                    } else {
                        T::HIGHEST
                    }
                })
                .min();
        let at = x
            .enumerate()
            .map(|(v, i)| if v == best && (after < 0 || above(v, bound) || (v == bound && i > after)) { i } else { n })
            .min();
        let nan_at = x.enumerate().map(|(v, i)| if v != v && (bound == bound || i > after) { i } else { n }).min();
        let at = if at < n { at } else { nan_at };
        last = x.at(at);
        last_at = at;
        values.row(row).set(j, last);
        positions.row(row).set(j, at);
    }
}
