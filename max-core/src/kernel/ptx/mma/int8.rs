//! Tensor core GEMM of 8-bit integers and floats: `mma.sync` of 32 K steps, on operands in shared memory.
//!
//! It exists because `ldmatrix` transposes pairs of bytes only, and a B that is not K-major needs bytes.
//!
//! The left operand is read as one of half precision that is half as wide: the four bytes of a fragment's word follow
//! each other in a row. So is a right operand that is loaded transposed (K-major). In any other these four bytes are in
//! four rows. Then each lane gets two rows of two neighbouring columns each, of two matrices, and `prmt` makes a word
//! of either column. Fragments have the even columns of 16, or the odd ones, and a thread four accumulators side by
//! side ([`Kind::Quads`]).
//!
//! Lane `l` needs the rows `4 (l % 4)` to `4 (l % 4) + 3`. Eight rows that are read at once must differ modulo 8, to be
//! free of bank conflicts. So the first of two matrices has the first two of these rows for the lanes with `l % 4 < 2`,
//! and the last two for the others, which `prmt` then takes in the other order.

use super::super::analysis::layout::Kind;
use super::super::analysis::plan::ByteDot;
use super::super::emitter::{Fixed, Gen};
use super::super::machine::{Class, Operand, Reg, mem_at, vector_of};
use super::super::memory::shared_tile::SmemLayout;
use super::{DotOperand, SIDE, mma_type};
use crate::kernel::ir::Value;

/// Steps of a fragment.
const STEPS: u32 = 32;

/// A right operand, and where this lane reads it.
enum Rhs {
    /// Its columns lie side by side: the address of each 16 of them.
    Down { pitch: u32, from: Vec<Reg>, orders: [Reg; 2] },
    /// The elements of a column lie side by side, as those of a left operand's row do.
    Along { dot_operand: DotOperand, from: Vec<Reg> },
}

impl Gen<'_> {
    /// `result = a · b + acc`, of operands that live in shared memory as they lie in memory.
    pub fn byte_dot(&mut self, result: Value, [a, b]: [Value; 2], acc: Value, dot: ByteDot) {
        let (l, plan) = (self.layout(result), self.plan.clone());
        let (Kind::Quads { warp_rows, warp_columns } | Kind::Fragments { warp_rows, warp_columns }) = l.kind else {
            return;
        };
        let (Some(lhs), Some(rhs)) = (plan.smem_tile(a), plan.smem_tile(b)) else { return };
        let touch = self.smem_reads([a, b]);
        self.before(touch);
        let (height, width, inner) = (l.rows / warp_rows, l.columns / warp_columns, lhs.tile.columns);
        let (warp_row, warp_column) = self.warp_place(l);
        let first = self.op2(Class::B32, "mul.lo.u32", warp_row, height);
        let start = self.smem_start(a, &lhs);
        let lhs = DotOperand { start, tile: lhs.tile, transposed: false, is_mn_major: false, first };
        let from_left = self.addresses(&lhs, height, inner / 2);
        let start = self.smem_start(b, &rhs);
        let rhs = self.rhs_bytes(start, rhs.tile, dot.rhs_is_k_major, warp_column, width, inner);

        let accumulators: Vec<Reg> = self.all(acc).into_iter().map(|r| self.copy(r)).collect();
        for k in 0..inner / STEPS {
            let a: Vec<Vec<Reg>> = (0..height / SIDE).map(|i| self.read_matrices(&lhs, &from_left, i, k, 4)).collect();
            for j in 0..width.div_ceil(SIDE) {
                for (half, b) in (0..).zip(self.byte_columns(&rhs, j, k, width)) {
                    for (i, a) in (0..).zip(&a) {
                        let sum = |(r, c): (u32, u32)| match dot.rhs_is_k_major {
                            true => accumulators[l.register(2 * i + r, 4 * j + 2 * half + c)],
                            false => accumulators[l.register(2 * i + r, 4 * j + 2 * c + half)],
                        };
                        let accumulators = [(0, 0), (0, 1), (1, 0), (1, 1)].map(sum);
                        self.multiply_bytes(&accumulators, a, &b, dot);
                    }
                }
            }
        }
        self.set_all(result, accumulators);
    }

    /// Where this lane reads the `width` columns of a right operand that are its warp's.
    fn rhs_bytes(
        &mut self,
        start: Reg,
        tile: SmemLayout,
        along: bool,
        warp_column: Reg,
        width: u32,
        inner: u32,
    ) -> Rhs {
        if along {
            let first = self.op2(Class::B32, "mul.lo.u32", warp_column, width);
            let dot_operand = DotOperand { start, tile, transposed: true, is_mn_major: false, first };
            let from = self.addresses(&dot_operand, width, inner / 2);
            return Rhs::Along { dot_operand, from };
        }
        let row = self.quad_row();
        let first = self.op2(Class::B32, "mul.lo.u32", warp_column, width / SIDE);
        let place = |j| {
            let vector = self.op2(Class::B32, "add.u32", first, j);
            tile.place(self, start, row, vector)
        };
        let from = (0..width / SIDE).map(place).collect();
        Rhs::Down { pitch: tile.pitch(), from, orders: self.byte_orders() }
    }

    /// Fragments of the `j`-th 16 columns and the `k`-th steps: of its halves, or of its even and its odd columns.
    fn byte_columns(&mut self, rhs: &Rhs, j: u32, k: u32, width: u32) -> Vec<Vec<Reg>> {
        match rhs {
            Rhs::Along { dot_operand, from } => {
                let count = if (j + 1) * SIDE > width { 2 } else { 4 };
                self.read_matrices(dot_operand, from, j, k, count).chunks(2).map(<[Reg]>::to_vec).collect()
            }
            Rhs::Down { pitch, from, orders } => {
                let m: Vec<Reg> = (0..4).map(|_| self.reg(Class::B32)).collect();
                let (from, offset) = (from[j as usize], k * STEPS * pitch);
                emit!(self, "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16", vector_of(&m), mem_at(from, offset));
                let columns = |order: &Reg| m.chunks(2).map(|pair| self.permute(pair[0], pair[1], *order)).collect();
                orders.iter().map(columns).collect()
            }
        }
    }

    /// The row whose address this lane gives to `ldmatrix`.
    fn quad_row(&mut self) -> Reg {
        let lane = self.fixed(Fixed::Lane);
        let half = self.op2(Class::B32, "and.b32", lane, 16);
        let four = self.op2(Class::B32, "and.b32", lane, 6);
        let four = self.op2(Class::B32, "shl.b32", four, 1);
        let (matrix, late) = (self.op2(Class::B32, "shr.u32", lane, 3), self.op2(Class::B32, "shr.u32", lane, 2));
        let two = self.op2(Class::B32, "xor.b32", matrix, late);
        let two = self.op2(Class::B32, "and.b32", two, 1);
        let two = self.op2(Class::B32, "shl.b32", two, 1);
        let one = self.op2(Class::B32, "and.b32", lane, 1);
        let row = self.op2(Class::B32, "add.u32", half, four);
        let row = self.op2(Class::B32, "add.u32", row, two);
        self.op2(Class::B32, "add.u32", row, one)
    }

    /// How `prmt` takes the bytes of an even column, and of an odd one, from two matrices.
    fn byte_orders(&mut self) -> [Reg; 2] {
        let lane = self.fixed(Fixed::Lane);
        let late = self.op2(Class::B32, "and.b32", lane, 2);
        let late = self.op2(Class::Pred, "setp.ne.u32", late, 0);
        [
            self.selp(Class::B32, Operand::Bits(0x2064), Operand::Bits(0x6420), late),
            self.selp(Class::B32, Operand::Bits(0x3175), Operand::Bits(0x7531), late),
        ]
    }

    fn permute(&mut self, a: Reg, b: Reg, order: Reg) -> Reg {
        let d = self.reg(Class::B32);
        emit!(self, "prmt.b32", d, a, b, order);
        d
    }

    fn multiply_bytes(&mut self, accumulators: &[Reg], a: &[Reg], b: &[Reg], dot: ByteDot) {
        let [lhs, rhs] = dot.dtypes.map(mma_type);
        let sum = if dot.of_floats() { "f32" } else { "s32" };
        let (d, a, b) = (vector_of(accumulators), vector_of(a), vector_of(b));
        emit!(self, format!("mma.sync.aligned.m16n8k32.row.col.{sum}.{lhs}.{rhs}.{sum}"), d.clone(), a, b, d);
    }
}
