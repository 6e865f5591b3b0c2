//! Variables, `if`, `while` and `for`.

use max::kernel::prelude::*;

use crate::support::{blank, check, check_unary, forms, run, tensor, vector};

#[kernel(op = "c_collatz")]
fn collatz(x: i32) -> i32 {
    let mut n = x;
    let mut steps = 0;
    while n > 1 && steps < 200 {
        n = if n % 2 == 0 { n / 2 } else { 3 * n + 1 };
        steps += 1;
    }
    steps
}

#[test]
fn a_while_ends_for_each_element_alone() {
    let f = |mut n: i32| {
        let mut steps = 0;
        while n > 1 && steps < 200 {
            n = if n % 2 == 0 { n / 2 } else { 3 * n + 1 };
            steps += 1;
        }
        steps
    };
    let x: Vec<i32> = (-3..70).collect();
    check_unary::<collatz, i32>(&x, &x.iter().map(|x| f(*x)).collect::<Vec<_>>());
}

#[kernel(op = "c_decided", tile(R = 4, C = 8))]
fn decided(y: Out<i32, 2>, x: In<i32, 2>) {
    let [i, j] = program_id();
    let mut t = x.tile::<R, C>(i, j).load();
    if R > C {
        t = t.map(|v| v * 1000);
    } else if R * 2 == C {
        t = t.map(|v| v + 1);
    }
    let wide = if C > R && x.dim(1) > 9 { 20i32 } else { 10 };
    let never = if C < R && x.dim(1) > 9 { 200i32 } else { 100 };
    y.tile::<R, C>(i, j).write(t.map(|v| v + wide + never));
}

#[test]
fn branches_by_tile_constants_are_decided_when_they_are_compiled() {
    for (columns, added) in [(9, 111), (10, 121)] {
        let x: Vec<i32> = (0..5 * columns as i32).collect();
        let expected: Vec<i32> = x.iter().map(|v| v + added).collect();
        for form in forms() {
            let after = run::<decided>(form, &[blank(&[5, columns], -1), tensor(&[5, columns], &x)], &[]);
            assert_eq!(after[0].values::<i32>(), expected, "{form:?}");
        }
    }
}

#[kernel(op = "c_branches")]
fn branches(mut x: f32) -> f32 {
    let mut sign = 1.0;
    if x < 0.0 {
        x = -x;
        sign = -1.0;
    } else if x > 100.0 {
        x = 100.0;
    }
    let y = if x > 50.0 {
        let z = x - 50.0;
        50.0 + z * 0.5
    } else if x > 10.0 {
        x + 1.0
    } else {
        x
    };
    y * sign
}

#[test]
fn branches_assign_and_give_values() {
    let f = |x: f32| {
        let sign = if x < 0.0 { -1.0 } else { 1.0 };
        let x = if x < 0.0 { -x } else { x.min(100.0) };
        sign * if x > 50.0 {
            50.0 + (x - 50.0) * 0.5
        } else if x > 10.0 {
            x + 1.0
        } else {
            x
        }
    };
    let x: Vec<f32> = (-80..150).map(|i| i as f32).collect();
    check_unary::<branches, f32>(&x, &x.iter().map(|x| f(*x)).collect::<Vec<_>>());
}

#[kernel(op = "c_power")]
fn power(x: i64, #[param] n: i64) -> i64 {
    let mut product = 1;
    for _ in 0..n {
        product *= x;
    }
    for i in range(0, 10, 4) {
        product += i;
    }
    for i in (0..n).step_by(2) {
        product -= i;
    }
    product
}

#[test]
fn a_for_counts_in_steps() {
    let param = [("n", max::kernel::ParamArg::Int(3))];
    check::<power, i64>(&[vector(&[2_i64, -3]), blank(&[2], 0_i64)], &param, &[8 + 12 - 2, -27 + 12 - 2]);
    let none = [("n", max::kernel::ParamArg::Int(0))];
    check::<power, i64>(&[vector(&[2_i64]), blank(&[1], 0_i64)], &none, &[13]);
}

#[kernel(op = "c_swap")]
fn swap(x: i32, y: i32) -> i32 {
    let (mut a, mut b) = (x, y);
    let mut i = 0;
    while i < 3 {
        (a, b) = (b, a + b);
        i += 1;
    }
    {
        let a = a + 100;
        b += a;
    }
    b
}

#[test]
fn tuples_of_variables_are_assigned_at_once() {
    let f = |x: i32, y: i32| (x + 2 * y) + (2 * x + 3 * y) - x - y + (x + y) - (x + 2 * y) + (x + 2 * y) + 100;
    // a, b after three steps are x + 2y and 2x + 3y.
    assert_eq!(f(1, 1), 3 + 5 + 100);
    check::<swap, i32>(
        &[vector(&[1, 2, 0]), vector(&[1, 5, 7]), blank(&[3], 0)],
        &[],
        &[108, 12 + 19 + 100, 14 + 21 + 100],
    );
}

#[kernel(op = "c_program_branches")]
pub fn program_branches(y: Out<f32, 2>, x: In<f32, 2>, #[param] shift: bool) {
    let row = program_id(0);
    let x = x.row(row);
    let mut scale = 1.0;
    if row == 0 {
        scale = 10.0;
    }
    let mut total = 0.0;
    let mut k = 0;
    while k < x.dim(0) {
        total += x.at(k);
        k += 2;
    }
    if shift {
        y.row(row).write(x.map(|v| v * scale + total));
    } else {
        y.row(row).write(x.map(|v| v * scale));
    }
}

#[test]
fn programs_branch_and_loop() {
    use max::kernel::ParamArg::Bool;
    let operands = [blank(&[2, 3], f32::NAN), tensor(&[2, 3], &[1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0])];
    for form in forms() {
        let after = run::<program_branches>(form, &operands, &[("shift", Bool(true))]);
        assert_eq!(after[0].values::<f32>(), [14.0, 24.0, 34.0, 14.0, 15.0, 16.0], "{form:?}");
        let after = run::<program_branches>(form, &operands, &[("shift", Bool(false))]);
        assert_eq!(after[0].values::<f32>(), [10.0, 20.0, 30.0, 4.0, 5.0, 6.0], "{form:?}");
    }
}
