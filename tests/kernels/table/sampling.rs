//! Kernels that draw tokens, and that change logits before.

use std::cmp::Ordering;

use max::dtype::DType;
use max::kernel::ParamArg;

use super::paged_attention::{dims, integers};
use super::random::philox;
use super::rows::exact;
use crate::case::{Case, Problem, elements};
use crate::number::{Num, Values, Want};

/// A number of an exponential distribution, of a token under a seed.
fn exponential(p: &Problem, seed: i64, token: usize) -> f64 {
    let halves = |v: u64| [v as u32, (v >> 32) as u32];
    let [low, high] = halves(token as u64);
    let [a, b, ..] = philox([low, high, 0, 0], halves(seed as u64));
    let last = if p.compute() == DType::F64 { 1.0 - 0.5f64.powi(53) } else { 1.0 - 0.5f64.powi(24) };
    let u = f64::from(a) * 0.5f64.powi(32) + (f64::from(b) + 0.5) * 0.5f64.powi(64);
    -(-u.min(last)).ln_1p()
}

/// The tokens of a row, the likeliest first; of equal ones the first. `None` with NaN.
fn order(x: &[f64]) -> Option<Vec<usize>> {
    if x.iter().any(|v| v.is_nan()) {
        return None;
    }
    let mut order: Vec<usize> = (0..x.len()).collect();
    // Stable. Zeros of both signs are equal.
    order.sort_by(|a, b| x[*b].partial_cmp(&x[*a]).unwrap_or(Ordering::Equal));
    Some(order)
}

/// A row's token if it is known, its largest logit, and the tokens that are left: the likeliest first.
fn likely(p: &Problem, x: &[f64], top_k: i64, heat: f64, min_p: f64) -> (i64, f64, Vec<usize>) {
    let Some(mut order) = order(x) else { return (-1, f64::NAN, Vec::new()) };
    let largest = order.first().map_or(f64::NEG_INFINITY, |first| x[*first]);
    if !largest.is_finite() {
        return (-1, largest, Vec::new());
    }
    if top_k == 1 || heat <= 0.0 {
        return (order[0] as i64, largest, vec![order[0]]);
    }
    // Of `f32` and halves, smaller shares are 0.
    let least = if p.compute() == DType::F64 { 0.0 } else { 0.7e-45 };
    let share = |token: &usize| ((x[*token] - largest) / heat).exp();
    order.retain(|token| share(token) > least && share(token) >= min_p);
    if top_k > 0 {
        order.truncate(top_k as usize);
    }
    (-2, largest, order)
}

/// How many of the likeliest tokens have `top_p` of the shares of all.
fn nucleus(x: &[f64], order: &[usize], heat: f64, top_p: f64) -> usize {
    let share = |token: &usize| ((x[*token] - x[order[0]]) / heat).exp();
    let total: f64 = order.iter().map(share).sum();
    let mut sum = 0.0;
    let last = order.iter().position(|token| {
        sum += share(token);
        sum >= top_p * total
    });
    last.filter(|_| top_p < 1.0).map_or(order.len(), |last| last + 1)
}

/// Of the tokens that are left, the last one's logit, and how many have it.
fn edge(x: &[f64], order: &[usize]) -> (f64, usize) {
    let edge = x[order[order.len() - 1]];
    (edge, order.iter().filter(|token| x[**token] == edge).count())
}

fn top_k(p: &Problem) -> Vec<Vec<Want>> {
    let ([rows, n], logits) = (dims(p, 3), p.floats(3));
    let (top_k, [temperature, min_p]) = (integers(p, 4), [5, 6].map(|operand| p.floats(operand)));
    let (mut tokens, mut edges, mut rooms) = (Vec::new(), Vec::new(), Vec::new());
    for row in 0..rows {
        let x = &logits[row * n..][..n];
        let (token, largest, order) = likely(p, x, top_k[row], temperature[row], min_p[row]);
        let (last, room) = if token == -2 { edge(x, &order) } else { (largest, 1) };
        tokens.push(Num::Int(token.into()));
        edges.extend([largest, last].map(Num::Float));
        rooms.push(Num::Int(room as i128));
    }
    let edges = edges.into_iter().map(|value| Want { value, scale: f64::MIN_POSITIVE });
    vec![exact(tokens), edges.collect(), exact(rooms)]
}

/// The tokens of a row that `bounds` and `rooms` leave.
fn left(x: &[f64], bound: f64, room: usize) -> Vec<usize> {
    let order = order(x).unwrap_or_default();
    let above = order.iter().filter(|token| x[**token] > bound).count();
    order.into_iter().filter(|token| x[*token] >= bound).take(above + room).collect()
}

fn top_p(p: &Problem) -> Vec<Vec<Want>> {
    let ([rows, n], logits, tokens) = (dims(p, 2), p.floats(2), integers(p, 3));
    let (bounds, rooms, [temperature, top_p]) = (p.floats(4), integers(p, 5), [6, 7].map(|operand| p.floats(operand)));
    let (mut edges, mut ends) = (Vec::new(), Vec::new());
    for row in 0..rows {
        let (mut last, mut end) = (bounds[2 * row + 1], 0);
        if tokens[row] == -2 {
            let x = &logits[row * n..][..n];
            let mut order = left(x, last, rooms[row] as usize);
            order.truncate(nucleus(x, &order, temperature[row], top_p[row]));
            let (of_last, taken) = edge(x, &order);
            let equal = (0..n).filter(|token| x[*token] == of_last);
            last = of_last;
            end = if equal.clone().count() == taken { n } else { order[order.len() - 1] + 1 };
        }
        edges.push(Num::Float(last));
        ends.push(Num::Int(end as i128));
    }
    vec![exact(edges), exact(ends)]
}

fn drawn(p: &Problem) -> Vec<Vec<Want>> {
    let ([rows, n], logits, tokens) = (dims(p, 1), p.floats(1), integers(p, 2));
    let [bounds, edges, temperature] = [3, 4, 6].map(|operand| p.floats(operand));
    let (ends, seeds) = (integers(p, 5), integers(p, 7));
    let token = |row: usize| {
        if tokens[row] != -2 {
            return tokens[row];
        }
        let x = &logits[row * n..][..n];
        let runs = |token: &usize| x[*token] > edges[row] || (x[*token] == edges[row] && (*token as i64) < ends[row]);
        let share = |token: usize| ((x[token] - bounds[2 * row]) / temperature[row]).exp();
        let time = |token: &usize| exponential(p, seeds[row], *token) / share(*token);
        let winner = (0..n).filter(runs).min_by(|a, b| time(a).total_cmp(&time(b)));
        winner.map_or(-2, |token| token as i64)
    };
    vec![exact((0..rows).map(|row| Num::Int(token(row).into())))]
}

/// Logits as they come: few large ones, some tokens ruled out; and rows without a token, with NaN or an infinity. Parameters of a row.
fn logit(row: usize, token: usize, n: usize) -> f64 {
    let spread = ((row * n + token) * 7919 + 31) % 4099;
    let spread = spread as f64 / 4099.0;
    match (row % 8, token % 5) {
        (5, _) => f64::NEG_INFINITY,
        (6, _) if token == n / 2 => f64::NAN,
        (7, _) if token == n / 3 => f64::INFINITY,
        (1 | 2, 3) => f64::NEG_INFINITY,
        // Many equal ones.
        (3, _) => (spread * 6.0).floor(),
        _ => 12.0 * spread.powi(3) - 4.0,
    }
}

/// `top_k`, temperature, `top_p` and `min_p` of a row; the last half of the rows are greedy.
fn parameters(row: usize, rows: usize) -> (i64, f64, f64, f64) {
    let heat = if row >= rows / 2 { 0.0 } else { [1.0, 0.7, 1.3, 2.0, 0.0][row % 5] };
    ([-1, 40, 3, 7, -1, 2, 0, 5, 1][row % 9], heat, [1.0, 0.9, 0.35, 0.6][row % 4], [0.0, 0.0, 0.07][row % 3])
}

fn as_logits(p: &mut Problem) {
    let [rows, n] = dims(p, 3);
    p.set(3, |i| Num::Float(logit(i / n, i % n, n)));
    p.set(4, |row| Num::Int(parameters(row, rows).0.into()));
    p.set(5, |row| Num::Float(parameters(row, rows).1));
    p.set(6, |row| Num::Float(parameters(row, rows).3));
}

/// What `sampling_top_k` leaves of each row of the logits in an operand, whose parameters are as they are read: tokens, two bounds and rooms.
fn after_top_k(p: &Problem, logits: usize) -> Vec<(i64, [f64; 2], usize)> {
    let ([rows, n], all) = (dims(p, logits), p.floats(logits));
    let of = |row: usize| {
        let x = &all[row * n..][..n];
        let (top_k, heat, _, min_p) = parameters(row, rows);
        let (token, largest, order) = likely(p, x, top_k, f64::from(heat as f32), f64::from(min_p as f32));
        let (last, room) = if token == -2 { edge(x, &order) } else { (largest, 1) };
        (token, [largest, last], room)
    };
    (0..rows).map(of).collect()
}

fn as_bounds(p: &mut Problem) {
    let [rows, n] = dims(p, 2);
    p.set(2, |i| Num::Float(logit(i / n, i % n, n)));
    let left = after_top_k(p, 2);
    p.set(3, |row| Num::Int(left[row].0.into()));
    p.set(4, |i| Num::Float(left[i / 2].1[i % 2]));
    p.set(5, |row| Num::Int(left[row].2 as i128));
    p.set(6, |row| Num::Float(parameters(row, rows).1));
    p.set(7, |row| Num::Float(parameters(row, rows).2));
}

fn as_edges(p: &mut Problem) {
    let [rows, n] = dims(p, 1);
    p.set(1, |i| Num::Float(logit(i / n, i % n, n)));
    let left = after_top_k(p, 1);
    p.set(2, |row| Num::Int(left[row].0.into()));
    p.set(3, |i| Num::Float(left[i / 2].1[i % 2]));
    p.set(4, |row| Num::Float(left[row].1[1]));
    // Some of the equal ones are left out.
    p.set(5, |row| Num::Int(if row % 2 == 0 { n } else { n / 2 } as i128));
    p.set(6, |row| Num::Float(parameters(row, rows).1));
    p.set(7, |row| Num::Int((row * row) as i128 + rows as i128));
}

/// The entries of each row, one after the other.
fn penalized(p: &Problem) -> Vec<Vec<Want>> {
    let ([rows, n], data, offsets) = (dims(p, 0), integers(p, 1), integers(p, 2));
    let [frequency, presence, repetition] = [3, 4, 5].map(|operand| p.floats(operand));
    // Each step is rounded to the dtype.
    let step = match p.dtypes[0] {
        DType::F16 => 8192.0,
        DType::BF16 => 65536.0,
        _ => 1.0,
    };
    let mut logits = exact(p.values[0].iter().copied());
    for row in 0..rows {
        let entries = offsets[row].max(0) as usize..(offsets[row + 1].max(0) as usize).min(data.len() / 2);
        for entry in entries {
            let Some(token) = usize::try_from(data[2 * entry]).ok().filter(|token| *token < n) else { continue };
            let count = data[2 * entry + 1] as f64;
            let old = logits[row * n + token];
            let logit = old.value.float();
            let by = if logit > 0.0 { 1.0 / repetition[row] } else { repetition[row] };
            let penalty = if count > 0.0 { frequency[row] * count + presence[row] } else { 0.0 };
            let sizes = (logit * by).abs() + (frequency[row] * count).abs() + presence[row].abs();
            let value = Num::Float(logit * by - penalty);
            logits[row * n + token] = Want { value, scale: old.scale * by.abs() + sizes * step };
        }
    }
    vec![logits]
}

/// Rows with equally many entries, of which each two neighbours are of one token.
fn as_entries(p: &mut Problem) {
    let ([rows, n], entries) = (dims::<2>(p, 0), dims::<2>(p, 1)[0]);
    p.set(1, |i| Num::Int(if i % 2 == 0 { (i / 4 % n.max(1)) as i128 } else { (i % 3) as i128 }));
    p.set(2, |row| Num::Int((row * entries / rows.max(1)) as i128));
}

/// A token of each sequence is counted in its first row that has it or is free.
fn counted(p: &Problem) -> Vec<Vec<Want>> {
    let (before, offsets, tokens) = (integers(p, 1), integers(p, 2), integers(p, 3));
    let mut data = exact(p.values[0].iter().copied());
    for (sequence, token) in tokens.into_iter().enumerate().filter(|(_, token)| *token >= 0) {
        let rows = offsets[sequence] as usize..(offsets[sequence + 1] as usize).min(before.len() / 2);
        let mut rows = rows.filter(|row| before[2 * row] == token || before[2 * row] < 0);
        if let Some(row) = rows.next() {
            let count = if before[2 * row] == token { (before[2 * row + 1] as i32).wrapping_add(1) } else { 1 };
            data[2 * row] = Want::exact(Num::Int((token as i32).into()));
            data[2 * row + 1] = Want::exact(Num::Int(count.into()));
        }
    }
    vec![data]
}

/// Sequences with equally many rows, of which the last are free.
fn as_counts(p: &mut Problem) {
    let (rows, sequences) = (dims::<2>(p, 1)[0], dims::<1>(p, 3)[0].max(1));
    let each = (rows / sequences).max(1);
    for operand in [0, 1] {
        p.set(operand, |i| {
            let (row, column) = (i / 2 % each, i % 2);
            let is_free = row > each / 2;
            Num::Int(if column == 1 {
                if is_free { 0 } else { 1 + (i % 5) as i128 }
            } else if is_free {
                -1
            } else {
                (3 * row) as i128
            })
        });
    }
    p.set(2, |sequence| Num::Int((sequence * rows / sequences) as i128));
    p.set(3, |sequence| Num::Int([0, 3, 4, 700, -1, 6][sequence % 6]));
}

fn set(p: &Problem) -> Vec<Vec<Want>> {
    let ([rows, columns], indices) = (dims::<2>(p, 0), integers(p, 1));
    let value = p.number("value");
    let value = if p.operands[0].dtype.is_float() { Num::Float(value) } else { Num::Int(value as i128) };
    let mut data = exact(p.values[0].iter().copied());
    for pair in indices.chunks(2) {
        let at = |index: i64, n: usize| {
            let index = if index < 0 { index.wrapping_add(n as i64) } else { index };
            usize::try_from(index).ok().filter(|index| *index < n)
        };
        if let (Some(i), Some(j)) = (at(pair[0], rows), at(pair[1], columns)) {
            data[i * columns + j] = Want::exact(value);
        }
    }
    vec![data]
}

pub fn cases() -> Vec<Case> {
    let within = Values::Within;
    // Rows are read many times.
    let work = |shapes: &[Vec<i64>]| shapes.iter().map(|dims| elements(dims)).max().unwrap_or(1) * 20;
    // Where logits do not belong to what is left of them, tokens are known.
    let known = within(0.0, 40.0);
    vec![
        Case::program(
            "sampling_top_k",
            |s| {
                let (rows, row) = (s[0], vec![s[0]]);
                vec![vec![rows, 1], vec![rows, 2], vec![rows, 1], vec![rows, s[1]], row.clone(), row.clone(), row]
            },
            top_k,
        )
        // Zeros of both signs are equal: which one a bound has does not matter.
        .ulps(1e-3)
        .work(work)
        .values(&[
            Values::Any,
            Values::Any,
            Values::Any,
            within(-8.0, 8.0),
            within(-2.0, 40.0),
            within(-0.1, 2.0),
            within(-0.2, 0.2),
        ])
        .sizes([[3, 1500, 1, 1, 1], [1, 2049, 1, 1, 1]])
        .made([[180, 70, 1, 1, 1], [36, 1031, 1, 1, 1], [18, 2500, 1, 1, 1]], as_logits),
        Case::program(
            "sampling_top_p",
            |s| {
                let (rows, row) = (s[0], vec![s[0]]);
                let [one, two] = [1, 2].map(|columns| vec![rows, columns]);
                vec![one.clone(), one.clone(), vec![rows, s[1]], one.clone(), two, one, row.clone(), row]
            },
            top_p,
        )
        .work(work)
        .values(&[Values::Any, Values::Any, within(-8.0, 8.0), known, Values::Any, Values::Any])
        .made([[180, 70, 1, 1, 1], [36, 1031, 1, 1, 1], [18, 2500, 1, 1, 1]], as_bounds),
        Case::program(
            "sampling_draw",
            |s| {
                let (rows, row) = (s[0], vec![s[0]]);
                let [one, two] = [1, 2].map(|columns| vec![rows, columns]);
                vec![one.clone(), vec![rows, s[1]], one.clone(), two, one.clone(), one, row.clone(), row]
            },
            drawn,
        )
        .work(work)
        .values(&[Values::Any, within(-8.0, 8.0), known, Values::Any])
        .made([[180, 70, 1, 1, 1], [36, 1031, 1, 1, 1], [18, 2500, 1, 1, 1]], as_edges),
        Case::program(
            "apply_penalties_to_logits",
            |s| {
                let row = vec![s[0]];
                vec![vec![s[0], s[1]], vec![s[2], 2], vec![s[0] + 1], row.clone(), row.clone(), row]
            },
            penalized,
        )
        .work(|shapes| elements(&shapes[0]) + elements(&shapes[3]) * elements(&shapes[1]))
        .ulps(2.0)
        .values(&[
            within(-8.0, 8.0),
            within(-2.0, 60.0),
            within(0.0, 70.0),
            within(-1.0, 2.0),
            within(-1.0, 2.0),
            within(0.5, 2.0),
        ])
        .made([[150, 40, 700, 1, 1], [3, 300, 90, 1, 1]], as_entries),
        Case::program(
            "update_frequency_data",
            // Of random offsets, two sequences may have one row: what they write there is not defined. So several have no rows.
            |s| {
                let rows = if s[1] > 1 { 0 } else { s[0] };
                vec![vec![rows, 2], vec![rows, 2], vec![s[1] + 1], vec![s[1]]]
            },
            counted,
        )
        .values(&[Values::Any, within(-2.0, 20.0), within(0.0, 140.0), within(-1.0, 20.0)]),
        Case::program(
            "update_frequency_data",
            |s| vec![vec![s[0], 2], vec![s[0], 2], vec![s[1] + 1], vec![s[1]]],
            counted,
        )
        .values(&[Values::Any, Values::Any, within(0.0, 0.0), Values::Any])
        .made([[900, 150, 1, 1, 1], [600, 2, 1, 1, 1], [5, 7, 1, 1, 1]], as_counts),
        Case::program("scatter_set_constant", |s| vec![vec![s[0], s[2]], vec![s[1], 2]], set)
            .values(&[Values::Any, Values::Mostly(-40.0, 40.0)])
            .params(|rng| vec![("value", ParamArg::Float(rng.one_of(&[0.0, 3.0, 100.0])))]),
    ]
}
