//! Integer arithmetic, logic and bit fields.

use crate::{eval, eval16, eval32};

/// `op d, a, b` on 32-bit registers.
fn op2(op: &str, a: u32, b: u32) -> u32 {
    eval32(&format!("mov.b32 %r1, {a:#x}; mov.b32 %r2, {b:#x}; {op} %r0, %r1, %r2;"))
}

fn op3(op: &str, a: u32, b: u32, c: u32) -> u32 {
    eval32(&format!("mov.b32 %r1, {a:#x}; mov.b32 %r2, {b:#x}; mov.b32 %r3, {c:#x}; {op} %r0, %r1, %r2, %r3;"))
}

fn op2_64(op: &str, a: u64, b: u64) -> u64 {
    eval(&format!("mov.b64 %rd1, {a:#x}; mov.b64 %rd2, {b:#x}; {op} %rd0, %rd1, %rd2;"))
}

fn op2_16(op: &str, a: u16, b: u16) -> u16 {
    eval16(&format!("mov.b16 %h1, {a:#x}; mov.b16 %h2, {b:#x}; {op} %h0, %h1, %h2;"))
}

#[test]
fn addition_wraps_and_saturates() {
    assert_eq!(op2("add.u32", u32::MAX, 2), 1);
    assert_eq!(op2("add.s32", 0x7fff_ffff, 1), 0x8000_0000);
    assert_eq!(op2("add.sat.s32", 0x7fff_ffff, 1), 0x7fff_ffff);
    assert_eq!(op2("sub.sat.s32", 0x8000_0000, 1), 0x8000_0000);
    assert_eq!(op2("sub.u32", 0, 1), u32::MAX);
    assert_eq!(op2_16("add.u16", 0xffff, 2), 1);
    assert_eq!(op2_64("sub.s64", 0, 1), u64::MAX);
    assert_eq!(op2("add.u16x2", 0xffff_0001, 0x0001_0002), 0x0000_0003);
}

#[test]
fn carries_chain() {
    // 0xffffffff_ffffffff + 1 in halves, then the same difference back.
    let body = "mov.b32 %r1, -1; mov.b32 %r2, -1; mov.b32 %r3, 1; mov.b32 %r4, 0;
        add.cc.u32 %r5, %r1, %r3; addc.cc.u32 %r6, %r2, %r4; addc.u32 %r7, %r4, %r4;";
    assert_eq!(eval32(&format!("{body} mov.b32 %r0, %r5;")), 0);
    assert_eq!(eval32(&format!("{body} mov.b32 %r0, %r6;")), 0);
    assert_eq!(eval32(&format!("{body} mov.b32 %r0, %r7;")), 1);
    let body = "mov.b32 %r1, 0; mov.b32 %r2, 5; mov.b32 %r3, 1; mov.b32 %r4, 0;
        sub.cc.u32 %r5, %r1, %r3; subc.u32 %r6, %r2, %r4;";
    assert_eq!(eval32(&format!("{body} mov.b32 %r0, %r5;")), u32::MAX);
    assert_eq!(eval32(&format!("{body} mov.b32 %r0, %r6;")), 4);
}

#[test]
fn products() {
    assert_eq!(op2("mul.lo.u32", 0x1_0001, 0x1_0001), 0x0002_0001);
    assert_eq!(op2("mul.hi.u32", u32::MAX, u32::MAX), 0xffff_fffe);
    assert_eq!(op2("mul.hi.s32", u32::MAX, u32::MAX), 0);
    assert_eq!(op2_64("mul.hi.u64", u64::MAX, u64::MAX), u64::MAX - 1);
    assert_eq!(op2_64("mul.hi.s64", u64::MAX, 2), u64::MAX);
    assert_eq!(op2_16("mul.lo.u16", 0x101, 0x101), 0x0201);
    assert_eq!(op2_16("mul.hi.s16", 0x8000, 2), 0xffff);
    let wide = |ty: &str| eval(&format!("mov.b32 %r1, -1; mov.b32 %r2, 2; mul.wide.{ty} %rd0, %r1, %r2;"));
    assert_eq!(wide("u32"), 0x1_ffff_fffe);
    assert_eq!(wide("s32"), -2i64 as u64);
    assert_eq!(op3("mad.lo.s32", 3, 0xffff_ffff, 5), 2);
    assert_eq!(op3("mad.hi.u32", u32::MAX, u32::MAX, 3), 1);
    assert_eq!(op3("mad.hi.sat.s32", 0x7fff_ffff, 0x7fff_ffff, 0x7fff_ffff), 0x7fff_ffff);
    let mad = "mov.b32 %r1, -1; mov.b32 %r2, 2; mov.b64 %rd1, 1;";
    assert_eq!(eval(&format!("{mad} mad.wide.s32 %rd0, %r1, %r2, %rd1;")), u64::MAX);
    // 24 bits: of 0xff000003 the low 24 count, with their sign.
    assert_eq!(op2("mul24.lo.u32", 0xff00_0003, 2), 6);
    assert_eq!(op2("mul24.lo.s32", 0x00ff_ffff, 2), -2i32 as u32);
    assert_eq!(op2("mul24.hi.u32", 0xff_ffff, 0xff_ffff), 0xffff_fe00);
    assert_eq!(op3("dp4a.u32.u32", 0x0102_0304, 0x0101_0101, 10), 20);
    assert_eq!(op3("dp4a.s32.s32", 0xff00_00ff, 0x0100_0001, 10), 8);
}

#[test]
fn quotients_truncate() {
    assert_eq!(op2("div.s32", -7i32 as u32, 2), -3i32 as u32);
    assert_eq!(op2("rem.s32", -7i32 as u32, 2), -1i32 as u32);
    assert_eq!(op2("div.u32", -7i32 as u32, 2), 0x7fff_fffc);
    assert_eq!(op2("rem.u32", 7, 4), 3);
    assert_eq!(op2("div.s32", 0x8000_0000, u32::MAX), 0x8000_0000);
    assert_eq!(op2_64("div.u64", u64::MAX, 10), u64::MAX / 10);
}

#[test]
fn minimum_maximum_absolute() {
    assert_eq!(op2("min.s32", u32::MAX, 1), u32::MAX);
    assert_eq!(op2("min.u32", u32::MAX, 1), 1);
    assert_eq!(op2("max.s32", u32::MAX, 1), 1);
    assert_eq!(op2("max.relu.s32", -5i32 as u32, -3i32 as u32), 0);
    assert_eq!(op2("min.s16x2", 0xffff_0005, 0x0001_0003), 0xffff_0003);
    assert_eq!(op2("max.u16x2", 0xffff_0005, 0x0001_0003), 0xffff_0005);
    assert_eq!(op2_64("max.s64", u64::MAX, 0), 0);
    assert_eq!(eval32("mov.b32 %r1, -5; abs.s32 %r0, %r1;"), 5);
    assert_eq!(eval32("mov.b32 %r1, -5; neg.s32 %r0, %r1;"), 5);
    assert_eq!(op3("sad.u32", 3, 10, 1), 8);
    assert_eq!(op3("sad.s32", -3i32 as u32, 10, 1), 14);
}

#[test]
fn shifts_clamp_their_amount() {
    assert_eq!(op2("shl.b32", 1, 31), 1 << 31);
    assert_eq!(op2("shl.b32", 1, 32), 0);
    assert_eq!(op2("shr.u32", 0x8000_0000, 33), 0);
    assert_eq!(op2("shr.s32", 0x8000_0000, 33), u32::MAX);
    assert_eq!(op2("shr.s32", 0x8000_0000, 4), 0xf800_0000);
    let shift16 =
        |op: &str, a: u32, n: u32| eval16(&format!("mov.b16 %h1, {a:#x}; mov.b32 %r1, {n}; {op} %h0, %h1, %r1;"));
    assert_eq!(shift16("shl.b16", 0xffff, 8), 0xff00);
    assert_eq!(shift16("shr.s16", 0x8000, 15), 0xffff);
    // The funnel: [b:a] shifted, its upper (l) or lower (r) word.
    assert_eq!(op3("shf.l.wrap.b32", 0x8000_0000, 1, 1), 3);
    assert_eq!(op3("shf.l.wrap.b32", 7, 9, 32), 9);
    assert_eq!(op3("shf.l.clamp.b32", 7, 9, 40), 7);
    assert_eq!(op3("shf.r.wrap.b32", 2, 1, 1), 0x8000_0001);
    assert_eq!(op3("shf.r.clamp.b32", 7, 9, 40), 9);
}

#[test]
fn logic() {
    assert_eq!(op2("and.b32", 0xff00, 0x0ff0), 0x0f00);
    assert_eq!(op2("or.b32", 0xff00, 0x0ff0), 0xfff0);
    assert_eq!(op2("xor.b32", 0xff00, 0x0ff0), 0xf0f0);
    assert_eq!(eval32("mov.b32 %r1, 5; not.b32 %r0, %r1;"), !5);
    assert_eq!(eval32("mov.b32 %r1, 5; cnot.b32 %r0, %r1;"), 0);
    assert_eq!(eval32("mov.b32 %r1, 0; cnot.b32 %r0, %r1;"), 1);
    // The table is made of ta = 0xf0, tb = 0xcc, tc = 0xaa.
    let (a, b, c) = (0x1234_5678u32, 0x9abc_def0, 0x0f0f_ff00);
    let lop = |table: u8| op3(&format!("lop3.b32 %r0, %r1, %r2, %r3, {table:#x}; //"), a, b, c);
    let (ta, tb, tc) = (0xf0u8, 0xccu8, 0xaau8);
    assert_eq!(lop(ta & tb & tc), a & b & c);
    assert_eq!(lop(ta | tb | tc), a | b | c);
    assert_eq!(lop(ta & tb & !tc), a & b & !c);
    assert_eq!(lop((ta & tb) ^ tc), (a & b) ^ c);
    let flag = "mov.b32 %r1, 1; mov.b32 %r2, 2; mov.b32 %r3, 0; setp.eq.u32 %q1, %r1, %r2;
        lop3.or.b32 %r4|%q0, %r1, %r2, %r3, 0xfe, %q1; selp.b32 %r0, %r4, 77, %q0;";
    assert_eq!(eval32(flag), 3);
}

#[test]
fn bit_fields() {
    assert_eq!(op3("bfe.u32", 0x1234_5678, 8, 8), 0x56);
    assert_eq!(op3("bfe.s32", 0x0000_ff00, 8, 8), u32::MAX);
    assert_eq!(op3("bfe.u32", u32::MAX, 28, 8), 0xf);
    assert_eq!(op3("bfe.s32", 0x8000_0000, 28, 8), 0xffff_fff8);
    assert_eq!(op3("bfe.s32", 0x8000_0000, 40, 8), u32::MAX);
    assert_eq!(op3("bfe.u32", u32::MAX, 4, 0), 0);
    assert_eq!(op3("bfe.s32", u32::MAX, 4, 0), 0);
    let bfi = |pos: u32, len: u32| {
        eval32(&format!("mov.b32 %r1, 0xab; mov.b32 %r2, 0xffffffff; bfi.b32 %r0, %r1, %r2, {pos}, {len};"))
    };
    assert_eq!(bfi(8, 8), 0xffff_abff);
    assert_eq!(bfi(28, 8), 0xbfff_ffff);
    assert_eq!(bfi(0, 0), u32::MAX);
    assert_eq!(bfi(32, 8), u32::MAX);
    let one = |op: &str, a: u32| eval32(&format!("mov.b32 %r1, {a:#x}; {op} %r0, %r1;"));
    assert_eq!(one("popc.b32", 0xf0f0), 8);
    assert_eq!(one("clz.b32", 0), 32);
    assert_eq!(one("clz.b32", 0x10), 27);
    assert_eq!(one("brev.b32", 1), 1 << 31);
    assert_eq!(one("bfind.u32", 0x10), 4);
    assert_eq!(one("bfind.u32", 0), u32::MAX);
    assert_eq!(one("bfind.s32", u32::MAX), u32::MAX);
    assert_eq!(one("bfind.s32", 0xffff_fffe), 0);
    assert_eq!(one("bfind.shiftamt.u32", 0x10), 27);
    assert_eq!(eval32("mov.b64 %rd1, 0x100000000; clz.b64 %r0, %rd1;"), 31);
    assert_eq!(eval("mov.b64 %rd1, 1; brev.b64 %rd0, %rd1;"), 1 << 63);
    assert_eq!(op2("bmsk.clamp.b32", 4, 8), 0xff0);
    assert_eq!(op2("bmsk.wrap.b32", 36, 8), 0xff0);
    assert_eq!(op2("bmsk.clamp.b32", 36, 8), 0);
}

#[test]
fn byte_permutations() {
    let (a, b) = (0x3322_1100, 0x7766_5544);
    assert_eq!(op3("prmt.b32", a, b, 0x7531), 0x7755_3311);
    assert_eq!(op3("prmt.b32", a, b, 0x0123), 0x0011_2233);
    // Bit 3 of a selector replicates the byte's sign.
    assert_eq!(op3("prmt.b32", 0x0000_0080, 0, 0x1118), 0x0000_00ff);
    assert_eq!(op3("prmt.b32.f4e", a, b, 1), 0x4433_2211);
    assert_eq!(op3("prmt.b32.b4e", a, b, 1), 0x6677_0011);
    assert_eq!(op3("prmt.b32.rc8", a, b, 2), 0x2222_2222);
    assert_eq!(op3("prmt.b32.ecl", a, b, 1), 0x3322_1111);
    assert_eq!(op3("prmt.b32.ecr", a, b, 1), 0x1111_1100);
    assert_eq!(op3("prmt.b32.rc16", a, b, 1), 0x3322_3322);
}

/// Every comparison of every order of operands, by type.
#[test]
fn comparisons() {
    let holds = |op: &str, ty: &str, a: &str, b: &str| {
        let (load, r) = match ty {
            "b64" | "u64" | "s64" => ("mov.b64", "%rd"),
            "b16" | "u16" | "s16" => ("mov.b16", "%h"),
            _ => ("mov.b32", "%r"),
        };
        eval32(&format!(
            "{load} {r}1, {a}; {load} {r}2, {b};
             setp.{op}.{ty} %q0, {r}1, {r}2; selp.b32 %r0, 1, 0, %q0;"
        )) == 1
    };
    for ty in ["s16", "s32", "s64"] {
        assert!(holds("lt", ty, "-1", "1") && !holds("lt", ty, "1", "1"));
        assert!(holds("le", ty, "-1", "1") && holds("le", ty, "1", "1"));
        assert!(!holds("gt", ty, "-1", "1") && holds("gt", ty, "1", "-1"));
        assert!(!holds("ge", ty, "-1", "1") && holds("ge", ty, "1", "1"));
    }
    for ty in ["u16", "u32", "u64"] {
        assert!(!holds("lt", ty, "-1", "1") && holds("lo", ty, "1", "-1"));
        assert!(holds("ls", ty, "1", "1") && holds("hs", ty, "1", "1"));
        assert!(holds("hi", ty, "-1", "1") && holds("ge", ty, "-1", "1"));
    }
    for ty in ["b16", "b32", "b64", "u32", "s64"] {
        assert!(holds("eq", ty, "5", "5") && !holds("eq", ty, "5", "6"));
        assert!(holds("ne", ty, "5", "6") && !holds("ne", ty, "5", "5"));
    }
}

#[test]
fn comparisons_join_predicates() {
    // p = (a op b) join c, q = !(a op b) join c; %q9 is true.
    let run = |join: &str, hit: bool, c: bool| {
        let b = if hit { 1 } else { 2 };
        let c = if c { "%q9" } else { "!%q9" };
        eval32(&format!(
            "mov.b32 %r1, 1; setp.eq.u32 %q9, %r1, 1;
             setp.eq.{join}.u32 %q0|%q1, %r1, {b}, {c};
             selp.b32 %r2, 1, 0, %q0; selp.b32 %r3, 2, 0, %q1; or.b32 %r0, %r2, %r3;"
        ))
    };
    for (hit, c) in [(false, false), (false, true), (true, false), (true, true)] {
        let bits = |p: bool, q: bool| u32::from(p) + 2 * u32::from(q);
        assert_eq!(run("and", hit, c), bits(hit && c, !hit && c));
        assert_eq!(run("or", hit, c), bits(hit || c, !hit || c));
        assert_eq!(run("xor", hit, c), bits(hit ^ c, !hit ^ c));
    }
}

#[test]
fn predicate_logic_and_set() {
    let run = |op: &str, a: u32, b: u32| {
        eval32(&format!(
            "mov.b32 %r1, {a}; setp.ne.u32 %q1, %r1, 0; mov.b32 %r2, {b}; setp.ne.u32 %q2, %r2, 0;
             {op}; selp.b32 %r0, 1, 0, %q0;"
        ))
    };
    for (a, b) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        assert_eq!(run("and.pred %q0, %q1, %q2", a, b), a & b);
        assert_eq!(run("or.pred %q0, %q1, %q2", a, b), a | b);
        assert_eq!(run("xor.pred %q0, %q1, %q2", a, b), a ^ b);
        assert_eq!(run("not.pred %q0, %q1", a, b), 1 - a);
        assert_eq!(run("mov.pred %q0, %q1", a, b), a);
    }
    assert_eq!(op2("set.lt.u32.s32", u32::MAX, 1), u32::MAX);
    assert_eq!(op2("set.gt.u32.s32", u32::MAX, 1), 0);
    let set = eval32("mov.b32 %r1, 1; set.eq.f32.u32 %f0, %r1, 1; mov.b32 %r0, %f0;");
    assert_eq!(set, 1f32.to_bits());
}

#[test]
fn selection_reads_only_what_it_chooses() {
    let body = "mov.b32 %r1, 7; setp.eq.u32 %q0, %r1, 7; selp.b32 %r0, %r1, %r9, %q0;";
    assert_eq!(eval32(body), 7);
    assert_eq!(op3("slct.u32.s32", 1, 2, 0), 1);
    assert_eq!(op3("slct.u32.s32", 1, 2, u32::MAX), 2);
    let by_float = |c: f32| {
        eval32(&format!(
            "mov.b32 %r1, 1; mov.b32 %r2, 2; mov.f32 %f1, {};
             slct.u32.f32 %r0, %r1, %r2, %f1;",
            crate::lit(c)
        ))
    };
    assert_eq!(by_float(-0.0), 1);
    assert_eq!(by_float(-1.0), 2);
    assert_eq!(by_float(f32::NAN), 2);
}

#[test]
fn packing() {
    assert_eq!(eval("mov.b32 %r1, 1; mov.b32 %r2, 2; mov.b64 %rd0, {%r1, %r2};"), 0x2_0000_0001);
    let body = "mov.b64 %rd1, 0x1122334455667788; mov.b64 {%r1, %r2}, %rd1;";
    assert_eq!(eval32(&format!("{body} mov.b32 %r0, %r1;")), 0x5566_7788);
    assert_eq!(eval32(&format!("{body} mov.b32 %r0, %r2;")), 0x1122_3344);
    assert_eq!(
        eval(
            "mov.b64 %rd1, 0x1122334455667788; mov.b64 {%h1, %h2, %h3, %h4}, %rd1;
        mov.b64 %rd0, {%h4, %h3, %h2, %h1};"
        ),
        0x7788_5566_3344_1122
    );
    assert_eq!(eval32("mov.b16 %h1, 1; mov.b16 %h2, 2; mov.b32 %r0, {%h1, %h2};"), 0x2_0001);
    assert_eq!(eval32("mov.b32 %r1, 0x30004; mov.b32 {_, %h1}, %r1; cvt.u32.u16 %r0, %h1;"), 3);
}
