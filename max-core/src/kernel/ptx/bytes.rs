//! Products of 8-bit integers and floats by the tensor cores: `mma.sync` of 32 steps, on factors in shared memory.
//!
//! A left factor is read as one of halves that is half as long: the four bytes of a fragment's word follow each other in a row. So
//! is a right factor that is loaded transposed, since its columns lie so. In any other these four are in four rows, and `ldmatrix`
//! turns pairs of bytes, not bytes. So each lane gets, of two matrices, two rows and two neighbouring columns each, and `prmt` makes
//! of them a word of either column. Fragments then have the even columns of 16, or the odd ones, and a thread four sums side by
//! side ([`Kind::Quads`]).
//!
//! Lane `l` needs the rows `4 (l % 4)` to `4 (l % 4) + 3`. Eight rows that are read at once must differ modulo 8, to meet all banks:
//! the first of two matrices has the first two of these rows for the lanes with `l % 4 < 2`, and the last two for the others,
//! which `prmt` then takes in the other order.

use super::emitter::{Class, Fixed, Gen, Reg};
use super::home::SharedTile;
use super::layout::Kind;
use super::plan::ByteProduct;
use super::tensor::{Factor, SIDE, braced, factor_type};
use crate::kernel::ir::Value;

/// Steps of a fragment.
const STEPS: u32 = 32;

/// A right factor, and where this lane reads it.
enum Right {
    /// Its columns lie side by side: the address of each 16 of them.
    Down { pitch: u32, from: Vec<Reg>, orders: [Reg; 2] },
    /// The elements of a column lie side by side, as those of a left factor's row do.
    Along { factor: Factor, from: Vec<Reg> },
}

impl Gen<'_> {
    /// `result = a · b + acc`, of factors that live in shared memory as they lie in memory.
    pub fn byte_dot(&mut self, result: Value, [a, b]: [Value; 2], acc: Value, product: ByteProduct) {
        let (l, plan) = (self.layout(result), self.plan.clone());
        let (Kind::Quads { warp_rows, warp_columns } | Kind::Fragments { warp_rows, warp_columns }) = l.kind else {
            return;
        };
        let (Some(left), Some(right)) = (plan.home(a), plan.home(b)) else { return };
        let touch = self.reads_of_homes([a, b]);
        self.before(&touch);
        let (height, width, inner) = (l.rows / warp_rows, l.columns / warp_columns, left.tile.columns);
        let (warp_row, warp_column) = self.warp_place(l);
        let first = self.op2(Class::B32, "mul.lo.u32", warp_row, height);
        let start = self.home_start(a, &left);
        let left = Factor { start, tile: left.tile, transposed: false, sums_down: false, first };
        let from_left = self.addresses(&left, height, inner / 2);
        let start = self.home_start(b, &right);
        let right = self.right_bytes(start, right.tile, product.right_along, warp_column, width, inner);

        let sums: Vec<Reg> = self.all(acc).into_iter().map(|r| self.copy(r)).collect();
        for k in 0..inner / STEPS {
            let a: Vec<Vec<Reg>> = (0..height / SIDE).map(|i| self.read_matrices(&left, &from_left, i, k, 4)).collect();
            for j in 0..width.div_ceil(SIDE) {
                for (half, b) in (0..).zip(self.byte_columns(&right, j, k, width)) {
                    for (i, a) in (0..).zip(&a) {
                        let sum = |(r, c): (u32, u32)| match product.right_along {
                            true => sums[l.register(2 * i + r, 4 * j + 2 * half + c)],
                            false => sums[l.register(2 * i + r, 4 * j + 2 * c + half)],
                        };
                        let sums = [(0, 0), (0, 1), (1, 0), (1, 1)].map(sum);
                        self.multiply_bytes(&sums, a, &b, product);
                    }
                }
            }
        }
        self.set_all(result, sums);
    }

    /// Where this lane reads the `width` columns of a right factor that are its warp's.
    fn right_bytes(
        &mut self,
        start: Reg,
        tile: SharedTile,
        along: bool,
        warp_column: Reg,
        width: u32,
        inner: u32,
    ) -> Right {
        if along {
            let first = self.op2(Class::B32, "mul.lo.u32", warp_column, width);
            let factor = Factor { start, tile, transposed: true, sums_down: false, first };
            let from = self.addresses(&factor, width, inner / 2);
            return Right::Along { factor, from };
        }
        let row = self.quad_row();
        let first = self.op2(Class::B32, "mul.lo.u32", warp_column, width / SIDE);
        let place = |j| {
            let unit = self.op2(Class::B32, "add.u32", first, j);
            tile.place(self, start, row, unit)
        };
        let from = (0..width / SIDE).map(place).collect();
        Right::Down { pitch: tile.pitch(), from, orders: self.byte_orders() }
    }

    /// Fragments of the `j`-th 16 columns and the `k`-th steps: of its halves, or of its even and its odd columns.
    fn byte_columns(&mut self, right: &Right, j: u32, k: u32, width: u32) -> Vec<Vec<Reg>> {
        match right {
            Right::Along { factor, from } => {
                let count = if (j + 1) * SIDE > width { 2 } else { 4 };
                self.read_matrices(factor, from, j, k, count).chunks(2).map(<[Reg]>::to_vec).collect()
            }
            Right::Down { pitch, from, orders } => {
                let m: Vec<Reg> = (0..4).map(|_| self.reg(Class::B32)).collect();
                let (from, offset) = (from[j as usize], k * STEPS * pitch);
                emit!(self, "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {}, [{from}+{offset}];", braced(&m));
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
        [self.selp(Class::B32, "0x2064", "0x6420", late), self.selp(Class::B32, "0x3175", "0x7531", late)]
    }

    fn permute(&mut self, a: Reg, b: Reg, order: Reg) -> Reg {
        let d = self.reg(Class::B32);
        emit!(self, "prmt.b32 {d}, {a}, {b}, {order};");
        d
    }

    fn multiply_bytes(&mut self, sums: &[Reg], a: &[Reg], b: &[Reg], product: ByteProduct) {
        let [left, right] = product.dtypes.map(factor_type);
        let sum = if product.of_floats() { "f32" } else { "s32" };
        let (d, a, b) = (braced(sums), braced(a), braced(b));
        emit!(self, "mma.sync.aligned.m16n8k32.row.col.{sum}.{left}.{right}.{sum} {d}, {a}, {b}, {d};");
    }
}
