//! `cvt`: rounding, saturation, narrow formats.

use crate::{eval, eval_f32, eval16, eval32, lit};

fn to_int(op: &str, v: f32) -> i32 {
    eval32(&format!("mov.f32 %f1, {}; {op} %r0, %f1;", lit(v))) as i32
}

#[test]
fn float_to_integer_rounds_and_clamps() {
    let cases = [
        (2.5, 2, 2, 2, 3),
        (3.5, 4, 3, 3, 4),
        (-2.5, -2, -2, -3, -2),
        (-0.5, 0, 0, -1, 0),
        (1e10, i32::MAX, i32::MAX, i32::MAX, i32::MAX),
        (-1e10, i32::MIN, i32::MIN, i32::MIN, i32::MIN),
    ];
    for (v, near, zero, down, up) in cases {
        assert_eq!(to_int("cvt.rni.s32.f32", v), near, "{v}");
        assert_eq!(to_int("cvt.rzi.s32.f32", v), zero, "{v}");
        assert_eq!(to_int("cvt.rmi.s32.f32", v), down, "{v}");
        assert_eq!(to_int("cvt.rpi.s32.f32", v), up, "{v}");
    }
    assert_eq!(to_int("cvt.rzi.u32.f32", -1.0), 0);
    assert_eq!(to_int("cvt.rzi.u32.f32", 1e10) as u32, u32::MAX);
    // Into 8 bits: clamps to -128..127, sign extended into the register.
    assert_eq!(to_int("cvt.rni.s8.f32", -1000.0), -128);
    assert_eq!(to_int("cvt.rni.u8.f32", 1000.0), 255);
    assert_eq!(to_int("cvt.rzi.s32.f32", f32::INFINITY), i32::MAX);
}

#[test]
fn nan_to_integer() {
    assert_eq!(to_int("cvt.rzi.s32.f32", f32::NAN), 0);
    assert_eq!(to_int("cvt.rzi.u32.f32", f32::NAN), 0);
    let nan = "mov.f32 %f1, 0f7FC00000;";
    assert_eq!(eval(&format!("{nan} cvt.rzi.s64.f32 %rd0, %f1;")), 1 << 63);
    assert_eq!(eval(&format!("{nan} cvt.rzi.u64.f32 %rd0, %f1;")), 1 << 63);
    assert_eq!(eval32("mov.f64 %d1, 0d7FF8000000000000; cvt.rzi.s32.f64 %r0, %d1;"), 1 << 31);
}

#[test]
fn integer_to_float_rounds() {
    let odd = 0x0100_0001u32; // 2^24 + 1
    let to = |op: &str, v: u32| eval_f32(&format!("mov.b32 %r1, {v:#x}; {op} %f0, %r1;"));
    assert_eq!(to("cvt.rn.f32.u32", odd), 16_777_216.0);
    assert_eq!(to("cvt.rp.f32.u32", odd), 16_777_218.0);
    assert_eq!(to("cvt.rz.f32.s32", odd.wrapping_neg()), -16_777_216.0);
    assert_eq!(to("cvt.rm.f32.s32", odd.wrapping_neg()), -16_777_218.0);
    assert_eq!(to("cvt.rn.f32.s32", u32::MAX), -1.0);
    assert_eq!(to("cvt.rn.f32.s8", 0xfe), -2.0);
    assert_eq!(to("cvt.rn.f32.u8", 0x1fe), 254.0);
    assert_eq!(eval16("mov.b32 %r1, 65520; cvt.rn.f16.u32 %h0, %r1;"), 0x7c00);
    assert_eq!(eval16("mov.b32 %r1, 65520; cvt.rz.f16.u32 %h0, %r1;"), 0x7bff);
}

#[test]
fn integers_widen_narrow_and_saturate() {
    assert_eq!(eval("mov.b32 %r1, -1; cvt.s64.s32 %rd0, %r1;"), u64::MAX);
    assert_eq!(eval("mov.b32 %r1, -1; cvt.u64.u32 %rd0, %r1;"), 0xffff_ffff);
    assert_eq!(eval32("mov.b64 %rd1, 0x123456789; cvt.u32.u64 %r0, %rd1;"), 0x2345_6789);
    assert_eq!(eval32("mov.b32 %r1, 300; cvt.u8.u32 %r0, %r1;"), 44);
    assert_eq!(eval32("mov.b32 %r1, 300; cvt.sat.u8.u32 %r0, %r1;"), 255);
    assert_eq!(eval32("mov.b32 %r1, 200; cvt.s8.s32 %r0, %r1;"), -56i32 as u32);
    assert_eq!(eval32("mov.b32 %r1, 200; cvt.sat.s8.s32 %r0, %r1;"), 127);
    assert_eq!(eval32("mov.b32 %r1, -5; cvt.sat.u32.s32 %r0, %r1;"), 0);
    assert_eq!(eval16("mov.b32 %r1, 0x12345; cvt.u16.u32 %h0, %r1;"), 0x2345);
    assert_eq!(eval32("mov.b16 %h1, 0x8000; cvt.s32.s16 %r0, %h1;"), 0xffff_8000);
}

#[test]
fn float_to_float() {
    let half = |op: &str, v: f32| eval16(&format!("mov.f32 %f1, {}; {op} %h0, %f1;", lit(v)));
    assert_eq!(half("cvt.rn.f16.f32", 1.0), 0x3c00);
    assert_eq!(half("cvt.rn.f16.f32", 65520.0), 0x7c00);
    assert_eq!(half("cvt.rz.f16.f32", 65520.0), 0x7bff);
    assert_eq!(half("cvt.rn.satfinite.f16.f32", 1e9), 0x7bff);
    assert_eq!(half("cvt.rn.satfinite.f16.f32", f32::INFINITY), 0x7bff);
    assert_eq!(half("cvt.rn.relu.f16.f32", -3.0), 0);
    assert_eq!(half("cvt.rn.f16.f32", 2f32.powi(-25)), 0);
    assert_eq!(half("cvt.rn.f16.f32", 2f32.powi(-25).next_up()), 1);
    assert_eq!(half("cvt.rp.f16.f32", 1e-30), 1);
    assert_eq!(half("cvt.rn.f16.f32", f32::NAN), 0x7fff);
    // 1 + 2^-8 is half way between bf16 neighbours: even wins.
    assert_eq!(half("cvt.rn.bf16.f32", 1.0 + 2f32.powi(-8)), 0x3f80);
    assert_eq!(half("cvt.rn.bf16.f32", 1.0 + 3.0 * 2f32.powi(-8)), 0x3f82);
    assert_eq!(half("cvt.rz.bf16.f32", 1.0 + 3.0 * 2f32.powi(-8)), 0x3f81);
    assert_eq!(half("cvt.rn.bf16.f32", f32::NAN), 0x7fff);
    assert_eq!(eval_f32("mov.b16 %h1, 0x0001; cvt.f32.f16 %f0, %h1;"), 2f32.powi(-24));
    assert_eq!(eval_f32("mov.b16 %h1, 0x4049; cvt.f32.bf16 %f0, %h1;"), 3.140625);
    assert_eq!(eval_f32("mov.f64 %d1, 0d3FF0000000000001; cvt.rn.f32.f64 %f0, %d1;"), 1.0);
    assert_eq!(eval_f32("mov.f64 %d1, 0d3FF0000000000001; cvt.rp.f32.f64 %f0, %d1;"), 1.0f32.next_up());
    assert_eq!(eval("mov.f32 %f1, 0f3F800000; cvt.f64.f32 %d0, %f1; mov.b64 %rd0, %d0;"), 0x3ff0 << 48);
}

#[test]
fn rounding_to_integral_floats_and_saturation() {
    let to = |op: &str, v: f32| eval_f32(&format!("mov.f32 %f1, {}; {op} %f0, %f1;", lit(v)));
    assert_eq!(to("cvt.rni.f32.f32", 2.5), 2.0);
    assert_eq!(to("cvt.rpi.f32.f32", 2.1), 3.0);
    assert_eq!(to("cvt.rmi.f32.f32", -2.1), -3.0);
    assert_eq!(to("cvt.rzi.f32.f32", -0.5).to_bits(), (-0f32).to_bits());
    assert_eq!(to("cvt.rni.f32.f32", 1e30), 1e30);
    assert_eq!(to("cvt.sat.f32.f32", 1.5), 1.0);
    assert_eq!(to("cvt.sat.f32.f32", -1.5), 0.0);
    assert_eq!(to("cvt.sat.f32.f32", f32::NAN), 0.0);
    assert_eq!(to("cvt.ftz.f32.f32", 1e-40), 0.0);
}

#[test]
fn packed_halves() {
    let body = "mov.f32 %f1, 0f3F800000; mov.f32 %f2, 0f40000000;";
    // The first source goes to the upper half.
    assert_eq!(eval32(&format!("{body} cvt.rn.f16x2.f32 %r0, %f1, %f2;")), 0x3c00_4000);
    assert_eq!(eval32(&format!("{body} cvt.rn.bf16x2.f32 %r0, %f1, %f2;")), 0x3f80_4000);
    let tf32 = |op: &str, v: u32| eval32(&format!("mov.f32 %f1, 0f{v:08X}; {op} %r0, %f1;"));
    // Half of the last kept bit: away from zero.
    assert_eq!(tf32("cvt.rna.tf32.f32", 0x3f80_1000), 0x3f80_2000);
    assert_eq!(tf32("cvt.rna.tf32.f32", 0x3f80_0fff), 0x3f80_0000);
    assert_eq!(tf32("cvt.rn.tf32.f32", 0x3f80_1000), 0x3f80_0000);
}

#[test]
fn eight_bit_floats() {
    let pack = |op: &str, a: f32, b: f32| {
        eval16(&format!("mov.f32 %f1, {}; mov.f32 %f2, {}; {op} %h0, %f1, %f2;", lit(a), lit(b)))
    };
    let (e4, e5) = ("cvt.rn.satfinite.e4m3x2.f32", "cvt.rn.satfinite.e5m2x2.f32");
    assert_eq!(pack(e4, 1.0, -2.0), 0x38c0);
    assert_eq!(pack(e4, 500.0, -1e9), 0x7efe);
    assert_eq!(pack(e4, f32::NAN, f32::INFINITY) & 0x7fff, 0x7f7e);
    assert_eq!(pack(e4, 2f32.powi(-9), 2f32.powi(-10)), 0x0100);
    // 1.0625 is half way between 1 and 1.125.
    assert_eq!(pack(e4, 1.0625, 1.1875), 0x383a);
    assert_eq!(pack(e5, 1.0, -2.0), 0x3cc0);
    assert_eq!(pack(e5, 1e9, f32::NEG_INFINITY), 0x7bfb);
    assert_eq!(pack("cvt.rn.satfinite.relu.e4m3x2.f32", -1.0, 1.0), 0x0038);
    let grow = |ty: &str, v: u16| eval32(&format!("mov.b16 %h1, {v:#x}; cvt.rn.f16x2.{ty} %r0, %h1;"));
    assert_eq!(grow("e4m3x2", 0x38c0), 0x3c00_c000);
    assert_eq!(grow("e4m3x2", 0x7e01), 0x5f00_1800);
    assert_eq!(grow("e4m3x2", 0x007f), 0x0000_7fff);
    assert_eq!(grow("e5m2x2", 0x3cfc), 0x3c00_fc00);
    assert_eq!(eval16("mov.b32 %r1, 0x3c00c000; cvt.rn.satfinite.e4m3x2.f16x2 %h0, %r1;"), 0x38c0);
}
