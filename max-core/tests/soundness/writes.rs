//! Writing: parts, slices and blocks of results, scatters and atomics. What a program does not own stays as it is.

use std::sync::atomic::AtomicUsize;

use max::kernel::prelude::*;
use proptest::prelude::*;

use crate::model::wrap;
use crate::support::{config, everywhere, floats, forms, index, indices, length, results, run, tensor};

#[kernel(op = "soundness_slices")]
fn slices(y: Out<f32, 2>, z: Out<f32, 2>, b: Out<f32, 1>, w: Out<f32, 2>, at: In<i64, 1>) {
    let i = program_id(0);
    let k = at.at(0);
    let lo = at.at(1);
    let n = at.at(2);
    y.row(i).slice(lo, n).set(k, 1.0);
    y.row(i).set(k, 2.0);
    z.row(i).slice(lo, n).reverse().set(k, 3.0);
    z.row(i).reverse().slice(lo, n).slice(k, n).set(lo, 4.0);
    b.block::<8>(i).set(k, 5.0);
    w.row(i).slice(lo, n).write(lanes(n).map(|i| (i + 1) as f32));
}

#[kernel(op = "soundness_scatters", grid(at.dim(1)))]
fn scatters(s: Out<f32, 2>, t: Out<i64, 2>, at: In<i64, 2>) {
    let i = program_id(0);
    s.scatter((at.at(0, i), at.at(1, i)), 6.0);
    t.atomic_add((at.at(0, i), at.at(1, i)), 7);
    t.atomic_max((at.at(1, i), at.at(0, i)), 9);
}

#[kernel(op = "soundness_parts")]
fn parts(a: Out<f32, 3>, b: Out<f32, 3>, x: In<f32, 3>) {
    let [i, j] = program_id();
    a.select(i).column(j).write(x.select(i).column(j));
    b.select(i).column(j).write(x.select(i).column(j));
}

/// Writes a value at an index of a part of a row of so many, if it is inside of both.
fn set(row: &mut [f32], index: Option<i128>, v: f32) {
    let at = index.map(wrap).and_then(|i| usize::try_from(i).ok());
    if let Some(element) = at.and_then(|i| row.get_mut(i)) {
        *element = v;
    }
}

/// The index in the row of index `k` of a slice, if the slice has it.
fn in_slice(lo: i64, n: i64, k: i128) -> Option<i128> {
    (0..i128::from(n)).contains(&k).then(|| i128::from(lo) + k)
}

proptest! {
    #![proptest_config(config(160))]

    #[test]
    fn slices_write_what_is_theirs(k in index(), lo in index(), n in length()) {
        static TIMES: AtomicUsize = AtomicUsize::new(0);
        let operands = [results(&[1, 70]), results(&[1, 70]), results(&[20]), results(&[1, 70]), indices(&[k, lo, n])];
        let [mut y, mut z, mut w] = [const { [0.0; 70] }; 3];
        let mut b = [0.0; 20];
        let at = i128::from(k);
        set(&mut y, in_slice(lo, n, at), 1.0);
        set(&mut y, Some(at), 2.0);
        set(&mut z, in_slice(lo, n, i128::from(n) - 1 - at), 3.0);
        let inner = in_slice(k, n, lo.into()).map(|i| i128::from(wrap(i))).and_then(|i| in_slice(lo, n, i));
        set(&mut z, inner.map(|i| 69 - i128::from(wrap(i))), 4.0);
        // The only program has the first block.
        set(&mut b, in_slice(0, 8, at), 5.0);
        (0..n.max(0)).for_each(|i| set(&mut w, in_slice(lo, n, i.into()), (i + 1) as f32));
        for how in forms(&TIMES, 16) {
            let after = run::<slices>(how, &operands, &[1]).map_err(TestCaseError::fail)?;
            let got: Vec<Vec<f32>> = after[..4].iter().map(|o| o.values()).collect();
            prop_assert_eq!(&got[0], &y, "{:?}", how);
            prop_assert_eq!(&got[1], &z, "{:?}", how);
            prop_assert_eq!(&got[2], &b, "{:?}", how);
            prop_assert_eq!(&got[3], &w, "{:?}", how);
        }
    }

    #[test]
    fn scatters_and_atomics_write_inside_alone(i in index(), j in index()) {
        static TIMES: AtomicUsize = AtomicUsize::new(0);
        let operands =
            [results(&[4, 6]), tensor(&[4, 6], &[0_i64; 24], 3), tensor(&[2, 1], &[i, j], 1)];
        let is_at = |n: i64, i: i64, j: i64| (n / 6, n % 6) == (i, j);
        let s: Vec<f32> = (0..24).map(|n| if is_at(n, i, j) { 6.0 } else { 0.0 }).collect();
        let sum = |n| if is_at(n, i, j) { 7 } else { 0 };
        let t: Vec<i64> = (0..24).map(|n| if is_at(n, j, i) { sum(n).max(9) } else { sum(n) }).collect();
        for how in forms(&TIMES, 16) {
            let after = run::<scatters>(how, &operands, &[1]).map_err(TestCaseError::fail)?;
            prop_assert_eq!(&after[0].values::<f32>(), &s, "{:?}", how);
            prop_assert_eq!(&after[1].values::<i64>(), &t, "{:?}", how);
        }
    }
}

/// Of two results the second one has fewer parts: programs outside of it write nothing there.
#[test]
fn programs_outside_of_a_result_write_nothing() {
    let x: Vec<f32> = (1..17).map(|i| i as f32).collect();
    let operands = [results(&[4, 2, 2]), results(&[1, 2, 2]), floats(&[4, 2, 2], &x)];
    for how in everywhere() {
        let after = run::<parts>(how, &operands, &[4, 2]).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(after[0].values::<f32>(), x, "{how:?}");
        assert_eq!(after[1].values::<f32>(), x[..4], "{how:?}");
    }
}
