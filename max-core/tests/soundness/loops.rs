//! Loops that count to either end.

use std::sync::atomic::AtomicUsize;

use max::kernel::prelude::*;
use proptest::prelude::*;

use crate::support::{config, forms, indices, run, tensor};

#[kernel(op = "soundness_ranges", grid(at.dim(0) / 4))]
fn ranges(y: Out<i64, 2>, at: In<i64, 1>) {
    let i = program_id(0);
    let mut count = 0;
    let mut sum = 0;
    for k in range(at.at(0), at.at(1), at.at(2)) {
        count = count + 1;
        sum = sum + k;
    }
    y.row(i).set(0, count);
    y.row(i).set(1, sum);
    count = 0;
    for k in range(at.at(0), at.at(1), 1_000_000_000_000_000_000) {
        count = count + k % 1000;
    }
    y.row(i).set(2, count);
}

/// The indices of a loop, of which there are few.
fn walked(lo: i64, hi: i64, step: i64) -> Vec<i64> {
    let mut at = i128::from(lo);
    let mut all = Vec::new();
    while at < i128::from(hi) {
        all.push(at as i64);
        at += i128::from(step.max(1));
    }
    all
}

/// A range of at most a few hundred indices.
fn range() -> impl Strategy<Value = [i64; 3]> {
    let few = (0..200_i64, 0..200_i64, -2..70_i64);
    prop_oneof![
        few.clone().prop_map(|(lo, hi, step)| [lo, hi, step]),
        few.clone().prop_map(|(lo, hi, step)| [i64::MAX - lo, i64::MAX - hi, step]),
        few.prop_map(|(lo, hi, step)| [i64::MIN + lo, i64::MIN + hi, step]),
        (any::<i64>(), any::<i64>(), (1_i64 << 56)..=i64::MAX).prop_map(|(lo, hi, step)| [lo, hi, step]),
    ]
}

proptest! {
    #![proptest_config(config(120))]

    #[test]
    fn a_step_that_would_wrap_ends_the_loop([lo, hi, step] in range()) {
        static TIMES: AtomicUsize = AtomicUsize::new(0);
        let operands = [tensor(&[1, 3], &[0_i64; 3], 3), indices(&[lo, hi, step, 0])];
        let all = walked(lo, hi, step);
        let far: i64 = walked(lo, hi, 1_000_000_000_000_000_000).iter().map(|k| k % 1000).sum();
        let expected = [all.len() as i64, all.iter().fold(0, |sum: i64, k| sum.wrapping_add(*k)), far];
        for how in forms(&TIMES, 8) {
            let after = run::<ranges>(how, &operands, &[1]).map_err(TestCaseError::fail)?;
            prop_assert_eq!(after[0].values::<i64>(), expected, "{:?}", how);
        }
    }
}
