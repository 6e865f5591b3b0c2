//! Tiles and `dot`.

use max::kernel::prelude::*;
use max::kernel::{Form, Kernel, ir};

use crate::support::{blank, forms, run, some_of, tensor};

#[kernel(op = "t_matmul", tile(BM = 8, BN = 48, BK = 64, gpu(BM = 64, BN = 64, BK = 32)))]
pub fn matmul<T: Float>(c: Out<T, 2>, a: In<T, 2>, b: In<T, 2>) {
    let [m, n] = program_id();
    let mut acc = Tile::<f32, BM, BN>::zeros();
    for k in range(0, a.dim(1), BK) {
        acc = dot(a.tile::<BM, BK>(m, k), b.tile::<BK, BN>(k, n), acc);
    }
    c.tile::<BM, BN>(m, n).write(acc.cast());
}

/// A product whose columns are three vectors at a time, at a level that has 512 bits.
#[kernel(op = "t_wide", dtypes(T = [f32, f64]), tile(BM = 20, BN = 96, BK = 40))]
fn wide<T: Float>(c: Out<T, 2>, a: In<T, 2>, b: In<T, 2>) {
    let [m, n] = program_id();
    let mut acc = Tile::<T, BM, BN>::zeros();
    for k in range(0, a.dim(1), BK) {
        acc = dot(a.tile::<BM, BK>(m, k), b.tile::<BK, BN>(k, n), acc);
    }
    c.tile::<BM, BN>(m, n).write(acc);
}

/// The same of two transposes, both of which are packed.
#[kernel(op = "t_wide_transposed", dtypes(T = [f32, f64]), tile(BM = 20, BN = 96, BK = 40))]
fn wide_transposed<T: Float>(c: Out<T, 2>, a: In<T, 2>, b: In<T, 2>) {
    let [m, n] = program_id();
    let mut acc = Tile::<T, BM, BN>::zeros();
    for k in range(0, a.dim(0), BK) {
        acc = dot(a.tile::<BK, BM>(k, m).t(), b.tile::<BN, BK>(n, k).t(), acc);
    }
    c.tile::<BM, BN>(m, n).write(acc);
}

/// One transpose, so that the left operand is packed and the right one may be read where it lies.
#[kernel(op = "t_wide_left_transposed", dtypes(T = [f32, f64]), tile(BM = 20, BN = 96, BK = 40))]
fn wide_left_transposed<T: Float>(c: Out<T, 2>, a: In<T, 2>, b: In<T, 2>) {
    let [m, n] = program_id();
    let mut acc = Tile::<T, BM, BN>::zeros();
    for k in range(0, a.dim(0), BK) {
        acc = dot(a.tile::<BK, BM>(k, m).t(), b.tile::<BK, BN>(k, n), acc);
    }
    c.tile::<BM, BN>(m, n).write(acc);
}

/// The same of integers, which are multiplied in pairs.
#[kernel(op = "t_wide_integers", dtypes(T = [i8, u8]), tile(BM = 20, BN = 96, BK = 40))]
fn wide_integers<T: Int>(c: Out<i32, 2>, a: In<T, 2>, b: In<T, 2>) {
    let [m, n] = program_id();
    let mut acc = Tile::<i32, BM, BN>::zeros();
    for k in range(0, a.dim(1), BK) {
        acc = dot(a.tile::<BM, BK>(m, k), b.tile::<BK, BN>(k, n), acc);
    }
    c.tile::<BM, BN>(m, n).write(acc);
}

/// One left operand for two products, whose columns are taken in different ways.
#[kernel(op = "t_wide_and_narrow", tile(BM = 20, BK = 40))]
fn wide_and_narrow(c: Out<f32, 2>, d: Out<f32, 2>, a: In<f32, 2>, b: In<f32, 2>, e: In<f32, 2>) {
    let [m, n] = program_id();
    let mut wide = Tile::<f32, BM, 96>::zeros();
    let mut narrow = Tile::<f32, BM, 64>::zeros();
    for k in range(0, a.dim(0), BK) {
        wide = dot(a.tile::<BK, BM>(k, m).t(), b.tile::<BK, 96>(k, n), wide);
        narrow = dot(a.tile::<BK, BM>(k, m).t(), e.tile::<BK, 64>(k, n), narrow);
    }
    c.tile::<BM, 96>(m, n).write(wide);
    d.tile::<BM, 64>(m, n).write(narrow);
}

/// A product whose left tiles begin ten rows above the operand, by what multiplies blocks of 32 rows.
#[kernel(op = "t_above", dtypes(T = [i8]), tile(BM = 64, BN = 64, BK = 64))]
fn above<T: Int>(c: Out<i32, 2>, a: In<T, 2>, b: In<T, 2>) {
    let [m, n] = program_id();
    let mut acc = Tile::<i32, BM, BN>::full(1);
    acc = dot(a.tile::<BM, BK>(-10, 0), b.tile::<BK, BN>(0, n), acc);
    c.tile::<BM, BN>(m, n).write(acc);
}

/// The same of halves.
#[kernel(op = "t_above_halves", dtypes(T = [bf16]), tile(BM = 64, BN = 64, BK = 64))]
fn above_halves<T: Float>(c: Out<f32, 2>, a: In<T, 2>, b: In<T, 2>) {
    let [m, n] = program_id();
    let mut acc = Tile::<f32, BM, BN>::full(1.0);
    acc = dot(a.tile::<BM, BK>(-10, 0), b.tile::<BK, BN>(0, n), acc);
    c.tile::<BM, BN>(m, n).write(acc);
}

/// Products of factors that are computed: values of `bf16`, and finer ones, which keep what `f32` has.
#[kernel(op = "t_computed", dtypes(T = [f16, bf16]), tile(BM = 32, BN = 64, BK = 64))]
fn computed<T: Float>(c: Out<f32, 2>, d: Out<f32, 2>, a: In<T, 2>, b: In<T, 2>, e: In<T, 2>) {
    let [m, n] = program_id();
    let mut rounded = Tile::<f32, BM, BN>::zeros();
    let mut finer = Tile::<f32, BM, BN>::zeros();
    for k in range(0, a.dim(1), BK) {
        let x = a.tile::<BM, BK>(m, k).load().cast::<f32>().map(|x| x * 1.01);
        let y = x.map(|x| x.cast::<T>().cast::<f32>());
        rounded = dot(y, b.tile::<BK, BN>(k, n), rounded);
        finer = dot(x, e.tile::<BK, BN>(k, n), finer);
    }
    c.tile::<BM, BN>(m, n).write(rounded);
    d.tile::<BM, BN>(m, n).write(finer);
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

/// Sizes around those of blocks, panels, tiles and turns of the depth.
fn wide_sizes() -> impl Iterator<Item = [i64; 3]> {
    let sizes = |m: i64, k: i64| [1, 15, 16, 17, 47, 48, 49, 95, 96, 97, 200].map(|n| [m, n, k]);
    let all = [1, 2, 7, 8, 9, 19, 20, 21, 45]
        .into_iter()
        .flat_map(move |m| [0, 1, 3, 4, 15, 16, 17, 41, 83].map(|k| sizes(m, k)))
        .flatten();
    // 13 divides none of these numbers of sizes, so that each is among those that are left.
    some_of(all, 13)
}

fn turned(x: &[f32], [rows, columns]: [i64; 2]) -> Vec<f32> {
    (0..columns).flat_map(|j| (0..rows).map(move |i| x[(i * columns + j) as usize])).collect()
}

#[test]
fn products_of_wide_panels_are_right_at_the_edges() {
    for [m, n, k] in wide_sizes() {
        let (a, b) = (numbers(m * k), numbers(k * n));
        let (at, bt) = (turned(&a, [m, k]), turned(&b, [k, n]));
        let expected = product(&a, &b, [m, n, k], |p, j| p * n + j);
        let double = |x: &[f32]| x.iter().map(|v| f64::from(*v)).collect::<Vec<_>>();
        for form in forms().into_iter().filter(|form| *form != Form::Reference) {
            let what = format!("{m}x{n}x{k} {form:?}");
            let c = || blank(&[m, n], f32::NAN);
            let after = run::<wide>(form, &[c(), tensor(&[m, k], &a), tensor(&[k, n], &b)], &[]);
            assert_eq!(after[0].values::<f32>(), expected, "{what}");
            let after = run::<wide_transposed>(form, &[c(), tensor(&[k, m], &at), tensor(&[n, k], &bt)], &[]);
            assert_eq!(after[0].values::<f32>(), expected, "{what}, transposed");
            let after = run::<wide_left_transposed>(form, &[c(), tensor(&[k, m], &at), tensor(&[k, n], &b)], &[]);
            assert_eq!(after[0].values::<f32>(), expected, "{what}, left transposed");
            let c = || blank(&[m, n], f64::NAN);
            let operands = [c(), tensor(&[m, k], &double(&a)), tensor(&[k, n], &double(&b))];
            assert_eq!(run::<wide>(form, &operands, &[])[0].values::<f64>(), double(&expected), "{what}, f64");
            let operands = [c(), tensor(&[k, m], &double(&at)), tensor(&[n, k], &double(&bt))];
            let after = run::<wide_transposed>(form, &operands, &[]);
            assert_eq!(after[0].values::<f64>(), double(&expected), "{what}, f64, transposed");
            let bytes = |x: &[f32]| x.iter().map(|v| *v as i8).collect::<Vec<_>>();
            let operands = [blank(&[m, n], -1i32), tensor(&[m, k], &bytes(&a)), tensor(&[k, n], &bytes(&b))];
            let after = run::<wide_integers>(form, &operands, &[])[0].values::<i32>();
            assert_eq!(after, expected.iter().map(|v| *v as i32).collect::<Vec<_>>(), "{what}, i8");
        }
    }
}

#[test]
fn computed_factors_keep_their_precision() {
    fn check<T: max::dtype::Element + Copy>(narrow: fn(f32) -> T, widen: fn(T) -> f32) {
        // Several programs read each part of the right operand.
        for [m, n, k] in [[100, 70, 130], [33, 64, 64], [64, 1, 31], [5, 200, 65]] {
            let of = |len: i64| -> Vec<T> { numbers(len).into_iter().map(|v| narrow(v / 8.0 + 1.0)).collect() };
            let (a, b) = (of(m * k), of(k * n));
            let product = |scaled: &dyn Fn(f32) -> f32, i: i64| -> f64 {
                let term = |p: i64| {
                    let left = scaled(widen(a[(i / n * k + p) as usize]));
                    f64::from(left) * f64::from(widen(b[(p * n + i % n) as usize]))
                };
                (0..k).map(term).sum()
            };
            for form in forms() {
                let results = [blank(&[m, n], f32::NAN), blank(&[m, n], f32::NAN)];
                let operands = [tensor(&[m, k], &a), tensor(&[k, n], &b), tensor(&[k, n], &b)];
                let after = run::<computed>(form, &[&results[..], &operands].concat(), &[]);
                for i in 0..m * n {
                    let close = |found: f32, expected: f64| (f64::from(found) - expected).abs() <= expected * 1e-5;
                    let found = [0, 1].map(|result| after[result].values::<f32>()[i as usize]);
                    let rounded = product(&|x| widen(narrow(x * 1.01)), i);
                    assert!(close(found[0], rounded), "{m}x{n}x{k} {form:?}, {i}: {} {rounded}", found[0]);
                    let finer = product(&|x| x * 1.01, i);
                    assert!(close(found[1], finer), "{m}x{n}x{k} {form:?}, {i}: {} {finer}, finer", found[1]);
                }
            }
        }
    }
    check::<bf16>(bf16::from_f32, bf16::to_f32);
    check::<f16>(f16::from_f32, f16::to_f32);
}

#[test]
fn an_operand_of_two_products_may_be_taken_in_two_ways() {
    let [m, k] = [45, 83];
    let (a, b, e) = (numbers(k * m), numbers(k * 96), numbers(k * 64));
    let turned = turned(&a, [k, m]);
    for form in forms() {
        let sums = [blank(&[m, 96], f32::NAN), blank(&[m, 64], f32::NAN)];
        let operands = [tensor(&[k, m], &a), tensor(&[k, 96], &b), tensor(&[k, 64], &e)];
        let after = run::<wide_and_narrow>(form, &[&sums[..], &operands].concat(), &[]);
        assert_eq!(after[0].values::<f32>(), product(&turned, &b, [m, 96, k], |p, j| p * 96 + j), "{form:?}");
        assert_eq!(after[1].values::<f32>(), product(&turned, &e, [m, 64, k], |p, j| p * 64 + j), "{form:?}");
    }
}

#[test]
fn tiles_may_begin_above_their_operand() {
    let n = 64;
    let (a, b) = (numbers(n * n), numbers(n * n));
    let below = product(&a, &b, [54, n, n], |p, j| p * n + j);
    let expected: Vec<f32> = std::iter::repeat_n(1.0, 640).chain(below.iter().map(|v| v + 1.0)).collect();
    let (bytes, halves) = (
        |x: &[f32]| x.iter().map(|v| *v as i8).collect::<Vec<_>>(),
        |x: &[f32]| x.iter().map(|v| max::dtype::bf16::from_f32(*v)).collect::<Vec<_>>(),
    );
    for form in forms() {
        let operands = [blank(&[n, n], -1i32), tensor(&[n, n], &bytes(&a)), tensor(&[n, n], &bytes(&b))];
        let after = run::<above>(form, &operands, &[])[0].values::<i32>();
        assert_eq!(after, expected.iter().map(|v| *v as i32).collect::<Vec<_>>(), "{form:?}");
        let operands = [blank(&[n, n], f32::NAN), tensor(&[n, n], &halves(&a)), tensor(&[n, n], &halves(&b))];
        assert_eq!(run::<above_halves>(form, &operands, &[])[0].values::<f32>(), expected, "{form:?}, halves");
    }
}

/// Factors of other dtypes than the sums: weights of bytes with what is computed and with a tile, on either side.
#[kernel(op = "t_weights", dtypes(W = [i8, u8]), tile(BM = 4, BN = 16, BK = 16))]
fn weights<W: Int>(c: Out<f32, 2>, d: Out<f64, 2>, e: Out<f32, 2>, a: In<f32, 2>, w: In<W, 2>) {
    let [m, n] = program_id();
    let mut computed = Tile::<f32, BM, BN>::zeros();
    let mut wider = Tile::<f64, BM, BN>::zeros();
    let mut left = Tile::<f32, BM, BN>::zeros();
    for k in range(0, a.dim(1), BK) {
        let t = a.tile::<BM, BK>(m, k).load();
        computed = dot(t * 2.0, w.tile::<BK, BN>(k, n), computed);
        wider = dot(a.tile::<BM, BK>(m, k), w.tile::<BK, BN>(k, n), wider);
        left = dot(w.tile::<BK, BM>(k, m).t(), a.tile::<BN, BK>(n, k).t(), left);
    }
    c.tile::<BM, BN>(m, n).write(computed);
    d.tile::<BM, BN>(m, n).write(wider);
    e.tile::<BM, BN>(m, n).write(left);
}

fn check_weights<T: max::dtype::Element>(of: impl Fn(usize) -> T) {
    let (n, inner) = (18, 21);
    let a: Vec<f32> = (0..n * inner).map(|i| (i * 7 % 19) as f32 / 4.0 - 2.0).collect();
    let w: Vec<T> = (0..inner * n).map(|i| of(i * 11 % 200)).collect();
    let sum = |i: usize, j: usize| (0..inner).map(|l| f64::from(a[i * inner + l]) * w[l * n + j].to_f64()).sum::<f64>();
    let sums: Vec<f64> = (0..n * n).map(|i| sum(i / n, i % n)).collect();
    let shape = [n as i64, n as i64];
    let operands = [
        blank(&shape, 9.0_f32),
        blank(&shape, 9.0_f64),
        blank(&shape, 9.0_f32),
        tensor(&[n as i64, inner as i64], &a),
        tensor(&[inner as i64, n as i64], &w),
    ];
    // All sums are exact.
    for form in forms() {
        let after = run::<weights>(form, &operands, &[]);
        assert_eq!(after[0].values::<f32>(), sums.iter().map(|v| 2.0 * *v as f32).collect::<Vec<_>>(), "{form:?}");
        assert_eq!(after[1].values::<f64>(), sums, "{form:?}");
        let transposed: Vec<f32> = (0..n * n).map(|i| sums[i % n * n + i / n] as f32).collect();
        assert_eq!(after[2].values::<f32>(), transposed, "{form:?}");
    }
    let ir = ir::parse(&weights::def().ir_text(&[T::DTYPE], None)).unwrap();
    ir::verify(&ir).unwrap_or_else(|errors| panic!("{errors}\n{ir}"));
}

/// Such factors in tiles of whole vectors, on both sides, and transposed.
#[kernel(op = "t_wide_weights", dtypes(W = [i8, u8, i32]), tile(BM = 20, BN = 48, BK = 40))]
fn wide_weights<W: Int>(
    c: Out<f32, 2>,
    d: Out<f32, 2>,
    e: Out<f32, 2>,
    f: Out<f32, 2>,
    a: In<f32, 2>,
    w: In<W, 2>,
    v: In<W, 2>,
) {
    let [m, n] = program_id();
    let mut right = Tile::<f32, BM, BN>::zeros();
    let mut transposed = Tile::<f32, BM, BN>::zeros();
    let mut left = Tile::<f32, BM, BN>::zeros();
    let mut both = Tile::<f32, BM, BN>::zeros();
    for k in range(0, a.dim(1), BK) {
        right = dot(a.tile::<BM, BK>(m, k), w.tile::<BK, BN>(k, n), right);
        transposed = dot(a.tile::<BM, BK>(m, k).load() - 1.0, v.tile::<BN, BK>(n, k).t(), transposed);
        left = dot(v.tile::<BM, BK>(m, k), a.tile::<BN, BK>(n, k).t(), left);
        both = dot(w.tile::<BK, BM>(k, m).t(), w.tile::<BK, BN>(k, n), both);
    }
    c.tile::<BM, BN>(m, n).write(right);
    d.tile::<BM, BN>(m, n).write(transposed);
    e.tile::<BM, BN>(m, n).write(left);
    f.tile::<BM, BN>(m, n).write(both);
}

/// Of `n x n` results and `inner` steps; all sums are exact.
fn check_wide_weights<T: max::dtype::Element>(n: usize, inner: usize, of: impl Fn(usize) -> T) {
    let a: Vec<f32> = (0..n * inner).map(|i| (i * 7 % 19) as f32 / 4.0 - 2.0).collect();
    let w: Vec<T> = (0..inner * n).map(|i| of(i * 11 % 200)).collect();
    let v: Vec<T> = (0..n * inner).map(|i| w[i % inner * n + i / inner]).collect();
    let sums = |f: &dyn Fn(usize, usize, usize) -> f64| -> Vec<f32> {
        (0..n * n).map(|i| (0..inner).map(|l| f(i / n, i % n, l)).sum::<f64>() as f32).collect()
    };
    let (a_at, w_at) = (|i: usize, l: usize| f64::from(a[i * inner + l]), |l: usize, j: usize| w[l * n + j].to_f64());
    let blank = blank(&[n as i64, n as i64], 9.0_f32);
    let operands = [
        blank.clone(),
        blank.clone(),
        blank.clone(),
        blank,
        tensor(&[n as i64, inner as i64], &a),
        tensor(&[inner as i64, n as i64], &w),
        tensor(&[n as i64, inner as i64], &v),
    ];
    for form in forms() {
        let after = run::<wide_weights>(form, &operands, &[]);
        let what = format!("{form:?}, {n}, {inner}, {:?}", T::DTYPE);
        assert_eq!(after[0].values::<f32>(), sums(&|i, j, l| a_at(i, l) * w_at(l, j)), "{what}");
        assert_eq!(after[1].values::<f32>(), sums(&|i, j, l| (a_at(i, l) - 1.0) * w_at(l, j)), "{what}, transposed");
        assert_eq!(after[2].values::<f32>(), sums(&|i, j, l| w_at(l, i) * a_at(j, l)), "{what}, left");
        assert_eq!(after[3].values::<f32>(), sums(&|i, j, l| w_at(l, i) * w_at(l, j)), "{what}, both");
    }
}

#[test]
fn factors_are_converted_to_the_dtype_of_the_sums() {
    check_weights(|i| (i as i64 - 100) as i8);
    check_weights(|i| i as u8);
    for (n, inner) in [(1, 1), (1, 100), (20, 40), (49, 83), (100, 121)] {
        check_wide_weights(n, inner, |i| (i as i64 - 100) as i8);
        check_wide_weights(n, inner, |i| i as u8);
        check_wide_weights(n, inner, |i| i as i32 - 100);
    }
}
