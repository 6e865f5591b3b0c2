//! The largest and smallest elements of rows.
//!
//! The best element of each chunk is found once, in one pass over the row. Each round then takes the best one of them, and looks through
//! its chunk for what comes next there: a tournament, of which a round replays one match (Knuth, TAOCP 3, 5.2.3).

use max::kernel::prelude::*;

use crate::reduction::reduce::{before, same};

/// The first `k` elements of each row in descending order, or in ascending order if not `largest`, and their positions;
/// `k` is the length of the results. Of equal elements the first comes first; NaN counts as larger than everything.
///
/// Scratch memory: `best`, of each chunk of 64 the best element that is left, or the last one that was taken if none is. With room for
/// one chunk only, the row is that one, and looked through each time.
#[kernel(op = "top_k", dtypes(T = [f16, bf16, f32, f64, i32, i64, u64]))]
pub fn top_k<T: Number>(
    values: Out<T, 2>,
    positions: Out<i64, 2>,
    best: Out<T, 2>,
    x: In<T, 2>,
    #[param(default = true)] largest: bool,
) {
    let row = program_id(0);
    let x = x.row(row);
    let n = x.dim(0);
    let single = best.dim(1) <= 1;
    let size = if single { n } else { 64 };
    if !single {
        let init = worst_of(x, largest);
        let first =
            x.chunks::<64>().fold_with(init, |m, v| first_of(m, v, largest)).reduce(|m, v| first_of(m, v, largest));
        best.row(row).write(first);
    }
    // Chunks, and the elements of one, are counted in 32 bits: vectors of those have twice the lanes.
    let chunks = best.dim(1) as i32;
    let none = size as i32;
    let mut last = T::ZERO;
    let mut last_at = -1;
    // Of the chunks whose best is equal to the last one taken, those from here on still have that element.
    let mut begin = 0i32;
    for j in 0..values.dim(1) {
        let bound = last;
        let after = last_at;
        let equal_from = begin;
        // The chunk with the best element that is left.
        let mut chunk = 0;
        if !single {
            let (_, first) = best
                .row(row)
                .read()
                .enumerate()
                .map(|(v, i)| (v, i as i32))
                .fold_with((T::ZERO, chunks), |(m, at), (v, i)| {
                    if (after < 0 || before(bound, v, largest) || (same(v, bound) && i >= equal_from))
                        && (at == chunks || before(v, m, largest))
                    {
                        (v, i)
                    } else {
                        (m, at)
                    }
                })
                .reduce(|(m, at), (v, i)| {
                    if i < chunks && (at == chunks || before(v, m, largest) || (same(v, m) && i < at)) {
                        (v, i)
                    } else {
                        (m, at)
                    }
                });
            chunk = first;
        }
        let from = chunk as i64 * size;
        // What comes next in the chunk is taken, and what comes after that is the best that is left.
        let mut place = n;
        let mut is_found = false;
        let mut again = true;
        while again {
            let found = is_found;
            let v0 = last;
            let any = last_at < 0;
            // Where the last one taken stands in the chunk, or before or after it.
            let at0 = (last_at - from).max(-1).min(size) as i32;
            let (v, i) = x
                .slice(from, (n - from).min(size))
                .enumerate()
                .map(|(v, i)| (v, i as i32))
                .fold_with((T::ZERO, none), |(m, at), (v, i)| {
                    if (any || before(v0, v, largest) || (same(v, v0) && i > at0))
                        && (at == none || before(v, m, largest))
                    {
                        (v, i)
                    } else {
                        (m, at)
                    }
                })
                .reduce(|(m, at), (v, i)| {
                    if i < none && (at == none || before(v, m, largest) || (same(v, m) && i < at)) {
                        (v, i)
                    } else {
                        (m, at)
                    }
                });
            let exists = i < none;
            if found {
                best.row(row).set(chunk as i64, if exists { v } else { v0 });
                begin = if exists { chunk } else { chunk + 1 };
            } else if exists {
                last = v;
                last_at = from + i as i64;
                place = last_at;
            }
            again = !found && exists && !single;
            is_found = true;
        }
        values.row(row).set(j, last);
        positions.row(row).set(j, place);
    }
}

/// That of two elements which comes first; of equal ones the first.
#[kernel]
fn first_of<T: Number>(a: T, b: T, descending: bool) -> T {
    if before(b, a, descending) { b } else { a }
}

/// That of two elements which comes last; of equal ones the first.
#[kernel]
fn last_of<T: Number>(a: T, b: T, descending: bool) -> T {
    if before(a, b, descending) { b } else { a }
}

/// What no element of a row comes after.
#[kernel]
fn worst_of<T: Number>(x: In<T, 1>, largest: bool) -> T {
    let mut worst = T::LOWEST;
    if !largest {
        worst = x.fold(T::LOWEST, |w, v| last_of(w, v, false)).reduce(|w, v| last_of(w, v, false));
    }
    worst
}

/// A value that `b` comes before, and that does not come before `w`: in the middle of both, where there is one.
#[kernel]
pub fn middle<T: Number>(b: T, w: T, largest: bool) -> T {
    // There is nothing in the middle of an infinity: twice as far as the other one.
    let far = (if w < 0 { T::ZERO - w } else { w }) * 2 + 1;
    let beyond = if largest { far } else { T::ZERO - far };
    let middle = if b - b != b - b { beyond } else { b / 2 + w / 2 };
    if !before(b, middle, largest) || before(w, middle, largest) { w } else { middle }
}

/// The element at place `k` of a row in order, counted from 1; the last one of a shorter row.
///
/// By bisection of the values between the best and the worst element, each time moved to elements that are there.
#[kernel]
fn kth<T: Number>(x: In<T, 1>, k: i64, largest: bool) -> T {
    let any = x.at(0);
    // It is not before `best`, and not after `worst`.
    let (mut best, mut worst) = x
        .fold_with((any, any), |(b, w), v| (first_of(b, v, largest), last_of(w, v, largest)))
        .reduce(|(b, w), (c, v)| (first_of(b, c, largest), last_of(w, v, largest)));
    while !same(best, worst) {
        let (b, w) = (best, worst);
        let p = middle(b, w, largest);
        let (count, next, last) = x
            .fold_with((0i32, w, b), |(count, next, last), v| {
                if before(v, p, largest) {
                    (count + 1, next, last_of(last, v, largest))
                } else {
                    (count, first_of(next, v, largest), last)
                }
            })
            .reduce(|(c, n, l), (count, next, last)| {
                (c + count, first_of(n, next, largest), last_of(l, last, largest))
            });
        if (count as i64) < k {
            best = next;
        } else {
            worst = last;
            best = if count as i64 == k { last } else { b };
        }
    }
    worst
}

/// What elements before the last one count as in [`select_k`], beside those that are equal to it.
const BEFORE: i64 = 1 << 32;

/// The `k` elements of each row that are first in descending order, or in ascending order if not `largest`, in the order of
/// their positions; `k` is the length of the results. Of equal elements the first ones are taken, and NaN counts as larger
/// than everything. Past the end of a row shorter than that stands its last one in order, at its length.
///
/// A row may be divided into parts, of equal lengths or of such that differ by one; results have a row for each of them.
///
/// Where few are taken, only what is before a bound is looked at to find the last of them: of the best elements of each 64, as
/// many as are taken are not after the bound, which is therefore not before the last one. Of these 64, fewer than `k` have
/// elements before it.
///
/// Scratch memory: `ends`, how many elements are taken up to the end of each 64; `candidates`, among which the last one is looked for:
/// all elements of a part with fewer 64s than `k`, else the best one of each 64, and then what is before the bound, for which 64 `k`
/// elements have room.
#[kernel(op = "select_k", dtypes(T = [f16, bf16, f32, f64, i32, i64, u64]))]
pub fn select_k<T: Number>(
    values: Out<T, 2>,
    positions: Out<i64, 2>,
    ends: Out<i64, 2>,
    candidates: Out<T, 2>,
    x: In<T, 2>,
    #[param(default = true)] largest: bool,
    #[param(default = 1)] parts: i64,
) {
    let id = program_id(0);
    let (row, part) = (id / parts, id % parts);
    let size = x.dim(1);
    let from = part * size / parts;
    let n = (part + 1) * size / parts - from;
    let x = x.row(row).slice(from, n);
    let k = values.dim(1);
    let chunks = (n + 63) / 64;
    let few = chunks < k;
    if few {
        candidates.row(id).slice(0, n).write(x);
    } else {
        let init = worst_of(x, largest);
        let best =
            x.chunks::<64>().fold_with(init, |b, v| first_of(b, v, largest)).reduce(|b, c| first_of(b, c, largest));
        candidates.row(id).slice(0, chunks).write(best);
    }
    let mut count = if few { n } else { chunks };
    let mut last = x.at(0);
    let mut all = 0;
    // First for the bound, where there is one, and then for the last one, which the bound is if too few are before it.
    let mut is_last = few;
    let mut again = true;
    while again {
        last = kth(candidates.row(id).read().slice(0, count), k, largest);
        let bound = last;
        // Those before it in the high half of a number, and those equal to it in the low one.
        let counts = x
            .chunks::<64>()
            .fold_with(0i32, |c, v| {
                c + if before(v, bound, largest) {
                    256i32
                } else if same(v, bound) {
                    1
                } else {
                    0
                }
            })
            .reduce(|a, b| a + b)
            .map(|c| (c >> 8) as i64 * BEFORE + (c & 255) as i64);
        ends.row(id).write_scan(counts, 0, |a, b| a + b);
        all = ends.row(id).at(chunks - 1);
        count = all / BEFORE;
        again = !is_last && count >= k;
        is_last = true;
        if again {
            lanes(chunks).for_each(|chunk| {
                let mut place = ends.row(id).at(chunk - 1) / BEFORE;
                let first = chunk * 64;
                let end = if ends.row(id).at(chunk) / BEFORE == place { first } else { (first + 64).min(n) };
                for i in first..end {
                    let v = x.at(i);
                    if before(v, bound, largest) {
                        candidates.row(id).set(place, v);
                        place += 1;
                    }
                }
            });
        }
    }
    let last = last;
    // As many as are equal to the last one are taken as there is room for.
    let room = k - all / BEFORE;
    lanes(chunks).for_each(|chunk| {
        let start = ends.row(id).at(chunk - 1);
        let mut place = start / BEFORE + room.min(start % BEFORE);
        let mut left = room - start % BEFORE;
        let first = chunk * 64;
        let end = if ends.row(id).at(chunk) == start { first } else { (first + 64).min(n) };
        for i in first..end {
            let v = x.at(i);
            // Few get as far as this.
            if !before(last, v, largest) {
                let is_equal = same(v, last);
                if !is_equal || left > 0 {
                    values.row(id).set(place, v);
                    positions.row(id).set(place, from + i);
                    place += 1;
                    left = if is_equal { left - 1 } else { left };
                }
            }
        }
    });
    // A shorter row than that: what is past its end comes after all that it has.
    let taken = all / BEFORE + room.min(all % BEFORE);
    lanes(k - taken).for_each(|i| {
        values.row(id).set(taken + i, last);
        positions.row(id).set(taken + i, size);
    });
}
