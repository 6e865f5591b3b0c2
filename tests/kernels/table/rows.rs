//! Kernels of rows: reductions, scans, norms, softmax, order, gather.

use max::dtype::DType;
use max::kernel::ParamArg;
use max::kernel::abi::Access;

use crate::case::{Case, Problem};
use crate::number::{Num, Values, Want};

/// A kernel that makes one row from each row: `f` gets the problem and the rows of all inputs (a vector is the same
/// row for all) and gives a row of each result.
fn rows(
    kernel: &'static str,
    shapes: fn(&[i64]) -> Vec<Vec<i64>>,
    f: impl Fn(&Problem, &[&[Num]]) -> Vec<Vec<Want>> + Send + Sync + 'static,
) -> Case {
    Case::program(kernel, shapes, move |p| {
        let results = p.def.operands.as_slice().iter().filter(|o| o.access != Access::In).count();
        let mut all = vec![Vec::new(); results];
        for r in 0..p.dims(results)[0] as usize {
            let inputs: Vec<&[Num]> = (results..p.values.len())
                .map(|k| match p.dims(k) {
                    [_, n] => &p.values[k][r * *n as usize..][..*n as usize],
                    _ => &p.values[k][..],
                })
                .collect();
            for (all, row) in all.iter_mut().zip(f(p, &inputs)) {
                all.extend(row);
            }
        }
        all
    })
}

/// A row, and one number of it.
fn reduced(s: &[i64]) -> Vec<Vec<i64>> {
    vec![vec![s[0], 1], vec![s[0], s[1]]]
}

/// Two matrices of the same dims.
fn same(s: &[i64]) -> Vec<Vec<i64>> {
    vec![vec![s[0], s[1]], vec![s[0], s[1]]]
}

fn floats(row: &[Num]) -> Vec<f64> {
    row.iter().map(|v| v.float()).collect()
}

/// By how many units in the last place errors can add up along a row of `n`: half of one for each addition. (Engines
/// that add in a tree stay far below.)
fn growth(n: usize) -> f64 {
    2.0 + n as f64 / 2.0
}

/// A sum with the magnitude that its error is relative to.
fn sum(row: &[f64]) -> Want {
    let scale = row.iter().map(|v| v.abs()).sum::<f64>() * growth(row.len());
    // `Iterator::sum` starts at -0.
    Want { value: Num::Float(row.iter().fold(0.0, |a, v| a + v)), scale }
}

pub(super) fn total(p: &Problem, row: &[Num]) -> Want {
    if p.dtypes[0].is_float() { sum(&floats(row)) } else { Want::exact(Num::Int(row.iter().map(|v| v.int()).sum())) }
}

pub(super) fn mean(p: &Problem, row: &[Num]) -> Want {
    let n = row.len();
    match total(p, row) {
        Want { value: Num::Float(sum), scale } => Want { value: Num::Float(sum / n as f64), scale: scale / n as f64 },
        Want { value: Num::Int(sum), .. } => {
            // Sums wrap in 64 bits.
            let sum = if p.dtypes[0] == DType::U64 { i128::from(sum as u64) } else { i128::from(sum as i64) };
            Want::exact(Num::Int(sum.checked_div(n as i128).unwrap_or(0)))
        }
    }
}

/// The mean of the squares of the differences from the mean.
pub(super) fn var(row: &[Num]) -> Want {
    let (x, n) = (floats(row), row.len() as f64);
    let mean = x.iter().sum::<f64>() / n;
    let magnitude = x.iter().map(|v| v.abs()).sum::<f64>() / n;
    let value = x.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n;
    // Errors of the mean are relative to the row's magnitude, and enter each difference.
    let error = |v: &f64| {
        let (difference, off) = ((v - mean).abs(), v.abs() + magnitude * growth(x.len()));
        difference * (2.0 * off + difference * growth(x.len())) + off * off * f64::from(f32::EPSILON)
    };
    Want { value: Num::Float(value), scale: x.iter().map(error).sum::<f64>() / n }
}

pub(super) fn product(p: &Problem, row: &[Num]) -> Want {
    if p.dtypes[0].is_float() {
        let value: f64 = floats(row).iter().product();
        Want { value: Num::Float(value), scale: value.abs() * row.len() as f64 }
    } else {
        Want::exact(Num::Int(row.iter().fold(1, |a, v| a.wrapping_mul(v.int()))))
    }
}

/// Whether `a` comes before `b` in ascending order: NaN last, zeros equal.
fn below(a: Num, b: Num) -> bool {
    match (a, b) {
        (Num::Int(a), Num::Int(b)) => a < b,
        _ => !a.is_nan() && (b.is_nan() || a.float() < b.float()),
    }
}

/// The positions of a row in ascending or descending order, equal elements in the row's.
pub(super) fn order(row: &[Num], descending: bool) -> Vec<usize> {
    let mut at: Vec<usize> = (0..row.len()).collect();
    let cmp = |a: &usize, b: &usize| match (below(row[*a], row[*b]), below(row[*b], row[*a])) {
        (true, _) => std::cmp::Ordering::Less,
        (_, true) => std::cmp::Ordering::Greater,
        _ => std::cmp::Ordering::Equal,
    };
    at.sort_by(|a, b| if descending { cmp(b, a) } else { cmp(a, b) });
    at
}

/// The largest or smallest element: NaN if any is NaN, and -0 below +0.
pub(super) fn extreme(p: &Problem, row: &[Num], largest: bool) -> Num {
    let zero_order = |v: &Num| if largest { v.float().is_sign_negative() } else { v.float().is_sign_positive() };
    let Some(best) = order(row, largest).first().map(|&i| row[i]) else {
        let infinity = if largest { f64::NEG_INFINITY } else { f64::INFINITY };
        return if p.dtypes[0].is_float() { Num::Float(infinity) } else { Num::Int(limit(p, largest)) };
    };
    if let Some(nan) = row.iter().find(|v| v.is_nan()) {
        return *nan;
    }
    let mut equal: Vec<Num> = row.iter().filter(|v| **v == best).copied().collect();
    equal.sort_by_key(zero_order);
    equal[0]
}

/// The smallest value of an integer dtype, or the largest.
fn limit(p: &Problem, smallest: bool) -> i128 {
    let (dtype, bits) = (p.dtypes[0], 8 * p.dtypes[0].size_in_bytes() as u32);
    match (smallest, dtype.is_signed_integral()) {
        (true, true) => -(1 << (bits - 1)),
        (true, false) => 0,
        (false, true) => (1 << (bits - 1)) - 1,
        (false, false) => (1 << bits) - 1,
    }
}

/// The position of the first NaN, or of the first of the largest or smallest elements; the length of an empty row.
pub(super) fn extreme_at(row: &[Num], largest: bool) -> Want {
    let nan = row.iter().position(|v| v.is_nan());
    let at = nan.unwrap_or_else(|| order(row, largest).first().copied().unwrap_or(row.len()));
    Want::exact(Num::Int(at as i128))
}

pub(super) fn exact(values: impl IntoIterator<Item = Num>) -> Vec<Want> {
    values.into_iter().map(Want::exact).collect()
}

/// The first of a row in order, and their positions.
fn top(row: &[Num], [k, room]: [usize; 2], descending: bool) -> Vec<Vec<Want>> {
    let order = order(row, descending);
    let taken = &order[..k];
    let best = |(chunk, elements): (usize, &[Num])| {
        let of_chunk = |i: &&usize| **i / 64 == chunk;
        // What is left, or else what was taken last.
        let left = order[k..].iter().find(of_chunk).or_else(|| taken.iter().rfind(of_chunk));
        left.map_or(elements[0], |&i| row[i])
    };
    let zero = if matches!(row.first(), Some(Num::Float(_))) { Num::Float(0.0) } else { Num::Int(0) };
    let best: Vec<Num> = if room == 1 { vec![zero] } else { row.chunks(64).enumerate().map(best).collect() };
    vec![exact(taken.iter().map(|&i| row[i])), exact(taken.iter().map(|&i| Num::Int(i as i128))), exact(best)]
}

/// The same elements in the order of their positions, of each of two parts of a row, and what lies in scratch memory: how many were
/// taken, and are equal to the last one, up to the end of each 64; and all elements or the best of each 64, behind what is before the
/// bound, if that is looked at.
fn selected(row: &[Num], [k, columns, room]: [usize; 3], descending: bool) -> Vec<Vec<Want>> {
    let parts = 2;
    let zero = if matches!(row.first(), Some(Num::Float(_))) { Num::Float(0.0) } else { Num::Int(0) };
    let padded = |row: Vec<Num>, n: usize| exact(row.into_iter().chain(std::iter::repeat(zero)).take(n));
    let is_equal = |a: Num, b: Num| a == b || (a.is_nan() && b.is_nan());
    // Of the elements in order, how many are before one.
    let before = |part: &[Num], order: &[usize], v: Num| order.iter().position(|&i| is_equal(part[i], v)).unwrap_or(0);
    let mut all = vec![Vec::new(); 4];
    for i in 0..parts {
        let from = i * row.len() / parts;
        let part = &row[from..(i + 1) * row.len() / parts];
        let in_order = order(part, descending);
        let last = part[in_order[k - 1]];
        let ahead = before(part, &in_order, last);
        let mut taken = in_order[..k].to_vec();
        taken.sort_unstable();
        all[0].extend(exact(taken.iter().map(|&i| part[i])));
        all[1].extend(exact(taken.iter().map(|&i| Num::Int((from + i) as i128))));
        let bests: Vec<Num> = part.chunks(64).map(|chunk| chunk[order(chunk, descending)[0]]).collect();
        let mut candidates = part.to_vec();
        if bests.len() >= k {
            let bound = bests[order(&bests, descending)[k - 1]];
            let count = before(part, &in_order, bound);
            let mut places = in_order[..if count >= k { count } else { 0 }].to_vec();
            places.sort_unstable();
            let behind = bests.get(places.len()..).unwrap_or_default();
            candidates = places.iter().map(|&i| part[i]).chain(behind.iter().copied()).collect();
        }
        all[2].extend((1..=columns).map(|chunk| {
            let seen = &part[..(chunk * 64).min(part.len())];
            let ahead = in_order[..ahead].iter().filter(|i| **i < seen.len()).count() as i128;
            let equal = seen.iter().filter(|v| is_equal(**v, last)).count() as i128;
            Want::exact(Num::Int((ahead << 32) + equal))
        }));
        all[3].extend(padded(candidates, room));
    }
    all
}

/// Results of `k` elements of each of a row's two parts, with `k` at most the length of either.
fn selected_shapes(s: &[i64]) -> Vec<Vec<i64>> {
    let n = s[1].max(2);
    let k = s[2].clamp(1, n / 2);
    let scratch = |columns: i64| vec![2 * s[0], columns];
    let chunks = (n + 63) / 64;
    vec![scratch(k), scratch(k), scratch(chunks), scratch((64 * k).min(n).max(chunks)), vec![s[0], n]]
}

/// The same of few elements.
fn top_shapes(s: &[i64]) -> Vec<Vec<i64>> {
    let k = s[2].min(s[1]).min(9);
    // Rows of up to three of these 64 are looked through as a whole.
    let chunks = (s[1] + 63) / 64;
    vec![vec![s[0], k], vec![s[0], k], vec![s[0], if chunks <= 3 { 1 } else { chunks }], vec![s[0], s[1]]]
}

pub(super) fn cumsum(p: &Problem, row: &[Num]) -> Vec<Want> {
    let n = row.len();
    let (exclusive, reverse) = (p.flag("exclusive"), p.flag("reverse"));
    let upto = |i: usize| match (reverse, exclusive) {
        (false, false) => 0..i + 1,
        (false, true) => 0..i,
        (true, false) => i..n,
        (true, true) => i + 1..n,
    };
    (0..n).map(|i| total(p, &row[upto(i)])).collect()
}

pub(super) fn softmax(p: &Problem, row: &[Num]) -> Vec<Want> {
    let x = floats(row);
    let m = x.iter().fold(f64::NEG_INFINITY, |m, v| if m.is_nan() || v.is_nan() { f64::NAN } else { m.max(*v) });
    let s: f64 = x.iter().map(|v| (v - m).exp()).sum();
    let want = |v: &f64| {
        let y = (v - m).exp() / s;
        Want { value: Num::Float(y), scale: y * (growth(x.len()) + (v - m).abs()) + p.tiny() }
    };
    x.iter().map(want).collect()
}

pub(super) fn logsoftmax(row: &[Num]) -> Vec<Want> {
    let x = floats(row);
    let m = x.iter().fold(f64::NEG_INFINITY, |m, v| if m.is_nan() || v.is_nan() { f64::NAN } else { m.max(*v) });
    let s: f64 = x.iter().map(|v| (v - m).exp()).sum();
    let scale = |v: &f64| v.abs() + m.abs() + s.ln() + growth(x.len());
    x.iter().map(|v| Want { value: Num::Float(v - (m + s.ln())), scale: scale(v) }).collect()
}

fn layer_norm(p: &Problem, [x, gamma, beta]: [&[Num]; 3]) -> Vec<Want> {
    let (x, gamma, beta) = (floats(x), floats(gamma), floats(beta));
    let n = x.len() as f64;
    let mean = x.iter().sum::<f64>() / n;
    let magnitude = x.iter().map(|v| v.abs()).sum::<f64>() / n;
    let variance = x.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n;
    let scale = 1.0 / (variance + p.number("epsilon")).sqrt();
    let want = |((v, g), b): ((&f64, &f64), &f64)| {
        // Errors of the mean are relative to the row's magnitude; they enter the variance too.
        let steps = (v.abs() + magnitude + (v - mean).abs() * (1.0 + magnitude * scale)) * growth(x.len());
        Want { value: Num::Float((v - mean) * scale * g + b), scale: steps * scale * g.abs() + b.abs() }
    };
    x.iter().zip(&gamma).zip(&beta).map(want).collect()
}

/// Each row normalized, with the weights of its group's channels, one for as many neighbours.
fn group_norm(p: &Problem) -> Vec<Vec<Want>> {
    let (groups, n) = (p.number("groups") as usize, p.dims(1)[1] as usize);
    let channels = p.dims(2)[0] as usize / groups;
    let row = |r: usize| {
        let weights = |k: usize| -> Vec<Num> {
            (0..n).map(|j| p.values[k][r % groups * channels + j / (n / channels)]).collect()
        };
        layer_norm(p, [&p.values[1][r * n..][..n], &weights(2), &weights(3)])
    };
    vec![(0..p.dims(1)[0] as usize).flat_map(row).collect()]
}

fn rms_norm(p: &Problem, [x, weight]: [&[Num]; 2]) -> Vec<Want> {
    let (x, weight) = (floats(x), floats(weight));
    let mean = x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64;
    let scale = 1.0 / (mean + p.number("epsilon")).sqrt();
    let want = |(v, w): (&f64, &f64)| {
        let y = v * scale * w;
        Want { value: Num::Float(y), scale: y.abs() * growth(x.len()) }
    };
    x.iter().zip(&weight).map(want).collect()
}

fn elements(p: &Problem) -> Vec<Vec<Want>> {
    let (n, count) = (p.dims(1)[1], p.dims(2)[1].max(1) as usize);
    let zero = if p.operands[1].dtype.is_float() { Num::Float(0.0) } else { Num::Int(0) };
    let element = |(k, index): (usize, &Num)| match i64::try_from(index.int()) {
        Ok(i) if (0..n).contains(&i) => p.values[1][k / count * n as usize + i as usize],
        _ => zero,
    };
    vec![exact(p.values[2].iter().enumerate().map(element))]
}

fn gather(p: &Problem) -> Vec<Vec<Want>> {
    let [outer, count, inner] = p.dims(0) else { panic!("gather has rank 3") };
    let axis = p.dims(1)[1];
    let zero = if p.operands[1].dtype.is_float() { Num::Float(0.0) } else { Num::Int(0) };
    let mut all = Vec::new();
    for o in 0..*outer {
        for i in 0..*count {
            let index = p.values[2][i as usize].int();
            let index = if index < 0 { index + i128::from(axis) } else { index };
            let inside = (0..i128::from(axis)).contains(&index);
            for j in 0..*inner {
                let at = (o * axis + if inside { index as i64 } else { 0 }) * inner + j;
                all.push(Want::exact(if inside { p.values[1][at as usize] } else { zero }));
            }
        }
    }
    vec![all]
}

pub fn cases() -> Vec<Case> {
    let number = [Values::Mostly(-4.0, 4.0)];
    let narrow = [Values::Within(-4.0, 4.0)];
    vec![
        rows("sum", reduced, |p, x| vec![vec![total(p, x[0])]]).reduces().ulps(1.0),
        rows("mean", reduced, |p, x| vec![vec![mean(p, x[0])]]).reduces().ulps(2.0),
        rows("var", reduced, |_, x| vec![vec![var(x[0])]]).reduces().ulps(2.0).values(&narrow),
        rows("prod", reduced, |p, x| vec![vec![product(p, x[0])]])
            .reduces()
            .ulps(1.0)
            .values(&[Values::Within(0.9, 1.1)]),
        rows("reduce_max", reduced, |p, x| vec![exact([extreme(p, x[0], true)])]).values(&number),
        rows("reduce_min", reduced, |p, x| vec![exact([extreme(p, x[0], false)])]).values(&number),
        rows("argmax", reduced, |p, x| vec![vec![extreme_at(x[0], !p.flag("smallest"))]])
            .params(|rng| vec![("smallest", ParamArg::Bool(rng.below(2) == 1))]),
        rows("top_k", top_shapes, |p, x| top(x[0], [0, 2].map(|k| p.dims(k)[1] as usize), p.flag("largest")))
            .params(|rng| vec![("largest", ParamArg::Bool(rng.below(2) == 1))]),
        rows("select_k", selected_shapes, |p, x| {
            selected(x[0], [0, 2, 3].map(|k| p.dims(k)[1] as usize), p.flag("largest"))
        })
        .sizes([[3, 1031, 3, 1, 1], [2, 4000, 15, 1, 1], [2, 2600, 1, 1, 1]])
        .params(|rng| vec![("largest", ParamArg::Bool(rng.below(2) == 1)), ("parts", ParamArg::Int(2))]),
        rows("cumsum", same, |p, x| vec![cumsum(p, x[0])]).reduces().ulps(1.0).values(&narrow).params(|rng| {
            vec![("exclusive", ParamArg::Bool(rng.below(2) == 1)), ("reverse", ParamArg::Bool(rng.below(2) == 1))]
        }),
        rows("softmax", same, |p, x| vec![softmax(p, x[0])]).reduces().ulps(4.0),
        rows("logsoftmax", same, |_, x| vec![logsoftmax(x[0])]).reduces().ulps(4.0),
        rows(
            "layer_norm",
            |s| vec![vec![s[0], s[1]], vec![s[0], s[1]], vec![s[1]], vec![s[1]]],
            |p, x| vec![layer_norm(p, [x[0], x[1], x[2]])],
        )
        .reduces()
        .ulps(4.0)
        .values(&narrow)
        .params(|rng| vec![("epsilon", ParamArg::Float(rng.one_of(&[1e-5, 1e-12, 0.1])))]),
        Case::program(
            "group_norm",
            |s| {
                let channels = 6 * (s[2] % 4 + 1);
                let row = channels * (s[1] / channels).max(1);
                vec![vec![s[0], row], vec![s[0], row], vec![channels], vec![channels]]
            },
            group_norm,
        )
        .reduces()
        .ulps(4.0)
        .values(&narrow)
        .params(|rng| {
            vec![
                ("groups", ParamArg::Int(rng.one_of(&[1, 2, 3, 6]))),
                ("epsilon", ParamArg::Float(rng.one_of(&[1e-5, 1e-12, 0.1]))),
            ]
        }),
        rows(
            "rms_norm",
            |s| vec![vec![s[0], s[1]], vec![s[0], s[1]], vec![s[1]]],
            |p, x| vec![rms_norm(p, [x[0], x[1]])],
        )
        .reduces()
        .ulps(4.0)
        .values(&narrow)
        .params(|rng| vec![("epsilon", ParamArg::Float(rng.one_of(&[1e-5, 1e-12, 0.1])))]),
        Case::program("gather", |s| vec![vec![s[0], s[1], s[2]], vec![s[0], s[3], s[2]], vec![s[1]]], gather)
            .values(&[Values::Any, Values::Any, Values::Mostly(-40.0, 40.0)]),
        Case::program("gather_elements", |s| vec![vec![s[0], s[2]], vec![s[0], s[1]], vec![s[0], s[2]]], elements)
            .values(&[Values::Any, Values::Any, Values::Mostly(-10.0, 40.0)]),
    ]
}
