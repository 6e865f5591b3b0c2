//! Reading: elements, parts, slices, rows of lanes, columns and tiles.

use std::sync::atomic::AtomicUsize;

use max::kernel::prelude::*;
use proptest::prelude::*;

use crate::model::{Array, Line, wrap};
use crate::support::{config, floats, forms, hosts, index, indices, kept_length, length, results, run};

#[kernel(op = "soundness_elements")]
fn elements(y: Out<f32, 2>, x: In<f32, 3>, at: In<i64, 1>) {
    let i = program_id(0);
    let a = at.at(0);
    let b = at.at(1);
    let c = at.at(2);
    let n = at.at(3);
    y.row(i).set(0, x.at(a, b, c));
    y.row(i).set(1, x.pad(7.0).at(a, b, c));
    y.row(i).set(2, x.select(a).at(b, c));
    y.row(i).set(3, x.select(a).row(b).at(c));
    y.row(i).set(4, x.select(a).column(c).at(b));
    y.row(i).set(5, x.select(a).column(b).reverse().at(c));
    y.row(i).set(6, x.select(a).row(b).slice(c, n).at(b));
    y.row(i).set(7, x.select(a).row(b).slice(c, n).reverse().at(a));
    y.row(i).set(8, x.select(a).row(b).reverse().slice(c, n).reverse().at(b));
    y.row(i).set(9, x.select(a).row(b).block::<4>(c).at(b));
    y.row(i).set(10, x.select(0).row(1).slice(a, n).slice(b, n).at(c));
    y.row(i).set(11, x.select(0).column(1).slice(a, n).reverse().slice(b, n).at(c));
}

/// The same by the model.
fn elements_of(x: &Array, [a, b, c, n]: [i64; 4]) -> Vec<f32> {
    let row = |a, b| Line::new(5, move |i| x.at(&[a, b, i]));
    let column = |a, c| Line::new(4, move |i| x.at(&[a, i, c]));
    let at = |line: Line<'_>, i: i64| (line.at)(i);
    let element = x.at(&[a, b, c]);
    // No element is 0.
    let padded = if element == 0.0 { 7.0 } else { element };
    vec![
        element,
        padded,
        element,
        element,
        element,
        at(column(a, b).reverse(), c),
        at(row(a, b).slice(c, n), b),
        at(row(a, b).slice(c, n).reverse(), a),
        at(row(a, b).reverse().slice(c, n).reverse(), b),
        at(row(a, b).block(c, 4), b),
        at(row(0, 1).slice(a, n).slice(b, n), c),
        at(column(0, 1).slice(a, n).reverse().slice(b, n), c),
    ]
}

#[kernel(op = "soundness_lanes")]
fn lanes_of(y: Out<f32, 2>, x: In<f32, 2>, at: In<i64, 1>) {
    let i = program_id(0);
    let r = at.at(0);
    let lo = at.at(1);
    let n = at.at(2);
    y.row(i).set(0, x.row(r).slice(lo, n).sum());
    y.row(i).set(1, x.row(1).slice(lo, n).reverse().enumerate().map(|(v, i)| v * (i as f32)).sum());
    y.row(i).set(2, x.column(lo).slice(r, n).sum());
    y.row(i).set(3, x.row(r).slice(lo, n).map(|v| v + 1.0).materialize().sum());
    y.row(i).set(4, x.row(0).slice(lo, n).zip(x.row(1).slice(r, n)).map(|(a, b)| a * b).sum());
    y.row(i).set(5, lanes(40).zip(x.row(0).repeat(lo)).map(|(i, v)| v * (i as f32)).sum());
    y.row(i).set(6, x.row(0).block::<64>(lo).sum());
    y.row(i).set(7, x.row(r).reverse().slice(lo, n).reverse().enumerate().map(|(v, i)| v * (i as f32)).sum());
}

fn lanes_by_model(x: &Array, [r, lo, n]: [i64; 3]) -> Vec<f32> {
    let row = |r| Line::new(150, move |i| x.at(&[r, i]));
    let column = |c| Line::new(2, move |i| x.at(&[i, c]));
    let weighted = |line: Line<'_>| line.values().iter().zip(0..).map(|(v, i)| v * i as f32).sum();
    let times = lo.max(1);
    vec![
        row(r).slice(lo, n).sum(),
        weighted(row(1).slice(lo, n).reverse()),
        column(lo).slice(r, n).sum(),
        row(r).slice(lo, n).values().iter().map(|v| v + 1.0).sum(),
        row(0).slice(lo, n).values().iter().zip(row(1).slice(r, n).values()).map(|(a, b)| a * b).sum(),
        (0..40).map(|i| i as f32 * (row(0).at)(i / times)).sum(),
        row(0).block(lo, 64).sum(),
        weighted(row(r).reverse().slice(lo, n).reverse()),
    ]
}

#[kernel(op = "soundness_kept")]
fn kept_of(y: Out<f32, 2>, x: In<f32, 2>, at: In<i64, 1>) {
    let i = program_id(0);
    let row = x.row(at.at(0)).slice(at.at(1), at.at(2)).map(|v| v + 1.0).materialize();
    y.row(i).set(0, row.sum());
    y.row(i).set(1, row.enumerate().map(|(v, i)| v * (i as f32)).sum());
}

#[kernel(op = "soundness_columns")]
fn columns_of(y: Out<f32, 2>, z: Out<f32, 2>, s: Out<f32, 1>, x: In<f32, 2>, at: In<i64, 1>) {
    let i = program_id(0);
    y.columns::<64>(i).write(x.columns::<64>(at.at(0)));
    z.columns::<64>(i).write(x.columns::<64>(at.at(0)).reverse());
    s.block::<64>(i).write(x.columns::<64>(at.at(0)).sum());
}

#[kernel(op = "soundness_tiles")]
fn tiles_of(y: Out<f32, 2>, z: Out<f32, 2>, x: In<f32, 3>, at: In<i64, 1>) {
    let [i, j] = program_id();
    let part = x.select(at.at(2));
    y.tile::<4, 32>(i, j).write(part.tile::<4, 32>(at.at(0), at.at(1)).load());
    z.tile::<4, 32>(i, j).write(part.tile::<32, 4>(at.at(0), at.at(1)).t().load());
}

/// Found by the test below: reversed, a slice of negative length would begin before its start.
#[test]
fn a_slice_of_negative_length_has_no_elements_when_reversed() {
    static TIMES: AtomicUsize = AtomicUsize::new(0);
    let x = Array::new(&[3, 4, 5]);
    for at in [[i64::MAX - 54, i64::MAX - 119, -84, -148], [2, 0, 1, -1], [1, 1, 1, i64::MIN]] {
        let operands = [results(&[1, 12]), floats(&x.dims, &x.values), indices(&at)];
        for how in forms(&TIMES, 1) {
            let after = run::<elements>(how, &operands, &[1]).unwrap();
            assert_eq!(after[0].values::<f32>(), elements_of(&x, at), "{how:?}");
        }
    }
}

proptest! {
    #![proptest_config(config(160))]

    #[test]
    fn elements_are_those_of_the_model(at in [index(), index(), index(), index()]) {
        static TIMES: AtomicUsize = AtomicUsize::new(0);
        let x = Array::new(&[3, 4, 5]);
        let operands = [results(&[1, 12]), floats(&x.dims, &x.values), indices(&at)];
        for how in forms(&TIMES, 8) {
            let after = run::<elements>(how, &operands, &[1]).map_err(TestCaseError::fail)?;
            prop_assert_eq!(after[0].values::<f32>(), elements_of(&x, at), "{:?}", how);
        }
    }

    #[test]
    fn lanes_are_those_of_the_model(r in index(), lo in index(), n in length()) {
        static TIMES: AtomicUsize = AtomicUsize::new(0);
        let x = Array::new(&[2, 150]);
        let operands = [results(&[1, 8]), floats(&x.dims, &x.values), indices(&[r, lo, n])];
        for how in forms(&TIMES, 16) {
            let after = run::<lanes_of>(how, &operands, &[1]).map_err(TestCaseError::fail)?;
            prop_assert_eq!(after[0].values::<f32>(), lanes_by_model(&x, [r, lo, n]), "{:?}", how);
        }
    }

    #[test]
    fn kept_rows_are_those_of_the_model_or_an_error(r in index(), lo in index(), n in kept_length()) {
        static TIMES: AtomicUsize = AtomicUsize::new(0);
        let x = Array::new(&[2, 150]);
        let operands = [results(&[1, 2]), floats(&x.dims, &x.values), indices(&[r, lo, n])];
        if n >= 200 {
            for how in hosts() {
                let error = run::<kept_of>(how, &operands, &[1]).err();
                prop_assert!(error.as_ref().is_some_and(|e| e.contains("bytes of memory")), "{:?}: {:?}", how, error);
            }
            return Ok(());
        }
        let row: Vec<f32> = Line::new(150, |i| x.at(&[r, i])).slice(lo, n).values().iter().map(|v| v + 1.0).collect();
        let expected = [row.iter().sum::<f32>(), row.iter().zip(0..).map(|(v, i)| v * i as f32).sum()];
        for how in forms(&TIMES, 16) {
            let after = run::<kept_of>(how, &operands, &[1]).map_err(TestCaseError::fail)?;
            prop_assert_eq!(&after[0].values::<f32>(), &expected, "{:?}", how);
        }
    }

    #[test]
    fn columns_are_those_of_the_model(c in index()) {
        static TIMES: AtomicUsize = AtomicUsize::new(0);
        let x = Array::new(&[3, 150]);
        let operands =
            [results(&[3, 64]), results(&[3, 64]), results(&[64]), floats(&x.dims, &x.values), indices(&[c])];
        let at = |row: i64, j: i64| x.at(&[row, wrap(i128::from(c) * 64 + i128::from(j))]);
        let all = |row: fn(i64) -> i64| -> Vec<f32> { (0..192).map(|k| at(row(k / 64), k % 64)).collect() };
        let sums: Vec<f32> = (0..64).map(|j| at(0, j) + at(1, j) + at(2, j)).collect();
        for how in forms(&TIMES, 16) {
            let after = run::<columns_of>(how, &operands, &[1]).map_err(TestCaseError::fail)?;
            prop_assert_eq!(after[0].values::<f32>(), all(|row| row), "{:?}", how);
            prop_assert_eq!(after[1].values::<f32>(), all(|row| 2 - row), "{:?}", how);
            prop_assert_eq!(&after[2].values::<f32>(), &sums, "{:?}", how);
        }
    }

    #[test]
    fn tiles_are_those_of_the_model(row in index(), column in index(), part in index()) {
        static TIMES: AtomicUsize = AtomicUsize::new(0);
        let x = Array::new(&[3, 37, 70]);
        let operands = [results(&[4, 32]), results(&[4, 32]), floats(&x.dims, &x.values), indices(&[row, column, part])];
        let add = |a: i64, b: i64| wrap(i128::from(a) + i128::from(b));
        let plain: Vec<f32> = (0..128).map(|k| x.at(&[part, add(row, k / 32), add(column, k % 32)])).collect();
        let turned: Vec<f32> = (0..128).map(|k| x.at(&[part, add(row, k % 32), add(column, k / 32)])).collect();
        for how in forms(&TIMES, 16) {
            let after = run::<tiles_of>(how, &operands, &[1, 1]).map_err(TestCaseError::fail)?;
            prop_assert_eq!(&after[0].values::<f32>(), &plain, "{:?}", how);
            prop_assert_eq!(&after[1].values::<f32>(), &turned, "{:?}", how);
        }
    }
}
