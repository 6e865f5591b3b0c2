//! Kernels that reduce the middle axis of `[outer, axis, inner]`.

use super::rows::{extreme, extreme_at, mean, product, total};
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

pub fn cases() -> Vec<Case> {
    let number = [Values::Mostly(-4.0, 4.0)];
    vec![
        columns("sum_columns", total).reduces().ulps(1.0),
        columns("mean_columns", mean).reduces().ulps(2.0),
        columns("prod_columns", product).reduces().ulps(1.0).values(&[Values::Within(0.9, 1.1)]),
        columns("reduce_max_columns", |p, x| Want::exact(extreme(p, x, true))).values(&number),
        columns("reduce_min_columns", |p, x| Want::exact(extreme(p, x, false))).values(&number),
        columns("argmax_columns", |_, x| extreme_at(x, true)),
        columns("argmin_columns", |_, x| extreme_at(x, false)),
    ]
}
