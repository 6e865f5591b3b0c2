//! Matrix products and attention.

use max::dtype::DType;
use max::kernel::ParamArg;

use crate::case::{Case, Problem, elements};
use crate::number::{Num, Values, Want};

/// The product of matrices of `m` by `k` and `k` by `n`, with the error that adding `k` products may make.
pub fn product(a: &[f64], b: &[f64], [m, k, n]: [usize; 3]) -> Vec<Want> {
    let element = |i: usize| {
        let terms = || (0..k).map(|j| a[i / n * k + j] * b[j * n + i % n]);
        let scale = terms().map(f64::abs).sum::<f64>() * (2.0 + k as f64 / 16.0);
        Want { value: Num::Float(terms().fold(0.0, |a, v| a + v)), scale }
    };
    (0..m * n).map(element).collect()
}

fn matmul(p: &Problem) -> Vec<Vec<Want>> {
    let (a, b) = (p.dims(1), p.dims(2));
    let rank = a.len();
    let [m, k, n] = [a[rank - 2], a[rank - 1], b[rank - 1]].map(|d| d as usize);
    let batch = if rank == 3 { a[0] as usize } else { 1 };
    let (a, b) = (p.floats(1), p.floats(2));
    let one = |i: usize| product(&a[i * m * k..][..m * k], &b[i * k * n..][..k * n], [m, k, n]);
    vec![(0..batch).flat_map(one).collect()]
}

/// The product with transposes.
fn transposed(p: &Problem) -> Vec<Vec<Want>> {
    let (a, b) = (p.dims(1), p.dims(2));
    let rank = a.len();
    let [m, k, n] = [a[rank - 2], a[rank - 1], b[rank - 2]].map(|d| d as usize);
    let batch = if rank == 3 { a[0] as usize } else { 1 };
    let (a, b) = (p.floats(1), p.floats(2));
    let one = |i: usize| {
        let columns: Vec<f64> = (0..k * n).map(|at| b[i * k * n + at % n * k + at / n]).collect();
        product(&a[i * m * k..][..m * k], &columns, [m, k, n])
    };
    vec![(0..batch).flat_map(one).collect()]
}

/// The exact product of matrices of integers, as far as 32 bits hold it.
fn integers(p: &Problem) -> Vec<Vec<Want>> {
    let [m, k, n] = [p.dims(1)[0], p.dims(1)[1], p.dims(2)[1]].map(|d| d as usize);
    let [a, b] = [1, 2].map(|i| p.floats(i).into_iter().map(|v| v as i64).collect::<Vec<_>>());
    let element = |i: usize| (0..k).map(|j| a[i / n * k + j] * b[j * n + i % n]).sum::<i64>() as i32;
    vec![(0..m * n).map(|i| Want::exact(Num::Int(element(i).into()))).collect()]
}

/// The product with a transpose, times two scales.
fn scaled(p: &Problem) -> Vec<Vec<Want>> {
    let [m, k, n] = [p.dims(1)[0], p.dims(1)[1], p.dims(2)[0]].map(|d| d as usize);
    let (a, rows, scale) = (p.floats(1), p.floats(2), p.floats(3)[0] * p.floats(4)[0]);
    let b: Vec<f64> = (0..k * n).map(|i| rows[i % n * k + i / n]).collect();
    let scaled = |Want { value, scale: error }: Want| Want {
        value: Num::Float(value.float() * scale),
        scale: error * scale.abs(),
    };
    vec![product(&a, &b, [m, k, n]).into_iter().map(scaled).collect()]
}

/// The multiplications of a matrix product, given the dims of its operands.
pub fn multiplications(shapes: &[Vec<i64>]) -> i64 {
    let depth = shapes[1].last().copied().unwrap_or(1).max(1);
    elements(&shapes[0]) * depth + elements(&shapes[1]) + elements(&shapes[2])
}

fn attention(p: &Problem) -> Vec<Vec<Want>> {
    let [heads, queries, d] = p.dims(1) else { panic!("attention has rank 3") };
    let (heads, queries, d, keys) = (*heads as usize, *queries as usize, *d as usize, p.dims(2)[1] as usize);
    let group = heads / (p.dims(2)[0] as usize).max(1);
    let (scale, causal, last) = (p.number("scale"), p.flag("causal"), p.flag("queries_last"));
    // How many rows are one head's.
    let masked = p.flag("mask");
    let own = p.number("queries") as usize;
    let own = if own > 0 { own } else { queries };
    let (q, k, v) = (p.floats(1), p.floats(2), p.floats(3));
    let mask = if masked { p.floats(4) } else { vec![0.0; heads * queries * keys] };
    // Weights are rounded to the dtype: by that much relative to themselves, and below the normal numbers.
    let (step, least) = match p.dtypes[0] {
        DType::F16 => (16384.0, 0.5),
        DType::BF16 => (131072.0, 0.0),
        _ => (0.0, 0.0),
    };
    let mut all = Vec::new();
    for h in 0..heads {
        for i in 0..queries {
            let position = i % own + 1;
            let position = if last { (position + keys).saturating_sub(own) } else { position };
            let seen = if causal { keys.min(position) } else { keys };
            let q = &q[(h * queries + i) * d..][..d];
            let key = |j: usize| &k[(h / group * keys + j) * d..][..d];
            let mask = &mask[(h * queries + i) * keys..][..keys];
            let scores: Vec<f64> =
                (0..seen).map(|j| q.iter().zip(key(j)).map(|(a, b)| a * b).sum::<f64>() * scale + mask[j]).collect();
            let steepest = (0..seen)
                .map(|j| q.iter().zip(key(j)).map(|(a, b)| (a * b).abs()).sum::<f64>() * scale + mask[j].abs())
                .fold(0.0, f64::max);
            let largest = scores.iter().fold(f64::NEG_INFINITY, |m, s| m.max(*s));
            let weights: Vec<f64> = scores.iter().map(|s| (s - largest).exp()).collect();
            let total = if seen == 0 { 1.0 } else { weights.iter().sum::<f64>() };
            for c in 0..d {
                let terms = || weights.iter().enumerate().map(|(j, w)| w / total * v[(h / group * keys + j) * d + c]);
                // The error of a score is relative to what adds up to it, and one of its size relative to the weight.
                let error = 4.0 + seen as f64 / 16.0 + steepest * (2.0 + d as f64 / 16.0) + step;
                let magnitude = terms().map(f64::abs).sum::<f64>();
                let all_keys = (0..seen).map(|j| v[(h / group * keys + j) * d + c].abs()).sum::<f64>() / total;
                let scale = magnitude * error + all_keys * least;
                all.push(Want { value: Num::Float(terms().fold(0.0, |a, v| a + v)), scale });
            }
        }
    }
    vec![all]
}

/// Sizes of heads: in one part, in several, and no multiple of anything.
const HEADS: [i64; 11] = [1, 7, 64, 80, 96, 128, 192, 256, 257, 320, 512];

/// Products of few rows or columns, which are read where they lie: by whole blocks of columns and by parts, in several steps.
const SKINNY: [[i64; 5]; 16] = [
    [1, 300, 40, 1, 0],
    [2, 129, 17, 1, 0],
    [3, 143, 33, 1, 0],
    [5, 128, 48, 1, 0],
    [7, 15, 90, 1, 0],
    [8, 1041, 21, 1, 0],
    [6, 300, 150, 1, 0],
    [8, 2100, 5, 1, 0],
    [9, 130, 40, 1, 0],
    [11, 780, 66, 1, 0],
    [12, 260, 70, 1, 0],
    [13, 33, 129, 1, 0],
    [16, 600, 20, 1, 0],
    [20, 1, 70, 1, 0],
    [33, 3, 64, 1, 0],
    [129, 4, 32, 1, 0],
];

pub fn cases() -> Vec<Case> {
    let values = [Values::Within(-2.0, 2.0)];
    vec![
        Case::program("matmul", |s| vec![vec![s[0], s[1]], vec![s[0], s[2]], vec![s[2], s[1]]], matmul)
            .reduces()
            .ulps(1.0)
            .work(multiplications)
            .values(&values)
            .sizes(SKINNY),
        Case::program("matmul_transposed", |s| vec![vec![s[0], s[1]], vec![s[0], s[2]], vec![s[1], s[2]]], transposed)
            .reduces()
            .ulps(1.0)
            .work(multiplications)
            .values(&values)
            .sizes(SKINNY),
        Case::program("matmul_integer", |s| vec![vec![s[0], s[1]], vec![s[0], s[2]], vec![s[2], s[1]]], integers)
            .work(multiplications)
            .values(&[Values::Any]),
        Case::program(
            "matmul_static_scaled_float8",
            |s| vec![vec![s[0], s[1]], vec![s[0], s[2]], vec![s[1], s[2]], vec![1], vec![1]],
            scaled,
        )
        .reduces()
        .ulps(1.0)
        .work(multiplications)
        .values(&values),
        Case::program(
            "batch_matmul",
            |s| {
                let batch = s[3] % 4;
                vec![vec![batch, s[0], s[1]], vec![batch, s[0], s[2]], vec![batch, s[2], s[1]]]
            },
            matmul,
        )
        .reduces()
        .ulps(1.0)
        .work(multiplications)
        .values(&values),
        Case::program(
            "batch_matmul_transposed",
            |s| {
                let batch = s[3] % 4;
                vec![vec![batch, s[0], s[1]], vec![batch, s[0], s[2]], vec![batch, s[1], s[2]]]
            },
            transposed,
        )
        .reduces()
        .ulps(1.0)
        .work(multiplications)
        .values(&values),
        Case::program(
            "attention",
            |s| {
                // Several heads of queries may share one of keys.
                let (shared, d) = (s[3] % 3, s[2].clamp(1, 512));
                let heads = shared * (1 + (s[2] + s[4]) % 3);
                let (rows, own) = (vec![heads, s[0], d], vec![shared, s[1], d]);
                // In the place of a mask.
                vec![rows.clone(), rows, own.clone(), own, vec![1; 3]]
            },
            attention,
        )
        .reduces()
        .ulps(1.0)
        .work(|shapes| multiplications(shapes) + 2 * elements(&shapes[0]) * shapes[2][1])
        .values(&values)
        .params(|rng| {
            vec![
                ("scale", ParamArg::Float(rng.uniform(0.05, 0.5))),
                ("causal", ParamArg::Bool(rng.below(2) == 1)),
                ("queries", ParamArg::Int(rng.one_of(&[0, 1, 3, 20, 24, 61]))),
                ("queries_last", ParamArg::Bool(rng.below(2) == 1)),
                ("mask", ParamArg::Bool(false)),
            ]
        })
        .sizes(
            HEADS.into_iter().flat_map(|d| [[1, 3, d, 1, 0], [1, 300, d, 2, 1], [7, 40, d, 1, 2], [60, 261, d, 1, 3]]),
        ),
        Case::program(
            "attention",
            |s| {
                let (shared, d) = (s[3] % 3, s[2].clamp(1, 512));
                let heads = shared * (1 + (s[2] + s[4]) % 3);
                let (rows, own) = (vec![heads, s[0], d], vec![shared, s[1], d]);
                vec![rows.clone(), rows, own.clone(), own, vec![heads, s[0], s[1]]]
            },
            attention,
        )
        .reduces()
        .ulps(1.0)
        .work(|shapes| multiplications(shapes) + 2 * elements(&shapes[0]) * shapes[2][1])
        .values(&values)
        .params(|rng| {
            vec![
                ("scale", ParamArg::Float(rng.uniform(0.05, 0.5))),
                ("causal", ParamArg::Bool(rng.below(2) == 1)),
                ("queries", ParamArg::Int(rng.one_of(&[0, 0, 1, 24]))),
                ("queries_last", ParamArg::Bool(rng.below(2) == 1)),
                ("mask", ParamArg::Bool(true)),
            ]
        })
        // Not one element a head: where all of a result is a mean of values of both signs, what rounding makes of the weights
        // is as large, and weights are rounded beside the largest score so far, which depends on the tiles.
        .sizes(
            HEADS[1..].iter().flat_map(|&d| [[1, 3, d, 1, 0], [1, 300, d, 2, 1], [7, 40, d, 1, 2], [60, 261, d, 1, 3]]),
        ),
    ]
}
