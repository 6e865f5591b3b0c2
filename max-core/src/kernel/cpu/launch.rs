//! The loops around a kernel's compiled body: what an instance function of the kernel table does.

use std::marker::PhantomData;

use super::level::{Level, stream_fence};
use super::{Cpu, kept};
use crate::kernel::table::LaunchArgs;

/// Runs the program instances `first..last`, counted row-major over the grid.
///
/// # Safety
/// As for [`RunFn`](crate::kernel::table::RunFn); the machine must have the level, and the caller its target features.
#[inline(always)]
pub unsafe fn run_programs<L: Level>(args: *const LaunchArgs, first: i64, last: i64, program: impl Fn(Cpu<L>)) {
    // SAFETY: by the contract above.
    let (grid, stream) = unsafe { ((*args).grid, (*args).stream) };
    let [_, n1, n2] = grid.map(
        #[inline(always)]
        |n| if n < 1 { 1 } else { n },
    );
    let mut pid = [first / n2 / n1, first / n2 % n1, first % n2];
    let mut p = first;
    while p < last {
        kept::begin();
        program(Cpu { args, pid, run: (0, 0), level: PhantomData });
        pid[2] += 1;
        if pid[2] == n2 {
            pid[2] = 0;
            pid[1] += 1;
            if pid[1] == n1 {
                pid[1] = 0;
                pid[0] += 1;
            }
        }
        p += 1;
    }
    if stream {
        stream_fence();
    }
}

/// Runs the elements `first..last` of an elementwise kernel. If it streams, a fence is the launcher's to make: one for
/// many tiles, since each waits until all that was written has reached memory.
///
/// # Safety
/// As for [`run_programs`].
#[inline(always)]
pub unsafe fn run_elements<L: Level>(args: *const LaunchArgs, first: i64, last: i64, elements: impl Fn(Cpu<L>)) {
    elements(Cpu { args, pid: [0; 3], run: (first, last), level: PhantomData });
}
