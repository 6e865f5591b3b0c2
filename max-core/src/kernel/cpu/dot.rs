//! Tiles in memory and matrix products on the CPU.
//!
//! A product of floats at a level with AVX2 or AVX-512 is done by [`gemm`] over operands that are packed, or lie as it
//! walks them, and by [`thin`] where few rows meet a transpose; products of `bf16`, whose operands the launch
//! packed for it, and of 8-bit integers by [`amx`], which takes 8-bit floats as `bf16`. Where the machine has no unit for
//! integers, [`gemm`] multiplies them in pairs. Factors that are no floats, of products that are, are [`converted`] before.
//! Others are plain loops.

use std::ops::Range;
use std::ptr;

use super::ahead::Coming;
use super::amx;
#[cfg(target_arch = "x86_64")]
use super::blocks;
use super::converted;
use super::factors::{self, Factors};
use super::few::{self, Few};
use super::gemm::{self, Left, Right, Sums};
use super::level::{Level, store_streaming};
use super::pack::{self, Shared, Source};
use super::scratch::{self, Side};
use super::thin::{self, Thin};
use super::tile::{self, AnyVar};
use super::wide;
use super::{Cpu, CpuTensor, CpuTileVar};
use crate::dtype::DType;
use crate::kernel::lang::{Any, Prim, Target};
use crate::kernel::table::PackForm;

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
pub(super) type Operand<T> = (CpuTensor<T, 2>, [i64; 2], bool);

/// The rows (`axis` 0) or columns of a tile that are inside its operand.
#[inline(always)]
pub(super) fn extent<T: Any>(x: &Operand<T>, axis: usize) -> i64 {
    let there = if x.2 { 1 - axis } else { axis };
    (if there == 0 { x.0.dims[0] } else { x.0.hi }) - x.1[there]
}

/// Whether the tile's first element is inside its operand, or past the end.
#[inline(always)]
pub(super) fn begins_inside<T: Any>(x: &Operand<T>) -> bool {
    x.1[0] >= 0 && x.1[1] >= x.0.lo
}

/// Whether [`gemm`] multiplies floats of these dtypes at this level.
#[inline(always)]
fn blocked<L: Level, T: Any, U: Any, A: Any, const C: usize>() -> bool {
    let same = T::Compute::DTYPE == A::Compute::DTYPE && U::Compute::DTYPE == A::Compute::DTYPE;
    same && added_in_floats::<L, A, C>()
}

/// Whether [`gemm`] adds products of so many columns in that dtype at this level.
#[inline(always)]
fn added_in_floats<L: Level, A: Any, const C: usize>() -> bool {
    let (lanes, float) = match A::Compute::DTYPE {
        DType::F32 => (if L::AVX512 { 16 } else { 8 }, true),
        DType::F64 => (if L::AVX512 { 8 } else { 4 }, true),
        _ => (1, false),
    };
    cfg!(target_arch = "x86_64") && L::AVX2 && float && C.is_multiple_of(lanes)
}

/// Whether [`gemm`] multiplies integers of these dtypes at this level, packed as pairs.
#[inline(always)]
fn in_pairs<L: Level, T: Any, U: Any, A: Any>() -> bool {
    let small = pack::is_packed_in_pairs(T::dtype()) && pack::is_packed_in_pairs(U::dtype());
    cfg!(target_arch = "x86_64") && L::AVX2 && small && A::Compute::DTYPE == DType::I32
}

/// A product whose operands are as the loops take them.
#[derive(Clone, Copy)]
pub(super) enum Product<P> {
    Panels(gemm::Product<P>),
    #[cfg(target_arch = "x86_64")]
    Blocks(amx::Product),
}

impl<P: Prim> Product<P> {
    /// How many rows and columns of sums it has.
    #[inline(always)]
    pub(super) fn covers(&self) -> [usize; 2] {
        match self {
            Product::Panels(x) => [x.rows, x.columns],
            #[cfg(target_arch = "x86_64")]
            Product::Blocks(x) => [x.rows.next_multiple_of(32), x.columns],
        }
    }

    /// Computes it.
    ///
    /// # Safety
    /// The operands must be there, the sums readable and writable by this call alone, and the machine must have what the
    /// product was made for.
    #[inline(always)]
    pub(super) unsafe fn run<L: Level>(&self, sums: &Sums<P>) {
        // SAFETY: by the contract above; blocks are added in four bytes.
        unsafe {
            match self {
                Product::Panels(x) => gemm::multiply::<L, P>(x, sums),
                #[cfg(target_arch = "x86_64")]
                Product::Blocks(x) => amx::multiply(x, &*std::ptr::from_ref(sums).cast()),
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
    if !v.is_unfinished() || !store_product::<L, T>(&x, at, v.any()) {
        // SAFETY: nothing assigns the variable meanwhile.
        store_tile::<L, T, R, C>(&x, at, unsafe { &*v.settle::<L>() });
    }
}

/// Computes a product that was put off to the operand at once, if its rows and columns are those that are written there.
#[inline(never)]
fn store_product<L: Level, T: Any>(x: &CpuTensor<T, 2>, [row, column]: [i64; 2], v: AnyVar<'_, T::Compute>) -> bool {
    let [all, width] = v.shape;
    let rows = Ord::clamp(x.dims[0] - row, 0, all as i64) as usize;
    let columns = Ord::clamp(x.hi - column, 0, width as i64) as usize;
    let Some((product, from)) = v.unfinished() else { return false };
    let whole = product.covers()[0] >= rows && product.covers()[1] == columns;
    if row < 0 || column < x.lo || x.strides[1] != 1 || rows == 0 || !whole {
        return false;
    }
    let to = x.ptr.wrapping_offset((row * x.strides[0] + column) as isize);
    let to_row = x.strides[0] as isize;
    // SAFETY: the rows and columns are inside the operand, in a part that this instance owns, and the product's operands
    // last as long as the launch; what `T` is computed with has four bytes where blocks are multiplied.
    unsafe {
        match product {
            Product::Panels(product) if T::dtype() == <T::Compute as Prim>::DTYPE => {
                let sums = Sums { from, to: to.cast(), from_row: width, to_row: to_row as usize };
                gemm::multiply::<L, T::Compute>(&gemm::Product { rows, ..product }, &sums);
                true
            }
            Product::Panels(_) => false,
            #[cfg(target_arch = "x86_64")]
            Product::Blocks(product) => {
                let sums = Sums { from: from.cast(), to: ptr::null_mut(), from_row: width, to_row: 0 };
                store_blocks::<L, T>(&product, &sums, rows, (to, to_row), x.stream);
                true
            }
        }
    }
}

/// Writes so many rows of a product of blocks to memory, from a row to the next `to_row` elements; past the cache, if `stream`
/// says so: lines that are only written are then not read first.
///
/// # Safety
/// As for [`amx::multiply_into`], with an operand that has the rows and columns; the machine must have AVX-512.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,fma,f16c,bmi1,bmi2")]
unsafe fn store_blocks<L: Level, T: Any>(
    product: &amx::Product,
    sums: &Sums<u32>,
    rows: usize,
    (to, to_row): (*mut T::Mem, isize),
    stream: bool,
) {
    // SAFETY: by the contract above. Rows that are written are inside the operand; a block is of what `T` is computed with,
    // which has four bytes.
    unsafe {
        amx::multiply_into(
            product,
            sums,
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
    let factors = factors::<L, T, U, A, R, K, C>();
    let by_unit = matches!(factors, Some(factors) if factors.unit().is_some());
    if blocked::<L, T, U, A, C>() || in_pairs::<L, T, U, A>() || by_unit {
        in_memory::<L, T, U, A>(&a, &b, acc.any(), K, factors);
    } else if !added_in_floats::<L, A, C>() || !converted::views::<L, T, U, A>(&a, &b, acc.any(), K) {
        in_strips::<L, T, U, A, R, K, C>(a, b, acc);
    }
}

/// `acc += a · b` with both operands in memory, by what multiplies packed ones or rows where they lie.
#[inline(never)]
pub(super) fn in_memory<L: Level, T: Any, U: Any, A: Any>(
    a: &Operand<T>,
    b: &Operand<U>,
    acc: AnyVar<'_, A::Compute>,
    steps: usize,
    factors: Option<Factors>,
) {
    let [all, _] = acc.shape;
    // Rows above the operand add nothing; columns to the left of it are rare.
    let above = if a.2 { 0 } else { Ord::clamp(-a.1[0], 0, all as i64) as usize };
    let inside = (a.0, [a.1[0] + above as i64, a.1[1]], a.2);
    if !begins_inside(&inside) || !begins_inside(b) {
        return slowly::<L, U, A>(|i, k| A::Compute::cast_from(element::<L, T>(a, [i, k])), b, acc, steps);
    }
    let a = &inside;
    let depth = Ord::min(extent(a, 1), extent(b, 0)).clamp(0, steps as i64) as usize;
    let rows = Ord::clamp(extent(a, 0), 0, (all - above) as i64) as usize;
    if depth == 0 || rows == 0 {
        return;
    }
    // What was put off finds its operands in the cache only before these are packed.
    acc.finish::<L>();
    let direct = T::dtype() == A::Compute::DTYPE && !a.2 && a.0.strides[1] == 1;
    let in_rows = || match direct {
        true => Left { ptr: source(a, 0).ptr.cast(), row: a.0.strides[0] as isize, group: None },
        false => widened::<T, A>(a, [rows, depth]),
    };
    let width = acc.shape[1];
    if T::Compute::DTYPE == A::Compute::DTYPE
        && few_rows::<L, U, A>([depth, rows, above], [steps, width], in_rows, b, acc)
    {
        return;
    }
    #[cfg(target_arch = "x86_64")]
    if let Some(factors) = factors
        // Blocks have 32 rows: those from a row within the sum on would end below it.
        && above == 0
        && let Some((product, lasts)) = blocks::of_blocks::<T, U>(factors, [rows, depth], a, b, acc.shape, steps)
    {
        // SAFETY: packed tiles are there; those that are not in scratch memory last as long as the launch.
        return unsafe {
            match lasts {
                true => acc.put_off::<L>(Product::Blocks(product)),
                false => acc.add::<L>(0, &Product::Blocks(product)),
            }
        };
    }
    let [group, _] = gemm::register_block(L::AVX512, A::Compute::DTYPE, width);
    // SAFETY: the launch, or the scratch memory, has room for a tile; its source is inside the operand.
    let (left, packed, lasts) = unsafe {
        let slot = slot(a, [all, steps], PackForm::Panels);
        if slot.is_none() && direct {
            (source(a, 0).ptr.cast::<u8>(), false, true)
        } else {
            let each = pack::elements(T::dtype(), steps) * size_of::<A::Compute>();
            let tile =
                Packed { side: Side::Left, form: PackForm::Panels, slot, shape: [all, steps], unit: group, each };
            let (left, _) = tile.get(a, |from, shape, steps, to| {
                pack::panels::<L, T, true>(from, shape, steps, group, to.cast());
                true
            });
            (left, true, slot.is_some())
        }
    };
    let group = packed.then_some((group * pack::elements(T::dtype(), steps)) as isize);
    let left = Left { ptr: left.cast(), row: a.0.strides[0] as isize, group };
    let (right, columns, right_lasts) = right::<L, U, A>(b, [depth, rows], [steps, width], packed);
    let depth = pack::elements(T::dtype(), depth);
    let product = Product::Panels(gemm::Product { depth, rows, columns, left, right });
    // SAFETY: both operands have the elements of the product; those that are not in scratch memory last.
    unsafe {
        if lasts && right_lasts && above == 0 {
            acc.put_off::<L>(product);
        } else {
            acc.add::<L>(above, &product);
        }
    }
}

/// The element of an operand's tile, or of its transpose. Outside the operand: 0.
#[inline(always)]
fn element<L: Level, T: Any>(x: &Operand<T>, [i, j]: [usize; 2]) -> T::Compute {
    let [i, j] = if x.2 { [j, i] } else { [i, j] };
    Cpu::<L>::load(x.0, [x.1[0] + i as i64, x.1[1] + j as i64])
}

/// `acc += left · b`, one element after the other, where a tile begins outside of its operand.
fn slowly<L: Level, U: Any, A: Any>(
    left: impl Fn(usize, usize) -> A::Compute,
    b: &Operand<U>,
    acc: AnyVar<'_, A::Compute>,
    steps: usize,
) {
    let [rows, columns] = acc.shape;
    let acc = tile::settle::<L, _>(acc);
    for k in 0..steps {
        for j in 0..columns {
            let right = A::Compute::cast_from(element::<L, U>(b, [k, j]));
            for i in 0..rows {
                // SAFETY: the element is in the variable, which nobody else uses meanwhile.
                unsafe {
                    let sum = acc.add(i * columns + j);
                    *sum = left(i, k).mul(right).add(*sum);
                }
            }
        }
    }
}

/// `acc += a · b` by steps of the depth that are read as tiles, a strip of them at a time: a whole tile may be too large
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
        let (mut left, mut right) = (a, b);
        *(if a.2 { &mut left.1[0] } else { &mut left.1[1] }) += k as i64;
        *(if b.2 { &mut right.1[1] } else { &mut right.1[0] }) += k as i64;
        let left = load_tile::<L, T, R, STRIP>(&left.0, left.1, left.2);
        tile_view::<L, T, U, A, R, STRIP, C>(&left, right, acc);
        k += STRIP;
    }
}

/// What [`amx`] multiplies, if it does that for tiles of these dtypes and shapes at this level.
#[inline(always)]
fn factors<L: Level, T: Any, U: Any, A: Any, const R: usize, const K: usize, const C: usize>() -> Option<Factors> {
    let factors = Factors::of(T::dtype(), U::dtype(), A::Compute::DTYPE)?;
    let whole = R.is_multiple_of(32) && C.is_multiple_of(32) && K.is_multiple_of(factors.per_line());
    (cfg!(target_arch = "x86_64") && L::AVX512 && whole).then_some(factors)
}

/// Steps of a part of a packed tile: those of whole lines of the depth in every form.
const STEPS: usize = 64;

/// The packed tile of an operand: the launch's, or one in scratch memory.
pub(super) struct Packed {
    pub side: Side,
    pub form: PackForm,
    pub slot: Option<usize>,
    /// Its rows (columns), and the steps of the depth.
    pub shape: [usize; 2],
    /// So many rows (columns) are packed together.
    pub unit: usize,
    /// The bytes of each of them.
    pub each: usize,
}

impl Packed {
    /// The tile, packed in parts: some steps of all rows (columns) where these lie side by side, and else some of them; and whether
    /// its form has all of their values. `fill` packs steps of a source of some shape, and says that of these.
    ///
    /// # Safety
    /// A slot must be one of the operand's; `fill` must write all that is read.
    #[inline(always)]
    pub(super) unsafe fn get<T: Any>(
        &self,
        x: &Operand<T>,
        fill: impl Fn(Source<T::Mem>, [usize; 2], Range<usize>, *mut u8) -> bool,
    ) -> (*const u8, bool) {
        let (source, [across, steps]) = (source(x, usize::from(matches!(self.side, Side::Right))), self.shape);
        let Some(slot) = self.slot else {
            let room = scratch::tile(self.side, across.next_multiple_of(self.unit) * self.each);
            return (room, fill(source, [across, steps], 0..steps, room));
        };
        let is_flat = source.is_flat();
        let parts = if is_flat { [Ord::min(source.extents[1], steps), STEPS] } else { [across, self.unit] };
        // SAFETY: by the contract above.
        unsafe {
            Shared::new(&(*x.0.pack).rooms[self.form as usize], slot, parts).get(|part, room| match is_flat {
                true => fill(source, [across, steps], part, room),
                false => {
                    let to = room.wrapping_add(part.start * self.each);
                    fill(source.after(part.start), [part.len(), steps], 0..steps, to)
                }
            })
        }
    }
}

/// `acc += a · b` with the left operand computed.
#[inline(always)]
pub(super) fn tile_view<L: Level, T: Any, U: Any, A: Any, const R: usize, const K: usize, const C: usize>(
    a: &[[T::Compute; K]; R],
    b: Operand<U>,
    acc: &CpuTileVar<A::Compute, R, C>,
) {
    #[cfg(target_arch = "x86_64")]
    {
        let halves = factors::is_packed_as_bf16(U::dtype())
            && T::Compute::DTYPE == DType::F32
            && A::Compute::DTYPE == DType::F32;
        let whole = R.is_multiple_of(32) && C.is_multiple_of(32) && K.is_multiple_of(32);
        let left = a.as_ptr().cast();
        // SAFETY: the tile has `R` rows of `K`.
        if L::AVX512 && halves && whole && unsafe { blocks::computed_by_blocks::<L, U, _>(left, &b, acc.any(), K) } {
            return;
        }
    }
    if blocked::<L, T, U, A, C>() {
        // SAFETY: the tile has `R` rows of `K`, of the dtype that products are added in.
        return unsafe { with_computed::<L, U, A>(a.as_ptr().cast(), &b, acc.any(), K) };
    }
    let sums = [T::Compute::DTYPE, A::Compute::DTYPE] == [DType::F32; 2] && added_in_floats::<L, A, C>();
    // SAFETY: as above.
    if sums && unsafe { converted::computed_view::<L, U, A>(a.as_ptr().cast(), &b, acc.any(), K) } {
        return;
    }
    // SAFETY: nothing else refers to what the variable holds, and it is not used meanwhile.
    let acc = unsafe { &mut *acc.settle::<L>() };
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

/// `acc += left · b` with as many rows of the left operand as the sum has, `steps` elements each.
///
/// # Safety
/// The left operand must be there.
#[inline(never)]
pub(super) unsafe fn with_computed<L: Level, U: Any, A: Any>(
    left: *const A::Compute,
    b: &Operand<U>,
    acc: AnyVar<'_, A::Compute>,
    steps: usize,
) {
    let [rows, width] = acc.shape;
    if !begins_inside(b) {
        // SAFETY: by the contract above.
        return slowly::<L, U, A>(|i, k| unsafe { *left.add(i * steps + k) }, b, acc, steps);
    }
    let depth = extent(b, 0).clamp(0, steps as i64) as usize;
    if depth == 0 {
        return;
    }
    let left = Left { ptr: left, row: steps as isize, group: None };
    if few_rows::<L, U, A>([depth, rows, 0], [steps, width], || left, b, acc) {
        return;
    }
    let (right, columns, _) = right::<L, U, A>(b, [depth, rows], [steps, width], false);
    let product = Product::Panels(gemm::Product { depth, rows, columns, left, right });
    // SAFETY: both operands have the elements of the product.
    unsafe { acc.add::<L>(0, &product) };
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
        ptr: x
            .0
            .ptr
            .wrapping_offset((x.1[0].wrapping_mul(x.0.strides[0]) + x.1[1].wrapping_mul(x.0.strides[1])) as isize),
        strides: [x.0.strides[i], x.0.strides[j]],
        extents: [Ord::max(extent(x, across), 0) as usize, Ord::max(extent(x, 1 - across), 0) as usize],
    }
}

/// The slot of a tile of `rows x columns` (transposed: `columns x rows` in the operand), if the launch made room for it in
/// this form.
pub(super) fn slot<T: Any>(x: &Operand<T>, [rows, columns]: [usize; 2], form: PackForm) -> Option<usize> {
    if x.0.pack.is_null() {
        return None;
    }
    // SAFETY: a pack that is there is valid for the launch.
    let pack = unsafe { &*x.0.pack };
    let tile = if x.2 { [columns as i64, rows as i64] } else { [rows as i64, columns as i64] };
    let at = [x.1[0].div_euclid(tile[0]), x.1[1].div_euclid(tile[1])];
    let aligned = at[0] * tile[0] == x.1[0] && at[1] * tile[1] == x.1[1];
    let inside = at[0] >= 0 && at[0] < pack.tiles[0] && at[1] >= 0 && at[1] < pack.tiles[1];
    let fits = !pack.rooms[form as usize].room.is_null() && pack.tile[0] == tile[0] && pack.tile[1] == tile[1];
    (aligned && inside && fits && x.0.lo == 0)
        .then(|| ((x.0.part * pack.tiles[0] + at[0]) * pack.tiles[1] + at[1]) as usize)
}

/// Rows of a left operand as they are computed with, in scratch memory.
fn widened<T: Any, A: Any>(a: &Operand<T>, [rows, depth]: [usize; 2]) -> Left<A::Compute> {
    let room = scratch::tile(Side::Left, rows * depth * size_of::<T::Compute>()).cast::<T::Compute>();
    let from = source(a, 0);
    for i in 0..rows {
        for k in 0..depth {
            let at = i as i64 * from.strides[0] + k as i64 * from.strides[1];
            // SAFETY: these rows and steps are inside the operand, and there is room for them.
            unsafe { *room.add(i * depth + k) = T::widen(*from.ptr.offset(at as isize)) };
        }
    }
    Left { ptr: room.cast_const().cast(), row: depth as isize, group: None }
}

/// Multiplies few rows by what is read where it lies, if it is a transpose, or of a narrower dtype and nobody packs it, and
/// says so. `left` gives the rows, of the dtype that products are added in; a tile of the right operand is of `[steps, width]`.
fn few_rows<L: Level, U: Any, A: Any>(
    [depth, rows, above]: [usize; 3],
    [steps, width]: [usize; 2],
    left: impl FnOnce() -> Left<A::Compute>,
    b: &Operand<U>,
    acc: AnyVar<'_, A::Compute>,
) -> bool {
    let sums = A::Compute::DTYPE;
    let [_, panel] = gemm::register_block(L::AVX512, sums, width);
    let is_packed = || [PackForm::Panels, PackForm::Blocks].iter().any(|&form| slot(b, [steps, width], form).is_some());
    let from = source(b, 1);
    let is_thin = from.strides[1] == 1 && rows <= thin::ROWS && depth >= panel && sums == DType::F32;
    let is_few = from.strides[0] == 1 && rows <= few::ROWS && few::widens(U::dtype(), sums);
    if U::Compute::DTYPE != sums || !(is_thin || is_few && !is_packed()) {
        return false;
    }
    let acc = tile::settle::<L, _>(acc).wrapping_add(above * width);
    let columns = extent(b, 1).clamp(0, width as i64) as usize;
    let (left, right) = (left(), from.ptr);
    // SAFETY: the left operand has the rows, the right one the columns that are inside of it, and both the depth; `U` computes
    // with what products are added in.
    unsafe {
        if is_thin {
            let (left, left_row) = (left.ptr.cast(), left.row);
            let acc = acc.cast();
            let right_row = from.strides[0] as isize;
            let product = Thin { depth, rows, columns, left, left_row, right, right_row, acc, acc_row: width };
            thin::multiply::<L, U>(&product);
        } else {
            let left = Left { ptr: left.ptr.cast(), row: left.row, group: None };
            let sums = Sums { from: acc.cast_const().cast(), to: acc.cast(), from_row: width, to_row: width };
            let right_row = from.strides[1] as isize;
            few::multiply::<L, U>(&Few { depth, rows, columns, left, right, right_row }, &sums);
        }
    }
    true
}

/// The right operand of a product of so many steps and rows, packed by the launch or here unless it can be read in place;
/// how many of its columns are not outside; and whether it lasts as long as the launch.
///
/// The tile must begin inside the operand.
fn right<L: Level, U: Any, A: Any>(
    b: &Operand<U>,
    [depth, rows]: [usize; 2],
    [steps, across]: [usize; 2],
    left_is_packed: bool,
) -> (Right<A::Compute>, usize, bool) {
    let [group, width] = gemm::register_block(L::AVX512, A::Compute::DTYPE, across);
    // What multiplies wide panels takes only packed ones, and groups of a left operand of another size than what does not.
    let must_pack = left_is_packed && group == wide::ROWS;
    let columns = extent(b, 1).clamp(0, across as i64) as usize;
    // SAFETY: packed tiles have room for all panels; rows that are used in place have all columns inside the operand.
    unsafe {
        let slot = slot(b, [steps, across], PackForm::Panels);
        let direct = U::dtype() == A::Compute::DTYPE && !b.2 && b.0.strides[1] == 1;
        let step = b.0.strides[0] as isize;
        // The rows of one group are read only once.
        let fits = || rows <= 8 || gemm::fits(L::AVX512, depth, step.unsigned_abs() * size_of::<A::Compute>());
        if slot.is_none() && direct && !must_pack && fits() {
            let ptr = source(b, 1).ptr.cast();
            return (Right { ptr, step, width, panel: 0, in_place: true, coming: None }, columns, true);
        }
        let deep = pack::elements(U::dtype(), steps);
        let each = deep * size_of::<A::Compute>();
        let tile =
            Packed { side: Side::Right, form: PackForm::Panels, slot, shape: [across, steps], unit: width, each };
        let (ptr, _) = tile.get(b, |from, shape, steps, to| {
            pack::panels::<L, U, false>(from, shape, steps, width, to.cast());
            true
        });
        let (ptr, panel) = (ptr.cast(), (width * deep) as isize);
        let ahead = slot.is_some() && direct && wide::multiplies(width, size_of::<A::Compute>());
        let coming = if ahead { coming(b, [steps, across], width) } else { None };
        (Right { ptr, step: width as isize, width, panel, in_place: false, coming }, columns, slot.is_some())
    }
}

/// The tile of a right operand that is needed after this one, by this program or the next, if the launch has room for it and it
/// has all its columns, in panels of that width.
fn coming<U: Any, P>(b: &Operand<U>, [steps, across]: [usize; 2], width: usize) -> Option<Coming<P>> {
    let below = (b.0, [b.1[0] + steps as i64, b.1[1]], b.2);
    let next = if extent(&below, 0) > 0 { below } else { (b.0, [0, b.1[1] + across as i64], b.2) };
    let slot = slot(&next, [steps, across], PackForm::Panels)?;
    let from = source(&next, 1);
    if !from.is_flat() || from.extents[0] < across || !across.is_multiple_of(width) {
        return None;
    }
    // SAFETY: the launch made room for the operand's tiles, which outlasts its products.
    let tile = unsafe {
        let room = &(*b.0.pack).rooms[PackForm::Panels as usize];
        Shared::new(room, slot, [Ord::min(from.extents[1], steps), STEPS])
    };
    let (step, panels, panel) = (from.strides[1] as isize, across / width, width * steps);
    Some(Coming { tile, from: from.ptr.cast(), step, panels, panel })
}
