//! Tiles that a loop reads ahead, copied by the device itself: `cp.async.bulk.tensor`, which one thread asks for and which
//! arrives at an `mbarrier`.
//!
//! What such a copy knows of an operand is a tensor map, a parameter that the launch makes ([`Slot::TensorMap`]). It takes
//! a box of one panel; elements outside of the operand arrive as 0. Not every operand has a map: its rows must be aligned
//! and contiguous. So a launch says whether all do ([`Slot::Mapped`]), and if not, threads copy as elsewhere.
//!
//! Each stage has a barrier, whose phases change once for each step that is asked for. Which phase of each comes next is
//! kept in the bits of a register, for as long as the kernel runs: the same stages serve every run of the loop.

use super::Slot;
use super::emitter::{Class, Fixed, Gen, Reg};
use super::home::UNIT;
use super::plan::{Ahead, Home};
use crate::kernel::ir::{Inst, Op};

/// Bytes of a barrier.
pub(super) const BARRIER: u32 = 8;
/// The most rows of a box.
const MOST_ROWS: u32 = 256;
/// The most axes of an operand.
const MOST_AXES: u32 = 5;
/// Coordinates this far from an operand's beginning are outside of it, as those beyond are.
const FAR: i64 = 1 << 30;

/// The registers by which a loop's stages are waited for.
#[derive(Clone, Copy)]
pub(super) struct Barriers {
    /// Whether the device copies.
    mapped: Reg,
    /// The barriers of the first stage, of the one that is read, and of the one that is written.
    pub first: Reg,
    pub reads: Reg,
    pub writes: Reg,
    /// The phase of each stage that is waited for next.
    phases: Reg,
}

/// Whether the device can copy a tile.
pub(super) fn has_boxes(home: &Home) -> bool {
    home.tile.swizzled
        && !home.tile.by_words()
        && home.tile.panel() <= 8
        && home.tile.panel().is_power_of_two()
        && home.tile.rows <= MOST_ROWS
        && home.rank <= MOST_AXES
}

/// The parameter that has the map of a tile's operand.
pub(super) fn map_of(home: &Home) -> Slot {
    let swizzle = home.tile.panel() * UNIT;
    Slot::TensorMap { operand: home.operand, columns: swizzle / home.tile.size, rows: home.tile.rows, swizzle }
}

impl Gen<'_> {
    /// Makes the barriers of a loop, at the entry's start, and gives its registers; `None` if it has none.
    pub fn barriers(&mut self, ahead: &Ahead) -> Option<Barriers> {
        let offset = ahead.barriers?;
        let mapped = self.fixed(Fixed::Mapped);
        let first = self.fixed_barriers(offset, &vec![1; ahead.stages as usize]);
        let phases = self.zero_at_start();
        Some(Barriers { mapped, first, reads: self.copy(first), writes: self.copy(first), phases })
    }

    /// Waits until the tiles of the stage that is read next have arrived, if the device copies them.
    pub fn wait_for_boxes(&mut self, barriers: &Barriers) {
        let (again, arrived) = (self.label(), self.label());
        emit!(self, "@!{} bra {arrived};", barriers.mapped);
        let bytes = self.op2(Class::B32, "sub.u32", barriers.reads, barriers.first);
        let stage = self.op2(Class::B32, "shr.u32", bytes, BARRIER.ilog2());
        let bits = self.op2(Class::B32, "shr.u32", barriers.phases, stage);
        let phase = self.op2(Class::B32, "and.b32", bits, 1);
        self.place_label(again);
        let over = self.reg(Class::Pred);
        emit!(self, "mbarrier.try_wait.parity.shared::cta.b64 {over}, [{}], {phase};", barriers.reads);
        emit!(self, "@!{over} bra {again};");
        let one = self.immediate(Class::B32, 1);
        let bit = self.op2(Class::B32, "shl.b32", one, stage);
        emit!(self, "xor.b32 {0}, {0}, {bit};", barriers.phases);
        self.place_label(arrived);
    }

    /// Asks the device for tiles of a step, or lets `otherwise` copy them.
    pub fn ask_for_boxes(
        &mut self,
        barriers: &Barriers,
        tiles: &[(&Inst, Home)],
        stage: Reg,
        otherwise: impl FnOnce(&mut Self),
    ) {
        let (by_threads, asked) = (self.label(), self.label());
        emit!(self, "@!{} bra {by_threads};", barriers.mapped);
        // One thread asks for all.
        let first = self.fixed(Fixed::First);
        emit!(self, "@!{first} bra {asked};");
        self.copy_boxes(barriers.writes, tiles, stage);
        emit!(self, "bra {asked};");
        self.place_label(by_threads);
        otherwise(self);
        self.place_label(asked);
    }

    /// Lets the device copy tiles to a stage, and arrive at its barrier with them. One thread does.
    pub fn copy_boxes(&mut self, barrier: Reg, tiles: &[(&Inst, Home)], stage: Reg) {
        let bytes: u32 = tiles.iter().map(|(_, home)| home.tile.rows * home.tile.units() * UNIT).sum();
        emit!(self, "mbarrier.arrive.expect_tx.shared::cta.b64 _, [{barrier}], {bytes};");
        for (inst, home) in tiles {
            let Op::TileLoad { batch, origin, .. } = &inst.op else { continue };
            let map = self.fixed(Fixed::Map(map_of(home)));
            // The last axis comes first.
            let axes: Vec<Reg> = batch.iter().chain(origin).rev().map(|&v| self.get(v)).collect();
            let mut at: Vec<Reg> = axes.into_iter().map(|axis| self.coordinate(axis)).collect();
            let column = at[0];
            for panel in 0..home.tile.units() / home.tile.panel() {
                let columns = panel * home.tile.panel() * UNIT / home.tile.size;
                at[0] = if panel == 0 { column } else { self.op2(Class::B32, "add.s32", column, columns) };
                let to = home.offset + panel * home.tile.panel_bytes();
                let coordinates: Vec<String> = at.iter().map(Reg::to_string).collect();
                emit!(
                    self,
                    "cp.async.bulk.tensor.{}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes \
                     [{stage}+{to}], [{map}, {{{}}}], [{barrier}];",
                    at.len(),
                    coordinates.join(", ")
                );
            }
        }
    }

    /// A coordinate in 32 bits.
    fn coordinate(&mut self, at: Reg) -> Reg {
        let at = self.op2(Class::B64, "max.s64", at, -FAR);
        let at = self.op2(Class::B64, "min.s64", at, FAR);
        self.op1(Class::B32, "cvt.u32.u64", at)
    }
}
