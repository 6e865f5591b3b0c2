//! Warp specialization: a producer warpgroup issues TMA copies of a loop's tiles, two consumer warpgroups compute.
//!
//! It exists so that copies run ahead of `wgmma` without a barrier of the block (CUTLASS's warp-specialized mainloop).
//!
//! Each stage has two `mbarrier`s: full, when the tiles of a step have arrived, and empty, when the `wgmma`s of all
//! warps have read them. One thread of the producer waits for an empty stage and issues the next copies. The 256
//! consumer threads wait for a full one. The ring of stages continues over all runs of the loop, so that the producer
//! is also ahead while a program stores its results.
//!
//! * Consumers compute everything else, and meet at a named barrier of their own.
//! * The producer computes again what the tiles' coordinates depend on, so these must not depend on memory.
//! * Tiles that are rounded in place ([`tf32`](super::mma::tf32)) need one barrier of the consumers a step.
//! * The producer gives most of its registers to the consumers (`setmaxnreg`).
//! * Where a launch has no tensor maps, the producer exits, and the consumers copy.

use std::collections::{HashMap, HashSet};

use super::analysis::plan::{Pipeline, is_pure};
use super::emitter::{Fixed, Gen};
use super::machine::{Class, Label, Operand, Reg, mem_at};
use super::memory::pipeline::Stages;
use super::memory::tma::BARRIER;
use super::{BLOCK_SIZE, WARPS};
use crate::kernel::ir::{Block, Inst, Kernel, Op, Value};

/// Threads of the producer warpgroup.
pub(super) const PRODUCER_THREADS: u32 = 128;
/// Registers of a multiprocessor.
const REGISTERS: u32 = 65536;
/// Registers of a thread of the producer's warpgroup.
const PRODUCER_REGISTERS: u32 = 40;
/// The most accumulators of a thread with which two blocks are resident on a multiprocessor.
const TWO_BLOCKS_ACCUMULATORS: u32 = 32;
/// Bytes that the stages of all blocks on a multiprocessor take: some remain for what else these do.
const STAGES_BYTES: u32 = 192 << 10;

/// What the producer does.
#[derive(Clone, Debug)]
pub(super) struct Producer {
    /// The index of the loop whose tiles it requests, and those of the loops around that.
    pub index: Value,
    around: HashSet<Value>,
    /// What it must compute for that, outside of the loop.
    needed: HashSet<Value>,
    /// Blocks that are meant to be on a multiprocessor.
    pub blocks: u32,
}

impl Producer {
    /// What a producer for the loop with that index does, if one can know where the loop's tiles are. A thread has so
    /// many accumulators.
    pub fn find(kernel: &Kernel, index: Value, pipeline: &Pipeline, accumulators: u32) -> Option<Producer> {
        let mut path = Vec::new();
        find_loop(&kernel.body, index, &mut path).then_some(())?;
        let mut known = HashSet::new();
        let mut defs: HashMap<Value, &Inst> = HashMap::new();
        let mut wanted: Vec<Value> = Vec::new();
        kernel.body.insts.iter().for_each(|inst| add_makers(inst, inst, &mut defs));
        for inst in &path {
            let Op::For { lo, hi, step, index, body } = &inst.op else { continue };
            known.insert(*index);
            wanted.extend([*lo, *hi, *step]);
            body.insts.iter().for_each(|inst| add_makers(inst, inst, &mut defs));
        }
        let Op::For { body, .. } = &path.last()?.op else { return None };
        let loads = |inst: &&Inst| matches!(inst.op, Op::TileLoad { .. });
        pipeline.insts.iter().map(|&i| &body.insts[i]).filter(loads).for_each(|inst| wanted.extend(inst.op.uses()));
        let mut needed = HashSet::new();
        while let Some(value) = wanted.pop() {
            if known.contains(&value) || needed.contains(&value) {
                continue;
            }
            let inst = defs.get(&value)?;
            needed.extend(inst.results.iter().copied().chain([value]));
            can_repeat(inst).then_some(())?;
            add_uses(inst, &mut wanted);
        }
        let around = known.into_iter().filter(|i| *i != index).collect();
        Some(Producer { index, around, needed, blocks: if accumulators <= TWO_BLOCKS_ACCUMULATORS { 2 } else { 1 } })
    }

    /// Bytes that the loop's stages may take.
    pub fn stages_bytes(&self) -> u32 {
        STAGES_BYTES / self.blocks
    }

    /// Registers of a consumer's thread: what it has at the start, and its part of what the producer gives.
    fn consumer_registers(&self) -> u32 {
        let at_start = (REGISTERS / (BLOCK_SIZE + PRODUCER_THREADS) / self.blocks) & !7;
        at_start + (((at_start - PRODUCER_REGISTERS) * PRODUCER_THREADS / BLOCK_SIZE) & !7)
    }
}

/// Finds the loop with that index, inside of nothing but loops.
fn find_loop<'k>(block: &'k Block, wanted: Value, path: &mut Vec<&'k Inst>) -> bool {
    block.insts.iter().any(|inst| {
        let Op::For { index, body, .. } = &inst.op else { return false };
        path.push(inst);
        let found = *index == wanted || find_loop(body, wanted, path);
        if !found {
            path.pop();
        }
        found
    })
}

/// Notes which instruction makes what: `outer` also what stands inside of it.
fn add_makers<'k>(outer: &'k Inst, inst: &'k Inst, defs: &mut HashMap<Value, &'k Inst>) {
    defs.extend(inst.results.iter().map(|&v| (v, outer)));
    if let Op::If { then, otherwise, .. } = &inst.op {
        [then, otherwise].into_iter().flat_map(|b| &b.insts).for_each(|inner| add_makers(outer, inner, defs));
    }
}

/// What an instruction takes, also inside of it.
fn add_uses(inst: &Inst, uses: &mut Vec<Value>) {
    uses.extend(inst.op.uses());
    if let Op::If { then, otherwise, .. } = &inst.op {
        for block in [then, otherwise] {
            block.insts.iter().for_each(|inner| add_uses(inner, uses));
            uses.extend(&block.yields);
        }
    }
}

/// Whether the producer can execute an instruction too.
fn can_repeat(inst: &Inst) -> bool {
    if let Op::If { then, otherwise, .. } = &inst.op {
        return [then, otherwise].into_iter().flat_map(|b| &b.insts).all(can_repeat);
    }
    !matches!(inst.op, Op::Get(_)) && is_pure(&inst.op, &HashSet::new())
}

/// Where a producer or consumer stands in the ring of stages.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ring {
    /// Whether TMA copies.
    mapped: Reg,
    /// The first stage, the end of the last, and the first barrier; those for full stages come before those for empty
    /// ones.
    first: Reg,
    end: Reg,
    barriers: Reg,
    /// The stage that comes next, its barrier, and the parity of the phase that is waited for there.
    stage: Reg,
    barrier: Reg,
    phase: Reg,
    /// The first lane of a warp, if TMA copies.
    releases: Reg,
}

impl Gen<'_> {
    /// A barrier for all threads that compute.
    pub fn meet(&mut self) {
        let barrier = self.barrier();
        self.emit("bar.sync", None, barrier.operands);
    }

    /// The program of a warp-specialized kernel.
    pub fn warp_specialized_program(&mut self) {
        let plan = self.plan.clone();
        let Some(producer) = &plan.producer else { return };
        let Some((pipeline, offset)) = plan.pipeline(producer.index).and_then(|a| Some((a, a.barriers?))) else {
            return;
        };
        let stages = pipeline.stages as usize;
        // Each warp that computes says once a step that it has read a stage.
        let arrivals: Vec<u32> = [vec![1; stages], vec![WARPS; stages]].concat();
        let barriers = self.fixed_barriers(offset, &arrivals);
        let group = self.fixed(Fixed::Warpgroup);
        let mapped = self.fixed(Fixed::Mapped);
        // All see the barriers.
        emit!(self, "bar.sync", 0);
        let produces = self.label();
        let is_producer = self.op2(Class::Pred, "setp.ge.u32", group, BLOCK_SIZE / PRODUCER_THREADS);
        emit!(self, @is_producer, "bra", produces);
        emit!(self, "setmaxnreg.inc.sync.aligned.u32", producer.consumer_registers());
        self.ring = Some(self.new_ring(pipeline, barriers, mapped, 0));
        self.instances(|g| g.instance());
        emit!(self, "ret");

        self.place_label(produces);
        emit!(self, "setmaxnreg.dec.sync.aligned.u32", PRODUCER_REGISTERS);
        let thread = self.fixed(Fixed::Thread);
        let idle = self.op2(Class::Pred, "setp.ne.u32", thread, BLOCK_SIZE);
        emit!(self, @idle, "ret");
        emit!(self, @!mapped, "ret");
        // What has not been read yet counts as empty: the phase before the first one.
        let ring = self.new_ring(pipeline, barriers, mapped, 1);
        let kernel = self.kernel;
        self.instances(|g| g.produce(&kernel.body, producer, pipeline, ring));
    }

    fn new_ring(&mut self, pipeline: &Pipeline, barriers: Reg, mapped: Reg, phase: u32) -> Ring {
        let shared = self.fixed(Fixed::SharedStart);
        let first = self.op2(Class::B32, "add.u32", shared, pipeline.offset);
        let end = self.op2(Class::B32, "add.u32", first, pipeline.stages * pipeline.stage_bytes);
        let (stage, barrier) = (self.copy(first), self.copy(barriers));
        let phase = self.immediate(Class::B32, phase);
        let lane = self.fixed(Fixed::Lane);
        let is_first = self.op2(Class::Pred, "setp.eq.u32", lane, 0);
        let releases = self.op2(Class::Pred, "and.pred", is_first, mapped);
        Ring { mapped, first, end, barriers, stage, barrier, phase, releases }
    }

    /// Waits at the barrier so many bytes behind that of the next full stage.
    fn wait_in_ring(&mut self, ring: Ring, behind: u32) {
        let again = self.label();
        self.place_label(again);
        let over = self.reg(Class::Pred);
        let (barrier, phase) = (ring.barrier, ring.phase);
        emit!(self, "mbarrier.try_wait.parity.shared::cta.b64", over, mem_at(barrier, behind), phase);
        emit!(self, @!over, "bra", again);
    }

    /// Moves on to the next stage; behind the last one to the first, in its next phase.
    fn advance_ring(&mut self, ring: Ring, pipeline: &Pipeline) {
        let Ring { stage, barrier, phase, .. } = ring;
        emit!(self, "add.u32", stage, stage, pipeline.stage_bytes);
        emit!(self, "add.u32", barrier, barrier, BARRIER);
        let behind = self.op2(Class::Pred, "setp.eq.u32", stage, ring.end);
        emit!(self, @behind, "mov.b32", stage, ring.first);
        emit!(self, @behind, "mov.b32", barrier, ring.barriers);
        emit!(self, @behind, "xor.b32", phase, phase, 1);
    }

    /// What the producer executes of a block.
    fn produce(&mut self, block: &Block, producer: &Producer, pipeline: &Pipeline, ring: Ring) {
        for inst in &block.insts {
            let around = self.at(inst.loc);
            if let Op::For { lo, hi, step, index, body } = &inst.op
                && (*index == producer.index || producer.around.contains(index))
            {
                let (lo, steps) = self.steps([*lo, *hi, *step]);
                let i = self.copy(lo);
                let (head, done) = (self.label(), self.label());
                self.place_label(head);
                let over = self.op2(Class::Pred, "setp.ge.s64", i, steps.hi);
                emit!(self, @over, "bra", done);
                self.set(*index, i);
                if *index == producer.index {
                    let tiles = self.tile_places(body, pipeline);
                    self.wait_in_ring(ring, BARRIER * pipeline.stages);
                    self.tma_copy(ring.barrier, &tiles, ring.stage);
                    self.advance_ring(ring, pipeline);
                } else {
                    self.produce(body, producer, pipeline, ring);
                }
                self.step(i, steps);
                emit!(self, "bra", head);
                self.place_label(done);
            } else if inst.results.iter().any(|v| producer.needed.contains(v)) {
                self.inst(inst);
            }
            self.at(around);
        }
    }

    /// The loop as consumers execute it.
    pub fn consume(&mut self, bounds: [Value; 3], index: Value, body: &Block, pipeline: &Pipeline) {
        let Some(ring) = self.ring else { return };
        // The stages that are issued first are none that others may still read in the last steps of an earlier run: the
        // ring goes on.
        let (lo, steps) = self.steps(bounds);
        let (writes, next) = (self.copy(ring.stage), self.copy(lo));
        let stages = Stages { first: ring.first, end: ring.end, reads: ring.stage, writes, barriers: None, next };
        let (begun, head, done): (Label, Label, Label) = (self.label(), self.label(), self.label());
        emit!(self, @ring.mapped, "bra", begun);
        self.pipeline_prologue(steps, index, body, pipeline, &stages);
        self.place_label(begun);
        // Its `dot`s may still be in flight when the next step's begin: then its stage is released a step later.
        let under_way = pipeline.wgmmas_in_flight();
        let read = self.zero(Class::B32);
        let i = self.copy(lo);
        self.place_label(head);
        let over = self.op2(Class::Pred, "setp.ge.s64", i, steps.hi);
        emit!(self, @over, "bra", done);
        let (by_threads, arrived) = (self.label(), self.label());
        emit!(self, @!ring.mapped, "bra", by_threads);
        self.wait_in_ring(ring, 0);
        emit!(self, "bra", arrived);
        self.place_label(by_threads);
        emit!(self, "cp.async.wait_group", pipeline.stages - 2 - under_way);
        self.fence_async_proxy();
        // What was touched before has not all been waited for: not where TMA copies.
        self.meet();
        self.issue_stage(steps, index, body, pipeline, &stages);
        self.place_label(arrived);
        self.converge();
        self.round_stage(pipeline, ring.stage);
        self.set(index, i);
        self.with_stage(pipeline, ring.stage, |g| g.block(body));
        self.wait_for_wgmma(under_way * pipeline.in_place.len() as u32);
        if under_way == 0 {
            self.mov(read, ring.barrier);
        }
        self.release(ring, read, pipeline);
        if under_way > 0 {
            self.mov(read, ring.barrier);
        }
        self.advance_ring(ring, pipeline);
        self.step(i, steps);
        emit!(self, "bra", head);
        self.place_label(done);
        if under_way > 0 {
            self.wait_for_wgmma(0);
            self.release(ring, read, pipeline);
        }
    }

    /// Says of a stage, given by its barrier, that this warp has read it; of none if that is 0.
    fn release(&mut self, ring: Ring, read: Reg, pipeline: &Pipeline) {
        let is_one = self.op2(Class::Pred, "setp.ne.u32", read, 0);
        let releases = self.op2(Class::Pred, "and.pred", is_one, ring.releases);
        let behind = BARRIER * pipeline.stages;
        emit!(self, @releases, "mbarrier.arrive.shared::cta.b64", Operand::Sink, mem_at(read, behind));
    }
}
