//! The state of a warp: its registers, and which lanes are where.
//!
//! Lanes at one instruction form a group; one group runs, the others wait.
//! The group with the lowest instruction runs first, and groups that meet at
//! an instruction merge, which brings lanes together again after a branch. A
//! group that needs lanes of another group (a barrier, a shuffle) is blocked
//! until they come.

pub(crate) mod mma;
pub(crate) mod print;
pub(crate) mod registers;
pub(crate) mod warpgroup;
pub(crate) mod warpwide;

use std::cell::RefCell;

use crate::program::{PredSrc, Program, Reg};
use crate::warp::warpgroup::Products;

/// One value for each lane.
pub(crate) type Row = [u64; 32];

#[derive(Clone, Copy, Debug)]
pub(crate) struct Group {
    pub pc: u32,
    pub mask: u32,
    pub blocked: bool,
}

/// A copy that has been issued: where to, and the bytes that arrive.
pub(crate) struct PendingCopy {
    pub lane: u32,
    pub pc: u32,
    pub address: u64,
    pub data: [u8; 16],
    pub bytes: u32,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum State {
    Ready,
    /// At a barrier of this number.
    Waiting(usize),
    /// For something to change that an `mbarrier`, or the pool of registers, depends on: the number of changes before.
    Polling(u64),
    Done,
}

pub(crate) struct Warp {
    pub index: usize,
    /// Each in a place of its own, so that a result takes the place of a row and is not copied.
    #[allow(clippy::vec_box, reason = "boxes change places, not their contents")]
    pub rows: Vec<Box<Row>>,
    /// The lanes in which a row has been written.
    pub written: Vec<u32>,
    pub preds: Vec<u32>,
    pub preds_written: Vec<u32>,
    /// The carry flag of each lane.
    pub carry: u32,
    pub pc: u32,
    /// The lanes that run now.
    pub active: u32,
    /// The lanes that have not exited.
    pub live: u32,
    pub others: Vec<Group>,
    /// The lowest instruction above `pc` at which another group stands.
    pub next_other: u32,
    pub state: State,
    /// Groups of asynchronous copies, the last one still open.
    pub copies: Vec<Vec<PendingCopy>>,
    /// How much had changed when it last waited for an `mbarrier` in vain.
    pub polled: Option<u64>,
    /// Products of its warpgroup that it takes part in.
    pub products: Products,
}

thread_local! {
    /// Rows of warps that are gone. A small launch takes less time than allocating its registers does.
    #[allow(clippy::vec_box, reason = "as in `Warp`")]
    static SPARE: RefCell<Vec<Box<Row>>> = const { RefCell::new(Vec::new()) };
}

/// The most rows that a thread keeps: 16 MiB.
const MOST_SPARE: usize = 1 << 16;

/// So many rows, of any contents: no lane reads what it has not written.
#[allow(clippy::vec_box, reason = "as in `Warp`")]
fn taken(count: usize) -> Vec<Box<Row>> {
    let mut rows = SPARE.with_borrow_mut(|spare| spare.split_off(spare.len().saturating_sub(count)));
    rows.resize_with(count, || Box::new([0; 32]));
    rows
}

impl Drop for Warp {
    fn drop(&mut self) {
        // A thread that ends has none any more.
        let _ = SPARE.try_with(|spare| {
            let mut spare = spare.borrow_mut();
            let room = MOST_SPARE.saturating_sub(spare.len()).min(self.rows.len());
            spare.extend(self.rows.drain(..room));
        });
    }
}

impl Warp {
    pub fn new(index: usize, program: &Program) -> Self {
        let mut warp = Warp {
            index,
            rows: taken(program.rows),
            written: vec![0; program.rows],
            preds: vec![0; program.pred_names.len()],
            preds_written: vec![0; program.pred_names.len()],
            carry: 0,
            pc: 0,
            active: 0,
            live: 0,
            others: Vec::new(),
            next_other: u32::MAX,
            state: State::Done,
            copies: vec![Vec::new()],
            polled: None,
            products: Products::default(),
        };
        for (row, value) in &program.constants {
            *warp.rows[*row as usize] = [*value; 32];
        }
        warp
    }

    /// Back to the first instruction, with `lanes` live and no register
    /// written.
    pub fn restart(&mut self, lanes: u32, program: &Program) {
        self.written.fill(0);
        self.preds_written.fill(0);
        for row in program.constants.iter().map(|(row, _)| *row) {
            self.written[row as usize] = u32::MAX;
        }
        self.pc = 0;
        self.active = lanes;
        self.live = lanes;
        self.others.clear();
        self.next_other = u32::MAX;
        self.state = State::Ready;
        self.products = Products::default();
        self.polled = None;
        self.copies.clear();
        self.copies.push(Vec::new());
    }

    pub fn fill(&mut self, row: Reg, value: impl Fn(usize) -> u64) {
        *self.rows[row as usize] = std::array::from_fn(value);
        self.written[row as usize] = u32::MAX;
    }

    #[inline]
    pub fn get(&self, row: Reg, lane: usize) -> u64 {
        self.rows[row as usize][lane]
    }

    #[inline]
    pub fn set(&mut self, row: Reg, lane: usize, value: u64) {
        self.rows[row as usize][lane] = value;
        self.written[row as usize] |= 1 << lane;
    }

    /// Writes a result in the lanes of `mask`; in its place is something of no use then.
    #[inline]
    pub fn take(&mut self, mask: u32, to: Reg, result: &mut Box<Row>) {
        let row = &mut self.rows[to as usize];
        if mask == u32::MAX {
            std::mem::swap(row, result);
        } else {
            blend(row, mask, result);
        }
        self.written[to as usize] |= mask;
    }

    /// Writes `f` of the rows `from` to the row `to`, in the lanes of `mask`.
    #[inline(always)]
    pub fn compute<const N: usize>(&mut self, mask: u32, to: Reg, from: [Reg; N], f: impl Fn([u64; N]) -> u64) {
        if mask == u32::MAX {
            let from = from.map(|row| &self.rows[row as usize]);
            let mut result = [0; 32];
            for (lane, value) in result.iter_mut().enumerate() {
                *value = f(from.map(|row| row[lane]));
            }
            *self.rows[to as usize] = result;
        } else {
            for lane in lanes(mask) {
                self.rows[to as usize][lane] = f(from.map(|row| self.rows[row as usize][lane]));
            }
        }
        self.written[to as usize] |= mask;
    }

    /// A predicate in all lanes.
    #[inline]
    pub fn pred(&self, p: PredSrc) -> u32 {
        let bits = p.index.map_or(u32::MAX, |i| self.preds[i as usize]);
        if p.negated { !bits } else { bits }
    }

    /// Lanes of `mask` in which a predicate has never been written.
    #[inline]
    pub fn pred_missing(&self, p: PredSrc, mask: u32) -> u32 {
        p.index.map_or(0, |i| mask & !self.preds_written[i as usize])
    }

    #[inline]
    pub fn set_pred(&mut self, p: u16, mask: u32, bits: u32) {
        let slot = &mut self.preds[p as usize];
        *slot = (*slot & !mask) | (bits & mask);
        self.preds_written[p as usize] |= mask;
    }

    /// Puts the running group among the others and picks the next to run:
    /// false if all are blocked.
    pub fn regroup(&mut self, block_current: bool) -> bool {
        if self.active != 0 {
            self.join(Group { pc: self.pc, mask: self.active, blocked: block_current });
        }
        self.active = 0;
        let next = self.others.iter().enumerate().filter(|(_, g)| !g.blocked).min_by_key(|(_, g)| g.pc).map(|(i, _)| i);
        let Some(next) = next else { return false };
        let group = self.others.swap_remove(next);
        self.pc = group.pc;
        self.active = group.mask;
        self.next_other = self.others.iter().map(|g| g.pc).filter(|pc| *pc > group.pc).min().unwrap_or(u32::MAX);
        true
    }

    /// Adds a group; where one stands at the same instruction they merge, and
    /// a blocked group gets another try.
    pub fn join(&mut self, group: Group) {
        match self.others.iter_mut().find(|g| g.pc == group.pc) {
            Some(g) => {
                g.mask |= group.mask;
                g.blocked = false;
            }
            None => self.others.push(group),
        }
    }

    /// Ends lanes. Blocked groups get another try, as they may have waited
    /// for these.
    pub fn exit(&mut self, mask: u32) {
        self.live &= !mask;
        self.active &= !mask;
        for group in &mut self.others {
            group.blocked = false;
        }
    }
}

/// Takes the lanes of `mask` from another row.
#[inline]
pub(crate) fn blend(row: &mut Row, mask: u32, from: &Row) {
    for (lane, (value, new)) in row.iter_mut().zip(from).enumerate() {
        *value = if mask >> lane & 1 == 1 { *new } else { *value };
    }
}

/// The lanes of a mask, ascending.
#[inline]
pub(crate) fn lanes(mask: u32) -> impl Iterator<Item = usize> {
    let mut rest = mask;
    std::iter::from_fn(move || {
        if rest == 0 {
            return None;
        }
        let lane = rest.trailing_zeros() as usize;
        rest &= rest - 1;
        Some(lane)
    })
}
