//! Tensor core GEMM of `f32` rounded to tf32: `mma.sync` of 8 K steps.
//!
//! It exists for [`Float32MatmulPrecision::High`](super::super::Float32MatmulPrecision), which trades 13 bits for
//! speed.
//!
//! An element takes the place of two of half precision. Where an operand is K-major in shared memory, `ldmatrix` reads
//! fragments of 8 steps as it does those of 16 steps of half precision ([`mma`](super)). Where it is MN-major, `.trans`
//! would split an element. There each lane reads its words itself: lane `l` those of rows `l % 4` and `l % 4 + 4`,
//! column `l / 4`.
//!
//! Operands in shared memory are rounded when a fragment has been read, others when they are written there. `wgmma`
//! reads shared memory itself: its operands are rounded in place once they have arrived.

use super::super::BLOCK_SIZE;
use super::super::analysis::layout::Layout;
use super::super::analysis::plan::Pipeline;
use super::super::emitter::{Fixed, Gen};
use super::super::machine::{Class, Reg, mem_at, vector_of};
use super::super::memory::shared_tile::{SmemLayout, VECTOR_BYTES};
use super::{DotOperand, EIGHT, SIDE};
use crate::dtype::DType;
use crate::kernel::ir::Value;

/// An operand of `dot`, and where this lane reads it.
struct Read {
    dot_operand: DotOperand,
    /// Whether its elements are not rounded yet.
    rounds: bool,
    from: From,
}

enum From {
    /// The rows of matrices, for each 8 steps.
    Matrices(Vec<Reg>),
    /// For each eight rows (or columns) of the operand, the words of the first four steps and those of the next.
    Words(Vec<[Reg; 2]>),
}

impl Gen<'_> {
    /// `result = a · b + acc`, of operands of `f32` that are rounded to tf32.
    pub fn tf32_dot(&mut self, result: Value, [a, b]: [Value; 2], acc: Value) {
        let (l, inner) = (self.layout(result), self.layout(a).columns);
        let Some([(lhs, height), (rhs, width)]) = self.warp_dot_operands(result, [a, b], DType::F32) else { return };
        let rounds = [a, b].map(|tile| self.plan.smem_tile(tile).is_some());
        let lhs = self.read_from(lhs, rounds[0], height, inner);
        let rhs = self.read_from(rhs, rounds[1], width, inner);

        let accumulators: Vec<Reg> = self.all(acc).into_iter().map(|r| self.copy(r)).collect();
        for k in 0..inner / EIGHT {
            // Of each eight rows, the first four steps and the next; a fragment of the left operand has both of the
            // first eight rows first.
            let a: Vec<[Reg; 2]> = self.read_fragments(&lhs, height, k);
            let b: Vec<[Reg; 2]> = self.read_fragments(&rhs, width, k);
            for (i, a) in (0..).zip(a.chunks_exact(2)) {
                let a = [a[0][0], a[1][0], a[0][1], a[1][1]];
                for (j, b) in (0..).zip(&b) {
                    self.multiply_tf32(l, &accumulators, (i, j), &a, b);
                }
            }
        }
        self.set_all(result, accumulators);
    }

    /// An `f32`, rounded to the nearest number of tf32, of two that are as near to the one away from zero.
    pub fn rounded_to_tf32(&mut self, value: Reg) -> Reg {
        self.op1(Class::B32, "cvt.rna.tf32.f32", value)
    }

    /// Rounds the tiles of a stage that warpgroups take as tf32, if there are some: they have arrived, and a barrier
    /// says that they are rounded.
    pub fn round_stage(&mut self, pipeline: &Pipeline, stage: Reg) {
        let plan = self.plan.clone();
        let rounded: Vec<_> = pipeline
            .smem_tiles
            .iter()
            .map(|&smem_tile| &plan.smem_tiles[smem_tile])
            .filter(|smem_tile| smem_tile.rounds)
            .collect();
        for smem_tile in &rounded {
            let start = self.op2(Class::B32, "add.u32", stage, smem_tile.offset);
            self.round_tile(smem_tile.tile, start);
        }
        if !rounded.is_empty() {
            self.fence_async_proxy();
            self.meet();
        }
    }

    /// Rounds the elements of a tile in shared memory where they lie, in whatever order: threads take 16 bytes at a
    /// time.
    pub fn round_tile(&mut self, tile: SmemLayout, start: Reg) {
        let vectors = tile.rows * tile.vectors();
        let (thread, own) = (self.fixed(Fixed::Thread), self.reg(Class::B32));
        emit!(self, "mad.lo.u32", own, thread, VECTOR_BYTES, start);
        for i in 0..vectors.div_ceil(BLOCK_SIZE) {
            let rest = vectors - i * BLOCK_SIZE;
            let none = (rest < BLOCK_SIZE).then(|| {
                let (over, none) = (self.op2(Class::Pred, "setp.ge.u32", thread, rest), self.label());
                emit!(self, @over, "bra", none);
                none
            });
            let words: [Reg; 4] = std::array::from_fn(|_| self.reg(Class::F32));
            let at = i * BLOCK_SIZE * VECTOR_BYTES;
            emit!(self, "ld.shared.v4.f32", vector_of(&words), mem_at(own, at));
            let words = words.map(|word| self.rounded_to_tf32(word));
            emit!(self, "st.shared.v4.b32", mem_at(own, at), vector_of(&words));
            if let Some(none) = none {
                self.place_label(none);
            }
        }
    }

    /// Where this lane reads `extent` rows (or columns) of an operand from its warp's first, along `inner` steps.
    fn read_from(&mut self, dot_operand: DotOperand, rounds: bool, extent: u32, inner: u32) -> Read {
        if !dot_operand.is_mn_major {
            let from = From::Matrices(self.addresses(&dot_operand, extent, 2 * inner));
            return Read { dot_operand, rounds, from };
        }
        let lane = self.fixed(Fixed::Lane);
        let row = self.op2(Class::B32, "and.b32", lane, 3);
        let rows = [row, self.op2(Class::B32, "add.u32", row, 4)];
        let column = self.op2(Class::B32, "shr.u32", lane, 2);
        let word = self.op2(Class::B32, "and.b32", column, 3);
        let column = self.op2(Class::B32, "add.u32", column, dot_operand.first);
        let vector = self.op2(Class::B32, "shr.u32", column, 2);
        let words = (0..extent / EIGHT).map(|i| {
            let vector = if i == 0 { vector } else { self.op2(Class::B32, "add.u32", vector, 2 * i) };
            rows.map(|row| {
                let (place, address) =
                    (dot_operand.tile.place(self, dot_operand.start, row, vector), self.reg(Class::B32));
                emit!(self, "mad.lo.u32", address, word, dot_operand.tile.size, place);
                address
            })
        });
        let from = From::Words(words.collect());
        Read { dot_operand, rounds, from }
    }

    /// Of each eight of `extent` rows (or columns) of an operand, the registers of the `k`-th eight steps.
    fn read_fragments(&mut self, read: &Read, extent: u32, k: u32) -> Vec<[Reg; 2]> {
        let dot_operand = &read.dot_operand;
        let mut fragments: Vec<[Reg; 2]> = Vec::new();
        match &read.from {
            From::Matrices(from) => {
                for i in 0..extent.div_ceil(SIDE) {
                    let count = if (i + 1) * SIDE > extent { 2 } else { 4 };
                    let m = self.read_matrices(dot_operand, from, i, k, count);
                    // The second matrix of a right operand follows along K, that of a left one is below the first.
                    match m[..] {
                        [a, b, c, d] if dot_operand.transposed => fragments.extend([[a, b], [c, d]]),
                        [a, b, c, d] => fragments.extend([[a, c], [b, d]]),
                        _ => fragments.push([m[0], m[1]]),
                    }
                }
            }
            From::Words(from) => {
                let offset = k * EIGHT * dot_operand.tile.pitch();
                for from in from {
                    fragments.push(from.map(|from| self.load_shared(Class::B32, from, offset)));
                }
            }
        }
        if read.rounds {
            fragments.iter_mut().flatten().for_each(|word| *word = self.rounded_to_tf32(*word));
        }
        fragments
    }

    fn multiply_tf32(&mut self, l: Layout, accumulators: &[Reg], (i, j): (u32, u32), a: &[Reg], b: &[Reg]) {
        let d = [(0, 0), (0, 1), (1, 0), (1, 1)].map(|(r, c)| accumulators[l.register(2 * i + r, 2 * j + c)]);
        let (d, a, b) = (vector_of(&d), vector_of(a), vector_of(b));
        emit!(self, "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32", d.clone(), a, b, d);
    }
}
