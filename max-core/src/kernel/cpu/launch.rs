//! The loops around a kernel's compiled body: what an entry of the kernel table runs.

use std::marker::PhantomData;

use super::isa::Level;
use super::scratch::Arena;
use super::{Cpu, CpuTensor};
use crate::kernel::abi::LaunchArgs;
use crate::kernel::lang::Any;

impl<L: Level> Cpu<L> {
    /// The tensor of index `operand`.
    ///
    /// # Safety
    /// The kernel that runs has an operand of that index, dtype and rank.
    #[inline(always)]
    pub(super) unsafe fn tensor<T: Any, const R: usize>(self, operand: u32) -> CpuTensor<T, R> {
        // SAFETY: whoever runs an instance vouches for its arguments (see `RunFn`), and the caller for `operand`, `T`
        // and `R`.
        unsafe { CpuTensor::new(&*(*self.args).tensors.add(operand as usize), (*self.args).stream) }
    }
}

/// Runs the program instances `first..last`, counted over the grid in the launch's order. If they stream, a fence is
/// the launcher's to make: one for many, since each waits until all that was written has reached memory.
///
/// # Safety
/// As for [`RunFn`](crate::kernel::abi::RunFn); the machine must have the level, and the caller its target features.
#[inline(always)]
pub unsafe fn run_programs<L: Level, P: Fn(Cpu<L>)>(
    args: *const LaunchArgs,
    first: i64,
    last: i64,
    prepare: impl FnOnce(Cpu<L>) -> P,
) {
    // SAFETY: by the contract above.
    let launch = unsafe { *args };
    let program = prepare(Cpu { args, pid: [0; 3], run: (0, 0), level: PhantomData });
    let arena = Arena::of_thread();
    let mut p = first;
    while p < last {
        // Those up to the end of the fastest axis.
        let (mut pid, step, left) = launch.run_from(p);
        let end = if left < last - p { p + left } else { last };
        while p < end {
            arena.reset();
            program(Cpu { args, pid, run: (0, 0), level: PhantomData });
            // Not by the axis alone, which is known at run time.
            pid = [pid[0] + step[0], pid[1] + step[1], pid[2] + step[2]];
            p += 1;
        }
    }
}

/// Runs the elements `first..last` of an elementwise kernel, as [`run_programs`].
///
/// # Safety
/// As for [`run_programs`].
#[inline(always)]
pub unsafe fn run_elements<L: Level>(args: *const LaunchArgs, first: i64, last: i64, elements: impl Fn(Cpu<L>)) {
    elements(Cpu { args, pid: [0; 3], run: (first, last), level: PhantomData });
}
