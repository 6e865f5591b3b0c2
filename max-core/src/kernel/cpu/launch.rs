//! The loops around a kernel's compiled body: what an instance function of the kernel table does.

use std::marker::PhantomData;

use super::level::{Level, stream_fence};
use super::{Cpu, kept};
use crate::kernel::table::LaunchArgs;

/// Runs the program instances `first..last`, counted over the grid in the launch's order.
///
/// # Safety
/// As for [`RunFn`](crate::kernel::table::RunFn); the machine must have the level, and the caller its target features.
#[inline(always)]
pub unsafe fn run_programs<L: Level>(args: *const LaunchArgs, first: i64, last: i64, program: impl Fn(Cpu<L>)) {
    // SAFETY: by the contract above.
    let (grid, order, stream) = unsafe { ((*args).grid, (*args).order, (*args).stream) };
    let axis = order.map(
        #[inline(always)]
        |a| if a < 3 { a as usize } else { 0 },
    );
    let n = axis.map(
        #[inline(always)]
        |a| if grid[a] < 1 { 1 } else { grid[a] },
    );
    // Coordinates along the axes in their order, slowest first.
    let mut at = [first / n[2] / n[1], first / n[2] % n[1], first % n[2]];
    let mut p = first;
    while p < last {
        let mut pid = [0; 3];
        // There and back along the fastest axis: threads that begin side by side need other tiles at first.
        let last = if at[1] % 2 == 1 { n[2] - 1 - at[2] } else { at[2] };
        (pid[axis[0]], pid[axis[1]], pid[axis[2]]) = (at[0], at[1], last);
        kept::begin();
        program(Cpu { args, pid, run: (0, 0), level: PhantomData });
        at[2] += 1;
        if at[2] == n[2] {
            at[2] = 0;
            at[1] += 1;
            if at[1] == n[1] {
                at[1] = 0;
                at[0] += 1;
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
