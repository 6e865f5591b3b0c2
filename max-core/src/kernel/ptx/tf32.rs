//! Products of `f32` by the tensor cores: `mma.sync` of 8 steps, on factors that are rounded to tf32.
//!
//! An element takes the place of two halves. So where the axis that is summed runs along the rows in shared memory, `ldmatrix`
//! reads fragments of 8 steps as it does those of 16 steps of halves ([`tensor`](super::tensor)). Where it runs down the rows,
//! `.trans` would part an element's halves: there each lane reads its words itself, lane `l` those of row `l % 4`, and of row
//! `l % 4 + 4`, in column `l / 4`.
//!
//! Factors that live in shared memory are rounded when a fragment has been read, others when they are written there. Warpgroups
//! read shared memory themselves: for them, factors that live there are rounded where they lie, once they have arrived.

use super::BLOCK_SIZE;
use super::emitter::{Class, Fixed, Gen, Reg};
use super::home::{SharedTile, UNIT};
use super::layout::Layout;
use super::plan::Ahead;
use super::tensor::{EIGHT, Factor, SIDE, braced};
use crate::dtype::DType;
use crate::kernel::ir::Value;

/// A factor, and where this lane reads it.
struct Read {
    factor: Factor,
    /// Whether its elements are not rounded yet.
    rounds: bool,
    from: From,
}

enum From {
    /// The rows of matrices, for each 8 steps.
    Matrices(Vec<Reg>),
    /// For each eight rows (or columns) of the factor, the words of the first four steps and those of the next.
    Words(Vec<[Reg; 2]>),
}

impl Gen<'_> {
    /// `result = a · b + acc`, of factors of `f32` that are rounded to tf32.
    pub fn tf32_dot(&mut self, result: Value, [a, b]: [Value; 2], acc: Value) {
        let (l, inner) = (self.layout(result), self.layout(a).columns);
        let Some([(left, height), (right, width)]) = self.warp_factors(result, [a, b], DType::F32) else { return };
        let rounds = [a, b].map(|tile| self.plan.home(tile).is_some());
        let left = self.read_from(left, rounds[0], height, inner);
        let right = self.read_from(right, rounds[1], width, inner);

        let sums: Vec<Reg> = self.all(acc).into_iter().map(|r| self.copy(r)).collect();
        for k in 0..inner / EIGHT {
            // Of each eight rows, the first four steps and the next; a fragment of the left factor has both of the first eight
            // rows first.
            let a: Vec<[Reg; 2]> = self.read_fragments(&left, height, k);
            let b: Vec<[Reg; 2]> = self.read_fragments(&right, width, k);
            for (i, a) in (0..).zip(a.chunks_exact(2)) {
                let a = [a[0][0], a[1][0], a[0][1], a[1][1]];
                for (j, b) in (0..).zip(&b) {
                    self.multiply_tf32(l, &sums, (i, j), &a, b);
                }
            }
        }
        self.set_all(result, sums);
    }

    /// An `f32`, rounded to the nearest number of tf32, of two that are as near to the one away from zero.
    pub fn rounded_to_tf32(&mut self, value: Reg) -> Reg {
        self.op1(Class::B32, "cvt.rna.tf32.f32", value)
    }

    /// Rounds the tiles of a stage that warpgroups take as tf32, if there are some: they have arrived, and a barrier says that they are
    /// rounded.
    pub fn round_stage(&mut self, ahead: &Ahead, stage: Reg) {
        let plan = self.plan.clone();
        let rounded: Vec<_> = ahead.homes.iter().map(|&home| &plan.homes[home]).filter(|home| home.rounds).collect();
        for home in &rounded {
            let start = self.op2(Class::B32, "add.u32", stage, home.offset);
            self.round_tile(home.tile, start);
        }
        if !rounded.is_empty() {
            self.fence_for_products();
            self.meet();
        }
    }

    /// Rounds the elements of a tile in shared memory where they lie, in whatever order: threads take 16 bytes at a time.
    pub fn round_tile(&mut self, tile: SharedTile, start: Reg) {
        let units = tile.rows * tile.units();
        let (thread, own) = (self.fixed(Fixed::Thread), self.reg(Class::B32));
        emit!(self, "mad.lo.u32 {own}, {thread}, {UNIT}, {start};");
        for i in 0..units.div_ceil(BLOCK_SIZE) {
            let rest = units - i * BLOCK_SIZE;
            let none = (rest < BLOCK_SIZE).then(|| {
                let (over, none) = (self.op2(Class::Pred, "setp.ge.u32", thread, rest), self.label());
                emit!(self, "@{over} bra {none};");
                none
            });
            let words: [Reg; 4] = std::array::from_fn(|_| self.reg(Class::F32));
            let at = i * BLOCK_SIZE * UNIT;
            emit!(self, "ld.shared.v4.f32 {}, [{own}+{at}];", braced(&words));
            let words = words.map(|word| self.rounded_to_tf32(word));
            emit!(self, "st.shared.v4.b32 [{own}+{at}], {};", braced(&words));
            if let Some(none) = none {
                self.place_label(none);
            }
        }
    }

    /// Where this lane reads `extent` rows (or columns) of a factor from its warp's first, along `inner` steps.
    fn read_from(&mut self, factor: Factor, rounds: bool, extent: u32, inner: u32) -> Read {
        if !factor.sums_down {
            let from = From::Matrices(self.addresses(&factor, extent, 2 * inner));
            return Read { factor, rounds, from };
        }
        let lane = self.fixed(Fixed::Lane);
        let row = self.op2(Class::B32, "and.b32", lane, 3);
        let rows = [row, self.op2(Class::B32, "add.u32", row, 4)];
        let column = self.op2(Class::B32, "shr.u32", lane, 2);
        let word = self.op2(Class::B32, "and.b32", column, 3);
        let column = self.op2(Class::B32, "add.u32", column, factor.first);
        let unit = self.op2(Class::B32, "shr.u32", column, 2);
        let words = (0..extent / EIGHT).map(|i| {
            let unit = if i == 0 { unit } else { self.op2(Class::B32, "add.u32", unit, 2 * i) };
            rows.map(|row| {
                let (place, address) = (factor.tile.place(self, factor.start, row, unit), self.reg(Class::B32));
                emit!(self, "mad.lo.u32 {address}, {word}, {}, {place};", factor.tile.size);
                address
            })
        });
        let from = From::Words(words.collect());
        Read { factor, rounds, from }
    }

    /// Of each eight of `extent` rows (or columns) of a factor, the registers of the `k`-th eight steps.
    fn read_fragments(&mut self, read: &Read, extent: u32, k: u32) -> Vec<[Reg; 2]> {
        let factor = &read.factor;
        let mut fragments: Vec<[Reg; 2]> = Vec::new();
        match &read.from {
            From::Matrices(from) => {
                for i in 0..extent.div_ceil(SIDE) {
                    let count = if (i + 1) * SIDE > extent { 2 } else { 4 };
                    let m = self.read_matrices(factor, from, i, k, count);
                    // The second matrix of a right factor follows along the sum, that of a left one is below the first.
                    match m[..] {
                        [a, b, c, d] if factor.transposed => fragments.extend([[a, b], [c, d]]),
                        [a, b, c, d] => fragments.extend([[a, c], [b, d]]),
                        _ => fragments.push([m[0], m[1]]),
                    }
                }
            }
            From::Words(from) => {
                let offset = k * EIGHT * factor.tile.pitch();
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

    fn multiply_tf32(&mut self, l: Layout, sums: &[Reg], (i, j): (u32, u32), a: &[Reg], b: &[Reg]) {
        let d = [(0, 0), (0, 1), (1, 0), (1, 1)].map(|(r, c)| sums[l.register(2 * i + r, 2 * j + c)]);
        let (d, a, b) = (braced(&d), braced(a), braced(b));
        emit!(self, "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {d}, {a}, {b}, {d};");
    }
}
