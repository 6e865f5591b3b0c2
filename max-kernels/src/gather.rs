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
