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
//! Few columns are bound by the bandwidth at which weights are read: some rows are unpacked, and multiplied while they are in the L1
//! cache. For more columns all rows of the tile are unpacked first.

use std::ptr;

use super::super::isa::{BLOCK, Level, TAIL};
use super::super::lanes::values;
#[cfg(target_arch = "x86_64")]
use super::super::pack::Source;
use super::super::scratch::OwnedScratch;
use super::super::tile::{self, AnyVar};
use super::super::{At, Cpu, CpuTileVar};
#[cfg(target_arch = "x86_64")]
use super::microkernel_int8 as microkernel;
use super::{Operand, begins_inside, element, extent, source};
use crate::kernel::cpu_features;
use crate::kernel::lang::{Lanes, Scale, ScaledRow, Val};

/// Columns that are multiplied along K.
const FEW: usize = 8;
/// Rows that are unpacked for few columns.
const ROWS: usize = 4;
/// Integers of a row are written up to a multiple of so many.
const UNIT: usize = 256;
/// The most groups of a row that microkernels have room for.
pub(super) const MAX_GROUPS: usize = 256;

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
    let words = row(Val(0)).words().len();
    let len = Ord::min(Ord::max(words.0, 0) as usize, K / 4) * 4;
    let shape = Shape { steps: K, groups: G, of_right: H, len: Ord::min(len.next_multiple_of(UNIT), K) };
    let Some(product) = Product::new::<L>(shape, W::Scale::HAS_OFFSET, (&b, &scale), acc.any()) else { return };
    let left = &product.left;
    // What is not biased is so by 0.
    let bias = if left.is_biased { i32::from_ne_bytes([0x80; 4]) } else { 0 };
    let mut i = 0;
    while i < R {
        let mut r = 0;
        while r < product.rows && i + r < R {
            let row = row(Val((i + r) as i64));
            // SAFETY: the product has room for so many rows.
            unsafe {
                fill_words::<L, _>(row.words(), left.integers.add(r * left.row).cast_mut().cast(), left.row / 4, bias);
                let at = r * left.scales_row;
                let to = [left.scales.wrapping_add(at).cast_mut(), left.offsets.wrapping_add(at).cast_mut()];
                fill_scales::<L, W::Scale, _>(row.scales(), to, left.scales_row);
            }
            r += 1;
        }
        // SAFETY: rows `i .. i + r` are those that were written.
        unsafe { product.add::<L>(i, r) };
        i += r;
    }
}

/// Runs the code for blocks of the first `count` lanes, whole ones where all can be read, and says how many lanes there are.
macro_rules! in_blocks {
    ($lanes:expr, $count:expr, |$at:ident, $n:ident| $block:expr) => {{
        let len = Ord::min(Ord::max($lanes.len().0, 0) as usize, $count);
        let plain = $lanes.plain(0, len as i64);
        let mut j = 0;
        while plain && j + BLOCK <= len {
            const $n: usize = BLOCK;
            let $at = At::new(j as i64, BLOCK);
            $block;
            j += BLOCK;
        }
        if plain && j + 2 * TAIL <= len {
            const $n: usize = 2 * TAIL;
            let $at = At { i: j as i64, w: $n, plain: true };
            $block;
            j += $n;
        }
        if plain && j + TAIL <= len {
            const $n: usize = TAIL;
            let $at = At { i: j as i64, w: TAIL, plain: true };
            $block;
            j += TAIL;
        }
        while j < len {
            const $n: usize = TAIL;
            let $at = At::new(j as i64, if len - j < TAIL { len - j } else { TAIL });
            $block;
            j += TAIL;
        }
        len
    }};
}

/// Writes the first `count` words, with some bits turned, and 0 past their end.
///
/// # Safety
/// There must be room for so many.
#[inline(always)]
unsafe fn fill_words<L: Level, A: Lanes<Cpu<L>, Item = Val<Cpu<L>, i32>>>(
    lanes: A,
    to: *mut i32,
    count: usize,
    bits: i32,
) {
    let len = in_blocks!(lanes, count, |at, N| {
        let mut words = values::<L, i32, A, N>(lanes, at);
        let mut k = 0;
        while k < N {
            words[k] ^= bits;
            k += 1;
        }
        // SAFETY: inside of what there is room for.
        unsafe { write(to, at, words) };
    });
    // SAFETY: as above.
    (len..count).for_each(|j| unsafe { to.add(j).write(bits) });
}

/// Writes the first `count` scales, and their offsets if they have any, and 0 past their end.
///
/// # Safety
/// There must be room for so many.
#[inline(always)]
unsafe fn fill_scales<L: Level, S: Scale<Cpu<L>>, A: Lanes<Cpu<L>, Item = S>>(
    lanes: A,
    [scales, offsets]: [*mut f32; 2],
    count: usize,
) {
    let len = in_blocks!(lanes, count, |at, N| {
        let block = lanes.block::<N>(at);
        let (mut both, mut k) = ([[0.0; N]; 2], 0);
        while k < N {
            let (scale, offset) = lanes.lane(&block, k).parts();
            (both[0][k], both[1][k]) = (scale.0, offset.0);
            k += 1;
        }
        // SAFETY: inside of what there is room for.
        unsafe {
            write(scales, at, both[0]);
            if S::HAS_OFFSET {
                write(offsets, at, both[1]);
            }
        }
    });
    for j in len..count {
        // SAFETY: as above.
        unsafe {
            scales.add(j).write(0.0);
            if S::HAS_OFFSET {
                offsets.add(j).write(0.0);
            }
        }
    }
}

/// Writes the lanes at `at` of a block.
///
/// # Safety
/// There must be room for them.
#[inline(always)]
unsafe fn write<P: Copy, const N: usize>(to: *mut P, at: At, block: [P; N]) {
    // SAFETY: by the contract above.
    unsafe {
        let to = to.add(at.i as usize);
        if N >= BLOCK || at.plain {
            return to.cast::<[P; N]>().write_unaligned(block);
        }
        let mut k = 0;
        while k < at.w && k < N {
            to.add(k).write(block[k]);
            k += 1;
        }
    }
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
    /// From a row of scales, or of offsets, to the next.
    pub scales_row: usize,
    pub is_biased: bool,
    pub steps: usize,
    pub groups: usize,
}

/// A column of the right operand.
pub(super) struct Column {
    pub integers: *const u8,
    pub scales: *const f32,
    /// For VNNI, of each four integers the sum times -128.
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "only levels of x86-64 have microkernels"))]
    pub sums: *mut i32,
    /// Of each group the sum, for VNNI times -128; there is room for a vector more.
    pub group_sums: *mut i32,
}

/// The right operand, as it is multiplied.
enum Right {
    /// A column after the other, of as many integers and scales as a left row.
    Columns(OwnedScratch),
    #[cfg(target_arch = "x86_64")]
    Packed { right: microkernel::Packed, _room: OwnedScratch },
    /// Where it is, for a tile that begins outside of it.
    Elements,
}

/// A product whose right operand is prepared, and that has room for rows of the left one. Lane code runs while there is one, and may
/// multiply, too: memory is its own.
struct Product<'a> {
    left: Left,
    /// How many rows there is room for.
    rows: usize,
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
    sum: *mut f32,
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
        has_offsets: bool,
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
        let is_inside = begins_inside(b) && begins_inside(scale) && steps <= shape.len && groups <= MAX_GROUPS;
        if is_inside && steps == 0 {
            return None;
        }
        let in_vectors = is_inside && steps.is_multiple_of(64) && (64 % group == 0 || group.is_multiple_of(64));
        let rows = if in_vectors && columns <= FEW { Ord::min(ROWS, all) } else { all };
        let is_biased = in_vectors && L::AVX512 && cpu_features::matrix_units().int8.is_some();
        let scales_row = shape.len.div_ceil(group);
        let integers = (rows * shape.len).next_multiple_of(64);
        let numbers = rows * scales_row * size_of::<f32>();
        let room = OwnedScratch::for_rows(integers + 2 * numbers)?;
        let scales = room.at(integers).cast::<f32>().cast_const();
        let offsets = if has_offsets { scales.wrapping_add(rows * scales_row) } else { ptr::null() };
        let (steps, groups) = if is_inside { (steps, groups) } else { (shape.len, scales_row) };
        let integers = room.at(0).cast_const();
        let left = Left { integers, row: shape.len, scales, offsets, scales_row, is_biased, steps, groups };
        let per_column = if is_inside { parts } else { shape.of_right };
        let (extents, right) = ([columns, depth], Right::Elements);
        let _rows = room;
        let mut product =
            Product { left, rows, right, operands, shape, per_column, extents, in_vectors, sum, width, _rows };
        product.right = match is_inside {
            true => product.right::<L>()?,
            false => Right::Elements,
        };
        Some(product)
    }

    /// The right operand, prepared; `None`, and a report, if there is no memory.
    fn right<L: Level>(&self) -> Option<Right> {
        #[cfg(target_arch = "x86_64")]
        if self.in_vectors && L::AVX2 && self.extents[0] > FEW {
            let room = OwnedScratch::for_columns(self.packed_bytes())?;
            if let Some(right) = self.pack::<L>(&room) {
                return Some(Right::Packed { right, _room: room });
            }
        }
        let (left, count) = (&self.left, self.extents[0]);
        let room = OwnedScratch::for_columns(count * (self.column_numbers() * size_of::<f32>() + left.steps))?;
        for column in 0..count {
            self.prepare::<L>(&room, column);
        }
        Some(Right::Columns(room))
    }

    /// Adds rows that were written, of which the first is that row of the sum.
    ///
    /// # Safety
    /// There must be so many, and the sum be nobody else's.
    #[inline(never)]
    unsafe fn add<L: Level>(&self, first: usize, rows: usize) {
        let (left, to) = (&self.left, self.sum.wrapping_add(first * self.width));
        match &self.right {
            // SAFETY: by the contract above.
            Right::Elements => unsafe { self.add_elements::<L>(rows, to) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above; the level has AVX2, and VNNI where the left integers are biased.
            Right::Packed { right, .. } => unsafe {
                let multiply = if left.is_biased { microkernel::multiply_vnni } else { microkernel::multiply_avx2 };
                multiply(left, right, [rows, self.extents[0]], (to, self.width));
            },
            Right::Columns(room) => {
                for column in 0..self.extents[0] {
                    let right = self.column(room, column);
                    // SAFETY: as above; the column is there, and as long as a row.
                    unsafe {
                        let to = (to.add(column), self.width);
                        match () {
                            #[cfg(target_arch = "x86_64")]
                            () if left.is_biased => microkernel::along_k_vnni(left, &right, rows, to),
                            #[cfg(target_arch = "x86_64")]
                            () if self.in_vectors && L::AVX2 => microkernel::along_k_avx2(left, &right, rows, to),
                            () => along_k(left, &right, rows, to),
                        }
                    }
                }
            }
        }
    }

    /// How many numbers a column has beside its integers: sums of four integers and of groups, with a vector more, and scales.
    fn column_numbers(&self) -> usize {
        self.left.steps / 4 + 2 * self.left.groups + 16
    }

    /// Whether columns are multiplied where they lie: their scales, and their integers.
    fn in_place(&self) -> [bool; 2] {
        let (b, scale) = (source(self.operands.0, 1), source(self.operands.1, 1));
        let are_there = self.extents[0] <= scale.extents[0] && self.per_column <= scale.extents[1];
        [
            are_there && scale.strides[1] == 1 && self.per_column == self.left.groups,
            self.extents[1] == self.left.steps && b.strides[1] == 1,
        ]
    }

    /// Column `column` of the right operand, where it lies or in that memory.
    fn column(&self, room: &OwnedScratch, column: usize) -> Column {
        let (left, each) = (&self.left, self.column_numbers());
        let sums = room.at(column * each * size_of::<f32>()).cast::<i32>();
        let group_sums = sums.wrapping_add(left.steps / 4);
        let scales = group_sums.wrapping_add(left.groups + 16).cast::<f32>().cast_const();
        let integers = room.at(self.extents[0] * each * size_of::<f32>() + column * left.steps).cast_const();
        let (b, scale) = (source(self.operands.0, 1), source(self.operands.1, 1));
        let [scales_in_place, integers_in_place] = self.in_place();
        let at = |stride: i64| column as isize * stride as isize;
        Column {
            integers: if integers_in_place { b.ptr.wrapping_offset(at(b.strides[0])) } else { integers },
            scales: if scales_in_place { scale.ptr.wrapping_offset(at(scale.strides[0])) } else { scales },
            sums,
            group_sums,
        }
    }

    /// Writes what that memory has of a column.
    fn prepare<L: Level>(&self, room: &OwnedScratch, column: usize) {
        let (left, (b, scale), [_, depth]) = (&self.left, self.operands, self.extents);
        let right = self.column(room, column);
        let [scales_in_place, integers_in_place] = self.in_place();
        if !scales_in_place {
            let each = left.groups / self.per_column;
            for part in 0..self.per_column {
                let value = scale_of::<L>(scale, [part, column]);
                // SAFETY: there is room for all groups.
                unsafe { std::slice::from_raw_parts_mut(right.scales.cast_mut().add(part * each), each) }.fill(value);
            }
        }
        if !integers_in_place {
            let from = source(b, 1);
            let first = from.ptr.wrapping_offset(column as isize * from.strides[0] as isize);
            for k in 0..left.steps {
                // SAFETY: of the column those inside are read, and there is room for all.
                unsafe {
                    let byte = if k < depth { *first.offset(k as isize * from.strides[1] as isize) } else { 0 };
                    right.integers.cast_mut().add(k).write(byte);
                }
            }
        }
        // SAFETY: the column is as long as a row, and there is room for its sums.
        unsafe {
            match () {
                #[cfg(target_arch = "x86_64")]
                () if left.is_biased => microkernel::sums_vnni(left, &right),
                () => sum_groups(left, &right),
            }
        }
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
        let right =
            microkernel::Packed { integers, scales, sums: scales.wrapping_add(across * left.groups).cast(), across };
        let each = left.groups / self.per_column;
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
            column.group_sums.add(g).write(sum);
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
                    sum += *right.group_sums.add(g) as f32 * (*left.offsets.add(at) * scale);
                }
            }
        }
        // SAFETY: as above.
        unsafe { *to.add(i * step) += sum };
    }
}
