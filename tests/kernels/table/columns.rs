//! Kernels along the middle axis of `[outer, axis, inner]`.

use max::kernel::ParamArg;

use super::rows::{cumsum, extreme, extreme_at, logsoftmax, mean, product, softmax, total, var};
use crate::case::{Case, Problem};
use crate::number::{Num, Values, Want};

/// A kernel that makes one number from each column.
fn columns(kernel: &'static str, f: impl Fn(&Problem, &[Num]) -> Want + Send + Sync + 'static) -> Case {
    // Few matrices, so that they can be large.
    let shapes = |s: &[i64]| vec![vec![s[2].min(2), s[0]], vec![s[2].min(2), s[1], s[0]]];
    Case::program(kernel, shapes, move |p| {
        let [outer, axis, inner] = *p.dims(1) else { panic!("{kernel} has rank 3") };
        let at = |o: i64, k: i64, j: i64| p.values[1][((o * axis + k) * inner + j) as usize];
        let column = |o, j| f(p, &(0..axis).map(|k| at(o, k, j)).collect::<Vec<_>>());
        vec![(0..outer).flat_map(|o| (0..inner).map(move |j| (o, j))).map(|(o, j)| column(o, j)).collect()]
    })
}

/// A kernel that makes as many numbers from each column as it has.
fn maps(kernel: &'static str, f: impl Fn(&Problem, &[Num]) -> Vec<Want> + Send + Sync + 'static) -> Case {
    let shapes = |s: &[i64]| vec![vec![s[2].min(2), s[1], s[0]]; 2];
    Case::program(kernel, shapes, move |p| {
        let [outer, axis, inner] = *p.dims(1) else { panic!("{kernel} has rank 3") };
        let at = |o: i64, k: i64, j: i64| ((o * axis + k) * inner + j) as usize;
        let mut all = vec![Want::exact(Num::Int(0)); (outer * axis * inner) as usize];
        for (o, j) in (0..outer).flat_map(|o| (0..inner).map(move |j| (o, j))) {
            let column: Vec<Num> = (0..axis).map(|k| p.values[1][at(o, k, j)]).collect();
            (0..).zip(f(p, &column)).for_each(|(k, want)| all[at(o, k, j)] = want);
        }
        vec![all]
    })
}

pub fn cases() -> Vec<Case> {
    let narrow = [Values::Within(-4.0, 4.0)];
    let number = [Values::Mostly(-4.0, 4.0)];
    vec![
        columns("sum_columns", total).reduces().ulps(1.0),
        columns("mean_columns", mean).reduces().ulps(2.0),
        columns("prod_columns", product).reduces().ulps(1.0).values(&[Values::Within(0.9, 1.1)]),
        columns("reduce_max_columns", |p, x| Want::exact(extreme(p, x, true))).values(&number),
        columns("reduce_min_columns", |p, x| Want::exact(extreme(p, x, false))).values(&number),
        columns("argmax_columns", |p, x| extreme_at(x, !p.flag("smallest")))
            .params(|rng| vec![("smallest", ParamArg::Bool(rng.below(2) == 1))]),
        columns("var_columns", |_, x| var(x)).reduces().ulps(2.0).values(&narrow),
        maps("softmax_columns", softmax).reduces().ulps(4.0),
        maps("logsoftmax_columns", |_, x| logsoftmax(x)).reduces().ulps(4.0),
        maps("cumsum_columns", cumsum).reduces().ulps(1.0).values(&narrow).params(|rng| {
            vec![("exclusive", ParamArg::Bool(rng.below(2) == 1)), ("reverse", ParamArg::Bool(rng.below(2) == 1))]
        }),
    ]
}
