//! What is not understood is an error, with its line.

use crate::module;
use ptx_sim::Module;

#[track_caller]
fn refused(body: &str, part: &str) {
    match Module::parse(&module(1, body)) {
        Ok(_) => panic!("`{body}` is accepted"),
        Err(error) => {
            assert_eq!(error.text, body, "the error names the line");
            assert!(error.message.contains(part), "{error}");
        }
    }
}

#[test]
fn unknown_instructions_and_modifiers() {
    refused("frobnicate.u32 %r1, %r2;", "frobnicate");
    refused("add.rn.u32 %r1, %r2, %r3;", ".rn");
    refused("ld.global.L3::keep.u32 %r1, [%rd1];", "L3::keep");
    refused("mov.u128 %r1, %r2;", "u128");
    refused("tex.2d.v4.f32.f32 {%f1, %f2, %f3, %f4}, [%rd1];", "tex");
    refused("shfl.down.b32 %r1, %r2, 1, 31;", ".sync");
    refused("bar.sync;", "operands");
    refused("call foo;", "call");
}

#[test]
fn operands_must_fit() {
    refused("add.u32 %r1, %rd2, %r3;", "%rd2");
    refused("add.u32 %r1, %f2, %r3;", "%f2");
    refused("add.rn.f32 %r1, %f2, 1;", "integer literal");
    refused("add.u32 %r1, %r2;", "3 operands");
    refused("mov.b32 %r1, %nothing;", "%nothing");
    refused("setp.eq.u32 %r1, %r2, %r3;", "no predicate");
    refused("@%r1 mov.b32 %r1, 1;", "no predicate");
    refused("ld.global.u32 %r1, [%r2];", "no address");
    refused("ld.global.u64 %r1, [%rd2];", "%r1");
    refused("ld.global.v2.u32 %r1, [%rd2];", "2 registers");
    refused("st.param.u64 [p0], %rd1;", "read only");
    refused("ld.global.u32 %r1, [p0];", "param");
    refused("ld.shared.u32 %r1, [0];", "literal");
    refused("bra nowhere;", "nowhere");
    refused("mov.u64 %rd1, %tid.x;", "%tid.x");
    refused("mad.lo.s32 %r1, %r2, %r3, %rd4;", "%rd4");
    refused("mul.wide.u32 %r1, %r2, %r3;", "%r1");
}

#[test]
fn rounding_must_be_written() {
    refused("add.f32 %f1, %f2, %f3;", "rounding mode");
    refused("mul.ftz.f32 %f1, %f2, %f3;", "rounding mode");
    refused("sub.f16 %h1, %h2, %h3;", "rounding mode");
    refused("fma.f32 %f1, %f2, %f3, %f4;", "rounding mode");
    refused("div.f32 %f1, %f2, %f3;", "rounding mode");
    refused("sqrt.f32 %f1, %f2;", "rounding mode");
    refused("cvt.f16.f32 %h1, %f2;", "rounding mode");
    refused("cvt.s32.f32 %r1, %f2;", "rounding mode");
    refused("cvt.rn.f32.f16 %f1, %h2;", "widening");
    refused("cvt.rn.e4m3x2.f32 %h1, %f2, %f3;", "satfinite");
    refused("ex2.f32 %f1, %f2;", ".approx");
}

#[test]
fn the_module_must_be_whole() {
    let parse = |text: &str| Module::parse(text).unwrap_err().to_string();
    assert!(parse(".entry k() { ret; }").contains("`.version`"));
    let head = ".version 8.0\n.target sm_80\n.address_size 64\n";
    assert!(parse(&format!("{head}.func f() {{ ret; }}")).contains(".func"));
    assert!(parse(&format!("{head}.entry k() {{ ret;")).contains("ends in the middle"));
    assert!(parse(&format!("{head}.entry k() {{ ret }}")).contains("line 4"));
    assert!(parse(&format!("{head}.entry k() {{ a: a: ret; }}")).contains("twice"));
    assert!(parse(&format!("{head}.entry k() {{ .reg .b32 a; .reg .b32 a; }}")).contains("twice"));
    assert!(parse(&format!("{head}/* open")).contains("not closed"));
    assert!(parse(&format!("{head}.entry k() {{ mov.b32 #, 1; }}")).contains('#'));
    assert!(parse(".version 8.0\n.target sm_80\n.address_size 32\n").contains("64-bit"));
}

#[test]
fn scopes_and_comments() {
    let text = module(
        1,
        ".loc 1 2 3
         { .reg .b32 inner; mov.b32 inner, 1; /* a
         comment */ { .reg .b32 inner; mov.b32 inner, 2; } }
         .pragma \"nounroll\"; // to the end",
    );
    let text = text.replace(".visible", ".file 1 \"a.rs\"\n.visible");
    let module = Module::parse(&text).unwrap_or_else(|e| panic!("{e}"));
    // Two moves, the load of the parameter, and ret.
    assert_eq!(module.entries().next().unwrap().instructions(), 4);
}
