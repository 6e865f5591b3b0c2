//! Kernels that sort, and that write by index.

use max::dtype::DType;
use max::kernel::ParamArg;

use super::rows::{exact, order};
use crate::case::{Case, Param, Problem, elements};
use crate::number::{Num, Values, Want};
use crate::random::Rng;

/// Elements of a run.
const RUN: usize = 512;

/// How many elements of its run come before each one.
fn ranks(p: &Problem) -> Vec<Vec<Want>> {
    let n = p.dims(1)[1] as usize;
    let mut ranks = vec![Num::Int(0); p.values[1].len()];
    for (r, row) in p.values[1].chunks(n.max(1)).enumerate() {
        for (k, run) in row.chunks(RUN).enumerate() {
            for (rank, i) in order(run, p.flag("descending")).into_iter().enumerate() {
                ranks[r * n + k * RUN + i] = Num::Int(rank as i128);
            }
        }
    }
    vec![exact(ranks)]
}

/// Few different elements, and none that is NaN.
fn ties(p: &mut Problem) {
    let (mut rng, is_float) = (Rng(7), p.dtypes[0].is_float());
    p.set(1, |_| match rng.below(60) {
        value if is_float => Num::Float(value as f64),
        value => Num::Int(value as i128),
    });
}

/// Ranks in runs: an order of the elements of each.
fn orders(p: &mut Problem) {
    let n = p.dims(3)[1] as usize;
    let mut rng = Rng(n as u64);
    let mut ranks = Vec::new();
    for _ in 0..p.dims(3)[0] {
        for k in (0..n).step_by(RUN) {
            let mut run: Vec<usize> = (0..RUN.min(n - k)).collect();
            (1..run.len()).for_each(|i| run.swap(i, rng.below(i + 1)));
            ranks.append(&mut run);
        }
    }
    p.set(3, |at| Num::Int(ranks[at] as i128));
}

/// Runs by ranks, and what stood beside their elements. Where ranks are none, the first elements of both stay where they were.
fn by_ranks(p: &Problem) -> Vec<Vec<Want>> {
    let n = p.dims(2)[1] as usize;
    let in_run = |at: usize| at % n.max(1) % RUN;
    let mut values = p.values[2].clone();
    let mut beside: Vec<Num> = (0..values.len()).map(|at| Num::Int(in_run(at) as i128)).collect();
    for (at, rank) in p.values[3].iter().enumerate() {
        let (first, end) = (at - in_run(at), n - (at % n - in_run(at)));
        if rank.int() < end.min(RUN) as i128 {
            let place = first + rank.int() as usize;
            values[place] = p.values[2][at];
            beside[place] = if p.flag("at") { p.values[4][at] } else { Num::Int((at % n) as i128) };
        }
    }
    vec![exact(values), exact(beside)]
}

/// Pairs of elements in order, with what stood beside them.
fn merged(p: &Problem) -> Vec<Vec<Want>> {
    let n = p.dims(2)[1] as usize;
    let (mut values, mut beside) = (Vec::new(), Vec::new());
    for (r, row) in p.values[2].chunks(n.max(1)).enumerate() {
        for (k, pair) in row.chunks(2).enumerate() {
            for i in order(pair, p.flag("descending")) {
                values.push(pair[i]);
                beside.push(p.values[3][r * n + 2 * k + i]);
            }
        }
    }
    vec![exact(values), exact(beside)]
}

/// The updates of each row, made in order.
fn scattered(p: &Problem, combine: impl Fn(Want, Num) -> Want) -> Vec<Vec<Want>> {
    let (n, count) = (p.dims(1)[1] as usize, p.dims(2)[1] as usize);
    let mut all = exact(p.values[1].iter().copied());
    for k in 0..p.dims(1)[0] as usize * count {
        let index = p.values[3][k].int();
        let index = if index < 0 { index + n as i128 } else { index };
        if (0..n as i128).contains(&index) {
            let at = k / count * n + index as usize;
            all[at] = combine(all[at], p.values[2][k]);
        }
    }
    vec![all]
}

fn combined(p: &Problem) -> Vec<Vec<Want>> {
    scattered(p, combining(p))
}

/// What an update makes of an element.
fn combining(p: &Problem) -> impl Fn(Want, Num) -> Want {
    let ParamArg::String(by) = p.param("by") else { panic!("a string") };
    // Each step is rounded to the dtype.
    let step = match p.dtypes[0] {
        DType::F16 => 8192.0,
        DType::BF16 => 65536.0,
        _ => 1.0,
    };
    move |old, new| match (old.value, new) {
        (Num::Int(a), Num::Int(b)) => Want::exact(Num::Int(match by {
            "add" => a.wrapping_add(b),
            "mul" => a.wrapping_mul(b),
            "max" => a.max(b),
            _ => a.min(b),
        })),
        (a, b) => {
            let (a, b) = (a.float(), b.float());
            let value = match by {
                "add" => a + b,
                "mul" => a * b,
                // -0 is below 0.
                "max" => {
                    if a == b && a.is_sign_negative() {
                        b
                    } else {
                        a.max(b)
                    }
                }
                _ => {
                    if a == b && a.is_sign_negative() {
                        a
                    } else if a == b {
                        b
                    } else {
                        a.min(b)
                    }
                }
            };
            let grown = if by == "mul" { old.scale * b.abs() } else { old.scale };
            let rounding = if by == "max" || by == "min" { 0.0 } else { (a.abs() + b.abs() + value.abs()) * step };
            Want { value: Num::Float(value), scale: grown + rounding }
        }
    }
}

fn replaced(p: &Problem) -> Vec<Vec<Want>> {
    let (n, count) = (p.dims(1)[1] as usize, p.dims(2)[0]);
    let zero = if p.operands[1].dtype.is_float() { Num::Float(0.0) } else { Num::Int(0) };
    let element = |at: usize| match p.values[3][at / n].int() {
        from if from < 0 => p.values[1][at],
        from if from < i128::from(count) => p.values[2][from as usize * n + at % n],
        _ => zero,
    };
    vec![exact((0..p.values[1].len()).map(element))]
}

/// The number of the last update that names each element, counted from 1.
fn last_updates(p: &Problem) -> Vec<Vec<Want>> {
    let (n, count) = (p.dims(0)[1], p.dims(1)[1] as usize);
    let mut last = vec![Num::Int(0); p.operands[0].len()];
    for (k, index) in p.values[1].iter().enumerate() {
        let index = index.int();
        let index = if index < 0 { index + i128::from(n) } else { index };
        if (0..i128::from(n)).contains(&index) {
            last[k / count * n as usize + index as usize] = Num::Int((k % count + 1) as i128);
        }
    }
    vec![exact(last)]
}

/// Each element, or the update whose number is given for it, if there is one.
fn chosen(p: &Problem) -> Vec<Vec<Want>> {
    let (n, count) = (p.dims(1)[1] as usize, p.dims(2)[1] as usize);
    let zero = if p.operands[1].dtype.is_float() { Num::Float(0.0) } else { Num::Int(0) };
    let element = |at: usize| match p.values[3][at].int() {
        number if number <= 0 => p.values[1][at],
        number if number <= count as i128 => p.values[2][at / n * count + number as usize - 1],
        _ => zero,
    };
    vec![exact((0..p.values[1].len()).map(element))]
}

/// The updates of each row, of which the operands name the elements in ascending order.
fn combined_sorted(p: &Problem) -> Vec<Vec<Want>> {
    let (n, count) = (p.dims(1)[1] as usize, p.dims(2)[1] as usize);
    let step = combining(p);
    let mut all = exact(p.values[1].iter().copied());
    for (at, index) in p.values[3].iter().enumerate() {
        if (0..n as i128).contains(&index.int()) {
            let row = at / count;
            let to = row * n + index.int() as usize;
            all[to] = step(all[to], p.values[2][row * count + p.values[4][at].int() as usize]);
        }
    }
    vec![all]
}

/// Indices in ascending order, of which some name no element, some the same one, and some elements have none; and each position
/// once.
fn spread(p: &mut Problem) {
    let (n, count) = (p.dims(1)[1], p.dims(3)[1] as usize);
    let mut rng = Rng(n as u64);
    let index = |_| rng.below(n as usize + 8) as i64 / 3 * 3 - 4;
    let mut indices: Vec<i64> = (0..p.dims(3)[0] as usize * count).map(index).collect();
    indices.chunks_mut(count).for_each(<[i64]>::sort_unstable);
    p.set(3, |at| Num::Int(indices[at].into()));
    p.set(4, |at| Num::Int((count - 1 - at % count) as i128));
}

/// A matrix twice, and updates with their indices for each of its rows.
fn updates(s: &[i64]) -> Vec<Vec<i64>> {
    vec![vec![s[0], s[1]], vec![s[0], s[1]], vec![s[0], s[2]], vec![s[0], s[2]]]
}

fn by(rng: &mut Rng) -> Vec<Param> {
    vec![("by", ParamArg::String(rng.one_of(&["add", "mul", "max", "min"])))]
}

fn descending(rng: &mut Rng) -> Param {
    ("descending", ParamArg::Bool(rng.below(2) == 1))
}

pub fn cases() -> Vec<Case> {
    vec![
        Case::program("rank_runs", |s| vec![vec![s[0], s[1]]; 2], ranks)
            .params(|rng| vec![descending(rng)])
            .made([[3, 300, 1, 1, 1], [2, 1300, 1, 1, 1], [2, 512, 1, 1, 1], [4, 67, 1, 1, 1]], ties),
        Case::program("sort_runs", |s| vec![vec![s[0], s[1]]; 5], by_ranks)
            .values(&[Values::Any, Values::Any, Values::Any, Values::Within(600.0, 700.0), Values::Any])
            .params(|rng| vec![("at", ParamArg::Bool(rng.below(2) == 1))])
            .made([[3, 300, 1, 1, 1], [1, 1300, 1, 1, 1], [2, 512, 1, 1, 1], [5, 1, 1, 1, 1]], orders),
        Case::program("merge_runs", |s| vec![vec![s[0], s[1]]; 4], merged)
            .params(|rng| vec![descending(rng), ("run", ParamArg::Int(1))]),
        Case::program("scatter", updates, |p| scattered(p, |_, new| Want::exact(new))).values(&[
            Values::Any,
            Values::Any,
            Values::Any,
            Values::Mostly(-40.0, 40.0),
        ]),
        Case::program("scatter_reduce", updates, combined)
            .reduces()
            .ulps(1.0)
            .values(&[Values::Any, Values::Within(-2.0, 2.0), Values::Within(-2.0, 2.0), Values::Mostly(-40.0, 40.0)])
            .params(by),
        Case::program("last_updates", |s| vec![vec![s[0], s[1]], vec![s[0], s[2]]], last_updates)
            .values(&[Values::Any, Values::Mostly(-40.0, 40.0)]),
        Case::program(
            "scatter_last",
            |s| vec![vec![s[0], s[1]], vec![s[0], s[1]], vec![s[0], s[2]], vec![s[0], s[1]]],
            chosen,
        )
        .values(&[Values::Any, Values::Any, Values::Any, Values::Mostly(-10.0, 40.0)]),
        // Indices that are drawn are in no order: values that are made are.
        Case::program(
            "scatter_reduce_sorted",
            |s| vec![vec![s[0], s[1]], vec![s[0], s[1]], vec![s[0], s[2]], vec![s[0], s[2]], vec![s[0], s[2]]],
            combined_sorted,
        )
        .reduces()
        .ulps(1.0)
        .values(&[
            Values::Any,
            Values::Within(-2.0, 2.0),
            Values::Within(-2.0, 2.0),
            Values::Within(0.0, 0.0),
            Values::Within(0.0, 0.0),
        ])
        .params(by)
        .made([[3, 300, 70, 1, 1], [2, 33, 257, 1, 1], [1, 5, 64, 1, 1], [2, 40, 1, 1, 1]], spread),
        Case::program(
            "replace_rows",
            |s| vec![vec![s[0], s[1]], vec![s[0], s[1]], vec![s[2], s[1]], vec![s[0]]],
            replaced,
        )
        .work(|shapes| shapes.iter().map(|dims| elements(dims)).sum())
        .values(&[Values::Any, Values::Any, Values::Any, Values::Mostly(-10.0, 40.0)]),
    ]
}
