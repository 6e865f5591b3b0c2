//! Tiles in memory and matrix products on the CPU.
//!
//! A product of floats at a level with AVX2 or AVX-512 is done by [`gemm`] over operands that are packed, or lie as it
//! walks them, and by [`thin`] where few rows meet a transpose; products of `bf16`, whose operands the launch
//! packed for it, and of 8-bit integers by [`amx`]. Others are plain loops.

use super::amx::{self, Factors};
use super::gemm::{self, Left, Right, Sums};
use super::level::Level;
use super::pack::{self, Source};
use super::scratch::{self, Side};
use super::thin::{self, Thin};
use super::{Cpu, CpuTensor, CpuTileVar};
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
    let same = T::Compute::DTYPE == A::Compute::DTYPE && U::Compute::DTYPE == A::Compute::DTYPE;
    cfg!(target_arch = "x86_64") && L::AVX2 && float && same && C.is_multiple_of(lanes)
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

/// Writes the tile that a variable holds. A product that was put off goes to the operand at once, where its rows and
/// columns are those that are written.
#[inline(always)]
pub(super) fn store_var<L: Level, T: Any, const R: usize, const C: usize>(
    x: CpuTensor<T, 2>,
    [row, column]: [i64; 2],
    v: &CpuTileVar<T::Compute, R, C>,
) {
    let rows = Ord::clamp(x.dims[0] - row, 0, R as i64) as usize;
    let columns = Ord::clamp(x.hi - column, 0, C as i64) as usize;
    if let Some((product, from)) = v.unfinished()
        && row >= 0
        && column >= x.lo
        && x.strides[1] == 1
        && rows > 0
        && product.covers()[0] >= rows
        && product.covers()[1] == columns
    {
        let to = x.ptr.wrapping_offset((row * x.strides[0] + column) as isize);
        let to_row = x.strides[0] as isize;
        match product {
            Product::Panels(product) if T::dtype() == <T::Compute as Prim>::DTYPE => {
                let sums = Sums { from, to: to.cast(), from_row: C, to_row: to_row as usize };
                // SAFETY: the rows and columns are inside the operand, in a part that this instance owns, and the
                // product's operands last as long as the launch.
                return unsafe { gemm::multiply::<L, T::Compute>(&gemm::Product { rows, ..product }, &sums) };
            }
            Product::Panels(_) => {}
            #[cfg(target_arch = "x86_64")]
            Product::Blocks(product) => {
                let sums = Sums { from: from.cast(), to: std::ptr::null_mut(), from_row: C, to_row: 0 };
                // SAFETY: as above; what `T` is computed with has four bytes.
                return unsafe {
                    amx::multiply_into(
                        &product,
                        &sums,
                        #[inline(always)]
                        |[i, j], block| {
                            let block = &*std::ptr::from_ref(block).cast::<[[T::Compute; 32]; 32]>();
                            let mut r = 0;
                            while r < 32 && i + r < rows {
                                let to = to.wrapping_offset((i + r) as isize * to_row).wrapping_add(j);
                                to.cast::<[T::Mem; 32]>().write_unaligned(super::narrow::<L, T, 32>(&block[r]));
                                r += 1;
                            }
                        },
                    )
                };
            }
        }
    }
    // SAFETY: nothing assigns the variable meanwhile.
    store_tile::<L, T, R, C>(&x, [row, column], unsafe { &*v.settle::<L>() });
}

/// `acc += a · b` with both operands in memory.
#[inline(always)]
pub(super) fn views<L: Level, T: Any, U: Any, A: Any, const R: usize, const K: usize, const C: usize>(
    a: Operand<T>,
    b: Operand<U>,
    acc: &CpuTileVar<A::Compute, R, C>,
) {
    // Rows above the operand add nothing; columns to the left of it are rare.
    let above = if a.2 { 0 } else { Ord::clamp(-a.1[0], 0, R as i64) };
    let a = (a.0, [a.1[0] + above, a.1[1]], a.2);
    let factors = factors::<L, T, U, A, R, K, C>();
    let fast = blocked::<L, T, U, A, C>() || matches!(factors, Some(factors) if factors.unit().is_some());
    if !fast || !begins_inside(&a) || !begins_inside(&b) {
        let a = (a.0, [a.1[0] - above, a.1[1]], a.2);
        return in_strips::<L, T, U, A, R, K, C>(a, b, acc);
    }
    let above = above as usize;
    let depth = Ord::min(extent(&a, 1), extent(&b, 0)).clamp(0, K as i64) as usize;
    let rows = Ord::clamp(extent(&a, 0), 0, (R - above) as i64) as usize;
    if depth == 0 || rows == 0 {
        return;
    }
    // What was put off finds its operands in the cache only before these are packed.
    acc.finish::<L>();
    #[cfg(target_arch = "x86_64")]
    if let Some(factors) = factors
        && let Some((product, lasts)) = of_blocks::<T, U, R, K, C>(factors, [rows, depth], &a, &b)
    {
        // SAFETY: packed tiles are there; those that are not in scratch memory last as long as the launch.
        return unsafe {
            match lasts && above == 0 {
                true => acc.put_off::<L>(Product::Blocks(product)),
                false => acc.add::<L>(above, &Product::Blocks(product)),
            }
        };
    }
    let [group, _] = gemm::register_block(L::AVX512, size_of::<A::Compute>());
    let direct = T::dtype() == A::Compute::DTYPE && !a.2 && a.0.strides[1] == 1;
    // SAFETY: the launch, or the scratch memory, has room for a tile; its source is inside the operand.
    let (left, packed, lasts) = unsafe {
        let slot = slot::<T, R, K>(&a, PackForm::Panels);
        if slot.is_none() && direct {
            (source(&a, 0).ptr.cast::<u8>(), false, true)
        } else {
            let bytes = pack::tile_bytes(PackForm::Panels, L::AVX512, true, R, K, A::Compute::DTYPE);
            let left = tile(
                &a,
                slot,
                Side::Left,
                bytes,
                [R, group],
                #[inline(always)]
                |from, across, to| {
                    let to = to.cast::<A::Compute>().wrapping_add(from * K);
                    pack::panels::<L, T, true>(source(&a, 0).after(from), [across, K], to.cast());
                },
            );
            (left, true, slot.is_some())
        }
    };
    let group = packed.then_some((group * K) as isize);
    let left = Left { ptr: left.cast(), row: a.0.strides[0] as isize, group };
    if !packed && few_rows::<L, U, A, R, C>([depth, rows, above], &left, &b, acc) {
        return;
    }
    let (right, columns, right_lasts) = right::<L, U, A, K, C>(&b, [depth, rows]);
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

/// The product of operands that are packed in blocks, and whether those last as long as the launch. Halves for which the
/// launch made no room are multiplied as `f32`.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn of_blocks<T: Any, U: Any, const R: usize, const K: usize, const C: usize>(
    factors: Factors,
    [rows, depth]: [usize; 2],
    a: &Operand<T>,
    b: &Operand<U>,
) -> Option<(amx::Product, bool)> {
    let unit = factors.unit()?;
    let slots = (slot::<T, R, K>(a, PackForm::Blocks), slot::<U, K, C>(b, PackForm::Blocks));
    let lasts = slots.0.is_some() && slots.1.is_some();
    if factors == Factors::Halves && !lasts {
        return None;
    }
    // SAFETY: the launch, or the scratch memory, has room for tiles of these shapes; the machine has AVX-512, and sources
    // are inside their operands.
    let (left, right) = unsafe {
        let bytes = |across: usize| amx::tile_bytes(across, K, 64 / factors.per_line());
        let left = tile(
            a,
            slots.0,
            Side::Left,
            bytes(R),
            [R, 64],
            #[inline(always)]
            |from, across, to| {
                let (source, to) = (source(a, 0).after(from), to.wrapping_add(bytes(from)));
                match factors {
                    Factors::Halves => amx::pack_rows::<u16, 32>(source.cast(), [across, K], to.cast()),
                    Factors::Bytes(..) => amx::pack_rows::<u8, 64>(source.cast(), [across, K], to),
                }
            },
        );
        let right = tile(
            b,
            slots.1,
            Side::Right,
            bytes(C),
            [C, 64],
            #[inline(always)]
            |from, across, to| {
                let (source, to) = (source(b, 1).after(from), to.wrapping_add(bytes(from)));
                match factors {
                    Factors::Halves => amx::pack_columns::<u16, 32>(source.cast(), [across, K], to.cast()),
                    Factors::Bytes(..) => amx::pack_columns::<u8, 64>(source.cast(), [across, K], to),
                }
            },
        );
        (left, right)
    };
    let columns = (Ord::clamp(extent(b, 1), 1, C as i64) as usize).next_multiple_of(32);
    let lines = depth.div_ceil(factors.per_line());
    let stride = K / factors.per_line() * 1024;
    Some((amx::Product { factors, unit, rows, columns, lines, stride, left, right }, lasts))
}

/// The packed tile of an operand: the launch's, or of so many bytes in scratch memory. `fill` packs, of so many rows or
/// columns, some from a multiple of the unit on, into their place in the tile.
///
/// # Safety
/// A slot must be one of the operand's; `fill` must write all that is read.
#[inline(always)]
unsafe fn tile<T: Any>(
    x: &Operand<T>,
    slot: Option<usize>,
    side: Side,
    bytes: usize,
    [across, unit]: [usize; 2],
    fill: impl Fn(usize, usize, *mut u8),
) -> *const u8 {
    match slot {
        // SAFETY: by the contract above.
        Some(slot) => unsafe { pack::shared(&*x.0.pack, slot, [across, unit], fill) },
        None => {
            let room = scratch::tile(side, bytes);
            fill(0, across, room);
            room
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
    if blocked::<L, T, U, A, C>() && begins_inside(&b) {
        let depth = extent(&b, 0).clamp(0, K as i64) as usize;
        if depth == 0 {
            return;
        }
        let left = Left { ptr: a.as_ptr().cast(), row: K as isize, group: None };
        if few_rows::<L, U, A, R, C>([depth, R, 0], &left, &b, acc) {
            return;
        }
        let (right, columns, _) = right::<L, U, A, K, C>(&b, [depth, R]);
        let product = Product::Panels(gemm::Product { depth, rows: R, columns, left, right });
        // SAFETY: the tile has `R` rows of `K`, of the dtype that products are added in.
        return unsafe { acc.add::<L>(0, &product) };
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

/// Multiplies few rows by a transpose where both operands lie, if that is what they are, and says so.
#[inline(always)]
fn few_rows<L: Level, U: Any, A: Any, const R: usize, const C: usize>(
    [depth, rows, above]: [usize; 3],
    left: &Left<A::Compute>,
    b: &Operand<U>,
    acc: &CpuTileVar<A::Compute, R, C>,
) -> bool {
    let [_, width] = gemm::register_block(L::AVX512, size_of::<A::Compute>());
    let few = rows <= thin::ROWS && depth >= width && b.2 && b.0.strides[1] == 1;
    if !few || A::Compute::DTYPE != DType::F32 {
        return false;
    }
    let acc = acc.settle::<L>().cast::<f32>().wrapping_add(above * C);
    let columns = extent(b, 1).clamp(0, C as i64) as usize;
    let (left_row, right_row) = (left.row, b.0.strides[0] as isize);
    let (left, right) = (left.ptr.cast(), source(b, 1).ptr);
    let product = Thin { depth, rows, columns, left, left_row, right, right_row, acc, acc_row: C };
    // SAFETY: the left operand has the rows, the right one the columns that are inside of it, and both the depth.
    unsafe { thin::multiply::<L, U>(&product) };
    true
}

/// The right operand of a product of so many steps and rows, packed by the launch or here unless it can be read in place; how many of its columns are not
/// outside; and whether it lasts as long as the launch.
///
/// The tile must begin inside the operand.
#[inline(always)]
fn right<L: Level, U: Any, A: Any, const K: usize, const C: usize>(
    b: &Operand<U>,
    [depth, rows]: [usize; 2],
) -> (Right<A::Compute>, usize, bool) {
    let [_, width] = gemm::register_block(L::AVX512, size_of::<A::Compute>());
    let columns = extent(b, 1).clamp(0, C as i64) as usize;
    // SAFETY: packed tiles have room for all panels; rows that are used in place have all columns inside the operand.
    unsafe {
        let slot = slot::<U, K, C>(b, PackForm::Panels);
        let direct = U::dtype() == A::Compute::DTYPE && !b.2 && b.0.strides[1] == 1;
        let step = b.0.strides[0] as isize;
        // The rows of one group are read only once.
        let fits = || rows <= 8 || gemm::fits(depth, step.unsigned_abs() * size_of::<A::Compute>());
        if slot.is_none() && direct && fits() {
            let ptr = source(b, 1).ptr.cast();
            return (Right { ptr, step, panel: width as isize, in_place: true }, columns, true);
        }
        let bytes = pack::tile_bytes(PackForm::Panels, L::AVX512, false, C, K, A::Compute::DTYPE);
        let ptr = tile(
            b,
            slot,
            Side::Right,
            bytes,
            [C, width],
            #[inline(always)]
            |from, across, to| {
                let to = to.cast::<A::Compute>().wrapping_add(from * K);
                pack::panels::<L, U, false>(source(b, 1).after(from), [across, K], to.cast());
            },
        );
        let (ptr, panel) = (ptr.cast(), (width * K) as isize);
        (Right { ptr, step: width as isize, panel, in_place: false }, columns, slot.is_some())
    }
}
