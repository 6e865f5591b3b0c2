//! [`Frame`]: the memory and the sizes of one execution, which become known stage by stage.

use smallvec::SmallVec;

use super::run::Run;
use crate::driver::allocator::Block;
use crate::driver::{Tensor, UninitTensor};
use crate::plan::error::{EngineError, MemoryOf};
use crate::plan::shape_classes::{ShapeClass, Slots};
use crate::plan::sizes::{Bound, Table};
use crate::plan::{Plan, PlannedArena, PlannedStep, aligned};

/// Where things lie.
pub(super) type Pointers = SmallVec<[*mut u8; 16]>;
/// The memory and the sizes of one execution.
pub(super) struct Frame<'a> {
    pub inputs: Pointers,
    pub results: Pointers,
    pub arenas: Pointers,
    /// Where the slots of each arena begin, and its bytes.
    pub slots: SmallVec<[Slots; 1]>,
    /// The table, if it is the same in all executions, or was computed before.
    fixed: Option<&'a [i64]>,
    /// What was computed before.
    class: Option<&'a ShapeClass>,
    computed: &'a mut Computed,
    /// The memory of results, once it is there.
    tensors: SmallVec<[Option<UninitTensor>; 4]>,
    /// The memory of arenas, once it is there.
    blocks: SmallVec<[Option<Block>; 1]>,
    /// How it is run.
    pub run: Run<'a>,
}

/// The sizes of one execution, which become known stage by stage. They have much room, and are not to be moved.
pub(super) struct Computed {
    /// Those of symbols.
    pub bound: Bound,
    table: Table,
}

impl Computed {
    /// What is known of an execution at first.
    #[inline(always)]
    pub fn new(plan: &Plan) -> Computed {
        Computed { bound: plan.sizes.unbound(), table: Table::new() }
    }
}

impl<'a> Frame<'a> {
    /// A frame without memory.
    #[inline(always)]
    pub fn new(plan: &'a Plan, class: Option<&'a ShapeClass>, run: Run<'a>, computed: &'a mut Computed) -> Frame<'a> {
        let arenas = plan.arenas.len();
        let fixed = class.map(|class| &*class.table).or_else(|| plan.sizes.fixed());
        if let Some(class) = class {
            computed.bound.clone_from(&class.bound);
        } else if fixed.is_none() {
            plan.sizes.start(&mut computed.table);
        }
        Frame {
            inputs: Pointers::new(),
            results: Pointers::new(),
            arenas: SmallVec::from_elem(std::ptr::null_mut(), arenas),
            slots: (0..arenas).map(|_| Slots::default()).collect(),
            fixed,
            class,
            computed,
            tensors: SmallVec::new(),
            blocks: (0..arenas).map(|_| None).collect(),
            run,
        }
    }

    /// The table of sizes.
    #[inline]
    pub fn table(&self) -> &[i64] {
        self.fixed.unwrap_or(&self.computed.table)
    }

    /// The sizes of symbols.
    pub fn bound(&self) -> &[i64] {
        &self.computed.bound
    }

    /// The parameters of a step that the table gives.
    pub fn params(&self, step: &PlannedStep) -> impl Iterator<Item = (u32, i64)> {
        step.params.iter().map(|(number, entry)| (*number, self.table()[*entry as usize]))
    }

    /// Computes the sizes of a stage. `read` are those that the step read with which it begins.
    pub fn compute(&mut self, plan: &Plan, stage: u32, read: &[i64]) -> Result<(), EngineError> {
        match self.fixed {
            Some(_) => Ok(()),
            None => plan.sizes.evaluate(stage, read, &mut self.computed.bound, &mut self.computed.table),
        }
    }

    /// Allocates the results of a stage, unless they lie in memory of somebody else's.
    pub fn allocate_results(&mut self, plan: &Plan, stage: u32) -> Result<(), EngineError> {
        for (index, result) in plan.results.iter().enumerate() {
            if stage == 0 {
                self.tensors.push(None);
                self.results.push(std::ptr::null_mut());
            }
            if result.stage != stage {
                continue;
            }
            let dims = &self.table()[result.dims.clone()];
            let shape: SmallVec<[usize; 8]> = dims.iter().map(|&dim| dim as usize).collect();
            let memory = UninitTensor::new(result.dtype, &shape, &result.device);
            let no_memory = |source| {
                let of = Some(MemoryOf::Result(result.op.clone()));
                plan.driver_error(self.run.call, &result.device, of, source)
            };
            let mut memory = memory.map_err(no_memory)?;
            self.results[index] = memory.as_mut_ptr();
            self.tensors[index] = Some(memory);
        }
        Ok(())
    }

    /// Allocates the arenas of a stage.
    pub fn allocate(&mut self, plan: &Plan, stage: u32) -> Result<(), EngineError> {
        for (index, arena) in plan.arenas.iter().enumerate().filter(|(_, arena)| arena.stage == stage) {
            let slots = match (self.class.and_then(|class| class.slots.get(index)), self.fixed) {
                (Some(slots), _) => slots.clone(),
                (None, Some(_)) => (SmallVec::new(), arena.bytes),
                (None, None) => place_slots(plan, arena, &self.computed.bound)?,
            };
            let block = arena.device.allocate(slots.1 as usize);
            let block = block.map_err(|source| plan.no_arena(self.run.call, index as u32, self.table(), source))?;
            self.arenas[index] = block.as_ptr();
            self.slots[index] = slots;
            self.blocks[index] = Some(block);
        }
        Ok(())
    }

    /// What follows from the shapes of the inputs, of a plan of one stage whose memory was allocated.
    pub fn class(&self) -> ShapeClass {
        let slots = self.slots.iter().cloned().collect();
        ShapeClass { bound: self.computed.bound.clone(), table: self.table().into(), slots }
    }

    /// The results, and the memory of arenas. All steps were run, or enqueued.
    pub fn finish(&mut self) -> (Vec<Tensor>, SmallVec<[Block; 1]>) {
        // SAFETY: every result is written whole by the steps: kernels write all of their results, or are given zeros. What is
        // captured is not read before it has run. A stage that a step did not reach has an error.
        let finished = |result: &mut Option<UninitTensor>| result.take().map(|result| unsafe { result.assume_init() });
        let mut results = Vec::with_capacity(self.tensors.len());
        results.extend(self.tensors.iter_mut().filter_map(finished));
        (results, self.blocks.iter_mut().filter_map(Option::take).collect())
    }
}

/// Where each slot of an arena begins, and its whole size.
fn place_slots(plan: &Plan, arena: &PlannedArena, bound: &[i64]) -> Result<Slots, EngineError> {
    let mut offsets = SmallVec::new();
    let mut end = Some(arena.bytes);
    let mut largest = 0;
    for slot in &arena.slots {
        let mut size = 0;
        for bytes in slot {
            let bytes = bytes.eval(bound);
            size = size.max(bytes.map_err(|source| EngineError::Size { model: plan.name.clone(), source })?);
        }
        largest = largest.max(size);
        offsets.push(end.unwrap_or(0));
        end = end.zip(aligned(size)).and_then(|(end, size)| end.checked_add(size));
    }
    match end {
        Some(end) => Ok((offsets, end)),
        None => Err(EngineError::ArenaSize { model: plan.name.clone(), largest: largest.into() }),
    }
}
