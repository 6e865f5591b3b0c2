//! Tiles between registers and memory.
//!
//! A thread's elements are at offsets from its first one that are the same for all threads. Their addresses are made one
//! after the other, and whether an element is inside of its operand is one comparison of its offset: a tile may have many
//! registers, and addresses of all its elements at a time would take twice as many.
//!
//! Where tensor cores leave sums, a thread has two neighbours of each row of a fragment, and the next ones are those of the
//! three other lanes of its quad; elsewhere it has one, and the next ones are those of the lanes beside it. If the operand's rows
//! consist of units of 16 bytes, these lanes exchange what they have until each has whole units.

use std::collections::HashMap;

use super::emitter::{Class, Fixed, Gen, Reg};
use super::home::UNIT;
use super::layout::{Kind, Layout};
use super::memory::Place;
use super::tensor::half_type;
use crate::dtype::DType;
use crate::kernel::ir::Value;

/// Which offsets from a thread's first row (or column) are inside: so many from one on.
#[derive(Clone, Copy)]
struct Inside {
    from: Reg,
    count: Reg,
}

/// Where a thread's elements of a tile are in memory.
struct TilePlace {
    /// The address of this thread's first element, wherever it is.
    first: Reg,
    /// Whether the coordinates of the leading dimensions are inside.
    inside: Option<Reg>,
    rows: Inside,
    columns: Inside,
    /// Bytes from a row, and from a column, to the next.
    steps: [Reg; 2],
}

/// A tile in an operand: the coordinates of its leading dimensions, and its first row and column there.
#[derive(Clone, Copy)]
pub(super) struct TileAt<'a> {
    pub operand: u32,
    pub batch: &'a [Value],
    pub origin: [Value; 2],
    /// Whether its rows run along the last dimension.
    pub transpose: bool,
}

impl Gen<'_> {
    /// Where a thread's elements of a tile are, which begin at that row and column of it.
    fn tile_place(&mut self, l: Layout, at: TileAt<'_>, own: (Reg, Reg)) -> TilePlace {
        let TileAt { operand, origin, .. } = at;
        let batch: Vec<Reg> = at.batch.iter().map(|&v| self.get(v)).collect();
        let axis = batch.len() as u32;
        let (mut offset, inside) = self.offset(operand, &batch, 0, None, None);
        let size = self.memory_dtype(operand).size_in_bytes();
        let (row_axis, column_axis) = if at.transpose { (1, 0) } else { (0, 1) };
        let [(rows, row_step), (columns, column_step)] = [(row_axis, own.0, l.rows), (column_axis, own.1, l.columns)]
            .map(|(along, own, extent)| {
                let own = self.op1(Class::B64, "cvt.u64.u32", own);
                let origin = self.get(origin[along as usize]);
                let coordinate = self.op2(Class::B64, "add.s64", origin, own);
                let stride = self.stride(operand, axis + along);
                offset = Some(match offset {
                    None => self.op2(Class::B64, "mul.lo.s64", coordinate, stride),
                    Some(before) => {
                        let sum = self.reg(Class::B64);
                        emit!(self, "mad.lo.s64 {sum}, {coordinate}, {stride}, {before};");
                        sum
                    }
                });
                // From where the coordinate is 0 to the end of the dimension or of the tile.
                let from = self.op1(Class::B64, "neg.s64", coordinate);
                let from = self.op2(Class::B64, "max.s64", from, 0);
                let from = self.op2(Class::B64, "min.s64", from, extent);
                let dim = self.dim(operand, axis + along);
                let end = self.op2(Class::B64, "sub.s64", dim, coordinate);
                let of_tile = self.reg(Class::B64);
                emit!(self, "sub.s64 {of_tile}, {extent}, {own};");
                let end = self.op2(Class::B64, "min.s64", end, of_tile);
                let count = self.op2(Class::B64, "sub.s64", end, from);
                let count = self.op2(Class::B64, "max.s64", count, 0);
                let [from, count] = [from, count].map(|r| self.op1(Class::B32, "cvt.u32.u64", r));
                (Inside { from, count }, self.op2(Class::B64, "mul.lo.s64", stride, size))
            });
        let first = self.address(operand, offset);
        TilePlace { first, inside, rows, columns, steps: [row_step, column_step] }
    }

    /// Whether an offset is inside.
    fn is_inside(&mut self, inside: Inside, offset: u32) -> Reg {
        let from = self.reg(Class::B32);
        emit!(self, "sub.u32 {from}, {offset}, {};", inside.from);
        self.op2(Class::Pred, "setp.lt.u32", from, inside.count)
    }

    /// Does something for each row that this thread holds of a tile: with its number, its address, and whether it is inside.
    fn each_row(&mut self, l: Layout, place: &TilePlace, mut with: impl FnMut(&mut Self, u32, Reg, Reg)) {
        for i in 0..l.own_rows() {
            let inside = self.is_inside(place.rows, l.row_offset(i));
            let inside = self.both(Some(inside), place.inside).unwrap_or(inside);
            let address = match l.row_offset(i) {
                0 => place.first,
                down => {
                    let address = self.reg(Class::B64);
                    emit!(self, "mad.lo.s64 {address}, {}, {down}, {};", place.steps[0], place.first);
                    address
                }
            };
            with(self, i, address, inside);
        }
    }

    /// Does something for each element that this thread holds of a tile.
    fn each_element(&mut self, l: Layout, place: &TilePlace, mut with: impl FnMut(&mut Self, usize, Place)) {
        let mut steps: HashMap<u32, Reg> = HashMap::new();
        self.each_row(l, place, |g, i, mut address, row_inside| {
            for j in 0..l.own_columns() {
                if j > 0 {
                    let by = l.column_offset(j) - l.column_offset(j - 1);
                    let step = *steps.entry(by).or_insert_with(|| match by {
                        1 => place.steps[1],
                        by => g.op2(Class::B64, "mul.lo.s64", place.steps[1], by),
                    });
                    address = g.op2(Class::B64, "add.s64", address, step);
                }
                let inside = g.is_inside(place.columns, l.column_offset(j));
                let inside = g.both(Some(inside), Some(row_inside));
                with(g, l.register(i, j), Place { address, inside });
            }
        });
    }

    pub fn tile_load(&mut self, result: Value, at: TileAt<'_>) {
        let l = self.layout(result);
        let own = self.thread_position(l);
        let place = self.tile_place(l, at, own);
        let mut values = Vec::with_capacity(l.registers());
        self.each_element(l, &place, |g, _, place| values.push(g.load_at(at.operand, place)));
        self.set_all(result, values);
    }

    /// Writes a tile: in units of 16 bytes, or at least neighbours of a thread as one, where they are neighbours in memory.
    pub fn tile_store(&mut self, at: TileAt<'_>, value: Value) {
        let l = self.layout(value);
        let operand = at.operand;
        let size = self.memory_dtype(operand).size_in_bytes() as u32;
        let values = self.all(value);
        let together = l.neighbours().filter(|_| size > 1).map(|count| count.min(UNIT / size));
        let units = exchanged(l, self.memory_dtype(operand));
        let end = self.label();
        let source = (units.or(together)).map(|_| self.source(operand, at.batch, at.origin, size));
        if let (Some(lanes), Some(source)) = (units, &source) {
            let next = self.label();
            let in_units = self.in_units(source, size, UNIT);
            emit!(self, "@!{in_units} bra {next};");
            self.store_units(l, at, &values, lanes);
            emit!(self, "bra {end};");
            self.place_label(next);
        }
        if let (Some(count), Some(source)) = (together, &source) {
            let one_by_one = self.label();
            let in_units = self.in_units(source, size, count * size);
            emit!(self, "@!{in_units} bra {one_by_one};");
            let own = self.thread_position(l);
            let place = self.tile_place(l, at, own);
            self.each_row(l, &place, |g, i, address, row_inside| {
                for j in (0..l.own_columns()).step_by(count as usize) {
                    let inside = g.is_inside(place.columns, l.column_offset(j));
                    let inside = g.both(Some(inside), Some(row_inside));
                    let first = l.register(i, j);
                    let unit = &values[first..first + count as usize];
                    g.store_together(operand, Place { address, inside }, l.column_offset(j) * size, unit);
                }
            });
            emit!(self, "bra {end};");
            self.place_label(one_by_one);
        }
        let own = self.thread_position(l);
        let place = self.tile_place(l, at, own);
        self.each_element(l, &place, |g, register, place| g.store_at(operand, place, values[register], false));
        if source.is_some() {
            self.place_label(end);
        }
    }

    /// Writes a tile in units of 16 bytes, which so many lanes make together of the neighbours that each has.
    fn store_units(&mut self, l: Layout, at: TileAt<'_>, values: &[Reg], lanes: u32) {
        let dtype = self.memory_dtype(at.operand);
        let size = dtype.size_in_bytes() as u32;
        // Of as many groups of columns as there are lanes, each lane gets a unit: lane `i` columns of the group `i % lanes`.
        let neighbours = l.neighbours().unwrap_or(1);
        let (row, column) = self.thread_position(l);
        let lane = self.fixed(Fixed::Lane);
        let odd = self.op2(Class::B32, "and.b32", lane, lanes - 1);
        let own = self.reg(Class::B32);
        emit!(self, "mad.lo.u32 {own}, {odd}, {}, {column};", l.column_offset(neighbours) - neighbours);
        let place = self.tile_place(l, at, (row, own));
        let conditions: Vec<Reg> = (0..lanes.ilog2())
            .map(|bit| {
                let bit = self.op2(Class::B32, "and.b32", lane, 1 << bit);
                self.op2(Class::Pred, "setp.ne.u32", bit, 0)
            })
            .collect();
        self.each_row(l, &place, |g, i, address, row_inside| {
            for first in (0..l.own_columns()).step_by((neighbours * lanes) as usize) {
                let mut words: Vec<Vec<Reg>> = (0..lanes)
                    .map(|group| {
                        let register = l.register(i, first + neighbours * group);
                        g.words(dtype, &values[register..register + neighbours as usize])
                    })
                    .collect();
                for (bit, &condition) in conditions.iter().enumerate() {
                    g.trade(&mut words, 1 << bit, condition);
                }
                let inside = g.is_inside(place.columns, l.column_offset(first));
                let when = g.op2(Class::Pred, "and.pred", inside, row_inside);
                let offset = l.column_offset(first) * size;
                let unit: Vec<String> = words.iter().flatten().map(Reg::to_string).collect();
                emit!(g, "@{when} st.global.v4.b32 [{address}+{offset}], {{{}}};", unit.join(", "));
            }
        });
    }

    /// Neighbours as words in memory: two of a half type, or any number of a dtype of four bytes or eight.
    fn words(&mut self, dtype: DType, values: &[Reg]) -> Vec<Reg> {
        if matches!(dtype, DType::F16 | DType::BF16) {
            let ty = half_type(dtype);
            return vec![self.op2(Class::B32, &format!("cvt.rn.{ty}x2.f32"), values[1], values[0])];
        }
        let bits = |&r: &Reg| match r.class {
            Class::B32 => vec![r],
            Class::B64 | Class::F64 => {
                let halves = [self.reg(Class::B32), self.reg(Class::B32)];
                emit!(self, "mov.b64 {{{}, {}}}, {r};", halves[0], halves[1]);
                halves.to_vec()
            }
            Class::Pred | Class::B16 | Class::F32 => vec![self.op1(Class::B32, "mov.b32", r)],
        };
        values.iter().flat_map(bits).collect()
    }

    /// Lanes so far from each other exchange halves of what they have: those for which the condition holds keep the later ones
    /// of each two lots that are as far from each other, and get those of the other lane before them.
    fn trade(&mut self, lots: &mut [Vec<Reg>], distance: usize, later: Reg) {
        for low in (0..lots.len()).filter(|i| i & distance == 0) {
            let high = low + distance;
            for (word, (a, b)) in lots[low].clone().into_iter().zip(lots[high].clone()).enumerate() {
                let gives = self.selp(Class::B32, a, b, later);
                let gets = self.shuffle("bfly", gives, distance as u32, 31);
                lots[low][word] = self.selp(Class::B32, gets, a, later);
                lots[high][word] = self.selp(Class::B32, b, gets, later);
            }
        }
    }
}

/// How many lanes make whole units together of what they have, if they do: elements of that dtype.
fn exchanged(l: Layout, dtype: DType) -> Option<u32> {
    let halves = matches!(dtype, DType::F16 | DType::BF16);
    let words = matches!(dtype, DType::F32 | DType::I32 | DType::U32);
    let doubles = matches!(dtype, DType::F64 | DType::I64 | DType::U64);
    match l.kind {
        Kind::Fragments { .. } if halves || words => {
            let lanes = if halves { 4 } else { 2 };
            l.own_columns().is_multiple_of(2 * lanes).then_some(lanes)
        }
        Kind::Cyclic { thread_columns, .. } if words || doubles => {
            let lanes = if words { 4 } else { 2 };
            let divides = thread_columns.is_multiple_of(lanes) && l.columns.is_multiple_of(thread_columns * lanes);
            divides.then_some(lanes)
        }
        Kind::Fragments { .. } | Kind::Cyclic { .. } | Kind::Quads { .. } | Kind::Rows { .. } => None,
    }
}
