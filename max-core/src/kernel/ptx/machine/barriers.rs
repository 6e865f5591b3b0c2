//! Barrier placement: a forward data-flow analysis of which memory was touched since the last barrier of the block.
//!
//! Lowering leaves [marks](Mark) between instructions: what is touched there, and where a barrier may stand. The state
//! at a point is all that may be pending there, the union over the ways to it. A candidate becomes a barrier where what
//! it is for [conflicts](Hazards::conflicts) with the state, and nothing is pending behind a barrier.
//!
//! More that is pending at a candidate can make it a barrier, and so less be pending behind it: the equations are not
//! monotone. So what a loop leaves at its end is accumulated, and all else computed anew in each sweep over the blocks.
//!
//! 1. In the first sweep, all that a loop touches is pending at its head.
//! 2. In the second, what its end then had.
//! 3. Where a loop ends with more than its head assumed, that is added, and there is another sweep.
//!
//! What is known of a loop only grows, so this ends; what it ends with covers every way through the code.

use std::rc::Rc;

use super::super::analysis::hazards::{Hazards, READ, WRITE};
use super::cfg::Cfg;
use super::{Block, Function, Operand};
use crate::kernel::ir::Loc;

/// What stands between instructions until barriers are placed.
#[derive(Clone, Debug)]
pub(in crate::kernel::ptx) struct Mark {
    pub effect: Effect,
    /// Before which of its block's instructions it stands.
    pub before: usize,
    pub loc: Loc,
}

/// What a mark says of the memory that the threads of a block share.
#[derive(Clone, Debug)]
pub(in crate::kernel::ptx) enum Effect {
    /// What follows touches it.
    Touch(Rc<Hazards>),
    /// A candidate: a barrier stands here if what is pending conflicts with this.
    BarrierIf(Rc<Hazards>),
    /// A barrier stands here.
    Barrier,
    /// All threads have met, and what was being copied has arrived.
    Met,
    /// A program instance ends. The next one does not depend on it, but may use the same shared memory.
    InstanceEnd,
}

/// How all threads of a block that compute meet on a target.
#[derive(Clone, Debug)]
pub(in crate::kernel::ptx) struct BlockBarrier {
    /// The operands of `bar.sync`.
    pub operands: Vec<Operand>,
    /// Whether the asynchronous proxy reads shared memory, so that what was copied there must be fenced.
    pub fences_async_proxy: bool,
}

/// What is pending, shared between the blocks that do not change it.
type State = Rc<Hazards>;

/// What is pending behind some marks. Tells `place` of each barrier: its mark's number, and whether copies are under way.
fn pass_marks(marks: &[Mark], mut state: State, mut place: impl FnMut(usize, bool)) -> State {
    for (i, mark) in marks.iter().enumerate() {
        let is_barrier = match &mark.effect {
            Effect::BarrierIf(next) => state.conflicts(next),
            Effect::Barrier => true,
            Effect::Touch(_) | Effect::Met | Effect::InstanceEnd => false,
        };
        if is_barrier {
            place(i, state.copies_under_way());
        }
        match &mark.effect {
            Effect::Touch(touched) => {
                if !state.covers(touched) {
                    Rc::make_mut(&mut state).join(touched);
                }
            }
            Effect::BarrierIf(_) | Effect::Barrier if is_barrier => Rc::make_mut(&mut state).clear(),
            Effect::BarrierIf(_) | Effect::Barrier => {}
            Effect::Met => Rc::make_mut(&mut state).clear(),
            Effect::InstanceEnd => Rc::make_mut(&mut state).keep_shared(),
        }
    }
    state
}

/// All that the blocks of a loop touch; `None` if that is nothing. Of program instances, that is all shared memory.
fn touched<'a>(blocks: impl Iterator<Item = &'a Block> + Clone) -> Option<Hazards> {
    let marks = || blocks.clone().flat_map(|block| &block.marks);
    let mut touches = marks().filter_map(|mark| match &mark.effect {
        Effect::Touch(touched) => Some(touched),
        Effect::BarrierIf(_) | Effect::Barrier | Effect::Met | Effect::InstanceEnd => None,
    });
    let mut all = Hazards::clone(touches.next()?);
    touches.for_each(|touched| all.join(touched));
    if marks().any(|mark| matches!(mark.effect, Effect::InstanceEnd)) {
        all.keep_shared();
        all.touch_all_shared(READ | WRITE);
    }
    Some(all)
}

/// What may be pending where each block begins; `None` for those that are never reached.
fn pending(function: &Function, at_entry: Hazards) -> Vec<Option<State>> {
    let (cfg, at_entry) = (Cfg::of(function), Rc::new(at_entry));
    let count = function.blocks.len();
    // By their heads, what is known to be pending at the ends of loops that touch something.
    let mut known: Vec<Option<State>> = vec![None; count];
    for natural in cfg.loops() {
        known[natural.head] = touched(natural.blocks.iter().map(|&block| &function.blocks[block])).map(Rc::new);
    }
    let heads: Vec<usize> = (0..count).filter(|&block| known[block].is_some()).collect();
    let (mut starts, mut ends): (Vec<Option<State>>, Vec<Option<State>>) = (vec![None; count], vec![None; count]);
    let mut is_first = true;
    loop {
        for &block in &cfg.order {
            let from = cfg.predecessors[block].iter().filter(|from| !cfg.goes_back(**from, block));
            let start = from.filter_map(|from| ends[*from].clone()).chain(known[block].clone()).reduce(joined);
            let start = start.unwrap_or_else(|| at_entry.clone());
            ends[block] = Some(pass_marks(&function.blocks[block].marks, start.clone(), |_, _| {}));
            starts[block] = Some(start);
        }
        let mut grows = false;
        for &head in &heads {
            let back = cfg.predecessors[head].iter().filter(|from| cfg.goes_back(**from, head));
            let end = back.filter_map(|from| ends[*from].clone()).reduce(joined);
            if let (Some(known), Some(end)) = (&mut known[head], end) {
                if is_first {
                    *known = end;
                } else if !known.covers(&end) {
                    grows = true;
                    *known = joined(known.clone(), end);
                }
            }
        }
        if heads.is_empty() || !is_first && !grows {
            return starts;
        }
        is_first = false;
    }
}

fn joined(a: State, b: State) -> State {
    if Rc::ptr_eq(&a, &b) || a.covers(&b) {
        return a;
    }
    let mut both = Hazards::clone(&a);
    both.join(&b);
    Rc::new(both)
}

impl Function {
    /// Makes barriers of the candidates that need one, and removes all marks.
    pub fn place_barriers(&mut self, at_entry: Hazards, barrier: &BlockBarrier) {
        if self.blocks.iter().all(|block| block.marks.is_empty()) {
            return;
        }
        let nothing = Rc::new(at_entry.clone().nothing());
        let starts = pending(self, at_entry);
        for (block, start) in starts.into_iter().enumerate() {
            let marks = std::mem::take(&mut self.blocks[block].marks);
            let mut barriers = Vec::new();
            pass_marks(&marks, start.unwrap_or_else(|| nothing.clone()), |mark, copies| barriers.push((mark, copies)));
            if barriers.is_empty() {
                continue;
            }
            let before = std::mem::take(&mut self.blocks[block].insts);
            let (mut insts, mut done) = (Vec::with_capacity(before.len() + barriers.len()), 0);
            for (mark, copies) in barriers {
                let Mark { before: at, loc, .. } = marks[mark];
                insts.extend_from_slice(&before[done..at]);
                done = at;
                if copies {
                    insts.push(self.inst("cp.async.wait_all", None, [], loc));
                    if barrier.fences_async_proxy {
                        insts.push(self.inst("fence.proxy.async.shared::cta", None, [], loc));
                    }
                }
                insts.push(self.inst("bar.sync", None, barrier.operands.iter().cloned(), loc));
            }
            insts.extend_from_slice(&before[done..]);
            self.blocks[block].insts = insts;
        }
    }
}
