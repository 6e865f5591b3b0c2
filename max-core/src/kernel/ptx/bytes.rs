//! Products of 8-bit integers by the tensor cores: `mma.sync` of 32 steps, on factors in shared memory.
//!
//! A left factor is read as one of halves that is half as long: the four bytes of a fragment's word follow each other in a row. In
//! the right factor these four are in four rows, and `ldmatrix` turns pairs of bytes, not bytes. So each lane gets, of two
//! matrices, two rows and two neighbouring columns each, and `prmt` makes of them a word of either column. Fragments then have the
//! even columns of 16, or the odd ones, and a thread four sums side by side ([`Kind::Quads`]).
//!
//! Lane `l` needs the rows `4 (l % 4)` to `4 (l % 4) + 3`. Eight rows that are read at once must differ modulo 8, to meet all banks:
//! the first of two matrices has the first two of these rows for the lanes with `l % 4 < 2`, and the last two for the others,
//! which `prmt` then takes in the other order.

use super::emitter::{Class, Fixed, Gen, Reg};
use super::hazard::READ;
use super::layout::{Kind, Layout};
use super::tensor::{Factor, braced};
use crate::dtype::DType;
use crate::kernel::ir::Value;

/// Rows of a fragment, and columns of two.
const SIDE: u32 = 16;
/// Steps of a fragment.
const STEPS: u32 = 32;

impl Gen<'_> {
    /// `result = a · b + acc`, of factors of these dtypes that live in shared memory as they lie in memory.
    pub fn byte_dot(&mut self, result: Value, [a, b]: [Value; 2], acc: Value, dtypes: [DType; 2]) {
        let (l, plan) = (self.layout(result), self.plan.clone());
        let Kind::Quads { warp_rows, warp_columns } = l.kind else { return };
        let (Some(left), Some(right)) = (plan.home(a), plan.home(b)) else { return };
        let mut touch = self.no_touches();
        for (tile, home) in [(a, left), (b, right)] {
            // The barrier of a loop that reads ahead is all that its tiles need.
            if !self.ahead.contains_key(&tile) {
                touch.touch_home(home.index, READ);
            }
        }
        self.before(&touch);
        let (height, width, inner) = (l.rows / warp_rows, l.columns / warp_columns, right.tile.rows);
        let (warp_row, warp_column) = self.warp_place(l);
        let first = self.op2(Class::B32, "mul.lo.u32", warp_row, height);
        let start = self.home_start(a, &left);
        let left = Factor { start, tile: left.tile, transposed: false, sums_down: false, first };
        let from_left = self.addresses(&left, height, inner / 2);

        let start = self.home_start(b, &right);
        let row = self.quad_row();
        let first = self.op2(Class::B32, "mul.lo.u32", warp_column, width / SIDE);
        let from_right: Vec<Reg> = (0..width / SIDE)
            .map(|j| {
                let unit = self.op2(Class::B32, "add.u32", first, j);
                right.tile.place(self, start, row, unit)
            })
            .collect();
        let orders = self.byte_orders();

        let sums: Vec<Reg> = self.all(acc).into_iter().map(|r| self.copy(r)).collect();
        for k in 0..inner / STEPS {
            let a: Vec<Vec<Reg>> = (0..height / SIDE).map(|i| self.read_matrices(&left, &from_left, i, k, 4)).collect();
            for (j, &from) in (0..).zip(&from_right) {
                let m: Vec<Reg> = (0..4).map(|_| self.reg(Class::B32)).collect();
                let offset = k * STEPS * right.tile.pitch();
                emit!(self, "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {}, [{from}+{offset}];", braced(&m));
                for (odd, order) in (0..).zip(orders) {
                    let b: Vec<Reg> = m.chunks(2).map(|pair| self.permute(pair[0], pair[1], order)).collect();
                    for (i, a) in (0..).zip(&a) {
                        self.multiply_bytes(l, &sums, (i, j, odd), a, &b, dtypes);
                    }
                }
            }
        }
        self.set_all(result, sums);
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

    fn multiply_bytes(
        &mut self,
        l: Layout,
        sums: &[Reg],
        (i, j, odd): (u32, u32, u32),
        a: &[Reg],
        b: &[Reg],
        dtypes: [DType; 2],
    ) {
        let place = |(r, c): (u32, u32)| sums[l.register(2 * i + r, 4 * j + 2 * c + odd)];
        let d = braced(&[(0, 0), (0, 1), (1, 0), (1, 1)].map(place));
        let [left, right] = dtypes.map(|dtype| if dtype == DType::I8 { "s8" } else { "u8" });
        let (a, b) = (braced(a), braced(b));
        emit!(self, "mma.sync.aligned.m16n8k32.row.col.s32.{left}.{right}.s32 {d}, {a}, {b}, {d};");
    }
}
