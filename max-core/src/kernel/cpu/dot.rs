//! Tiles in memory and matrix products on the CPU.
//!
//! A product of floats at a level with AVX2 or AVX-512 is done by [`gemm`] over operands that are packed, or lie as it
//! walks them, and by [`thin`] where few rows meet a transpose; products of `bf16` whose operands are packed for it by
//! [`amx`]. Others are plain loops.

use super::gemm::{self, Panels, Product};
use super::level::Level;
use super::pack::{self, Side, Source};
use super::thin::{self, Thin};
use super::{Cpu, CpuTensor, amx};
use crate::dtype::DType;
use crate::kernel::ir::ReduceOp;
use crate::kernel::lang::{Any, Prim, Target};
use crate::kernel::table::PackForm;

/// Reduces the columns of a row by halves, in a fixed order.
#[inline(always)]
pub(super) fn reduce_row<P: Prim, const C: usize>(op: ReduceOp, row: [P; C]) -> P {
    let mut row = row;
    let mut n = C;
    while n > 1 {
        let half = n / 2;
        let mut j = 0;
        while j < half {
            let (a, b) = (row[j], row[n - half + j]);
            row[j] = match op {
                ReduceOp::Sum => a.add(b),
                ReduceOp::Max => a.max(b),
                ReduceOp::Min => a.min(b),
            };
            j += 1;
        }
        n -= half;
    }
    row[0]
}

/// Reads a tile of `R x C`; of `C x R` there, if it is transposed. Outside the operand: 0.
#[inline(always)]
pub(super) fn load_tile<L: Level, T: Any, const R: usize, const C: usize>(
    x: &CpuTensor<T, 2>,
    [row, column]: [i64; 2],
    transpose: bool,
) -> [[T::Compute; C]; R] {
    let mut tile = [[T::Compute::default(); C]; R];
    let mut i = 0;
    while i < R {
        load_row::<L, T, C>(x, [row, column], i, transpose, &mut tile[i]);
        i += 1;
    }
    tile
}

/// Reads row `i` of a tile.
#[inline(always)]
fn load_row<L: Level, T: Any, const C: usize>(
    x: &CpuTensor<T, 2>,
    [row, column]: [i64; 2],
    i: usize,
    transpose: bool,
    to: &mut [T::Compute; C],
) {
    let whole = column >= x.lo && column + C as i64 <= x.hi && x.strides[1] == 1;
    if !transpose && whole && row + (i as i64) < x.dims[0] && row + i as i64 >= 0 {
        let p = x.ptr.wrapping_offset(((row + i as i64) * x.strides[0] + column) as isize);
        // SAFETY: the row and all its columns are inside the operand.
        *to = super::widen::<L, T, C>(&unsafe { p.cast::<[T::Mem; C]>().read_unaligned() });
    } else {
        let mut j = 0;
        while j < C {
            let (di, dj) = if transpose { (j, i) } else { (i, j) };
            to[j] = Cpu::<L>::load(*x, [row + di as i64, column + dj as i64]);
            j += 1;
        }
    }
}

/// Writes a tile; what is outside the operand is dropped.
#[inline(always)]
pub(super) fn store_tile<L: Level, T: Any, const R: usize, const C: usize>(
    x: &CpuTensor<T, 2>,
    [row, column]: [i64; 2],
    tile: &[[T::Compute; C]; R],
) {
    let whole = column >= x.lo && column + C as i64 <= x.hi && x.strides[1] == 1;
    let mut i = 0;
    while i < R {
        let r = row + i as i64;
        if whole && r >= 0 && r < x.dims[0] {
            let p = x.ptr.wrapping_offset((r * x.strides[0] + column) as isize);
            // SAFETY: the row and all its columns are inside the operand, in a part that this instance owns.
            unsafe { p.cast::<[T::Mem; C]>().write_unaligned(super::narrow::<L, T, C>(&tile[i])) };
        } else {
            let mut j = 0;
            while j < C {
                Cpu::<L>::store(*x, [r, column + j as i64], tile[i][j]);
                j += 1;
            }
        }
        i += 1;
    }
}

/// An operand of a product: the tensor, the tile's first row and column there, and whether the tile is transposed.
type Operand<T> = (CpuTensor<T, 2>, [i64; 2], bool);

/// The rows (`axis` 0) or columns of a tile that are inside its operand.
#[inline(always)]
fn extent<T: Any>(x: &Operand<T>, axis: usize) -> i64 {
    let there = if x.2 { 1 - axis } else { axis };
    (if there == 0 { x.0.dims[0] } else { x.0.hi }) - x.1[there]
}

/// Whether the tile's first element is inside its operand, or past the end.
#[inline(always)]
fn begins_inside<T: Any>(x: &Operand<T>) -> bool {
    x.1[0] >= 0 && x.1[1] >= x.0.lo
}

/// Whether [`gemm`] multiplies these dtypes at this level.
#[inline(always)]
fn blocked<L: Level, T: Any, U: Any, A: Any, const C: usize>() -> bool {
    let (lanes, float) = match A::Compute::DTYPE {
        DType::F32 => (if L::AVX512 { 16 } else { 8 }, true),
        DType::F64 => (if L::AVX512 { 8 } else { 4 }, true),
        _ => (1, false),
    };
    let same = T::Compute::DTYPE as u8 == A::Compute::DTYPE as u8 && U::Compute::DTYPE as u8 == A::Compute::DTYPE as u8;
    cfg!(target_arch = "x86_64") && L::AVX2 && float && same && C.is_multiple_of(lanes)
}

/// `acc += a · b` with both operands in memory.
#[inline(always)]
pub(super) fn views<L: Level, T: Any, U: Any, A: Any, const R: usize, const K: usize, const C: usize>(
    a: Operand<T>,
    b: Operand<U>,
    acc: &mut [[A::Compute; C]; R],
) {
    // Rows above the operand add nothing; columns to the left of it are rare.
    let above = if a.2 { 0 } else { Ord::clamp(-a.1[0], 0, R as i64) };
    let a = (a.0, [a.1[0] + above, a.1[1]], a.2);
    if !blocked::<L, T, U, A, C>() || !begins_inside(&a) || !begins_inside(&b) {
        let a = (a.0, [a.1[0] - above, a.1[1]], a.2);
        return tile_view::<L, T, U, A, R, K, C>(&load_tile::<L, T, R, K>(&a.0, a.1, a.2), b, acc);
    }
    let above = above as usize;
    let depth = Ord::min(extent(&a, 1), extent(&b, 0)).clamp(0, K as i64) as usize;
    let rows = Ord::clamp(extent(&a, 0), 0, (R - above) as i64) as usize;
    if depth == 0 || rows == 0 {
        return;
    }
    #[cfg(target_arch = "x86_64")]
    if L::AVX512
        && matches!((T::dtype(), U::dtype(), A::Compute::DTYPE), (DType::BF16, DType::BF16, DType::F32))
        && above == 0
        && R.is_multiple_of(32)
        && C.is_multiple_of(32)
        && K.is_multiple_of(32)
    {
        let room = (slot::<T, R, K>(&a, PackForm::Amx), slot::<U, K, C>(&b, PackForm::Amx));
        if let (Some(left), Some(right)) = room {
            // SAFETY: the launch made room for tiles of these shapes, in this form because the process may use AMX; the
            // dtypes are `bf16`, `u16` in memory, and `f32`; sources are inside their operands.
            unsafe {
                let left = pack::shared(
                    &*a.0.pack,
                    left,
                    #[inline(always)]
                    |to| amx::pack_rows(halves(source(&a, 0)), [R, K], to.cast()),
                );
                let right = pack::shared(
                    &*b.0.pack,
                    right,
                    #[inline(always)]
                    |to| amx::pack_columns(halves(source(&b, 1)), [C, K], to.cast()),
                );
                let extents = [rows.next_multiple_of(32), C, depth.next_multiple_of(32)];
                return amx::block(extents, K, left.cast(), right.cast(), acc.as_mut_ptr().cast(), C);
            }
        }
    }
    let [group, _] = gemm::register_block(L::AVX512, size_of::<A::Compute>());
    let direct =
        T::dtype() as u8 == A::Compute::DTYPE as u8 && !a.2 && a.0.strides[1] == 1 && a.1[0] >= 0 && a.1[1] >= 0;
    // SAFETY: the launch, or the scratch memory, has room for a tile; its source is inside the operand.
    let (left, packed) = unsafe {
        if let Some(slot) = slot::<T, R, K>(&a, PackForm::Panels) {
            let tile = pack::shared(
                &*a.0.pack,
                slot,
                #[inline(always)]
                |to| pack::panels::<L, T, true>(source(&a, 0), [R, K], to.cast()),
            );
            (tile, true)
        } else if direct {
            (source(&a, 0).ptr.cast::<u8>(), false)
        } else {
            let bytes = pack::tile_bytes(PackForm::Panels, L::AVX512, true, R, K, size_of::<A::Compute>());
            let room = pack::scratch(Side::Left, bytes);
            pack::panels::<L, T, true>(source(&a, 0), [R, K], room.cast());
            (room.cast_const(), true)
        }
    };
    let left = match packed {
        true => Panels { ptr: left.cast(), step: group as isize, row: 1, group: (group * K) as isize },
        false => {
            let row = a.0.strides[0] as isize;
            Panels { ptr: left.cast(), step: 1, row, group: row * group as isize }
        }
    };
    // SAFETY: both operands have the elements of the product.
    unsafe { multiply::<L, U, A, R, K, C>([depth, rows, above], left, packed, b, acc) };
}

/// `acc += a · b` with the left operand computed.
#[inline(always)]
pub(super) fn tile_view<L: Level, T: Any, U: Any, A: Any, const R: usize, const K: usize, const C: usize>(
    a: &[[T::Compute; K]; R],
    b: Operand<U>,
    acc: &mut [[A::Compute; C]; R],
) {
    if blocked::<L, T, U, A, C>() && begins_inside(&b) {
        let depth = extent(&b, 0).clamp(0, K as i64) as usize;
        let [group, _] = gemm::register_block(L::AVX512, size_of::<A::Compute>());
        let left = Panels { ptr: a.as_ptr().cast(), step: 1, row: K as isize, group: (group * K) as isize };
        // SAFETY: the tile has `R` rows of `K`, of the dtype that products are added in.
        return unsafe { multiply::<L, U, A, R, K, C>([depth, R, 0], left, false, b, acc) };
    }
    let mut k = 0;
    while k < K {
        let mut row = [U::Compute::default(); C];
        load_row::<L, U, C>(&b.0, b.1, k, b.2, &mut row);
        let mut wide = [A::Compute::default(); C];
        let mut j = 0;
        while j < C {
            wide[j] = A::Compute::cast_from(row[j]);
            j += 1;
        }
        let mut i = 0;
        while i < R {
            multiply_add::<L, A::Compute, C>(A::Compute::cast_from(a[i][k]), &wide, &mut acc[i]);
            i += 1;
        }
        k += 1;
    }
}

#[inline(always)]
fn multiply_add<L: Level, P: Prim, const C: usize>(a: P, b: &[P; C], acc: &mut [P; C]) {
    let mut j = 0;
    while j < C {
        acc[j] = if L::FMA || !P::FLOAT { a.fma(b[j], acc[j]) } else { a.mul(b[j]).add(acc[j]) };
        j += 1;
    }
}

/// The elements of a tile: `across` is its axis of rows (0) or columns (1) that panels are made of.
#[inline(always)]
fn source<T: Any>(x: &Operand<T>, across: usize) -> Source<T::Mem> {
    let [i, j] = if x.2 { [1 - across, across] } else { [across, 1 - across] };
    Source {
        ptr: x
            .0
            .ptr
            .wrapping_offset((x.1[0].wrapping_mul(x.0.strides[0]) + x.1[1].wrapping_mul(x.0.strides[1])) as isize),
        strides: [x.0.strides[i], x.0.strides[j]],
        extents: [Ord::max(extent(x, across), 0) as usize, Ord::max(extent(x, 1 - across), 0) as usize],
    }
}

/// A source of `bf16`.
#[inline(always)]
fn halves<E>(x: Source<E>) -> Source<u16> {
    Source { ptr: x.ptr.cast(), strides: x.strides, extents: x.extents }
}

/// The slot of a tile of `R x C` (transposed: `C x R` in the operand), if the launch made room for it in this form.
#[inline(always)]
fn slot<T: Any, const R: usize, const C: usize>(x: &Operand<T>, form: PackForm) -> Option<usize> {
    if x.0.pack.is_null() {
        return None;
    }
    // SAFETY: a pack that is there is valid for the launch.
    let pack = unsafe { &*x.0.pack };
    let tile = if x.2 { [C as i64, R as i64] } else { [R as i64, C as i64] };
    let at = [x.1[0].div_euclid(tile[0]), x.1[1].div_euclid(tile[1])];
    let aligned = at[0] * tile[0] == x.1[0] && at[1] * tile[1] == x.1[1];
    let inside = at[0] >= 0 && at[0] < pack.tiles[0] && at[1] >= 0 && at[1] < pack.tiles[1];
    let fits = pack.form as u32 == form as u32 && pack.tile[0] == tile[0] && pack.tile[1] == tile[1];
    (aligned && inside && fits && x.0.lo == 0)
        .then(|| ((x.0.part * pack.tiles[0] + at[0]) * pack.tiles[1] + at[1]) as usize)
}

/// Multiplies by the right operand, which is packed unless its rows can be read in place and no one else reads them.
///
/// # Safety
/// `left` must have the rows, to whole groups if it is packed, and the depth; the right operand's tile must begin inside
/// of it. The first row that is computed is row `above` of `acc`.
#[inline(always)]
unsafe fn multiply<L: Level, U: Any, A: Any, const R: usize, const K: usize, const C: usize>(
    [depth, rows, above]: [usize; 3],
    left: Panels<A::Compute>,
    packed: bool,
    b: Operand<U>,
    acc: &mut [[A::Compute; C]; R],
) {
    let [_, width] = gemm::register_block(L::AVX512, size_of::<A::Compute>());
    let inside = extent(&b, 1).clamp(0, C as i64) as usize;
    let f32 = matches!(A::Compute::DTYPE, DType::F32);
    if f32 && rows <= thin::ROWS && !packed && depth >= width && b.2 && b.0.strides[1] == 1 {
        let acc = acc.as_mut_ptr().wrapping_add(above).cast();
        let (left_row, right_row) = (left.row, b.0.strides[0] as isize);
        let (left, right) = (left.ptr.cast(), source(&b, 1).ptr);
        let product = Thin { depth, rows, columns: inside, left, left_row, right, right_row, acc, acc_row: C };
        // SAFETY: the left operand has the rows, the right one the columns that are inside of it, and both the depth.
        return unsafe { thin::multiply::<L, U>(&product) };
    }
    // Columns past the end would be multiplied for nothing, where whole vectors are left without them.
    let columns = if inside.is_multiple_of(width / 2) { inside } else { C };
    let direct = U::dtype() as u8 == A::Compute::DTYPE as u8 && !b.2 && b.0.strides[1] == 1 && columns <= inside;
    // SAFETY: packed tiles have room for all panels; rows that are used in place have all columns inside the operand.
    unsafe {
        let panels =
            |ptr: *const u8| Panels { ptr: ptr.cast(), step: width as isize, row: 1, group: (width * K) as isize };
        let right = if let Some(slot) = slot::<U, K, C>(&b, PackForm::Panels) {
            let tile = pack::shared(
                &*b.0.pack,
                slot,
                #[inline(always)]
                |to| pack::panels::<L, U, false>(source(&b, 1), [C, K], to.cast()),
            );
            panels(tile)
        } else if direct {
            let step = b.0.strides[0] as isize;
            Panels { ptr: source(&b, 1).ptr.cast(), step, row: 1, group: width as isize }
        } else {
            let bytes = pack::tile_bytes(PackForm::Panels, L::AVX512, false, C, K, size_of::<A::Compute>());
            let room = pack::scratch(Side::Right, bytes);
            pack::panels::<L, U, false>(source(&b, 1), [C, K], room.cast());
            panels(room)
        };
        let acc = acc.as_mut_ptr().add(above).cast();
        let product = Product { depth, rows, columns, left, right, packed, acc, acc_row: C };
        gemm::multiply::<L, A::Compute>(&product);
    }
}
