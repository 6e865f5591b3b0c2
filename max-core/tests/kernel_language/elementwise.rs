//! Elementwise kernels: literals, operators, casts, several results, updates in place, helpers.

use max::kernel::prelude::*;

use crate::support::{blank, check, check_unary, forms, run, vector};

#[kernel(op = "e_literals", dtypes(T = [f32, f64]))]
fn literals<T: Float>(x: T) -> T {
    let half = 0.5;
    let scaled = 2.0 * x + 1;
    let inverse = 1.0 / (scaled - -3.0) * half;
    (2.0 * 3.0 - 1.0) * inverse + half * x
}

#[test]
fn literals_stand_on_both_sides() {
    let f = |x: f32| 5.0 * (1.0 / ((2.0 * x + 1.0) - -3.0) * 0.5) + 0.5 * x;
    let x: Vec<f32> = (0..133).map(|i| i as f32 * 0.25).collect();
    check_unary::<literals, f32>(&x, &x.iter().map(|x| f(*x)).collect::<Vec<_>>());
    check_unary::<literals, f32>(&[], &[]);
    let wide = |x: f64| 5.0 * (1.0 / ((2.0 * x + 1.0) - -3.0) * 0.5) + 0.5 * x;
    check_unary::<literals, f64>(&[0.3], &[wide(0.3)]);
}

const OFFSET: i32 = 7;
mod limits {
    pub const TOP: i32 = 100;
}

#[kernel(op = "e_integers")]
pub fn integers(x: i32) -> i32 {
    let y = (x ^ 0x0f) & !1 | 3 << 2;
    let z = 100 - y % 7 + OFFSET;
    z.min(self::limits::TOP) + (x >> 1) - 2_i32
}

#[test]
fn integers_have_their_operators() {
    let f = |x: i32| {
        let y = (x ^ 0x0f) & !1 | 3 << 2;
        (100 - y % 7 + OFFSET).min(100) + (x >> 1) - 2
    };
    let x: Vec<i32> = (-70..71).collect();
    check_unary::<integers, i32>(&x, &x.iter().map(|x| f(*x)).collect::<Vec<_>>());
}

#[kernel(op = "e_derived", dtypes(T = [i8, u8, i32]))]
fn derived<T: Int>(x: T, y: T) -> (T, T, T, T, T, T) {
    (x.saturating_add(y), x.saturating_sub(y), x.abs_diff(y), x.rem_euclid(y), x.div_euclid(y), x.pow(3))
}

#[kernel(op = "e_finite")]
fn finite(x: f32) -> (bool, f32, f32) {
    (x.is_finite(), x.rem_euclid(3.0), x.powi(-2) + (-x.ln_1p()).exp_m1().ln().powi(0))
}

#[test]
fn methods_made_of_others_follow_rust() {
    let (x, y): (Vec<i8>, Vec<i8>) =
        (i8::MIN..=i8::MAX).step_by(3).flat_map(|x| (i8::MIN..=i8::MAX).step_by(5).map(move |y| (x, y))).unzip();
    let results = vec![blank(&[x.len() as i64], 99_i8); 6];
    for form in forms() {
        let out = run::<derived>(form, &[&[vector(&x), vector(&y)], &results[..]].concat(), &[]);
        let by_rust = |f: fn(i8, i8) -> i8| x.iter().zip(&y).map(|(x, y)| f(*x, *y)).collect::<Vec<i8>>();
        assert_eq!(out[2].values::<i8>(), by_rust(i8::saturating_add), "{form:?}");
        assert_eq!(out[3].values::<i8>(), by_rust(i8::saturating_sub), "{form:?}");
        assert_eq!(out[4].values::<i8>(), by_rust(|x, y| x.abs_diff(y) as i8), "{form:?}");
        assert_eq!(
            out[5].values::<i8>(),
            by_rust(|x, y| if y == 0 { 0 } else { x.wrapping_rem_euclid(y) }),
            "{form:?}"
        );
        assert_eq!(
            out[6].values::<i8>(),
            by_rust(|x, y| if y == 0 { 0 } else { x.wrapping_div_euclid(y) }),
            "{form:?}"
        );
        assert_eq!(out[7].values::<i8>(), by_rust(|x, _| x.wrapping_pow(3)), "{form:?}");
    }
    let (x, y) = (vector(&[250_u8, 3, 7, 0]), vector(&[10_u8, 5, 0, 0]));
    let results = vec![blank(&[4], 99_u8); 6];
    for form in forms() {
        let out = run::<derived>(form, &[&[x.clone(), y.clone()], &results[..]].concat(), &[]);
        let got: Vec<Vec<u8>> = out[2..].iter().map(|o| o.values()).collect();
        let want = [[255, 8, 7, 0], [240, 0, 7, 0], [240, 2, 7, 0], [0, 3, 0, 0], [25, 0, 0, 0], [40, 27, 87, 0]];
        assert_eq!(got, want, "{form:?}");
    }
    let x = [1.5_f32, -7.0, f32::NAN, f32::INFINITY];
    let blanks = [blank(&[4], true), blank(&[4], 9_f32), blank(&[4], 9_f32)];
    for form in forms() {
        let out = run::<finite>(form, &[&[vector(&x)], &blanks[..]].concat(), &[]);
        assert_eq!(out[1].values::<bool>(), [true, true, false, false], "{form:?}");
        let rest = out[2].values::<f32>();
        assert!(rest[..2] == [1.5, 2.0] && rest[2].is_nan() && rest[3].is_nan(), "{form:?}: {rest:?}");
        assert_eq!(out[3].values::<f32>()[..2], [1.0 / 2.25 + 1.0, 1.0 / 49.0 + 1.0], "{form:?}");
    }
}

#[kernel(op = "e_divide")]
fn divide(x: i32, y: i32) -> (i32, i32) {
    (x / y, x % y)
}

#[test]
fn integer_division_never_panics() {
    let x = vector(&[7, -7, 5, i32::MIN, i32::MIN, 0]);
    let y = vector(&[2, 2, 0, -1, 0, 3]);
    for form in forms() {
        let out = run::<divide>(form, &[x.clone(), y.clone(), blank(&[6], 9), blank(&[6], 9)], &[]);
        assert_eq!(out[2].values::<i32>(), [3, -3, 0, i32::MIN, 0, 0], "{form:?}");
        assert_eq!(out[3].values::<i32>(), [1, -1, 0, 0, 0, 0], "{form:?}");
    }
}

#[kernel(op = "e_casts")]
fn casts(x: f32) -> i64 {
    let n = x as i32;
    let big = 300 as i64 + 2.9 as i64;
    let unit = if x > 0.0 { 1 } else { 0 };
    n as i64 + big + (unit as f32 * 10.0) as i64 + (x < 0.0) as i64 + i64::from(true)
}

#[test]
fn casts_follow_rust() {
    let x = [0.0_f32, 1.9, -1.9, 1e20, f32::NAN, -1e20];
    let f = |x: f32| x as i32 as i64 + 302 + i64::from(x > 0.0) * 10 + i64::from(x < 0.0) + 1;
    check::<casts, i64>(&[vector(&x), blank(&[6], 0_i64)], &[], &x.map(f));
}

#[kernel(op = "e_logic")]
fn logic(x: f32, y: f32) -> bool {
    x < y && !(y >= 10.0) || x == 3.0 && 2.0 != y || false
}

#[test]
fn logic_binds_as_in_rust() {
    let pairs: Vec<(f32, f32)> = (0..12).flat_map(|x| (0..12).map(move |y| (x as f32, y as f32))).collect();
    let expected: Vec<bool> = pairs.iter().map(|&(x, y)| x < y && y < 10.0 || x == 3.0 && 2.0 != y).collect();
    let x: Vec<f32> = pairs.iter().map(|p| p.0).collect();
    let y: Vec<f32> = pairs.iter().map(|p| p.1).collect();
    check::<logic, bool>(&[vector(&x), vector(&y), blank(&[144], false)], &[], &expected);
}

#[kernel(op = "e_mixed_logic")]
fn mixed_logic(a: bool, b: bool, c: bool) -> bool {
    a && b | c
}

#[test]
fn bitwise_or_binds_tighter_than_and() {
    let bits = |k: u32| (0..8).map(|i: u32| i >> k & 1 == 1).collect::<Vec<bool>>();
    let (a, b, c) = (bits(0), bits(1), bits(2));
    let expected: Vec<bool> = (0..8).map(|i| a[i] && b[i] | c[i]).collect();
    check::<mixed_logic, bool>(&[vector(&a), vector(&b), vector(&c), blank(&[8], false)], &[], &expected);
}

/// `(sin, cos)` would do; this keeps to arithmetic.
#[kernel(op = "e_results", dtypes(T = [f32]))]
fn results<T: Float>(x: T, y: i32) -> (T, i32, bool) {
    let (sum, flag) = (x + y as T, x > 0);
    let pair = (sum * 2.0, y + 1);
    (pair.0, pair.1, flag)
}

#[test]
fn several_results_are_several_operands() {
    let names: Vec<&str> =
        <results as max::kernel::Kernel>::def().operands.as_slice().iter().map(|o| o.name.as_str()).collect();
    assert_eq!(names, ["x", "y", "out0", "out1", "out2"]);
    for form in forms() {
        let inputs = [vector(&[1.5_f32, -2.0]), vector(&[2, 3])];
        let outs = [blank(&[2], 0.0_f32), blank(&[2], 0), blank(&[2], false)];
        let after = run::<results>(form, &[&inputs[..], &outs].concat(), &[]);
        assert_eq!(after[2].values::<f32>(), [7.0, 2.0]);
        assert_eq!(after[3].values::<i32>(), [3, 4]);
        assert_eq!(after[4].values::<bool>(), [true, false]);
    }
}

#[kernel(op = "e_in_place")]
fn in_place(x: &mut f32, by: f32) {
    *x += by;
    *x = *x * 2.0;
}

#[kernel(op = "e_in_place_and_result")]
fn in_place_and_result(by: f32, x: &mut f32) -> (f32, f32) {
    let before = *x;
    *x = before.max(by);
    (before, *x - by)
}

#[test]
fn elements_are_updated_in_place() {
    for form in forms() {
        let after = run::<in_place>(form, &[vector(&[1.0_f32, 2.0, 3.0]), vector(&[10.0_f32, 20.0, 30.0])], &[]);
        assert_eq!(after[0].values::<f32>(), [22.0, 44.0, 66.0], "{form:?}");
        let operands = [vector(&[5.0_f32, 5.0]), vector(&[4.0_f32, 6.0]), blank(&[2], 0.0_f32), blank(&[2], 0.0_f32)];
        let after = run::<in_place_and_result>(form, &operands, &[]);
        assert_eq!(after[1].values::<f32>(), [5.0, 6.0], "{form:?}");
        assert_eq!(after[2].values::<f32>(), [4.0, 6.0], "{form:?}");
        assert_eq!(after[3].values::<f32>(), [0.0, 1.0], "{form:?}");
    }
}

/// `x²`, for any number.
#[kernel]
fn square<T: Number>(x: T) -> T {
    x * x
}

#[kernel]
fn minmax<T: Number>(x: T, y: T) -> (T, T) {
    if x < y { (x, y) } else { (y, x) }
}

mod inner {
    use max::kernel::prelude::*;

    #[kernel]
    pub fn offset<T: Number, const N: usize>(mut x: T) -> T {
        x += N as T;
        x
    }
}

#[kernel(op = "e_helpers")]
fn helpers(x: i32, y: i32) -> i32 {
    let (lo, hi) = minmax(square(x), self::square::<i32>(y));
    inner::offset::<i32, 5>(hi) - lo
}

#[test]
fn kernels_call_functions() {
    let expected = [4 + 5 - 1, 9 + 5, 25 - 16 + 5];
    check::<helpers, i32>(&[vector(&[1, 3, 4]), vector(&[2, 0, -5]), blank(&[3], 0)], &[], &expected);
}

#[kernel(op = "e_limits")]
fn limits_of<T: Number>(x: T) -> T {
    select(x == T::MAX, T::MIN, select(x == T::ZERO, T::ONE, x))
}

#[test]
fn dtypes_have_limits() {
    check_unary::<limits_of, i8>(&[127, 0, 5], &[-128, 1, 5]);
    check_unary::<limits_of, u8>(&[255, 0, 5], &[0, 1, 5]);
    check_unary::<limits_of, f32>(&[f32::MAX, 0.0, 5.0], &[f32::MIN, 1.0, 5.0]);
}

#[kernel(op = "e_constants")]
fn constants(x: f32) -> f32 {
    std::f32::consts::PI * x + x * f32::EPSILON + 2.0 * std::f64::consts::E as f32
}

#[test]
fn constants_of_rust_are_literals() {
    use std::f64::consts::{E, PI};
    let f = |x: f32| PI as f32 * x + x * f32::EPSILON + (2.0 * (E as f32));
    check_unary::<constants, f32>(&[0.0, 1.0, -7.5], &[0.0, 1.0, -7.5].map(f));
}

macro_rules! scaled {
    ($name:ident, $op:literal, |$x:ident| $value:expr) => {
        #[kernel(op = $op)]
        fn $name($x: f32) -> f32 {
            let y = $x + 1.0;
            ($value) * y
        }
    };
}
scaled!(by_macro, "e_by_macro", |x| if x > 0.0 { x * 2.0 } else { -x });

#[test]
fn kernels_come_out_of_macros() {
    check_unary::<by_macro, f32>(&[1.0, -2.0], &[4.0, -2.0]);
}

/// Names that the attribute uses itself.
#[kernel(op = "e_names")]
fn names(__m: f32, lang: f32, machine: f32) -> f32 {
    let __p0 = named(__m, lang);
    let dot = __p0 + machine;
    dot.max(0.0)
}

#[kernel]
fn named(__m: f32, __e0: f32) -> f32 {
    let __m = __m + 1.0;
    if __m > __e0 { __m } else { __e0 }
}

#[test]
fn an_author_may_use_any_name() {
    let operands = [vector(&[1.0_f32, 5.0]), vector(&[3.0_f32, 2.0]), vector(&[10.0_f32, -20.0]), blank(&[2], 0.0_f32)];
    check::<names, f32>(&operands, &[], &[13.0, 0.0]);
}
