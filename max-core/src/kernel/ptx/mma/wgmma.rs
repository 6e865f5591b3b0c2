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
//! * NVIDIA does not specify how it accumulates 8-bit floats. Measurements on Hopper found 13 fraction bits (Zhang et al.,
//!   SageAttention2, 2024; DeepSeek-V3, 2024). So no more than 128 products are added there: threads add these sums to
//!   accumulators of `f32` (promotion, as in CUTLASS and DeepSeek-V3).
//! * A left operand of half precision that is computed comes from registers, where accumulators of its shape lie as it wants
//!   them: the weights of attention (FlashAttention-3, Shah et al., 2024).
//! * Operands are read by the asynchronous proxy. What threads wrote must be fenced before the barrier that all pass.
//!   It may be overwritten once the group of `wgmma`s has been waited for.
//! * In a loop that only accumulates, the `wgmma`s of one step run while it begins the next
//!   ([`pipeline`](super::super::memory::pipeline)).

use super::super::analysis::layout::{Kind, Layout};
use super::super::emitter::{Fixed, Gen};
use super::super::machine::{Class, Operand, Reg, vector_of};
use super::super::memory::shared_tile::{SmemLayout, VECTOR_BYTES};
use super::{SIDE, mma_type};
use crate::dtype::DType;
use crate::kernel::ir::Value;

/// Rows of the accumulators of a warpgroup.
const ROWS: u32 = 64;
/// Bytes of the K steps that one instruction makes.
const STEPS_BYTES: u32 = 32;
/// Instructions whose sums of 8-bit floats are added to accumulators of `f32`.
const PROMOTED_STEPS: usize = 4;
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

/// The left operand of a warpgroup.
enum Left {
    Shared(Descriptor),
    /// The registers of each step.
    Registers(Vec<Operand>),
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
        // The warpgroups stand below each other, or side by side.
        let [below, beside] = if warp_columns == 1 { [ROWS, 0] } else { [0, width] };
        let (lhs, rhs) = match self.left_in_registers(result, [a, b], dtypes[0]) {
            Some((registers, rhs)) => (Left::Registers(registers), rhs),
            None => {
                let [lhs, rhs] = self.dot_operands(result, [a, b], dtypes[0]);
                (Left::Shared(self.described(lhs, false, below)), rhs)
            }
        };
        let rhs = self.described(rhs, true, beside);
        let steps: Vec<[Operand; 2]> = (0..inner / per_step)
            .map(|k| {
                let left = match &lhs {
                    Left::Shared(lhs) => self.descriptor(lhs, k).into(),
                    Left::Registers(steps) => steps[k as usize].clone(),
                };
                [left, self.descriptor(&rhs, k).into()]
            })
            .collect();

        let (in_place, promotes) = (self.plan.stays_in_place(result), self.plan.promotes(result));
        let accumulators = self.all(acc);
        let accumulators: Vec<Reg> =
            if in_place { accumulators } else { accumulators.into_iter().map(|r| self.copy(r)).collect() };
        let sums: Vec<Reg> = match promotes {
            true => accumulators.iter().map(|sum| self.undefined(sum.class)).collect(),
            false => accumulators.clone(),
        };
        let in_order =
            (0..l.own_columns() / 2).flat_map(|j| [0, 1].map(|i| [2 * j, 2 * j + 1].map(|j| l.register(i, j))));
        let sums_in_order: Vec<Reg> = in_order.flatten().map(|register| sums[register]).collect();
        let (d, [of_a, of_b]) = (vector_of(&sums_in_order), dtypes.map(mma_type));
        let down_b = u32::from(rhs.is_mn_major);
        // Float operands may be negated, and half precision may lie across the sum.
        let (sum, how): (&str, &[u32]) = match (dtypes[0].size_in_bytes(), &lhs) {
            (1, _) if !promotes => ("s32", &[]),
            (2, Left::Shared(lhs)) => ("f32", &[1, 1, u32::from(lhs.is_mn_major), down_b]),
            (2, Left::Registers(_)) => ("f32", &[1, 1, down_b]),
            _ => ("f32", &[1, 1]),
        };
        let kind = format!("wgmma.mma_async.sync.aligned.m64n{width}k{per_step}.{sum}.{of_a}.{of_b}");
        for steps in steps.chunks(if promotes { PROMOTED_STEPS } else { steps.len().max(1) }) {
            emit!(self, "wgmma.fence.sync.aligned");
            for (step, [a, b]) in steps.iter().enumerate() {
                // Products are added to what is there, but for the first ones that are to be promoted.
                let adds = u32::from(!promotes || step > 0);
                let operands = [d.clone(), a.clone(), b.clone(), adds.into()].into_iter();
                self.emit(&kind, None, operands.chain(how.iter().map(|&number| number.into())));
            }
            emit!(self, "wgmma.commit_group.sync.aligned");
            if !in_place {
                self.wait_for_wgmma(0);
            }
            if promotes {
                for (accumulator, sum) in accumulators.iter().zip(&sums) {
                    emit!(self, "add.rn.f32", accumulator, accumulator, sum);
                }
            }
        }
        self.set_all(result, accumulators);
    }

    /// A left operand of half precision that lies in registers as accumulators do, whose rows are those of the result's in each
    /// warp: the words of each step. And the right operand, which lives in shared memory.
    fn left_in_registers(
        &mut self,
        dot: Value,
        [a, b]: [Value; 2],
        half: DType,
    ) -> Option<(Vec<Operand>, (Reg, SmemLayout, bool))> {
        let rows = |l: Layout| match l.kind {
            Kind::Fragments { warp_rows, warp_columns: 1 } => Some(warp_rows),
            Kind::Fragments { .. } | Kind::Cyclic { .. } | Kind::Runs { .. } => None,
            Kind::Quads { .. } | Kind::RowCache { .. } => None,
        };
        let (l, right) = (self.layout(a), self.plan.smem_tile(b)?);
        let alike = rows(l).is_some() && rows(l) == rows(self.layout(dot)) && l.rows == self.layout(dot).rows;
        (alike && half.size_in_bytes() == 2 && self.plan.smem_tile(a).is_none()).then_some(())?;
        let touch = self.smem_reads([b; 2]);
        self.before(touch);
        let values = self.all(a);
        let steps = (0..l.columns / SIDE).map(|k| {
            // The upper and the lower eight rows of eight columns, and of the next eight.
            let word = |(i, j): (u32, u32)| {
                let [low, high] = [4 * k + j, 4 * k + j + 1].map(|j| values[l.register(i, j)]);
                self.pack(half, [low, high])
            };
            vector_of(&[(0, 0), (1, 0), (0, 2), (1, 2)].map(word))
        });
        let steps = steps.collect();
        Some((steps, (self.smem_start(b, &right), right.tile, right.transposed)))
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
