//! Tiles in the registers of a block's threads ([`layout`](super::layout)), and how they go to and from memory.

use super::emitter::{Class, Fixed, Gen, Reg};
use super::home::UNIT;
use super::layout::{Kind, Layout};
use super::memory::Place;
use super::{BLOCK_SIZE, PtxError};
use crate::kernel::ir::{Kernel, Type, Value};

/// The most registers that a thread gives to one tile.
const MAX_REGISTERS: u32 = 128;

/// Demands that every tile fits in registers.
pub(super) fn check_sizes(kernel: &Kernel) -> Result<(), PtxError> {
    for def in &kernel.values {
        let (Type::Tile(_, rows, columns) | Type::TileVar(_, rows, columns)) = def.ty else {
            continue;
        };
        let limit = MAX_REGISTERS * BLOCK_SIZE;
        // Unused values are not verified, and may be of any shape.
        let elements = u64::from(rows) * u64::from(columns);
        let too_large = elements > u64::from(limit);
        if elements > 0 && (too_large || Layout::cyclic(rows, columns).registers() > MAX_REGISTERS as usize) {
            return Err(PtxError::TileSize { kernel: kernel.name.clone(), rows, columns, limit });
        }
    }
    Ok(())
}

impl Gen<'_> {
    pub fn layout(&self, tile: Value) -> Layout {
        match self.kernel.ty(tile) {
            Type::Tile(_, r, c) | Type::TileVar(_, r, c) => self.plan.layout(r, c),
            Type::Scalar(_) | Type::Var(_) => Layout::cyclic(1, 1),
        }
    }

    /// This thread's first row and column.
    pub fn thread_position(&mut self, l: Layout) -> (Reg, Reg) {
        match l.kind {
            Kind::Cyclic { thread_columns, .. } => {
                (self.fixed(Fixed::ThreadRow(thread_columns)), self.fixed(Fixed::ThreadColumn(thread_columns)))
            }
            Kind::Fragments { warp_rows, warp_columns } | Kind::Quads { warp_rows, warp_columns } => {
                let neighbours = l.neighbours().unwrap_or(1);
                let (height, width) = (l.rows / warp_rows, l.columns / warp_columns);
                let column = Fixed::LaneColumn { warp_rows, width, neighbours };
                (self.fixed(Fixed::LaneRow { warp_rows, height }), self.fixed(column))
            }
            Kind::Rows { warp_rows, .. } => {
                let height = l.rows / warp_rows;
                (self.fixed(Fixed::LaneRow { warp_rows, height }), self.fixed(Fixed::ThreadColumn(1)))
            }
        }
    }

    /// Whether this thread's `i`-th row is one of the tile's; `None` if it always is.
    pub fn row_exists(&mut self, l: Layout, i: u32) -> Option<Reg> {
        let (row, _) = self.thread_position(l);
        (l.rows_end(i) > l.rows).then(|| self.op2(Class::Pred, "setp.lt.u32", row, l.rows - l.row_offset(i)))
    }

    /// Whether this thread's `j`-th column is one of the tile's; `None` if it always is.
    pub fn column_exists(&mut self, l: Layout, j: u32) -> Option<Reg> {
        let (_, column) = self.thread_position(l);
        let last = l.columns - l.column_offset(j);
        (l.columns_end(j) > l.columns).then(|| self.op2(Class::Pred, "setp.lt.u32", column, last))
    }

    /// Which of this thread's elements are the tile's, in the order of its registers.
    pub fn owned(&mut self, l: Layout) -> Vec<Option<Reg>> {
        let rows: Vec<_> = (0..l.own_rows()).map(|i| self.row_exists(l, i)).collect();
        let columns: Vec<_> = (0..l.own_columns()).map(|j| self.column_exists(l, j)).collect();
        let mut owned = Vec::with_capacity(l.registers());
        for &row in &rows {
            for &column in &columns {
                owned.push(self.both(row, column));
            }
        }
        owned
    }

    /// This thread's `i`-th row and `j`-th column along 64-bit coordinates.
    pub fn positions(&mut self, l: Layout) -> (Vec<Reg>, Vec<Reg>) {
        let (row, column) = self.thread_position(l);
        let mut along = |thread: Reg, offsets: Vec<u32>| -> Vec<Reg> {
            let first = self.op1(Class::B64, "cvt.u64.u32", thread);
            let at = |offset| if offset == 0 { first } else { self.op2(Class::B64, "add.s64", first, offset) };
            offsets.into_iter().map(at).collect()
        };
        let rows = along(row, (0..l.own_rows()).map(|i| l.row_offset(i)).collect());
        (rows, along(column, (0..l.own_columns()).map(|j| l.column_offset(j)).collect()))
    }

    pub fn tile_full(&mut self, result: Value, value: Value) {
        let value = self.get(value);
        let copies = (0..self.layout(result).registers()).map(|_| self.copy(value)).collect();
        self.set_all(result, copies);
    }

    /// The places in memory of this thread's elements.
    fn tile_places(
        &mut self,
        l: Layout,
        operand: u32,
        batch: &[Value],
        origin: [Value; 2],
        transpose: bool,
    ) -> Vec<Place> {
        let batch: Vec<Reg> = batch.iter().map(|&v| self.get(v)).collect();
        let axis = batch.len() as u32;
        let (base, inside) = self.offset(operand, &batch, 0, None, None);
        let (rows, columns) = self.positions(l);
        // The tile's rows run along the operand's last dimension where it is transposed.
        let (row_axis, column_axis) = if transpose { (1, 0) } else { (0, 1) };
        let rows: Vec<(Reg, Option<Reg>)> = (0..)
            .zip(rows)
            .map(|(i, r)| {
                let exists = self.row_exists(l, i);
                self.along(operand, axis + row_axis, origin[row_axis as usize], r, exists)
            })
            .collect();
        let columns: Vec<(Reg, Option<Reg>)> = (0..)
            .zip(columns)
            .map(|(j, c)| {
                let exists = self.column_exists(l, j);
                self.along(operand, axis + column_axis, origin[column_axis as usize], c, exists)
            })
            .collect();
        let mut places = Vec::with_capacity(l.registers());
        for &(row, row_inside) in &rows {
            let row = match base {
                Some(base) => self.op2(Class::B64, "add.s64", base, row),
                None => row,
            };
            let row_inside = self.both(inside, row_inside);
            for &(column, column_inside) in &columns {
                let offset = self.op2(Class::B64, "add.s64", row, column);
                let inside = self.both(row_inside, column_inside);
                places.push(Place { address: self.address(operand, Some(offset)), inside });
            }
        }
        places
    }

    /// The offset in elements of `origin + position` along one dimension, and whether it is inside.
    fn along(
        &mut self,
        operand: u32,
        axis: u32,
        origin: Value,
        position: Reg,
        exists: Option<Reg>,
    ) -> (Reg, Option<Reg>) {
        let origin = self.get(origin);
        let coordinate = self.op2(Class::B64, "add.s64", origin, position);
        let in_dim = self.in_dim(coordinate, operand, axis);
        let stride = self.stride(operand, axis);
        let offset = self.op2(Class::B64, "mul.lo.s64", coordinate, stride);
        (offset, self.both(exists, Some(in_dim)))
    }

    pub fn tile_load(&mut self, result: Value, operand: u32, batch: &[Value], origin: [Value; 2], transpose: bool) {
        let l = self.layout(result);
        let places = self.tile_places(l, operand, batch, origin, transpose);
        let values = places.into_iter().map(|place| self.load_at(operand, place)).collect();
        self.set_all(result, values);
    }

    /// Writes a tile. Threads that hold neighbours write them as one where they are so in memory too, up to 16 bytes.
    pub fn tile_store(&mut self, operand: u32, batch: &[Value], origin: [Value; 2], value: Value) {
        let l = self.layout(value);
        let size = self.memory_dtype(operand).size_in_bytes() as u32;
        let places = self.tile_places(l, operand, batch, origin, false);
        let values = self.all(value);
        let together = l.neighbours().filter(|_| size > 1).map(|count| count.min(UNIT / size));
        let end = together.map(|count| {
            let (one_by_one, end) = (self.label(), self.label());
            let source = self.source(operand, batch, origin, size);
            let units = self.in_units(&source, size, count * size);
            emit!(self, "@!{units} bra {one_by_one};");
            for (place, unit) in places.iter().step_by(count as usize).zip(values.chunks_exact(count as usize)) {
                self.store_together(operand, *place, unit);
            }
            emit!(self, "bra {end};");
            self.place_label(one_by_one);
            end
        });
        places.into_iter().zip(values).for_each(|(place, v)| self.store_at(operand, place, v, false));
        if let Some(end) = end {
            self.place_label(end);
        }
    }
}
