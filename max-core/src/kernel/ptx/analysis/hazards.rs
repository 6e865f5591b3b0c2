//! Hazards between the threads of a block: which memory was touched since the last `bar.sync`.
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
//! Where barriers stand is decided on the machine-level IR ([`barriers`](super::super::machine::barriers)).

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

    /// Forgets those of operands.
    pub fn keep_shared(&mut self) {
        self.touches[..self.plan.operands].fill(0);
    }

    /// No touches.
    pub fn nothing(&self) -> Hazards {
        Hazards::new(self.plan.clone())
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

#[cfg(test)]
impl std::fmt::Display for Hazards {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (operands, tiles) = (self.plan.operands, self.plan.smem_tiles.len());
        let name = |i: usize| match i.checked_sub(operands) {
            None => format!("operand {i}"),
            Some(tile) if tile < tiles => format!("tile {tile}"),
            Some(other) => ["cached rows", "aliasing tiles", "scratch"][other - tiles].to_owned(),
        };
        let names = (0..self.touches.len()).map(name).chain(["mbarriers".to_owned()]);
        let touches = names.zip(self.touches.iter().chain([&self.mbarriers])).filter(|(_, touch)| **touch != 0);
        for (i, (name, touch)) in touches.enumerate() {
            write!(f, "{}{name}", if i == 0 { "" } else { ", " })?;
            let ways = [(READ, "read"), (WRITE, "written"), (LEADER_READ, "read by the leader")];
            let ways = ways.into_iter().chain([(LEADER_WRITE, "written by the leader")]);
            let ways: Vec<&str> = ways.filter(|(way, _)| touch & way != 0).map(|(_, way)| way).collect();
            write!(f, " {}", ways.join(" and "))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
