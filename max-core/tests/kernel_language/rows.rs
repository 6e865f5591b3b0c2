//! Programs that own rows, blocks, columns and single elements; reductions, scans, gather, scatter and atomics.

use max::kernel::prelude::*;

use crate::support::{blank, check, forms, is_tested, run, tensor, vector};

#[kernel(op = "r_softmax")]
pub fn softmax<T: Float>(y: Out<T, 2>, x: In<T, 2>) {
    let row = program_id(0);
    let x = x.row(row);
    let m = x.fold(T::NEG_INFINITY, |m, v| m.max(v)).max();
    let s = x.fold(0.0, |s, v| s + (v - m).exp()).sum();
    y.row(row).write(x.map(|v| (v - m).exp() / s));
}

#[test]
fn softmax_sums_to_one() {
    for columns in [1, 5, 16, 63, 64, 65, 200] {
        let x: Vec<f64> = (0..3 * columns).map(|i| f64::from(i * 37 % 11) / 3.0).collect();
        let dims = [3, i64::from(columns)];
        for form in forms() {
            let after = run::<softmax>(form, &[blank(&dims, f64::NAN), tensor(&dims, &x)], &[]);
            let y = after[0].values::<f64>();
            for (x, y) in x.chunks(columns as usize).zip(y.chunks(columns as usize)) {
                let total: f64 = x.iter().map(|v| v.exp()).sum();
                for (x, y) in x.iter().zip(y) {
                    assert!((x.exp() / total - y).abs() < 1e-12, "{columns} {form:?}: {x} {y}");
                }
            }
        }
    }
}

/// Rows that are computed once; `z` is longer than they are.
#[kernel(op = "r_keep")]
fn kept(y: Out<f64, 2>, x: In<f64, 2>, z: In<f64, 1>) {
    let row = program_id(0);
    let doubled = x.row(row).map(|v| v * 2.0).materialize();
    let more = doubled.enumerate().map(|(v, i)| v + i as f64).materialize();
    let last = more.fold(0.0, |a, v| a + v).sum();
    y.row(row).write(z.zip(doubled).zip(more).map(|((z, d), m)| z * last + d * m));
}

#[test]
fn kept_rows_hold_their_items_and_nothing_past_them() {
    for (rows, columns) in
        [(3, 0), (2, 1), (3, 15), (2, 16), (2, 63), (3, 64), (2, 65), (5, 200), (1, 40_000), (1, 70_001)]
    {
        let x: Vec<f64> = (0..rows * columns).map(|i| (i % 7) as f64).collect();
        let z: Vec<f64> = (0..columns + 20).map(|i| (i % 3) as f64).collect();
        let dims = [rows as i64, columns as i64 + 20];
        let expected = (0..rows).flat_map(|r| {
            let row = &x[r * columns..][..columns];
            let more: Vec<f64> = row.iter().enumerate().map(|(i, v)| v * 2.0 + i as f64).collect();
            let last: f64 = more.iter().sum();
            let at = |i: usize| more.get(i).map_or(0.0, |m| row[i] * 2.0 * m);
            z.iter().enumerate().map(|(i, z)| z * last + at(i)).collect::<Vec<_>>()
        });
        let expected: Vec<f64> = expected.collect();
        for form in forms() {
            let operands = [blank(&dims, f64::NAN), tensor(&[rows as i64, columns as i64], &x), vector(&z)];
            assert_eq!(run::<kept>(form, &operands, &[])[0].values::<f64>(), expected, "{rows} {columns} {form:?}");
        }
    }
}

/// What is made of all of a column, in each row: the lengths of `y` and `x` may differ.
#[kernel(op = "r_column_maps")]
fn column_maps(y: Out<f64, 2>, x: In<f64, 2>) {
    let part = program_id(0);
    let x = x.columns::<1240>(part);
    let sum = x.sum().materialize();
    let products = x.zip(sum).map(|(v, s)| v * s).fold_with(0.0, |a, (v, k)| a + v * k as f64).reduce(|a, b| a + b);
    y.columns::<1240>(part).reverse().write(x.zip(sum).zip(products).map(|((v, s), p)| v * s + p));
}

/// The largest element of each column, and how often it is there.
#[kernel(op = "r_column_modes")]
fn column_modes(largest: Out<f64, 1>, times: Out<i64, 1>, x: In<f64, 2>) {
    let part = program_id(0);
    let found = x
        .columns::<1240>(part)
        .fold_with(f64::NEG_INFINITY, |m, (v, _)| m.max(v))
        .then(|m| m, 0, |n, (v, _), m| if v == m { n + 1 } else { n })
        .reduce(|(a, n), (b, m)| {
            let more = if a > b { n } else { m };
            (a.max(b), if a == b { n + m } else { more })
        });
    largest.block::<1240>(part).write(found.map(|(m, _)| m));
    times.block::<1240>(part).write(found.map(|(_, n)| n));
}

#[test]
fn columns_are_reduced_twice() {
    for (rows, width) in [
        (0, 3),
        (1, 1),
        (7, 15),
        (33, 16),
        (32, 63),
        (65, 64),
        (511, 65),
        (512, 3),
        (1100, 70),
        (1537, 200),
        (40, 1340),
        (64, 1240),
        (600, 2500),
    ]
    .into_iter()
    .filter(|(rows, width)| is_tested(rows * width))
    {
        let x: Vec<f64> = (0..rows * width).map(|i| (i * 7919 % 31) as f64).collect();
        let column = |j: usize| (0..rows).map(move |k| (k * width + j) * 7919 % 31);
        let largest: Vec<f64> = (0..width).map(|j| column(j).max().map_or(f64::NEG_INFINITY, |m| m as f64)).collect();
        let times: Vec<i64> =
            (0..width).map(|j| column(j).filter(|v| Some(*v) == column(j).max()).count() as i64).collect();
        let dims = [width as i64];
        for form in forms() {
            let operands = [blank(&dims, f64::NAN), blank(&dims, -1i64), tensor(&[rows as i64, width as i64], &x)];
            let after = run::<column_modes>(form, &operands, &[]);
            assert_eq!(after[0].values::<f64>(), largest, "{rows} {width} {form:?}");
            assert_eq!(after[1].values::<i64>(), times, "{rows} {width} {form:?}");
        }
    }
}

/// Sums down columns and up.
#[kernel(op = "r_column_scans")]
fn column_scans(down: Out<i64, 2>, up: Out<i64, 2>, x: In<i64, 2>) {
    let part = program_id(0);
    let x = x.columns::<1240>(part);
    down.columns::<1240>(part).write_scan(x.map(|v| v * 2), 0, |a, b| a + b);
    up.columns::<1240>(part).reverse().write_exclusive_scan(x.reverse(), 0, |a, b| a + b);
}

#[test]
fn columns_are_reduced_and_written() {
    let sizes = [
        (0, 3),
        (1, 1),
        (3, 0),
        (2, 15),
        (5, 16),
        (3, 63),
        (2, 64),
        (3, 65),
        (700, 70),
        (4, 200),
        (32, 1340),
        (33, 1240),
        (600, 190),
    ];
    for (rows, width) in sizes.into_iter().filter(|(rows, width)| is_tested(rows * width)) {
        // As many rows as there are, more and fewer.
        for longer in [0, 2, -1] {
            let written = (rows as i64 + longer).max(0) as usize;
            let x: Vec<f64> = (0..rows * width).map(|i| (i % 7) as f64).collect();
            let column = |j: usize| (0..rows).map(|k| x[k * width + j]).collect::<Vec<_>>();
            let mut expected = vec![0.0; written * width];
            for j in 0..width {
                let x = column(j);
                let sum: f64 = x.iter().sum();
                let products: f64 = x.iter().enumerate().map(|(k, v)| v * sum * k as f64).sum();
                for k in 0..written {
                    expected[(written - 1 - k) * width + j] = x.get(k).unwrap_or(&0.0) * sum + products;
                }
            }
            let dims = [written as i64, width as i64];
            for form in forms() {
                let operands = [blank(&dims, f64::NAN), tensor(&[rows as i64, width as i64], &x)];
                let after = run::<column_maps>(form, &operands, &[]);
                assert_eq!(after[0].values::<f64>(), expected, "{rows} {width} {longer} {form:?}");
            }
        }
    }
}

#[test]
fn columns_are_scanned() {
    let sizes = [(0, 3), (1, 1), (3, 17), (65, 64), (130, 65), (64, 300), (32, 1340), (70, 2500)];
    for (rows, width) in sizes.into_iter().filter(|(rows, width)| is_tested(rows * width)) {
        let x: Vec<i64> = (0..rows * width).map(|i| (i * 31 % 19) as i64 - 9).collect();
        let sum = |k: std::ops::Range<usize>, j: usize| k.map(|k| x[k * width + j]).sum::<i64>();
        let all = || (0..rows).flat_map(|k| (0..width).map(move |j| (k, j)));
        let down: Vec<i64> = all().map(|(k, j)| 2 * sum(0..k + 1, j)).collect();
        let up: Vec<i64> = all().map(|(k, j)| sum(k + 1..rows, j)).collect();
        let dims = [rows as i64, width as i64];
        for form in forms() {
            let after = run::<column_scans>(form, &[blank(&dims, 7i64), blank(&dims, 7i64), tensor(&dims, &x)], &[]);
            assert_eq!(after[0].values::<i64>(), down, "{rows} {width} {form:?}");
            assert_eq!(after[1].values::<i64>(), up, "{rows} {width} {form:?}");
        }
    }
}

/// Both sides write the whole row.
#[kernel(op = "r_either")]
pub fn either(y: Out<f32, 2>, x: In<f32, 2>, #[param] backwards: bool) {
    let row = program_id(0);
    if backwards {
        y.row(row).reverse().write(x.row(row));
    } else {
        y.row(row).write(x.row(row));
    }
}

/// One side writes nothing.
#[kernel(op = "r_perhaps")]
pub fn perhaps(y: Out<f32, 2>, x: In<f32, 2>, #[param] forwards: bool) {
    let row = program_id(0);
    if forwards {
        y.row(row).write(x.row(row));
    } else {
    }
}

/// Sums, and the position of the first largest element.
#[kernel(op = "r_argmax")]
fn argmax(total: Out<i64, 1>, position: Out<i64, 1>, x: In<i32, 2>) {
    let row = program_id(0);
    let x = x.row(row);
    let largest = x.max();
    let n = x.dim(0);
    total.set(row, x.map(|v| v as i64).sum());
    position.set(row, x.enumerate().map(|(v, i)| if v == largest { i } else { n }).min());
}

#[test]
fn each_program_sets_its_element() {
    let x: Vec<i32> = (0..4 * 77).map(|i| i * 31 % 19).collect();
    for form in forms() {
        let operands = [blank(&[4], 0_i64), blank(&[4], 0_i64), tensor(&[4, 77], &x)];
        let after = run::<argmax>(form, &operands, &[]);
        let sums: Vec<i64> = x.chunks(77).map(|r| r.iter().map(|v| i64::from(*v)).sum()).collect();
        let first = |r: &[i32]| r.iter().position(|v| Some(v) == r.iter().max()).map(|p| p as i64);
        let positions: Vec<Option<i64>> = x.chunks(77).map(first).collect();
        assert_eq!(after[0].values::<i64>(), sums);
        assert_eq!(after[1].values::<i64>().into_iter().map(Some).collect::<Vec<_>>(), positions);
    }
}

#[kernel(op = "r_blocks", tile(N = 8, v4(N = 32), gpu(N = 128)))]
pub fn reversed_blocks(y: Out<f32, 1>, x: In<f32, 1>, w: In<f32, 1>) {
    let i = program_id(0);
    let scale = w.at(0) * 2.0;
    y.block::<N>(i).write(x.block::<N>(i).zip(w.block::<N>(i)).map(|(a, b)| a * b + scale + N as f32 * 0.0));
}

#[test]
fn blocks_cover_a_vector_of_any_length() {
    for n in [0_usize, 1, 7, 8, 9, 31, 32, 33, 100] {
        let x: Vec<f32> = (0..n).map(|i| i as f32).collect();
        let w: Vec<f32> = (0..n).map(|i| 1.0 + i as f32).collect();
        let expected: Vec<f32> = x.iter().zip(&w).map(|(a, b)| a * b + 2.0).collect();
        for form in forms() {
            let after = run::<reversed_blocks>(form, &[blank(&[n as i64], -1.0_f32), vector(&x), vector(&w)], &[]);
            assert_eq!(after[0].values::<f32>(), expected, "{n} {form:?}");
        }
    }
}

#[kernel(op = "r_select")]
pub fn batched(y: Out<f32, 3>, x: In<f32, 3>) {
    let [b, r] = program_id();
    let [_, rows] = num_programs();
    let own = y.select(b).row(r);
    own.write(x.select(b).row(rows - 1 - r));
}

#[test]
fn programs_own_parts_of_several_axes() {
    let x: Vec<f32> = (0..2 * 3 * 2).map(|i| i as f32).collect();
    let expected = [4.0, 5.0, 2.0, 3.0, 0.0, 1.0, 10.0, 11.0, 8.0, 9.0, 6.0, 7.0];
    for form in forms() {
        let after = run::<batched>(form, &[blank(&[2, 3, 2], -1.0_f32), tensor(&[2, 3, 2], &x)], &[]);
        assert_eq!(after[0].values::<f32>(), expected, "{form:?}");
    }
}

#[kernel(op = "r_columns")]
pub fn columns(y: Out<f32, 2>, x: In<f32, 2>) {
    let j = program_id(0);
    let total = x.column(j).sum();
    y.column(j).write(x.column(j).map(|v| v / total));
}

#[test]
fn columns_are_owned_too() {
    for form in forms() {
        let after = run::<columns>(form, &[blank(&[2, 2], 0.0_f32), tensor(&[2, 2], &[1.0_f32, 3.0, 3.0, 1.0])], &[]);
        assert_eq!(after[0].values::<f32>(), [0.25, 0.75, 0.75, 0.25], "{form:?}");
    }
}

#[kernel(op = "r_scan")]
fn running_max(y: Out<i32, 2>, x: In<i32, 2>) {
    let row = program_id(0);
    y.row(row).write_scan(x.row(row), i32::MIN, |a, b| a.max(b));
}

#[test]
fn a_scan_keeps_the_order() {
    let x: Vec<i32> = (0..150).map(|i| i * 53 % 101).collect();
    let mut largest = i32::MIN;
    let expected: Vec<i32> = x
        .iter()
        .map(|v| {
            largest = largest.max(*v);
            largest
        })
        .collect();
    for form in forms() {
        let after = run::<running_max>(form, &[blank(&[1, 150], 0), tensor(&[1, 150], &x)], &[]);
        assert_eq!(after[0].values::<i32>(), expected, "{form:?}");
    }
}

#[kernel(op = "r_histogram", grid(x.dim(0) / 16))]
pub fn histogram(counts: Out<i32, 1>, x: In<f32, 1>) {
    let i = program_id(0);
    x.block::<16>(i).for_each(|v| counts.atomic_add([v as i64], 1));
}

#[test]
fn atomics_need_a_grid_and_start_at_zero() {
    let x: Vec<f32> = (0..100).map(|i| (i % 7) as f32 + 0.5).collect();
    let mut expected = [0; 5];
    // What lies outside the counts is dropped.
    x.iter().filter(|v| **v < 5.0).for_each(|v| expected[*v as usize] += 1);
    for form in forms() {
        let after = run::<histogram>(form, &[blank(&[5], 77), vector(&x)], &[]);
        assert_eq!(after[0].values::<i32>(), expected, "{form:?}");
    }
}

#[kernel(op = "r_scatter", grid(index.dim(0)))]
fn scatter(y: Out<f32, 2>, index: In<i64, 1>, x: In<f32, 1>) {
    let i = program_id(0);
    y.scatter([index.at(i), 1], x.at(i));
}

#[test]
fn scatter_drops_what_is_outside() {
    let index = [2_i64, 0, 9, -1];
    for form in forms() {
        let operands = [blank(&[3, 2], 5.0_f32), vector(&index), vector(&[1.0_f32, 2.0, 3.0, 4.0])];
        let after = run::<scatter>(form, &operands, &[]);
        assert_eq!(after[0].values::<f32>(), [0.0, 2.0, 0.0, 0.0, 0.0, 1.0], "{form:?}");
    }
}

#[kernel(op = "r_counter")]
pub fn counter(state: &mut Buffer<i32, 1>, by: In<i32, 1>) {
    let i = program_id(0);
    state.set(i, state.at(i) + by.at(i) * 2);
}

#[test]
fn a_buffer_is_updated_in_place() {
    for form in forms() {
        let after = run::<counter>(form, &[vector(&[1, 2, 3]), vector(&[10, 20, 30])], &[]);
        assert_eq!(after[0].values::<i32>(), [21, 42, 63], "{form:?}");
    }
}

/// Out of bounds on purpose: reading gives the pad value.
#[kernel(op = "r_pad")]
fn shifted(y: Out<f32, 1>, x: In<f32, 1>, #[param] by: i64) {
    let i = program_id(0);
    y.set(i, x.pad(-1.0).at(i + by));
}

#[test]
fn reading_outside_gives_the_pad_value() {
    use max::kernel::ParamArg::Int;
    let operands = [blank(&[3], 0.0_f32), vector(&[1.0_f32, 2.0, 3.0])];
    for form in forms() {
        let by = |n| run::<shifted>(form, &operands, &[("by", Int(n))])[0].values::<f32>();
        assert_eq!(by(1), [2.0, 3.0, -1.0], "{form:?}");
        assert_eq!(by(-2), [-1.0, -1.0, 1.0], "{form:?}");
    }
}

#[kernel]
fn mean<T: Float>(x: In<T, 1>) -> T {
    x.sum() / x.len() as T
}

/// Mean and variance in one pass, by a fold of pairs.
#[kernel(op = "r_moments")]
pub fn moments(y: Out<f64, 2>, x: In<f64, 2>) {
    let row = program_id(0);
    let x = x.row(row);
    let (sum, squares) =
        x.fold_with((0.0, 0.0), |(s, q), v| (s + v, q + v * v)).reduce(|(a, b), (c, d)| (a + c, b + d));
    let n = x.dim(0) as f64;
    y.row(row).set(0, mean(x));
    y.row(row).set(1, squares / n - (sum / n) * (sum / n));
}

#[test]
fn folds_carry_tuples() {
    for form in forms() {
        let after = run::<moments>(form, &[blank(&[1, 3], 9.0), tensor(&[1, 4], &[1.0_f64, 2.0, 3.0, 6.0])], &[]);
        // The last column stays unwritten, so it starts at zero.
        assert_eq!(after[0].values::<f64>(), [3.0, 3.5, 0.0], "{form:?}");
    }
}

/// A number between those of half types, and two means.
#[kernel(op = "r_means")]
pub fn means<T: Number>(y: Out<f32, 2>, x: In<T, 2>) {
    let row = program_id(0);
    let x = x.row(row);
    y.row(row).set(0, T::from_i64(x.dim(0)) as f32);
    y.row(row).set(1, (x.mean() * T::from_i64(2)) as f32);
}

#[test]
fn numbers_of_half_types_have_the_precision_of_f32() {
    let n = 4097; // between the f16 4096 and 4100, and the bf16 4096 and 4128
    for form in forms() {
        let of = |x| run::<means>(form, &[blank(&[1, 2], 0.0_f32), x], &[])[0].values::<f32>();
        assert_eq!(of(tensor(&[1, n], &vec![f16::ONE; n as usize])), [4097.0, 2.0], "{form:?}");
        assert_eq!(of(tensor(&[1, n], &vec![bf16::ONE; n as usize])), [4097.0, 2.0], "{form:?}");
        assert_eq!(of(tensor(&[1, n], &vec![1_u64; n as usize])), [4097.0, 2.0], "{form:?}");
        // The sum does not fit in i8, nor does the length.
        assert_eq!(of(tensor(&[1, n], &vec![-50_i8; n as usize])), [1.0, -100.0], "{form:?}");
    }
}

#[test]
fn empty_tensors_run() {
    for form in forms() {
        for dims in [[0, 4], [4, 0]] {
            let after = run::<softmax>(form, &[blank(&dims, 0.0_f32), blank(&dims, 0.0_f32)], &[]);
            assert!(after[0].values::<f32>().is_empty());
        }
    }
    check::<crate::elementwise::integers, i32>(&[vector::<i32>(&[]), blank(&[0], 0)], &[], &[]);
}

/// Elements of tensors of every rank, by lists of indices of both kinds.
#[kernel(op = "r_every_rank", grid(x.dim(0)))]
fn every_rank(
    moved: Out<f32, 3>,
    counts: Out<i32, 4>,
    largest: Out<i64, 5>,
    x: In<f32, 2>,
    v: In<f32, 1>,
    z: In<f32, 3>,
) {
    let i = program_id(0);
    for j in 0..x.dim(1) {
        moved.scatter([j, 0, i], x.at([i, j]) + v.at([j]) + z.at(0, j, i) + z.at([0, j, i]));
        counts.atomic_add((0, j, 1, 0), 1);
        largest.atomic_max([0, 0, j, 0, 1], i as i64 + j);
    }
}

#[test]
fn every_rank_is_read_and_scattered_to() {
    let x = tensor(&[2, 3], &[1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let v = vector(&[10.0_f32, 20.0, 30.0]);
    let z = tensor(&[1, 3, 2], &[100.0_f32, 200.0, 300.0, 400.0, 500.0, 600.0]);
    for form in forms() {
        let results = [blank(&[3, 1, 2], 9.0_f32), blank(&[1, 3, 2, 1], 9), blank(&[1, 1, 3, 1, 2], 9_i64)].into_iter();
        let operands: Vec<_> = results.chain([x.clone(), v.clone(), z.clone()]).collect();
        let after = run::<every_rank>(form, &operands, &[]);
        assert_eq!(after[0].values::<f32>(), [211.0, 414.0, 622.0, 825.0, 1033.0, 1236.0], "{form:?}");
        assert_eq!(after[1].values::<i32>(), [0, 2, 0, 2, 0, 2], "{form:?}");
        assert_eq!(after[2].values::<i64>(), [0, 1, 0, 2, 0, 3], "{form:?}");
    }
}
