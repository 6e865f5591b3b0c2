//! Products of scaled integers: rows of 8-bit integers with scales, which lane code computes, by bytes in memory with theirs, as
//! quantized weights are multiplied.
//!
//! Integers that share both scales are added as integers, so products are exact but for the scales and the sums of groups.
//!
//! | columns | on AVX-512 with VNNI | with AVX2 | else |
//! | --- | --- | --- | --- |
//! | few | dot products along K, of 64 integers a step | of 32 | loops |
//! | more | outer products over quads of K packed side by side | the same | loops |
//!
//! Few columns are bound by the bandwidth at which weights are read: words are multiplied in the registers in which they were unpacked.
//! For more columns all rows of the tile are unpacked first. Each way stands in a file beside this one.

#[cfg(target_arch = "x86_64")]
mod gemv_int8;
#[cfg(target_arch = "x86_64")]
mod gemv_two_level_scales;
#[cfg(target_arch = "x86_64")]
mod interleaved_int8;
#[cfg(target_arch = "x86_64")]
mod microkernel_int8;
#[cfg(target_arch = "x86_64")]
mod microkernel_two_level_scales;
#[cfg(target_arch = "x86_64")]
mod panel_cache;
mod unpacking;

use std::mem::ManuallyDrop;
use std::ptr;

#[cfg(target_arch = "x86_64")]
use self::gemv_int8::Few;
#[cfg(target_arch = "x86_64")]
use self::interleaved_int8 as interleaved;
#[cfg(target_arch = "x86_64")]
use self::microkernel_int8 as microkernel;
#[cfg(target_arch = "x86_64")]
use self::microkernel_two_level_scales as two_level_scales;
#[cfg(target_arch = "x86_64")]
use self::panel_cache::CachedPanel;
use self::unpacking::fill_row;
use super::super::isa::{BLOCK, Level, TAIL};
#[cfg(target_arch = "x86_64")]
use super::super::pack::Source;
use super::super::scratch::OwnedScratch;
use super::super::tile::{self, AnyVar};
use super::super::{Cpu, CpuTileVar};
use super::{Operand, begins_inside, element, extent, source};
use crate::kernel::cpu_features;
use crate::kernel::lang::{Lanes, Scale, ScaledRow, Val};

/// Columns of tiles that are multiplied along K.
pub(super) const FEW: usize = 8;
/// Integers of a row are written up to a multiple of so many.
const UNIT: usize = 256;
/// `acc += a · b`, where `row` gives the rows of `a`.
#[inline(always)]
pub(in crate::kernel::cpu) fn multiply<
    L: Level,
    W: ScaledRow<Cpu<L>>,
    const R: usize,
    const K: usize,
    const G: usize,
    const H: usize,
    const C: usize,
>(
    row: impl Fn(Val<Cpu<L>, i64>) -> W,
    b: Operand<u8>,
    scale: Operand<f32>,
    acc: &CpuTileVar<f32, R, C>,
) {
    const {
        assert!(G > 0 && K.is_multiple_of(4 * G), "K is a multiple of 4 G, so that groups are of whole words");
        assert!(
            H > 0 && G.is_multiple_of(H),
            "G is a multiple of H, so that groups have one scale of the right operand"
        );
    }
    // All rows are as long as the first.
    let first = row(Val(0));
    let len = Ord::min(Ord::max(first.words().len().0, 0) as usize, K / 4) * 4;
    // What is none is left to the offsets.
    let zero = first.zero().0;
    let zero = if W::HAS_ZERO && 0 < zero && zero < 128 { zero as u8 } else { 0 };
    let shape = Shape { steps: K, groups: G, of_right: H, len: Ord::min(len.next_multiple_of(UNIT), K), zero };
    let kind = Kind {
        is_signed: W::IS_SIGNED,
        has_offsets: W::Scale::HAS_OFFSET,
        // The microkernel knows the zero point from the shape.
        has_levels: const { has_levels::<L, W>([K, G, H]) } && (C <= FEW || !W::HAS_ZERO || zero > 0),
        begins_with_zero: const { L::AVX512 && W::HAS_ZERO && !W::IS_SIGNED } && zero > 0,
        transposes: const { is_transposed::<L, W>([K, G, H]) },
    };
    let Some(product) = Product::new::<L>(shape, kind, (&b, &scale), acc.any()) else {
        return;
    };
    // Kernels have no code for panics: one would leak the memory.
    let product = ManuallyDrop::new(product);
    let left = &product.left;
    #[cfg(target_arch = "x86_64")]
    if const { is_fused::<L>(C) }
        && let Some(few) = product.few::<L>()
    {
        for i in 0..R {
            let row = row(Val(i as i64));
            // SAFETY: there is room for the row; kernels have their level's features.
            unsafe {
                if const { !has_levels::<L, W>([K, G, H]) } {
                    few.multiply_row::<L, W, K, G, H, C>(row, i, kind.begins_with_zero);
                } else if const { K / G == 32 } {
                    few.multiply_two_level::<L, W, K, G, C, 8>(row, i);
                } else {
                    few.multiply_two_level::<L, W, K, G, C, 16>(row, i);
                }
            }
        }
        if const { C > 1 } {
            // SAFETY: the sum has that many rows, nobody else's.
            unsafe { few.finish(R) };
        }
        return Product::release(product);
    }
    for i in 0..R {
        // SAFETY: the product has room for so many rows.
        unsafe {
            #[cfg(target_arch = "x86_64")]
            if const { C > FEW && has_levels::<L, W>([K, G, H]) }
                && left.has_levels
                && matches!(product.right, Right::Packed { .. })
            {
                if const { K / G == 32 } {
                    two_level_scales::fill_levels::<L, W, 8>(left, row(Val(i as i64)), i);
                } else {
                    two_level_scales::fill_levels::<L, W, 16>(left, row(Val(i as i64)), i);
                }
                continue;
            }
            if const { is_fused::<L>(C) } {
                fill_row::<L, W, false>(left, row(Val(i as i64)), i);
            } else {
                fill_row::<L, W, true>(left, row(Val(i as i64)), i);
            }
        }
    }
    // SAFETY: all rows were written.
    unsafe { product.add::<L>(R) };
    Product::release(product);
}

/// Whether a tile of so many columns is multiplied as its rows are unpacked, if its memory permits it.
const fn is_fused<L: Level>(columns: usize) -> bool {
    L::AVX2 && columns <= FEW
}

/// Whether [integer scales](gemv_two_level_scales) are multiplied as such.
#[cfg(target_arch = "x86_64")]
const fn has_levels<L: Level, W: ScaledRow<Cpu<L>>>(sizes: [usize; 3]) -> bool {
    gemv_two_level_scales::is_two_level::<L, W>(sizes)
}

/// Whether blocks are multiplied [transposed](gemv_int8::is_transposed).
#[cfg(target_arch = "x86_64")]
const fn is_transposed<L: Level, W: ScaledRow<Cpu<L>>>(sizes: [usize; 3]) -> bool {
    gemv_int8::is_transposed::<L, W>(sizes)
}

/// No other architecture's code has either.
#[cfg(not(target_arch = "x86_64"))]
const fn has_levels<L: Level, W: ScaledRow<Cpu<L>>>(_sizes: [usize; 3]) -> bool {
    false
}

#[cfg(not(target_arch = "x86_64"))]
const fn is_transposed<L: Level, W: ScaledRow<Cpu<L>>>(_sizes: [usize; 3]) -> bool {
    false
}

/// What rows are.
#[derive(Clone, Copy)]
struct Kind {
    is_signed: bool,
    has_offsets: bool,
    /// Whether [integer scales](gemv_two_level_scales) are multiplied as such.
    has_levels: bool,
    /// Whether sums of products of few columns begin with those of the zero point: then rows have no offsets to compute, and to add.
    begins_with_zero: bool,
    /// Whether blocks are multiplied [transposed](gemv_int8::is_transposed).
    transposes: bool,
}

/// The sizes of a product along K.
#[derive(Clone, Copy)]
struct Shape {
    /// Integers of a row, and its scales.
    steps: usize,
    groups: usize,
    /// Scales of a column.
    of_right: usize,
    /// Integers of a row that are written; those after them are 0.
    len: usize,
    /// What stands for 0 in bytes without a sign; offsets are known from it, unless it is 0.
    zero: u8,
}

/// The left operand: of some rows of integers, of scales and of offsets, the first `steps` and `groups`.
pub(super) struct Left {
    /// Plus 128, as bytes without a sign, where [`is_biased`](Self::is_biased) says so.
    pub integers: *const u8,
    /// From a row to the next.
    pub row: usize,
    pub scales: *const f32,
    /// Null if there are none.
    pub offsets: *const f32,
    /// From a row of scales, or of offsets, to the next; a vector more than there are, of which the rest is 0.
    pub scales_row: usize,
    /// Where there are two levels, of each block the factors of its scales and minima. The scales are then integers of 16 bits, each twice,
    /// and the offsets minima of 16 bits, or the scales once more.
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "only levels of x86-64 have microkernels"))]
    pub factors: *const f32,
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "only levels of x86-64 have microkernels"))]
    pub factors_row: usize,
    pub is_biased: bool,
    /// The byte that stands for 0: of few columns where sums of products begin with it, times those of the columns, and else 0; of many
    /// columns the zero point plus 128, as where they are biased.
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "only levels of x86-64 have microkernels"))]
    pub zero: u8,
    pub is_signed: bool,
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "only levels of x86-64 have microkernels"))]
    pub has_levels: bool,
    /// Whether sums of groups are in the lanes that a [transposed](gemv_int8::is_transposed) block has them in.
    pub transposes: bool,
    pub steps: usize,
    pub groups: usize,
}

impl Left {
    /// Where the scales of row `i` are written, and its offsets; null if there are none.
    #[inline(always)]
    pub fn row_scales(&self, i: usize) -> [*mut f32; 2] {
        let at = i * self.scales_row;
        let offsets = if self.offsets.is_null() { self.offsets } else { self.offsets.wrapping_add(at) };
        [self.scales.wrapping_add(at).cast_mut(), offsets.cast_mut()]
    }
}

/// A column of the right operand.
pub(super) struct Column {
    pub integers: *const u8,
    /// Of groups, and a vector of zeros.
    pub scales: *const f32,
    /// Of each four integers the sum times [what stands for 0](Left::zero), less than 0: what sums of products begin with.
    pub sums: *mut i32,
    /// Of each group the sum times the scale, and a vector of zeros; the sum alone, an `i32`, where rows have scales of two levels.
    pub offset_sums: *mut f32,
}

/// Columns of which all have the same distances.
#[cfg(target_arch = "x86_64")]
pub(super) struct Columns {
    pub first: Column,
    pub count: usize,
    /// From the integers of one to those of the next.
    integers: isize,
    /// From its numbers of any kind to those of the next, in numbers.
    numbers: usize,
}

#[cfg(target_arch = "x86_64")]
impl Columns {
    /// Column `c`.
    #[inline(always)]
    pub fn column(&self, c: usize) -> Column {
        let (first, numbers) = (&self.first, c * self.numbers);
        Column {
            integers: first.integers.wrapping_offset(c as isize * self.integers),
            scales: first.scales.wrapping_add(numbers),
            sums: first.sums.wrapping_add(numbers),
            offset_sums: first.offset_sums.wrapping_add(numbers),
        }
    }
}

/// The right operand, as it is multiplied.
enum Right {
    /// A column after the other, of as many integers and scales as a left row.
    Columns(OwnedScratch),
    #[cfg(target_arch = "x86_64")]
    Packed { right: microkernel::Packed, _room: OwnedScratch },
    /// A few columns side by side, by which rows are multiplied as they are unpacked.
    #[cfg(target_arch = "x86_64")]
    Panel(CachedPanel),
    /// Where it is, for a tile that begins outside of it.
    Elements,
}

/// A product whose right operand is prepared, and that has room for rows of the left one. Lane code runs while there is one, and may
/// multiply, too: memory is its own.
struct Product<'a> {
    left: Left,
    right: Right,
    operands: (&'a Operand<u8>, &'a Operand<f32>),
    shape: Shape,
    /// Scales of a column that are inside.
    per_column: usize,
    /// Columns that are inside, and steps.
    extents: [usize; 2],
    /// Whether vectors are of whole groups, or groups of whole vectors.
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "only levels of x86-64 have microkernels"))]
    in_vectors: bool,
    /// Whether rows are multiplied as they are unpacked.
    is_fused: bool,
    sum: *mut f32,
    rows: usize,
    /// From a row of the sum to the next.
    width: usize,
    _rows: OwnedScratch,
}

/// The scale of a group of a column; 0 outside of the operand.
#[inline(always)]
fn scale_of<L: Level>(scale: &Operand<f32>, [group, column]: [usize; 2]) -> f32 {
    element::<L, f32>(scale, [group, column])
}

impl<'a> Product<'a> {
    /// Prepares a product; `None` where there is nothing to add, or no memory.
    #[inline(never)]
    fn new<L: Level>(
        shape: Shape,
        Kind { is_signed, has_offsets, has_levels, begins_with_zero, transposes }: Kind,
        operands: (&'a Operand<u8>, &'a Operand<f32>),
        acc: AnyVar<'_, f32>,
    ) -> Option<Self> {
        let ((b, scale), [all, width]) = (operands, acc.shape);
        let sum = tile::materialize::<L, _>(acc);
        let (group, of_right) = (shape.steps / shape.groups, shape.steps / shape.of_right);
        let columns = extent(b, 1).clamp(0, width as i64) as usize;
        // What is outside of either operand is 0.
        let depth = Ord::min(extent(b, 0).clamp(0, shape.steps as i64) as usize, shape.len);
        let unit = if shape.steps.is_multiple_of(64) && 64 % of_right == 0 { 64 } else { of_right };
        let parts = depth.div_ceil(unit) * (unit / of_right);
        let (steps, groups) = (parts * of_right, parts * of_right / group);
        let is_inside = begins_inside(b) && begins_inside(scale) && steps <= shape.len;
        if is_inside && steps == 0 {
            return None;
        }
        let in_vectors = is_inside && steps.is_multiple_of(64) && (64 % group == 0 || group.is_multiple_of(64));
        let is_few = in_vectors && is_fused::<L>(width);
        let is_biased = in_vectors && !is_few && L::AVX512 && cpu_features::matrix_units().int8.is_some();
        // Sums of products begin with those of the zero point: then there is no need of offsets.
        let begins_with_zero = is_few && begins_with_zero;
        let has_offsets = has_offsets && !(begins_with_zero || is_biased && shape.zero > 0);
        let scales_row = shape.len.div_ceil(group) + TAIL;
        // Rows that are multiplied by a panel do not lie a power of two apart.
        let row = if is_few { shape.len + 64 } else { shape.len };
        let integers = (all * row).next_multiple_of(64);
        let numbers = all * scales_row * size_of::<f32>();
        let factors_row = if has_levels && !is_few { 2 * shape.len.div_ceil(4 * BLOCK) } else { 0 };
        let room = OwnedScratch::for_rows(integers + 2 * numbers + all * factors_row * size_of::<f32>())?;
        let scales = room.at(integers).cast::<f32>().cast_const();
        let factors = scales.wrapping_add(2 * all * scales_row);
        let offsets = if has_offsets { scales.wrapping_add(all * scales_row) } else { ptr::null() };
        let (steps, groups) = if is_inside { (steps, groups) } else { (shape.len, scales_row - TAIL) };
        let integers = room.at(0).cast_const();
        let zero = match is_few {
            false => 0x80 + shape.zero,
            true if is_signed => 0x80,
            true if begins_with_zero => shape.zero,
            true => 0,
        };
        let left = Left {
            integers,
            row,
            scales,
            offsets,
            scales_row,
            factors,
            factors_row,
            is_biased,
            zero,
            is_signed,
            has_levels,
            transposes: is_few && transposes,
            steps,
            groups,
        };
        let per_column = if is_inside { parts } else { shape.of_right };
        let (extents, right) = ([columns, depth], Right::Elements);
        let _rows = room;
        let mut product = Product {
            left,
            right,
            operands,
            shape,
            per_column,
            extents,
            in_vectors,
            is_fused: is_few,
            sum,
            rows: all,
            width,
            _rows,
        };
        if is_inside {
            product.right = product.right::<L>()?;
        }
        Some(product)
    }

    /// Gives the memory back.
    #[inline(never)]
    fn release(product: ManuallyDrop<Self>) {
        let Product { right, .. } = ManuallyDrop::into_inner(product);
        #[cfg(target_arch = "x86_64")]
        let right = match right {
            Right::Panel(panel) => return panel.keep(),
            right => right,
        };
        drop(right);
    }

    /// The right operand, prepared; `None`, and a report, if there is no memory.
    fn right<L: Level>(&mut self) -> Option<Right> {
        let (count, few) = (self.extents[0], self.is_fused);
        #[cfg(target_arch = "x86_64")]
        if few && self.is_panel::<L>() {
            let (b, scale) = (source(self.operands.0, 1), source(self.operands.1, 1));
            let from = (&Source { extents: self.extents, ..b }, &scale);
            // SAFETY: both sources are inside their operands; there are panels where there is VNNI.
            return unsafe { CachedPanel::new(&self.left, from, self.per_column) }.map(Right::Panel);
        }
        #[cfg(target_arch = "x86_64")]
        if self.in_vectors && L::AVX2 && !few {
            let room = OwnedScratch::for_columns(self.packed_bytes())?;
            if let Some(right) = self.pack::<L>(&room) {
                return Some(Right::Packed { right, _room: room });
            }
        }
        let each = self.column_numbers() * size_of::<f32>();
        // Behind the columns are a row's scales times those of each, and the sums of all rows.
        let numbers = if few { count * (self.left.scales_row + self.rows * 2 * TAIL) } else { 0 };
        let room = OwnedScratch::for_columns(count * (each + self.column_steps()) + numbers * size_of::<f32>())?;
        let has_vnni = L::AVX512 && cpu_features::matrix_units().int8.is_some();
        for column in 0..count {
            let has_opposites = self.prepare::<L>(&room, column);
            self.is_fused &= has_opposites || !self.left.is_signed || has_vnni;
        }
        #[cfg(target_arch = "x86_64")]
        for column in 0..if self.is_fused && self.transposes() { count } else { 0 } {
            // SAFETY: it was prepared, in whole blocks; only levels with AVX-512 transpose.
            unsafe { gemv_int8::transpose_column(&self.column(&room, column), self.column_steps() / (4 * BLOCK)) };
        }
        Some(Right::Columns(room))
    }

    /// Whether a few columns are multiplied side by side: if they are more than a quarter of a panel, which takes as long for one as for all.
    #[cfg(target_arch = "x86_64")]
    fn is_panel<L: Level>(&self) -> bool {
        let words = self.left.steps / self.left.groups / 4;
        let right_words = self.left.steps / self.per_column / 4;
        let has_vnni = L::AVX512 && cpu_features::matrix_units().int8.is_some();
        has_vnni && self.extents[0] > interleaved::COLUMNS / 4 && gemv_int8::has_lanes(words, right_words)
    }

    /// The few columns by which rows are multiplied as they are unpacked.
    #[cfg(target_arch = "x86_64")]
    #[inline(never)]
    fn few<L: Level>(&self) -> Option<Few<'_>> {
        if !self.is_fused {
            return None;
        }
        let right = match &self.right {
            Right::Panel(panel) => gemv_int8::Right::Panel(panel.panel()),
            Right::Columns(room) => {
                let (count, each) = (self.extents[0], self.column_numbers());
                let integers =
                    if self.in_place() { source(self.operands.0, 1).strides[0] } else { self.column_steps() as i64 };
                let columns =
                    Columns { first: self.column(room, 0), count, integers: integers as isize, numbers: each };
                let scaled = room.at(count * (each * size_of::<f32>() + self.column_steps())).cast::<f32>();
                let sums = scaled.wrapping_add(count * self.left.scales_row).cast();
                gemv_int8::Right::Columns { columns, scaled, sums }
            }
            Right::Packed { .. } | Right::Elements => return None,
        };
        Some(Few::new::<L>(&self.left, right, (self.sum, self.width)))
    }

    /// Adds rows that were written.
    ///
    /// # Safety
    /// There must be so many, and the sum be nobody else's.
    #[inline(never)]
    unsafe fn add<L: Level>(&self, rows: usize) {
        let (left, to) = (&self.left, self.sum);
        match &self.right {
            // SAFETY: by the contract above.
            Right::Elements => unsafe { self.add_elements::<L>(rows, to) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above; the level has AVX2, and VNNI where the left integers are biased.
            Right::Packed { right, .. } => unsafe {
                let multiply = match (left.is_biased, left.has_levels) {
                    (true, _) => microkernel::multiply_vnni,
                    (_, true) => two_level_scales::multiply,
                    _ => microkernel::multiply_avx2,
                };
                multiply(left, right, [rows, self.extents[0]], (to, self.width));
            },
            // Its rows are multiplied as they are unpacked.
            #[cfg(target_arch = "x86_64")]
            Right::Panel(_) => {}
            Right::Columns(room) => {
                for column in 0..self.extents[0] {
                    // SAFETY: as above; the column is there, and as long as a row.
                    unsafe { along_k(left, &self.column(room, column), rows, (to.add(column), self.width)) };
                }
            }
        }
    }

    /// How many numbers a column has beside its integers: sums of four integers, scales, and sums of groups, both with a vector more.
    fn column_numbers(&self) -> usize {
        (self.column_steps() / 4 + 2 * self.left.scales_row).next_multiple_of(TAIL)
    }

    /// Whether the only column is transposed.
    fn transposes(&self) -> bool {
        self.left.transposes && self.width == 1
    }

    /// How many integers a column has: those that are transposed whole blocks, with zeros behind the last.
    fn column_steps(&self) -> usize {
        if self.transposes() { self.left.steps.next_multiple_of(4 * BLOCK) } else { self.left.steps }
    }

    /// Whether the integers of columns are multiplied where they lie.
    fn in_place(&self) -> bool {
        !self.transposes() && self.extents[1] == self.left.steps && source(self.operands.0, 1).strides[1] == 1
    }

    /// Column `column` of the right operand, where it lies or in that memory.
    fn column(&self, room: &OwnedScratch, column: usize) -> Column {
        let (left, each) = (&self.left, self.column_numbers());
        let sums = room.at(column * each * size_of::<f32>()).cast::<i32>();
        let offset_sums = sums.wrapping_add(self.column_steps() / 4).cast::<f32>();
        let scales = offset_sums.wrapping_add(left.scales_row).cast_const();
        let steps = self.column_steps();
        let mut integers = room.at(self.extents[0] * each * size_of::<f32>() + column * steps).cast_const();
        if self.in_place() {
            let b = source(self.operands.0, 1);
            integers = b.ptr.wrapping_offset(column as isize * b.strides[0] as isize);
        }
        Column { integers, scales, sums, offset_sums }
    }

    /// Writes what that memory has of a column, and says whether all its integers have an opposite.
    fn prepare<L: Level>(&self, room: &OwnedScratch, column: usize) -> bool {
        let (left, (b, scale), [_, depth]) = (&self.left, self.operands, self.extents);
        let right = self.column(room, column);
        // SAFETY: there is room for all groups, and a vector, of both.
        let scales = unsafe {
            right.offset_sums.write_bytes(0, left.scales_row);
            right.scales.cast_mut().write_bytes(0, left.scales_row);
            std::slice::from_raw_parts_mut(right.scales.cast_mut(), left.groups)
        };
        let each = left.groups / self.per_column;
        for (part, to) in scales.chunks_exact_mut(each).enumerate() {
            to.fill(scale_of::<L>(scale, [part, column]));
        }
        if !self.in_place() {
            let from = source(b, 1);
            let first = from.ptr.wrapping_offset(column as isize * from.strides[0] as isize);
            let (to, depth) = (right.integers.cast_mut(), Ord::min(depth, left.steps));
            // SAFETY: of the column those inside are read, and there is room for all.
            unsafe {
                if from.strides[1] == 1 {
                    ptr::copy_nonoverlapping(first, to, depth);
                } else {
                    (0..depth).for_each(|k| to.add(k).write(*first.offset(k as isize * from.strides[1] as isize)));
                }
                to.add(depth).write_bytes(0, self.column_steps() - depth);
                right.sums.write_bytes(0, self.column_steps() / 4);
            }
        }
        #[cfg(target_arch = "x86_64")]
        if self.is_fused {
            // SAFETY: the column is as long as a row, in whole vectors, and there is room for its sums; the level has AVX2.
            return unsafe { microkernel::prepare_column(left, &right) };
        }
        // SAFETY: as above.
        unsafe { sum_groups(left, &right) };
        true
    }

    /// The bytes of the packed right operand.
    #[cfg(target_arch = "x86_64")]
    fn packed_bytes(&self) -> usize {
        self.across() * (self.left.steps + 2 * self.left.groups * size_of::<f32>())
    }

    /// How many columns the packed right operand has.
    #[cfg(target_arch = "x86_64")]
    fn across(&self) -> usize {
        let panel = if self.left.is_biased { microkernel::VNNI_COLUMNS } else { microkernel::AVX2_COLUMNS };
        self.extents[0].next_multiple_of(panel)
    }

    /// Packs the right operand into that memory; `None` if one of its integers has no opposite where that is needed.
    #[cfg(target_arch = "x86_64")]
    fn pack<L: Level>(&self, room: &OwnedScratch) -> Option<microkernel::Packed> {
        let (left, (b, scale), [columns, depth]) = (&self.left, self.operands, self.extents);
        let across = self.across();
        // For each group of each column a scale, and a sum.
        let (integers, scales) = (room.at(0), room.at(across * left.steps).cast::<f32>());
        let each = left.groups / self.per_column;
        let sums = scales.wrapping_add(across * left.groups).cast();
        let right = microkernel::Packed { integers, scales, sums, across, groups_of_scale: each };
        for part in 0..self.per_column {
            let from = scales.wrapping_add(part * each * across);
            for column in 0..across {
                let value = if column < columns { scale_of::<L>(scale, [part, column]) } else { 0.0 };
                // SAFETY: there is room for the groups of all columns.
                unsafe { from.add(column).write(value) };
            }
            for group in 1..each {
                // SAFETY: as above, of another group.
                unsafe { ptr::copy_nonoverlapping(from, from.add(group * across), across) };
            }
        }
        let from = Source { extents: [columns, depth], ..source(b, 1) };
        // SAFETY: the source is inside its operand, and there is room; the level has AVX2, and VNNI where the left integers are biased.
        let is_packed = unsafe {
            if left.is_biased {
                microkernel::pack_vnni(&from, left, &right);
                true
            } else {
                microkernel::pack_avx2(&from, left, &right)
            }
        };
        is_packed.then_some(right)
    }

    /// Adds rows where a tile begins outside of its operand.
    ///
    /// # Safety
    /// As for [`add`](Self::add).
    unsafe fn add_elements<L: Level>(&self, rows: usize, to: *mut f32) {
        let (left, (b, scale)) = (&self.left, self.operands);
        let group = self.shape.steps / self.shape.groups;
        let each = self.shape.groups / self.shape.of_right;
        for j in 0..self.width {
            for i in 0..rows {
                for g in 0..left.groups {
                    let (mut dot, mut all) = (0_i32, 0_i32);
                    for k in g * group..Ord::min((g + 1) * group, left.steps) {
                        // SAFETY: by the contract above.
                        let a = i32::from(unsafe { *left.integers.add(i * left.row + k) } as i8);
                        let b = i32::from(element::<L, u8>(b, [k, j]) as i8);
                        (dot, all) = (dot.wrapping_add(a * b), all.wrapping_add(b));
                    }
                    let (at, scale) = (i * left.scales_row + g, scale_of::<L>(scale, [g / each, j]));
                    // SAFETY: as above.
                    unsafe {
                        let sum = to.add(i * self.width + j);
                        *sum += dot as f32 * (*left.scales.add(at) * scale);
                        if !left.offsets.is_null() {
                            *sum += all as f32 * (*left.offsets.add(at) * scale);
                        }
                    }
                }
            }
        }
    }
}

/// The integers of a group of a row or a column.
///
/// # Safety
/// They must be there.
unsafe fn group_of<'a>(left: &Left, integers: *const u8, g: usize) -> &'a [i8] {
    let group = left.steps / left.groups;
    // SAFETY: by the contract above; bytes are as good as signed ones.
    unsafe { std::slice::from_raw_parts(integers.add(g * group).cast(), group) }
}

/// Computes the sums of a column's groups.
///
/// # Safety
/// The column must be there, with room for these.
unsafe fn sum_groups(left: &Left, column: &Column) {
    for g in 0..if left.offsets.is_null() { 0 } else { left.groups } {
        // SAFETY: by the contract above.
        unsafe {
            let sum = group_of(left, column.integers, g).iter().fold(0_i32, |sum, b| sum.wrapping_add(i32::from(*b)));
            column.offset_sums.add(g).write(sum as f32 * *column.scales.add(g));
        }
    }
}

/// `to += left · right`, by loops, with rows of the sum that are `step` elements apart.
///
/// # Safety
/// Both operands and the sum must be there.
unsafe fn along_k(left: &Left, right: &Column, rows: usize, (to, step): (*mut f32, usize)) {
    for i in 0..rows {
        let mut sum = 0.0;
        for g in 0..left.groups {
            let at = i * left.scales_row + g;
            // SAFETY: by the contract above.
            unsafe {
                let a = group_of(left, left.integers.add(i * left.row), g);
                let b = group_of(left, right.integers, g);
                let dot = a.iter().zip(b).fold(0_i32, |sum, (a, b)| sum.wrapping_add(i32::from(*a) * i32::from(*b)));
                let scale = *right.scales.add(g);
                sum += dot as f32 * (*left.scales.add(at) * scale);
                if !left.offsets.is_null() {
                    sum += *left.offsets.add(at) * *right.offset_sums.add(g);
                }
            }
        }
        // SAFETY: as above.
        unsafe { *to.add(i * step) += sum };
    }
}
