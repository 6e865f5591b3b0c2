//! The code of `docs/guide/06-control-flow.md`.

use max::prelude::*;

use crate::{close, f32s, run, run_as};

/// The greatest common divisor.
#[kernel(op = "guide_gcd")]
fn gcd<T: Int>(x: T, y: T) -> T {
    let mut a = x.abs();
    let mut b = y.abs();
    while b != 0 {
        let r = a % b;
        a = b;
        b = r;
    }
    a
}

/// The square root by Heron's method: `rounds` times `(r + x / r) / 2`.
#[kernel(op = "guide_heron")]
fn heron<T: Float>(x: T, #[param(default = 6)] rounds: i64) -> T {
    let mut r = x.max(1);
    for _ in 0..rounds {
        r = 0.5 * (r + x / r);
    }
    r
}

/// Each row as it is, or backwards if its first element is negative.
#[kernel(op = "guide_flip")]
fn flip<T: Signed>(y: Out<T, 2>, x: In<T, 2>) {
    let row = program_id(0);
    let x = x.row(row);
    if x.at(0) < 0 {
        y.row(row).write(x.reverse());
    } else {
        y.row(row).write(x);
    }
}

#[test]
fn loops_and_branches() {
    let integers = |x: &[i32]| Tensor::from_slice(x, [x.len()]).unwrap();
    let operands = [integers(&[12, -12, 0, 17, 0]), integers(&[18, 18, 5, 0, 0])];
    let y = &run("guide_gcd", &operands, &[DType::I32], ())[0];
    assert_eq!(y.as_slice::<i32>().unwrap(), [6, 6, 5, 17, 0]);

    close(&run("guide_heron", &[f32s(&[4.0, 2.0, 9.0])], &[DType::F32], ())[0], &[2.0, 2f32.sqrt(), 3.0]);
    let none = run("guide_heron", &[f32s(&[4.0])], &[DType::F32], [("rounds", 0)]);
    assert_eq!(none[0].as_slice::<f32>().unwrap(), [4.0]);
}

#[test]
fn programs_branch() {
    let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, -1.0, 2.0, 3.0], [2, 3]).unwrap();
    let y = &run_as("guide_flip", &[x], &[(DType::F32, &[2, 3])], ())[0];
    assert_eq!(y.as_slice::<f32>().unwrap(), [1.0, 2.0, 3.0, 3.0, 2.0, -1.0]);
}
