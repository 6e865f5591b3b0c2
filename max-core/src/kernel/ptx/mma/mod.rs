//! Tensor core GEMM of tiles: `mma.sync` on fragments that `ldmatrix` reads from shared memory (PTX ISA, "Warp-level
//! matrix instructions").
//!
//! It exists because tensor cores multiply half precision many times as fast as fused multiply-adds do. The other forms
//! are [`tf32`], [`int8`] and [`wgmma`].

pub(super) mod int8;
pub(super) mod tf32;
pub(super) mod wgmma;

use super::analysis::hazards::{Hazards, READ, WRITE};
use super::analysis::layout::{Kind, Layout};
use super::emitter::{Fixed, Gen};
use super::machine::{Class, Reg, mem_at, one_or_vector, vector_of};
use super::memory::shared_tile::{SmemLayout, VECTOR_BYTES};
use super::memory::vectorize::vector_suffix;
use crate::dtype::DType;
use crate::kernel::ir::Value;

/// Rows of a fragment of the left operand, and columns of two of the right one; of half precision, also their steps.
pub(super) const SIDE: u32 = 16;
/// What of an operand one 8 by 8 matrix takes along each axis.
pub(super) const EIGHT: u32 = 8;

/// An operand of `dot` in shared memory.
pub(super) struct DotOperand {
    pub start: Reg,
    pub tile: SmemLayout,
    /// Whether it lies there the other way round.
    pub transposed: bool,
    /// Whether it is MN-major: K runs down the rows in shared memory.
    pub is_mn_major: bool,
    /// This warp's first row or column of the `dot`.
    pub first: Reg,
}

impl Gen<'_> {
    /// `result = a · b + acc`, of operands that are exact in a half-precision dtype.
    pub fn mma_dot(&mut self, result: Value, [a, b]: [Value; 2], acc: Value, half: DType) {
        let l = self.layout(result);
        let inner = self.layout(a).columns;
        let Some([(lhs, height), (rhs, width)]) = self.warp_dot_operands(result, [a, b], half) else { return };
        let (from_left, from_right) = (self.addresses(&lhs, height, inner), self.addresses(&rhs, width, inner));

        let accumulators: Vec<Reg> = self.all(acc).into_iter().map(|r| self.copy(r)).collect();
        for k in 0..inner / SIDE {
            let a: Vec<Vec<Reg>> = (0..height / SIDE).map(|i| self.read_matrices(&lhs, &from_left, i, k, 4)).collect();
            let b: Vec<Vec<Reg>> = (0..width.div_ceil(SIDE))
                .flat_map(|j| {
                    let count = if (j + 1) * SIDE > width { 2 } else { 4 };
                    let read = self.read_matrices(&rhs, &from_right, j, k, count);
                    read.chunks(2).map(<[Reg]>::to_vec).collect::<Vec<_>>()
                })
                .collect();
            for (i, a) in (0..).zip(&a) {
                for (j, b) in (0..).zip(&b) {
                    self.multiply(l, &accumulators, (i, j), a, b, half);
                }
            }
        }
        self.set_all(result, accumulators);
    }

    /// The operands of a `dot` in shared memory, and how many rows of the left one and columns of the right one are
    /// this warp's.
    pub fn warp_dot_operands(
        &mut self,
        dot: Value,
        dot_operands: [Value; 2],
        dtype: DType,
    ) -> Option<[(DotOperand, u32); 2]> {
        let l = self.layout(dot);
        let Kind::Fragments { warp_rows, warp_columns } = l.kind else { return None };
        let dot_operands = self.dot_operands(dot, dot_operands, dtype);
        let (warp_row, warp_column) = self.warp_place(l);
        let sides = [(warp_row, l.rows / warp_rows, false), (warp_column, l.columns / warp_columns, true)];
        Some(sides.map(|(warp, extent, is_right)| {
            let (start, tile, transposed) = dot_operands[usize::from(is_right)];
            let first = self.op2(Class::B32, "mul.lo.u32", warp, extent);
            (DotOperand { start, tile, transposed, is_mn_major: transposed != is_right, first }, extent)
        }))
    }

    /// What a `dot` touches of operands that live in shared memory: the barrier of a loop that is pipelined is all that
    /// its tiles need.
    pub fn smem_reads(&self, dot_operands: [Value; 2]) -> Hazards {
        let mut touch = self.no_touches();
        for tile in dot_operands.into_iter().filter(|tile| !self.pipeline.contains_key(tile)) {
            if let Some(smem_tile) = self.plan.smem_tile(tile) {
                touch.touch_smem_tile(smem_tile.index, READ);
            }
        }
        touch
    }

    /// The operands of a `dot` in shared memory: where each begins, how it lies there, and whether the other way round.
    /// All threads have written what they write of them.
    pub fn dot_operands(&mut self, dot: Value, [a, b]: [Value; 2], dtype: DType) -> [(Reg, SmemLayout, bool); 2] {
        let plan = self.plan.clone();
        let smem_tiles = [a, b].map(|tile| plan.smem_tile(tile));
        let mut touch = self.smem_reads([a, b]);
        if smem_tiles.iter().all(Option::is_some) {
            self.before(touch.clone());
        } else {
            let mut staging = self.no_touches();
            staging.touch_shared(WRITE);
            self.before(staging);
        }
        let mut staged = 0;
        let dot_operands = [(a, false), (b, true)].map(|(tile, is_right)| match plan.smem_tile(tile) {
            Some(smem_tile) => (self.smem_start(tile, &smem_tile), smem_tile.tile, smem_tile.transposed),
            None => {
                let l = self.layout(tile);
                // `wgmma` takes other dtypes than half precision K-major only.
                let along = plan.by_wgmma(dot) && dtype == DType::F32;
                let down = if along { is_right } else { l.runs_down() };
                let (rows, columns) = if down { (l.columns, l.rows) } else { (l.rows, l.columns) };
                let mut shared = SmemLayout::new(rows, columns, dtype.size_in_bytes() as u32, true);
                if plan.by_wgmma(dot) {
                    shared = plan.in_panels(self.kernel, dot, is_right, shared, down);
                }
                let start = self.stage_dot_operand(tile, (shared, down), staged, dtype);
                staged += shared.bytes().next_multiple_of(plan.alignment);
                (start, shared, down)
            }
        });
        if staged > 0 {
            if plan.by_wgmma(dot) {
                self.fence_async_proxy();
            }
            self.bar();
            touch.touch_shared(READ);
            self.touch(touch);
        }
        dot_operands
    }

    /// This warp's place among those that a `dot` is divided among.
    pub fn warp_place(&mut self, l: Layout) -> (Reg, Reg) {
        let warp_rows = match l.kind {
            Kind::Fragments { warp_rows, .. } | Kind::Quads { warp_rows, .. } => warp_rows,
            Kind::Cyclic { .. } | Kind::Runs { .. } | Kind::RowCache { .. } => 1,
        };
        let warp = self.fixed(Fixed::Warp);
        let row = self.op2(Class::B32, "and.b32", warp, warp_rows - 1);
        (row, self.op2(Class::B32, "shr.u32", warp, warp_rows.ilog2()))
    }

    /// Writes a tile to shared memory as tensor cores take it, `offset` bytes from where operations have theirs; the
    /// other way round if `down`.
    fn stage_dot_operand(&mut self, tile: Value, (shared, down): (SmemLayout, bool), offset: u32, dtype: DType) -> Reg {
        let l = self.layout(tile);
        self.need_shared(u64::from(offset) + u64::from(shared.bytes()));
        let begin = self.fixed(Fixed::Shared);
        let start = self.op2(Class::B32, "add.u32", begin, offset);
        let (row, column) = self.thread_position(l);
        let owned = self.owned(l);
        let values = self.all(tile);
        let per_unit = VECTOR_BYTES / shared.size;
        let (row, column, own_rows, own_columns) = if down {
            (column, row, l.own_columns(), l.own_rows())
        } else {
            (row, column, l.own_rows(), l.own_columns())
        };
        let column_offset = |j| if down { l.row_offset(j) } else { l.column_offset(j) };
        let row_offset = |i| if down { l.column_offset(i) } else { l.row_offset(i) };
        let register = |i, j| if down { l.register(j, i) } else { l.register(i, j) };
        // Neighbours go as one.
        let together = match down {
            true if l.runs_down() => own_columns.min(per_unit),
            true => 1,
            false => l.neighbours().unwrap_or(1).min(per_unit),
        };
        for j in (0..own_columns).step_by(together as usize) {
            let at = self.op2(Class::B32, "add.u32", column, column_offset(j));
            let vector = self.op2(Class::B32, "shr.u32", at, per_unit.ilog2());
            let in_unit = self.op2(Class::B32, "and.b32", at, per_unit - 1);
            let mut places: Vec<(u32, Reg)> = Vec::new();
            for i in 0..own_rows {
                let offset = row_offset(i);
                // Rows eight apart have their vectors at the same places.
                let known = places.iter().find(|(known, _)| (offset - known).is_multiple_of(8)).copied();
                let (from, address) = known.unwrap_or_else(|| {
                    let row = self.op2(Class::B32, "add.u32", row, offset);
                    let place = shared.place(self, start, row, vector);
                    let address = self.reg(Class::B32);
                    emit!(self, "mad.lo.u32", address, in_unit, shared.size, place);
                    places.push((offset, address));
                    (offset, address)
                });
                let neighbours: Vec<Reg> = (j..j + together).map(|j| values[register(i, j)]).collect();
                let words = self.packed_words(dtype, &neighbours);
                let (at, when) = ((offset - from) * shared.pitch(), owned[register(i, j)]);
                let (vector, ty) = (vector_suffix(&words), if words[0].class == Class::B16 { "b16" } else { "b32" });
                emit!(self, when when, format!("st.shared{vector}.{ty}"), mem_at(address, at), one_or_vector(&words));
            }
        }
        start
    }

    /// Neighbours as tensor cores take them: words, or a half alone.
    fn packed_words(&mut self, dtype: DType, values: &[Reg]) -> Vec<Reg> {
        match (dtype, values) {
            (DType::F32, _) => values.iter().map(|&v| self.rounded_to_tf32(v)).collect(),
            (_, &[one]) => vec![self.encode(dtype, one)],
            (_, _) => values.chunks(2).map(|pair| self.pack(dtype, [pair[0], pair[1]])).collect(),
        }
    }

    /// Two values as halves in a word, the first one in its lower half.
    fn pack(&mut self, half: DType, [low, high]: [Reg; 2]) -> Reg {
        let ty = mma_type(half);
        self.op2(Class::B32, &format!("cvt.rn.{ty}x2.f32"), high, low)
    }

    /// The addresses where this lane reads `extent` rows (or columns) from an operand's first, along `inner` steps: one
    /// for every 16 elements along the rows in shared memory.
    ///
    /// Of the four matrices that are read at once, two follow each other along K and two along the
    /// other, in the order of the fragments; lane `l` has the address of row `l % 8` of matrix `l / 8`.
    pub fn addresses(&mut self, dot_operand: &DotOperand, extent: u32, inner: u32) -> Vec<Reg> {
        let lane = self.fixed(Fixed::Lane);
        // The second matrix of a left operand is below the first, that of a right one follows along K.
        let (down, along) = if dot_operand.transposed {
            let row = self.op2(Class::B32, "and.b32", lane, EIGHT - 1);
            let pair = self.op2(Class::B32, "shr.u32", lane, SIDE.ilog2());
            let rows = self.reg(Class::B32);
            emit!(self, "mad.lo.u32", rows, pair, EIGHT, row);
            let matrix = self.op2(Class::B32, "shr.u32", lane, EIGHT.ilog2());
            (rows, self.op2(Class::B32, "and.b32", matrix, 1))
        } else {
            let row = self.op2(Class::B32, "and.b32", lane, SIDE - 1);
            (row, self.op2(Class::B32, "shr.u32", lane, SIDE.ilog2()))
        };
        let (row, vector, steps) = if dot_operand.is_mn_major {
            let first = self.op2(Class::B32, "shr.u32", dot_operand.first, EIGHT.ilog2());
            (down, self.op2(Class::B32, "add.u32", along, first), extent.div_ceil(SIDE))
        } else {
            (self.op2(Class::B32, "add.u32", down, dot_operand.first), along, inner / SIDE)
        };
        (0..steps)
            .map(|step| {
                let vector = if step == 0 { vector } else { self.op2(Class::B32, "add.u32", vector, 2 * step) };
                dot_operand.tile.place(self, dot_operand.start, row, vector)
            })
            .collect()
    }

    /// Reads matrices of the `i`-th 16 rows (or columns) and the `k`-th 16 steps of an operand.
    pub fn read_matrices(&mut self, dot_operand: &DotOperand, from: &[Reg], i: u32, k: u32, count: u32) -> Vec<Reg> {
        let (vector, row) = if dot_operand.is_mn_major { (i, k) } else { (k, i) };
        let regs: Vec<Reg> = (0..count).map(|_| self.reg(Class::B32)).collect();
        // The fragment of the left operand has its rows across lanes, that of the right one its columns.
        let trans = if dot_operand.is_mn_major { ".trans" } else { "" };
        let address = from[vector as usize];
        let offset = row * SIDE * dot_operand.tile.pitch();
        emit!(
            self,
            format!("ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16"),
            vector_of(&regs),
            mem_at(address, offset)
        );
        regs
    }

    fn multiply(&mut self, l: Layout, accumulators: &[Reg], (i, j): (u32, u32), a: &[Reg], b: &[Reg], half: DType) {
        let accumulators: Vec<Reg> =
            [(0, 0), (0, 1), (1, 0), (1, 1)].map(|(r, c)| accumulators[l.register(2 * i + r, 2 * j + c)]).to_vec();
        let ty = mma_type(half);
        let d = vector_of(&accumulators);
        emit!(
            self,
            format!("mma.sync.aligned.m16n8k16.row.col.f32.{ty}.{ty}.f32"),
            d.clone(),
            vector_of(a),
            vector_of(b),
            d
        );
    }
}

/// What tensor cores call the dtype of an operand; `f32` they take rounded.
pub(super) fn mma_type(dtype: DType) -> &'static str {
    let names = [
        (DType::F16, "f16"),
        (DType::F32, "tf32"),
        (DType::I8, "s8"),
        (DType::U8, "u8"),
        (DType::F8E4M3FN, "e4m3"),
        (DType::F8E5M2, "e5m2"),
    ];
    names.into_iter().find(|(of, _)| *of == dtype).map_or("bf16", |(_, name)| name)
}
