//! Sorting of rows, which keeps equal elements in order: runs of 64 elements by the number of elements before each one, and
//! then pairs of runs merged, launch after launch, until one is left.
//!
//! Each lane finds its own element's place, or the elements of its own places; a program takes `N` elements. Results are written
//! whole before they are in order, so that nobody has to fill them with zeros.

use max::kernel::prelude::*;

use crate::reduce::{before, same};

/// Elements of a run.
const RUN: i64 = 64;

/// Each 64 elements of each row in order, and their positions in the row. NaN is the largest.
#[kernel(op = "sort_runs", dtypes(T = [f16, bf16, f32, f64, i32, i64, u64]), tile(N = 64, gpu(N = 256)))]
pub fn sort_runs<T: Number>(values: Out<T, 2>, positions: Out<i64, 2>, x: In<T, 2>, #[param] descending: bool) {
    let [row, part] = program_id();
    let x = x.row(row).block::<N>(part);
    let n = x.len();
    values.select(row).block::<N>(part).write(x);
    positions.select(row).block::<N>(part).write(lanes(n));
    x.enumerate().for_each(|(v, i)| {
        let first = i / RUN * RUN;
        // Counted in 32 bits: vectors of those have twice the lanes.
        let own = i as i32;
        let mut ahead = 0i32;
        for j in first..(first + RUN).min(n) {
            let u = x.at(j);
            ahead += if before(u, v, descending) || (same(u, v) && (j as i32) < own) { 1i32 } else { 0 };
        }
        let rank = first + ahead as i64;
        values.select(row).block::<N>(part).set(rank, v);
        positions.select(row).block::<N>(part).set(rank, part * N + i);
    });
}

/// Each two neighbouring runs of `run` elements of each row, sorted already, merged into one. A lane writes `E` neighbouring
/// elements of a result; how much of both runs comes before these, it finds by bisection (Odeh et al.: Merge Path, 2012).
#[kernel(op = "merge_runs", dtypes(T = [f16, bf16, f32, f64, i32, i64, u64]), tile(N = 1024, E = 1024, gpu(N = 256, E = 1)))]
pub fn merge_runs<T: Number>(
    values: Out<T, 2>,
    positions: Out<i64, 2>,
    x: In<T, 2>,
    at: In<i64, 2>,
    #[param] run: i64,
    #[param] descending: bool,
) {
    let [row, part] = program_id();
    let x = x.row(row);
    let at = at.row(row);
    let n = x.len();
    let first = part * N;
    let last = (first + N).min(n);
    values.select(row).block::<N>(part).write(x.block::<N>(part));
    positions.select(row).block::<N>(part).write(at.block::<N>(part));
    lanes((last - first + E - 1) / E).for_each(|lane| {
        let mut j = first + lane * E;
        let stop = (j + E).min(last);
        while j < stop {
            let pair = j / (2 * run) * (2 * run);
            let done = j - pair;
            let middle = (pair + run).min(n);
            let end = (pair + 2 * run).min(n);
            // Of the elements that are done, as many are of the left run as come before the others of the right one.
            let mut low = (done - (end - middle)).max(0);
            let mut high = done.min(middle - pair);
            while low < high {
                let i = (low + high) / 2;
                if before(x.at(middle + done - i - 1), x.at(pair + i), descending) {
                    high = i;
                } else {
                    low = i + 1;
                }
            }
            let mut left = pair + low;
            let mut right = middle + done - low;
            let until = stop.min(end);
            while j < until {
                let (a, b) = (x.at(left), x.at(right));
                let take = left < middle && (right >= end || !before(b, a, descending));
                let from = if take { left } else { right };
                values.select(row).block::<N>(part).set(j - first, if take { a } else { b });
                positions.select(row).block::<N>(part).set(j - first, at.at(from));
                left = if take { left + 1 } else { left };
                right = if take { right } else { right + 1 };
                j += 1;
            }
        }
    });
}
