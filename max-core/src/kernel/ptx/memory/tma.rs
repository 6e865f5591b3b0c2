//! TMA (tensor memory accelerator): bulk tensor copies of a pipelined loop's tiles, `cp.async.bulk.tensor` (PTX ISA).
//!
//! One thread issues a copy, which completes on an `mbarrier`; the others compute no addresses.
//!
//! A copy is described by a tensor map, a parameter that the launch makes ([`Slot::TensorMap`]). It copies a box of one
//! panel; elements outside of the operand arrive as 0. Rows must be aligned and contiguous for a tensor map. So a
//! launch passes whether all operands have one ([`Slot::Mapped`]), and if not, threads copy by `cp.async`.
//!
//! Each stage has an `mbarrier` whose phase flips once a step. The phases that come next are kept in the bits of a
//! register for as long as the kernel runs, since the same stages serve every run of the loop.

use super::super::Slot;
use super::super::analysis::plan::{Pipeline, SmemTile};
use super::super::emitter::{Fixed, Gen};
use super::super::machine::{Class, Operand, Reg, mem, mem_at};
use super::shared_tile::VECTOR_BYTES;
use crate::kernel::ir::{Inst, Op};

/// Bytes of a barrier.
pub(in crate::kernel::ptx) const BARRIER: u32 = 8;
/// The most rows of a box.
const MAX_BOX_ROWS: u32 = 256;
/// The most axes of an operand.
const MAX_AXES: u32 = 5;
/// Coordinates this far from an operand's beginning are outside of it, as those beyond are.
const FAR: i64 = 1 << 30;

/// The registers by which a loop's stages are waited for.
#[derive(Clone, Copy)]
pub(in crate::kernel::ptx) struct Barriers {
    /// Whether TMA copies.
    mapped: Reg,
    /// The barriers of the first stage, of the one that is read, and of the one that is written.
    pub first: Reg,
    pub reads: Reg,
    pub writes: Reg,
    /// The phase of each stage that is waited for next.
    phases: Reg,
}

/// Whether TMA can copy a tile: a box of its panels fits the limits.
pub(in crate::kernel::ptx) fn fits_tma(smem_tile: &SmemTile) -> bool {
    smem_tile.tile.swizzled
        && !smem_tile.tile.by_words()
        && smem_tile.tile.panel() <= 8
        && smem_tile.tile.panel().is_power_of_two()
        && smem_tile.tile.rows <= MAX_BOX_ROWS
        && smem_tile.rank <= MAX_AXES
}

/// The parameter that has the map of a tile's operand.
pub(in crate::kernel::ptx) fn map_of(smem_tile: &SmemTile) -> Slot {
    let swizzle = smem_tile.tile.panel() * VECTOR_BYTES;
    Slot::TensorMap {
        operand: smem_tile.operand,
        columns: swizzle / smem_tile.tile.size,
        rows: smem_tile.tile.rows,
        swizzle,
    }
}

impl Gen<'_> {
    /// Makes the barriers of a loop, at the entry's start, and gives its registers; `None` if it has none.
    pub fn barriers(&mut self, pipeline: &Pipeline) -> Option<Barriers> {
        let offset = pipeline.barriers?;
        let mapped = self.fixed(Fixed::Mapped);
        let first = self.fixed_barriers(offset, &vec![1; pipeline.stages as usize]);
        let phases = self.zero_at_start();
        Some(Barriers { mapped, first, reads: self.copy(first), writes: self.copy(first), phases })
    }

    /// Waits until the tiles of the stage that is read next have arrived, if TMA copies them.
    pub fn wait_for_tma(&mut self, barriers: &Barriers) {
        let (again, arrived) = (self.label(), self.label());
        emit!(self, @!barriers.mapped, "bra", arrived);
        let bytes = self.op2(Class::B32, "sub.u32", barriers.reads, barriers.first);
        let stage = self.op2(Class::B32, "shr.u32", bytes, BARRIER.ilog2());
        let bits = self.op2(Class::B32, "shr.u32", barriers.phases, stage);
        let phase = self.op2(Class::B32, "and.b32", bits, 1);
        self.place_label(again);
        let over = self.reg(Class::Pred);
        emit!(self, "mbarrier.try_wait.parity.shared::cta.b64", over, mem(barriers.reads), phase);
        emit!(self, @!over, "bra", again);
        let one = self.immediate(Class::B32, 1);
        let bit = self.op2(Class::B32, "shl.b32", one, stage);
        emit!(self, "xor.b32", barriers.phases, barriers.phases, bit);
        self.place_label(arrived);
        self.converge();
    }

    /// Has the threads of a warp go on together, after some of them did something or were waited for: `wgmma`,
    /// `ldmatrix` and barriers of the block are for whole warps.
    pub fn converge(&mut self) {
        emit!(self, "bar.warp.sync", -1);
    }

    /// Issues TMA copies of tiles of a step, or lets `otherwise` copy them.
    pub fn issue_tma(
        &mut self,
        barriers: &Barriers,
        tiles: &[(&Inst, SmemTile)],
        stage: Reg,
        otherwise: impl FnOnce(&mut Self),
    ) {
        let (by_threads, asked) = (self.label(), self.label());
        emit!(self, @!barriers.mapped, "bra", by_threads);
        // One thread requests all.
        let first = self.fixed(Fixed::Leader);
        emit!(self, @!first, "bra", asked);
        self.tma_copy(barriers.writes, tiles, stage);
        emit!(self, "bra", asked);
        self.place_label(by_threads);
        otherwise(self);
        self.place_label(asked);
        self.converge();
    }

    /// Lets TMA copy tiles to a stage, and arrive at its barrier with them. One thread does.
    pub fn tma_copy(&mut self, barrier: Reg, tiles: &[(&Inst, SmemTile)], stage: Reg) {
        let bytes: u32 =
            tiles.iter().map(|(_, smem_tile)| smem_tile.tile.rows * smem_tile.tile.vectors() * VECTOR_BYTES).sum();
        emit!(self, "mbarrier.arrive.expect_tx.shared::cta.b64", Operand::Sink, mem(barrier), bytes);
        for (inst, smem_tile) in tiles {
            let Op::TileLoad { batch, origin, .. } = &inst.op else { continue };
            let map = self.fixed(Fixed::Map(map_of(smem_tile)));
            // The last axis comes first.
            let axes: Vec<Reg> = batch.iter().chain(origin).rev().map(|&v| self.get(v)).collect();
            let mut at: Vec<Reg> = axes.into_iter().map(|axis| self.coordinate(axis)).collect();
            let column = at[0];
            for panel in 0..smem_tile.tile.vectors() / smem_tile.tile.panel() {
                let columns = panel * smem_tile.tile.panel() * VECTOR_BYTES / smem_tile.tile.size;
                at[0] = if panel == 0 { column } else { self.op2(Class::B32, "add.s32", column, columns) };
                let to = smem_tile.offset + panel * smem_tile.tile.panel_bytes();
                let opcode = format!(
                    "cp.async.bulk.tensor.{}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes",
                    at.len()
                );
                emit!(self, opcode, mem_at(stage, to), Operand::Tensor(map, at[..].into()), mem(barrier));
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
