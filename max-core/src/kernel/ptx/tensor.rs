//! Products of tiles by the tensor cores: `mma.sync` on fragments that `ldmatrix` reads from shared memory.

use super::emitter::{Class, Fixed, Gen, Reg};
use super::hazard::{Hazards, READ, WRITE};
use super::home::{SharedTile, UNIT};
use super::layout::{Kind, Layout};
use super::memory::guard;
use super::units::{listed, vector};
use crate::dtype::DType;
use crate::kernel::ir::Value;

/// Rows of a fragment of the left factor, and columns of two of the right one; of halves, also their steps.
pub(super) const SIDE: u32 = 16;
/// What of a factor one 8 by 8 matrix takes along each axis.
pub(super) const EIGHT: u32 = 8;

/// A factor in shared memory.
pub(super) struct Factor {
    pub start: Reg,
    pub tile: SharedTile,
    /// Whether it lies there the other way round.
    pub transposed: bool,
    /// Whether the axis that is summed runs down the rows in shared memory.
    pub sums_down: bool,
    /// This warp's first row or column of the product.
    pub first: Reg,
}

impl Gen<'_> {
    /// `result = a · b + acc`, of factors that are exact in a half dtype.
    pub fn tensor_dot(&mut self, result: Value, [a, b]: [Value; 2], acc: Value, half: DType) {
        let l = self.layout(result);
        let inner = self.layout(a).columns;
        let Some([(left, height), (right, width)]) = self.warp_factors(result, [a, b], half) else { return };
        let (from_left, from_right) = (self.addresses(&left, height, inner), self.addresses(&right, width, inner));

        let sums: Vec<Reg> = self.all(acc).into_iter().map(|r| self.copy(r)).collect();
        for k in 0..inner / SIDE {
            let a: Vec<Vec<Reg>> = (0..height / SIDE).map(|i| self.read_matrices(&left, &from_left, i, k, 4)).collect();
            let b: Vec<Vec<Reg>> = (0..width.div_ceil(SIDE))
                .flat_map(|j| {
                    let count = if (j + 1) * SIDE > width { 2 } else { 4 };
                    let read = self.read_matrices(&right, &from_right, j, k, count);
                    read.chunks(2).map(<[Reg]>::to_vec).collect::<Vec<_>>()
                })
                .collect();
            for (i, a) in (0..).zip(&a) {
                for (j, b) in (0..).zip(&b) {
                    self.multiply(l, &sums, (i, j), a, b, half);
                }
            }
        }
        self.set_all(result, sums);
    }

    /// The factors of a product in shared memory, and how many rows of the left one and columns of the right one are this warp's.
    pub fn warp_factors(&mut self, product: Value, factors: [Value; 2], dtype: DType) -> Option<[(Factor, u32); 2]> {
        let l = self.layout(product);
        let Kind::Fragments { warp_rows, warp_columns } = l.kind else { return None };
        let factors = self.factors(product, factors, dtype);
        let (warp_row, warp_column) = self.warp_place(l);
        let sides = [(warp_row, l.rows / warp_rows, false), (warp_column, l.columns / warp_columns, true)];
        Some(sides.map(|(warp, extent, is_right)| {
            let (start, tile, transposed) = factors[usize::from(is_right)];
            let first = self.op2(Class::B32, "mul.lo.u32", warp, extent);
            (Factor { start, tile, transposed, sums_down: transposed != is_right, first }, extent)
        }))
    }

    /// What a product touches of factors that live in shared memory: the barrier of a loop that reads ahead is all that its
    /// tiles need.
    pub fn reads_of_homes(&self, factors: [Value; 2]) -> Hazards {
        let mut touch = self.no_touches();
        for tile in factors.into_iter().filter(|tile| !self.ahead.contains_key(tile)) {
            if let Some(home) = self.plan.home(tile) {
                touch.touch_home(home.index, READ);
            }
        }
        touch
    }

    /// The factors of a product in shared memory: where each begins, how it lies there, and whether the other way round. All
    /// threads have written what they write of them.
    pub fn factors(&mut self, product: Value, [a, b]: [Value; 2], dtype: DType) -> [(Reg, SharedTile, bool); 2] {
        let plan = self.plan.clone();
        let homes = [a, b].map(|tile| plan.home(tile));
        let mut touch = self.reads_of_homes([a, b]);
        if homes.iter().all(Option::is_some) {
            self.before(&touch);
        } else {
            let mut staging = self.no_touches();
            staging.touch_shared(WRITE);
            self.before(&staging);
        }
        let mut staged = 0;
        let factors = [(a, false), (b, true)].map(|(tile, is_right)| match plan.home(tile) {
            Some(home) => (self.home_start(tile, &home), home.tile, home.transposed),
            None => {
                let l = self.layout(tile);
                // Warpgroups take what are no halves along the sum alone.
                let along = plan.of_warpgroups(product) && dtype == DType::F32;
                let down = if along { is_right } else { l.runs_down() };
                let (rows, columns) = if down { (l.columns, l.rows) } else { (l.rows, l.columns) };
                let mut shared = SharedTile::new(rows, columns, dtype.size_in_bytes() as u32, true);
                if plan.of_warpgroups(product) {
                    shared = plan.in_panels(self.kernel, product, is_right, shared, down);
                }
                let start = self.stage_factor(tile, (shared, down), staged, dtype);
                staged += shared.bytes().next_multiple_of(plan.alignment);
                (start, shared, down)
            }
        });
        if staged > 0 {
            if plan.of_warpgroups(product) {
                self.fence_for_products();
            }
            self.bar();
            touch.touch_shared(READ);
            self.hazards.join(&touch);
        }
        factors
    }

    /// This warp's place among those that a product is divided among.
    pub fn warp_place(&mut self, l: Layout) -> (Reg, Reg) {
        let warp_rows = match l.kind {
            Kind::Fragments { warp_rows, .. } | Kind::Quads { warp_rows, .. } => warp_rows,
            Kind::Cyclic { .. } | Kind::Runs { .. } | Kind::Rows { .. } => 1,
        };
        let warp = self.fixed(Fixed::Warp);
        let row = self.op2(Class::B32, "and.b32", warp, warp_rows - 1);
        (row, self.op2(Class::B32, "shr.u32", warp, warp_rows.ilog2()))
    }

    /// Writes a tile to shared memory as tensor cores take it, `offset` bytes from where operations have theirs; the other way
    /// round if `down`.
    fn stage_factor(&mut self, tile: Value, (shared, down): (SharedTile, bool), offset: u32, dtype: DType) -> Reg {
        let l = self.layout(tile);
        self.need_shared(u64::from(offset) + u64::from(shared.bytes()));
        let begin = self.fixed(Fixed::Shared);
        let start = self.op2(Class::B32, "add.u32", begin, offset);
        let (row, column) = self.thread_position(l);
        let owned = self.owned(l);
        let values = self.all(tile);
        let per_unit = UNIT / shared.size;
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
            let unit = self.op2(Class::B32, "shr.u32", at, per_unit.ilog2());
            let in_unit = self.op2(Class::B32, "and.b32", at, per_unit - 1);
            let mut places: Vec<(u32, Reg)> = Vec::new();
            for i in 0..own_rows {
                let offset = row_offset(i);
                // Rows eight apart have their units at the same places.
                let known = places.iter().find(|(known, _)| (offset - known).is_multiple_of(8)).copied();
                let (from, address) = known.unwrap_or_else(|| {
                    let row = self.op2(Class::B32, "add.u32", row, offset);
                    let place = shared.place(self, start, row, unit);
                    let address = self.reg(Class::B32);
                    emit!(self, "mad.lo.u32 {address}, {in_unit}, {}, {place};", shared.size);
                    places.push((offset, address));
                    (offset, address)
                });
                let neighbours: Vec<Reg> = (j..j + together).map(|j| values[register(i, j)]).collect();
                let words = self.factor_words(dtype, &neighbours);
                let (at, when) = ((offset - from) * shared.pitch(), guard(owned[register(i, j)]));
                let (vector, ty) = (vector(&words), if words[0].class == Class::B16 { "b16" } else { "b32" });
                emit!(self, "{when}st.shared{vector}.{ty} [{address}+{at}], {};", listed(&words));
            }
        }
        start
    }

    /// Neighbours as tensor cores take them: words, or a half alone.
    fn factor_words(&mut self, dtype: DType, values: &[Reg]) -> Vec<Reg> {
        match (dtype, values) {
            (DType::F32, _) => values.iter().map(|&v| self.rounded_to_tf32(v)).collect(),
            (_, &[one]) => vec![self.encode(dtype, one)],
            (_, _) => values.chunks(2).map(|pair| self.pack(dtype, [pair[0], pair[1]])).collect(),
        }
    }

    /// Two values as halves in a word, the first one in its lower half.
    fn pack(&mut self, half: DType, [low, high]: [Reg; 2]) -> Reg {
        let ty = factor_type(half);
        self.op2(Class::B32, &format!("cvt.rn.{ty}x2.f32"), high, low)
    }

    /// The addresses where this lane reads `extent` rows (or columns) from a factor's first, along `inner` steps: one for
    /// every 16 elements along the rows in shared memory.
    ///
    /// Of the four matrices that are read at once, two follow each other along the axis that is summed and two along the
    /// other, in the order of the fragments; lane `l` has the address of row `l % 8` of matrix `l / 8`.
    pub fn addresses(&mut self, factor: &Factor, extent: u32, inner: u32) -> Vec<Reg> {
        let lane = self.fixed(Fixed::Lane);
        // The second matrix of a left factor is below the first, that of a right one follows along the sum.
        let (down, along) = if factor.transposed {
            let row = self.op2(Class::B32, "and.b32", lane, EIGHT - 1);
            let pair = self.op2(Class::B32, "shr.u32", lane, SIDE.ilog2());
            let rows = self.reg(Class::B32);
            emit!(self, "mad.lo.u32 {rows}, {pair}, {EIGHT}, {row};");
            let matrix = self.op2(Class::B32, "shr.u32", lane, EIGHT.ilog2());
            (rows, self.op2(Class::B32, "and.b32", matrix, 1))
        } else {
            let row = self.op2(Class::B32, "and.b32", lane, SIDE - 1);
            (row, self.op2(Class::B32, "shr.u32", lane, SIDE.ilog2()))
        };
        let (row, unit, steps) = if factor.sums_down {
            let first = self.op2(Class::B32, "shr.u32", factor.first, EIGHT.ilog2());
            (down, self.op2(Class::B32, "add.u32", along, first), extent.div_ceil(SIDE))
        } else {
            (self.op2(Class::B32, "add.u32", down, factor.first), along, inner / SIDE)
        };
        (0..steps)
            .map(|step| {
                let unit = if step == 0 { unit } else { self.op2(Class::B32, "add.u32", unit, 2 * step) };
                factor.tile.place(self, factor.start, row, unit)
            })
            .collect()
    }

    /// Reads matrices of the `i`-th 16 rows (or columns) and the `k`-th 16 steps of a factor.
    pub fn read_matrices(&mut self, factor: &Factor, from: &[Reg], i: u32, k: u32, count: u32) -> Vec<Reg> {
        let (unit, row) = if factor.sums_down { (i, k) } else { (k, i) };
        let regs: Vec<Reg> = (0..count).map(|_| self.reg(Class::B32)).collect();
        // The fragment of the left factor has its rows across lanes, that of the right one its columns.
        let trans = if factor.sums_down { ".trans" } else { "" };
        let address = from[unit as usize];
        let offset = row * SIDE * factor.tile.pitch();
        emit!(self, "ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 {}, [{address}+{offset}];", braced(&regs));
        regs
    }

    fn multiply(&mut self, l: Layout, sums: &[Reg], (i, j): (u32, u32), a: &[Reg], b: &[Reg], half: DType) {
        let sums: Vec<Reg> =
            [(0, 0), (0, 1), (1, 0), (1, 1)].map(|(r, c)| sums[l.register(2 * i + r, 2 * j + c)]).to_vec();
        let ty = factor_type(half);
        let d = braced(&sums);
        emit!(self, "mma.sync.aligned.m16n8k16.row.col.f32.{ty}.{ty}.f32 {d}, {}, {}, {d};", braced(a), braced(b));
    }
}

/// What tensor cores call the dtype of a factor; `f32` they take rounded.
pub(super) fn factor_type(dtype: DType) -> &'static str {
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

pub(super) fn braced(regs: &[Reg]) -> String {
    let names: Vec<String> = regs.iter().map(Reg::to_string).collect();
    format!("{{{}}}", names.join(", "))
}
