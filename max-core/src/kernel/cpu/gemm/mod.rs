//! GEMM on the CPU: selects the strategy for each `dot`, and loads and stores tiles.
//!
//! Binding and running ask one table, [`strategy`], what is packed and how. Over packed or in-place operands, they are tried
//! in this order:
//!
//! | operands | GEMM |
//! | --- | --- |
//! | few rows, B transposed in `f32` | [`gemv_t`](microkernel::gemv_t) |
//! | few rows, B row-major in a narrower dtype | [`gemv`](microkernel::gemv) |
//! | few columns, A row-major, in `f32` | [`gemv_t`](microkernel::gemv_t) |
//! | `bf16`, 8-bit floats, 8-bit integers, large `f32`, with a matrix unit | [`blocked`](matrix_unit::blocked) on [`amx`](matrix_unit::amx), [`vnni`](matrix_unit::vnni) or [`split_bf16`](matrix_unit::split_bf16) |
//! | floats with AVX2 or AVX-512; 8-bit integers as pairs | [`microkernel`], [`avx512`](microkernel::avx512) |
//! | integers that are multiplied as floats | a converting (dequantizing) pack, [`convert`], then as `f32` |
//! | anything else | plain loops |
//!
//! Integers with scales have a table of their own: [`mod@dot_scaled`].

mod computed;
pub(super) mod dot_scaled;
pub(super) mod matrix_unit;
#[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "only levels of x86-64 multiply what is packed"))]
pub(super) mod microkernel;
mod skinny;
pub(super) mod strategy;

use std::mem::MaybeUninit;
use std::ops::Range;
use std::ptr;

pub(super) use self::computed::tiles;
use self::microkernel::{Accumulators, Lhs, Rhs};
use self::strategy::{Dot, Strategy};
use super::isa::Level;
#[cfg(target_arch = "x86_64")]
use super::isa::store_streaming;
use super::pack::convert;
use super::pack::operand_types::OperandTypes;
use super::pack::pipeline::NextTile;
use super::pack::{self, SharedTile, Source};
use super::scratch::{self, Side};
use super::tile::{self, AnyVar};
use super::{Cpu, CpuTensor, CpuTileVar};
use crate::dtype::DType;
use crate::kernel::abi::PackForm;
#[cfg(target_arch = "x86_64")]
use crate::kernel::cpu_features::MatrixUnit;
use crate::kernel::lang::{Any, Prim, Target};

/// Reads a tile of `R x C`; of `C x R` there, if it is transposed. Outside the operand: 0.
#[inline(always)]
pub(super) fn load_tile<L: Level, T: Any, const R: usize, const C: usize>(
    x: &CpuTensor<T, 2>,
    [row, column]: [i64; 2],
    transpose: bool,
) -> [[T::Compute; C]; R] {
    // SAFETY: rows are loaded as a whole.
    unsafe {
        tile::from_rows(
            #[inline(always)]
            |i, to| load_row::<L, T, C>(x, [row, column], i, transpose, to),
        )
    }
}

/// Reads row `i` of a tile.
#[inline(always)]
fn load_row<L: Level, T: Any, const C: usize>(
    x: &CpuTensor<T, 2>,
    [row, column]: [i64; 2],
    i: usize,
    transpose: bool,
    to: &mut [MaybeUninit<T::Compute>; C],
) {
    let whole = x.holds(column, C as i64) && x.strides[1] == 1;
    let r = row.wrapping_add(i as i64);
    if !transpose && whole && (r as u64) < x.dims[0] as u64 {
        let p = x.ptr.wrapping_offset(r.wrapping_mul(x.strides[0]).wrapping_add(column) as isize);
        // SAFETY: the row and all its columns are inside the operand; what is written is as large.
        unsafe {
            let row = super::widen::<L, T, C>(&p.cast::<[T::Mem; C]>().read_unaligned());
            ptr::from_mut(to).cast::<[T::Compute; C]>().write(row);
        }
    } else {
        let mut j = 0;
        while j < C {
            let (di, dj) = if transpose { (j, i) } else { (i, j) };
            to[j].write(Cpu::<L>::load(*x, [row.wrapping_add(di as i64), column.wrapping_add(dj as i64)]));
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
    let whole = x.holds(column, C as i64) && x.strides[1] == 1;
    let mut i = 0;
    while i < R {
        let r = row.wrapping_add(i as i64);
        if whole && (r as u64) < x.dims[0] as u64 {
            let p = x.ptr.wrapping_offset(r.wrapping_mul(x.strides[0]).wrapping_add(column) as isize);
            // SAFETY: the row and all its columns are inside the operand, in a part that this instance owns.
            unsafe { p.cast::<[T::Mem; C]>().write_unaligned(super::narrow::<L, T, C>(&tile[i])) };
        } else {
            let mut j = 0;
            while j < C {
                Cpu::<L>::store(*x, [r, column.wrapping_add(j as i64)], tile[i][j]);
                j += 1;
            }
        }
        i += 1;
    }
}

/// An operand of a GEMM: the tensor, the tile's first row and column there, and whether the tile is transposed.
pub(super) type Operand<T> = (CpuTensor<T, 2>, [i64; 2], bool);

/// The rows (`axis` 0) or columns of a tile that are inside its operand, which it begins inside of or past the end:
/// negative there.
#[inline(always)]
pub(super) fn extent<T: Any>(x: &Operand<T>, axis: usize) -> i64 {
    let there = if x.2 { 1 - axis } else { axis };
    (if there == 0 { x.0.dims[0] } else { x.0.count }).wrapping_sub(x.1[there])
}

/// Whether the tile's first element is inside its operand, or past the end.
#[inline(always)]
pub(super) fn begins_inside<T: Any>(x: &Operand<T>) -> bool {
    x.1[0] >= 0 && x.1[1] >= 0
}

/// A GEMM whose operands are in the form that a microkernel reads.
#[derive(Clone, Copy)]
pub(super) enum Gemm<P> {
    Panels(microkernel::Gemm<P>),
    /// In `f32`.
    Dots(microkernel::gemv_t::Deferred),
    #[cfg(target_arch = "x86_64")]
    Blocks(matrix_unit::amx::Gemm),
}

impl<P: Prim> Gemm<P> {
    /// How many rows and columns of accumulators it has.
    #[inline(always)]
    pub(super) fn extents(&self) -> [usize; 2] {
        match self {
            Gemm::Panels(x) => [x.rows, x.columns],
            Gemm::Dots(x) => x.extents(),
            #[cfg(target_arch = "x86_64")]
            Gemm::Blocks(x) => [x.rows.next_multiple_of(x.unit.row_group()), x.columns.next_multiple_of(32)],
        }
    }

    /// The columns of a result in `bf16` that are rounded in registers.
    fn rounded_columns(&self) -> usize {
        match self {
            #[cfg(target_arch = "x86_64")]
            Gemm::Blocks(x) if x.unit == MatrixUnit::Vnni && x.types == OperandTypes::Bf16 => x.columns,
            _ => 0,
        }
    }

    /// Computes it.
    ///
    /// # Safety
    /// The operands must be there, the accumulators readable and writable by this call alone, and the machine must have
    /// what the GEMM was made for.
    #[inline(always)]
    pub(super) unsafe fn run<L: Level>(&self, accumulators: &Accumulators<P>) {
        // SAFETY: by the contract above; blocks are added in four bytes, and dot products in `f32`.
        unsafe {
            match self {
                Gemm::Panels(x) => microkernel::multiply::<L, P>(x, accumulators),
                Gemm::Dots(x) => x.run(x.extents()[0], &*ptr::from_ref(accumulators).cast()),
                #[cfg(target_arch = "x86_64")]
                Gemm::Blocks(x) => matrix_unit::amx::multiply(x, &*ptr::from_ref(accumulators).cast()),
            }
        }
    }
}

/// Writes the tile that a variable holds.
#[inline(always)]
pub(super) fn store_var<L: Level, T: Any, const R: usize, const C: usize>(
    x: CpuTensor<T, 2>,
    at: [i64; 2],
    v: &CpuTileVar<T::Compute, R, C>,
) {
    if !v.has_deferred() || !store_deferred::<L, T>(&x, at, v.any()) {
        // SAFETY: nothing assigns the variable meanwhile.
        store_tile::<L, T, R, C>(&x, at, unsafe { &*v.materialize::<L>() });
    }
}

/// Runs a deferred GEMM with its accumulators stored straight to the operand, if its rows and columns are those written there.
#[inline(never)]
fn store_deferred<L: Level, T: Any>(x: &CpuTensor<T, 2>, [row, column]: [i64; 2], v: AnyVar<'_, T::Compute>) -> bool {
    let [all, width] = v.shape;
    let Some((gemm, from)) = v.deferred() else { return false };
    if row < 0 || column < 0 || x.strides[1] != 1 {
        return false;
    }
    let rows = Ord::clamp(x.dims[0] - row, 0, all as i64) as usize;
    let columns = Ord::clamp(x.count - column, 0, width as i64) as usize;
    let rounded = if matches!(T::STATIC_DTYPE, Some(DType::BF16)) { gemm.rounded_columns() } else { 0 };
    let is_rounded = rounded >= columns;
    let [high, wide] = gemm.extents();
    if rows == 0 || columns == 0 || high < rows || wide != columns && !is_rounded {
        return false;
    }
    let to = x.ptr.wrapping_offset(row.wrapping_mul(x.strides[0]).wrapping_add(column) as isize);
    let to_row = x.strides[0] as isize;
    let accumulators = Accumulators { from, to: to.cast(), from_row: width, to_row: to_row as usize };
    // SAFETY: the rows and columns are inside the operand, in a part that this instance owns, and the GEMM's operands last as long as
    // the launch; what `T` is computed with has four bytes where blocks are multiplied, and is `f32` where dot products are made.
    unsafe {
        match gemm {
            #[cfg(target_arch = "x86_64")]
            Gemm::Blocks(gemm) => {
                let accumulators = Accumulators { from: from.cast(), to: ptr::null_mut(), from_row: width, to_row: 0 };
                if is_rounded {
                    let (extents, stream) = ([rows, columns], x.stream);
                    let result = matrix_unit::bf16_epilogue::Rounded { to: to.cast(), to_row, extents, stream };
                    matrix_unit::bf16_epilogue::multiply(&gemm, &accumulators, &result);
                    return true;
                }
                store_blocks::<L, T>(&gemm, &accumulators, rows, (to, to_row), x.stream);
            }
            _ if T::dtype() != <T::Compute as Prim>::DTYPE => return false,
            Gemm::Panels(gemm) => {
                microkernel::multiply::<L, T::Compute>(&microkernel::Gemm { rows, ..gemm }, &accumulators);
            }
            Gemm::Dots(gemm) => gemm.run(rows, &*ptr::from_ref(&accumulators).cast()),
        }
    }
    true
}

/// Runs a blocked GEMM and stores `rows` rows, `to_row` elements apart; by non-temporal stores, if `stream`
/// says so: lines that are only written are then not read first.
///
/// # Safety
/// As for [`multiply_into`](matrix_unit::amx::multiply_into), with an operand that has the rows and columns; the machine must have AVX-512.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,fma,f16c,bmi1,bmi2")]
unsafe fn store_blocks<L: Level, T: Any>(
    gemm: &matrix_unit::amx::Gemm,
    accumulators: &Accumulators<u32>,
    rows: usize,
    (to, to_row): (*mut T::Mem, isize),
    stream: bool,
) {
    // SAFETY: by the contract above. Rows that are written are inside the operand; a block is of what `T` is computed
    // with, which has four bytes.
    unsafe {
        matrix_unit::amx::multiply_into(
            gemm,
            accumulators,
            #[inline(always)]
            |[i, j], block| {
                let block = &*ptr::from_ref(block).cast::<[[T::Compute; 32]; 32]>();
                let mut r = 0;
                while r < 32 && i + r < rows {
                    let to = to.wrapping_offset((i + r) as isize * to_row).wrapping_add(j);
                    let row = super::narrow::<L, T, 32>(&block[r]);
                    if !(stream && store_streaming::<L, T::Mem, 32>(to, &row)) {
                        to.cast::<[T::Mem; 32]>().write_unaligned(row);
                    }
                    r += 1;
                }
            },
        )
    };
}

/// `acc += a · b` with both operands in memory.
#[inline(always)]
pub(super) fn views<L: Level, T: Any, U: Any, A: Any, const R: usize, const K: usize, const C: usize>(
    a: Operand<T>,
    b: Operand<U>,
    acc: &CpuTileVar<A::Compute, R, C>,
) {
    let (accumulator, shape) = (A::Compute::DTYPE, [R, C, K]);
    let dot = Dot { lhs: T::dtype(), rhs: U::dtype(), accumulator, lhs_in_memory: true, shape };
    match dot.strategy::<L>() {
        Strategy::Panels | Strategy::Pairs => {
            dot_in_memory::<L, T, U, A>(&a, &b, acc.any(), K, dot.blocks_at::<L>(), false);
        }
        Strategy::Converted if convert::views::<L, T, U, A>(&a, &b, acc.any(), K) => {}
        Strategy::Converted | Strategy::Loops => in_strips::<L, T, U, A, R, K, C>(a, b, acc),
    }
}

/// `acc += a · b` with both operands in memory, packed or in place. `b_is_part` says that B is a tile of another operand.
#[inline(never)]
pub(super) fn dot_in_memory<L: Level, T: Any, U: Any, A: Any>(
    a: &Operand<T>,
    b: &Operand<U>,
    acc: AnyVar<'_, A::Compute>,
    steps: usize,
    types: Option<OperandTypes>,
    b_is_part: bool,
) {
    let [all, _] = acc.shape;
    // Rows above the operand add nothing; columns to the left of it are rare.
    let above = if a.2 { 0 } else { Ord::clamp(a.1[0].saturating_neg(), 0, all as i64) as usize };
    let inside = (a.0, [a.1[0] + above as i64, a.1[1]], a.2);
    let is_done = begins_inside(&inside)
        && begins_inside(b)
        && dot_packed::<L, T, U, A>(&inside, b, acc, [steps, above], types, b_is_part).is_some();
    if !is_done {
        scalar_fallback::<L, U, A>(|i, k| A::Compute::cast_from(element::<L, T>(a, [i, k])), b, acc, steps);
    }
}

/// `acc += a · b` from row `above` of the sum on, where both tiles begin inside of their operands; `None`, with the sum
/// as it was, if there is no memory for what has to be packed.
#[inline(always)]
fn dot_packed<L: Level, T: Any, U: Any, A: Any>(
    a: &Operand<T>,
    b: &Operand<U>,
    acc: AnyVar<'_, A::Compute>,
    [steps, above]: [usize; 2],
    types: Option<OperandTypes>,
    b_is_part: bool,
) -> Option<()> {
    let [all, _] = acc.shape;
    let depth = Ord::min(extent(a, 1), extent(b, 0)).clamp(0, steps as i64) as usize;
    let rows = Ord::clamp(extent(a, 0), 0, (all - above) as i64) as usize;
    if depth == 0 || rows == 0 {
        return Some(());
    }
    // A deferred GEMM finds its operands in cache only before these are packed.
    acc.flush::<L>();
    let direct = T::dtype() == A::Compute::DTYPE && !a.2 && a.0.strides[1] == 1;
    let in_rows = || match direct {
        true => Some(Lhs { ptr: source(a, 0).ptr.cast(), row: a.0.strides[0] as isize, group: None }),
        false => skinny::widened_lhs::<L, T, A>(a, [rows, depth]),
    };
    let width = acc.shape[1];
    if T::Compute::DTYPE == A::Compute::DTYPE
        && skinny::few_rows::<L, U, A>([depth, rows, above], [steps, width], (in_rows, direct), b, acc)?
    {
        return Some(());
    }
    if !b_is_part && skinny::few_columns::<L, T, U, A>(a, b, acc, [depth, rows, above])? {
        return Some(());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = types;
    #[cfg(target_arch = "x86_64")]
    if let Some(types) = types
        // Blocks have 32 rows: those from a row within the sum on would end below it.
        && above == 0
        && let Some((gemm, lasts)) = matrix_unit::blocked::tiled_gemm::<T, U>(types, [rows, depth], a, b, acc.shape, steps)
    {
        // SAFETY: packed tiles are there; those that are not in scratch memory last as long as the launch.
        unsafe {
            match lasts {
                true => acc.defer::<L>(Gemm::Blocks(gemm)),
                false => acc.add::<L>(0, &Gemm::Blocks(gemm)),
            }
        }
        return Some(());
    }
    let [group, _] = microkernel::register_block(L::AVX512, A::Compute::DTYPE, width);
    // SAFETY: the launch, or the scratch memory, has room for a tile; its source is inside the operand.
    let (lhs, packed, lasts) = unsafe {
        let slot = slot(a, [all, steps], PackForm::Panels);
        if slot.is_none() && direct {
            (source(a, 0).ptr.cast::<u8>(), false, true)
        } else {
            let bytes_each = pack::elements(T::dtype(), steps) * size_of::<A::Compute>();
            let tile = Packed {
                side: Side::Lhs,
                form: PackForm::Panels,
                slot,
                shape: [all, steps],
                granularity: group,
                bytes_each,
            };
            let (lhs, _) = tile.get(a, |from, shape, steps, to| {
                pack::panels::<L, T, true>(from, shape, steps, group, to.cast());
                true
            })?;
            (lhs, true, slot.is_some())
        }
    };
    let group = packed.then_some((group * pack::elements(T::dtype(), steps)) as isize);
    let lhs = Lhs { ptr: lhs.cast(), row: a.0.strides[0] as isize, group };
    let (rhs, columns, right_lasts) = rhs::<L, U, A>(b, [depth, rows], [steps, width], packed)?;
    let depth = pack::elements(T::dtype(), depth);
    let gemm = Gemm::Panels(microkernel::Gemm { depth, rows, columns, lhs, rhs });
    // SAFETY: both operands have the elements of the GEMM; those that are not in scratch memory last.
    unsafe {
        if lasts && right_lasts && above == 0 {
            acc.defer::<L>(gemm);
        } else {
            acc.add::<L>(above, &gemm);
        }
    }
    Some(())
}

/// The element of an operand's tile, or of its transpose. Outside the operand: 0.
#[inline(always)]
fn element<L: Level, T: Any>(x: &Operand<T>, [i, j]: [usize; 2]) -> T::Compute {
    let [i, j] = if x.2 { [j, i] } else { [i, j] };
    Cpu::<L>::load(x.0, [x.1[0].wrapping_add(i as i64), x.1[1].wrapping_add(j as i64)])
}

/// The scalar fallback of `acc += lhs · b`, where a tile begins outside of its operand.
fn scalar_fallback<L: Level, U: Any, A: Any>(
    lhs: impl Fn(usize, usize) -> A::Compute,
    b: &Operand<U>,
    acc: AnyVar<'_, A::Compute>,
    steps: usize,
) {
    let [rows, columns] = acc.shape;
    let acc = tile::materialize::<L, _>(acc);
    for k in 0..steps {
        for j in 0..columns {
            let rhs = A::Compute::cast_from(element::<L, U>(b, [k, j]));
            for i in 0..rows {
                // SAFETY: the element is in the variable, which nobody else uses meanwhile.
                unsafe {
                    let sum = acc.add(i * columns + j);
                    *sum = lhs(i, k).mul(rhs).add(*sum);
                }
            }
        }
    }
}

/// `acc += a · b` by steps of K that are read as tiles, a strip of them at a time: a whole tile may be too large
/// for the stack.
#[inline(always)]
fn in_strips<L: Level, T: Any, U: Any, A: Any, const R: usize, const K: usize, const C: usize>(
    a: Operand<T>,
    b: Operand<U>,
    acc: &CpuTileVar<A::Compute, R, C>,
) {
    const STRIP: usize = 16;
    if !K.is_multiple_of(STRIP) {
        return tile_view::<L, T, U, A, R, K, C>(&load_tile::<L, T, R, K>(&a.0, a.1, a.2), b, acc);
    }
    let mut k = 0;
    while k < K {
        let (mut lhs, mut rhs) = (a, b);
        lhs.1 = along(lhs.1, usize::from(!a.2), k);
        rhs.1 = along(rhs.1, usize::from(b.2), k);
        let lhs = load_tile::<L, T, R, STRIP>(&lhs.0, lhs.1, lhs.2);
        tile_view::<L, T, U, A, R, STRIP, C>(&lhs, rhs, acc);
        k += STRIP;
    }
}

/// So many elements further along an axis.
#[inline(always)]
fn along(mut at: [i64; 2], axis: usize, steps: usize) -> [i64; 2] {
    at[axis] = at[axis].wrapping_add(steps as i64);
    at
}

/// Steps of a part of a packed tile: those of whole lines of K in every form.
const PACK_STEPS: usize = 64;

/// The packed tile of an operand: the launch's, or one in scratch memory.
pub(super) struct Packed {
    pub side: Side,
    pub form: PackForm,
    pub slot: Option<usize>,
    /// Its rows (columns), and the steps of K.
    pub shape: [usize; 2],
    /// So many rows (columns) are packed together.
    pub granularity: usize,
    /// The bytes of each of them.
    pub bytes_each: usize,
}

impl Packed {
    /// The tile, `None` if there is no memory for it, packed in parts: some steps of all rows (columns) where these lie
    /// side by side, and else some of them; and whether its form has all of their values. `fill` packs steps of a
    /// source of some shape, and says that of these.
    ///
    /// # Safety
    /// A slot must be one of the operand's; `fill` must write all that is read.
    #[inline(always)]
    pub(super) unsafe fn get<T: Any>(
        &self,
        x: &Operand<T>,
        fill: impl Fn(Source<T::Mem>, [usize; 2], Range<usize>, *mut u8) -> bool,
    ) -> Option<(*const u8, bool)> {
        let (source, [across, steps]) = (source(x, usize::from(matches!(self.side, Side::Rhs))), self.shape);
        let Some(slot) = self.slot else {
            let room = scratch::tile(self.side, across.next_multiple_of(self.granularity) * self.bytes_each)?;
            return Some((room, fill(source, [across, steps], 0..steps, room)));
        };
        let is_mn_major = source.is_mn_major();
        let chunks =
            if is_mn_major { [Ord::min(source.extents[1], steps), PACK_STEPS] } else { [across, self.granularity] };
        // SAFETY: by the contract above.
        Some(unsafe {
            SharedTile::new(&(*x.0.pack).rooms[self.form as usize], slot, chunks).get(|chunk, room| match is_mn_major {
                true => fill(source, [across, steps], chunk, room),
                false => {
                    let to = room.wrapping_add(chunk.start * self.bytes_each);
                    fill(source.after(chunk.start), [chunk.len(), steps], 0..steps, to)
                }
            })
        })
    }
}

/// `acc += a · b` with the left operand computed.
#[inline(always)]
pub(super) fn tile_view<L: Level, T: Any, U: Any, A: Any, const R: usize, const K: usize, const C: usize>(
    a: &[[T::Compute; K]; R],
    b: Operand<U>,
    acc: &CpuTileVar<A::Compute, R, C>,
) {
    // The launch packs blocks for what is computed in `f32` where its values are those of `bf16`.
    let lhs = if T::Compute::DTYPE == DType::F32 { DType::BF16 } else { T::Compute::DTYPE };
    let (accumulator, shape) = (A::Compute::DTYPE, [R, C, K]);
    let dot = Dot { lhs, rhs: U::dtype(), accumulator, lhs_in_memory: false, shape };
    let lhs = a.as_ptr();
    #[cfg(target_arch = "x86_64")]
    if dot.blocks_at::<L>().is_some() {
        // SAFETY: the tile has `R` rows of `K`.
        let is_done = unsafe { matrix_unit::blocked::computed_lhs_blocks::<L, U, _>(lhs.cast(), &b, acc.any(), K) };
        if is_done {
            return;
        }
    }
    let is_done = match dot.strategy::<L>() {
        Strategy::Panels => {
            // SAFETY: as above, of the dtype that the GEMM accumulates in.
            unsafe { computed_lhs::<L, U, A>(lhs.cast(), &b, acc.any(), K) };
            true
        }
        // SAFETY: as above.
        Strategy::Converted if T::Compute::DTYPE == accumulator => unsafe {
            convert::computed_view::<L, U, A>(lhs.cast(), &b, acc.any(), K)
        },
        _ => false,
    };
    if is_done {
        return;
    }
    in_loops::<L, T, A, R, K, C>(
        a,
        #[inline(always)]
        |k| {
            let mut row = [MaybeUninit::uninit(); C];
            load_row::<L, U, C>(&b.0, b.1, k, b.2, &mut row);
            let mut wide = [A::Compute::default(); C];
            let mut j = 0;
            while j < C {
                // SAFETY: the row was loaded as a whole.
                wide[j] = A::Compute::cast_from(unsafe { row[j].assume_init() });
                j += 1;
            }
            wide
        },
        acc,
    );
}

/// `acc += a · b` by plain loops over what `row` gives of the right operand.
#[inline(always)]
fn in_loops<L: Level, T: Any, A: Any, const R: usize, const K: usize, const C: usize>(
    a: &[[T::Compute; K]; R],
    row: impl Fn(usize) -> [A::Compute; C],
    acc: &CpuTileVar<A::Compute, R, C>,
) {
    // SAFETY: nothing else refers to what the variable holds, and it is not used meanwhile.
    let acc = unsafe { &mut *acc.materialize::<L>() };
    let mut k = 0;
    while k < K {
        let wide = row(k);
        let mut i = 0;
        while i < R {
            multiply_add::<L, A::Compute, C>(A::Compute::cast_from(a[i][k]), &wide, &mut acc[i]);
            i += 1;
        }
        k += 1;
    }
}

/// `acc += lhs · b` with as many rows of the left operand as the sum has, `steps` elements each.
///
/// # Safety
/// The left operand must be there.
#[inline(never)]
pub(super) unsafe fn computed_lhs<L: Level, U: Any, A: Any>(
    lhs: *const A::Compute,
    b: &Operand<U>,
    acc: AnyVar<'_, A::Compute>,
    steps: usize,
) {
    // SAFETY: by the contract above.
    if !begins_inside(b) || unsafe { computed_lhs_panels::<L, U, A>(lhs, b, acc, steps) }.is_none() {
        // SAFETY: as above.
        scalar_fallback::<L, U, A>(|i, k| unsafe { *lhs.add(i * steps + k) }, b, acc, steps);
    }
}

/// The same where the right operand's tile begins inside of it; `None`, with the sum as it was, if there is no memory
/// for what has to be packed.
///
/// # Safety
/// As for [`computed_lhs`].
#[inline(always)]
unsafe fn computed_lhs_panels<L: Level, U: Any, A: Any>(
    lhs: *const A::Compute,
    b: &Operand<U>,
    acc: AnyVar<'_, A::Compute>,
    steps: usize,
) -> Option<()> {
    let [rows, width] = acc.shape;
    let depth = extent(b, 0).clamp(0, steps as i64) as usize;
    if depth == 0 {
        return Some(());
    }
    let lhs = Lhs { ptr: lhs, row: steps as isize, group: None };
    if skinny::few_rows::<L, U, A>([depth, rows, 0], [steps, width], (|| Some(lhs), false), b, acc)? {
        return Some(());
    }
    let (rhs, columns, _) = rhs::<L, U, A>(b, [depth, rows], [steps, width], false)?;
    let gemm = Gemm::Panels(microkernel::Gemm { depth, rows, columns, lhs, rhs });
    // SAFETY: both operands have the elements of the GEMM.
    unsafe { acc.add::<L>(0, &gemm) };
    Some(())
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
pub(super) fn source<T: Any>(x: &Operand<T>, across: usize) -> Source<T::Mem> {
    let [i, j] = if x.2 { [1 - across, across] } else { [across, 1 - across] };
    Source {
        ptr: x.0.ptr.wrapping_offset(
            x.1[0].wrapping_mul(x.0.strides[0]).wrapping_add(x.1[1].wrapping_mul(x.0.strides[1])) as isize,
        ),
        strides: [x.0.strides[i], x.0.strides[j]],
        extents: [Ord::max(extent(x, across), 0) as usize, Ord::max(extent(x, 1 - across), 0) as usize],
    }
}

/// The slot of a tile of `rows x columns` (transposed: `columns x rows` in the operand), if the launch made room for it
/// in this form.
pub(super) fn slot<T: Any>(x: &Operand<T>, [rows, columns]: [usize; 2], form: PackForm) -> Option<usize> {
    if x.0.pack.is_null() {
        return None;
    }
    // SAFETY: a pack that is there is valid for the launch.
    let pack = unsafe { &*x.0.pack };
    let tile = if x.2 { [columns as i64, rows as i64] } else { [rows as i64, columns as i64] };
    let at = [x.1[0] / tile[0], x.1[1] / tile[1]];
    let aligned = x.1[0] % tile[0] == 0 && x.1[1] % tile[1] == 0;
    let inside = at[0] >= 0 && at[0] < pack.tiles[0] && at[1] >= 0 && at[1] < pack.tiles[1];
    let fits = !pack.rooms[form as usize].room.is_null() && pack.tile[0] == tile[0] && pack.tile[1] == tile[1];
    (aligned && inside && fits && x.0.lo == 0)
        .then(|| ((x.0.part * pack.tiles[0] + at[0]) * pack.tiles[1] + at[1]) as usize)
}

/// The right operand of a GEMM of so many steps and rows, packed by the launch or here unless it can be read in place;
/// how many of its columns are not outside; and whether it lasts as long as the launch. `None` if there is no memory
/// for it.
///
/// The tile must begin inside the operand.
fn rhs<L: Level, U: Any, A: Any>(
    b: &Operand<U>,
    [depth, rows]: [usize; 2],
    [steps, across]: [usize; 2],
    lhs_is_packed: bool,
) -> Option<(Rhs<A::Compute>, usize, bool)> {
    let [group, width] = microkernel::register_block(L::AVX512, A::Compute::DTYPE, across);
    // The wide-panel microkernel takes packed panels only, and row groups of another size than the other does.
    let must_pack = lhs_is_packed && group == microkernel::avx512::ROWS;
    let columns = extent(b, 1).clamp(0, across as i64) as usize;
    // SAFETY: packed tiles have room for all panels; rows that are used in place have all columns inside the operand.
    unsafe {
        let slot = slot(b, [steps, across], PackForm::Panels);
        let direct = U::dtype() == A::Compute::DTYPE && !b.2 && b.0.strides[1] == 1;
        let step = b.0.strides[0] as isize;
        // The rows of one group are read only once.
        let stays = || {
            microkernel::gemv::multiplies(rows, depth)
                || microkernel::rhs_stays_in_cache(
                    L::AVX512,
                    depth,
                    step.unsigned_abs().saturating_mul(size_of::<A::Compute>()),
                )
        };
        if slot.is_none() && direct && !must_pack {
            let (ptr, packs) = (source(b, 1).ptr.cast(), !stays());
            if !packs || !lhs_is_packed {
                let room = ptr::null_mut();
                let rhs = Rhs { ptr, step, width, panel: 0, in_place: true, packs, room, next_tile: None };
                return Some((rhs, columns, true));
            }
        }
        let deep = pack::elements(U::dtype(), steps);
        let bytes_each = deep * size_of::<A::Compute>();
        let tile = Packed {
            side: Side::Rhs,
            form: PackForm::Panels,
            slot,
            shape: [across, steps],
            granularity: width,
            bytes_each,
        };
        let (ptr, _) = tile.get(b, |from, shape, steps, to| {
            pack::panels::<L, U, false>(from, shape, steps, width, to.cast());
            true
        })?;
        let (ptr, panel) = (ptr.cast(), (width * deep) as isize);
        let pipelines = slot.is_some() && direct && microkernel::avx512::multiplies(width, size_of::<A::Compute>());
        let next_tile = if pipelines { next_tile(b, [steps, across], width) } else { None };
        Some((
            Rhs {
                ptr,
                step: width as isize,
                width,
                panel,
                in_place: false,
                packs: false,
                room: ptr::null_mut(),
                next_tile,
            },
            columns,
            slot.is_some(),
        ))
    }
}

/// The tile of B that is needed after this one, for software pipelining, by this program or the next, if the launch has
/// room for it and it has all its columns, in panels of that width.
fn next_tile<U: Any, P>(b: &Operand<U>, [steps, across]: [usize; 2], width: usize) -> Option<NextTile<P>> {
    let below = (b.0, along(b.1, 0, steps), b.2);
    let next = if extent(&below, 0) > 0 { below } else { (b.0, along([0, b.1[1]], 1, across), b.2) };
    let slot = slot(&next, [steps, across], PackForm::Panels)?;
    let from = source(&next, 1);
    if !from.is_mn_major() || from.extents[0] < across || !across.is_multiple_of(width) {
        return None;
    }
    // SAFETY: the launch made room for the operand's tiles, which outlasts its GEMMs.
    let tile = unsafe {
        let room = &(*b.0.pack).rooms[PackForm::Panels as usize];
        SharedTile::new(room, slot, [Ord::min(from.extents[1], steps), PACK_STEPS])
    };
    let (step, panels, panel) = (from.strides[1] as isize, across / width, width * steps);
    Some(NextTile { tile, from: from.ptr.cast(), step, panels, panel })
}
