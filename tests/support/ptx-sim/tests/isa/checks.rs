//! The checks beyond what a device would say: each finds its fault, and lets
//! the correct program pass.

use crate::{fault, launch, module};
use ptx_sim::{Arg, Fault, FaultKind, Launch, Memory, Module, Space, WarpOrder, run};

#[test]
fn bounds_and_alignment_of_global_memory() {
    let load = |at: &str| fault(&format!("ld.global.b32 %r1, [%p0+{at}];"), 1, 8);
    match load("8") {
        FaultKind::OutOfBounds { space: Space::Global, bytes: 4, nearest, .. } => {
            assert_eq!((nearest.offset, nearest.bytes), (8, 8));
        }
        other => panic!("{other}"),
    }
    assert!(matches!(load("-4"), FaultKind::OutOfBounds { .. }));
    assert!(matches!(load("6"), FaultKind::OutOfBounds { .. }));
    assert!(matches!(load("2"), FaultKind::Misaligned { bytes: 4, .. }));
    assert!(matches!(load("0"), FaultKind::UninitialisedMemory { .. }));
    let null = fault("mov.u64 %rd1, 0; ld.global.b32 %r1, [%rd1];", 1, 8);
    assert!(matches!(null, FaultKind::OutOfBounds { address: 0, .. }));
    // A vector is aligned to its whole size.
    let vector = fault("mov.b32 %r1, 0; st.global.v2.b32 [%p0+4], {%r1, %r1};", 1, 16);
    assert!(matches!(vector, FaultKind::Misaligned { bytes: 8, .. }));
}

#[test]
fn faults_name_the_source_line() {
    let text = |body: &str| module(1, body).replace(".visible", ".file 7 \"src/kernel.rs\"\n.visible");
    let place = |body: &str| {
        let module = Module::parse(&text(body)).unwrap();
        let mut memory = Memory::new();
        let args = [Arg::Ptr(memory.alloc(8))];
        run(&module, Launch::new("k", 1, 1, &args), &mut memory).unwrap_err()
    };
    let load = "ld.global.b32 %r1, [%p0+8];";
    let fault = place(&format!(".loc 7 3 5\nmov.b32 %r2, 0;\n.loc 7 12 9 // kernel.rs:12\nmov.b32 %r3, 0;\n{load}"));
    assert_eq!(fault.source_line.as_deref(), Some("src/kernel.rs:12:9"));
    assert!(fault.to_string().contains(&format!("{load}\n    for src/kernel.rs:12:9\n")), "{fault}");
    let unknown = place(&format!("mov.b32 %r2, 0;\n{load}\n.loc 7 3 5"));
    assert_eq!(unknown.source_line, None, "{unknown}");
    let error = Module::parse(&text(".loc 6 1 1")).unwrap_err();
    assert!(error.to_string().contains("no `.file` names"), "{error}");
}

#[test]
fn bounds_of_shared_local_and_parameters() {
    let vars = ".shared .align 4 .b8 s[16]; .shared .align 4 .b8 s2[16]; .local .align 4 .b8 l[16];
        mov.b32 %r1, 0; ";
    let run = |body: &str| fault(&format!("{vars}{body}"), 1, 8);
    for (body, space) in [
        ("st.shared.b32 [s+16], %r1;", Space::Shared),
        ("mov.u32 %r2, s; st.shared.b32 [%r2+-4], %r1;", Space::Shared),
        ("st.local.b32 [l+16], %r1;", Space::Local),
        ("ld.param.b32 %r1, [p0+8];", Space::Param),
        ("mov.u32 %r2, 0; ld.shared.b32 %r1, [%r2];", Space::Shared),
    ] {
        let kind = run(body);
        assert!(matches!(kind, FaultKind::OutOfBounds { space: s, .. } if s == space), "{kind}");
    }
    assert!(matches!(run("st.shared.b32 [s+2], %r1;"), FaultKind::Misaligned { .. }));
    assert!(matches!(run("ld.shared.b32 %r1, [s];"), FaultKind::UninitialisedMemory { .. }));
    assert!(matches!(run("ld.local.b32 %r1, [l];"), FaultKind::UninitialisedMemory { .. }));
}

#[test]
fn shared_memory_starts_fresh_in_each_block() {
    let body = ".shared .align 4 .b32 s; mov.u32 %r1, %ctaid.x; setp.ne.u32 %q1, %r1, 0;
        @!%q1 st.shared.b32 [s], %r1; ld.shared.b32 %r2, [s]; st.global.b32 [%p0], %r2;";
    let module = Module::parse(&module(1, body)).unwrap();
    let mut memory = Memory::new();
    let args = [Arg::Ptr(memory.alloc(4))];
    let fault = run(&module, Launch::new("k", 2, 1, &args), &mut memory).unwrap_err();
    assert!(matches!(*fault.kind, FaultKind::UninitialisedMemory { space: Space::Shared, .. }));
    assert_eq!(fault.block, [1, 0, 0]);
}

#[test]
fn uninitialised_registers() {
    let register = |body: &str| match fault(body, 32, 8) {
        FaultKind::UninitialisedRegister { register } => register,
        other => panic!("{other}"),
    };
    assert_eq!(register("add.u32 %r1, %r2, 1;"), "%r2");
    assert_eq!(register("@%q3 mov.u32 %r1, 1;"), "%q3");
    assert_eq!(register("st.global.b32 [%rd7], 1;"), "%rd7");
    // Written in some lanes only.
    let body = "mov.u32 %r1, %tid.x; setp.lt.u32 %q1, %r1, 5; @%q1 mov.u32 %r2, 1;
        add.u32 %r3, %r2, 1;";
    let text = module(1, body);
    let mut memory = Memory::new();
    let args = [Arg::Ptr(memory.alloc(8))];
    let module = Module::parse(&text).unwrap();
    let fault = run(&module, Launch::new("k", 1, 32, &args), &mut memory).unwrap_err();
    assert_eq!(fault.thread, [5, 0, 0]);
    assert_eq!(text.lines().nth(fault.line as usize - 1).map(str::trim), Some(&*fault.text));
    assert!(fault.text.contains("add.u32 %r3, %r2, 1"), "{fault}");
}

/// Two threads and `between` two accesses: the first is thread 0's.
fn pair(first: &str, between: &str, second: &str, other: u32) -> Result<(), Fault> {
    let body = format!(
        ".shared .align 4 .b32 s[2]; mov.b32 %r9, 1;
         mov.u32 %r1, %tid.x; setp.eq.u32 %q1, %r1, 0; setp.eq.u32 %q2, %r1, {other};
         @%q1 st.shared.b32 [s], %r9; @%q1 st.shared.b32 [s+4], %r9; bar.sync 0;
         @%q1 {first} {between} @%q2 {second}
         st.global.b32 [%p0], %r9;"
    );
    launch(&body, 64, &[], 4).map(|_| ())
}

#[test]
fn races_on_shared_memory() {
    let (store, load) = ("st.shared.b32 [s], %r9;", "ld.shared.b32 %r8, [s];");
    // Which of two warps comes first is the scheduler's choice.
    let is_race = |r: Result<(), Fault>, wrote: bool| match *r.unwrap_err().kind {
        FaultKind::Race { other: [40, 0, 0], .. } => {}
        FaultKind::Race { other, other_wrote, .. } => {
            assert_eq!((other, other_wrote), ([0, 0, 0], wrote));
        }
        other => panic!("{other}"),
    };
    for other in [1, 40] {
        is_race(pair(store, "", load, other), true);
        is_race(pair(store, "", store, other), true);
        is_race(pair(load, "", store, other), false);
        pair(load, "", load, other).unwrap();
        pair(store, "", "ld.shared.b32 %r8, [s+4];", other).unwrap();
        for (first, second) in [(store, load), (store, store), (load, store)] {
            pair(first, "bar.sync 0;", second, other).unwrap();
        }
        pair("red.shared.add.u32 [s], 1;", "", "red.shared.add.u32 [s], 1;", other).unwrap();
        is_race(pair("red.shared.add.u32 [s], 1;", "", load, other), true);
        pair("st.volatile.shared.b32 [s], %r9;", "", "ld.volatile.shared.b32 %r8, [s];", other).unwrap();
    }
    // A thread may do as it likes with its own bytes.
    pair(store, "", load, 0).unwrap();
    // A warp's barrier orders the warp, and no other.
    pair(store, "bar.warp.sync -1;", load, 1).unwrap();
    is_race(pair(store, "bar.warp.sync -1;", load, 40), true);
    // A shuffle is no barrier of memory.
    let shuffle = "shfl.sync.idx.b32 %r7, %r9, 0, 31, -1;";
    is_race(pair(store, shuffle, load, 1), true);
}

/// Two accesses, each by one block of a grid of 3 by 2.
fn blocks(first: [&str; 2], second: [&str; 2]) -> Result<(), Fault> {
    let at = |[x, y]: [u32; 2], body: &str| {
        format!(
            "mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ctaid.y; setp.eq.u32 %q1, %r1, {x}; setp.eq.and.u32 %q1, %r2, {y}, %q1;
             mov.b32 %r9, 1; cvt.u16.u32 %h9, %r9; @%q1 {body}"
        )
    };
    let [first, second] =
        [(first, [1, 0]), (second, [1, 1])].map(|([before, body], block)| before.to_owned() + &at(block, body));
    let module = Module::parse(&module(1, &format!("{first} {second}"))).unwrap();
    let mut memory = Memory::new();
    let args = [Arg::Ptr(memory.alloc_from(&[0; 16]))];
    let launch = Launch { grid: [3, 2, 1], ..Launch::new("k", 1, 1, &args) };
    // A launch knows nothing of those before it.
    run(&module, launch, &mut memory).and_then(|_| run(&module, launch, &mut memory)).map(|_| ())
}

#[test]
fn races_of_blocks_on_global_memory() {
    let (store, load) = ("st.global.b32 [%p0+4], %r9;", "ld.global.b32 %r8, [%p0+4];");
    let (add, polls) = ("red.global.add.u32 [%p0+4], 1;", "ld.relaxed.gpu.global.b32 %r8, [%p0+4];");
    let is_race = |first: &str, second: &str, wrote: bool| match blocks(["", first], ["", second]).unwrap_err() {
        Fault { block: [1, 1, 0], kind, .. } => match *kind {
            FaultKind::RaceOfBlocks { other: [1, 0, 0], other_wrote, ref nearest, .. } => {
                assert_eq!((other_wrote, nearest.offset), (wrote, 4), "{kind}");
            }
            other => panic!("{other}"),
        },
        other => panic!("{other}"),
    };
    is_race(store, store, true);
    is_race(store, load, true);
    is_race(load, store, false);
    is_race(add, store, true);
    is_race(add, load, true);
    is_race(polls, store, false);
    is_race(load, add, false);
    for (first, second) in [(load, load), (add, add), (polls, add), (load, polls)] {
        blocks(["", first], ["", second]).unwrap();
    }
    // Neighbours, down to the narrowest access.
    blocks(["", store], ["", "st.global.b32 [%p0+8], %r9;"]).unwrap();
    blocks(["", "st.global.b16 [%p0+2], %h9;"], ["", "st.global.b16 [%p0+4], %h9;"]).unwrap();
    // Blocks that wait for each other are ordered by what is not followed.
    blocks(["membar.gl;", store], ["", load]).unwrap();
    blocks(["fence.acq_rel.cta;", store], ["", load]).unwrap_err();
}

#[test]
fn halves_of_a_word_do_not_race() {
    let body = |width: &str, scale: u32| {
        format!(
            ".shared .align 4 .b8 s[256]; mov.u32 %r1, %tid.x; mov.u32 %r2, s;
             mad.lo.u32 %r3, %r1, {scale}, %r2; cvt.u16.u32 %h1, %r1;
             st.shared.{width} [%r3], %h1; st.global.b32 [%p0], %r1;"
        )
    };
    launch(&body("b16", 2), 64, &[], 4).unwrap();
    launch(&body("b8", 1), 64, &[], 4).unwrap();
    let overlap = launch(&body("b16", 0), 64, &[], 4).unwrap_err();
    assert!(matches!(*overlap.kind, FaultKind::Race { .. }));
}

#[test]
fn divergent_barriers() {
    let body = "mov.u32 %r1, %tid.x; setp.lt.u32 %q1, %r1, 7; @%q1 bar.sync 0;";
    assert!(matches!(fault(body, 32, 4), FaultKind::DivergentBarrier { arrived: 0x7f, missing: 0xffff_ff80 }));
    let body = "mov.u32 %r1, %tid.x; setp.lt.u32 %q1, %r1, 7; @%q1 bra a; bar.sync 0; bra b;
        a: bar.sync 0; b:";
    assert!(matches!(fault(body, 32, 4), FaultKind::DivergentBarrier { .. }));
    // Whole warps may take different barriers, and exited lanes do not count.
    let body = "mov.u32 %r1, %tid.x; setp.lt.u32 %q1, %r1, 32; @%q1 bra a; bar.sync 0; bra b;
        a: bar.sync 0; b: mov.u32 %r2, 1; st.global.b32 [%p0], %r2;";
    launch(body, 64, &[], 4).unwrap();
    let body = "mov.u32 %r1, %tid.x; setp.ge.u32 %q1, %r1, 7; @%q1 exit; bar.sync 0;
        st.global.b32 [%p0], %r1;";
    launch(body, 64, &[], 4).unwrap();
}

#[test]
fn deadlocks_and_endless_loops() {
    let body = "mov.u32 %r1, %tid.x; setp.lt.u32 %q1, %r1, 32; @%q1 bar.sync 1, 64;
        @!%q1 bar.sync 2, 64;";
    match fault(body, 64, 4) {
        FaultKind::Deadlock { waiting } => {
            assert!(waiting.contains("warp 0 at barrier 1") && waiting.contains("warp 1"));
        }
        other => panic!("{other}"),
    }
    let module = Module::parse(&module(1, "top: bra top;")).unwrap();
    let mut memory = Memory::new();
    let args = [Arg::Ptr(memory.alloc(4))];
    let launch = Launch { step_limit: 10_000, ..Launch::new("k", 1, 32, &args) };
    let fault = run(&module, launch, &mut memory).unwrap_err();
    assert_eq!(*fault.kind, FaultKind::StepLimit { limit: 10_000 });
    assert!(matches!(crate::fault("bar.sync 16;", 32, 4), FaultKind::BadBarrier { id: 16, .. }));
    assert!(matches!(crate::fault("trap;", 32, 4), FaultKind::Trap));
}

#[test]
fn read_only_and_freed_memory() {
    let module = Module::parse(&module(1, "mov.b32 %r1, 1; st.global.b32 [%p0], %r1;")).unwrap();
    let mut memory = Memory::new();
    let constant = memory.alloc_read_only(&[0; 4]);
    let launch =
        |p, memory: &mut Memory| run(&module, Launch::new("k", 1, 1, &[Arg::Ptr(p)]), memory).map_err(|f| *f.kind);
    assert!(matches!(launch(constant, &mut memory), Err(FaultKind::ReadOnly { .. })));
    let gone = memory.alloc(4);
    memory.free(gone);
    let kind = launch(gone, &mut memory).unwrap_err();
    assert!(kind.to_string().contains("freed"), "{kind}");
}

#[test]
fn impossible_launches() {
    let text = module(1, "mov.b32 %r1, 1;").replace(") {\n", ")\n.maxntid 64, 1, 1\n{\n");
    let module = Module::parse(&text).unwrap();
    let mut memory = Memory::new();
    let args = [Arg::Ptr(memory.alloc(4))];
    let good = Launch::new("k", 1, 32, &args);
    let mut refused = |launch: Launch| {
        let fault = run(&module, launch, &mut memory).unwrap_err();
        assert!(matches!(*fault.kind, FaultKind::InvalidLaunch { .. }), "{fault}");
    };
    refused(Launch { entry: "other", ..good });
    refused(Launch { block: [0, 1, 1], ..good });
    refused(Launch { block: [65, 1, 1], ..good });
    refused(Launch { block: [1024, 2, 1], ..good });
    refused(Launch { grid: [1, 0, 1], ..good });
    refused(Launch { args: &[], ..good });
    refused(Launch { args: &[Arg::U32(1)], ..good });
    refused(Launch { dynamic_shared: 300_000, ..good });
    run(&module, good, &mut memory).unwrap();
}

#[test]
fn warps_take_their_turns_in_the_order_that_the_launch_names() {
    // All write to one element of global memory, which no barrier orders: the last warp stays.
    let module = Module::parse(&module(1, "mov.u32 %r1, %tid.x; st.global.b32 [%p0+0], %r1;")).unwrap();
    for (warp_order, last) in [(WarpOrder::Ascending, 3), (WarpOrder::Descending, 0)] {
        let mut memory = Memory::new();
        let p = memory.alloc(4);
        let args = [Arg::Ptr(p)];
        run(&module, Launch { warp_order, ..Launch::new("k", 1, 128, &args) }, &mut memory).unwrap();
        let left = u32::from_le_bytes(memory.bytes(p)[..4].try_into().unwrap());
        assert_eq!(left / 32, last, "{warp_order:?}");
    }
}
