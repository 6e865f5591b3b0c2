//! Tile loads and stores between registers and global memory.
//!
//! A thread's elements are at offsets from its first one that are the same for all threads. Their addresses are made
//! one after the other, and each bounds check is one comparison of an offset: a tile may have many registers, and
//! addresses of all its elements at a time would take twice as many.
//!
//! In an MMA accumulator layout a thread has two neighbours of each row of a fragment, and the three other lanes of its
//! quad have the next ones. Elsewhere it has one, and the lanes beside it have the next ones. Where the operand's rows
//! allow vectorized access of 16 bytes, these lanes exchange by shuffles until each has whole vectors to store, or its
//! own elements of those that it loaded.

use std::collections::HashMap;

use super::super::analysis::layout::{Kind, Layout};
use super::super::convert::Memory;
use super::super::emitter::{Fixed, Gen};
use super::super::machine::{Class, Reg, mem_at, one_or_vector, vector_of};
use super::super::mma::mma_type;
use super::Place;
use super::shared_tile::VECTOR_BYTES;
use super::vectorize::vector_suffix;
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
pub(in crate::kernel::ptx) struct TileAt<'a> {
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
                offset = self.offset_along(stride, coordinate, offset);
                // From where the coordinate is 0 to the end of the dimension or of the tile.
                let from = self.op1(Class::B64, "neg.s64", coordinate);
                let from = self.op2(Class::B64, "max.s64", from, 0);
                let from = self.op2(Class::B64, "min.s64", from, extent);
                let dim = self.dim(operand, axis + along);
                let end = self.op2(Class::B64, "sub.s64", dim, coordinate);
                let of_tile = self.reg(Class::B64);
                emit!(self, "sub.s64", of_tile, extent, own);
                let end = self.op2(Class::B64, "min.s64", end, of_tile);
                // Before it is subtracted from: `end` is negative without end where the coordinate is far outside.
                let end = self.op2(Class::B64, "max.s64", end, from);
                let count = self.op2(Class::B64, "sub.s64", end, from);
                let [from, count] = [from, count].map(|r| self.op1(Class::B32, "cvt.u32.u64", r));
                (Inside { from, count }, self.op2(Class::B64, "mul.lo.s64", stride, size))
            });
        let first = self.address(operand, offset);
        TilePlace { first, inside, rows, columns, steps: [row_step, column_step] }
    }

    /// Whether an offset is inside.
    fn is_inside(&mut self, inside: Inside, offset: u32) -> Reg {
        let from = self.reg(Class::B32);
        emit!(self, "sub.u32", from, offset, inside.from);
        self.op2(Class::Pred, "setp.lt.u32", from, inside.count)
    }

    /// Does something for each row that this thread holds of a tile: with its number, its address, and whether it is
    /// inside.
    fn each_row(&mut self, l: Layout, place: &TilePlace, with: impl FnMut(&mut Self, u32, Reg, Reg)) {
        self.each_row_of(l, place, 1, with);
    }

    /// The same of every so many of these rows.
    fn each_row_of(&mut self, l: Layout, place: &TilePlace, step: u32, mut with: impl FnMut(&mut Self, u32, Reg, Reg)) {
        for i in (0..l.own_rows()).step_by(step as usize) {
            let inside = self.is_inside(place.rows, l.row_offset(i));
            let inside = self.both(Some(inside), place.inside).unwrap_or(inside);
            let address = match l.row_offset(i) {
                0 => place.first,
                down => {
                    let address = self.reg(Class::B64);
                    emit!(self, "mad.lo.s64", address, place.steps[0], down, place.first);
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

    /// Reads a tile: in vectors of 16 bytes where they are neighbours in memory, and once where all of a row are one
    /// element.
    pub fn tile_load(&mut self, result: Value, at: TileAt<'_>) {
        let l = self.layout(result);
        let values = if self.plan.exchanged.contains(&result) {
            // Threads have runs of columns, which lie side by side in memory.
            let count = VECTOR_BYTES / self.memory_dtype(at.operand).size_in_bytes() as u32;
            let along = Layout::runs(l.rows, l.columns, l.rows / count, count, true);
            let values = self.load_in(result, along, at);
            self.exchange_layout(&values, along, l)
        } else {
            self.load_in(result, l, at)
        };
        self.set_all(result, values);
    }

    /// A tile's values as they lie in some layout.
    fn load_in(&mut self, result: Value, l: Layout, at: TileAt<'_>) -> Vec<Reg> {
        let class = Class::of(self.dtype(result));
        let values: Vec<Reg> = (0..l.registers()).map(|_| self.reg(class)).collect();
        let (several, end) = (self.label(), self.label());
        let own = self.thread_position(l);
        let axis = at.batch.len() as u32 + u32::from(l.runs_down() == at.transpose);
        let along = self.stride(at.operand, axis);
        let several_along = self.op2(Class::Pred, "setp.ne.s64", along, 0);
        emit!(self, @several_along, "bra", several);
        self.load_repeated(l, at, own, &values);
        emit!(self, "bra", end);
        self.place_label(several);
        if matches!(l.kind, Kind::Runs { down, .. } if down == at.transpose) {
            self.load_runs(l, at, own, &values);
        } else {
            self.load_exchanged(l, at, own, &values);
        }
        self.place_label(end);
        values
    }

    /// Reads a tile of which all elements of a row are one, or all of a column if threads have neighbours of that.
    fn load_repeated(&mut self, l: Layout, at: TileAt<'_>, own: (Reg, Reg), values: &[Reg]) {
        let place = self.tile_place(l, at, own);
        let [across, along] = axes(l, &place);
        let any = self.op2(Class::Pred, "setp.ne.u32", along.inside.count, 0);
        let any = self.both(Some(any), place.inside);
        for i in 0..across.own {
            let here = self.is_inside(across.inside, across.offset(l, i));
            let inside = self.both(Some(here), any);
            let address = self.reg(Class::B64);
            emit!(self, "mad.lo.s64", address, across.step, across.offset(l, i), place.first);
            let one = self.load_at(at.operand, Place { address, inside });
            let zero = self.zero(one.class);
            for j in 0..along.own {
                let inside = self.is_inside(along.inside, along.offset(l, j));
                let value = self.select(inside, one, zero);
                self.mov(values[along.register(l, i, j)], value);
            }
        }
    }

    /// Reads a tile in vectors that lanes exchange if it lies in these, else one by one.
    fn load_exchanged(&mut self, l: Layout, at: TileAt<'_>, own: (Reg, Reg), values: &[Reg]) {
        let dtype = self.memory_dtype(at.operand);
        let end = self.label();
        let vectors = exchanged(l, dtype).filter(|_| !at.transpose);
        if let Some(lanes) = vectors {
            let one_by_one = self.label();
            let size = dtype.size_in_bytes() as u32;
            let source = self.source(at.operand, at.batch, at.origin, size);
            let is_vectorizable = self.is_vectorizable(&source, size, lanes * l.neighbours().unwrap_or(1) * size);
            emit!(self, @!is_vectorizable, "bra", one_by_one);
            self.load_vectors(l, at, values, lanes);
            emit!(self, "bra", end);
            self.place_label(one_by_one);
        }
        let place = self.tile_place(l, at, own);
        self.each_element(l, &place, |g, register, place| {
            let value = g.load_at(at.operand, place);
            g.mov(values[register], value);
        });
        if vectors.is_some() {
            self.place_label(end);
        }
    }

    /// Reads a tile of which threads have neighbours that lie along the operand's last axis: in vectors if they do,
    /// else one by one.
    fn load_runs(&mut self, l: Layout, at: TileAt<'_>, own: (Reg, Reg), values: &[Reg]) {
        let Kind::Runs { count, .. } = l.kind else { return };
        let (dtype, (class, _)) = (self.memory_dtype(at.operand), self.raw_of(at.operand));
        let size = dtype.size_in_bytes() as u32;
        let raw: Vec<Reg> = (0..l.registers()).map(|_| self.zero(class)).collect();
        let source = self.source(at.operand, at.batch, at.origin, size);
        let per_unit = count.min(VECTOR_BYTES / size);
        let vectors = self.is_vectorizable(&source, size, per_unit * size);
        let (one_by_one, end) = (self.label(), self.label());
        emit!(self, @!vectors, "bra", one_by_one);
        self.load_lots(l, at, own, per_unit, &raw);
        emit!(self, "bra", end);
        self.place_label(one_by_one);
        self.load_lots(l, at, own, 1, &raw);
        self.place_label(end);
        for (&value, raw) in values.iter().zip(raw) {
            let decoded = self.decode(dtype, raw);
            self.mov(value, decoded);
        }
    }

    /// The same by lots of so many elements, as they lie in memory. Where a thread has several of these, it reads every
    /// so-manieth of those that the lanes beside it have too, and they exchange them.
    fn load_lots(&mut self, l: Layout, at: TileAt<'_>, own: (Reg, Reg), lot: u32, raw: &[Reg]) {
        let Kind::Runs { threads, count, down } = l.kind else { return };
        let size = self.memory_dtype(at.operand).size_in_bytes() as u32;
        let lanes = threads.min(count / lot);
        let mut own = own;
        if lanes > 1 {
            let thread = self.fixed(Fixed::Thread);
            let lane = self.op2(Class::B32, "and.b32", thread, lanes - 1);
            let back = self.op2(Class::B32, "mul.lo.u32", lane, count - lot);
            let along = if down { &mut own.0 } else { &mut own.1 };
            *along = self.op2(Class::B32, "sub.u32", *along, back);
        }
        let place = self.tile_place(l, at, own);
        let [across, along] = axes(l, &place);
        for i in 0..across.own {
            let row_inside = self.is_inside(across.inside, across.offset(l, i));
            let row_inside = self.both(Some(row_inside), place.inside);
            let row = self.reg(Class::B64);
            emit!(self, "mad.lo.s64", row, across.step, across.offset(l, i), place.first);
            for first in (0..along.own).step_by(count as usize) {
                let run: Vec<Reg> = (first..first + count).map(|j| raw[along.register(l, i, j)]).collect();
                for (v, lot_of) in (0..).zip(run.chunks(lot as usize)) {
                    let at_lot = along.offset(l, first) + v % lanes * count + v / lanes * lanes * lot;
                    let inside = self.is_inside(along.inside, at_lot);
                    let when = self.both(Some(inside), row_inside);
                    let from = if lot == 1 {
                        let from = self.reg(Class::B64);
                        emit!(self, "mad.lo.s64", from, along.step, at_lot, row);
                        (from, 0)
                    } else {
                        (row, at_lot * size)
                    };
                    self.load_neighbours("global", at.operand, from, lot_of, when);
                }
                if lanes > 1 {
                    let own = self.swap_bits(&run, lot, lanes, 1);
                    run.iter().zip(own).for_each(|(&to, from)| self.mov(to, from));
                }
            }
        }
    }

    /// Writes a tile: in vectors of 16 bytes, or at least neighbours of a thread as one, where they are neighbours in
    /// memory.
    pub fn tile_store(&mut self, at: TileAt<'_>, value: Value) {
        let l = self.layout(value);
        let operand = at.operand;
        let size = self.memory_dtype(operand).size_in_bytes() as u32;
        let values = self.all(value);
        let in_runs = matches!(l.kind, Kind::Runs { .. });
        let together =
            l.neighbours().filter(|_| size > 1 || in_runs).map(|count| count.min(VECTOR_BYTES / size).min(4));
        let vectors = exchanged(l, self.memory_dtype(operand));
        let end = self.label();
        let source = (vectors.or(together)).map(|_| self.source(operand, at.batch, at.origin, size));
        if let (Some(lanes), Some(source)) = (vectors, &source) {
            let next = self.label();
            let is_vectorizable = self.is_vectorizable(source, size, lanes * l.neighbours().unwrap_or(1) * size);
            emit!(self, @!is_vectorizable, "bra", next);
            self.store_vectors(l, at, &values, lanes);
            emit!(self, "bra", end);
            self.place_label(next);
        }
        if let (Some(count), Some(source)) = (together, &source) {
            let one_by_one = self.label();
            let is_vectorizable = self.is_vectorizable(source, size, count * size);
            emit!(self, @!is_vectorizable, "bra", one_by_one);
            let own = self.thread_position(l);
            let place = self.tile_place(l, at, own);
            self.each_row(l, &place, |g, i, address, row_inside| {
                for j in (0..l.own_columns()).step_by(count as usize) {
                    let inside = g.is_inside(place.columns, l.column_offset(j));
                    let inside = g.both(Some(inside), Some(row_inside));
                    let first = l.register(i, j);
                    let vector = &values[first..first + count as usize];
                    g.store_together(operand, Place { address, inside }, l.column_offset(j) * size, vector);
                }
            });
            emit!(self, "bra", end);
            self.place_label(one_by_one);
        }
        let own = self.thread_position(l);
        let place = self.tile_place(l, at, own);
        self.each_element(l, &place, |g, register, place| g.store_at(operand, place, values[register], false));
        if source.is_some() {
            self.place_label(end);
        }
    }

    /// A thread's vectors of a tile, which so many lanes make together. Of as many groups as there are lanes, each lane
    /// has a vector: lane `i` that of the group `i % lanes`. Groups follow each other along the columns that a thread
    /// has, or as many of these as there are, and then down its rows.
    fn tile_vectors(&mut self, l: Layout, at: TileAt<'_>, lanes: u32) -> TileVectors {
        let dtype = self.memory_dtype(at.operand);
        let size = dtype.size_in_bytes() as u32;
        let neighbours = l.neighbours().unwrap_or(1);
        let (row, column) = self.thread_position(l);
        let lane = self.fixed(Fixed::Lane);
        let odd = self.op2(Class::B32, "and.b32", lane, lanes - 1);
        let across = groups_across(l, lanes);
        let own = self.reg(Class::B32);
        let row = if across == lanes {
            emit!(self, "mad.lo.u32", own, odd, l.column_offset(neighbours) - neighbours, column);
            row
        } else {
            let (down, begin, down_row) = (self.reg(Class::B32), self.reg(Class::B32), self.reg(Class::B32));
            let along = self.op2(Class::B32, "and.b32", odd, across - 1);
            emit!(self, "shr.u32", down, odd, across.ilog2());
            // The first of these lanes has the vector's first column.
            let back = self.op2(Class::B32, "mul.lo.u32", odd, neighbours);
            emit!(self, "sub.u32", begin, column, back);
            emit!(self, "mad.lo.u32", own, along, l.column_offset(neighbours), begin);
            emit!(self, "mad.lo.u32", down_row, down, l.row_offset(1), row);
            down_row
        };
        let place = self.tile_place(l, at, (row, own));
        let bit = |bit| {
            let bit = self.op2(Class::B32, "and.b32", lane, 1 << bit);
            self.op2(Class::Pred, "setp.ne.u32", bit, 0)
        };
        let bits = (0..lanes.ilog2()).map(bit).collect();
        TileVectors { dtype, size, neighbours, lanes, across, place, bits, alone: neighbours * size < 4 }
    }

    /// Does something for each vector that this thread has of a tile: with its row, its first column among the thread's
    /// own, its address and how far from that it is, and whether it is inside.
    fn each_vector(
        &mut self,
        l: Layout,
        vectors: &TileVectors,
        mut with: impl FnMut(&mut Self, u32, u32, (Reg, u32), Reg),
    ) {
        self.each_row_of(l, &vectors.place, vectors.lanes / vectors.across, |g, i, address, row_inside| {
            for first in (0..l.own_columns()).step_by((vectors.neighbours * vectors.across) as usize) {
                let inside = g.is_inside(vectors.place.columns, l.column_offset(first));
                let when = g.op2(Class::Pred, "and.pred", inside, row_inside);
                with(g, i, first, (address, l.column_offset(first) * vectors.size), when);
            }
        });
    }

    /// Writes a tile in vectors, of 16 bytes or fewer, which so many lanes make together of the neighbours that each
    /// has.
    fn store_vectors(&mut self, l: Layout, at: TileAt<'_>, values: &[Reg], lanes: u32) {
        let vectors = self.tile_vectors(l, at, lanes);
        let TileVectors { dtype, neighbours, alone, .. } = vectors;
        self.each_vector(l, &vectors, |g, i, first, (address, offset), when| {
            let own = |group| {
                let register = vectors.register(l, (i, first), group);
                &values[register..register + neighbours as usize]
            };
            let lot = |group| if alone { own(group).to_vec() } else { g.words(dtype, own(group)) };
            let mut lots: Vec<Vec<Reg>> = (0..lanes).map(lot).collect();
            for (bit, &is_set) in vectors.bits.iter().enumerate() {
                g.exchange_lanes(&mut lots, vectors.distance(bit), 1 << bit, is_set);
                if alone && bit == 0 {
                    lots = lots.chunks(2).map(|pair| g.words(dtype, &pair.concat())).collect();
                }
            }
            let vector = lots.concat();
            let opcode = format!("st.global{}.b32", vector_suffix(&vector));
            emit!(g, @when, opcode, mem_at(address, offset), one_or_vector(&vector));
        });
    }

    /// Reads a tile in such vectors.
    fn load_vectors(&mut self, l: Layout, at: TileAt<'_>, values: &[Reg], lanes: u32) {
        let vectors = self.tile_vectors(l, at, lanes);
        let TileVectors { dtype, size, neighbours, alone, .. } = vectors;
        self.each_vector(l, &vectors, |g, i, first, (address, offset), when| {
            let vector: Vec<Reg> = (0..lanes * neighbours * size / 4).map(|_| g.zero(Class::B32)).collect();
            let opcode = format!("ld.global{}.b32", vector_suffix(&vector));
            emit!(g, @when, opcode, one_or_vector(&vector), mem_at(address, offset));
            let mut lots: Vec<Vec<Reg>> =
                vector.chunks((neighbours * size / 4).max(1) as usize).map(<[_]>::to_vec).collect();
            for (bit, &is_set) in vectors.bits.iter().enumerate().rev() {
                if alone && bit == 0 {
                    let halves: Vec<Reg> = lots.iter().flat_map(|word| g.elements_of(dtype, word)).collect();
                    lots = halves.chunks(1).map(<[_]>::to_vec).collect();
                }
                g.exchange_lanes(&mut lots, vectors.distance(bit), 1 << bit, is_set);
            }
            for (group, lot) in (0..).zip(lots) {
                let loaded = if alone { lot } else { g.elements_of(dtype, &lot) };
                let register = vectors.register(l, (i, first), group);
                values[register..].iter().zip(loaded).for_each(|(&to, from)| g.mov(to, from));
            }
        });
    }

    /// Values rounded to a dtype: two values of half precision by one instruction.
    pub fn rounded(&mut self, dtype: DType, values: &[Reg]) -> Vec<Reg> {
        if values.len() == 2 && matches!(dtype, DType::F16 | DType::BF16) {
            let word = self.words(dtype, values);
            return self.elements_of(dtype, &word);
        }
        values.iter().map(|&r| self.round(dtype, r)).collect()
    }

    /// Neighbours as words in memory: two of a half-precision type, or any number of a dtype of four bytes or eight.
    fn words(&mut self, dtype: DType, values: &[Reg]) -> Vec<Reg> {
        if matches!(dtype, DType::F16 | DType::BF16) {
            let ty = mma_type(dtype);
            return vec![self.op2(Class::B32, &format!("cvt.rn.{ty}x2.f32"), values[1], values[0])];
        }
        let bits = |&r: &Reg| match r.class {
            Class::B32 => vec![r],
            Class::B64 | Class::F64 => {
                let halves = [self.reg(Class::B32), self.reg(Class::B32)];
                emit!(self, "mov.b64", vector_of(&[halves[0], halves[1]]), r);
                halves.to_vec()
            }
            Class::Pred | Class::B16 | Class::F32 => vec![self.op1(Class::B32, "mov.b32", r)],
        };
        values.iter().flat_map(bits).collect()
    }

    /// The values of words as [`words`](Self::words) makes them.
    fn elements_of(&mut self, dtype: DType, words: &[Reg]) -> Vec<Reg> {
        let (class, _) = Memory::of(dtype).raw(dtype);
        let raw: Vec<Reg> = match dtype.size_in_bytes() {
            2 => words.iter().flat_map(|word| self.parts(class, word)).collect(),
            4 => words.iter().map(|word| self.op1(class, "mov.b32", word)).collect(),
            _ => words.chunks(2).map(|pair| self.op1(class, "mov.b64", one_or_vector(pair))).collect(),
        };
        raw.into_iter().map(|raw| self.decode(dtype, raw)).collect()
    }

    /// The halves of a word.
    fn parts(&mut self, class: Class, word: &Reg) -> [Reg; 2] {
        let parts = [self.reg(class), self.reg(class)];
        emit!(self, "mov.b32", one_or_vector(&parts), word);
        parts
    }

    /// Lanes `apart` from each other exchange halves of what they have: those for which the condition holds keep the
    /// later ones of each two lots that are so far from each other, and get those of the other lane before them.
    pub fn exchange_lanes(&mut self, lots: &mut [Vec<Reg>], distance: usize, apart: u32, later: Reg) {
        for low in (0..lots.len()).filter(|i| i & distance == 0) {
            let high = low + distance;
            for (word, (a, b)) in lots[low].clone().into_iter().zip(lots[high].clone()).enumerate() {
                let gives = self.selp(a.class, a, b, later);
                let gets = self.shuffle("bfly", gives, apart, 31);
                lots[low][word] = self.selp(a.class, gets, a, later);
                lots[high][word] = self.selp(a.class, b, gets, later);
            }
        }
    }
}

/// One axis of a thread's elements of a tile.
struct Axis {
    inside: Inside,
    /// Bytes from an element to the next.
    step: Reg,
    /// How many the thread has.
    own: u32,
    is_rows: bool,
}

impl Axis {
    /// From the thread's first element to its `i`-th.
    fn offset(&self, l: Layout, i: u32) -> u32 {
        if self.is_rows { l.row_offset(i) } else { l.column_offset(i) }
    }

    /// The register of the `j`-th element along this axis, and the `i`-th along the other.
    fn register(&self, l: Layout, i: u32, j: u32) -> usize {
        if self.is_rows { l.register(j, i) } else { l.register(i, j) }
    }
}

/// The axes of a tile, that along which threads have neighbours last.
fn axes(l: Layout, place: &TilePlace) -> [Axis; 2] {
    let [row_step, column_step] = place.steps;
    let rows = Axis { inside: place.rows, step: row_step, own: l.own_rows(), is_rows: true };
    let columns = Axis { inside: place.columns, step: column_step, own: l.own_columns(), is_rows: false };
    if l.runs_down() { [columns, rows] } else { [rows, columns] }
}

/// A thread's vectors of a tile, of which so many lanes each have some neighbours.
struct TileVectors {
    dtype: DType,
    /// Bytes of an element.
    size: u32,
    neighbours: u32,
    lanes: u32,
    /// Groups of columns that lanes have vectors of; the others are of further rows.
    across: u32,
    place: TilePlace,
    /// For each bit of a lane's number among the lanes, whether it is set.
    bits: Vec<Reg>,
    /// Whether a lane has a half alone, which makes no word: it does with that of the first lane that it meets.
    alone: bool,
}

impl TileVectors {
    /// The first register of a group, where groups begin at that row and column of the thread's own.
    fn register(&self, l: Layout, (i, first): (u32, u32), group: u32) -> usize {
        l.register(i + group / self.across, first + self.neighbours * (group % self.across))
    }

    /// How far apart lots are that lanes trade whose numbers differ in a bit.
    fn distance(&self, bit: usize) -> usize {
        (1 << bit) >> usize::from(self.alone && bit > 0)
    }
}

/// Of so many groups, one for each lane, how many are side by side in a row of a thread.
fn groups_across(l: Layout, lanes: u32) -> u32 {
    lanes.min(l.own_columns() / l.neighbours().unwrap_or(1)).max(1)
}

/// How many lanes make vectors together of what they have, as many as make 16 bytes or as there are columns for, if
/// they do: elements of that dtype.
fn exchanged(l: Layout, dtype: DType) -> Option<u32> {
    let size = match dtype {
        DType::F16 | DType::BF16 => 2,
        DType::F32 | DType::I32 | DType::U32 => 4,
        DType::F64 | DType::I64 | DType::U64 => 8,
        DType::Bool | DType::I8 | DType::I16 | DType::U8 | DType::U16 => return None,
        DType::F8E4M3FN | DType::F8E4M3FNUZ | DType::F8E5M2 | DType::F8E5M2FNUZ => return None,
    };
    // All lanes have as many groups, in rows that are as long for all of them.
    let divides = |lanes: &u32| {
        let across = groups_across(l, *lanes);
        let in_rows = l.own_columns().is_multiple_of(l.neighbours().unwrap_or(1) * across);
        in_rows && lanes.is_multiple_of(across) && l.own_rows().is_multiple_of(lanes / across)
    };
    let mut counts = [8, 4, 2].into_iter().filter(divides);
    match l.kind {
        Kind::Fragments { .. } if size < 8 => counts.find(|lanes| 2 * size * lanes == VECTOR_BYTES),
        Kind::Cyclic { thread_rows, thread_columns } => counts.find(|lanes| {
            let rows_are_full = l.rows.is_multiple_of(thread_rows) || groups_across(l, *lanes) == *lanes;
            let is_full = l.columns.is_multiple_of(thread_columns) && rows_are_full;
            size * lanes <= VECTOR_BYTES && thread_columns.is_multiple_of(*lanes) && is_full
        }),
        Kind::Runs { .. } | Kind::Fragments { .. } | Kind::Quads { .. } | Kind::RowCache { .. } => None,
    }
}
