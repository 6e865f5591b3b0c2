//! How a [`Fused`] step runs: a program kernel with regions beside its programs.
//!
//! A region before a program computes what that reads, a region after it goes on with what it wrote, while both are in
//! the cache. What only the other one reads is never written to memory of its own.

use smallvec::SmallVec;

use super::fused_elementwise::Run;
use crate::kernel::{Constants, FusedSide, KernelError, Part, TensorArg};
use crate::plan::fusion::{Fused, Side};

impl Fused {
    /// Runs all of it.
    ///
    /// # Errors
    /// As [`BoundKernel::launch`].
    ///
    /// # Safety
    /// As for [`BoundKernel::launch_fused`] and [`Region::launch`]; the operands that the regions are about need no memory.
    pub unsafe fn launch(&self, tensors: &[TensorArg<'_>], constants: Option<&Constants>) -> Result<(), KernelError> {
        let before = self.before.as_ref().map(|side| side.prepare(tensors));
        let after = self.after.as_ref().map(|side| side.prepare(tensors));
        let (run_before, run_after);
        let mut sides: SmallVec<[FusedSide<'_>; 2]> = SmallVec::new();
        if let Some(side) = &before {
            run_before = |part: &Part<'_>| side.run(part);
            sides.push(side.beside(true, &run_before));
        }
        if let Some(side) = &after {
            run_after = |part: &Part<'_>| side.run(part);
            sides.push(side.beside(false, &run_after));
        }
        let arity = self.program.def().operands.as_slice().len();
        // SAFETY: by the contract above.
        unsafe { self.program.launch_fused(&tensors[..arity], &sides, constants) }
    }
}

impl Side {
    fn prepare(&self, tensors: &[TensorArg<'_>]) -> Prepared<'_> {
        Prepared { side: self, run: self.region.prepare(&tensors[self.operands.clone()]) }
    }
}

/// A side of one launch.
struct Prepared<'a> {
    side: &'a Side,
    run: Option<Run>,
}

impl Prepared<'_> {
    fn run(&self, part: &Part<'_>) {
        if let Some(run) = &self.run {
            // SAFETY: `Fused::launch` vouches for the operands; parts are those of the operand that the region writes or
            // reads, and programs have parts of their own.
            unsafe { self.side.region.run_part(run, part, self.side.element_size, self.is_inside()) };
        }
    }

    /// Whether the operand lies in memory of each thread's own: unless others read it, and it stays in the cache anyway.
    fn is_inside(&self) -> bool {
        self.side.region.copy.is_none() || self.stream()
    }

    fn stream(&self) -> bool {
        self.run.as_ref().is_some_and(|run| run.stream)
    }

    fn beside<'a>(&self, before: bool, run: &'a (dyn Fn(&Part<'_>) + Sync)) -> FusedSide<'a> {
        let (inside, stream) = (self.is_inside(), self.stream());
        FusedSide { operand: self.side.operand, inside, before, stream, run }
    }
}
