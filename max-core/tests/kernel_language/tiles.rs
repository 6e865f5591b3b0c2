//! Tiles and `dot`.

use max::kernel::prelude::*;

use crate::support::{blank, forms, run, tensor};

#[kernel(op = "t_matmul", tile(BM = 8, BN = 48, BK = 64, gpu(BM = 64, BN = 64, BK = 32)))]
pub fn matmul<T: Float>(c: Out<T, 2>, a: In<T, 2>, b: In<T, 2>) {
    let [m, n] = program_id();
    let mut acc = Tile::<f32, BM, BN>::zeros();
    for k in range(0, a.dim(1), BK) {
        acc = dot(a.tile::<BM, BK>(m, k), b.tile::<BK, BN>(k, n), acc);
    }
    c.tile::<BM, BN>(m, n).write(acc.cast());
}

#[kernel]
fn biased<const R: usize, const C: usize>(acc: Tile<f32, R, C>, by: f32) -> Tile<f32, R, C> {
    let acc: Tile<f32, R, C> = 2.0 * acc + by;
    acc.map(|v| v.max(0.0))
}

/// `relu(2 a · bᵀ + bias)`
#[kernel(op = "t_transposed", tile(BM = 4, BN = 16))]
fn transposed(c: Out<f32, 2>, a: In<f32, 2>, b: In<f32, 2>, #[param] bias: f32) {
    let [m, n] = program_id();
    let mut acc = Tile::<f32, BM, BN>::full(0.0);
    let mut k = 0;
    while k < a.dim(1) {
        acc = dot(a.tile::<BM, 32>(m, k), b.tile::<BN, 32>(n, k).t(), acc);
        k += 32;
    }
    c.tile::<BM, BN>(m, n).write(biased::<BM, BN>(acc, bias));
}

fn numbers(n: i64) -> Vec<f32> {
    (0..n).map(|i| ((i * 7 % 13) - 6) as f32).collect()
}

fn product(a: &[f32], b: &[f32], [m, n, k]: [i64; 3], at: impl Fn(i64, i64) -> i64) -> Vec<f32> {
    let cell = |i: i64, j: i64| (0..k).map(|p| a[(i * k + p) as usize] * b[at(p, j) as usize]).sum();
    (0..m).flat_map(|i| (0..n).map(move |j| (i, j))).map(|(i, j)| cell(i, j)).collect()
}

#[test]
fn matmul_is_right_at_the_edges() {
    for [m, n, k] in [[1, 1, 1], [3, 5, 7], [8, 48, 64], [9, 49, 65], [33, 100, 130], [4, 4, 0]] {
        let (a, b) = (numbers(m * k), numbers(k * n));
        // Small integers: exact in any order.
        let expected = product(&a, &b, [m, n, k], |p, j| p * n + j);
        for form in forms() {
            let operands = [blank(&[m, n], f32::NAN), tensor(&[m, k], &a), tensor(&[k, n], &b)];
            let after = run::<matmul>(form, &operands, &[]);
            assert_eq!(after[0].values::<f32>(), expected, "{m}x{n}x{k} {form:?}");
        }
    }
}

#[test]
fn tiles_go_through_helpers() {
    let [m, n, k] = [5, 18, 40];
    let (a, b) = (numbers(m * k), numbers(n * k));
    let bias = [("bias", max::kernel::ParamArg::Float(3.0))];
    let expected: Vec<f32> =
        product(&a, &b, [m, n, k], |p, j| j * k + p).into_iter().map(|v| (2.0 * v + 3.0).max(0.0)).collect();
    for form in forms() {
        let operands = [blank(&[m, n], f32::NAN), tensor(&[m, k], &a), tensor(&[n, k], &b)];
        let after = run::<transposed>(form, &operands, &bias);
        assert_eq!(after[0].values::<f32>(), expected, "{form:?}");
    }
}
