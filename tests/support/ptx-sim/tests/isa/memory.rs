//! Loads, stores, atomics, address spaces, asynchronous copies.

use crate::{eval, eval32, launch, module, words};
use ptx_sim::{Arg, Launch, Memory, Module, run};

#[test]
fn widths_and_signs() {
    let data: &[u8] = &[0x80, 0xff, 0x7f, 0x01, 0x88, 0x77, 0x66, 0x55];
    let load = |what: &str| {
        let body = format!("{what} st.global.b64 [%p1], %rd0;");
        let (out, _) = launch(&body, 1, &[data], 8).unwrap_or_else(|e| panic!("{e}"));
        u64::from_le_bytes(out.try_into().unwrap())
    };
    assert_eq!(load("ld.global.u8 %rd0, [%p0];"), 0x80);
    assert_eq!(load("ld.global.s8 %rd0, [%p0];"), -128i64 as u64);
    assert_eq!(load("ld.global.s8 %r1, [%p0]; cvt.u64.u32 %rd0, %r1;"), 0xffff_ff80);
    assert_eq!(load("ld.global.s16 %rd0, [%p0+0];"), 0xffff_ffff_ffff_ff80);
    assert_eq!(load("ld.global.b64 %rd0, [%p0];"), 0x5566_7788_017f_ff80);
    assert_eq!(
        load(
            "ld.global.v2.u16 {%h1, %h2}, [%p0+4]; mov.b32 %r1, {%h2, %h1};
        cvt.u64.u32 %rd0, %r1;"
        ),
        0x7788_5566
    );
    assert_eq!(load("ld.global.v4.u8 {%r1, %r2, %r3, %r4}, [%p0]; cvt.u64.u32 %rd0, %r2;"), 0xff);
    assert_eq!(load("ld.volatile.global.b32 %r1, [%p0+4]; cvt.u64.u32 %rd0, %r1;"), 0x5566_7788);
    assert_eq!(load("ld.relaxed.gpu.global.b32 %r1, [%p0]; cvt.u64.u32 %rd0, %r1;"), 0x017f_ff80);
    assert_eq!(load("ld.acquire.sys.b32 %r1, [%p0]; cvt.u64.u32 %rd0, %r1;"), 0x017f_ff80);
    assert_eq!(load("ld.global.nc.L1::no_allocate.L2::128B.b32 %r1, [%p0]; cvt.u64.u32 %rd0, %r1;"), 0x017f_ff80);
    assert_eq!(load("add.s64 %rd1, %p0, 8; ld.global.u8 %rd0, [%rd1+-1];"), 0x55);
}

#[test]
fn vectors_count_once() {
    let data: Vec<u8> = (0..128u32).flat_map(u32::to_le_bytes).collect();
    let body = "mov.u32 %r1, %tid.x; mul.wide.u32 %rd1, %r1, 16;
        add.s64 %rd2, %p0, %rd1; add.s64 %rd3, %p1, %rd1;
        ld.global.v4.b32 {%r2, %r3, %r4, %r5}, [%rd2];
        st.global.v4.b32 [%rd3], {%r5, %r4, %r3, %r2};";
    let (out, stats) = launch(body, 32, &[&data], 512).unwrap();
    assert_eq!(words(&out)[..4], [3, 2, 1, 0]);
    assert_eq!((stats.global_requests, stats.global_sectors), (2, 32));
    assert_eq!(stats.excess_sectors, 0);
    assert_eq!(stats.count("ld.global.v4"), 32);
}

#[test]
fn uncoalesced_accesses_are_counted() {
    let data = vec![0; 32 * 128];
    let body = "mov.u32 %r1, %tid.x; mul.wide.u32 %rd1, %r1, 128; add.s64 %rd2, %p0, %rd1;
        ld.global.b32 %r2, [%rd2];
        mul.wide.u32 %rd3, %r1, 4; add.s64 %rd4, %p1, %rd3; st.global.b32 [%rd4], %r2;";
    let (_, stats) = launch(body, 32, &[&data], 128).unwrap();
    assert_eq!((stats.global_sectors, stats.excess_sectors), (32 + 4, 28));
    assert_eq!(stats.excess_sectors_by_line.len(), 1);
}

#[test]
fn bank_conflicts_are_counted() {
    let run = |stride: u32| {
        let body = format!(
            ".shared .align 16 .b8 tile[8192];
             mov.u32 %r1, %tid.x; mov.u32 %r2, tile; mad.lo.u32 %r3, %r1, {stride}, %r2;
             st.shared.b32 [%r3], %r1; ld.shared.b32 %r4, [%r3]; st.global.b32 [%p0], %r4;"
        );
        let (_, stats) = launch(&body, 32, &[], 4).unwrap_or_else(|e| panic!("{e}"));
        (stats.shared_requests, stats.bank_conflicts)
    };
    assert_eq!(run(4), (2, 0));
    assert_eq!(run(128), (2, 62));
    assert_eq!(run(132), (2, 0));
    assert_eq!(run(8), (2, 2));
}

#[test]
fn generic_addresses() {
    let body = "
        .shared .align 8 .b64 s; .local .align 8 .b64 l;
        mov.u64 %rd1, s; cvta.shared.u64 %rd2, %rd1;
        mov.u64 %rd3, l; cvta.local.u64 %rd4, %rd3;
        mov.u64 %rd5, 111; mov.u64 %rd6, 222;
        st.b64 [%rd2], %rd5; st.b64 [%rd4], %rd6;
        ld.shared.b64 %rd7, [s]; ld.local.b64 %rd8, [l];
        cvta.to.shared.u64 %rd9, %rd2; ld.shared.b64 %rd10, [%rd9];
        isspacep.shared %q0, %rd2; isspacep.shared %q1, %rd4; isspacep.global %q2, %p0;
        @!%q0 trap; @%q1 trap; @!%q2 trap;
        add.s64 %rd0, %rd7, %rd8; add.s64 %rd0, %rd0, %rd10;";
    assert_eq!(eval(body), 111 + 222 + 111);
}

#[test]
fn module_variables() {
    let text = ".version 8.4\n.target sm_90\n.address_size 64
        .const .align 4 .b32 table[4] = {10, 20, 30, 40};
        .global .align 4 .b32 counter;
        .visible .entry k(.param .u64 p) {
            .reg .b32 %r<8>; .reg .b64 %rd<8>;
            ld.param.u64 %rd1, [p];
            mov.u32 %r1, %tid.x;
            mov.u64 %rd2, table;
            mul.wide.u32 %rd3, %r1, 4;
            add.s64 %rd4, %rd2, %rd3;
            ld.const.b32 %r2, [%rd4];
            ld.const.b32 %r3, [table+4];
            atom.global.add.u32 %r4, [counter], 1;
            add.u32 %r5, %r2, %r3;
            add.u32 %r5, %r5, %r4;
            add.s64 %rd5, %rd1, %rd3;
            st.global.b32 [%rd5], %r5;
            ret;
        }";
    let module = Module::parse(text).unwrap_or_else(|e| panic!("{e}"));
    let mut memory = Memory::new();
    let out = memory.alloc(16);
    run(&module, Launch::new("k", 1, 4, &[Arg::Ptr(out)]), &mut memory).unwrap();
    assert_eq!(words(memory.bytes(out)), [30, 41, 52, 63]);
}

#[test]
fn dynamic_shared_memory() {
    let body = "mov.u32 %r1, dynamic; ld.shared.b32 %r2, [%r1+60];";
    let text = module(
        1,
        &format!(
            "mov.u32 %r3, dynamic; mov.u32 %r4, 9;
        st.shared.b32 [%r3+60], %r4; {body} st.global.b32 [%p0], %r2;"
        ),
    );
    let module = Module::parse(&text).unwrap();
    let mut memory = Memory::new();
    let args = [Arg::Ptr(memory.alloc(4))];
    let launch = Launch { dynamic_shared: 64, ..Launch::new("k", 1, 1, &args) };
    run(&module, launch, &mut memory).unwrap();
    let launch = Launch { dynamic_shared: 60, ..Launch::new("k", 1, 1, &args) };
    let fault = run(&module, launch, &mut memory).unwrap_err();
    assert!(fault.to_string().contains("`dynamic` of 60 bytes, offset 60"), "{fault}");
}

/// The old value and the new one of an atomic on global and shared memory.
fn atomic(op: &str, old: u64, operands: &str, wide: bool) -> (u64, u64) {
    let (r, ty) = if wide { ("%rd", "b64") } else { ("%r", "b32") };
    let mut seen = Vec::new();
    for (space, address) in [("global", "%p1"), ("shared", "%rd29")] {
        let body = format!(
            ".shared .align 8 .b64 cell;
             mov.u64 %rd29, cell; mov.b64 %rd30, {old:#x};
             st.global.b64 [%p1+0], %rd30; st.shared.b64 [cell], %rd30;
             atom.{space}.{op} {r}28, [{address}], {operands};
             ld.{space}.{ty} {r}27, [{address}];
             st.global.{ty} [%p1], {r}28; st.global.{ty} [%p1+8], {r}27;"
        )
        .replace("%p1", "%p0");
        let zeroed = format!("mov.b64 %rd26, 0; st.global.b64 [%p0+8], %rd26; {body}");
        let (out, _) = launch(&zeroed, 1, &[], 16).unwrap_or_else(|e| panic!("{e}"));
        let part = |i: usize| {
            let all = u64::from_le_bytes(out[i..i + 8].try_into().unwrap());
            if wide { all } else { all & 0xffff_ffff }
        };
        seen.push((part(0), part(8)));
    }
    assert_eq!(seen[0], seen[1]);
    seen[0]
}

#[test]
fn atomics() {
    let f = |v: f32| u64::from(v.to_bits());
    assert_eq!(atomic("add.u32", 5, "7", false), (5, 12));
    assert_eq!(atomic("add.u64", 5, "-1", true), (5, 4));
    assert_eq!(atomic("min.s32", 5, "-1", false), (5, 0xffff_ffff));
    assert_eq!(atomic("min.u32", 5, "-1", false), (5, 5));
    assert_eq!(atomic("max.s64", 5, "-1", true), (5, 5));
    assert_eq!(atomic("and.b32", 12, "10", false), (12, 8));
    assert_eq!(atomic("or.b32", 12, "10", false), (12, 14));
    assert_eq!(atomic("xor.b64", 12, "10", true), (12, 6));
    assert_eq!(atomic("exch.b32", 12, "10", false), (12, 10));
    assert_eq!(atomic("cas.b32", 12, "12, 99", false), (12, 99));
    assert_eq!(atomic("cas.b32", 12, "13, 99", false), (12, 12));
    assert_eq!(atomic("cas.b64", 12, "12, 99", true), (12, 99));
    assert_eq!(atomic("inc.u32", 3, "3", false), (3, 0));
    assert_eq!(atomic("inc.u32", 2, "3", false), (2, 3));
    assert_eq!(atomic("dec.u32", 0, "3", false), (0, 3));
    assert_eq!(atomic("dec.u32", 5, "3", false), (5, 3));
    assert_eq!(atomic("dec.u32", 2, "3", false), (2, 1));
    let add = eval32(
        "mov.f32 %f1, 0f3FC00000; st.global.f32 [%p0], %f1;
         atom.relaxed.gpu.global.add.f32 %f2, [%p0], 0f40000000;
         ld.global.b32 %r0, [%p0];",
    );
    assert_eq!(u64::from(add), f(3.5));
    let pair = |ty: &str, value: u32| {
        eval32(&format!(
            "mov.b32 %r1, {value:#x}; st.global.b32 [%p0], %r1;
             red.global.add.noftz.{ty} [%p0], %r1; ld.global.b32 %r0, [%p0];"
        ))
    };
    assert_eq!(pair("f16x2", 0x3c00_4000), 0x4000_4400);
    assert_eq!(pair("bf16x2", 0x3f80_4000), 0x4000_4080);
    let vector = eval(
        "mov.b64 %rd1, 0; st.global.b64 [%p0], %rd1; mov.f32 %f1, 0f3F800000;
         mov.f32 %f2, 0f40000000; red.global.add.v2.f32 [%p0], {%f1, %f2};
         ld.global.b64 %rd0, [%p0];",
    );
    assert_eq!(vector, f(2.0) << 32 | f(1.0));
}

#[test]
fn all_threads_add_to_one_cell() {
    let body = "
        .shared .align 4 .b32 sum;
        mov.u32 %r1, %tid.x; setp.ne.u32 %q1, %r1, 0; mov.u32 %r2, 0;
        @!%q1 st.shared.u32 [sum], %r2;
        bar.sync 0;
        red.shared.add.u32 [sum], %r1;
        bar.sync 0;
        @%q1 bra end;
        ld.shared.u32 %r3, [sum];
        st.global.u32 [%p0], %r3;
    end:";
    let (out, _) = launch(body, 100, &[], 4).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(words(&out), [(0..100).sum::<u32>()]);
}

#[test]
fn asynchronous_copies_arrive() {
    let data: Vec<u8> = (0..=255).collect();
    let copy = |copy: &str, wait: &str| {
        let body = format!(
            ".shared .align 16 .b8 tile[512];
             mov.u32 %r1, %tid.x; shl.b32 %r2, %r1, 4; mov.u32 %r3, tile; add.u32 %r3, %r3, %r2;
             cvt.u64.u32 %rd1, %r2; add.s64 %rd2, %p0, %rd1; add.s64 %rd3, %p1, %rd1;
             {copy} {wait}
             ld.shared.v4.b32 {{%r4, %r5, %r6, %r7}}, [%r3];
             st.global.v4.b32 [%rd3], {{%r4, %r5, %r6, %r7}};"
        );
        launch(&body, 16, &[&data], 256).map(|(out, _)| out)
    };
    let whole = "cp.async.cg.shared.global [%r3], [%rd2], 16;";
    assert_eq!(copy(whole, "cp.async.wait_all;").unwrap(), data);
    assert_eq!(copy(whole, "cp.async.commit_group; cp.async.wait_group 0;").unwrap(), data);
    // The source size fills the rest with zeros.
    let part = copy("cp.async.cg.shared.global.L2::128B [%r3], [%rd2], 16, 5;", "cp.async.wait_all;");
    let part = part.unwrap();
    assert_eq!((&part[16..21], &part[21..32]), (&data[16..21], &[0u8; 11][..]));
    // Not waited for: neither without a wait nor with one group pending.
    for wait in ["", "cp.async.commit_group; cp.async.wait_group 1;", "cp.async.wait_group 0;"] {
        let fault = copy(whole, wait).unwrap_err();
        assert!(fault.to_string().contains("before cp.async has arrived"), "{fault}");
    }
}
