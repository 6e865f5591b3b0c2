//! Sorting of rows, which keeps equal elements in order: runs of 64 elements by the number of elements before each one, and
//! then pairs of runs merged, launch after launch, until one is left.

use max::kernel::prelude::*;

use crate::reduce::{before, same};

/// Each 64 elements of each row in order, and their positions in the row. NaN is the largest.
#[kernel(op = "sort_runs")]
pub fn sort_runs<T: Number>(values: Out<T, 2>, positions: Out<i64, 2>, x: In<T, 2>, #[param] descending: bool) {
    let [row, part] = program_id();
    let run = x.row(row).block::<64>(part);
    for i in 0..run.len() {
        let v = run.at(i);
        let rank = run
            .enumerate()
            .map(|(u, j)| if before(u, v, descending) || (same(u, v) && j < i) { 1 as i64 } else { 0 })
            .sum();
        values.select(row).block::<64>(part).set(rank, v);
        positions.select(row).block::<64>(part).set(rank, part * 64 + i);
    }
}

/// Each two neighbouring runs of `run` elements of each row, sorted already, merged into one. A program writes a part
/// of a result; how much of both runs comes before that part, it finds by bisection.
#[kernel(op = "merge_runs")]
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
    let first = part * 1024;
    let last = (first + 1024).min(n);
    let mut pair = first / (2 * run) * (2 * run);
    let mut done = first - pair;
    let mut j = first;
    while j < last {
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
        let stop = last.min(end);
        while j < stop {
            let (a, b) = (x.at(left), x.at(right));
            let take = left < middle && (right >= end || !before(b, a, descending));
            let from = if take { left } else { right };
            values.select(row).block::<1024>(part).set(j - first, if take { a } else { b });
            positions.select(row).block::<1024>(part).set(j - first, at.at(from));
            left = if take { left + 1 } else { left };
            right = if take { right } else { right + 1 };
            j += 1;
        }
        pair = end;
        done = 0;
    }
}
