//! The loops around a kernel's compiled body: what an entry of the kernel table runs.

use std::marker::PhantomData;

use super::isa::Level;
use super::{Cpu, CpuTensor, scratch};
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
pub unsafe fn run_programs<L: Level>(args: *const LaunchArgs, first: i64, last: i64, program: impl Fn(Cpu<L>)) {
    // SAFETY: by the contract above.
    let launch = unsafe { *args };
    let n = launch.extents();
    let mut at = launch.coordinates(first);
    let mut p = first;
    while p < last {
        let pid = launch.program_ids(at);
        scratch::reset();
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
}

/// Runs the elements `first..last` of an elementwise kernel, as [`run_programs`].
///
/// # Safety
/// As for [`run_programs`].
#[inline(always)]
pub unsafe fn run_elements<L: Level>(args: *const LaunchArgs, first: i64, last: i64, elements: impl Fn(Cpu<L>)) {
    elements(Cpu { args, pid: [0; 3], run: (first, last), level: PhantomData });
}
