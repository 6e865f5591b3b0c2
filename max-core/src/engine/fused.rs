//! [`Fused`]: a program kernel with regions beside its programs.
//!
//! A region before a program computes what that reads, a region after it goes on with what it wrote, while both are in
//! the cache. What only the other one reads is never written to memory of its own.

use std::ops::Range;

use smallvec::SmallVec;

use super::region::{Region, Run};
use crate::driver::Device;
use crate::kernel::{Beside, BoundKernel, CodeOptions, Constants, GpuError, GpuKernel, Part, TensorArg, ir};

/// A region beside the programs of a kernel.
#[derive(Clone)]
pub(crate) struct Side {
    pub region: Region,
    /// The operand of the kernel that it writes or reads.
    pub operand: usize,
    /// The size of that operand's elements.
    pub element_size: usize,
    /// The region's operands among those of the step.
    pub operands: Range<usize>,
}

/// A program kernel with regions beside its programs. The step's first operands are the kernel's.
#[derive(Clone)]
pub(crate) struct Fused {
    pub program: BoundKernel,
    pub before: Option<Side>,
    pub after: Option<Side>,
}

impl Fused {
    /// The regions, and whether each runs before the program.
    pub fn sides(&self) -> impl Iterator<Item = (&Side, bool)> {
        self.before.iter().map(|side| (side, true)).chain(self.after.iter().map(|side| (side, false)))
    }

    /// All of it as one kernel, loaded on a GPU; the step's operands are views of equal dims wherever they stand for each
    /// other.
    pub fn on_gpu(&self, device: (&Device, CodeOptions)) -> Result<GpuKernel, GpuError> {
        let side = |side: &Side| -> Result<ir::Side, GpuError> {
            Ok(ir::Side { chain: side.region.chain()?, operand: side.operand as u32 })
        };
        let before = self.before.as_ref().map(side).transpose()?;
        let after = self.after.as_ref().map(side).transpose()?;
        let keep = self.after.as_ref().is_some_and(|side| side.region.copy.is_some());
        let fused = |program| ir::beside(program, before.clone(), after.clone(), keep);
        let params = [&before, &after].into_iter().flatten().flat_map(|side| side.chain.params());
        self.program.on_gpu_as(fused, self.after.as_ref().map(|side| side.operand), params, device)
    }

    /// Runs all of it.
    ///
    /// # Safety
    /// As for [`BoundKernel::launch_beside`] and [`Region::launch`]; the operands that the regions are about need no memory.
    pub unsafe fn launch(&self, tensors: &[TensorArg<'_>], constants: Option<&Constants>) {
        let before = self.before.as_ref().map(|side| side.prepare(tensors));
        let after = self.after.as_ref().map(|side| side.prepare(tensors));
        let (run_before, run_after);
        let mut sides: SmallVec<[Beside<'_>; 2]> = SmallVec::new();
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
        unsafe { self.program.launch_beside(&tensors[..arity], &sides, constants) };
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

    fn beside<'a>(&self, before: bool, run: &'a (dyn Fn(&Part<'_>) + Sync)) -> Beside<'a> {
        let (inside, stream) = (self.is_inside(), self.stream());
        Beside { operand: self.side.operand, inside, before, stream, run }
    }
}
