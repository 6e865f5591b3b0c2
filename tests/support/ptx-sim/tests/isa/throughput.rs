//! How fast the simulator is: printed, and held against a floor that any
//! machine passes in release mode.

use crate::{bytes_of, module};
use ptx_sim::{Arg, Launch, Memory, Module, run};
use std::time::{Duration, Instant};

/// The time that this thread has run for, where the system tells it: other work on the machine counts for nothing then.
fn own_time() -> Option<Duration> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split_whitespace().next()?.parse().ok().map(Duration::from_nanos)
}

/// Runs a program of two pointers over blocks of 256 threads; gives thread instructions a second.
fn rate(body: &str, blocks: usize) -> f64 {
    let module = Module::parse(&module(2, body)).unwrap_or_else(|e| panic!("{e}"));
    let mut memory = Memory::new();
    let input = memory.alloc_from(&bytes_of(&vec![1.0; blocks * 256]));
    let output = memory.alloc(blocks * 1024);
    let args = [Arg::Ptr(input), Arg::Ptr(output)];
    let launch = Launch::new("k", blocks as u32, 256, &args);
    let (start, own) = (Instant::now(), own_time());
    let stats = run(&module, launch, &mut memory).unwrap_or_else(|e| panic!("{e}"));
    let wall = start.elapsed();
    let took = match (own, own_time()) {
        (Some(before), Some(after)) => after.saturating_sub(before).min(wall),
        _ => wall,
    };
    let rate = stats.instructions as f64 / took.as_secs_f64();
    println!("{:.0} million thread instructions a second", rate / 1e6);
    rate
}

#[test]
fn thread_instructions_a_second() {
    let body = "
        .shared .align 4 .f32 tile[256];
        mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; mad.lo.u32 %r3, %r2, 256, %r1;
        mul.wide.u32 %rd1, %r3, 4; add.s64 %rd2, %p0, %rd1; add.s64 %rd3, %p1, %rd1;
        ld.global.f32 %f1, [%rd2];
        mov.u32 %r4, tile; mad.lo.u32 %r5, %r1, 4, %r4; xor.b32 %r6, %r5, 128;
        mov.u32 %r7, 0;
    loop:
        st.shared.f32 [%r5], %f1;
        bar.sync 0;
        ld.shared.f32 %f2, [%r6];
        fma.rn.f32 %f1, %f1, 0f3F000000, %f2;
        mul.rn.f32 %f1, %f1, 0f3F000000;
        add.rn.f32 %f1, %f1, 0f3F800000;
        bar.sync 0;
        add.u32 %r7, %r7, 1;
        setp.lt.u32 %q1, %r7, 64;
        @%q1 bra loop;
        st.global.f32 [%rd3], %f1;";
    let (blocks, floor) = if cfg!(debug_assertions) { (8, 1e6) } else { (256, 25e6) };
    let rate = rate(body, blocks);
    assert!(rate > floor, "{rate:.0} thread instructions a second");
}

/// Most accesses go to global memory, where races between blocks are looked for.
#[test]
fn thread_instructions_a_second_in_global_memory() {
    let body = "
        mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; mad.lo.u32 %r3, %r2, 256, %r1;
        mul.wide.u32 %rd1, %r3, 4; add.s64 %rd2, %p0, %rd1; add.s64 %rd3, %p1, %rd1;
        mov.f32 %f1, 0f00000000;
        mov.u32 %r7, 0;
    loop:
        ld.global.f32 %f2, [%rd2];
        fma.rn.f32 %f1, %f1, 0f3F000000, %f2;
        st.global.f32 [%rd3], %f1;
        ld.global.f32 %f3, [%rd3];
        add.rn.f32 %f1, %f1, %f3;
        add.u32 %r7, %r7, 1;
        setp.lt.u32 %q1, %r7, 64;
        @%q1 bra loop;";
    let (blocks, floor) = if cfg!(debug_assertions) { (8, 1e6) } else { (256, 20e6) };
    let rate = rate(body, blocks);
    assert!(rate > floor, "{rate:.0} thread instructions a second");
}

/// Addresses of a tile of rows that are padded and swapped, with the bounds of a matrix that ends within it: nothing but
/// integers, comparisons and selections.
#[test]
fn thread_instructions_a_second_of_integers() {
    let body = "
        mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; mad.lo.u32 %r3, %r2, 256, %r1;
        mov.u32 %r7, 0; mov.u32 %r8, 0; mov.u64 %rd4, 0;
    loop:
        shr.u32 %r9, %r3, 3;
        and.b32 %r10, %r3, 7;
        xor.b32 %r11, %r10, %r9;
        shl.b32 %r12, %r11, 4;
        mad.lo.s32 %r13, %r9, 144, %r12;
        setp.lt.s32 %q2, %r13, 20000;
        selp.b32 %r14, %r13, %r12, %q2;
        setp.ge.and.u32 %q3, %r9, 2, %q2;
        selp.b32 %r15, 1, 0, %q3;
        mul.wide.u32 %rd1, %r14, 4;
        add.s64 %rd2, %p0, %rd1;
        add.s64 %rd4, %rd4, %rd2;
        lop3.b32 %r8, %r8, %r15, %r14, 150;
        min.s32 %r16, %r14, 4095;
        add.s32 %r3, %r16, %r1;
        add.u32 %r7, %r7, 1;
        setp.lt.u32 %q1, %r7, 64;
        @%q1 bra loop;
        mad.lo.u32 %r3, %r2, 256, %r1;
        mul.wide.u32 %rd1, %r3, 4; add.s64 %rd3, %p1, %rd1;
        cvt.u32.u64 %r4, %rd4; add.u32 %r4, %r4, %r8; st.global.u32 [%rd3], %r4;";
    let (blocks, floor) = if cfg!(debug_assertions) { (8, 1e6) } else { (128, 40e6) };
    let rate = rate(body, blocks);
    assert!(rate > floor, "{rate:.0} thread instructions a second");
}

/// Sixteen bytes a thread from memory and back, as four floats, changed as pairs of halves.
#[test]
fn thread_instructions_a_second_of_vectors_and_halves() {
    let body = "
        .shared .align 16 .b8 tile[4096];
        mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; mad.lo.u32 %r3, %r2, 64, %r1;
        setp.ge.u32 %q1, %r1, 64; @%q1 bra end;
        mul.wide.u32 %rd1, %r3, 16; add.s64 %rd2, %p0, %rd1; add.s64 %rd3, %p1, %rd1;
        mov.u32 %r4, tile; mad.lo.u32 %r5, %r1, 16, %r4;
        mov.u32 %r7, 0;
    loop:
        ld.global.v4.f32 {%f1, %f2, %f3, %f4}, [%rd2];
        cvt.rn.f16x2.f32 %r8, %f2, %f1;
        cvt.rn.f16x2.f32 %r9, %f4, %f3;
        fma.rn.f16x2 %r10, %r8, %r9, %r8;
        mul.rn.f16x2 %r10, %r10, %r9;
        add.rn.f16x2 %r11, %r10, %r9;
        st.shared.v2.b32 [%r5], {%r10, %r11};
        ld.shared.v2.b32 {%r12, %r13}, [%r5];
        mov.b32 {%h1, %h2}, %r12;
        cvt.f32.f16 %f5, %h1;
        cvt.f32.f16 %f6, %h2;
        cvt.rn.bf16x2.f32 %r14, %f5, %f6;
        mov.b32 {%h3, %h4}, %r14;
        cvt.f32.bf16 %f5, %h3;
        cvt.rn.bf16.f32 %h5, %f5;
        cvt.f32.bf16 %f7, %h5;
        st.global.v4.f32 [%rd3], {%f5, %f6, %f7, %f4};
        add.u32 %r7, %r7, 1;
        setp.lt.u32 %q1, %r7, 64;
        @%q1 bra loop;
    end:";
    let (blocks, floor) = if cfg!(debug_assertions) { (8, 1e5) } else { (128, 10e6) };
    let rate = rate(body, blocks);
    assert!(rate > floor, "{rate:.0} thread instructions a second");
}

/// Tiles of halves to shared memory, and products of what `ldmatrix` takes from there.
#[test]
fn thread_instructions_a_second_of_matrices() {
    let body = "
        .shared .align 16 .b8 tile[4096];
        mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x;
        mul.wide.u32 %rd1, %r1, 4; add.s64 %rd2, %p0, %rd1;
        mov.u32 %r3, tile; mad.lo.u32 %r4, %r1, 16, %r3;
        and.b32 %r5, %r1, 31; shl.b32 %r5, %r5, 4; add.u32 %r5, %r5, %r3;
        mov.f32 %f1, 0f00000000; mov.f32 %f2, %f1; mov.f32 %f3, %f1; mov.f32 %f4, %f1;
        mov.u32 %r7, 0; mov.b32 %r8, 0x3c003c00;
        st.shared.v4.b32 [%r4], {%r8, %r8, %r8, %r8};
        bar.sync 0;
    loop:
        ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r10, %r11, %r12, %r13}, [%r5];
        ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%r14, %r15}, [%r5+512];
        mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f1, %f2, %f3, %f4}, {%r10, %r11, %r12, %r13}, {%r14, %r15},
            {%f1, %f2, %f3, %f4};
        mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f1, %f2, %f3, %f4}, {%r10, %r11, %r12, %r13}, {%r14, %r15},
            {%f1, %f2, %f3, %f4};
        add.u32 %r7, %r7, 1;
        setp.lt.u32 %q1, %r7, 64;
        @%q1 bra loop;
        mad.lo.u32 %r3, %r2, 256, %r1;
        mul.wide.u32 %rd1, %r3, 4; add.s64 %rd3, %p1, %rd1; st.global.f32 [%rd3], %f1;";
    let (blocks, floor) = if cfg!(debug_assertions) { (2, 1e5) } else { (128, 4e6) };
    let rate = rate(body, blocks);
    assert!(rate > floor, "{rate:.0} thread instructions a second");
}

/// Reductions over the lanes of a warp, of values that some lanes have no part of, from memory with gaps: between rows of
/// eight for a warp, and an asynchronous copy of such rows.
#[test]
fn thread_instructions_a_second_of_reductions() {
    let body = "
        .shared .align 16 .b8 tile[4608];
        mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x;
        and.b32 %r3, %r1, 7; shr.u32 %r4, %r1, 3; and.b32 %r9, %r1, 127;
        mul.wide.u32 %rd1, %r9, 4; shr.u32 %r10, %r9, 3; mul.wide.u32 %rd4, %r10, 16; add.s64 %rd1, %rd1, %rd4;
        add.s64 %rd2, %p0, %rd1; and.b64 %rd5, %rd2, -16;
        mov.u32 %r5, tile; mad.lo.u32 %r6, %r4, 144, %r5; mad.lo.u32 %r6, %r3, 16, %r6;
        mad.lo.u32 %r3, %r2, 256, %r1; mul.wide.u32 %rd1, %r3, 4; add.s64 %rd3, %p1, %rd1;
        mov.u32 %r7, 0; mov.f32 %f1, 0f00000000;
    loop:
        cp.async.cg.shared.global [%r6], [%rd5], 16;
        cp.async.commit_group;
        ld.global.f32 %f2, [%rd2];
        setp.lt.u32 %q2, %r9, 100; setp.gt.f32 %q3, %f2, 0f00000000; and.pred %q4, %q2, %q3;
        selp.f32 %f3, %f2, 0fFF800000, %q4;
        mov.b32 %r11, %f3;
        shfl.sync.bfly.b32 %r12, %r11, 16, 31, -1; mov.b32 %f4, %r12; max.f32 %f3, %f3, %f4; mov.b32 %r11, %f3;
        shfl.sync.bfly.b32 %r12, %r11, 8, 31, -1; mov.b32 %f4, %r12; max.f32 %f3, %f3, %f4; mov.b32 %r11, %f3;
        shfl.sync.down.b32 %r12|%q5, %r11, 4, 31, -1; mov.b32 %f4, %r12; add.rn.f32 %f3, %f3, %f4;
        sub.rn.f32 %f5, %f2, %f3;
        ex2.approx.f32 %f5, %f5;
        @%q4 add.rn.f32 %f1, %f1, %f5;
        @%q4 bra joins;
        mul.rn.f32 %f1, %f1, 0f3F000000;
    joins:
        cp.async.wait_group 0;
        ld.shared.v4.f32 {%f6, %f7, %f8, %f9}, [%r6];
        add.rn.f32 %f1, %f1, %f8;
        bar.sync 0;
        add.u32 %r7, %r7, 1;
        setp.lt.u32 %q1, %r7, 32;
        @%q1 bra loop;
        st.global.f32 [%rd3], %f1;";
    let (blocks, floor) = if cfg!(debug_assertions) { (8, 1e5) } else { (64, 10e6) };
    let rate = rate(body, blocks);
    assert!(rate > floor, "{rate:.0} thread instructions a second");
}
