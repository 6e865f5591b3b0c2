//! Reading by index.

use max::kernel::prelude::*;

/// `y[o, i, :] = x[o, indices[i], :]`: the slices of the middle axis that the indices name. Negative indices count from
/// the end; an index outside gives 0.
#[kernel(op = "gather", dtypes(I = [i32, i64]))]
pub fn gather<T: Any, I: Int>(y: Out<T, 3>, x: In<T, 3>, indices: In<I, 1>) {
    let [o, i] = program_id();
    let index = indices.at(i) as i64;
    let index = if index < 0 { index + x.dim(1) } else { index };
    y.select(o).row(i).write(x.select(o).row(index));
}

/// `y[r, i] = x[r, indices[r, i]]`; an index outside gives 0.
#[kernel(op = "gather_elements", dtypes(I = [i32, i64]))]
pub fn gather_elements<T: Any, I: Int>(y: Out<T, 2>, x: In<T, 2>, indices: In<I, 2>) {
    let row = program_id(0);
    let x = x.row(row);
    y.row(row).write(indices.row(row).map(|i| x.at(i as i64)));
}
