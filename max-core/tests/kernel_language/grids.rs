//! Grids that are computed, and atomics whose order is not fixed.

use max::kernel::prelude::*;
use max::kernel::{Kernel, KernelError, ParamArg};

use crate::support::{blank, forms, run, try_run, vector};

/// A program for each so many elements of two operands behind each other, up to a limit.
#[kernel(op = "g_sums", tile(B = 4), grid(((x.dim(0) + z.dim(0)) / B - skip).min(most)))]
fn sums(y: Out<i64, 1>, x: In<i64, 1>, z: In<i64, 1>, #[param] skip: i64, #[param(default = 100)] most: i64) {
    let i = program_id(0);
    let first = i * B;
    let n = x.dim(0);
    y.set(i, lanes(B).map(|j| x.at(first + j) + z.at(first + j - n)).sum());
}

#[test]
fn grids_are_computed_from_dims_parameters_and_tiles() {
    let (x, z): (Vec<i64>, Vec<i64>) = ((1..=7).collect(), (8..=10).collect());
    let all = [10, 26, 19];
    for form in forms() {
        let programs = |skip: i64, most: Option<i64>| {
            let operands = [blank(&[3], 0i64), vector(&x), vector(&z)];
            let params = [("skip", ParamArg::Int(skip)), ("most", ParamArg::Int(most.unwrap_or(100)))];
            let after = run::<sums>(form, &operands, &params[..if most.is_some() { 2 } else { 1 }]);
            let sums = after[0].values::<i64>();
            let count = sums.iter().take_while(|sum| **sum != 0).count();
            assert_eq!((&sums[..count], &sums[count..]), (&all[..count], &vec![0; 3 - count][..]), "{form:?}");
            count
        };
        // Tile constants differ by machine, and here they do not.
        assert_eq!([programs(0, None), programs(1, None), programs(3, None), programs(50, None)], [3, 2, 0, 0]);
        assert_eq!([programs(0, Some(2)), programs(-1, Some(2)), programs(0, Some(-7))], [2, 2, 0]);
    }
    assert_eq!(sums::def().grid_terms.as_slice().len(), 9);
}

#[test]
fn enormous_grids_are_errors() {
    let operands = [blank(&[3], 0i64), vector(&[1i64; 7]), vector(&[1i64; 3])];
    for form in forms() {
        let params = [("skip", ParamArg::Int(i64::MIN)), ("most", ParamArg::Int(1 << 40))];
        let error = try_run::<sums>(form, &operands, &params).expect_err("a grid of 2^40 programs");
        assert!(matches!(error, KernelError::Grid { kernel: "g_sums", axis: 0, .. }), "{error:?}");
        assert!(error.to_string().contains("programs along axis 0, and the limit is 2147483647"), "{error}");
    }
}

/// A sum of floats by many programs, and the extremes.
#[kernel(op = "g_total", grid(x.dim(0) / 16), nondeterministic)]
fn total(y: Out<f32, 1>, x: In<f32, 1>) {
    let i = program_id(0);
    let x = x.block::<16>(i);
    x.for_each(|v| y.atomic_add([0], v));
    x.for_each(|v| y.atomic_max([1], v));
    x.for_each(|v| y.atomic_min([2], v));
}

/// The same in 64 bits, of a buffer.
#[kernel(op = "g_total_wide", grid(x.dim(0) / 16), nondeterministic)]
fn total_wide(y: &mut Buffer<f64, 1>, x: In<f64, 1>) {
    let i = program_id(0);
    x.block::<16>(i).for_each(|v| y.atomic_add([0], v));
}

#[test]
fn floats_are_added_atomically_where_the_order_does_not_matter() {
    let n = 5000;
    let x: Vec<f64> = (0..n).map(|i| f64::from((i * 37 + 11) % 1001) - 400.0).collect();
    // Of numbers without fractions, whatever the order.
    let expected = [x.iter().sum::<f64>(), 600.0, -400.0];
    let narrow: Vec<f32> = x.iter().map(|v| *v as f32).collect();
    for form in forms() {
        let wide = run::<total_wide>(form, &[blank(&[1], 1000.0f64), vector(&x)], &[]);
        assert_eq!(wide[0].values::<f64>(), [1000.0 + expected[0]], "{form:?}");
        let found = run::<total>(form, &[blank(&[3], 9.0f32), vector(&narrow)], &[])[0].values::<f32>();
        assert_eq!(found, expected.map(|v| v as f32), "{form:?}");
    }
    assert!(total::def().nondeterministic && !sums::def().nondeterministic);
}
