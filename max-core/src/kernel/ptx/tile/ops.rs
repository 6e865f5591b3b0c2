//! Ops on tiles: maps with broadcasts, row reductions, and `dot` by fused multiply-adds.
//!
//! They go through shared memory where an element meets those of other threads.

use super::super::BLOCK_SIZE;
use super::super::analysis::hazards::{Hazards, READ, Touch, WRITE};
use super::super::analysis::layout::{Kind, Layout};
use super::super::analysis::plan::SmemTile;
use super::super::emitter::{Fixed, Gen};
use super::super::machine::{Class, Reg, mem_at, vector_of};
use super::super::memory::shared_tile::VECTOR_BYTES;
use crate::dtype::DType;
use crate::dtype::limits::limit_bits;
use crate::kernel::ir::{BinaryOp, Block, Inst, ReduceOp, Value};

/// A tile in shared memory.
#[derive(Clone, Copy)]
pub(super) struct Staged {
    /// Where it begins: an address, and bytes from there.
    pub start: Reg,
    pub offset: u32,
    /// Bytes from one row to the next, and from one column to the next.
    pub row: u32,
    pub column: u32,
}

/// Steps of an inner loop that are written out.
pub(in crate::kernel::ptx) const UNROLL: u32 = 4;

impl Gen<'_> {
    pub(super) fn shared_touch(&self, how: Touch) -> Hazards {
        let mut touch = self.no_touches();
        touch.touch_shared(how);
        touch
    }

    /// Says that what follows touches the scratch of operations.
    pub fn touch_shared(&mut self, how: Touch) {
        self.touch(self.shared_touch(how));
    }

    /// The address of an element that this thread starts from.
    pub(super) fn staged_address(&mut self, staged: Staged, row: Option<Reg>, column: Option<Reg>) -> Reg {
        let mut address = staged.start;
        for (position, scale) in [(row, staged.row), (column, staged.column)] {
            if let Some(position) = position {
                let next = self.reg(Class::B32);
                emit!(self, "mad.lo.u32", next, position, scale, address);
                address = next;
            }
        }
        address
    }

    /// Writes a tile to shared memory at `offset`, with room for so many elements. The caller has waited, and places
    /// the barrier after it.
    pub(super) fn stage(&mut self, tile: Value, offset: u32, elements: u32, pitch: u32) -> Staged {
        let (l, values) = (self.layout(tile), self.all(tile));
        self.stage_values(l, &values, offset, elements, pitch)
    }

    /// The same of a tile's values that lie in some way.
    fn stage_values(&mut self, l: Layout, values: &[Reg], offset: u32, elements: u32, pitch: u32) -> Staged {
        let size = values.first().map_or(0, |value| value.class.shared_bytes());
        let staged = Staged { start: self.fixed(Fixed::Shared), offset, row: pitch * size, column: size };
        self.need_shared(u64::from(offset) + u64::from(elements) * u64::from(size));
        let (row, column) = self.thread_position(l);
        let address = self.staged_address(staged, Some(row), Some(column));
        let owned = self.owned(l);
        for i in 0..l.own_rows() {
            for j in 0..l.own_columns() {
                let at = offset + l.row_offset(i) * staged.row + l.column_offset(j) * staged.column;
                let register = l.register(i, j);
                self.store_shared(address, at, values[register], owned[register]);
            }
        }
        staged
    }

    /// A tile whose values lie in one way as they lie in another: through shared memory.
    pub fn exchange_layout(&mut self, values: &[Reg], from: Layout, to: Layout) -> Vec<Reg> {
        self.before(self.shared_touch(WRITE));
        // Rows are apart by an odd number of elements, so that those of a column meet all banks.
        let pitch = to.columns | 1;
        let staged = self.stage_values(from, values, 0, to.rows * pitch, pitch);
        self.bar();
        self.touch_shared(READ);
        let (row, column) = self.thread_position(to);
        let address = self.staged_address(staged, Some(row), Some(column));
        let class = values.first().map_or(Class::B32, |value| value.class);
        let places = (0..to.own_rows()).flat_map(|i| (0..to.own_columns()).map(move |j| (i, j)));
        let at = |(i, j)| to.row_offset(i) * staged.row + to.column_offset(j) * staged.column;
        places.map(|place| self.load_shared(class, address, at(place))).collect()
    }

    pub fn tile_map(&mut self, inst: &Inst, inputs: &[Value], position: [Value; 2], elements: &[Value], body: &Block) {
        let result = inst.results[0];
        let l = self.layout(result);
        let class = Class::of(self.dtype(result));
        let staged = self.stage_broadcast(l, inputs);

        let mut touched = self.no_touches();
        touched.add_block(body, true);
        self.before(touched);
        let owned = self.owned(l);
        let (rows, columns) = self.positions(l);
        let (row, column) = self.thread_position(l);
        let starts: Vec<Option<Reg>> = inputs
            .iter()
            .zip(&staged)
            .map(|(&input, staged)| {
                let from = self.layout(input);
                let row = (from.rows > 1).then_some(row);
                let column = (from.columns > 1).then_some(column);
                staged.map(|s| self.staged_address(s, row, column))
            })
            .collect();
        let mut results = Vec::with_capacity(l.registers());
        for i in 0..l.own_rows() {
            for j in 0..l.own_columns() {
                let register = l.register(i, j);
                // Outside of the tile nothing runs, and the value is of no use.
                let skip = owned[register].map(|exists| (exists, self.label(), self.zero(class)));
                if let Some((exists, label, _)) = skip {
                    emit!(self, @!exists, "bra", label);
                }
                for ((&input, &element), (&staged, &start)) in
                    inputs.iter().zip(elements).zip(staged.iter().zip(&starts))
                {
                    let value = match (staged, start) {
                        (Some(s), Some(start)) => {
                            let from = self.layout(input);
                            let row = if from.rows > 1 { l.row_offset(i) * s.row } else { 0 };
                            let column = if from.columns > 1 { l.column_offset(j) * s.column } else { 0 };
                            let class = Class::of(self.dtype(input));
                            self.load_shared(class, start, s.offset + row + column)
                        }
                        (None, _) | (_, None) if self.layout(input) == l => self.all(input)[register],
                        (None, _) | (_, None) => self.all(input)[i as usize],
                    };
                    self.set(element, value);
                }
                self.set(position[0], rows[i as usize]);
                self.set(position[1], columns[j as usize]);
                self.lane_code(|g| g.block(body));
                let value = self.get(body.yields[0]);
                results.push(match skip {
                    Some((_, label, padded)) => {
                        self.mov(padded, value);
                        self.place_label(label);
                        padded
                    }
                    None => value,
                });
            }
        }
        self.set_all(result, results);
    }

    /// Puts the inputs that are broadcast into shared memory; `None` for those that each thread has, since they are of
    /// the result's own shape, or one value a row.
    fn stage_broadcast(&mut self, l: Layout, inputs: &[Value]) -> Vec<Option<Staged>> {
        let is_staged = |g: &Self, input: Value| {
            let from = g.layout(input);
            from != l && !from.is_rows_of(l)
        };
        if !inputs.iter().any(|&input| is_staged(self, input)) {
            return vec![None; inputs.len()];
        }
        self.before(self.shared_touch(WRITE));
        let mut offset = 0;
        let mut staged = Vec::with_capacity(inputs.len());
        for &input in inputs {
            if !is_staged(self, input) {
                staged.push(None);
                continue;
            }
            let from = self.layout(input);
            let s = self.stage(input, offset, from.rows * from.columns, from.columns);
            offset += (from.rows * s.row).next_multiple_of(16);
            staged.push(Some(s));
        }
        self.bar();
        self.touch_shared(READ);
        staged
    }

    pub fn tile_reduce(&mut self, result: Value, op: ReduceOp, tile: Value) {
        let (l, to) = (self.layout(tile), self.layout(result));
        let dtype = self.dtype(tile);
        let class = Class::of(dtype);
        let (op, identity) = match op {
            // Of floats -0, as 0 would make 0 of it.
            ReduceOp::Sum => (BinaryOp::Add, float_bits(dtype, -0.0).unwrap_or(0)),
            ReduceOp::Max => {
                (BinaryOp::Max, float_bits(dtype, f64::NEG_INFINITY).unwrap_or_else(|| limit_bits(dtype, false)))
            }
            ReduceOp::Min => {
                (BinaryOp::Min, float_bits(dtype, f64::INFINITY).unwrap_or_else(|| limit_bits(dtype, true)))
            }
        };
        // Each thread reduces its own columns, then the lanes of a warp that have others of the same row do.
        let lanes = match l.kind {
            Kind::Cyclic { thread_columns: threads, .. } | Kind::Runs { threads, down: false, .. } => threads.min(32),
            Kind::Runs { .. } => 1,
            Kind::Fragments { .. } | Kind::Quads { .. } => 4,
            Kind::RowCache { .. } => 1,
        };
        let values = self.all(tile);
        let columns: Vec<_> = (0..l.own_columns()).map(|j| self.column_exists(l, j)).collect();
        let mut own = Vec::with_capacity(l.own_rows() as usize);
        for i in 0..l.own_rows() {
            let mut value = values[l.register(i, 0)];
            for j in 1..l.own_columns() {
                let more = self.binary(op, dtype, value, values[l.register(i, j)]);
                value = match columns[j as usize] {
                    Some(exists) => self.select(exists, more, value),
                    None => more,
                };
            }
            if let Some(exists) = columns[0] {
                let none = self.constant(dtype, identity);
                value = self.select(exists, value, none);
            }
            for distance in (0..lanes.ilog2()).map(|bit| 1 << bit) {
                let other = self.shuffle("bfly", value, distance, 31);
                value = self.binary(op, dtype, value, other);
            }
            own.push(value);
        }
        let partials = match l.kind {
            Kind::Cyclic { thread_columns: threads, .. } | Kind::Runs { threads, down: false, .. } => threads / lanes,
            Kind::Runs { threads, .. } => BLOCK_SIZE / threads,
            Kind::Fragments { warp_columns, .. }
            | Kind::Quads { warp_columns, .. }
            | Kind::RowCache { warp_columns, .. } => warp_columns,
        };
        if partials == 1 && to.is_rows_of(l) {
            return self.set_all(result, own);
        }

        // One value a row is written by each of these.
        let size = class.shared_bytes();
        let staged = Staged { start: self.fixed(Fixed::Shared), offset: 0, row: partials * size, column: size };
        self.need_shared(u64::from(l.rows) * u64::from(staged.row));
        self.before(self.shared_touch(WRITE));
        let (row, column) = self.thread_position(l);
        let lane = self.fixed(Fixed::Lane);
        let among = self.op2(Class::B32, "and.b32", lane, lanes - 1);
        let writes = self.op2(Class::Pred, "setp.eq.u32", among, 0);
        let partial = match l.kind {
            Kind::Cyclic { .. } => self.op2(Class::B32, "shr.u32", column, lanes.ilog2()),
            Kind::Runs { down: true, .. } => column,
            Kind::Runs { threads, .. } => {
                let among = self.fixed(Fixed::ThreadColumn(threads));
                self.op2(Class::B32, "shr.u32", among, lanes.ilog2())
            }
            Kind::Fragments { warp_rows, .. } | Kind::Quads { warp_rows, .. } | Kind::RowCache { warp_rows, .. } => {
                let warp = self.fixed(Fixed::Warp);
                self.op2(Class::B32, "shr.u32", warp, warp_rows.ilog2())
            }
        };
        let address = self.staged_address(staged, Some(row), Some(partial));
        for (i, value) in (0..).zip(own) {
            let row = self.row_exists(l, i);
            let exists = self.both(row, Some(writes));
            self.store_shared(address, l.row_offset(i) * staged.row, value, exists);
        }
        self.bar();
        self.touch_shared(READ);

        // Then the threads of each row add these up.
        let (row, _) = self.thread_position(to);
        let results = (0..to.own_rows())
            .map(|i| {
                let row = self.op2(Class::B32, "add.u32", row, to.row_offset(i));
                let row = self.op2(Class::B32, "min.u32", row, l.rows - 1);
                let address = self.staged_address(staged, Some(row), None);
                let sum = self.load_shared(class, address, 0);
                if partials > 1 {
                    self.add_partials(op, dtype, sum, address, partials, size);
                }
                sum
            })
            .collect();
        self.set_all(result, results);
    }

    /// One element of a tile, for all threads: whoever holds it writes it to shared memory.
    pub fn tile_element(&mut self, result: Value, tile: Value, index: [Value; 2]) {
        let l = self.layout(tile);
        let class = Class::of(self.dtype(tile));
        self.before(self.shared_touch(WRITE));
        self.need_shared(u64::from(class.shared_bytes()));
        let start = self.fixed(Fixed::Shared);
        let mut inside = None;
        // Within the tile, so that there is one whatever the index.
        let [row, column] = [0, 1].map(|axis| {
            let (wanted, extent) = (self.get(index[axis]), [l.rows, l.columns][axis]);
            let is_inside = self.op2(Class::Pred, "setp.lt.u64", wanted, extent);
            inside = self.both(inside, Some(is_inside));
            self.op2(Class::B64, "min.u64", wanted, extent - 1)
        });
        let (rows, columns) = self.positions(l);
        let columns: Vec<Reg> = columns.into_iter().map(|c| self.op2(Class::Pred, "setp.eq.s64", c, column)).collect();
        let values = self.all(tile);
        for (i, own) in (0..).zip(rows) {
            let is_row = self.op2(Class::Pred, "setp.eq.s64", own, row);
            for (j, &is_column) in (0..).zip(&columns) {
                let here = self.both(Some(is_row), Some(is_column));
                self.store_shared(start, 0, values[l.register(i, j)], here);
            }
        }
        self.bar();
        self.touch_shared(READ);
        let value = self.load_shared(class, start, 0);
        let value = match inside {
            Some(inside) => {
                let zero = self.zero(class);
                self.select(inside, value, zero)
            }
            None => value,
        };
        self.set(result, value);
    }

    /// Combines `sum` with the values after it in shared memory, `count` with it.
    fn add_partials(&mut self, op: BinaryOp, dtype: DType, sum: Reg, address: Reg, count: u32, size: u32) {
        if count <= UNROLL {
            for i in 1..count {
                let value = self.load_shared(sum.class, address, i * size);
                let more = self.binary(op, dtype, sum, value);
                self.mov(sum, more);
            }
            return;
        }
        let left = self.immediate(Class::B32, count - 1);
        let head = self.label();
        let next = self.copy(address);
        self.place_label(head);
        emit!(self, "add.u32", next, next, size);
        let value = self.load_shared(sum.class, next, 0);
        let more = self.binary(op, dtype, sum, value);
        self.mov(sum, more);
        emit!(self, "sub.u32", left, left, 1);
        let again = self.op2(Class::Pred, "setp.ne.u32", left, 0);
        emit!(self, @again, "bra", head);
    }

    pub fn dot(&mut self, result: Value, a: Value, b: Value, acc: Value) {
        let l = self.layout(result);
        let inner = self.layout(a).columns;
        let smem_tiles = [a, b].map(|tile| self.plan.smem_tile(tile));
        let mut touch = self.smem_reads([a, b]);
        if smem_tiles.iter().all(Option::is_some) {
            self.before(touch.clone());
        } else {
            self.before(self.shared_touch(WRITE));
        }
        let mut staged = 0;
        let [left, right] = [0, 1].map(|i| match smem_tiles[i] {
            Some(smem_tile) => self.smem_operand([a, b][i], &smem_tile),
            None => {
                let from = self.layout([a, b][i]);
                let pitch = staged_pitch(from);
                let dot_operand = self.stage([a, b][i], staged, from.rows * pitch, pitch);
                staged += (from.rows * dot_operand.row).next_multiple_of(16);
                dot_operand
            }
        });
        if staged > 0 {
            self.bar();
            touch.touch_shared(READ);
            self.touch(touch);
        }

        let (row, column) = self.thread_position(l);
        let offsets = (0..l.own_rows()).map(|i| (l.row_offset(i), l.rows_end(i))).collect();
        let rows = self.axis_addresses(left, row, l.rows, offsets, true);
        let offsets = (0..l.own_columns()).map(|j| (l.column_offset(j), l.columns_end(j))).collect();
        let columns = self.axis_addresses(right, column, l.columns, offsets, false);
        let classes = [a, b].map(|tile| Class::of(self.dtype(tile)));
        let lies_along = |class: Class, step: u32, other: u32| {
            step == class.shared_bytes() && class != Class::Pred && other.is_multiple_of(VECTOR_BYTES)
        };
        let mut dot_operands = DotAddresses {
            rows,
            columns,
            steps: [left.column, right.row],
            vectors: [lies_along(classes[0], left.column, left.row), lies_along(classes[1], right.row, right.column)],
            neighbours: match l.kind {
                Kind::Runs { count, down: false, .. }
                    if count * classes[1].shared_bytes() == VECTOR_BYTES
                        && lies_along(classes[1], right.column, right.row) =>
                {
                    count
                }
                Kind::Runs { .. } | Kind::Cyclic { .. } => 1,
                Kind::Fragments { .. } | Kind::Quads { .. } | Kind::RowCache { .. } => 1,
            },
            classes,
        };
        let accumulators: Vec<Reg> = self.all(acc).into_iter().map(|r| self.copy(r)).collect();
        let rounds = inner / UNROLL;
        let mut done = 0;
        if rounds > 1 {
            let bases = dot_operands.copy_bases(self);
            let round = self.immediate(Class::B32, rounds);
            let head = self.label();
            self.place_label(head);
            self.dot_steps(l, &dot_operands, 0, UNROLL, &accumulators);
            for (base, step) in bases {
                emit!(self, "add.u32", base, base, UNROLL * step);
            }
            emit!(self, "sub.u32", round, round, 1);
            let again = self.op2(Class::Pred, "setp.ne.u32", round, 0);
            emit!(self, @again, "bra", head);
            // The bases have moved past what is done.
            done = rounds * UNROLL;
        }
        for k in (0..inner - done).step_by(UNROLL as usize) {
            self.dot_steps(l, &dot_operands, k, UNROLL.min(inner - done - k), &accumulators);
        }
        self.set_all(result, accumulators);
    }

    /// Where each of this thread's rows (or columns) begins: a register and an offset. `offsets` holds, for each, how
    /// far it is from the first one, and where the last thread's ends. A thread without a last one of its own takes the
    /// tile's last one instead; its results are of no use.
    fn axis_addresses(
        &mut self,
        staged: Staged,
        thread: Reg,
        extent: u32,
        offsets: Vec<(u32, u32)>,
        rows: bool,
    ) -> Vec<(Reg, u32)> {
        let address = |g: &mut Self, position: Reg| {
            let (row, column) = if rows { (Some(position), None) } else { (None, Some(position)) };
            g.staged_address(staged, row, column)
        };
        let stride = if rows { staged.row } else { staged.column };
        let full = address(self, thread);
        let mut places: Vec<_> = offsets.iter().map(|(offset, _)| (full, staged.offset + offset * stride)).collect();
        if let (Some(&(offset, end)), Some(last)) = (offsets.last(), places.last_mut())
            && end > extent
        {
            let position = self.op2(Class::B32, "add.u32", thread, offset);
            let position = self.op2(Class::B32, "min.u32", position, extent - 1);
            *last = (address(self, position), staged.offset);
        }
        places
    }

    /// Where a tile is that lives in shared memory.
    pub(super) fn smem_operand(&mut self, tile: Value, smem_tile: &SmemTile) -> Staged {
        let (pitch, size) = (smem_tile.tile.pitch(), smem_tile.tile.size);
        let (row, column) = if smem_tile.transposed { (size, pitch) } else { (pitch, size) };
        Staged { start: self.smem_start(tile, smem_tile), offset: 0, row, column }
    }

    /// Accumulates the products of `count` columns of the left tile with rows of the right one, `k` steps from the
    /// present place.
    fn dot_steps(&mut self, l: Layout, dot_operands: &DotAddresses, k: u32, count: u32, accumulators: &[Reg]) {
        // Of each row (or column), its operands along K.
        let mut read = |(places, side): (&[(Reg, u32)], usize)| {
            let read = |&(base, offset): &(Reg, u32)| self.load_along(dot_operands, side, base, offset, k, count);
            places.iter().map(read).collect::<Vec<Vec<Reg>>>()
        };
        let a = read((&dot_operands.rows, 0));
        let b = match dot_operands.neighbours {
            1 => read((&dot_operands.columns, 1)),
            neighbours => {
                let groups = dot_operands.columns.chunks(neighbours as usize);
                groups.flat_map(|places| self.load_across(dot_operands, places, k, count)).collect()
            }
        };
        for step in 0..count as usize {
            for (i, x) in (0..).zip(&a) {
                for (j, y) in (0..).zip(&b) {
                    self.multiply_add(accumulators[l.register(i, j)], x[step], y[step]);
                }
            }
        }
    }

    /// The operands of `count` steps of neighbouring columns, each step's as a vector.
    fn load_across(&mut self, dot_operands: &DotAddresses, places: &[(Reg, u32)], k: u32, count: u32) -> Vec<Vec<Reg>> {
        let (class, step) = (dot_operands.classes[1], dot_operands.steps[1]);
        let mut columns = vec![Vec::with_capacity(count as usize); places.len()];
        let Some(&(base, offset)) = places.first() else { return columns };
        for k in k..k + count {
            let regs: Vec<Reg> = places.iter().map(|_| self.reg(class)).collect();
            let opcode = format!("ld.shared.v{}.{}", regs.len(), class.ty());
            emit!(self, opcode, vector_of(&regs), mem_at(base, offset + k * step));
            columns.iter_mut().zip(regs).for_each(|(column, reg)| column.push(reg));
        }
        columns
    }

    /// The operands of `count` steps, in vectors where they lie so.
    fn load_along(
        &mut self,
        dot_operands: &DotAddresses,
        side: usize,
        base: Reg,
        offset: u32,
        k: u32,
        count: u32,
    ) -> Vec<Reg> {
        let (class, step) = (dot_operands.classes[side], dot_operands.steps[side]);
        let at_once = VECTOR_BYTES / class.shared_bytes();
        if !dot_operands.vectors[side] || !count.is_multiple_of(at_once) || !(k * step).is_multiple_of(VECTOR_BYTES) {
            return (k..k + count).map(|k| self.load_shared(class, base, offset + k * step)).collect();
        }
        let regs: Vec<Reg> = (0..count).map(|_| self.reg(class)).collect();
        for (i, part) in (0..).zip(regs.chunks(at_once as usize)) {
            let at = offset + k * step + i * VECTOR_BYTES;
            emit!(self, format!("ld.shared.v{at_once}.{}", class.ty()), vector_of(part), mem_at(base, at));
        }
        regs
    }
}

/// The bits of a number, if the dtype is one of floats.
fn float_bits(dtype: DType, x: f64) -> Option<u64> {
    match Class::of(dtype) {
        Class::F32 => Some(u64::from((x as f32).to_bits())),
        Class::F64 => Some(x.to_bits()),
        Class::Pred | Class::B16 | Class::B32 | Class::B64 => None,
    }
}

/// Elements from one row of an operand to the next in shared memory, so that the threads of a warp, which write parts
/// of neighbouring rows, meet all banks.
fn staged_pitch(l: Layout) -> u32 {
    match l.kind {
        Kind::Cyclic { thread_columns, .. } if thread_columns < 32 => {
            l.columns + (32 + thread_columns - l.columns % 32) % 32
        }
        Kind::Cyclic { .. } | Kind::Runs { .. } => l.columns,
        Kind::Fragments { .. } | Kind::Quads { .. } | Kind::RowCache { .. } => l.columns,
    }
}

/// Where a thread reads the operands of `dot`.
struct DotAddresses {
    /// The beginning of each of its rows of the left tile.
    rows: Vec<(Reg, u32)>,
    /// The beginning of each of its columns of the right tile.
    columns: Vec<(Reg, u32)>,
    /// Bytes to the next operand in a row, and in a column.
    steps: [u32; 2],
    /// Registers for the operands of each side.
    classes: [Class; 2],
    /// Whether operands of following steps lie side by side, in whole vectors.
    vectors: [bool; 2],
    /// How many columns of the right tile lie side by side as the thread has them, in a vector: 1 if they do not.
    neighbours: u32,
}

impl DotAddresses {
    /// Gives the addresses registers of their own, to be moved; returns these with their sides' steps.
    fn copy_bases(&mut self, g: &mut Gen<'_>) -> Vec<(Reg, u32)> {
        let mut bases: Vec<(Reg, Reg, u32)> = Vec::new();
        for (places, step) in [(&mut self.rows, self.steps[0]), (&mut self.columns, self.steps[1])] {
            let first = bases.len();
            for (base, _) in places {
                *base = match bases[first..].iter().find(|(from, ..)| from == base) {
                    Some(&(_, copy, _)) => copy,
                    None => {
                        let copy = g.copy(*base);
                        bases.push((*base, copy, step));
                        copy
                    }
                };
            }
        }
        bases.into_iter().map(|(_, copy, step)| (copy, step)).collect()
    }
}
