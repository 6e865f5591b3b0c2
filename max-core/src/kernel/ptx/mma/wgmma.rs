//! Warpgroup GEMM of tiles on sm_90a: `wgmma`, for which four warps name both operands in shared memory (PTX ISA,
//! "Asynchronous warpgroup level matrix instructions").
//!
//! It exists because Hopper reaches its peak by `wgmma` alone.
//!
//! An operand lies in panels of up to 128 bytes a row. Eight rows are one swizzle atom, the order in which tiles lie
//! anyway ([`shared_tile`](super::super::memory::shared_tile)). So a matrix descriptor is all that it takes: the start,
//! the strides between atoms and between panels, and the swizzle width. Each warpgroup has 64 rows of the accumulators,
//! and all of their columns or half of them.
//!
//! * One instruction takes 32 bytes of K: 16 of half precision, 8 of tf32, or 32 bytes. Only half precision may be
//!   MN-major.
//! * 8-bit floats stay with `mma.sync` ([`int8`](super::int8)). NVIDIA does not specify how `wgmma` accumulates them.
//!   Measurements on Hopper found 13 fraction bits (Zhang et al., SageAttention2, 2024; DeepSeek-V3, 2024). `mma.sync`
//!   converts them to half precision and accumulates in `f32`.
//! * Operands are read by the asynchronous proxy. What threads wrote must be fenced before the barrier that all pass.
//!   It may be overwritten once the group of `wgmma`s has been waited for.
//! * In a loop that only accumulates, the `wgmma`s of one step run while it begins the next
//!   ([`pipeline`](super::super::memory::pipeline)).

use super::super::analysis::layout::Kind;
use super::super::emitter::{Fixed, Gen};
use super::super::machine::{Class, Reg, vector_of};
use super::super::memory::shared_tile::{SmemLayout, VECTOR_BYTES};
use super::mma_type;
use crate::dtype::DType;
use crate::kernel::ir::Value;

/// Rows of the accumulators of a warpgroup.
const ROWS: u32 = 64;
/// Bytes of the K steps that one instruction makes.
const STEPS_BYTES: u32 = 32;
/// Rows of a pattern.
const SWIZZLE_ATOM_ROWS: u32 = 8;

/// The matrix descriptor of an operand.
struct Descriptor {
    tile: SmemLayout,
    /// Whether it is MN-major: K runs down the rows in shared memory.
    is_mn_major: bool,
    /// The descriptor of the first steps.
    first: Reg,
}

impl Gen<'_> {
    /// Fences what this thread wrote to shared memory for the asynchronous proxy (`wgmma`, TMA). A barrier follows.
    pub fn fence_async_proxy(&mut self) {
        if self.plan.has_wgmma() {
            emit!(self, "fence.proxy.async.shared::cta");
        }
    }

    /// Waits until at most so many groups of `wgmma`s are in flight.
    pub fn wait_for_wgmma(&mut self, under_way: u32) {
        emit!(self, "wgmma.wait_group.sync.aligned", under_way);
    }

    /// `result = a · b + acc`, of operands that tensor cores take as these dtypes, of one size.
    pub fn wgmma_dot(&mut self, result: Value, [a, b]: [Value; 2], acc: Value, dtypes: [DType; 2]) {
        let l = self.layout(result);
        let Kind::Fragments { warp_columns, .. } = l.kind else { return };
        let inner = self.layout(a).columns;
        let width = l.columns / warp_columns;
        let per_step = STEPS_BYTES / dtypes[0].size_in_bytes() as u32;
        let [lhs, rhs] = self.dot_operands(result, [a, b], dtypes[0]);
        // The warpgroups stand below each other, or side by side.
        let lhs = self.described(lhs, false, if warp_columns == 1 { ROWS } else { 0 });
        let rhs = self.described(rhs, true, if warp_columns == 1 { 0 } else { width });
        let steps: Vec<[Reg; 2]> =
            (0..inner / per_step).map(|k| [&lhs, &rhs].map(|dot_operand| self.descriptor(dot_operand, k))).collect();

        let in_place = self.plan.stays_in_place(result);
        let accumulators = self.all(acc);
        let accumulators: Vec<Reg> =
            if in_place { accumulators } else { accumulators.into_iter().map(|r| self.copy(r)).collect() };
        let in_order =
            (0..l.own_columns() / 2).flat_map(|j| [0, 1].map(|i| [2 * j, 2 * j + 1].map(|j| l.register(i, j))));
        let sums_in_order: Vec<Reg> = in_order.flatten().map(|register| accumulators[register]).collect();
        let (d, [of_a, of_b]) = (vector_of(&sums_in_order), dtypes.map(mma_type));
        let [down_a, down_b] = [&lhs, &rhs].map(|dot_operand| u32::from(dot_operand.is_mn_major));
        // Products are added to the accumulators; float operands may be negated, and half precision may lie across the
        // sum.
        let (sum, how): (&str, &[u32]) = match dtypes[0].size_in_bytes() {
            1 => ("s32", &[1]),
            2 => ("f32", &[1, 1, 1, down_a, down_b]),
            _ => ("f32", &[1, 1, 1]),
        };
        let kind = format!("wgmma.mma_async.sync.aligned.m64n{width}k{per_step}.{sum}.{of_a}.{of_b}");
        emit!(self, "wgmma.fence.sync.aligned");
        for [a, b] in steps {
            let operands = [d.clone(), a.into(), b.into()].into_iter();
            self.emit(&kind, None, operands.chain(how.iter().map(|&number| number.into())));
        }
        emit!(self, "wgmma.commit_group.sync.aligned");
        if !in_place {
            self.wait_for_wgmma(0);
        }
        self.set_all(result, accumulators);
    }

    /// The descriptor of an operand; warpgroups have rows (or columns) of the `dot` so far from each other.
    fn described(&mut self, (start, tile, transposed): (Reg, SmemLayout, bool), rhs: bool, apart: u32) -> Descriptor {
        let is_mn_major = transposed != rhs;
        let bytes = if is_mn_major {
            apart * tile.size / VECTOR_BYTES / tile.panel() * tile.panel_bytes()
        } else {
            apart * tile.pitch()
        };
        let start = if bytes > 0 {
            let group = self.fixed(Fixed::Warpgroup);
            let own = self.reg(Class::B32);
            emit!(self, "mad.lo.u32", own, group, bytes, start);
            own
        } else {
            start
        };
        // Offsets are in vectors; that between panels matters only where they follow each other along rows of the
        // `dot`.
        let between_panels = if is_mn_major { tile.panel_bytes() / VECTOR_BYTES } else { 1 };
        let swizzle = match tile.panel() {
            8 => 1,
            4 => 2,
            _ => 3,
        };
        let high = (swizzle << 30) | (SWIZZLE_ATOM_ROWS * tile.pitch() / VECTOR_BYTES);
        let vector = self.op2(Class::B32, "shr.u32", start, VECTOR_BYTES.ilog2());
        let low = self.op2(Class::B32, "or.b32", vector, between_panels << 16);
        let high = self.immediate(Class::B32, high);
        let first = self.reg(Class::B64);
        emit!(self, "mov.b64", first, vector_of(&[low, high]));
        Descriptor { tile, is_mn_major, first }
    }

    /// The descriptor of the `k`-th steps.
    fn descriptor(&mut self, dot_operand: &Descriptor, k: u32) -> Reg {
        let tile = dot_operand.tile;
        let bytes = if dot_operand.is_mn_major {
            k * STEPS_BYTES / tile.size * tile.pitch()
        } else {
            let vector = k * STEPS_BYTES / VECTOR_BYTES;
            vector / tile.panel() * tile.panel_bytes() + vector % tile.panel() * VECTOR_BYTES
        };
        if bytes == 0 {
            dot_operand.first
        } else {
            self.op2(Class::B64, "add.s64", dot_operand.first, bytes / VECTOR_BYTES)
        }
    }
}
