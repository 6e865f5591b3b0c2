//! Tiles that are computed: their elements as numbers, and what they are as operands of `dot`.

use max::kernel::Kernel;
use max::kernel::prelude::*;

use crate::support::{blank, check, forms, run, tensor, vector};

/// Elements of a tile, inside and outside of it, by an index that data say.
#[kernel(op = "c_elements", grid(1))]
fn elements(y: Out<f32, 2>, x: In<f32, 2>, at: In<i64, 2>) {
    let i = program_id(0);
    let mut t = x.tile::<5, 20>(0, 0).load();
    t = t.map(|v| v + 1.0);
    for k in 0..at.dim(0) {
        y.row(i).set(k, t.element(at.at(k, 0), at.at(k, 1)));
    }
}

#[test]
fn elements_are_numbers_and_zero_outside() {
    let x: Vec<f32> = (0..100).map(|i| i as f32).collect();
    let at = [0, 0, 4, 19, 2, 7, 5, 0, 0, 20, -1, 3, 3, i64::MIN, i64::MAX, 0];
    let expected = [1.0, 100.0, 48.0, 0.0, 0.0, 0.0, 0.0, 0.0];
    let operands = [blank(&[1, 8], 9.0f32), tensor(&[5, 20], &x), tensor(&[8, 2], &at)];
    for form in forms() {
        assert_eq!(run::<elements>(form, &operands, &[])[0].values::<f32>(), expected, "{form:?}");
    }
}

/// A sum that decays, as a number between tiles of one element.
#[kernel(op = "c_decaying_sum", dtypes(T = [bf16, f32, f64, i32]))]
fn decaying_sum<T: Number>(y: Out<T, 2>, x: In<T, 2>) {
    let i = program_id(0);
    let x = x.row(i);
    let mut sum = Tile::<T, 1, 1>::zeros();
    for t in 0..x.len() {
        sum = sum / 2 + x.at(t);
        y.row(i).set(t, sum.item());
    }
}

#[test]
fn a_tile_of_one_element_is_a_number() {
    let x = [1.0f32, 2.0, 3.0, 4.0, -8.0, 0.0];
    let y = [1.0f32, 2.5, 4.25, 6.125, -4.9375, -2.46875];
    for form in forms() {
        let operands = [blank(&[1, 6], 9.0f32), tensor(&[1, 6], &x)];
        assert_eq!(run::<decaying_sum>(form, &operands, &[])[0].values::<f32>(), y, "{form:?}");
        let operands = [blank(&[1, 3], 9i32), tensor(&[1, 3], &[7i32, -1, 4])];
        assert_eq!(run::<decaying_sum>(form, &operands, &[])[0].values::<i32>(), [7, 2, 5], "{form:?}");
    }
}

/// Products of what is computed, on both sides: of an operand's tile, of a tile, of a variable.
#[kernel(op = "c_computed_right", dtypes(T = [bf16, f32, f64]), tile(BM = 8, BN = 32, BK = 48, gpu(BM = 64, BN = 64)))]
fn computed_right<T: Float>(c: Out<T, 2>, d: Out<T, 2>, a: In<T, 2>, b: In<T, 2>) {
    let [m, n] = program_id();
    let mut view = Tile::<T, BM, BN>::zeros();
    let mut tile = Tile::<T, BM, BN>::zeros();
    for k in range(0, a.dim(1), BK) {
        let mut left = a.tile::<BM, BK>(m, k).load();
        left = left.map(|v| v * 2);
        let mut right = b.tile::<BK, BN>(k, n).load();
        right = right.map(|v| v + 1);
        view = dot(a.tile::<BM, BK>(m, k), right, view);
        tile = dot(left, right, tile);
    }
    c.tile::<BM, BN>(m, n).write(view);
    d.tile::<BM, BN>(m, n).write(dot(a.tile::<BM, BK>(m, 0), b.tile::<BK, BN>(0, n).load() * 0, tile));
}

/// The same of integers of several sizes.
#[kernel(op = "c_computed_bytes", tile(BM = 8, BN = 16, BK = 32))]
fn computed_bytes(c: Out<i32, 2>, a: In<i8, 2>, b: In<u8, 2>) {
    let [m, n] = program_id();
    let mut acc = Tile::<i32, BM, BN>::zeros();
    for k in range(0, a.dim(1), BK) {
        acc = dot(a.tile::<BM, BK>(m, k), b.tile::<BK, BN>(k, n).load().map(|v| v / 2), acc);
    }
    c.tile::<BM, BN>(m, n).write(acc);
}

#[test]
fn right_operands_may_be_computed() {
    fn check_as<T: max::dtype::Element + Copy + PartialEq + std::fmt::Debug>(of: fn(f32) -> T) {
        let [m, k, n] = [13, 70, 45];
        let number = |i: i64| (i * 7 % 5 - 2) as f32;
        let (a, b): (Vec<f32>, Vec<f32>) = ((0..m * k).map(number).collect(), (0..k * n).map(number).collect());
        // What is outside of `b` is 0, and 1 is added to it; there `a` is 0.
        let at =
            |i: i64, j: i64| -> f32 { (0..k).map(|s| a[(i * k + s) as usize] * (b[(s * n + j) as usize] + 1.0)).sum() };
        let c: Vec<f32> = (0..m * n).map(|at_| at(at_ / n, at_ % n)).collect();
        let as_t = |x: &[f32]| x.iter().map(|v| of(*v)).collect::<Vec<T>>();
        let doubled: Vec<f32> = c.iter().map(|v| 2.0 * v).collect();
        let results = [blank(&[m, n], of(9.0)), blank(&[m, n], of(9.0))];
        let operands = [results[0].clone(), results[1].clone(), tensor(&[m, k], &as_t(&a)), tensor(&[k, n], &as_t(&b))];
        for form in forms() {
            let after = run::<computed_right>(form, &operands, &[]);
            assert_eq!(after[0].values::<T>(), as_t(&c), "{form:?}");
            assert_eq!(after[1].values::<T>(), as_t(&doubled), "{form:?}");
        }
    }
    check_as(|v| v);
    check_as(f64::from);
    check_as(bf16::from_f32);
}

#[test]
fn right_operands_may_be_computed_of_bytes() {
    let [m, k, n] = [9, 40, 21];
    let a: Vec<i8> = (0..m * k).map(|i| (i * 37 % 251) as u8 as i8).collect();
    let b: Vec<u8> = (0..k * n).map(|i| (i * 91 % 256) as u8).collect();
    let at = |i: i64, j: i64| -> i32 {
        (0..k).map(|s| i32::from(a[(i * k + s) as usize]) * i32::from(b[(s * n + j) as usize] / 2)).sum()
    };
    let c: Vec<i32> = (0..m * n).map(|e| at(e / n, e % n)).collect();
    let operands = [blank(&[m, n], 9i32), tensor(&[m, k], &a), tensor(&[k, n], &b)];
    for form in forms() {
        assert_eq!(run::<computed_bytes>(form, &operands, &[])[0].values::<i32>(), c, "{form:?}");
    }
}

/// Rows that indices choose.
#[kernel(op = "c_rows_at", dtypes(T = [i8, f32], I = [i32, u32, i64]), tile(R = 4, C = 24))]
fn rows_at<T: Scalar, I: Int>(y: Out<T, 2>, x: In<T, 2>, rows: In<I, 1>, #[param] from: i64) {
    let i = program_id(0);
    y.rows::<R, C>(i).write(x.rows_at::<R, C>(rows.block::<R>(i), from));
}

#[test]
fn rows_are_gathered() {
    let x: Vec<i8> = (0..90).collect();
    let from = 2;
    let row = |i: i64| -> Vec<i8> {
        let at = |j: i64| {
            if (0..3).contains(&i) && (0..30).contains(&(j + from)) { x[(i * 30 + j + from) as usize] } else { 0 }
        };
        (0..24).map(at).collect()
    };
    let indices = [2i64, 0, -1, 1, 3, 2, i64::MAX];
    let expected: Vec<i8> = indices.into_iter().flat_map(row).collect();
    let params = [("from", max::kernel::ParamArg::Int(from))];
    for form in forms() {
        let result = blank(&[7, 24], 9i8);
        let operands = [result.clone(), tensor(&[3, 30], &x), vector(&indices)];
        assert_eq!(run::<rows_at>(form, &operands, &params)[0].values::<i8>(), expected, "{form:?}");
        let operands = [result, tensor(&[3, 30], &x), vector(&indices.map(|i| i.clamp(-1, 9) as u32))];
        assert_eq!(run::<rows_at>(form, &operands, &params)[0].values::<i8>(), expected, "{form:?}");
    }
}

/// A row that was written, read back as lanes, also by other places than its own.
#[kernel(op = "c_read_back")]
fn read_back<T: Number>(y: Out<T, 2>, x: In<T, 2>) {
    let i = program_id(0);
    let x = x.row(i);
    y.row(i).write(x.map(|v| v * 2));
    let total = y.row(i).read().sum();
    let last = y.row(i).read().reverse().slice(0, 1).sum();
    y.row(i).write(y.row(i).read().map(|v| total + v - last));
}

/// What is read before it is written is 0.
#[kernel(op = "c_read_before")]
fn read_before(y: Out<i32, 2>, x: In<i32, 2>) {
    let i = program_id(0);
    let before = y.row(i).read().sum();
    y.row(i).write(x.row(i).map(|v| v + before));
}

#[test]
fn results_are_read_back_as_lanes() {
    for n in [1, 40, 300] {
        let x: Vec<i32> = (0..2 * n).map(|i| (i * 5 % 7) as i32 - 3).collect();
        let row = |x: &[i32]| {
            let (total, last) = (2 * x.iter().sum::<i32>(), 2 * x.last().unwrap());
            x.iter().map(|v| total + 2 * v - last).collect::<Vec<i32>>()
        };
        let expected: Vec<i32> = x.chunks(n).flat_map(row).collect();
        for form in forms() {
            let operands = [blank(&[2, n as i64], 9i32), tensor(&[2, n as i64], &x)];
            assert_eq!(run::<read_back>(form, &operands, &[])[0].values::<i32>(), expected, "{form:?}");
            let zeroed = [blank(&[2, n as i64], 0i32), tensor(&[2, n as i64], &x)];
            assert_eq!(run::<read_before>(form, &zeroed, &[])[0].values::<i32>(), x, "{form:?}");
        }
    }
    assert!(read_before::def().operands.as_slice()[0].zero_init && !read_back::def().operands.as_slice()[0].zero_init);
}

/// Neighbours at distances of both signs.
#[kernel(op = "c_shifted")]
fn shifted<T: Number>(y: Out<T, 2>, x: In<T, 2>, #[param] by: i64) {
    let i = program_id(0);
    let (before, after) = (x.row(i).shift(-by), x.row(i).pad(7).shift(by));
    y.row(i).write((before, after).map(|(a, b)| a + 100 * b));
}

#[test]
fn neighbours_are_shifted_rows() {
    for (n, by) in [(5, 1), (64, 2), (700, 1), (700, 130), (700, 900), (1000, 0)] {
        let x: Vec<i32> = (0..n).map(|i| i as i32 % 50).collect();
        let at = |j: i64, pad: i32| if (0..n).contains(&j) { x[j as usize] } else { pad };
        let expected: Vec<i32> = (0..n).map(|j| at(j - by, 0) + 100 * at(j + by, 7)).collect();
        check_shifted(n, &x, by, &expected);
    }
}

#[track_caller]
fn check_shifted(n: i64, x: &[i32], by: i64, expected: &[i32]) {
    for form in forms() {
        let operands = [blank(&[1, n], 9i32), tensor(&[1, n], x)];
        let after = run::<shifted>(form, &operands, &[("by", max::kernel::ParamArg::Int(by))]);
        assert_eq!(after[0].values::<i32>(), expected, "{n} {by} {form:?}");
    }
}

/// Powers whose exponents are data.
#[kernel(op = "c_powi")]
fn power<T: Float>(x: T, n: i64) -> T {
    x.powi(n)
}

#[test]
fn exponents_may_be_data() {
    let cases = [
        (2.0f64, 10, 1024.0),
        (2.0, -2, 0.25),
        (-3.0, 3, -27.0),
        (-3.0, 2, 9.0),
        (f64::NAN, 0, 1.0),
        (f64::INFINITY, -1, 0.0),
        (-0.0, -3, f64::NEG_INFINITY),
        (-0.0, -2, f64::INFINITY),
        (-1.0, (1 << 40) + 1, -1.0),
        (1.0, i64::MIN, 1.0),
        (2.0, i64::MAX, f64::INFINITY),
    ];
    let (x, n): (Vec<f64>, Vec<i64>) = cases.iter().map(|(x, n, _)| (*x, *n)).unzip();
    let expected: Vec<f64> = cases.iter().map(|(_, _, y)| *y).collect();
    check::<power, f64>(&[vector(&x), vector(&n), blank(&[11], 9.0f64)], &[], &expected);
    let narrow = |x: &[f64]| x.iter().map(|v| *v as f32).collect::<Vec<f32>>();
    check::<power, f32>(&[vector(&narrow(&x)), vector(&n), blank(&[11], 9.0f32)], &[], &narrow(&expected));
}
