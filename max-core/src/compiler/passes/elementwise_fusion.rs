//! Fusion of elementwise steps: neighbours over the same dims become a region, which the engine runs tile by tile.
//!
//! What only kernels of the region read stays in scratch memory. A kernel that changes an operand in place, and one that
//! reads a value of the region in another order, begin a new region.

use smallvec::SmallVec;

use super::super::schedule::{BufferId, Home, Operand, Operands, Schedule, Step, Work};
use crate::graph::Dim;
use crate::kernel::abi::{Access, KernelKind};
use crate::kernel::ir::Place;
use crate::kernel::{BoundKernel, Cost};
use crate::plan::fusion::{MAX_OPERANDS, MAX_SCRATCH, Region, RegionKernel};
use crate::steps;

/// Kernels of one region, so that finding its end stays cheap.
const MAX_KERNELS: usize = 16;

/// The kernel of a step that can be part of a region.
pub(in crate::compiler) fn fusable(step: &Step) -> Option<&BoundKernel> {
    let Work::Kernel(kernel) = &step.work else { return None };
    // What is fused has its parameters from the start.
    if !step.params.is_empty() {
        return None;
    }
    let changes = |i| step.access(i) == Access::InOut;
    let elementwise = kernel.def().kind == KernelKind::Elementwise && !(0..step.operands.len()).any(changes);
    elementwise.then_some(kernel)
}

pub(in crate::compiler) fn dims(step: &Step) -> Option<&[Dim]> {
    step.operands.first().map(|operand| &operand.view.dims[..])
}

/// The end of the steps from `first` on that can run tile by tile together; at least `first + 1`.
pub(in crate::compiler) fn run_end(steps: &[Option<Step>], first: usize) -> usize {
    let of = |index: usize| steps.get(index).and_then(Option::as_ref);
    let mut last = first + 1;
    let Some(begin) = of(first).filter(|step| fusable(step).is_some()) else { return last };
    while let Some(next) = of(last)
        && last - first < MAX_KERNELS
        && fusable(next).is_some()
        && next.device == begin.device
        && dims(next) == dims(begin)
        && steps[first..last].iter().flatten().all(|step| reads_in_order(next, step))
    {
        last += 1;
    }
    last
}

/// Whether `next` reads what `step` wrote, if it does, element by element. Other parts of one buffer may be written.
fn reads_in_order(next: &Step, step: &Step) -> bool {
    steps::count(1);
    let written = step.operands.iter().enumerate().filter(|(i, _)| step.access(*i) == Access::Out);
    let mut results = written.map(|(_, operand)| operand);
    let in_order = |result: &Operand, (i, o): (usize, &Operand)| {
        o.buffer != result.buffer || o.view == result.view || next.access(i) == Access::Out
    };
    results.all(|result| next.operands.iter().enumerate().all(|operand| in_order(result, operand)))
}

/// The steps as one, if that is worth it and within the limits of a region. `end` is the step after them.
pub(in crate::compiler) fn alone(schedule: &Schedule, steps: &[&Step], end: usize, last_use: &[usize]) -> Option<Step> {
    let first = *steps.first()?;
    // On a host, a region gathers what does not lie in order.
    let is_odd = |operand: &Operand| !operand.view.is_contiguous() && operand.view.strides.iter().any(|s| *s != 0);
    let is_gathered = first.device.is_cpu() && fusable(first).is_some() && first.operands.iter().any(is_odd);
    // On a GPU, a constant is no operand of one.
    let has_constant = || {
        let read = first.operands.iter().enumerate().filter(|(i, _)| first.access(*i) == Access::In);
        !first.device.is_cpu() && fusable(first).is_some() && { read }.any(|(_, o)| schedule.element(o).is_some())
    };
    if steps.len() == 1 && !is_gathered && !has_constant() {
        return None;
    }
    let (region, operands) = region(schedule, steps, end, last_use, None)?;
    Some(Step {
        work: Work::Region(region),
        operands,
        device: first.device,
        location: first.location,
        params: SmallVec::new(),
    })
}

/// A region of the steps, and its operands in memory, if it is within the limits. `end` is the step after them; `part` is
/// what the kernel reads or writes beside whose programs it runs.
pub(in crate::compiler) fn region(
    schedule: &Schedule,
    steps: &[&Step],
    end: usize,
    last_use: &[usize],
    part: Option<&Operand>,
) -> Option<(Region, Operands)> {
    let inside = part.map(|part| part.buffer);
    let mut scratch = Scratch { schedule, slots: SmallVec::new() };
    let mut memory = InMemory::default();
    let mut kernels = Vec::with_capacity(steps.len());
    for (index, step) in steps.iter().enumerate() {
        steps::count(steps.len());
        let later = |buffer: BufferId| steps[index + 1..].iter().any(|s| s.operands.iter().any(|o| o.buffer == buffer));
        let mut places: SmallVec<[Place; 4]> = SmallVec::new();
        let mut may_stream = true;
        // Operands are found before results take their places.
        for (i, operand) in step.operands.iter().enumerate().filter(|(i, _)| step.access(*i) != Access::Out) {
            places.push(match scratch.find(operand.buffer) {
                _ if inside == Some(operand.buffer) => Place::Program,
                Some(slot) => Place::Scratch(slot),
                None => match schedule.element(operand) {
                    Some(bits) => Place::Constant(bits),
                    None => Place::Memory(memory.find(operand, false)?),
                },
            });
            debug_assert_eq!(places.len(), i + 1, "results stand behind operands");
        }
        let mut taken: SmallVec<[usize; 2]> = SmallVec::new();
        for operand in step.operands.iter().enumerate().filter(|(i, _)| step.access(*i) == Access::Out).map(|(_, o)| o)
        {
            let buffer = operand.buffer;
            let is_inside = schedule.buffers[buffer.index()].home == Home::Arena && last_use[buffer.index()] < end;
            places.push(if inside == Some(buffer) {
                may_stream = false;
                Place::Program
            } else if is_inside {
                let slot = scratch.claim(buffer, step, &taken, &later)?;
                taken.push(slot);
                may_stream = false;
                Place::Scratch(slot)
            } else {
                may_stream &= !later(buffer);
                Place::Memory(memory.find(operand, true)?)
            });
        }
        kernels.push(RegionKernel { kernel: fusable(step)?.clone(), places, may_stream });
    }
    let copy = match part.filter(|part| {
        schedule.buffers[part.buffer.index()].home != Home::Arena || last_use[part.buffer.index()] >= end
    }) {
        Some(part) => Some(memory.find(part, true)?),
        None => None,
    };
    let InMemory { operands, written } = memory;
    // An operand says how many elements there are.
    operands.first()?;
    let dtypes = operands.iter().map(|operand| schedule.buffers[operand.buffer.index()].dtype).collect();
    Some((Region { kernels, dtypes, written, copy, cost: Cost::default() }, operands))
}

/// The operands of a region that lie in memory.
#[derive(Default)]
struct InMemory {
    operands: Operands,
    written: SmallVec<[bool; 8]>,
}

impl InMemory {
    /// The position of an operand among them; `None` if there are too many.
    fn find(&mut self, operand: &Operand, written: bool) -> Option<usize> {
        let known = self.operands.iter().position(|o| o.buffer == operand.buffer && o.view == operand.view);
        let index = known.unwrap_or(self.operands.len());
        if known.is_none() {
            self.operands.push(operand.clone());
            self.written.push(written);
        }
        (index < MAX_OPERANDS).then_some(index)
    }
}

/// Which values of a region lie in its scratch memory.
struct Scratch<'a> {
    schedule: &'a Schedule,
    slots: SmallVec<[BufferId; MAX_SCRATCH]>,
}

impl Scratch<'_> {
    fn find(&self, buffer: BufferId) -> Option<usize> {
        self.slots.iter().position(|holder| *holder == buffer)
    }

    /// A slot for a result of `step`: one whose value is dead, or dies here and has elements of the same size.
    fn claim(
        &mut self,
        buffer: BufferId,
        step: &Step,
        taken: &[usize],
        later: &impl Fn(BufferId) -> bool,
    ) -> Option<usize> {
        let size = |id: BufferId| self.schedule.buffers[id.index()].dtype.size_in_bytes();
        let is_read = |id: BufferId| step.operands.iter().any(|operand| operand.buffer == id);
        let fits = |holder: BufferId| !later(holder) && (!is_read(holder) || size(holder) == size(buffer));
        let free = (0..self.slots.len()).find(|slot| !taken.contains(slot) && fits(self.slots[*slot]));
        match free {
            Some(slot) => {
                self.slots[slot] = buffer;
                Some(slot)
            }
            None => {
                self.slots.push(buffer);
                (self.slots.len() <= MAX_SCRATCH).then_some(self.slots.len() - 1)
            }
        }
    }
}
