//! The programs of an audit that reached memory which was not theirs, ended the process, or did not end.

use max::kernel::Kernel;
use max::kernel::prelude::*;

use crate::support::{Operand, everywhere, floats, hosts, indices, results, run, tensor};

/// The first result, in every form.
#[track_caller]
fn check<K: Kernel, T: max::dtype::Element + PartialEq + std::fmt::Debug>(operands: &[Operand], expected: &[T]) {
    for how in everywhere() {
        let after = run::<K>(how, operands, &[1]).unwrap_or_else(|e| panic!("{how:?}: {e}"));
        assert_eq!(after[0].values::<T>(), expected, "{how:?}");
    }
}

#[kernel(op = "soundness_r01", dtypes(T = [f32]), tile(R = 1, C = 32))]
fn tile_of_floats<T: Float>(y: Out<T, 2>, x: In<T, 2>, at: In<i64, 1>) {
    let i = program_id(0);
    let v = x.tile::<R, C>(0, at.at(0)).load();
    y.rows::<R, C>(i).write(v);
}

#[test]
fn a_tile_at_the_largest_column_is_padding() {
    let x = vec![1.0; 32];
    for (at, expected) in [(0, 1.0), (i64::MAX - 7, 0.0), (i64::MAX - 30, 0.0), (i64::MIN, 0.0)] {
        let operands = [results(&[1, 32]), floats(&[1, 32], &x), indices(&[at])];
        check::<tile_of_floats, f32>(&operands, &[expected; 32]);
    }
}

#[kernel(op = "soundness_r18", dtypes(T = [u8]), tile(R = 1, C = 32))]
fn tile_of_bytes<T: Int>(y: Out<T, 2>, x: In<T, 2>, at: In<i64, 1>) {
    let i = program_id(0);
    let v = x.tile::<R, C>(0, at.at(0)).load();
    y.rows::<R, C>(i).write(v);
}

#[test]
fn a_tile_of_bytes_at_the_largest_column_is_padding() {
    for (at, expected) in [(0, 5), (i64::MAX - 7, 0)] {
        let operands = [tensor(&[1, 32], &[9_u8; 32], 77), tensor(&[1, 32], &[5_u8; 32], 77), indices(&[at])];
        check::<tile_of_bytes, u8>(&operands, &[expected; 32]);
    }
}

#[kernel(op = "soundness_r02", dtypes(T = [f32]))]
fn far_columns<T: Float>(y: Out<T, 2>, x: In<T, 2>, at: In<i64, 1>) {
    let i = program_id(0);
    y.columns::<64>(i).write(x.columns::<64>(at.at(0)));
}

#[test]
fn columns_at_the_largest_index_are_padding() {
    let x = vec![1.0; 64];
    for (at, expected) in [(0, 1.0), (5, 0.0), ((1 << 57) - 1, 0.0)] {
        let operands = [results(&[1, 64]), floats(&[1, 64], &x), indices(&[at])];
        check::<far_columns, f32>(&operands, &[expected; 64]);
    }
}

#[kernel(op = "soundness_r03", dtypes(T = [f32]))]
fn kept<T: Float>(y: Out<T, 2>, x: In<T, 2>, n: In<i64, 1>) {
    let i = program_id(0);
    let k = x.row(i).slice(0, n.at(0)).map(|v| v + 1.0).materialize();
    y.row(i).set(0, k.sum());
}

#[test]
fn a_row_that_no_memory_holds_is_an_error() {
    let operands = |n| [results(&[1, 1]), floats(&[1, 64], &[1.0; 64]), indices(&[n])];
    check::<kept, f32>(&operands(64), &[128.0]);
    check::<kept, f32>(&operands(-5), &[0.0]);
    for (how, n) in hosts().into_iter().flat_map(|how| [50, 61, 62].map(|bits| (how, 1 << bits))) {
        let error = run::<kept>(how, &operands(n), &[1]).err();
        let error = error.unwrap_or_else(|| panic!("{how:?} keeps {n} items"));
        assert!(error.contains("`soundness_r03` needs") && error.contains("bytes of memory"), "{error}");
    }
}

#[kernel(op = "soundness_r04", dtypes(T = [f32]))]
fn pick<T: Float>(y: Out<T, 1>, x: In<T, 3>, at: In<i64, 1>) {
    let i = program_id(0);
    y.set(i, x.select(at.at(0)).column(0).at(0));
}

#[test]
fn what_is_selected_of_a_part_outside_is_outside() {
    for (parts, at, expected) in [(3, 0, 7.0), (3, 100, 0.0), (3, -1, 0.0), (0, 0, 0.0), (0, 100, 0.0), (0, -1, 0.0)] {
        let x: Vec<f32> = (0..parts * 4).map(|i| 7.0 + i as f32).collect();
        check::<pick, f32>(&[results(&[1]), floats(&[parts, 2, 2], &x), indices(&[at])], &[expected]);
    }
}

#[kernel(op = "soundness_r10", dtypes(T = [f32]))]
fn steps<T: Float>(y: Out<T, 1>, x: In<i64, 1>) {
    let i = program_id(0);
    let mut count = 0;
    for k in range(0, x.at(0), x.at(1)) {
        count = count + 1 + k - k;
        if count > 1000000 {
            y.set(i, 1.0);
        }
    }
    y.set(i, count as T);
}

#[test]
fn a_loop_ends_where_its_index_would_wrap() {
    for (n, step, expected) in [(100, 30, 4.0), (i64::MAX, 1 << 62, 2.0), (3, 0, 3.0), (3, -7, 3.0)] {
        check::<steps, f32>(&[results(&[1]), indices(&[n, step])], &[expected]);
    }
}

#[kernel(op = "soundness_r15", dtypes(T = [f32]))]
fn far<T: Float>(y: Out<T, 1>, x: In<T, 2>, at: In<i64, 1>) {
    let i = program_id(0);
    y.set(i, x.at(at.at(0), at.at(0)));
}

#[test]
fn an_index_far_outside_does_not_overflow() {
    for (at, expected) in [(1, 1.0), (i64::MAX - 1, 0.0), (i64::MAX / 2, 0.0), (i64::MIN, 0.0)] {
        check::<far, f32>(&[results(&[1]), floats(&[2, 3], &[1.0; 6]), indices(&[at])], &[expected]);
    }
}
