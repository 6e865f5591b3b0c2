//! Small whole kernels.

use crate::{bytes_of, module, words};
use ptx_sim::{Arg, Launch, Memory, Module, run};

#[test]
fn vector_add_with_a_tail() {
    let text = "
        .version 7.0
        .target sm_70
        .address_size 64
        .visible .entry add(
            .param .u64 a, .param .u64 b, .param .u64 c, .param .u32 n
        )
        {
            .reg .pred %p1;
            .reg .b32 %r<6>;
            .reg .f32 %f<4>;
            .reg .b64 %rd<11>;
            ld.param.u64 %rd1, [a];
            ld.param.u64 %rd2, [b];
            ld.param.u64 %rd3, [c];
            ld.param.u32 %r1, [n];
            mov.u32 %r2, %ctaid.x;
            mov.u32 %r3, %ntid.x;
            mov.u32 %r4, %tid.x;
            mad.lo.s32 %r5, %r2, %r3, %r4;
            setp.ge.u32 %p1, %r5, %r1;
            @%p1 bra $done;
            cvta.to.global.u64 %rd4, %rd1;
            mul.wide.u32 %rd5, %r5, 4;
            add.s64 %rd6, %rd4, %rd5;
            add.s64 %rd7, %rd2, %rd5;
            ld.global.nc.f32 %f1, [%rd6];
            ld.global.f32 %f2, [%rd7];
            add.rn.f32 %f3, %f1, %f2;
            add.s64 %rd8, %rd3, %rd5;
            st.global.f32 [%rd8], %f3;
        $done:
            ret;
        }";
    let module = Module::parse(text).unwrap();
    assert_eq!((module.version(), module.target()), ("7.0", "sm_70"));
    for n in [1usize, 31, 32, 33, 255, 256, 1000] {
        let a: Vec<f32> = (0..n).map(|i| i as f32).collect();
        let b: Vec<f32> = (0..n).map(|i| 0.5 * i as f32).collect();
        let mut memory = Memory::new();
        let (pa, pb) = (memory.alloc_from(&bytes_of(&a)), memory.alloc_from(&bytes_of(&b)));
        let pc = memory.alloc(4 * n);
        let args = [Arg::Ptr(pa), Arg::Ptr(pb), Arg::Ptr(pc), Arg::U32(n as u32)];
        let grid = n.div_ceil(128) as u32;
        let stats = run(&module, Launch::new("add", grid, 128, &args), &mut memory).unwrap();
        let expected: Vec<f32> = a.iter().zip(&b).map(|(a, b)| a + b).collect();
        assert_eq!(memory.bytes(pc), bytes_of(&expected));
        assert_eq!(memory.unwritten(pc), None);
        assert_eq!(stats.global_load_bytes, 8 * n as u64);
        assert_eq!(stats.global_store_bytes, 4 * n as u64);
        assert_eq!(stats.count("ld.global"), 2 * n as u64);
        assert_eq!(stats.excess_sectors, 0);
        assert_eq!(memory.traffic(pa).loaded, 4 * n as u64);
        assert_eq!(memory.traffic(pa).stored, 0);
    }
}

/// The sum of a block's 256 values by a tree in shared memory, then by
/// shuffles in the last warp.
const REDUCE: &str = "
    .shared .align 4 .f32 partial[256];
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, %ctaid.x;
    mad.lo.u32 %r3, %r2, 256, %r1;
    mul.wide.u32 %rd1, %r3, 4;
    add.s64 %rd2, %p0, %rd1;
    ld.global.f32 %f1, [%rd2];
    mov.u32 %r4, partial;
    shl.b32 %r5, %r1, 2;
    add.u32 %r6, %r4, %r5;
    st.shared.f32 [%r6], %f1;
    bar.sync 0;
    mov.u32 %r7, 128;
loop:
    setp.ge.u32 %q1, %r1, %r7;
    @%q1 bra skip;
    shl.b32 %r8, %r7, 2;
    add.u32 %r9, %r6, %r8;
    ld.shared.f32 %f2, [%r9];
    ld.shared.f32 %f1, [%r6];
    add.rn.f32 %f1, %f1, %f2;
    st.shared.f32 [%r6], %f1;
skip:
    bar.sync 0;
    shr.u32 %r7, %r7, 1;
    setp.ge.u32 %q2, %r7, 32;
    @%q2 bra loop;
    setp.ge.u32 %q3, %r1, 32;
    @%q3 bra done;
    ld.shared.f32 %f3, [%r6];
    mov.u32 %r10, 16;
tree:
    mov.b32 %r11, %f3;
    shfl.sync.down.b32 %r12, %r11, %r10, 31, -1;
    mov.b32 %f4, %r12;
    add.rn.f32 %f3, %f3, %f4;
    shr.u32 %r10, %r10, 1;
    setp.ne.u32 %q4, %r10, 0;
    @%q4 bra tree;
    setp.ne.u32 %q5, %r1, 0;
    @%q5 bra done;
    mul.wide.u32 %rd3, %r2, 4;
    add.s64 %rd4, %p1, %rd3;
    st.global.f32 [%rd4], %f3;
done:";

#[test]
fn block_reduction() {
    let module = Module::parse(&module(2, REDUCE)).unwrap_or_else(|e| panic!("{e}"));
    let values: Vec<f32> = (0..1024).map(|i| i as f32).collect();
    let mut memory = Memory::new();
    let input = memory.alloc_from(&bytes_of(&values));
    let output = memory.alloc(16);
    let args = [Arg::Ptr(input), Arg::Ptr(output)];
    let stats = run(&module, Launch::new("k", 4, 256, &args), &mut memory).unwrap_or_else(|e| panic!("{e}"));
    let sums: Vec<f32> = values.chunks(256).map(|c| c.iter().sum()).collect();
    assert_eq!(memory.bytes(output), bytes_of(&sums));
    assert_eq!(stats.bank_conflicts, 0);
    // One barrier before the tree, one after each of its steps: 128, 64, 32.
    assert_eq!(stats.barriers, 4 * 4);
}

#[test]
fn a_dropped_barrier_is_a_race() {
    for nth in 0..2 {
        let mut seen = 0;
        let lines: Vec<&str> = REDUCE
            .lines()
            .filter(|l| {
                let barrier = l.contains("bar.sync");
                seen += usize::from(barrier);
                !(barrier && seen == nth + 1)
            })
            .collect();
        let module = Module::parse(&module(2, &lines.join("\n"))).unwrap();
        let mut memory = Memory::new();
        let input = memory.alloc_from(&bytes_of(&[1.0; 256]));
        let output = memory.alloc(4);
        let args = [Arg::Ptr(input), Arg::Ptr(output)];
        let fault = run(&module, Launch::new("k", 1, 256, &args), &mut memory).unwrap_err();
        let text = fault.to_string();
        assert!(text.contains("race") || text.contains("not initialised"), "{text}");
    }
}

#[test]
fn divergent_paths_meet_again() {
    // Collatz steps: every lane leaves the loop at another time.
    let body = "
        mov.u32 %r1, %tid.x;
        add.u32 %r2, %r1, 1;
        mov.u32 %r0, 0;
    top:
        setp.eq.u32 %q1, %r2, 1;
        @%q1 bra out;
        and.b32 %r3, %r2, 1;
        setp.eq.u32 %q2, %r3, 0;
        @%q2 bra even;
        mad.lo.u32 %r2, %r2, 3, 1;
        bra next;
    even:
        shr.u32 %r2, %r2, 1;
    next:
        add.u32 %r0, %r0, 1;
        bra top;
    out:
        // All lanes are here, or this would wait for ever.
        activemask.b32 %r4;
        setp.ne.u32 %q3, %r4, -1;
        @%q3 trap;";
    let steps = |start: u32| {
        let (mut n, mut steps) = (start, 0);
        while n != 1 {
            n = if n % 2 == 0 { n / 2 } else { 3 * n + 1 };
            steps += 1;
        }
        steps
    };
    let expected: Vec<u32> = (1..=32).map(steps).collect();
    assert_eq!(crate::lanes(body), expected);
}

#[test]
fn three_dimensions() {
    let body = "
        mov.u32 %r1, %tid.x; mov.u32 %r2, %tid.y; mov.u32 %r3, %tid.z;
        mov.u32 %r4, %ntid.x; mov.u32 %r5, %ntid.y; mov.u32 %r6, %ntid.z;
        mad.lo.u32 %r7, %r3, %r5, %r2;
        mad.lo.u32 %r7, %r7, %r4, %r1;
        mov.u32 %r8, %ctaid.x; mov.u32 %r9, %ctaid.y; mov.u32 %r10, %ctaid.z;
        mov.u32 %r11, %nctaid.x; mov.u32 %r12, %nctaid.y;
        mad.lo.u32 %r13, %r10, %r12, %r9;
        mad.lo.u32 %r13, %r13, %r11, %r8;
        mul.lo.u32 %r14, %r4, %r5; mul.lo.u32 %r14, %r14, %r6;
        mad.lo.u32 %r15, %r13, %r14, %r7;
        mul.wide.u32 %rd1, %r15, 4;
        add.s64 %rd2, %p0, %rd1;
        st.global.u32 [%rd2], %r15;";
    let module = Module::parse(&module(1, body)).unwrap();
    let mut memory = Memory::new();
    let (grid, block) = ([3, 2, 2], [5, 3, 4]);
    let n = 12 * 60;
    let out = memory.alloc(4 * n as usize);
    let args = [Arg::Ptr(out)];
    let launch = Launch { grid, block, ..Launch::new("k", 1, 1, &args) };
    run(&module, launch, &mut memory).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(words(memory.bytes(out)), (0..n).collect::<Vec<u32>>());
}
