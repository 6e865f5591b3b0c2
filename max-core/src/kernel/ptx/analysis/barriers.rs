//! Barrier placement by hazard analysis: which memory was touched since the last `bar.sync`.
//!
//! Threads run apart between barriers, so read-after-write, write-after-read and write-after-write hazards between them
//! need one. There is none between reads, nor between stores of program code, which one thread makes. What counts as a
//! location:
//!
//! * each operand,
//! * each tile in shared memory, and the cached rows there,
//! * the scratch of operations; tiles may alias it, but not each other;
//! * the `mbarrier`s that the first thread initializes at the entry's start.
//!
//! Loops need a fixed point. What is pending at the end of a loop's body is pending at its head too, which is written
//! before that is known. So code is written first as if all that the body touches were pending, then with what that
//! showed. If a loop then ends with more than its head assumed, it is written again. Facts about a loop only grow, so
//! this ends.

use std::rc::Rc;

use super::plan::{Plan, SmemTile};
use crate::kernel::ir::{Block, Inst, Op};

/// How an operand is touched: a set of [`READ`], [`WRITE`], [`LEADER_WRITE`] and [`LEADER_READ`].
pub(in crate::kernel::ptx) type Touch = u8;
pub(in crate::kernel::ptx) const READ: Touch = 1;
pub(in crate::kernel::ptx) const WRITE: Touch = 2;
/// Written by the leader, the first thread.
pub(in crate::kernel::ptx) const LEADER_WRITE: Touch = 4;
/// Read by the leader.
pub(in crate::kernel::ptx) const LEADER_READ: Touch = 8;

fn conflict(a: Touch, b: Touch) -> bool {
    let one_way = |a: Touch, b: Touch| (a & WRITE != 0 && b != 0) || (a & LEADER_WRITE != 0 && b & READ != 0);
    one_way(a, b) || one_way(b, a)
}

/// How each operand, each tile that lives in shared memory, the rows that are cached there, and last what tiles and
/// operations share, is touched: by tiles, and by operations.
#[derive(Clone, Debug)]
pub(in crate::kernel::ptx) struct Hazards {
    plan: Rc<Plan>,
    touches: Vec<Touch>,
    mbarriers: Touch,
}

impl Hazards {
    pub fn new(plan: Rc<Plan>) -> Self {
        let touches = vec![0; plan.operands + plan.smem_tiles.len() + 3];
        Hazards { plan, touches, mbarriers: 0 }
    }

    /// Where a kernel begins: the first thread has initialized the `mbarrier`s that there may be.
    pub fn at_entry(plan: Rc<Plan>) -> Self {
        Hazards { mbarriers: LEADER_WRITE, ..Hazards::new(plan) }
    }

    /// A barrier was passed.
    pub fn clear(&mut self) {
        self.touches.fill(0);
        self.mbarriers = 0;
    }

    /// All threads wait at the `mbarrier`s.
    pub fn use_mbarriers(&mut self) {
        self.mbarriers |= READ;
    }

    pub fn touch(&mut self, operand: u32, how: Touch) {
        self.touches[operand as usize] |= how;
    }

    pub fn touch_shared(&mut self, how: Touch) {
        if let Some(shared) = self.touches.last_mut() {
            *shared |= how;
        }
    }

    /// Touches the rows that are cached in shared memory.
    pub fn touch_rows(&mut self, how: Touch) {
        self.touches[self.plan.operands + self.plan.smem_tiles.len()] |= how;
    }

    /// The place of what tiles touch of the memory that they share with operations.
    fn alias_group(&self) -> usize {
        self.plan.operands + self.plan.smem_tiles.len() + 1
    }

    /// Touches the tile in shared memory of that index.
    pub fn touch_smem_tile(&mut self, index: usize, how: Touch) {
        self.touches[self.plan.operands + index] |= how;
        if self.plan.smem_tiles[index].alias_group.is_some() {
            let alias_group = self.alias_group();
            self.touches[alias_group] |= how;
        }
    }

    /// Touches all shared memory.
    pub fn touch_all_shared(&mut self, how: Touch) {
        self.touches[self.plan.operands..].iter_mut().for_each(|t| *t |= how);
    }

    /// Whether a tile may be on its way to shared memory.
    pub fn copies_under_way(&self) -> bool {
        let smem_tiles = self.plan.operands..self.plan.operands + self.plan.smem_tiles.len();
        self.touches[smem_tiles].iter().any(|t| t & WRITE != 0)
    }

    pub fn conflicts(&self, other: &Hazards) -> bool {
        let alias_group = self.alias_group();
        let pairs = self.touches.iter().zip(&other.touches).enumerate();
        let same = pairs.filter(|(i, _)| *i != alias_group).any(|(_, (&a, &b))| conflict(a, b));
        let shared = |a: &Hazards, b: &Hazards| conflict(a.touches[alias_group], b.touches[alias_group + 1]);
        let uninitialized = conflict(self.mbarriers, other.mbarriers);
        same || uninitialized || shared(self, other) || shared(other, self) || self.aliased_conflict(other)
    }

    /// Whether tiles conflict that have the same memory one after the other.
    fn aliased_conflict(&self, other: &Hazards) -> bool {
        let alias_group = || self.plan.smem_tiles.iter().filter(|smem_tile| smem_tile.alias_group.is_some());
        let touch = |hazards: &Hazards, smem_tile: &SmemTile| hazards.touches[self.plan.operands + smem_tile.index];
        alias_group().any(|a| {
            let mut others = alias_group().filter(|b| b.alias_group != a.alias_group);
            others.any(|b| conflict(touch(self, a), touch(other, b)))
        })
    }

    /// Whether another's touches are all among these.
    pub fn covers(&self, other: &Hazards) -> bool {
        self.touches.iter().zip(&other.touches).all(|(a, b)| b & !a == 0) && other.mbarriers & !self.mbarriers == 0
    }

    /// Those of shared memory alone.
    pub fn of_shared(mut self) -> Hazards {
        self.touches[..self.plan.operands].fill(0);
        self
    }

    /// Touches of both.
    pub fn join(&mut self, other: &Hazards) {
        self.touches.iter_mut().zip(&other.touches).for_each(|(a, b)| *a |= b);
        self.mbarriers |= other.mbarriers;
    }

    /// What an operation touches, its blocks included, where it stands in lane code or not.
    pub fn add(&mut self, inst: &Inst, in_lanes: bool) {
        let (op, plan) = (&inst.op, self.plan.clone());
        let mut lane_blocks = in_lanes;
        match op {
            Op::Load { operand, .. } => {
                self.touch(*operand, if plan.leader_loads.contains(&inst.results[0]) { LEADER_READ } else { READ });
                if plan.rows.of(inst.results[0]).is_some() {
                    self.touch_rows(READ);
                }
            }
            Op::TileLoad { operand, .. } => {
                self.touch(*operand, READ);
                if let Some(smem_tile) = plan.smem_tile(inst.results[0]) {
                    // A loop that is pipelined waits for its own copies; after it there are none.
                    self.touch_smem_tile(smem_tile.index, if smem_tile.pipeline { READ } else { WRITE });
                }
            }
            Op::Store { operand, .. } | Op::Atomic { operand, .. } => {
                self.touch(*operand, if in_lanes { WRITE } else { LEADER_WRITE });
            }
            Op::TileStore { operand, .. } => self.touch(*operand, WRITE),
            Op::Dot(a, b, _) => {
                for dot_operand in [a, b] {
                    match plan.smem_tile(*dot_operand) {
                        Some(smem_tile) => self.touch_smem_tile(smem_tile.index, READ),
                        None => self.touch_shared(READ | WRITE),
                    }
                }
            }
            Op::Fold { .. } | Op::Scan { .. } | Op::TileReduce(..) | Op::TileElement(..) | Op::TileMap { .. } => {
                self.touch_shared(READ | WRITE);
                lane_blocks = true;
            }
            Op::Lanes { .. } => lane_blocks = true,
            Op::Const(_) | Op::Param(_) | Op::ProgramId(_) | Op::NumPrograms(_) | Op::Dim { .. } => {}
            Op::Unary(..) | Op::Binary(..) | Op::Cmp(..) | Op::Select(..) | Op::Fma(..) => {}
            Op::Cast(_)
            | Op::Bitcast(_)
            | Op::Round(..)
            | Op::FromBits(..)
            | Op::ToBits(..)
            | Op::Var(_)
            | Op::Get(_)
            | Op::Set(..) => {}
            Op::If { .. } | Op::While { .. } | Op::For { .. } | Op::Print { .. } => {}
            Op::TileFull(_) | Op::TileCast(_) | Op::TileRound(..) => {}
        }
        op.blocks().into_iter().for_each(|(block, _)| self.add_block(block, lane_blocks));
    }

    pub fn add_block(&mut self, block: &Block, in_lanes: bool) {
        block.insts.iter().for_each(|inst| self.add(inst, in_lanes));
    }
}

/// Writes code until the heads of its loops were written for all that their bodies leave: `pass` writes it with what is
/// known of each loop's end, nothing at first, and `ends` says what the loops then end with.
pub(in crate::kernel::ptx) fn fixed_point<T>(pass: impl Fn(&[Hazards]) -> T, ends: impl Fn(&T) -> &[Hazards]) -> T {
    let first = pass(&[]);
    let mut known = ends(&first).to_vec();
    if known.is_empty() {
        return first;
    }
    loop {
        let next = pass(&known);
        if known.iter().zip(ends(&next)).all(|(known, end)| known.covers(end)) {
            return next;
        }
        known.iter_mut().zip(ends(&next)).for_each(|(known, end)| known.join(end));
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::Effort;
    use super::*;
    use crate::kernel::ptx::{Options, Target};

    #[test]
    fn code_is_written_until_nothing_new_is_known() {
        let kernel =
            crate::kernel::ir::parse("kernel \"k\" elementwise (in x: f32, out y: f32) |%0: f32| {\n  yield %0\n}")
                .expect("a kernel");
        let options = Options::new(Target { sm: 80, arch_specific: false });
        let plan = Rc::new(Plan::new(&kernel, Effort::ALL[0], options));
        // Each time one more way shows in which the loop touches memory: more often than a few passes would find.
        let ways = [READ, WRITE, LEADER_WRITE, LEADER_READ];
        let touches: Vec<(u32, Touch)> = (0..2).flat_map(|operand| ways.map(|how| (operand, how))).collect();
        let pass = |known: &[Hazards]| {
            let is_known = |(operand, how): &&(u32, Touch)| {
                known.first().is_some_and(|known| known.touches[*operand as usize] & how != 0)
            };
            let count = touches.iter().take_while(is_known).count();
            let mut end = Hazards::new(plan.clone());
            touches.iter().take(count + 1).for_each(|(operand, how)| end.touch(*operand, *how));
            (known.to_vec(), vec![end])
        };
        let (known, ends) = fixed_point(pass, |(_, ends)| ends);
        assert!(known[0].covers(&ends[0]), "{known:?} {ends:?}");
        assert_eq!(known[0].touches[..2], [15, 15]);
    }

    #[test]
    fn what_conflicts() {
        for (a, b, expected) in [
            (READ, READ, false),
            (READ, WRITE, true),
            (WRITE, READ, true),
            (WRITE, WRITE, true),
            (LEADER_WRITE, LEADER_WRITE, false),
            (LEADER_WRITE, READ, true),
            (READ, LEADER_WRITE, true),
            (LEADER_WRITE, WRITE, true),
            (LEADER_WRITE, LEADER_READ, false),
            (LEADER_READ, LEADER_WRITE, false),
            (LEADER_READ, READ, false),
            (LEADER_READ, WRITE, true),
            (WRITE, LEADER_READ, true),
            (0, WRITE, false),
            (WRITE, 0, false),
        ] {
            assert_eq!(conflict(a, b), expected, "{a} {b}");
        }
    }
}
