//! Fusion of regions with a program kernel: elementwise steps whose result the kernel reads run before its programs,
//! those that go on with its result run after them, part by part.
//!
//! That is right where the kernel table tells which part of an operand a program touches, and the programs' parts make up
//! the whole operand.

use std::ops::Range;

use smallvec::SmallVec;

use super::super::partition::{FEW_PROGRAMS, MANY_ELEMENTS};
use super::super::schedule::{Home, Operand, Operands, Schedule, Step, Work};
use super::super::view::{View, product};
use super::elementwise_fusion::{dims, fusable, region, run_end};
use crate::graph::Dim;
use crate::graph::ops::kernel_facts;
use crate::kernel::BoundKernel;
use crate::kernel::abi::{Access, GridAxis, KernelKind, OperandDef, PartDim};
use crate::kernel::ir::covers_if_one;
use crate::plan::fusion::{Fused, Region, Side};

/// Parts along the last dimension are at least so long.
const MIN_RUN: u64 = 16;

/// The program kernel at the end of `run`, or at its start if it is one step, with the elementwise steps around it, and
/// the step after them; `None` if there is nothing to put together.
pub(in crate::compiler) fn fuse(
    schedule: &mut Schedule,
    steps: &[Option<Step>],
    run: Range<usize>,
    last_use: &[usize],
) -> Option<(Step, usize)> {
    let of = |index: usize| steps.get(index).and_then(Option::as_ref);
    let is_program = of(run.start).and_then(fusable).is_none();
    let at = if is_program { run.start } else { run.end };
    let finder = Finder { schedule, steps, program: program(schedule, of(at)?)?, step: of(at)?, at, last_use };
    let after = match of(at + 1).and_then(fusable) {
        Some(_) => at + 1..run_end(steps, at + 1),
        None => at + 1..at + 1,
    };
    let before = finder.before(run.start..at);
    if before.is_none() && !is_program {
        return None;
    }
    let after = (after.start + 1..=after.end).rev().find_map(|end| finder.after(run.start..at, after.start..end));
    if before.is_none() && after.is_none() {
        return None;
    }
    let end = after.as_ref().map_or(at + 1, |after| after.end);
    let (kernel, device, location) = (finder.program.clone(), finder.step.device, finder.step.location);
    let mut operands = finder.step.operands.clone();
    let mut side = |found: Found| {
        let first = operands.len();
        operands.extend(found.operands);
        let buffer = operands[found.operand].buffer;
        if found.region.copy.is_none() {
            schedule.buffers[buffer.index()].home = Home::Inside;
        }
        let element_size = schedule.buffers[buffer.index()].dtype.size_in_bytes();
        let Found { region, operand, .. } = found;
        Side { region, operand, element_size, operands: first..operands.len() }
    };
    let (before, after) = (before.map(&mut side), after.map(&mut side));
    let work = Work::Fused(Box::new(Fused { program: kernel, before, after }));
    Some((Step { work, operands, device, location, params: SmallVec::new() }, end))
}

/// The step's kernel, if regions can run beside it.
fn program<'a>(schedule: &Schedule, step: &'a Step) -> Option<&'a BoundKernel> {
    let Work::Kernel(kernel) = &step.work else { return None };
    let is_checked = schedule.check_indices && kernel_facts::indices(kernel.def().name.as_str()).is_some();
    if !step.params.is_empty() || is_checked {
        return None;
    }
    let changes = |i| step.access(i) == Access::InOut;
    (kernel.def().kind == KernelKind::Program && !(0..step.operands.len()).any(changes)).then_some(kernel)
}

/// A region that can run beside the kernel.
struct Found {
    region: Region,
    operands: Operands,
    /// The kernel's operand.
    operand: usize,
    /// The step after the last.
    end: usize,
}

/// Whether an operand has as many elements as there are with these sizes.
fn has_elements_of(operand: &Operand, dims: &[Dim]) -> bool {
    operand.view.dims[..] == *dims || product(&operand.view.dims) == product(dims)
}

struct Finder<'a> {
    schedule: &'a Schedule,
    steps: &'a [Option<Step>],
    program: &'a BoundKernel,
    step: &'a Step,
    /// The kernel's place among the steps.
    at: usize,
    last_use: &'a [usize],
}

impl Finder<'_> {
    /// The steps `range`, which end where the kernel begins, as a region before it.
    fn before(&self, range: Range<usize>) -> Option<Found> {
        let steps: SmallVec<[&Step; 8]> = self.steps[range.clone()].iter().flatten().collect();
        let is_written = |buffer| steps.iter().any(|step| results_of(step).any(|result| result.buffer == buffer));
        // The kernel reads one of the results, by one operand.
        let mut read = self.step.operands.iter().enumerate().filter(|(_, operand)| is_written(operand.buffer));
        let (operand, found) = read.next()?;
        let fits = read.next().is_none() && found.view.is_whole() && has_elements_of(found, dims(steps.first()?)?);
        // Operands of products are packed for several programs on a CPU; GPUs would compute for each program again.
        let pays = match self.program.multiplies() {
            true => !self.step.device.is_cpu() && self.is_read_once(operand),
            false => self.is_divided(operand),
        };
        if !fits || !pays {
            return None;
        }
        // What only the kernel reads is not read once it has run.
        self.found(&steps, operand, found, self.at + 1).map(|found| Found { end: range.end, ..found })
    }

    /// The steps `range`, which begin behind the kernel, as a region after it; `before` are the steps before it.
    fn after(&self, before: Range<usize>, range: Range<usize>) -> Option<Found> {
        let steps: SmallVec<[&Step; 8]> = self.steps[range.clone()].iter().flatten().collect();
        let reads = |buffer| steps.iter().any(|step| step.operands.iter().any(|operand| operand.buffer == buffer));
        let mut read = self
            .step
            .operands
            .iter()
            .enumerate()
            .filter(|(i, operand)| self.step.access(*i) == Access::Out && reads(operand.buffer));
        let (operand, found) = read.next()?;
        let in_order = |operand: &Operand| operand.buffer != found.buffer || operand.view.is_whole();
        // What runs before other programs is not there yet.
        let mut earlier = self.steps[before].iter().flatten();
        let fits = read.next().is_none()
            && found.view.is_whole()
            && has_elements_of(found, dims(steps.first()?)?)
            && steps.iter().flat_map(|step| &step.operands).all(in_order)
            && earlier.all(|step| results_of(step).all(|result| !reads(result.buffer)));
        if !fits || !self.is_divided(operand) {
            return None;
        }
        self.found(&steps, operand, found, range.end)
    }

    fn found(&self, steps: &[&Step], operand: usize, part: &Operand, end: usize) -> Option<Found> {
        let fits = |kernel: &BoundKernel| kernel.serial() == self.program.serial();
        if steps.iter().any(|step| step.device != self.step.device || !fusable(step).is_some_and(fits)) {
            return None;
        }
        let view = View::contiguous(dims(steps.first()?)?);
        let inside = Operand { buffer: part.buffer, view };
        let (region, mut operands) = region(self.schedule, steps, end, self.last_use, Some(&inside))?;
        if !self.step.device.is_cpu() {
            // One kernel is made of all: it reads and writes the region's operands where the program reads or writes its
            // own, and computes once what it may read many times.
            let is_written = self.step.access(operand) == Access::Out;
            if is_written && !self.is_written_as_a_whole(operand) || !is_written && region.written.contains(&true) {
                return None;
            }
            for operand in &mut operands {
                operand.view = operand.view.reshape(&part.view.dims)?;
            }
        }
        Some(Found { region, operands, operand, end })
    }

    fn operand(&self, index: usize) -> &OperandDef {
        &self.program.def().operands.as_slice()[index]
    }

    /// Whether all of a result is written, on a GPU: what is not would need zeros to go on with.
    fn is_written_as_a_whole(&self, operand: usize) -> bool {
        let is_one = |axis: &u32| self.step.operands[operand].view.dims[*axis as usize] == 1;
        let all = |kernel| covers_if_one(&kernel, operand as u32).is_some_and(|axes| axes.iter().all(is_one));
        !self.operand(operand).leaves_out() || self.program.recorded().is_ok_and(all)
    }

    /// Whether one program alone reads each part of an operand, on a GPU: whatever axis of the grid does not divide the operand
    /// has one program.
    fn is_read_once(&self, operand: usize) -> bool {
        let (def, parts) = (self.program.def(), self.operand(operand).part.as_slice());
        let blocks = |axis: &GridAxis| {
            let Some(block) = axis.block(def.gpu_tile.as_slice()) else { return axis.as_constant() };
            let of = usize::try_from(axis.operand).ok()?;
            let dim = self.step.operands[of].view.dims.get(axis.dim as usize)?.as_static()?;
            Some(u64::try_from(dim).ok()?.div_ceil(block))
        };
        let axes = def.grid.as_slice().iter().zip(0..);
        let mut others = axes.filter(|(_, axis)| !parts.iter().any(|part| part.axis == *axis));
        others.all(|(axis, _)| blocks(axis) == Some(1))
    }

    /// Whether the parts of programs make up the operand, and are worth the trouble.
    fn is_divided(&self, operand: usize) -> bool {
        let (parts, grid) = (self.operand(operand).part.as_slice(), self.program.def().grid.as_slice());
        let dims = |operand: usize| &self.step.operands[operand].view.dims;
        // The grid has a program for each block.
        let is_covered = |part: &PartDim| {
            let Some(axis) = grid.get(part.axis as usize) else { return false };
            let Ok(other) = usize::try_from(axis.operand) else { return false };
            let (own, other) = (dims(operand).get(part.dim as usize), dims(other).get(axis.dim as usize));
            (axis.tile, axis.size) == (part.tile, part.size) && own.is_some() && own == other
        };
        let is_short =
            |part: &PartDim| part.dim as usize + 1 == dims(operand).len() && part.tile < 0 && part.size < MIN_RUN;
        let all = (0..grid.len()).all(|axis| parts.iter().any(|part| part.axis as usize == axis));
        let is_covered = all && parts.len() == grid.len() && parts.iter().all(is_covered);
        if !self.step.device.is_cpu() {
            return is_covered;
        }
        is_covered && !parts.iter().any(is_short) && {
            let programs = parts.iter().map(|part| &dims(operand)[part.dim as usize]);
            let programs = product(&programs.cloned().collect::<SmallVec<[Dim; 4]>>());
            let few = programs.as_static().is_some_and(|n| n < FEW_PROGRAMS);
            !few || product(dims(operand)).as_static().is_some_and(|n| n < MANY_ELEMENTS)
        }
    }
}

/// What a step writes.
fn results_of(step: &Step) -> impl Iterator<Item = &Operand> {
    step.operands.iter().enumerate().filter(|(i, _)| step.access(*i) == Access::Out).map(|(_, operand)| operand)
}
