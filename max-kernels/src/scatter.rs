//! Writing by index. A program owns a row, and makes its updates in their order: what is written twice does not depend on
//! how many threads there are. Negative indices count from the end; an index outside writes nothing.

use max::kernel::prelude::*;

/// `x`, with `y[indices[k]] = updates[k]` in each row.
#[kernel(op = "scatter", dtypes(I = [i32, i64]))]
pub fn scatter<T: Any, I: Int>(y: Out<T, 2>, x: In<T, 2>, updates: In<T, 2>, indices: In<I, 2>) {
    let row = program_id(0);
    let updates = updates.row(row);
    let indices = indices.row(row);
    let n = x.dim(1);
    y.row(row).write(x.row(row));
    for k in 0..indices.len() {
        let i = indices.at(k) as i64;
        y.row(row).set(if i < 0 { i + n } else { i }, updates.at(k));
    }
}

/// `x`, with `y[indices[k]] = y[indices[k]] ∘ updates[k]` in each row, where `∘` adds, multiplies, or takes the larger or
/// the smaller.
#[kernel(op = "scatter_reduce", dtypes(I = [i32, i64]))]
pub fn scatter_reduce<T: Number, I: Int>(
    y: Out<T, 2>,
    x: In<T, 2>,
    updates: In<T, 2>,
    indices: In<I, 2>,
    #[param(choices("add", "mul", "max", "min"))] by: &str,
) {
    let row = program_id(0);
    let updates = updates.row(row);
    let indices = indices.row(row);
    let n = x.dim(1);
    y.row(row).write(x.row(row));
    for k in 0..indices.len() {
        let i = indices.at(k) as i64;
        let i = if i < 0 { i + n } else { i };
        let (a, b) = (y.row(row).at(i), updates.at(k));
        let combined = if by == "add" {
            a + b
        } else if by == "mul" {
            a * b
        } else if by == "max" {
            a.max(b)
        } else {
            a.min(b)
        };
        y.row(row).set(i, combined);
    }
}

/// Row `i` of `updates` that `from[i]` names, or row `i` of `x` where that is negative.
#[kernel(op = "replace_rows")]
pub fn replace_rows<T: Any>(y: Out<T, 2>, x: In<T, 2>, updates: In<T, 2>, from: In<i64, 1>) {
    let row = program_id(0);
    let update = from.at(row);
    if update >= 0 {
        y.row(row).write(updates.row(update));
    } else {
        y.row(row).write(x.row(row));
    }
}
