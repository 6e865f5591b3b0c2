//! Loops that read tiles ahead: while one step computes, the tiles of the next ones are on their way to shared memory.
//!
//! The tiles of a step stand in one of several stages. Before the loop the first steps' tiles are asked for, one group of
//! copies a step. Each step waits until its own group has arrived, passes one barrier, which also says that all threads
//! have left the stage that was read before, asks for the tiles of a later step there, and computes. Where the step's
//! products may still be under way in the next one, the stage that is written is the one before. On sm_90a the device copies
//! tiles itself where it can ([`boxes`](super::boxes)), and a warp of its own may ask for them ([`roles`](super::roles)).

use super::boxes::{BARRIER, Barriers};
use super::emitter::{Class, Fixed, Gen, Reg};
use super::hazard::{READ, WRITE};
use super::plan::{Ahead, Home};
use crate::kernel::ir::{Block, Inst, Value};

/// The registers of such a loop.
pub(super) struct Stages {
    /// The address of the first stage, and the one behind the last.
    pub first: Reg,
    pub end: Reg,
    /// The stage that is read.
    pub reads: Reg,
    /// The stage that is written.
    pub writes: Reg,
    /// Where the device copies, what says that it has.
    pub barriers: Option<Barriers>,
    /// The loop's index at the step whose tiles are asked for next.
    pub next: Reg,
}

impl Gen<'_> {
    pub fn loop_ahead(&mut self, bounds: [Value; 3], index: Value, body: &Block, ahead: &Ahead) {
        if self.plan.producer.as_ref().is_some_and(|producer| producer.index == index) {
            return self.consume(bounds, index, body, ahead);
        }
        let mut writes = self.no_touches();
        ahead.homes.iter().for_each(|&home| writes.touch_home(home, WRITE));
        if self.hazards.conflicts(&writes) {
            self.bar();
        }
        let [lo, hi, step] = bounds.map(|v| self.get(v));
        let shared = self.fixed(Fixed::SharedStart);
        let first = self.op2(Class::B32, "add.u32", shared, ahead.offset);
        let end = self.op2(Class::B32, "add.u32", first, ahead.stages * ahead.stage_bytes);
        let (reads, writes, next) = (self.copy(first), self.copy(first), self.copy(lo));
        let stages = Stages { first, end, reads, writes, barriers: self.barriers(ahead), next };
        let under_way = ahead.products_under_way();
        self.begin_ahead([hi, step], index, body, ahead, &stages);
        let i = self.copy(lo);
        let before = self.hazards.clone();
        let this = self.enter_loop(&[body]);
        let (head, done) = (self.label(), self.label());
        self.place_label(head);
        let over = self.op2(Class::Pred, "setp.ge.s64", i, hi);
        emit!(self, "@{over} bra {done};");
        emit!(self, "cp.async.wait_group {};", ahead.stages - 2 - under_way);
        self.fence_for_products();
        if let Some(barriers) = &stages.barriers {
            self.wait_for_boxes(barriers);
        }
        if !ahead.in_place.is_empty() {
            self.wait_for_products(under_way * ahead.in_place.len() as u32);
        }
        // Copies that were begun before those of the loop belong to its first group, and have arrived too.
        self.meet();
        self.hazards.clear();
        self.ask_ahead([hi, step], index, body, ahead, &stages);
        self.round_stage(ahead, stages.reads);
        self.set(index, i);
        self.with_tiles_ahead(ahead, stages.reads, |g| g.block(body));
        self.leave_loop(this);
        self.advance([stages.reads, stages.barriers.map_or(stages.reads, |b| b.reads)], &stages, ahead);
        emit!(self, "add.s64 {i}, {i}, {step};");
        emit!(self, "bra {head};");
        self.place_label(done);
        if !ahead.in_place.is_empty() {
            self.wait_for_products(0);
        }
        self.hazards.join(&before);
    }

    /// Asks for the tiles of the first steps.
    pub fn begin_ahead(&mut self, end: [Reg; 2], index: Value, body: &Block, ahead: &Ahead, stages: &Stages) {
        let left = self.immediate(Class::B32, ahead.stages - 1 - ahead.products_under_way());
        let fill = self.label();
        self.place_label(fill);
        self.ask_ahead(end, index, body, ahead, stages);
        emit!(self, "sub.u32 {left}, {left}, 1;");
        let again = self.op2(Class::Pred, "setp.ne.u32", left, 0);
        emit!(self, "@{again} bra {fill};");
    }

    /// Writes code for which the tiles of a step are in a stage.
    pub fn with_tiles_ahead(&mut self, ahead: &Ahead, stage: Reg, code: impl FnOnce(&mut Self)) {
        let plan = self.plan.clone();
        for &home in &ahead.homes {
            let (tile, offset) = (plan.homes[home].value, plan.homes[home].offset);
            let start = self.op2(Class::B32, "add.u32", stage, offset);
            self.ahead.insert(tile, start);
        }
        code(self);
        for &home in &ahead.homes {
            self.ahead.remove(&plan.homes[home].value);
            self.hazards.touch_home(home, READ);
        }
    }

    /// Computes where the tiles of a step are, whose index is set; gives their loads and homes.
    pub fn places_ahead<'b>(&mut self, body: &'b Block, ahead: &Ahead) -> Vec<(&'b Inst, Home)> {
        let plan = self.plan.clone();
        let mut tiles = Vec::new();
        for inst in ahead.insts.iter().map(|&i| &body.insts[i]) {
            let around = self.at(inst.loc);
            match inst.results.first().and_then(|&v| plan.home(v)) {
                Some(home) => tiles.push((inst, home)),
                None => self.inst(inst),
            }
            self.at(around);
        }
        tiles
    }

    /// Asks for the tiles of one more step, if there is one; a group of copies in any case. The loop ends at `hi`.
    pub fn ask_ahead(&mut self, [hi, step]: [Reg; 2], index: Value, body: &Block, ahead: &Ahead, stages: &Stages) {
        let skip = self.label();
        let over = self.op2(Class::Pred, "setp.ge.s64", stages.next, hi);
        emit!(self, "@{over} bra {skip};");
        self.set(index, stages.next);
        let tiles = self.places_ahead(body, ahead);
        let by_threads = |g: &mut Self| {
            for (inst, home) in &tiles {
                let start = g.op2(Class::B32, "add.u32", stages.writes, home.offset);
                g.copy_tile(inst, home.tile, start);
            }
        };
        match &stages.barriers {
            Some(barriers) => self.ask_for_boxes(barriers, &tiles, stages.writes, by_threads),
            None => by_threads(self),
        }
        self.place_label(skip);
        emit!(self, "cp.async.commit_group;");
        emit!(self, "add.s64 {0}, {0}, {step};", stages.next);
        self.advance([stages.writes, stages.barriers.map_or(stages.writes, |b| b.writes)], stages, ahead);
    }

    /// Moves on to the next stage, behind the last one to the first.
    fn advance(&mut self, [stage, barrier]: [Reg; 2], stages: &Stages, ahead: &Ahead) {
        emit!(self, "add.u32 {stage}, {stage}, {};", ahead.stage_bytes);
        let behind = self.op2(Class::Pred, "setp.eq.u32", stage, stages.end);
        emit!(self, "@{behind} mov.b32 {stage}, {};", stages.first);
        if let Some(barriers) = &stages.barriers {
            emit!(self, "add.u32 {barrier}, {barrier}, {BARRIER};");
            emit!(self, "@{behind} mov.b32 {barrier}, {};", barriers.first);
        }
    }
}
