//! Sampling: the next token of each row of logits, and what changes logits before.
//!
//! Rows are not sorted: what is left of a row is told by its least logit, which is found by bisection. A draw is a race (Gumbel:
//! Statistical theory of extreme values, 1954; Efraimidis and Spirakis: Weighted random sampling with a reservoir, 2006): each token has an
//! exponentially distributed time of its own, divided by its share, and the earliest one wins. It adds nothing up, so a draw is the same
//! on every machine, whatever the order of its reductions.

use max::kernel::prelude::*;

use crate::random::exponential;
use crate::reduction::reduce::above;
use crate::sorting::top_k::middle;

/// What the likeliest token's share counts as: shares are added as integers, whose sums are the same in any order.
const UNIT: f64 = (1u64 << 40) as f64;

/// Tokens that are looked at together for the race.
const PART: i64 = 1024;

/// A token's probability relative to the likeliest one's.
#[kernel]
fn share<T: Float>(logit: T, largest: T, temperature: T) -> T {
    ((logit - largest) / temperature).exp()
}

/// That as an integer.
#[kernel]
fn weight<T: Float>(logit: T, largest: T, temperature: T) -> i64 {
    (share(logit, largest, temperature) * UNIT) as i64
}

/// The `top_k` likeliest tokens of each row of logits (all, if that is below 1) that are at least `min_p` times as likely as the likeliest
/// (Nguyen et al.: Turning up the heat, 2024). `edges` are the largest logit of the row and the least of these tokens, and `rooms` how many of
/// them have that one: the first, of equal ones.
///
/// Where `top_k` is 1 or `temperature` is not above 0, the first of the largest logits is the row's token, in `tokens`. It is -1 where a logit
/// is NaN, or the largest one is infinite, and -2 where a token is to be drawn.
#[kernel(op = "sampling_top_k")]
#[allow(clippy::too_many_arguments, reason = "the parameters of each row")]
pub fn sampling_top_k<T: Float>(
    tokens: Out<i64, 2>,
    edges: Out<T, 2>,
    rooms: Out<i32, 2>,
    logits: In<T, 2>,
    top_k: In<i64, 1>,
    temperature: In<f32, 1>,
    min_p: In<f32, 1>,
) {
    let row = program_id(0);
    let x = logits.row(row);
    let most = top_k.at(row);
    let (heat, least) = (T::from_f64(temperature.at(row)), T::from_f64(min_p.at(row)));
    let (largest, first) = x
        .enumerate()
        .map(|(v, i)| (v, i as i32))
        .fold_with((T::NEG_INFINITY, i32::MAX), |(m, at), (v, i)| if above(v, m) { (v, i) } else { (m, at) })
        .reduce(|(m, at), (v, i)| if above(v, m) || (v == m && i < at) { (v, i) } else { (m, at) });
    let is_finite = largest - largest == 0;
    let mut edge = largest;
    let mut room = 1i32;
    let mut token = if is_finite { first as i64 } else { -1 };
    if is_finite && most != 1 && heat > 0 {
        token = -2;
        // The tokens that are likely enough, and the last of them in order.
        let (count, lowest) = x
            .fold_with((0i32, largest), |(count, lowest), v| {
                let s = share(v, largest, heat);
                if s > 0 && s >= least { (count + 1, lowest.min(v)) } else { (count, lowest) }
            })
            .reduce(|(a, v), (b, w)| (a + b, v.min(w)));
        edge = lowest;
        let many = most > 0 && most < count as i64;
        if many {
            let most = most as i32;
            let mut best = largest;
            while best > edge {
                let (b, w) = (best, edge);
                let pivot = middle(b, w, true);
                let (above, next, last) = x
                    .fold_with((0i32, w, b), |(above, next, last), v| {
                        if v > pivot { (above + 1, next, last.min(v)) } else { (above, next.max(v), last) }
                    })
                    .reduce(|(a, v, l), (b, w, m)| (a + b, v.max(w), l.min(m)));
                if above < most {
                    best = next;
                } else {
                    edge = last;
                    best = if above == most { last } else { b };
                }
            }
        }
        let bound = edge;
        let (above, equal) = x
            .fold_with((0i32, 0i32), |(above, equal), v| {
                (above + if v > bound { 1i32 } else { 0 }, equal + if v == bound { 1i32 } else { 0 })
            })
            .reduce(|(a, b), (c, d)| (a + c, b + d));
        room = if many { equal.min(most as i32 - above) } else { equal };
    }
    tokens.row(row).set(0, token);
    edges.row(row).set(0, largest);
    edges.row(row).set(1, edge);
    rooms.row(row).set(0, room);
}

/// Of the tokens that [`sampling_top_k`] leaves, the likeliest whose probabilities add up to `top_p` of all (Holtzman et al.: The curious case
/// of neural text degeneration, 2020). `edges` are the least logit of these, and `ends` where those behind begin that have the same one. For a
/// `top_p` of 1 or more they are all.
///
/// Rows whose token is known, which is not -2, are left as they are: `ends` is 0.
#[kernel(op = "sampling_top_p")]
#[allow(clippy::too_many_arguments, reason = "the parameters of each row, and what is left of it")]
pub fn sampling_top_p<T: Float>(
    edges: Out<T, 2>,
    ends: Out<i32, 2>,
    logits: In<T, 2>,
    tokens: In<i64, 2>,
    bounds: In<T, 2>,
    rooms: In<i32, 2>,
    temperature: In<f32, 1>,
    top_p: In<f32, 1>,
) {
    let row = program_id(0);
    let x = logits.row(row);
    let mut edge = bounds.at(row, 1);
    let mut end = 0i32;
    if tokens.at(row, 0) == -2 {
        let mut room = rooms.at(row, 0);
        let p = top_p.at(row) as f64;
        if p < 1.0 {
            let (largest, heat) = (bounds.at(row, 0), T::from_f64(temperature.at(row)));
            let weights = x.map(|v| weight(v, largest, heat)).materialize();
            let bound = edge;
            let all = x.zip(weights).map(|(v, w)| if v > bound { w } else { 0 as i64 }).sum()
                + room as i64 * weight(bound, largest, heat);
            let wanted = ((p * all as f64).ceil() as i64).max(1);
            let mut best = largest;
            while best > edge {
                let (b, w) = (best, edge);
                let pivot = middle(b, w, true);
                let (above, next, last) = x
                    .zip(weights)
                    .fold_with((0 as i64, w, b), |(above, next, last), (v, weight)| {
                        if v > pivot { (above + weight, next, last.min(v)) } else { (above, next.max(v), last) }
                    })
                    .reduce(|(a, v, l), (b, w, m)| (a + b, v.max(w), l.min(m)));
                if above < wanted {
                    best = next;
                } else {
                    edge = last;
                }
            }
            let nucleus = edge;
            let above = x.zip(weights).map(|(v, w)| if v > nucleus { w } else { 0 as i64 }).sum();
            let each = weight(nucleus, largest, heat);
            let needed = ((wanted - above + each - 1) / each).max(1);
            room = if nucleus == bound { room } else { i32::MAX };
            room = if needed < room as i64 { needed as i32 } else { room };
        }
        // The first place with as many equal ones before it as there is room for, if there are more.
        let bound = edge;
        let equal = x.map(|v| if v == bound { 1i32 } else { 0 }).sum();
        end = x.dim(0) as i32;
        let mut low = if room < equal { 0i32 } else { end };
        while low < end {
            let half = low + (end - low) / 2;
            let before = x.enumerate().map(|(v, i)| if v == bound && (i as i32) < half { 1i32 } else { 0 }).sum();
            if before < room {
                low = half + 1;
            } else {
                end = half;
            }
        }
    }
    edges.row(row).set(0, edge);
    ends.row(row).set(0, end);
}

/// The token of each row: that which is known, or where that is -2, one of those with a logit above `edges`, or with that one and before
/// `ends`, drawn by `softmax(logits / temperature)` among these. `bounds` has the largest logits.
#[kernel(op = "sampling_draw")]
#[allow(clippy::too_many_arguments, reason = "the parameters of each row, and what is left of it")]
pub fn sampling_draw<T: Float>(
    drawn: Out<i64, 2>,
    logits: In<T, 2>,
    tokens: In<i64, 2>,
    bounds: In<T, 2>,
    edges: In<T, 2>,
    ends: In<i32, 2>,
    temperature: In<f32, 1>,
    seed: In<i64, 1>,
) {
    let row = program_id(0);
    let x = logits.row(row);
    let mut token = tokens.at(row, 0);
    if token == -2 {
        let n = x.dim(0);
        let (largest, heat) = (bounds.at(row, 0), T::from_f64(temperature.at(row)));
        let (edge, end, seed) = (edges.at(row, 0), ends.at(row, 0) as i64, seed.at(row));
        let mut earliest = T::INFINITY;
        for from in range(0, n, PART) {
            let part = x.slice(from, (n - from).min(PART));
            if part.map(|v| if v >= edge { 1i32 } else { 0 }).sum() > 0 {
                let (time, at) = part
                    .enumerate()
                    .map(|(v, i)| {
                        let runs = v > edge || (v == edge && from + i < end);
                        let time = exponential::<T>(seed, from + i) / share(v, largest, heat);
                        (if runs { time } else { T::INFINITY }, i as i32)
                    })
                    .fold_with((T::INFINITY, i32::MAX), |(t, at), (time, i)| if time < t { (time, i) } else { (t, at) })
                    .reduce(|(t, at), (time, i)| if time < t || (time == t && i < at) { (time, i) } else { (t, at) });
                if time < earliest {
                    earliest = time;
                    token = from + at as i64;
                }
            }
        }
    }
    drawn.row(row).set(0, token);
}

/// Lowers the logits of tokens that a row has seen: `frequency_data[j]` is a token and how often it came, of row `r` for `j` from
/// `frequency_offsets[r]` to the next offset. A logit is divided by `repetition` (multiplied, below 0), and loses `frequency` for each
/// time, and `presence` if there was one.
#[kernel(op = "apply_penalties_to_logits", grid(logits.dim(0)))]
pub fn apply_penalties_to_logits<T: Float>(
    logits: &mut Buffer<T, 2>,
    frequency_data: In<i32, 2>,
    frequency_offsets: In<u32, 1>,
    frequency: In<f32, 1>,
    presence: In<f32, 1>,
    repetition: In<f32, 1>,
) {
    let row = program_id(0);
    let (frequency, presence) = (T::from_f64(frequency.at(row)), T::from_f64(presence.at(row)));
    let repetition = T::from_f64(repetition.at(row));
    let end = (frequency_offsets.at(row + 1) as i64).min(frequency_data.dim(0));
    for j in (frequency_offsets.at(row) as i64)..end {
        let (token, count) = (frequency_data.at(j, 0) as i64, frequency_data.at(j, 1));
        let logit = logits.row(row).at(token);
        let repeated = if logit > 0 { logit / repetition } else { logit * repetition };
        let penalty = frequency * T::from_i64(count as i64) + presence;
        logits.row(row).set(token, if count > 0 { repeated - penalty } else { repeated });
    }
}

/// Counts a new token of each sequence: in the first of its rows of `data` that has the token, or is free because its token is below 0.
/// `before` is what `data` is before. Sequence `s` has the rows from `offsets[s]` to the next offset; without such a row nothing changes.
#[kernel(op = "update_frequency_data", grid(tokens.dim(0)))]
pub fn update_frequency_data(data: &mut Buffer<i32, 2>, before: In<i32, 2>, offsets: In<u32, 1>, tokens: In<i64, 1>) {
    let sequence = program_id(0) * 1;
    let token = tokens.at(sequence);
    let first = offsets.at(sequence) as i64;
    let count = (offsets.at(sequence + 1) as i64).min(before.dim(0)) - first;
    let at = lanes(count.max(0))
        .map(|i| {
            let known = before.at(first + i, 0);
            if known as i64 == token || known < 0 { i } else { i64::MAX }
        })
        .min();
    if at < count && token >= 0 {
        let is_known = before.at(first + at, 0) as i64 == token;
        data.scatter([first + at, 0], token as i32);
        data.scatter([first + at, 1], if is_known { before.at(first + at, 1) + 1 } else { 1 });
    }
}

/// Writes one value to `data[indices[k, 0], indices[k, 1]]` for each `k`. Negative indices count from the end; nothing is written outside.
#[kernel(op = "scatter_set_constant", grid(indices.dim(0) / 256), dtypes(I = [i32, i64]))]
pub fn scatter_set_constant<T: Number, I: Int>(data: &mut Buffer<T, 2>, indices: In<I, 2>, #[param] value: f64) {
    let block = program_id(0);
    let first = block * 256;
    let count = (indices.dim(0) - first).min(256);
    let value = value as T;
    lanes(count).for_each(|k| {
        let (i, j) = (indices.at(first + k, 0) as i64, indices.at(first + k, 1) as i64);
        data.scatter([if i < 0 { i + data.dim(0) } else { i }, if j < 0 { j + data.dim(1) } else { j }], value);
    });
}
