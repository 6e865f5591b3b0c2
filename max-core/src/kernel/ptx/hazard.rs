//! Where barriers are needed: which memory was touched since the last one.
//!
//! Threads run apart between barriers. An operation that touches what another one has touched before, in a way that
//! must keep its order, must wait for all threads. Operands that are only read never conflict, nor do the stores of program
//! code with each other: one thread makes them all. Each tile that lives in shared memory counts as one more operand, as
//! do the rows that are kept there, and what operations have for themselves. Some tiles share that memory with operations,
//! but not with each other.
//!
//! What is touched at the end of a loop's body since the last barrier there is touched at its head too, which is written
//! before that is known. So code is written twice: at first as if all that the body touches were still touched at its end,
//! then with what that has shown. That stands if no loop then ends with more than its head was written for; else it is tried
//! again with what was found, at most [`PASSES`] times.

use std::rc::Rc;

use super::plan::{Home, Plan};
use crate::kernel::ir::{Block, Inst, Op};

/// How often code is written again with what is known of the ends of its loops.
pub(super) const PASSES: usize = 4;

/// How an operand is touched: a set of [`READ`], [`WRITE`], [`FIRST`] and [`READ_FIRST`].
pub(super) type Touch = u8;
pub(super) const READ: Touch = 1;
pub(super) const WRITE: Touch = 2;
/// Written by the first thread.
pub(super) const FIRST: Touch = 4;
/// Read by the first thread.
pub(super) const READ_FIRST: Touch = 8;

fn conflict(a: Touch, b: Touch) -> bool {
    let one_way = |a: Touch, b: Touch| (a & WRITE != 0 && b != 0) || (a & FIRST != 0 && b & READ != 0);
    one_way(a, b) || one_way(b, a)
}

/// How each operand, each tile that lives in shared memory, the rows that are kept there, and last what tiles and operations
/// share, is touched: by tiles, and by operations.
#[derive(Clone, Debug)]
pub(super) struct Hazards {
    plan: Rc<Plan>,
    touches: Vec<Touch>,
}

impl Hazards {
    pub fn new(plan: Rc<Plan>) -> Self {
        let touches = vec![0; plan.operands + plan.homes.len() + 3];
        Hazards { plan, touches }
    }

    /// A barrier was passed.
    pub fn clear(&mut self) {
        self.touches.fill(0);
    }

    pub fn touch(&mut self, operand: u32, how: Touch) {
        self.touches[operand as usize] |= how;
    }

    pub fn touch_shared(&mut self, how: Touch) {
        if let Some(shared) = self.touches.last_mut() {
            *shared |= how;
        }
    }

    /// Touches the rows that are kept in shared memory.
    pub fn touch_rows(&mut self, how: Touch) {
        self.touches[self.plan.operands + self.plan.homes.len()] |= how;
    }

    /// The place of what tiles touch of the memory that they share with operations.
    fn brief(&self) -> usize {
        self.plan.operands + self.plan.homes.len() + 1
    }

    /// Touches the tile that lives in shared memory of that index.
    pub fn touch_home(&mut self, index: usize, how: Touch) {
        self.touches[self.plan.operands + index] |= how;
        if self.plan.homes[index].brief.is_some() {
            let brief = self.brief();
            self.touches[brief] |= how;
        }
    }

    /// Touches all shared memory.
    pub fn touch_all_shared(&mut self, how: Touch) {
        self.touches[self.plan.operands..].iter_mut().for_each(|t| *t |= how);
    }

    /// Whether a tile may be on its way to shared memory.
    pub fn copies_under_way(&self) -> bool {
        let homes = self.plan.operands..self.plan.operands + self.plan.homes.len();
        self.touches[homes].iter().any(|t| t & WRITE != 0)
    }

    pub fn conflicts(&self, other: &Hazards) -> bool {
        let brief = self.brief();
        let pairs = self.touches.iter().zip(&other.touches).enumerate();
        let same = pairs.filter(|(i, _)| *i != brief).any(|(_, (&a, &b))| conflict(a, b));
        let shared = |a: &Hazards, b: &Hazards| conflict(a.touches[brief], b.touches[brief + 1]);
        same || shared(self, other) || shared(other, self) || self.conflicts_in_turn(other)
    }

    /// Whether tiles conflict that have the same memory one after the other.
    fn conflicts_in_turn(&self, other: &Hazards) -> bool {
        let brief = || self.plan.homes.iter().filter(|home| home.brief.is_some());
        let touch = |hazards: &Hazards, home: &Home| hazards.touches[self.plan.operands + home.index];
        brief().any(|a| {
            let mut others = brief().filter(|b| b.brief != a.brief);
            others.any(|b| conflict(touch(self, a), touch(other, b)))
        })
    }

    /// Whether another's touches are all among these.
    pub fn covers(&self, other: &Hazards) -> bool {
        self.touches.iter().zip(&other.touches).all(|(a, b)| b & !a == 0)
    }

    /// Those of shared memory alone.
    pub fn of_shared(mut self) -> Hazards {
        self.touches[..self.plan.operands].fill(0);
        self
    }

    /// Touches of both.
    pub fn join(&mut self, other: &Hazards) {
        self.touches.iter_mut().zip(&other.touches).for_each(|(a, b)| *a |= b);
    }

    /// What an operation touches, its blocks included, where it stands in lane code or not.
    pub fn add(&mut self, inst: &Inst, in_lanes: bool) {
        let (op, plan) = (&inst.op, self.plan.clone());
        let mut lane_blocks = in_lanes;
        match op {
            Op::Load { operand, .. } => {
                self.touch(*operand, if plan.for_first.contains(&inst.results[0]) { READ_FIRST } else { READ });
                if plan.rows.of(inst.results[0]).is_some() {
                    self.touch_rows(READ);
                }
            }
            Op::TileLoad { operand, .. } => {
                self.touch(*operand, READ);
                if let Some(home) = plan.home(inst.results[0]) {
                    // A loop that reads ahead waits for its own copies; after it there are none.
                    self.touch_home(home.index, if home.ahead { READ } else { WRITE });
                }
            }
            Op::Store { operand, .. } | Op::Atomic { operand, .. } => {
                self.touch(*operand, if in_lanes { WRITE } else { FIRST });
            }
            Op::TileStore { operand, .. } => self.touch(*operand, WRITE),
            Op::Dot(a, b, _) => {
                for factor in [a, b] {
                    match plan.home(*factor) {
                        Some(home) => self.touch_home(home.index, READ),
                        None => self.touch_shared(READ | WRITE),
                    }
                }
            }
            Op::Fold { .. } | Op::Scan { .. } | Op::TileReduce(..) | Op::TileMap { .. } => {
                self.touch_shared(READ | WRITE);
                lane_blocks = true;
            }
            Op::Lanes { .. } => lane_blocks = true,
            Op::Const(_) | Op::Param(_) | Op::ProgramId(_) | Op::NumPrograms(_) | Op::Dim { .. } => {}
            Op::Unary(..) | Op::Binary(..) | Op::Cmp(..) | Op::Select(..) | Op::Fma(..) => {}
            Op::Cast(_) | Op::Bitcast(_) | Op::Round(..) | Op::Var(_) | Op::Get(_) | Op::Set(..) => {}
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
mod tests {
    use super::*;

    #[test]
    fn what_conflicts() {
        for (a, b, expected) in [
            (READ, READ, false),
            (READ, WRITE, true),
            (WRITE, READ, true),
            (WRITE, WRITE, true),
            (FIRST, FIRST, false),
            (FIRST, READ, true),
            (READ, FIRST, true),
            (FIRST, WRITE, true),
            (FIRST, READ_FIRST, false),
            (READ_FIRST, FIRST, false),
            (READ_FIRST, READ, false),
            (READ_FIRST, WRITE, true),
            (WRITE, READ_FIRST, true),
            (0, WRITE, false),
            (WRITE, 0, false),
        ] {
            assert_eq!(conflict(a, b), expected, "{a} {b}");
        }
    }
}
