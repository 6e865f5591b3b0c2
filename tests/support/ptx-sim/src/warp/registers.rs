//! `setmaxnreg`: registers that warpgroups give up, and that others of their
//! block then get.
//!
//! How many a thread has at the start follows from the directives of the
//! kernel alone. What is released goes to a pool of the block, and who asks
//! for more waits until the pool has it.

use crate::exec::{Halt, Machine, trouble};
use crate::fault::FaultKind;
use crate::program::Program;
use crate::warp::{State, Warp};

/// Warps of a warpgroup.
const WARPS: usize = 4;
/// Registers of a multiprocessor, and the most that a thread can have.
const ALL: u32 = 65536;
const MOST: u32 = 255;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct SetMaxRegisters {
    pub increase: bool,
    pub count: u32,
}

/// What the threads of a block have.
#[derive(Default)]
pub(crate) struct Registers {
    pool: u32,
    /// Of each warp: registers of a thread, and the changes that it has made.
    warps: Vec<(u32, Vec<SetMaxRegisters>)>,
}

impl Registers {
    /// Of a block that begins.
    pub fn new(program: &Program, warps: usize) -> Registers {
        let of_thread = of_thread(program, warps as u32).unwrap_or(0);
        Registers { pool: 0, warps: vec![(of_thread, Vec::new()); warps] }
    }

    /// A warp that has made other changes than the first of its warpgroup.
    pub fn differs(&self) -> Option<usize> {
        (0..self.warps.len()).find(|&i| self.warps[i].1 != self.warps[i - i % WARPS].1)
    }
}

/// Registers of a thread at the start: the number that is demanded, or as
/// many as let so many blocks be on a multiprocessor, a multiple of 8.
fn of_thread(program: &Program, warps: u32) -> Option<u32> {
    let shared_out = |blocks: u32| (ALL / (32 * warps * blocks.max(1))).min(MOST + 1) & !7;
    program.max_registers.or_else(|| program.max_threads.and(program.min_blocks).map(shared_out))
}

impl Machine<'_> {
    /// False: the warp is to wait until others have released enough.
    pub fn set_max_registers(&mut self, warp: &mut Warp, op: SetMaxRegisters) -> Result<bool, Halt> {
        let bad = |reason: &str| Err(trouble(FaultKind::BadRegisters { reason: reason.into() }, 0));
        if warp.index - warp.index % WARPS + WARPS > self.full_warps {
            return bad("the block has no four whole warps there");
        }
        let (now, changes) = &mut self.registers.warps[warp.index];
        if *now == 0 {
            return bad(
                "nothing says how many a thread has at the start: `.maxnreg`, or `.maxntid` and `.minnctapersm`",
            );
        }
        if op.increase != (op.count >= *now) && op.count != *now {
            return bad("an increase to fewer registers, or a decrease to more");
        }
        if op.increase {
            let more = 32 * (op.count - *now);
            let Some(rest) = self.registers.pool.checked_sub(more) else {
                warp.state = State::Polling(self.mbarriers.changes);
                return Ok(false);
            };
            self.registers.pool = rest;
        } else {
            self.registers.pool += 32 * (*now - op.count);
            self.mbarriers.changes += 1;
        }
        *now = op.count;
        changes.push(op);
        Ok(true)
    }
}
