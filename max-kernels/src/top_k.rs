//! The largest and smallest elements of rows.

use max::kernel::prelude::*;

/// The `k` largest elements of each row, largest first, and their positions; `k` is the length of the results. Of equal
/// elements the first comes first; NaN counts as larger than everything.
#[kernel(op = "top_k")]
pub fn top_k<T: Number>(values: Out<T, 2>, positions: Out<i64, 2>, x: In<T, 2>) {
    let row = program_id(0);
    let x = x.row(row);
    let n = x.dim(0);
    // The previous winner: everything before it in the order is taken.
    let mut last = T::HIGHEST;
    let mut last_at = -1;
    for j in 0..values.dim(1) {
        let bound = last;
        let after = last_at;
        let best = x
            .enumerate()
            .map(|(v, i)| if after < 0 || v < bound || (v == bound && i > after) { v } else { T::LOWEST })
            .max();
        let at =
            x.enumerate().map(|(v, i)| if v == best && (after < 0 || v < bound || i > after) { i } else { n }).min();
        values.row(row).set(j, best);
        positions.row(row).set(j, at);
        last = best;
        last_at = at;
    }
}

/// The `k` smallest elements of each row, smallest first, and their positions.
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
        let best = x
            .enumerate()
            .map(|(v, i)| if after < 0 || v > bound || (v == bound && i > after) { v } else { T::HIGHEST })
            .min();
        let at =
            x.enumerate().map(|(v, i)| if v == best && (after < 0 || v > bound || i > after) { i } else { n }).min();
        values.row(row).set(j, best);
        positions.row(row).set(j, at);
        last = best;
        last_at = at;
    }
}
