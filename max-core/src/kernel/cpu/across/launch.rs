//! The choice between a program's row within vector lanes and neighbouring programs across them, and the loop over
//! groups of programs.

use std::cell::Cell;

use super::super::isa::Level;
use super::super::scratch::{self, Arena, Side};
use super::super::{Cpu, run_programs};
use super::Across;
use crate::kernel::abi::LaunchArgs;
use crate::kernel::tuning::ACROSS_ROW;

/// Programs of a group.
pub(super) const LANES: usize = 16;
/// The longest row that there is room for: rows of a group stay in L1 or near it with all of a kernel's operands.
pub(super) const MAX_ROW: usize = 128;
/// The most operands of a kernel that goes across.
const MAX_OPERANDS: usize = 6;
/// Room for a row of each program of a group, of any dtype.
const ROOM: usize = MAX_ROW * LANES * 8;

/// Programs that run together.
pub(super) struct Group {
    /// The id of the first one.
    pub(super) first: i64,
    /// How many there are.
    pub(super) count: usize,
    /// Whether the kernel is compiled for AVX-512.
    pub(super) avx512: bool,
    /// The rows of the operands.
    rooms: *mut u8,
    /// The operands of rank 1 that were read, as bits.
    read: *const Cell<u32>,
}

impl Group {
    /// Room for a row of each program.
    #[inline(always)]
    pub(super) fn room(&self, operand: usize) -> *mut u8 {
        // No kernel with more operands goes across.
        self.rooms.wrapping_add(if operand < MAX_OPERANDS { operand * ROOM } else { 0 })
    }

    /// Whether an operand was asked for before.
    #[inline(always)]
    pub(super) fn has_read(&self, operand: u32) -> bool {
        // SAFETY: it lives as long as the run.
        let read = unsafe { &*self.read };
        let bit = 1 << (operand % 32);
        let before = read.get();
        read.set(before | bit);
        before & bit != 0
    }
}

/// Runs the program instances `first..last` of a kernel whose programs have a row each: within vector lanes or across
/// them. The choice is one for all of a launch, so that results do not depend on how it is divided. The longest row that goes across has
/// `longer` elements more than that of a kernel without reductions.
///
/// # Safety
/// As for [`run_programs`]; the operands must have these ranks.
#[inline(always)]
pub unsafe fn run_rows<L: Level, P: Fn(Cpu<L>)>(
    args: *const LaunchArgs,
    first: i64,
    last: i64,
    (ranks, longer): (&[usize], usize),
    within: impl FnOnce(Cpu<L>) -> P,
    across: impl Fn(Across),
) {
    // SAFETY: by the contract above.
    if !unsafe { goes_across(args, ranks, longer) } {
        // SAFETY: as above.
        return unsafe { run_programs::<L, P>(args, first, last, within) };
    }
    // Not on the stack: programs that go within would pay for it too.
    let bytes = ranks.len() * ROOM;
    let Some(rooms) = scratch::tile(Side::Lhs, bytes) else { return scratch::report_out_of_memory(bytes) };
    let (read, arena) = (Cell::new(0), Arena::of_thread());
    let mut p = first;
    while p < last {
        let count = if last - p < LANES as i64 { (last - p) as usize } else { LANES };
        let group = Group { first: p, count, avx512: L::AVX512, rooms, read: &raw const read };
        arena.reset();
        across(Across { args, group: &raw const group });
        p += count as i64;
    }
}

/// How many neighbouring programs of a launch stay on one thread, given its grid and the dims of its operands: a group of those that may go
/// across, since programs of a part of one go one by one.
pub(in crate::kernel) fn programs_together<'a>(grid: &[i64], mut dims: impl Iterator<Item = &'a [i64]>) -> usize {
    let [programs, 1, 1] = *grid else { return 1 };
    let may_go = programs >= LANES as i64
        && dims.all(|dims| match *dims {
            [_] => true,
            [rows, n] => rows == programs && n <= MAX_ROW as i64,
            _ => false,
        });
    if may_go { LANES } else { 1 }
}

/// Whether the programs of a launch have short rows, and are many.
///
/// # Safety
/// As for [`run_rows`].
#[inline(never)]
unsafe fn goes_across(args: *const LaunchArgs, ranks: &[usize], longer: usize) -> bool {
    // SAFETY: by the contract above.
    let launch = unsafe { *args };
    let longest = ACROSS_ROW.get().saturating_add(longer).min(MAX_ROW) as i64;
    let [programs, 1, 1] = launch.grid else { return false };
    if programs < LANES as i64 || ranks.len() > MAX_OPERANDS {
        return false;
    }
    ranks.iter().enumerate().all(|(operand, rank)| {
        // SAFETY: the launch has an argument for each operand, with as many dims as its rank.
        let dims = unsafe { std::slice::from_raw_parts((*launch.tensors.add(operand)).dims, *rank) };
        match *dims {
            [n] => n <= longest,
            // A row for each program.
            [rows, n] => rows == programs && n > 0 && n <= longest,
            _ => false,
        }
    })
}
