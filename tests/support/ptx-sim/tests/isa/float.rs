//! Floating point: rounding, NaN, zeros, saturation, comparison.

use crate::{eval, eval_f32, eval16, eval32, lit};

fn op2(op: &str, a: f32, b: f32) -> f32 {
    eval_f32(&format!("mov.f32 %f1, {}; mov.f32 %f2, {}; {op} %f0, %f1, %f2;", lit(a), lit(b)))
}

fn op1(op: &str, a: f32) -> f32 {
    eval_f32(&format!("mov.f32 %f1, {}; {op} %f0, %f1;", lit(a)))
}

fn double2(op: &str, a: f64, b: f64) -> f64 {
    f64::from_bits(eval(&format!(
        "mov.f64 %d1, 0d{:016X}; mov.f64 %d2, 0d{:016X}; {op} %d0, %d1, %d2; mov.b64 %rd0, %d0;",
        a.to_bits(),
        b.to_bits()
    )))
}

fn half2(op: &str, a: u16, b: u16) -> u16 {
    eval16(&format!("mov.b16 %h1, {a:#x}; mov.b16 %h2, {b:#x}; {op} %h0, %h1, %h2;"))
}

const TINY: f32 = 1e-30;

#[test]
fn rounding_modes() {
    assert_eq!(op2("add.rn.f32", 1.0, TINY), 1.0);
    assert_eq!(op2("add.rp.f32", 1.0, TINY), 1.0f32.next_up());
    assert_eq!(op2("add.rm.f32", 1.0, -TINY), 1.0f32.next_down());
    assert_eq!(op2("add.rz.f32", 1.0, -TINY), 1.0f32.next_down());
    assert_eq!(op2("add.rz.f32", -1.0, TINY), -(1.0f32.next_down()));
    // 1/3 lies above its nearest f32 from below: rm and rp are neighbours.
    let (down, up) = (op2("div.rm.f32", 1.0, 3.0), op2("div.rp.f32", 1.0, 3.0));
    assert_eq!(down.next_up(), up);
    assert!(op2("div.rn.f32", 1.0, 3.0) == down || op2("div.rn.f32", 1.0, 3.0) == up);
    let (down, up) = (op1("sqrt.rm.f32", 2.0), op1("sqrt.rp.f32", 2.0));
    assert_eq!(down.next_up(), up);
    assert!(f64::from(down) < 2f64.sqrt() && f64::from(up) > 2f64.sqrt());
    assert_eq!(op1("rcp.rp.f32", 3.0), op2("div.rp.f32", 1.0, 3.0));
    assert_eq!(double2("add.rp.f64", 1.0, 1e-30), 1.0f64.next_up());
    let product = |mode| double2(&format!("mul.{mode}.f64"), 1.1, 1.1);
    assert_eq!(product("rm").next_up(), product("rp"));
    assert_eq!(product("rz"), product("rm"));
    assert_eq!(double2("div.rn.f64", 1.0, 3.0), 1.0 / 3.0);
}

#[test]
fn exact_zero_has_the_sign_of_the_mode() {
    assert_eq!(op2("add.rn.f32", 1.0, -1.0).to_bits(), 0);
    assert_eq!(op2("add.rm.f32", 1.0, -1.0).to_bits(), (-0f32).to_bits());
    assert_eq!(op2("add.rn.f32", -0.0, -0.0).to_bits(), (-0f32).to_bits());
}

#[test]
fn fma_rounds_once() {
    let fma = |mode: &str, a: f32, b: f32, c: f32| {
        eval_f32(&format!("fma.{mode}.f32 %f0, {}, {}, {};", lit(a), lit(b), lit(c)))
    };
    let a = 1.0 + 3.0 * f32::EPSILON;
    assert_eq!(fma("rn", a, a, -1.0), a.mul_add(a, -1.0));
    assert_ne!(fma("rn", a, a, -1.0), a * a - 1.0);
    assert_eq!(fma("rz", 1.0, 1.0, -TINY), 1.0f32.next_down());
    assert_eq!(fma("rn.sat", 2.0, 2.0, 0.0), 1.0);
    let body = "mov.b16 %h1, 0x3c01; mov.b16 %h2, 0xbc00; fma.rn.f16 %h0, %h1, %h1, %h2;";
    // (1 + 2^-10)^2 - 1 = 2^-9 + 2^-20, which f16 holds in full (0x1801 is
    // 2^-9 * (1 + 2^-10), half of the last bit off): rounds to even.
    let exact = (1.0 + 2f64.powi(-10)).powi(2) - 1.0;
    assert_eq!(eval16(body), half::f16::from_f64(exact).to_bits());
    let relu = "mov.b16 %h1, 0x3c00; mov.b16 %h2, 0xc000; fma.rn.relu.f16 %h0, %h1, %h1, %h2;";
    assert_eq!(eval16(relu), 0);
}

#[test]
fn flush_to_zero() {
    let small = f32::from_bits(1);
    assert_eq!(op2("add.rn.f32", small, 0.0), small);
    assert_eq!(op2("add.rn.ftz.f32", small, 0.0), 0.0);
    assert_eq!(op2("mul.rn.ftz.f32", -small, 1.0).to_bits(), (-0f32).to_bits());
    assert_eq!(op2("mul.rn.ftz.f32", f32::MIN_POSITIVE, 0.5), 0.0);
    assert_eq!(op1("abs.ftz.f32", -small), 0.0);
}

#[test]
fn saturation() {
    assert_eq!(op2("add.rn.sat.f32", 1.0, 1.0), 1.0);
    assert_eq!(op2("add.rn.sat.f32", -1.0, 0.5), 0.0);
    assert_eq!(op2("add.rn.sat.f32", f32::NAN, 0.5).to_bits(), 0);
    assert_eq!(half2("add.rn.sat.f16", 0x3c00, 0x3c00), 0x3c00);
    assert_eq!(half2("add.rn.sat.f16", 0xbc00, 0x3800), 0);
}

#[test]
fn nan_results_are_canonical() {
    let nan = op2("add.rn.f32", f32::INFINITY, f32::NEG_INFINITY);
    assert_eq!(nan.to_bits(), 0x7fff_ffff);
    assert_eq!(op2("mul.rn.f32", f32::from_bits(0xff80_0001), 1.0).to_bits(), 0x7fff_ffff);
    assert_eq!(half2("add.rn.f16", 0x7c00, 0xfc00), 0x7fff);
    assert_eq!(half2("mul.rn.bf16", 0x7f80, 0x0000), 0x7fff);
}

#[test]
fn minimum_and_maximum() {
    let nan = f32::NAN;
    assert_eq!(op2("min.f32", nan, 1.0), 1.0);
    assert_eq!(op2("max.f32", 1.0, nan), 1.0);
    assert_eq!(op2("max.f32", nan, nan).to_bits(), 0x7fff_ffff);
    assert_eq!(op2("min.NaN.f32", nan, 1.0).to_bits(), 0x7fff_ffff);
    assert_eq!(op2("max.NaN.f32", 1.0, nan).to_bits(), 0x7fff_ffff);
    assert_eq!(op2("min.f32", 0.0, -0.0).to_bits(), (-0f32).to_bits());
    assert_eq!(op2("max.f32", -0.0, 0.0).to_bits(), 0);
    // The larger magnitude, with the product of the signs.
    assert_eq!(op2("max.xorsign.abs.f32", -3.0, 2.0), -3.0);
    assert_eq!(op2("max.xorsign.abs.f32", -3.0, -2.0), 3.0);
    assert_eq!(double2("min.f64", f64::NAN, 1.0), 1.0);
    assert_eq!(double2("max.f64", -0.0, 0.0).to_bits(), 0);
    assert_eq!(half2("min.f16", 0x7e00, 0x3c00), 0x3c00);
    assert_eq!(half2("min.NaN.f16", 0x7e00, 0x3c00), 0x7fff);
    assert_eq!(half2("max.bf16", 0x8000, 0x0000), 0);
}

#[test]
fn half_arithmetic_rounds_once() {
    let f16 = |v: f32| half::f16::from_f32(v).to_bits();
    let bf16 = |v: f32| half::bf16::from_f32(v).to_bits();
    // 2048 + 1 is half way; even is 2048. 2048 + 3 rounds up to 2052.
    assert_eq!(half2("add.rn.f16", f16(2048.0), f16(1.0)), f16(2048.0));
    assert_eq!(half2("add.rn.f16", f16(2048.0), f16(3.0)), f16(2052.0));
    assert_eq!(half2("mul.rn.f16", f16(65504.0), f16(2.0)), 0x7c00);
    assert_eq!(half2("sub.rn.f16", f16(1.0), f16(2.0)), f16(-1.0));
    assert_eq!(half2("add.rn.bf16", bf16(256.0), bf16(1.0)), bf16(256.0));
    assert_eq!(half2("mul.rn.bf16", bf16(1.5), bf16(1.5)), bf16(2.25));
    let pair =
        |op: &str, a: u32, b: u32| eval32(&format!("mov.b32 %r1, {a:#x}; mov.b32 %r2, {b:#x}; {op} %r0, %r1, %r2;"));
    assert_eq!(pair("add.rn.f16x2", 0x3c00_4000, 0x3c00_3c00), 0x4000_4200);
    assert_eq!(pair("mul.rn.bf16x2", 0x3f80_4000, 0x4040_4040), 0x4040_40c0);
    assert_eq!(pair("max.f16x2", 0x3c00_4000, 0x4200_3c00), 0x4200_4000);
    assert_eq!(eval32("mov.b32 %r1, 0x3c00bc00; neg.f16x2 %r0, %r1;"), 0xbc00_3c00);
    assert_eq!(eval32("mov.b32 %r1, 0x3f80bf80; abs.bf16x2 %r0, %r1;"), 0x3f80_3f80);
}

#[test]
fn comparisons_with_nan() {
    let holds = |op: &str, a: f32, b: f32| {
        eval32(&format!("setp.{op}.f32 %q0, {}, {}; selp.b32 %r0, 1, 0, %q0;", lit(a), lit(b))) == 1
    };
    let nan = f32::NAN;
    for op in ["eq", "ne", "lt", "le", "gt", "ge", "num"] {
        assert!(!holds(op, nan, 1.0), "{op}");
        assert!(!holds(op, 1.0, nan), "{op}");
    }
    for op in ["equ", "neu", "ltu", "leu", "gtu", "geu", "nan"] {
        assert!(holds(op, nan, 1.0), "{op}");
    }
    assert!(holds("lt", 1.0, 2.0) && !holds("lt", 2.0, 1.0) && holds("ne", 1.0, 2.0));
    assert!(holds("leu", 2.0, 2.0) && !holds("ltu", 2.0, 2.0) && !holds("neu", 2.0, 2.0));
    assert!(holds("eq", 0.0, -0.0) && holds("num", 1.0, 1.0) && !holds("nan", 1.0, 1.0));
    // A pair gives a predicate for each half, the lower first.
    let pair = eval32(
        "mov.b32 %r1, 0x3c004000; mov.b32 %r2, 0x3c003c00; setp.gt.f16x2 %q0|%q1, %r1, %r2;
         selp.b32 %r3, 1, 0, %q0; selp.b32 %r4, 2, 0, %q1; or.b32 %r0, %r3, %r4;",
    );
    assert_eq!(pair, 1);
    assert_eq!(eval32("mov.b32 %r1, 0x3c004000; set.eq.f16x2.f16x2 %r0, %r1, %r1;"), 0x3c00_3c00);
}

#[test]
fn properties_and_signs() {
    let is = |what: &str, v: f32| eval32(&format!("testp.{what}.f32 %q0, {}; selp.b32 %r0, 1, 0, %q0;", lit(v))) == 1;
    assert!(is("finite", 1.0) && !is("finite", f32::INFINITY) && !is("finite", f32::NAN));
    assert!(is("infinite", f32::NEG_INFINITY) && is("notanumber", f32::NAN));
    assert!(is("number", f32::INFINITY) && !is("number", f32::NAN));
    assert!(is("normal", 0.0) && !is("normal", 1e-40) && is("subnormal", 1e-40));
    assert_eq!(op2("copysign.f32", -2.0, 3.0), -3.0);
    assert_eq!(op1("neg.f32", 2.0), -2.0);
    assert_eq!(op1("abs.f32", -2.0), 2.0);
}

#[test]
fn approximations_keep_their_bounds() {
    for v in [0.001f32, 0.5, 1.0, 2.0, 3.7, 1000.0] {
        let near = |got: f32, want: f64, error: f64| {
            assert!((f64::from(got) - want).abs() <= error, "{v}: {got} {want}");
        };
        let x = f64::from(v);
        near(op1("rcp.approx.f32", v), 1.0 / x, 2f64.powi(-23) / x);
        near(op1("sqrt.approx.f32", v), x.sqrt(), 2f64.powi(-23) * x.sqrt());
        near(op1("rsqrt.approx.f32", v), 1.0 / x.sqrt(), 2f64.powf(-22.9) / x.sqrt());
        near(op1("lg2.approx.f32", v), x.log2(), 2f64.powi(-22) * x.log2().abs().max(1.0));
        near(op1("tanh.approx.f32", v), x.tanh(), 2f64.powi(-11));
        if v < 4.0 {
            near(op1("ex2.approx.f32", v), x.exp2(), 2f64.powi(-22) * x.exp2());
            near(op1("sin.approx.f32", v), x.sin(), 2f64.powf(-20.5));
            near(op1("cos.approx.f32", v), x.cos(), 2f64.powf(-20.5));
        }
    }
    assert_eq!(op1("rcp.approx.f32", -0.0), f32::NEG_INFINITY);
    assert_eq!(op1("lg2.approx.f32", 0.0), f32::NEG_INFINITY);
    assert_eq!(op1("ex2.approx.f32", f32::NEG_INFINITY), 0.0);
    assert_eq!(op1("rsqrt.approx.f32", f32::INFINITY), 0.0);
    assert!(op1("lg2.approx.f32", -1.0).is_nan() && op1("sqrt.approx.f32", -1.0).is_nan());
    assert_eq!(eval16("mov.b16 %h1, 0x4000; ex2.approx.f16 %h0, %h1;"), 0x4400);
}

#[test]
fn approximate_division_by_huge_numbers_is_zero() {
    assert_eq!(op2("div.approx.f32", 6.0, 3.0), 2.0);
    assert_eq!(op2("div.full.f32", 6.0, 3.0), 2.0);
    let huge = 1.5 * 2f32.powi(126);
    assert_eq!(op2("div.approx.f32", huge, huge), 0.0);
    assert_eq!(op2("div.full.f32", huge, huge), 1.0);
    assert!(op2("div.approx.f32", f32::INFINITY, huge).is_nan());
}
