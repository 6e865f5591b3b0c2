//! Writing by index. Updates of one element are made in their order: what is written twice does not depend on how many threads
//! there are. Negative indices count from the end; an index outside writes nothing.
//!
//! A program owns a row in `scatter` and [`scatter_reduce`]. The others are for GPUs, where a program for each row would be one
//! thread's work: they know beforehand which updates an element gets, and each element takes its own.

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
        // Not by `combine`, which took half as long again: its conditions are no longer those of the loop.
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

/// Both combined: added, multiplied, or the larger or the smaller one of them.
#[kernel]
fn combine<T: Number>(a: T, b: T, adds: bool, multiplies: bool, is_max: bool) -> T {
    if adds {
        a + b
    } else if multiplies {
        a * b
    } else if is_max {
        a.max(b)
    } else {
        a.min(b)
    }
}

/// Which update of each row is the last one that names an element: its number, counted from 1, or 0 where none does.
#[kernel(op = "last_updates", grid(indices.dim(0), indices.dim(1) / 256), dtypes(I = [i32, i64]))]
pub fn last_updates<I: Int>(last: Out<i64, 2>, indices: In<I, 2>) {
    let [row, part] = program_id();
    let (row_at, first) = (row * 1, part * 256);
    let n = last.dim(1);
    indices.row(row).block::<256>(part).enumerate().for_each(|(i, k)| {
        let i = i as i64;
        last.atomic_max([row_at, if i < 0 { i + n } else { i }], first + k + 1);
    });
}

/// `x`, with the updates that [`last_updates`] found.
#[kernel(op = "scatter_last")]
pub fn scatter_last<T: Any>(y: Out<T, 2>, x: In<T, 2>, updates: In<T, 2>, last: In<i64, 2>) {
    let [row, part] = program_id();
    let updates = updates.row(row);
    let old = x.row(row).block::<1024>(part);
    let last = last.row(row).block::<1024>(part);
    y.select(row).block::<1024>(part).write(old.zip(last).map(|(v, k)| select(k > 0, updates.at(k - 1), v)));
}

/// What [`scatter_reduce`] computes, of indices in ascending order, none of which counts from the end, and their positions: each
/// element takes its updates one after the other.
#[kernel(op = "scatter_reduce_sorted")]
pub fn scatter_reduce_sorted<T: Number>(
    y: Out<T, 2>,
    x: In<T, 2>,
    updates: In<T, 2>,
    indices: In<i64, 2>,
    positions: In<i64, 2>,
    #[param(choices("add", "mul", "max", "min"))] by: &str,
) {
    let [row, part] = program_id();
    let updates = updates.row(row);
    let indices = indices.row(row);
    let positions = positions.row(row);
    let (first, count) = (part * 256, indices.len());
    y.select(row).block::<256>(part).write(x.row(row).block::<256>(part).enumerate().map(|(v, i)| {
        let mut low = 0 as i64;
        let mut high = count;
        while low < high {
            let middle = (low + high) / 2;
            if indices.at(middle) < first + i {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        let mut combined = v;
        while low < count && indices.at(low) == first + i {
            combined = combine(combined, updates.at(positions.at(low)), by == "add", by == "mul", by == "max");
            low += 1;
        }
        combined
    }));
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
