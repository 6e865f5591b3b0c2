//! The code of `docs/guide/05-scatter.md`.

use max::prelude::*;

use crate::{f32s, run_as};

/// `table[indices[i]]`; an index that is out of range gives -1.
#[kernel(op = "guide_look_up", grid(indices.dim(0) / 256))]
fn look_up(y: Out<f32, 1>, table: In<f32, 1>, indices: In<i64, 1>) {
    let table = table.pad(-1.0);
    let i = program_id(0);
    y.block::<256>(i).write(indices.block::<256>(i).map(|index| table.at(index)));
}

/// `y[p[i]] = i`: the inverse of a permutation.
#[kernel(op = "guide_invert", grid(p.dim(0) / 1024))]
fn invert(y: Out<i64, 1>, p: In<i64, 1>) {
    let block = program_id(0);
    let first = block * 1024;
    p.block::<1024>(block).enumerate().for_each(|(target, i)| y.scatter(target, first + i));
}

/// How many elements fall into each of the result's equal parts of the range from 0 to 1.
#[kernel(op = "guide_histogram", grid(x.dim(0) / 4096))]
fn histogram(counts: Out<i64, 1>, x: In<f32, 1>) {
    let parts = counts.dim(0) as f32;
    x.block::<4096>(program_id(0)).for_each(|v| counts.atomic_add([(v * parts).floor() as i64], 1));
}

/// How often each number below the width of `counts` stands in a row of `x`.
#[kernel(op = "guide_count_row")]
fn count_row<T: Int>(counts: Out<i64, 2>, x: In<T, 2>) {
    let row = program_id(0);
    let x = x.row(row);
    for k in 0..x.len() {
        let v = x.at(k) as i64;
        counts.row(row).set(v, counts.row(row).at(v) + 1);
    }
}

#[test]
fn a_program_reads_what_it_wrote() {
    let x = Tensor::from_slice(&[1i32, 1, 3, 0, 1, 9, 2, 2, -1, 2], [2, 5]).unwrap();
    let counts = &run_as("guide_count_row", &[x], &[(DType::I64, &[2, 4])], ())[0];
    assert_eq!(counts.as_slice::<i64>().unwrap(), [1, 3, 0, 1, 0, 0, 3, 0]);
}

#[test]
fn indices_out_of_range_read_the_pad_value() {
    let indices = Tensor::from_slice(&[2i64, 0, 3, -1], [4]).unwrap();
    let y = &run_as("guide_look_up", &[f32s(&[5.0, 6.0, 7.0]), indices], &[(DType::F32, &[4])], ())[0];
    assert_eq!(y.as_slice::<f32>().unwrap(), [7.0, 5.0, -1.0, -1.0]);
}

#[test]
fn permutations_are_inverted() {
    let p: Vec<i64> = (0..5000).map(|i| i * 3 % 5000).collect();
    let p = Tensor::from_slice(&p, [5000]).unwrap();
    let y = &run_as("guide_invert", std::slice::from_ref(&p), &[(DType::I64, &[5000])], ())[0];
    let y = y.as_slice::<i64>().unwrap();
    assert!(p.as_slice::<i64>().unwrap().iter().enumerate().all(|(i, target)| y[*target as usize] == i as i64));
}

/// The sum of the weights of each bin; the order in which they are added is not fixed.
#[kernel(op = "guide_weighted_histogram", grid(bins.dim(0) / 1024), nondeterministic)]
fn weighted_histogram(sums: Out<f32, 1>, bins: In<i64, 1>, weights: In<f32, 1>) {
    let i = program_id(0);
    let (bins, weights) = (bins.block::<1024>(i), weights.block::<1024>(i));
    bins.zip(weights).for_each(|(bin, weight)| sums.atomic_add([bin], weight));
}

#[test]
fn floats_are_added_atomically() {
    let bins: Vec<i64> = (0..5000).map(|i| i % 4).collect();
    let weights: Vec<f32> = (0..5000).map(|i| (i % 3) as f32).collect();
    let bins = Tensor::from_slice(&bins, [5000]).unwrap();
    let sums = &run_as("guide_weighted_histogram", &[bins, f32s(&weights)], &[(DType::F32, &[3])], ())[0];
    // Of whole numbers, whose sums do not depend on their order.
    let sum = |bin: usize| (bin..5000).step_by(4).map(|i| (i % 3) as f32).sum::<f32>();
    assert_eq!(sums.as_slice::<f32>().unwrap(), [sum(0), sum(1), sum(2)]);
}

#[test]
fn atomics_count() {
    let x: Vec<f32> = (0..10_000).map(|i| i as f32 / 10_000.0).chain([1.0, -0.5, f32::NAN]).collect();
    let counts = &run_as("guide_histogram", &[f32s(&x)], &[(DType::I64, &[4])], ())[0];
    // NaN converts to 0; 1.0 and -0.5 fall outside.
    assert_eq!(counts.as_slice::<i64>().unwrap(), [2501, 2500, 2500, 2500]);
}
