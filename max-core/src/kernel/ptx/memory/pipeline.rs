//! Multistage pipelining: while one step of a loop computes, `cp.async` copies the tiles of later steps to shared
//! memory.
//!
//! It exists to hide the latency of global memory (CUTLASS's multistage mainloop).
//!
//! The tiles of a step are in one of several stages. The prologue issues the first stages, one commit group a step.
//! Each step waits for its own group and passes one barrier, which also says that all threads have left the stage read
//! before. It then issues a later stage there, and computes. Where a step's `wgmma`s may still be in flight in the next
//! one, the stage that is overwritten is the one before.
//!
//! On sm_90a the copies are TMA's where possible ([`tma`](super::tma)), and a producer warpgroup may issue them
//! ([`warp_specialization`](super::super::warp_specialization)).

use std::rc::Rc;

use super::super::analysis::hazards::{READ, WRITE};
use super::super::analysis::plan::{Pipeline, SmemTile};
use super::super::emitter::{Fixed, Gen};
use super::super::loops::Steps;
use super::super::machine::barriers::Effect;
use super::super::machine::{Class, Reg};
use super::tma::{BARRIER, Barriers};
use crate::kernel::ir::{Block, Inst, Value};

/// The registers of a pipelined loop.
pub(in crate::kernel::ptx) struct Stages {
    /// The address of the first stage, and the one behind the last.
    pub first: Reg,
    pub end: Reg,
    /// The stage that is read.
    pub reads: Reg,
    /// The stage that is written.
    pub writes: Reg,
    /// Where TMA copies, what says that it has.
    pub barriers: Option<Barriers>,
    /// The loop's index at the step whose tiles are issued next.
    pub next: Reg,
}

impl Gen<'_> {
    pub fn pipelined_loop(&mut self, bounds: [Value; 3], index: Value, body: &Block, pipeline: &Pipeline) {
        if self.plan.producer.as_ref().is_some_and(|producer| producer.index == index) {
            return self.consume(bounds, index, body, pipeline);
        }
        let mut writes = self.no_touches();
        pipeline.smem_tiles.iter().for_each(|&smem_tile| writes.touch_smem_tile(smem_tile, WRITE));
        if pipeline.barriers.is_some() {
            writes.use_mbarriers();
        }
        self.mark(Effect::BarrierIf(Rc::new(writes)));
        let (lo, steps) = self.steps(bounds);
        let shared = self.fixed(Fixed::SharedStart);
        let first = self.op2(Class::B32, "add.u32", shared, pipeline.offset);
        let end = self.op2(Class::B32, "add.u32", first, pipeline.stages * pipeline.stage_bytes);
        let (reads, writes, next) = (self.copy(first), self.copy(first), self.copy(lo));
        let stages = Stages { first, end, reads, writes, barriers: self.barriers(pipeline), next };
        let under_way = pipeline.wgmmas_in_flight();
        self.pipeline_prologue(steps, index, body, pipeline, &stages);
        self.begin_partials(&pipeline.partial);
        let i = self.copy(lo);
        let (head, done) = (self.label(), self.label());
        self.place_label(head);
        let over = self.op2(Class::Pred, "setp.ge.s64", i, steps.hi);
        emit!(self, @over, "bra", done);
        emit!(self, "cp.async.wait_group", pipeline.stages - 2 - under_way);
        self.fence_async_proxy();
        if let Some(barriers) = &stages.barriers {
            self.wait_for_tma(barriers);
        }
        if !pipeline.in_place.is_empty() {
            self.wait_for_wgmma(under_way * pipeline.in_place.len() as u32);
        }
        // Copies that were begun before those of the loop belong to its first group, and have arrived too.
        self.meet();
        self.mark(Effect::Met);
        self.issue_stage(steps, index, body, pipeline, &stages);
        self.round_stage(pipeline, stages.reads);
        self.set(index, i);
        self.with_stage(pipeline, stages.reads, |g| g.block(body));
        self.advance([stages.reads, stages.barriers.map_or(stages.reads, |b| b.reads)], &stages, pipeline);
        self.step(i, steps);
        emit!(self, "bra", head);
        self.place_label(done);
        if !pipeline.in_place.is_empty() {
            self.wait_for_wgmma(0);
        }
        self.end_partials(&pipeline.partial);
    }

    /// Issues the copies of the tiles of the first steps.
    pub fn pipeline_prologue(
        &mut self,
        steps: Steps,
        index: Value,
        body: &Block,
        pipeline: &Pipeline,
        stages: &Stages,
    ) {
        let left = self.immediate(Class::B32, pipeline.stages - 1 - pipeline.wgmmas_in_flight());
        let fill = self.label();
        self.place_label(fill);
        self.issue_stage(steps, index, body, pipeline, stages);
        emit!(self, "sub.u32", left, left, 1);
        let again = self.op2(Class::Pred, "setp.ne.u32", left, 0);
        emit!(self, @again, "bra", fill);
    }

    /// Writes code that reads the tiles of a step from a stage.
    pub fn with_stage(&mut self, pipeline: &Pipeline, stage: Reg, code: impl FnOnce(&mut Self)) {
        let plan = self.plan.clone();
        for &smem_tile in &pipeline.smem_tiles {
            let (tile, offset) = (plan.smem_tiles[smem_tile].value, plan.smem_tiles[smem_tile].offset);
            let start = self.op2(Class::B32, "add.u32", stage, offset);
            self.pipeline.insert(tile, start);
        }
        code(self);
        let mut read = self.no_touches();
        for &smem_tile in &pipeline.smem_tiles {
            self.pipeline.remove(&plan.smem_tiles[smem_tile].value);
            read.touch_smem_tile(smem_tile, READ);
        }
        self.touch(read);
    }

    /// Computes where the tiles of a step are, whose index is set; gives their loads and tiles in shared memory.
    pub fn tile_places<'b>(&mut self, body: &'b Block, pipeline: &Pipeline) -> Vec<(&'b Inst, SmemTile)> {
        let plan = self.plan.clone();
        let mut tiles = Vec::new();
        for inst in pipeline.insts.iter().map(|&i| &body.insts[i]) {
            let around = self.at(inst.loc);
            match inst.results.first().and_then(|&v| plan.smem_tile(v)) {
                Some(smem_tile) => tiles.push((inst, smem_tile)),
                None => self.inst(inst),
            }
            self.at(around);
        }
        tiles
    }

    /// Issues the copies of the tiles of one more step, if there is one; a group of copies in any case.
    pub fn issue_stage(&mut self, steps: Steps, index: Value, body: &Block, pipeline: &Pipeline, stages: &Stages) {
        let skip = self.label();
        let over = self.op2(Class::Pred, "setp.ge.s64", stages.next, steps.hi);
        emit!(self, @over, "bra", skip);
        self.set(index, stages.next);
        let tiles = self.tile_places(body, pipeline);
        let by_threads = |g: &mut Self| {
            for (inst, smem_tile) in &tiles {
                let start = g.op2(Class::B32, "add.u32", stages.writes, smem_tile.offset);
                g.copy_tile(inst, smem_tile.tile, start);
            }
        };
        match &stages.barriers {
            Some(barriers) => self.issue_tma(barriers, &tiles, stages.writes, by_threads),
            None => by_threads(self),
        }
        self.place_label(skip);
        emit!(self, "cp.async.commit_group");
        self.step(stages.next, steps);
        self.advance([stages.writes, stages.barriers.map_or(stages.writes, |b| b.writes)], stages, pipeline);
    }

    /// Moves on to the next stage, behind the last one to the first.
    fn advance(&mut self, [stage, barrier]: [Reg; 2], stages: &Stages, pipeline: &Pipeline) {
        emit!(self, "add.u32", stage, stage, pipeline.stage_bytes);
        let behind = self.op2(Class::Pred, "setp.eq.u32", stage, stages.end);
        emit!(self, @behind, "mov.b32", stage, stages.first);
        if let Some(barriers) = &stages.barriers {
            emit!(self, "add.u32", barrier, barrier, BARRIER);
            emit!(self, @behind, "mov.b32", barrier, barriers.first);
        }
    }
}
