//! How fast the simulator is: printed, and held against a floor that any
//! machine passes in release mode.

use crate::{bytes_of, module};
use ptx_sim::{Arg, Launch, Memory, Module, run};
use std::time::Instant;

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
    let module = Module::parse(&module(2, body)).unwrap_or_else(|e| panic!("{e}"));
    let blocks = if cfg!(debug_assertions) { 8 } else { 256 };
    let mut memory = Memory::new();
    let input = memory.alloc_from(&bytes_of(&vec![1.0; blocks * 256]));
    let output = memory.alloc(blocks * 1024);
    let args = [Arg::Ptr(input), Arg::Ptr(output)];
    let start = Instant::now();
    let stats =
        run(&module, Launch::new("k", blocks as u32, 256, &args), &mut memory).unwrap_or_else(|e| panic!("{e}"));
    let rate = stats.instructions as f64 / start.elapsed().as_secs_f64();
    println!("{:.0} million thread instructions a second", rate / 1e6);
    let floor = if cfg!(debug_assertions) { 1e6 } else { 25e6 };
    assert!(rate > floor, "{rate:.0} thread instructions a second");
}
