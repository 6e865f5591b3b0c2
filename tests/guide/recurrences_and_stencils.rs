//! The code of `docs/guide/22-recurrences-and-stencils.md`.

use max::prelude::*;

use crate::{close, f32s, run_as};

/// The delta rule: what `k` retrieves from a matrix of memory moves towards `v`, at a rate `beta`; `y` is what `q` retrieves
/// (Schlag, Irie, Schmidhuber: Linear Transformers Are Secretly Fast Weight Programmers, 2021).
#[kernel(op = "guide_delta_rule", tile(D = 16))]
fn delta_rule(y: Out<f32, 2>, q: In<f32, 2>, k: In<f32, 2>, v: In<f32, 2>, beta: In<f32, 1>) {
    // A program has a column of values, [values, time], and the row of the memory that makes it.
    let value = program_id(0);
    let v = v.row(value);
    let mut memory = Tile::<f32, 1, D>::zeros();
    for t in 0..v.len() {
        let k = k.tile::<1, D>(t, 0).load();
        let retrieved = (memory * k).row_sum().item();
        memory = memory + k * (beta.at(t) * (v.at(t) - retrieved));
        y.row(value).set(t, (memory * q.tile::<1, D>(t, 0).load()).row_sum().item());
    }
}

/// Softmax in two steps: exponentials are written, and read back to be divided by their sum.
#[kernel(op = "guide_softmax_in_place")]
fn softmax_in_place<T: Float>(y: Out<T, 2>, x: In<T, 2>) {
    let row = program_id(0);
    let x = x.row(row);
    let largest = x.max();
    y.row(row).write(x.map(|v| (v - largest).exp()));
    let total = y.row(row).read().sum();
    y.row(row).write(y.row(row).read().map(|e| e / total));
}

/// What is left after so many years of decay.
#[kernel(op = "guide_decay")]
fn decay<T: Float>(x: T, years: i32, #[param] rate: f64) -> T {
    x * (1.0 - (rate as T)).powi(years)
}

/// One step of the heat equation: each cell moves towards the mean of its four neighbours.
#[kernel(op = "guide_heat")]
fn heat<T: Float>(y: Out<T, 2>, x: In<T, 2>, #[param] rate: f64) {
    let i = program_id(0);
    let (above, own, below) = (x.row(i - 1), x.row(i), x.row(i + 1));
    let around = (above, below, own.shift(-1), own.shift(1)).map(|(a, b, c, d)| a + b + c + d);
    y.row(i).write((own, around).map(|(v, around)| v + (rate as T) * (around / 4.0 - v)));
}

/// `x[rows] · w`.
#[kernel(op = "guide_gathered", tile(BM = 8, BN = 32, BK = 32, gpu(BM = 64, BN = 64)))]
fn gathered(y: Out<f32, 2>, x: In<f32, 2>, w: In<f32, 2>, rows: In<i64, 1>) {
    let [m, n] = program_id();
    let rows = rows.block::<BM>(m);
    let mut acc = Tile::<f32, BM, BN>::zeros();
    for k in range(0, x.dim(1), BK) {
        acc = dot(x.rows_at::<BM, BK>(rows, k), w.tile::<BK, BN>(k, n), acc);
    }
    y.tile::<BM, BN>(m, n).write(acc);
}

/// `x · w`, of weights of 8 bits with a scale for each column.
#[kernel(op = "guide_dequantized", tile(BM = 8, BN = 32, BK = 32, gpu(BM = 64, BN = 64)))]
fn dequantized(y: Out<f32, 2>, x: In<f32, 2>, w: In<i8, 2>, scales: In<f32, 1>) {
    let [m, n] = program_id();
    let first = n * BN;
    let mut acc = Tile::<f32, BM, BN>::zeros();
    for k in range(0, x.dim(1), BK) {
        let w = w.tile::<BK, BN>(k, n).load().cast::<f32>();
        let w = w.map_indexed(|_, column, v| v * scales.at(first + column));
        acc = dot(x.tile::<BM, BK>(m, k), w, acc);
    }
    y.tile::<BM, BN>(m, n).write(acc);
}

fn matrix(x: Vec<f32>, shape: [usize; 2]) -> Tensor {
    Tensor::from_vec(x, shape).unwrap()
}

fn numbers(n: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 7 + i / 5) % 13) as f32 / 8.0 - 0.75).collect()
}

#[test]
fn memory_learns_by_the_delta_rule() {
    let (values, time, d) = (3, 20, 16);
    let [q, k] = [5, 11].map(|by| numbers(time * d + by)[by..].to_vec());
    let v = numbers(values * time);
    let beta: Vec<f32> = (0..time).map(|t| 0.05 + t as f32 / 100.0).collect();
    let mut expected = vec![0.0; values * time];
    for i in 0..values {
        let mut memory = vec![0.0f32; d];
        for t in 0..time {
            let at = |x: &[f32], j: usize| x[t * d + j];
            let retrieved: f32 = (0..d).map(|j| memory[j] * at(&k, j)).sum();
            (0..d).for_each(|j| memory[j] += at(&k, j) * beta[t] * (v[i * time + t] - retrieved));
            expected[i * time + t] = (0..d).map(|j| memory[j] * at(&q, j)).sum();
        }
    }
    let operands = [matrix(q, [time, d]), matrix(k, [time, d]), matrix(v, [values, time]), f32s(&beta)];
    let y = run_as("guide_delta_rule", &operands, &[(DType::F32, &[values as i64, time as i64])], ());
    let (y, expected) = (y[0].as_slice::<f32>().unwrap(), expected);
    assert!(y.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-4), "{y:?} instead of {expected:?}");
}

#[test]
fn rows_are_read_back() {
    let x: Vec<f32> = numbers(2 * 100);
    let y = run_as("guide_softmax_in_place", &[matrix(x.clone(), [2, 100])], &[(DType::F32, &[2, 100])], ());
    let softmax = |row: &[f32]| {
        let total: f32 = row.iter().map(|v| v.exp()).sum();
        row.iter().map(|v| v.exp() / total).collect::<Vec<f32>>()
    };
    close(&y[0], &x.chunks(100).flat_map(softmax).collect::<Vec<f32>>());
}

#[test]
fn exponents_are_known_at_run_time() {
    let years = Tensor::from_slice(&[0i32, 1, 2, 10, -3, 100, i32::MIN], [7]).unwrap();
    let x = f32s(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]);
    let y = run_as("guide_decay", &[x, years], &[(DType::F32, &[7])], Parameters::new().with("rate", 0.25));
    close(&y[0], &[1.0, 1.5, 1.6875, 0.22525406, 11.851851, 1.9243213e-12, f32::INFINITY]);
}

#[test]
fn heat_spreads() {
    let (rows, columns) = (3, 300);
    let x = numbers(rows * columns);
    let y = run_as(
        "guide_heat",
        &[matrix(x.clone(), [rows, columns])],
        &[(DType::F32, &[rows as i64, columns as i64])],
        Parameters::new().with("rate", 0.5),
    );
    let at = |i: isize, j: isize| {
        let inside = (0..rows as isize).contains(&i) && (0..columns as isize).contains(&j);
        if inside { x[i as usize * columns + j as usize] } else { 0.0 }
    };
    let cell = |(i, j): (isize, isize)| {
        let around = at(i - 1, j) + at(i + 1, j) + at(i, j - 1) + at(i, j + 1);
        at(i, j) + 0.5 * (around / 4.0 - at(i, j))
    };
    let cells = (0..rows * columns).map(|k| ((k / columns) as isize, (k % columns) as isize));
    close(&y[0], &cells.map(cell).collect::<Vec<f32>>());
}

/// A product in `f64`, of rows that are given.
fn product(rows: &[&[f32]], w: impl Fn(usize, usize) -> f32, n: usize) -> Vec<f32> {
    let sum = |row: &&[f32], j| row.iter().enumerate().map(|(k, a)| f64::from(*a) * f64::from(w(k, j))).sum::<f64>();
    rows.iter().flat_map(|row| (0..n).map(move |j| (row, j))).map(|(row, j)| sum(row, j) as f32).collect()
}

#[test]
fn rows_are_gathered() {
    let (k, n) = (70, 45);
    let (x, w) = (numbers(5 * k), numbers(k * n));
    let rows = [4i64, 0, -1, 2, 2, 5, 3, 1, 0, i64::MAX, 4];
    let zeros = vec![0.0; k];
    let chosen: Vec<&[f32]> =
        rows.iter().map(|row| usize::try_from(*row).ok().and_then(|i| x.chunks(k).nth(i)).unwrap_or(&zeros)).collect();
    let expected = product(&chosen, |i, j| w[i * n + j], n);
    let rows = Tensor::from_slice(&rows, [11]).unwrap();
    let operands = [matrix(x.clone(), [5, k]), matrix(w.clone(), [k, n]), rows];
    let y = run_as("guide_gathered", &operands, &[(DType::F32, &[11, n as i64])], ());
    close(&y[0], &expected);
}

#[test]
fn weights_are_unpacked_where_they_are_multiplied() {
    let (m, k, n) = (11, 70, 45);
    let x = numbers(m * k);
    let w: Vec<i8> = (0..k * n).map(|i| (i * 37 % 251) as u8 as i8).collect();
    let scales: Vec<f32> = (0..n).map(|j| 1.0 / (j + 1) as f32).collect();
    let rows: Vec<&[f32]> = x.chunks(k).collect();
    let expected = product(&rows, |i, j| f32::from(w[i * n + j]) * scales[j], n);
    let operands = [matrix(x.clone(), [m, k]), Tensor::from_slice(&w, [k, n]).unwrap(), f32s(&scales)];
    let y = run_as("guide_dequantized", &operands, &[(DType::F32, &[m as i64, n as i64])], ());
    let (y, expected) = (y[0].as_slice::<f32>().unwrap(), expected);
    assert!(y.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-3), "{y:?} instead of {expected:?}");
}
