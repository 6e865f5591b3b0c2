//! Kernels that sort, and that write by index.

use max::dtype::DType;
use max::kernel::ParamArg;

use super::rows::{exact, order};
use crate::case::{Case, Param, Problem, elements};
use crate::number::{Num, Values, Want};
use crate::random::Rng;

/// Parts of rows of `part` elements in order, and their positions in the row.
fn sorted_parts(p: &Problem, part: usize) -> Vec<Vec<Want>> {
    let n = p.dims(2)[1] as usize;
    let (mut values, mut positions) = (Vec::new(), Vec::new());
    for row in p.values[2].chunks(n.max(1)) {
        for (k, run) in row.chunks(part).enumerate() {
            for i in order(run, p.flag("descending")) {
                values.push(run[i]);
                positions.push(Num::Int((k * part + i) as i128));
            }
        }
    }
    vec![exact(values), exact(positions)]
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
    let ParamArg::String(by) = p.param("by") else { panic!("a string") };
    // Each step is rounded to the dtype.
    let step = match p.dtypes[0] {
        DType::F16 => 8192.0,
        DType::BF16 => 65536.0,
        _ => 1.0,
    };
    scattered(p, |old, new| match (old.value, new) {
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
    })
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

/// A matrix twice, and updates with their indices for each of its rows.
fn updates(s: &[i64]) -> Vec<Vec<i64>> {
    vec![vec![s[0], s[1]], vec![s[0], s[1]], vec![s[0], s[2]], vec![s[0], s[2]]]
}

fn descending(rng: &mut Rng) -> Param {
    ("descending", ParamArg::Bool(rng.below(2) == 1))
}

pub fn cases() -> Vec<Case> {
    let two = |s: &[i64]| vec![vec![s[0], s[1]], vec![s[0], s[1]], vec![s[0], s[1]]];
    vec![
        Case::program("sort_runs", two, |p| sorted_parts(p, 64)).params(|rng| vec![descending(rng)]),
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
            .params(|rng| vec![("by", ParamArg::String(rng.one_of(&["add", "mul", "max", "min"])))]),
        Case::program(
            "replace_rows",
            |s| vec![vec![s[0], s[1]], vec![s[0], s[1]], vec![s[2], s[1]], vec![s[0]]],
            replaced,
        )
        .work(|shapes| shapes.iter().map(|dims| elements(dims)).sum())
        .values(&[Values::Any, Values::Any, Values::Any, Values::Mostly(-10.0, 40.0)]),
    ]
}
