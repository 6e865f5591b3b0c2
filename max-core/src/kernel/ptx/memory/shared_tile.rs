//! The shared-memory layout of tiles, swizzled, and `cp.async` copies of tiles from an operand to there.
//!
//! The swizzle exists so that tensor cores read, and threads write, without bank conflicts (as CUTLASS's `Swizzle`).
//!
//! A tile lies row by row in vectors of 16 bytes. Eight vectors of one column, from eight rows, are read at once, and
//! eight neighbours of a row are written at once; both must meet all banks.
//!
//! * Where a row has a power of two of vectors, a vector's place in its row (or in the rows that make up 128 bytes) is
//!   the exclusive or of its column and its row.
//! * Other rows are padded to an odd number of vectors, and so are those that threads read an element at a time.
//! * Where threads side by side read vectors side by side, they lie in order without padding.
//! * Of elements of 4 bytes, tensor cores also read words of four rows, eight of each, and neighbouring pairs of four
//!   rows are written at once. Three bits of the row, in reverse, serve all of these; other rows are padded to twice an
//!   odd number. `wgmma` takes them as any other elements.

use super::super::BLOCK_SIZE;
use super::super::analysis::hazards::WRITE;
use super::super::analysis::plan::SmemTile;
use super::super::emitter::{Fixed, Gen};
use super::super::machine::{Class, Reg, mem, mem_at};
use crate::kernel::ir::{Inst, Op, Value};

/// Bytes that are copied, or read by a tensor core, as one.
pub(in crate::kernel::ptx) const VECTOR_BYTES: u32 = 16;

/// The most bytes of eight rows as warpgroups read them: tiles begin at multiples of it.
pub(in crate::kernel::ptx) const SWIZZLE_ATOM: u32 = 1024;

/// The shape of a tile in shared memory.
#[derive(Clone, Copy, Debug)]
pub(in crate::kernel::ptx) struct SmemLayout {
    pub rows: u32,
    /// A multiple of what a vector holds.
    pub columns: u32,
    /// Bytes of an element.
    pub size: u32,
    /// Whether it is swizzled: vectors have other places in each row.
    pub swizzled: bool,
    /// Whether they lie in order: neither swizzled nor padded.
    pub in_order: bool,
    /// Vectors of a row that lie side by side: a panel. Behind all rows of a panel follows the next.
    panel: u32,
    /// Whether warpgroups read it.
    by_wgmma: bool,
}

impl SmemLayout {
    /// A tile in one panel.
    pub fn new(rows: u32, columns: u32, size: u32, swizzled: bool) -> SmemLayout {
        let panel = columns * size / VECTOR_BYTES;
        SmemLayout { rows, columns, size, swizzled, in_order: false, panel, by_wgmma: false }
    }

    /// A tile whose vectors lie in order.
    pub fn in_order(rows: u32, columns: u32, size: u32) -> SmemLayout {
        SmemLayout { in_order: true, ..SmemLayout::new(rows, columns, size, false) }
    }

    /// The tile in panels of up to 128 bytes, as warpgroups read it, that divide so many columns too.
    pub fn in_panels(self, columns: u32) -> SmemLayout {
        let divides = |panel: &u32| {
            self.panel.is_multiple_of(*panel) && (columns * self.size / VECTOR_BYTES).is_multiple_of(*panel)
        };
        SmemLayout { panel: [8, 4, 2].into_iter().find(divides).unwrap_or(1), by_wgmma: true, ..self }
    }

    /// Vectors of a row in a panel.
    pub fn panel(self) -> u32 {
        self.panel
    }

    /// Bytes of a panel.
    pub fn panel_bytes(self) -> u32 {
        self.rows * self.pitch()
    }

    /// Vectors of a row.
    pub fn vectors(self) -> u32 {
        self.columns * self.size / VECTOR_BYTES
    }

    /// Whether tensor cores read its elements of 4 bytes by words too.
    pub fn by_words(self) -> bool {
        self.swizzled && self.size == 4 && !self.by_wgmma
    }

    /// Bytes from one row to the next.
    pub fn pitch(self) -> u32 {
        VECTOR_BYTES
            * match self.panel {
                vectors if self.in_order => vectors,
                vectors if self.swizzled && vectors.is_power_of_two() => vectors,
                vectors if self.by_words() => 2 * (vectors.div_ceil(2) | 1),
                vectors => vectors | 1,
            }
    }

    pub fn bytes(self) -> u32 {
        (self.vectors() / self.panel * self.panel_bytes()).next_multiple_of(128)
    }

    /// The swizzle: the right shift of a row's number, and the mask of its bits that are exclusive-ored into the
    /// places. Rows whose numbers differ by a multiple of 8 have the same places.
    fn swizzle(self) -> (u32, u32) {
        match self.panel {
            _ if !self.swizzled => (0, 0),
            vectors @ (2 | 4) => (3 - vectors.ilog2(), vectors - 1),
            vectors if vectors.is_power_of_two() && vectors > 1 => (0, 7),
            _ => (0, 0),
        }
    }

    /// The bits that change the places of a row's vectors.
    pub fn swizzle_of(self, g: &mut Gen<'_>, row: Reg) -> Option<Reg> {
        if self.by_words() {
            let mask = match self.panel {
                vectors if vectors.is_power_of_two() => vectors.min(8) - 1,
                _ => 1,
            };
            return (mask > 0).then(|| {
                let reversed = g.op1(Class::B32, "brev.b32", row);
                let bits = g.op2(Class::B32, "shr.u32", reversed, 29);
                if mask == 7 { bits } else { g.op2(Class::B32, "and.b32", bits, mask) }
            });
        }
        let (shift, mask) = self.swizzle();
        (mask > 0).then(|| {
            let shifted = if shift > 0 { g.op2(Class::B32, "shr.u32", row, shift) } else { row };
            g.op2(Class::B32, "and.b32", shifted, mask)
        })
    }

    /// Where a vector lies, in bytes from `start`.
    pub fn place(self, g: &mut Gen<'_>, start: Reg, row: Reg, vector: Reg) -> Reg {
        let (start, vector) = if self.panel < self.vectors() {
            let panel = g.op2(Class::B32, "shr.u32", vector, self.panel.ilog2());
            let begin = g.reg(Class::B32);
            emit!(g, "mad.lo.u32", begin, panel, self.panel_bytes(), start);
            (begin, g.op2(Class::B32, "and.b32", vector, self.panel - 1))
        } else {
            (start, vector)
        };
        let vector = match self.swizzle_of(g, row) {
            Some(bits) => g.op2(Class::B32, "xor.b32", vector, bits),
            None => vector,
        };
        let (at_row, at) = (g.reg(Class::B32), g.reg(Class::B32));
        emit!(g, "mad.lo.u32", at_row, row, self.pitch(), start);
        emit!(g, "mad.lo.u32", at, vector, VECTOR_BYTES, at_row);
        at
    }
}

/// A tile of an operand in memory.
pub(in crate::kernel::ptx) struct Source {
    operand: u32,
    /// The address of the first element, wherever it is.
    first: Reg,
    /// Whether the coordinates of the leading dimensions are inside; `None` if there are none.
    inside: Option<Reg>,
    /// First row and column.
    origin: [Reg; 2],
    /// Extents along the rows and the columns.
    dims: [Reg; 2],
    /// Bytes from a row, and from a column, to the next.
    steps: [Reg; 2],
}

impl Gen<'_> {
    /// Where a tile that lives in shared memory begins.
    pub fn smem_start(&mut self, tile: Value, smem_tile: &SmemTile) -> Reg {
        if let Some(&start) = self.pipeline.get(&tile) {
            return start;
        }
        let shared = self.fixed(Fixed::SharedStart);
        self.op2(Class::B32, "add.u32", shared, smem_tile.offset)
    }

    /// Begins to copy a tile to where it lives. It has arrived after `cp.async.wait_all` and a barrier.
    pub fn load_to_smem(&mut self, inst: &Inst) {
        if let Some(smem_tile) = self.plan.smem_tile(inst.results[0]) {
            let start = self.smem_start(inst.results[0], &smem_tile);
            self.copy_tile(inst, smem_tile.tile, start);
            if smem_tile.rounds {
                self.bar();
                self.round_tile(smem_tile.tile, start);
                let mut rounded = self.no_touches();
                rounded.touch_smem_tile(smem_tile.index, WRITE);
                self.touch(rounded);
            }
        }
    }

    /// The tile at `origin` of an operand of elements of `size` bytes.
    pub fn source(&mut self, operand: u32, batch: &[Value], origin: [Value; 2], size: u32) -> Source {
        let batch: Vec<Reg> = batch.iter().map(|&v| self.get(v)).collect();
        let axis = batch.len() as u32;
        let (mut offset, inside) = self.offset(operand, &batch, 0, None, None);
        let origin = origin.map(|v| self.get(v));
        for (axis, at) in (axis..).zip(origin) {
            let stride = self.stride(operand, axis);
            offset = self.offset_along(stride, at, offset);
        }
        let first = self.address(operand, offset);
        let dims = [axis, axis + 1].map(|axis| self.dim(operand, axis));
        let steps = [axis, axis + 1].map(|axis| {
            let stride = self.stride(operand, axis);
            self.op2(Class::B64, "mul.lo.s64", stride, size)
        });
        Source { operand, first, inside, origin, dims, steps }
    }

    /// Whether a tile's rows consist of vectors of `bytes`, a power of two, that are contiguous, aligned, and inside of
    /// the bounds or outside as a whole: then both bounds lie between vectors. The same for all threads.
    pub fn is_vectorizable(&mut self, source: &Source, size: u32, bytes: u32) -> Reg {
        let bounds = self.op2(Class::B64, "or.b64", source.dims[1], source.origin[1]);
        let bounds = self.op2(Class::B64, "mul.lo.s64", bounds, size);
        let bits = self.op2(Class::B64, "or.b64", source.first, source.steps[0]);
        let bits = self.op2(Class::B64, "or.b64", bits, bounds);
        let bits = self.op2(Class::B64, "and.b64", bits, bytes - 1);
        let aligned = self.op2(Class::Pred, "setp.eq.s64", bits, 0);
        let contiguous = self.op2(Class::Pred, "setp.eq.s64", source.steps[1], size);
        self.op2(Class::Pred, "and.pred", aligned, contiguous)
    }

    /// Begins to copy what a load reads to shared memory, 0 where it is outside of the bounds: in vectors if possible.
    pub fn copy_tile(&mut self, inst: &Inst, tile: SmemLayout, start: Reg) {
        let Op::TileLoad { operand, batch, origin, .. } = &inst.op else { return };
        let source = self.source(*operand, batch, *origin, tile.size);
        let vectors = self.is_vectorizable(&source, tile.size, VECTOR_BYTES);
        let (one_by_one, end) = (self.label(), self.label());
        emit!(self, @!vectors, "bra", one_by_one);
        self.copy_vectors(&source, tile, start);
        emit!(self, "bra", end);
        self.place_label(one_by_one);
        self.copy_elements(&source, tile, start);
        self.place_label(end);
    }

    /// `a / b` and the remainder, of 32-bit numbers.
    fn divide_by(&mut self, a: Reg, b: u32) -> (Reg, Reg) {
        if b.is_power_of_two() {
            return (self.op2(Class::B32, "shr.u32", a, b.ilog2()), self.op2(Class::B32, "and.b32", a, b - 1));
        }
        (self.op2(Class::B32, "div.u32", a, b), self.op2(Class::B32, "rem.u32", a, b))
    }

    /// Whether a 32-bit position from the source's origin is inside along one axis, and how far it is from the origin.
    fn along_source(&mut self, source: &Source, axis: usize, position: Reg) -> Reg {
        let wide = self.op1(Class::B64, "cvt.u64.u32", position);
        let at = self.op2(Class::B64, "add.s64", source.origin[axis], wide);
        self.op2(Class::Pred, "setp.lt.u64", at, source.dims[axis])
    }

    fn copy_vectors(&mut self, source: &Source, tile: SmemLayout, start: Reg) {
        let (panel, total) = (tile.panel(), tile.rows * tile.vectors());
        let thread = self.fixed(Fixed::Thread);
        let per_unit = VECTOR_BYTES / tile.size;
        // Rows of a panel that all threads together copy at a time. Where these are whole ones, a thread stays in its
        // column.
        let rows_at_once = BLOCK_SIZE / panel;
        let stays = BLOCK_SIZE.is_multiple_of(panel)
            && rows_at_once.is_multiple_of(8)
            && (panel == tile.vectors() || tile.rows.is_multiple_of(rows_at_once));
        let mut cached: Option<(u32, Reg, Reg, Reg, Reg)> = None;
        for i in 0..total.div_ceil(BLOCK_SIZE) {
            let in_panel = if stays { i * rows_at_once / tile.rows } else { 0 };
            let (row, column_inside, from, to, to_offset) = match cached {
                Some((of, row, column_inside, from, to)) if stays && of == in_panel => {
                    let down = i * rows_at_once - of * tile.rows;
                    let next = self.op2(Class::B32, "add.u32", row, down);
                    (next, column_inside, from, to, down * tile.pitch())
                }
                Some(_) | None => {
                    let at =
                        if i == 0 || stays { thread } else { self.op2(Class::B32, "add.u32", thread, i * BLOCK_SIZE) };
                    let (row, vector) = self.row_and_vector(tile, at, stays);
                    let vector =
                        if in_panel == 0 { vector } else { self.op2(Class::B32, "add.u32", vector, in_panel * panel) };
                    let column = self.op2(Class::B32, "mul.lo.u32", vector, per_unit);
                    let column_inside = self.along_source(source, 1, column);
                    let column_inside = self.both(Some(column_inside), source.inside).unwrap_or(column_inside);
                    let to = tile.place(self, start, row, vector);
                    let wide = self.reg(Class::B64);
                    emit!(self, "mul.wide.u32", wide, vector, VECTOR_BYTES);
                    let from = self.op2(Class::B64, "add.s64", source.first, wide);
                    cached = Some((in_panel, row, column_inside, from, to));
                    (row, column_inside, from, to, 0)
                }
            };
            let row_inside = self.along_source(source, 0, row);
            let inside = self.op2(Class::Pred, "and.pred", row_inside, column_inside);
            let wide = self.op1(Class::B64, "cvt.u64.u32", row);
            let from_row = self.reg(Class::B64);
            emit!(self, "mad.lo.s64", from_row, wide, source.steps[0], from);
            let bytes = self.selp(Class::B32, VECTOR_BYTES, 0, inside);
            let exists = ((i + 1) * BLOCK_SIZE > total)
                .then(|| self.op2(Class::Pred, "setp.lt.u32", thread, total - i * BLOCK_SIZE));
            let (to, from) = (mem_at(to, to_offset), mem(from_row));
            emit!(self, when exists, "cp.async.cg.shared.global", to, from, VECTOR_BYTES, bytes);
        }
    }

    /// The row and the vector of it that are copied at a place in the order of copying: panel by panel, row by row.
    fn row_and_vector(&mut self, tile: SmemLayout, at: Reg, in_first_panel: bool) -> (Reg, Reg) {
        if in_first_panel || tile.panel() == tile.vectors() {
            return self.divide_by(at, tile.panel());
        }
        let (panel, rest) = self.divide_by(at, tile.rows * tile.panel());
        let (row, in_panel) = self.divide_by(rest, tile.panel());
        let vector = self.reg(Class::B32);
        emit!(self, "mad.lo.u32", vector, panel, tile.panel(), in_panel);
        (row, vector)
    }

    fn copy_elements(&mut self, source: &Source, tile: SmemLayout, start: Reg) {
        let total = tile.rows * tile.columns;
        // Neighbouring threads take neighbours in memory.
        let mut down = self.op2(Class::Pred, "setp.eq.s64", source.steps[0], tile.size);
        let across = self.op2(Class::Pred, "setp.ne.s64", source.steps[1], tile.size);
        down = self.op2(Class::Pred, "and.pred", down, across);
        let thread = self.fixed(Fixed::Thread);
        let at = self.copy(thread);
        let (head, end) = (self.label(), self.label());
        self.place_label(head);
        let done = self.op2(Class::Pred, "setp.ge.u32", at, total);
        emit!(self, @done, "bra", end);
        let ((row, column), (other_column, other_row)) =
            (self.divide_by(at, tile.columns), self.divide_by(at, tile.rows));
        let row = self.selp(Class::B32, other_row, row, down);
        let column = self.selp(Class::B32, other_column, column, down);
        let insides = [row, column].into_iter().enumerate().map(|(axis, p)| self.along_source(source, axis, p));
        let insides: Vec<Reg> = insides.collect();
        let inside = self.op2(Class::Pred, "and.pred", insides[0], insides[1]);
        let inside = self.both(Some(inside), source.inside);
        let mut address = source.first;
        for (position, step) in [row, column].into_iter().zip(source.steps) {
            let wide = self.op1(Class::B64, "cvt.u64.u32", position);
            let next = self.reg(Class::B64);
            emit!(self, "mad.lo.s64", next, wide, step, address);
            address = next;
        }
        let raw = self.load_raw(source.operand, super::Place { address, inside });
        let (vector, in_unit) = self.divide_by(column, VECTOR_BYTES / tile.size);
        let to = tile.place(self, start, row, vector);
        let to_element = self.reg(Class::B32);
        emit!(self, "mad.lo.u32", to_element, in_unit, tile.size, to);
        // A byte stands in a register of 32 bits.
        let ty = if tile.size == 1 { "b8" } else { raw.class.ty() };
        emit!(self, format!("st.shared.{ty}"), mem(to_element), raw);
        emit!(self, "add.u32", at, at, BLOCK_SIZE);
        emit!(self, "bra", head);
        self.place_label(end);
    }
}
