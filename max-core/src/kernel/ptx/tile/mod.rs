//! Tiles in the registers of a block's threads ([`layout`](super::analysis::layout)).

pub(super) mod ops;
mod sliced_k;

use super::analysis::layout::{Kind, Layout};
use super::emitter::{Fixed, Gen};
use super::machine::{Class, Reg};
use super::{BLOCK_SIZE, PtxError};
use crate::kernel::ir::{Block, DefUse, Kernel, Op, Type, Value};

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

/// The most registers of a thread for the tiles that one operation takes, or a `dot` and what computes its operands, if
/// there is a choice of tile sizes.
const MAX_TAKEN: u64 = 160;
const MAX_DOT_REGISTERS: u64 = 192;

/// Whether each operation on tiles takes few enough registers that none need to be spilled. A `dot`'s accumulators stay
/// in registers while its operands are computed: these, and what they are computed from.
pub fn has_room(kernel: &Kernel) -> bool {
    fn registers(kernel: &Kernel, tile: Value) -> u64 {
        match kernel.ty(tile) {
            // It is asked before the sizes of tiles are checked.
            Type::Tile(_, r, c) => (u64::from(r) * u64::from(c)).div_ceil(u64::from(BLOCK_SIZE)),
            Type::Scalar(_) | Type::Var(_) | Type::TileVar(..) => 0,
        }
    }
    fn block_has_room(kernel: &Kernel, defs: &DefUse<'_>, block: &Block) -> bool {
        block.insts.iter().all(|inst| {
            let fits = if let Op::Dot(a, b, accumulators) = inst.op {
                let is_loaded = |v: &Value| defs.get(*v).is_some_and(|inst| matches!(inst.op, Op::TileLoad { .. }));
                let computed: u64 =
                    [a, b].into_iter().filter(|v| !is_loaded(v)).map(|v| 2 * registers(kernel, v)).sum();
                computed == 0 || registers(kernel, accumulators) + computed <= MAX_DOT_REGISTERS
            } else {
                let mut tiles = inst.op.uses();
                tiles.sort_unstable_by_key(|v| v.0);
                tiles.dedup();
                tiles.into_iter().map(|v| registers(kernel, v)).sum::<u64>() <= MAX_TAKEN
            };
            fits && inst.op.blocks().iter().all(|(inner, _)| block_has_room(kernel, defs, inner))
        })
    }
    block_has_room(kernel, &DefUse::of(kernel), &kernel.body)
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
            Kind::Runs { threads, count, down } => {
                let (along, across) = (self.fixed(Fixed::ThreadColumn(threads)), self.fixed(Fixed::ThreadRow(threads)));
                let along = self.op2(Class::B32, "mul.lo.u32", along, count);
                if down { (along, across) } else { (across, along) }
            }
            Kind::Fragments { warp_rows, warp_columns } | Kind::Quads { warp_rows, warp_columns } => {
                let neighbours = l.neighbours().unwrap_or(1);
                let (height, width) = (l.rows / warp_rows, l.columns / warp_columns);
                let column = Fixed::LaneColumn { warp_rows, width, neighbours };
                (self.fixed(Fixed::LaneRow { warp_rows, height }), self.fixed(column))
            }
            Kind::RowCache { warp_rows, .. } => {
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
}

#[cfg(test)]
mod tests {
    use super::has_room;
    use crate::kernel::ir::parse;

    #[test]
    fn room_is_measured_of_tiles_of_any_size() {
        for (side, fits) in [(64, true), (128, true), (256, false), (65536, false)] {
            let text = format!(
                "kernel \"full\" program grid(c.0 / {side}) (out c: f32[2]) {{
                   %0: i64 = const 0 %1: f32 = const 0.0
                   %2: tile<f32, {side}x{side}> = tile_full %1
                   tile_store c[%0, %0] = %2
                 }}"
            );
            assert_eq!(has_room(&parse(&text).unwrap()), fits, "{side}");
        }
    }
}
