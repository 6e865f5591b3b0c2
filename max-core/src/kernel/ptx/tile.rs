//! Tiles: how they lie in the registers of a block's threads, and how they go to and from memory.
//!
//! The threads form a grid of rows and columns, both powers of two ([`Layout`]). Thread `(tr, tc)` holds the elements
//! whose row is `tr` modulo the number of thread rows, and likewise for columns. The layout depends on the tile's shape
//! alone, so tiles of one shape meet element by element in the same thread.

use super::emitter::{Class, Fixed, Gen, Reg};
use super::memory::Place;
use super::{BLOCK_SIZE, PtxError};
use crate::kernel::ir::{Kernel, Type, Value};

/// The most registers that a thread gives to one tile.
const MAX_REGISTERS: u32 = 128;

/// The place of a tile's elements in the threads' registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    pub rows: u32,
    pub columns: u32,
    /// Rows and columns of threads; their product is the block's size.
    pub thread_rows: u32,
    pub thread_columns: u32,
}

impl Layout {
    pub fn new(rows: u32, columns: u32) -> Layout {
        // 16 threads side by side, more where there are too few rows for the others, fewer for few columns.
        let side = 16;
        let thread_columns = match (rows, columns) {
            (0..16, _) => BLOCK_SIZE / rows.next_power_of_two(),
            (_, 0..16) => columns.next_power_of_two(),
            (_, _) => side,
        };
        Layout { rows, columns, thread_rows: BLOCK_SIZE / thread_columns, thread_columns }
    }

    /// Rows that each thread holds.
    pub fn own_rows(&self) -> u32 {
        self.rows.div_ceil(self.thread_rows)
    }

    /// Columns that each thread holds.
    pub fn own_columns(&self) -> u32 {
        self.columns.div_ceil(self.thread_columns)
    }

    /// Registers of each thread: row by row.
    pub fn registers(&self) -> usize {
        self.own_rows() as usize * self.own_columns() as usize
    }

    /// The register of a thread's `i`-th row and `j`-th column.
    pub fn register(&self, i: u32, j: u32) -> usize {
        i as usize * self.own_columns() as usize + j as usize
    }
}

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
        if elements > 0 && (too_large || Layout::new(rows, columns).registers() > MAX_REGISTERS as usize) {
            return Err(PtxError::TileSize { kernel: kernel.name.clone(), rows, columns, limit });
        }
    }
    Ok(())
}

impl Gen<'_> {
    pub fn layout(&self, tile: Value) -> Layout {
        match self.kernel.ty(tile) {
            Type::Tile(_, r, c) | Type::TileVar(_, r, c) => Layout::new(r, c),
            Type::Scalar(_) | Type::Var(_) => Layout::new(1, 1),
        }
    }

    /// This thread's first row and column.
    pub fn thread_position(&mut self, l: Layout) -> (Reg, Reg) {
        (self.fixed(Fixed::ThreadRow(l.thread_columns)), self.fixed(Fixed::ThreadColumn(l.thread_columns)))
    }

    /// Whether this thread's `i`-th row is one of the tile's; `None` if it always is.
    pub fn row_exists(&mut self, l: Layout, i: u32) -> Option<Reg> {
        let (row, _) = self.thread_position(l);
        self.exists(row, i * l.thread_rows, l.thread_rows, l.rows)
    }

    /// Whether this thread's `j`-th column is one of the tile's; `None` if it always is.
    pub fn column_exists(&mut self, l: Layout, j: u32) -> Option<Reg> {
        let (_, column) = self.thread_position(l);
        self.exists(column, j * l.thread_columns, l.thread_columns, l.columns)
    }

    fn exists(&mut self, thread: Reg, first: u32, threads: u32, extent: u32) -> Option<Reg> {
        (first + threads > extent).then(|| self.op2(Class::Pred, "setp.lt.u32", thread, extent - first))
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
        let mut along = |thread: Reg, step: u32, count: u32| -> Vec<Reg> {
            let first = self.op1(Class::B64, "cvt.u64.u32", thread);
            (0..count).map(|i| if i == 0 { first } else { self.op2(Class::B64, "add.s64", first, i * step) }).collect()
        };
        let rows = along(row, l.thread_rows, l.own_rows());
        (rows, along(column, l.thread_columns, l.own_columns()))
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

    pub fn tile_store(&mut self, operand: u32, batch: &[Value], origin: [Value; 2], value: Value) {
        let l = self.layout(value);
        let places = self.tile_places(l, operand, batch, origin, false);
        let values = self.all(value);
        places.into_iter().zip(values).for_each(|(place, v)| self.store_at(operand, place, v, false));
    }
}

#[cfg(test)]
mod tests {
    use super::Layout;

    #[test]
    fn every_element_has_a_thread() {
        for (rows, columns) in [(1, 1), (1, 1024), (64, 64), (16, 1), (300, 1), (15, 17), (17, 15), (128, 32), (3, 5)] {
            let l = Layout::new(rows, columns);
            assert_eq!(l.thread_rows * l.thread_columns, super::BLOCK_SIZE, "{l:?}");
            assert!(l.thread_columns.is_power_of_two(), "{l:?}");
            assert!(l.own_rows() * l.thread_rows >= rows, "{l:?}");
            assert!(l.own_columns() * l.thread_columns >= columns, "{l:?}");
        }
        assert_eq!(Layout::new(64, 64).registers(), 16);
        assert_eq!(Layout::new(1, 1024).registers(), 4);
        assert_eq!(Layout::new(300, 1).registers(), 2);
    }
}
