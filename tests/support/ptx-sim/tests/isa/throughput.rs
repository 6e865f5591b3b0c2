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
