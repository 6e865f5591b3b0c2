//! How regions run: the branches of a `cond`, and the rounds of a loop.
//!
//! A region is a plan of its own. It reads its inputs and writes its results where they lie in the plan around it. The host
//! decides: of a predicate on a GPU it reads the value, and waits for that.

use smallvec::SmallVec;

use super::frame::{Computed, Frame, Pointers};
use super::run::{Clock, read};
use crate::engine::limits::Limits;
use crate::plan::error::EngineError;
use crate::plan::{Plan, PlannedStep, RegionPlan, Regions};

impl Regions {
    /// Runs one of two branches, or a loop to its end. `memory` is where each argument lies, and its bytes.
    ///
    /// # Errors
    /// Those of the regions; those of devices.
    ///
    /// # Safety
    /// The arguments are those that the plan has for these regions, in row-major order, and what is written is written by
    /// this call alone.
    pub(super) unsafe fn run(
        &self,
        memory: &[(*mut u8, usize)],
        frame: &Frame<'_>,
        (plan, step): (&Plan, &PlannedStep),
    ) -> Result<(), EngineError> {
        let failed = |source| plan.gpu_error(frame, step, source);
        let mut inputs: Pointers = memory[self.inputs..].iter().map(|(at, _)| *at).collect();
        let results =
            |first: usize| -> Pointers { memory[first..][..self.results].iter().map(|(at, _)| *at).collect() };
        let run = frame.run;
        let mut flag = 0_u8;
        let _inside = run.clock.map(Inside::enter);
        let [first, second] = &self.plans[..] else { return Ok(()) };
        if !self.is_loop {
            let at = self.written;
            // SAFETY: by the contract above: one `bool`.
            unsafe { read(&self.devices[at], memory[at].0, &raw mut flag, 1, run) }.map_err(failed)?;
            let branch = if flag != 0 { first } else { second };
            let mut computed = Computed::new(&branch.plan);
            let mut inner = branch.enter(frame, &mut computed)?;
            (inner.inputs, inner.results) = (inputs, results(0));
            return branch.plan.steps_in(&mut inner);
        }
        let (mut computed, mut of_body) = (Computed::new(&first.plan), Computed::new(&second.plan));
        let (mut condition, mut body) = (first.enter(frame, &mut computed)?, second.enter(frame, &mut of_body)?);
        condition.results = SmallVec::from_iter([&raw mut flag]);
        // Rounds write here and there in turns.
        let mut last: Option<usize> = None;
        loop {
            condition.inputs.clone_from(&inputs);
            first.plan.steps_in(&mut condition)?;
            if flag == 0 {
                break;
            }
            if let Some(reason) = run.limits.and_then(Limits::reached) {
                return Err(EngineError::Stopped { op: plan.op_of(step), reason });
            }
            let to = if last == Some(0) { self.results } else { 0 };
            body.inputs.clone_from(&inputs);
            body.results = results(to);
            second.plan.steps_in(&mut body)?;
            inputs[..self.results].copy_from_slice(&body.results);
            last = Some(to);
        }
        if last != Some(0) {
            for (i, from) in inputs[..self.results].iter().enumerate() {
                let (to, bytes) = memory[i];
                let backend = self.devices[i].backend();
                // SAFETY: by the contract above: the same type, in another place.
                unsafe { backend.copy(*from, to, bytes, run.stream) }.map_err(&failed)?;
            }
        }
        Ok(())
    }
}

/// Counts the regions that are being executed.
struct Inside<'a>(&'a Clock);

impl Inside<'_> {
    fn enter(clock: &Clock) -> Inside<'_> {
        clock.depth.set(clock.depth.get() + 1);
        Inside(clock)
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.depth.set(self.0.depth.get() - 1);
    }
}

impl RegionPlan {
    /// A frame with the memory of the region, and the sizes that are known around it.
    fn enter<'a>(&'a self, around: &Frame<'a>, computed: &'a mut Computed) -> Result<Frame<'a>, EngineError> {
        for (there, here) in &self.inherited {
            computed.bound[*here as usize] = around.bound()[*there as usize];
        }
        let mut frame = Frame::new(&self.plan, None, around.run, computed);
        frame.compute(&self.plan, 0, &[])?;
        frame.allocate(&self.plan, 0)?;
        Ok(frame)
    }
}
