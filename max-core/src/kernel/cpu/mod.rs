//! [`Cpu`]: the target that computes natively, at one instruction set level.
//!
//! A scalar is a Rust number, a tile an array, a row a pointer with its bounds. Lane code runs over blocks of [`BLOCK`]
//! lanes, and ends in steps of [`TAIL`] lanes with masked loads and stores. LLVM vectorizes it, because all of it is
//! inlined into an entry function that has the level's features.

mod across;
mod atomic;
mod columns;
mod gemm;
mod isa;
mod lanes;
mod launch;
#[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "only levels of x86-64 multiply what is packed"))]
mod pack;
mod rows;
mod scratch;
mod segments;
mod tensor;
mod tile;
pub(crate) mod transpose;

use std::cell::Cell;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::panic::Location;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

pub(in crate::kernel) use across::programs_together;
pub use across::{Across, run_rows};
use atomic::atomic;
pub(crate) use gemm::matrix_unit::amx::reads_in_place;
pub(crate) use gemm::microkernel::gemv::{multiplies as is_skinny, widens};
pub(crate) use gemm::microkernel::rhs_stays_in_cache;
pub(crate) use gemm::strategy::Dot;
use isa::{BLOCK, TAIL, load_part};
pub use isa::{Level, Portable, V2, V3, V4};
use lanes::outs_block;
pub use launch::{run_elements, run_programs};
pub(crate) use pack::operand_types::{LINE, has_matrix_unit};
pub(crate) use pack::{is_packed_in_pairs, tile_bytes};
pub(in crate::kernel) use rows::split_reduction::{LONG_ROW, with_idle_threads};
use rows::split_reduction::{apart, splits};
use rows::{CachedRow, split_reduction};
pub(super) use scratch::{InLaunch, OwnedScratch, report_out_of_memory, take_out_of_memory};
pub use tensor::{At, CpuTensor};
use tensor::{gather, narrow, repeat_each, widen, widen_one};
pub use tile::{CpuTile, CpuTileVar};

use super::abi::LaunchArgs;
use super::ir::{self, AtomicOp, ReduceOp};
use super::lang::op::{BinaryFn, CmpFn, UnaryFn};
use super::lang::{
    Any, ColumnLanes, In, Item, LaneItem, Lanes, Outs, OwnedColumns, Prim, Rounds, ScaledRow, Target, Unlocked, Val,
};
use crate::dtype::DType;
use crate::dtype::limits::{epsilon, limit_bits, min_positive};

/// One program instance, or one run of elements, on the CPU.
#[derive(Clone, Copy)]
pub struct Cpu<L> {
    args: *const LaunchArgs,
    /// The program's coordinates in the grid.
    pid: [i64; 3],
    /// Of an elementwise kernel: the elements to compute.
    run: (i64, i64),
    level: PhantomData<L>,
}

impl<L: Level> Target for Cpu<L> {
    const HAS_TILE_SIZES: bool = true;
    type Val<T: Any> = T::Compute;
    type Var<T: Any> = Cell<T::Compute>;
    type In<T: Any, const R: usize> = CpuTensor<T, R>;
    type Out<T: Any, const R: usize> = CpuTensor<T, R>;
    type At = At;
    type Block<T: Any, const N: usize> = [T::Compute; N];
    type Tile<T: Any, const R: usize, const C: usize> = CpuTile<T::Compute, R, C>;
    type TileVar<T: Any, const R: usize, const C: usize> = CpuTileVar<T::Compute, R, C>;
    type Shown = ();

    #[inline(always)]
    fn int<T: Any>(v: i128) -> T::Compute {
        T::Compute::from_i128(v)
    }
    #[inline(always)]
    fn float<T: Any>(v: f64) -> T::Compute {
        T::Compute::from_f64(v)
    }
    #[inline(always)]
    fn limit<T: Any>(largest: bool) -> T::Compute {
        T::Compute::of_bits(limit_bits(T::dtype(), largest))
    }
    #[inline(always)]
    fn epsilon<T: Any>() -> T::Compute {
        T::Compute::from_f64(epsilon(T::dtype()))
    }
    #[inline(always)]
    fn min_positive<T: Any>() -> T::Compute {
        T::Compute::from_f64(min_positive(T::dtype()))
    }
    #[inline(always)]
    unsafe fn param<T: Any>(self, index: u32) -> T::Compute {
        // SAFETY: whoever runs an instance vouches for its arguments.
        T::Compute::of_bits(unsafe { *(*self.args).params.add(index as usize) })
    }
    #[inline(always)]
    fn unary<T: Any, O: UnaryFn>(a: T::Compute) -> T::Compute {
        O::apply(a)
    }
    #[inline(always)]
    fn binary<T: Any, O: BinaryFn>(a: T::Compute, b: T::Compute) -> T::Compute {
        O::apply(a, b)
    }
    #[inline(always)]
    fn cmp<T: Any, O: CmpFn>(a: T::Compute, b: T::Compute) -> bool {
        O::apply(a, b)
    }
    #[inline(always)]
    fn select<T: Any>(c: bool, a: T::Compute, b: T::Compute) -> T::Compute {
        if c { a } else { b }
    }
    #[inline(always)]
    fn fma<T: Any>(a: T::Compute, b: T::Compute, c: T::Compute) -> T::Compute {
        if L::FMA { a.fma(b, c) } else { a.mul(b).add(c) }
    }
    #[inline(always)]
    fn cast<T: Any, U: Any>(a: T::Compute) -> U::Compute {
        let c = U::Compute::cast_from(a);
        // A small float is rounded to its dtype, unless it was one already.
        if U::dtype() != U::Compute::DTYPE && T::dtype() != U::dtype() { U::widen(U::narrow(c)) } else { c }
    }
    #[inline(always)]
    fn bitcast<T: Any, U: Any>(a: T::Compute) -> U::Compute {
        const { assert!(size_of::<T::Mem>() == size_of::<U::Mem>(), "the bits of another size") }
        let mem = T::narrow(a);
        // SAFETY: both are numbers of one size, for which all bits are values.
        let mem = unsafe { std::mem::transmute_copy::<T::Mem, U::Mem>(&mem) };
        widen_one::<L, U>(mem)
    }
    #[inline(always)]
    fn wide<T: Any>() -> bool {
        matches!(<T::Compute as Prim>::DTYPE, DType::F64)
    }
    #[inline(always)]
    fn rename<T: Any, U: Any>(a: T::Compute) -> U::Compute {
        U::Compute::of_bits(a.bits())
    }

    #[inline(always)]
    fn var<T: Any>(v: T::Compute) -> Cell<T::Compute> {
        Cell::new(v)
    }
    #[inline(always)]
    fn get<T: Any>(v: &Cell<T::Compute>) -> T::Compute {
        v.get()
    }
    #[inline(always)]
    fn set<T: Any>(v: &Cell<T::Compute>, x: T::Compute) {
        v.set(x);
    }
    #[inline(always)]
    fn if_<R: Item<Self>>(c: bool, then: impl FnOnce() -> R, otherwise: impl FnOnce() -> R) -> R {
        if c { then() } else { otherwise() }
    }
    #[inline(always)]
    fn while_(condition: impl Fn() -> Val<Self, bool>, body: impl Fn()) {
        while condition().0 {
            body();
        }
    }
    #[inline(always)]
    fn for_range(lo: i64, hi: i64, step: i64, body: impl Fn(Val<Self, i64>)) {
        let step = if step < 1 { 1 } else { step };
        let mut i = lo;
        while i < hi {
            body(Val(i));
            // Where the next index would be beyond all of them, the largest one is not below `hi` either.
            i = i.saturating_add(step);
        }
    }

    /// A kernel that prints has no compiled form; one that calls its function says nothing here.
    #[inline(always)]
    fn print(self, _: &'static str, _: Vec<()>, _: &'static Location<'static>) {}
    #[inline(always)]
    fn show<T: Any>(_: T::Compute) {}

    #[inline(always)]
    fn program_id(self, axis: u32) -> i64 {
        if axis < 3 { self.pid[axis as usize] } else { 0 }
    }
    #[inline(always)]
    fn num_programs(self, axis: u32) -> i64 {
        // SAFETY: whoever runs an instance vouches for its arguments.
        if axis < 3 { unsafe { (*self.args).grid[axis as usize] } } else { 1 }
    }
    #[inline(always)]
    unsafe fn input<T: Any, const R: usize>(self, operand: u32) -> CpuTensor<T, R> {
        // SAFETY: the caller's promise is the same.
        unsafe { self.tensor(operand) }
    }
    #[inline(always)]
    unsafe fn output<T: Any, const R: usize>(self, operand: u32) -> CpuTensor<T, R> {
        // SAFETY: the caller's promise is the same.
        unsafe { self.tensor(operand) }
    }
    #[inline(always)]
    fn dim_in<T: Any, const R: usize>(x: CpuTensor<T, R>, axis: usize) -> i64 {
        if axis < R { x.dims[axis] } else { 1 }
    }
    #[inline(always)]
    fn dim_out<T: Any, const R: usize>(x: CpuTensor<T, R>, axis: usize) -> i64 {
        if axis < R { x.dims[axis] } else { 1 }
    }
    #[inline(always)]
    fn select_in<T: Any, const R: usize, const S: usize>(x: CpuTensor<T, R>, i: i64) -> CpuTensor<T, S> {
        x.select(0, i)
    }
    #[inline(always)]
    fn select_out<T: Any, const R: usize, const S: usize>(x: CpuTensor<T, R>, i: i64) -> CpuTensor<T, S> {
        x.select(0, i)
    }
    #[inline(always)]
    fn column_in<T: Any>(x: CpuTensor<T, 2>, j: i64) -> CpuTensor<T, 1> {
        x.select(1, j)
    }
    #[inline(always)]
    fn column_out<T: Any>(x: CpuTensor<T, 2>, j: i64) -> CpuTensor<T, 1> {
        x.select(1, j)
    }
    #[inline(always)]
    fn slice_in<T: Any>(x: CpuTensor<T, 1>, lo: i64, n: i64) -> CpuTensor<T, 1> {
        x.slice(lo, n)
    }
    #[inline(always)]
    fn slice_out<T: Any>(x: CpuTensor<T, 1>, lo: i64, n: i64) -> CpuTensor<T, 1> {
        x.own_slice(lo, n)
    }
    #[inline(always)]
    fn reverse_in<T: Any>(x: CpuTensor<T, 1>) -> CpuTensor<T, 1> {
        x.reverse()
    }
    #[inline(always)]
    fn reverse_out<T: Any>(x: CpuTensor<T, 1>) -> CpuTensor<T, 1> {
        x.reverse()
    }
    #[inline(always)]
    fn pad<T: Any, const R: usize>(mut x: CpuTensor<T, R>, v: T::Compute) -> CpuTensor<T, R> {
        x.pad = v;
        x
    }
    #[inline(always)]
    fn load<T: Any, const R: usize>(x: CpuTensor<T, R>, index: [i64; R]) -> T::Compute {
        match x.element(index) {
            // SAFETY: the element is inside the operand.
            Some(p) => T::widen(unsafe { *p }),
            None => x.pad,
        }
    }
    #[inline(always)]
    fn store<T: Any, const R: usize>(x: CpuTensor<T, R>, index: [i64; R], v: T::Compute) {
        if let Some(p) = x.element(index) {
            // SAFETY: the element is inside the operand, in a part that this instance owns.
            unsafe { *p = T::narrow(v) };
        }
    }
    #[inline(always)]
    fn scatter<T: Any, const R: usize>(x: CpuTensor<T, R>, index: [i64; R], v: T::Compute) {
        if let Some(p) = x.element(index) {
            let m = T::narrow(v);
            // SAFETY: the element is inside the operand and aligned; other instances access it atomically as well.
            unsafe {
                match size_of::<T::Mem>() {
                    1 => AtomicU8::from_ptr(p.cast()).store(std::mem::transmute_copy(&m), Ordering::Relaxed),
                    2 => AtomicU16::from_ptr(p.cast()).store(std::mem::transmute_copy(&m), Ordering::Relaxed),
                    4 => AtomicU32::from_ptr(p.cast()).store(std::mem::transmute_copy(&m), Ordering::Relaxed),
                    _ => AtomicU64::from_ptr(p.cast()).store(std::mem::transmute_copy(&m), Ordering::Relaxed),
                }
            }
        }
    }
    #[inline(always)]
    fn atomic<T: Any, const R: usize>(op: AtomicOp, x: CpuTensor<T, R>, index: [i64; R], v: T::Compute) {
        if let Some(p) = x.element(index) {
            // SAFETY: as in `scatter`; `T` is a number of four or eight bytes.
            unsafe { atomic(op, T::dtype(), p.cast(), v.bits()) };
        }
    }
    #[inline(always)]
    fn read<T: Any>(x: CpuTensor<T, 1>) -> CpuTensor<T, 1> {
        x
    }

    #[inline(always)]
    fn plain_in<T: Any>(x: CpuTensor<T, 1>, lo: i64, hi: i64) -> bool {
        x.plain(lo, hi.wrapping_sub(lo))
    }
    #[inline(always)]
    fn plain_out<T: Any>(x: CpuTensor<T, 1>, lo: i64, hi: i64) -> bool {
        x.plain(lo, hi.wrapping_sub(lo)) && x.strides[0] == 1
    }
    #[inline(always)]
    fn block<T: Any, const N: usize>(x: CpuTensor<T, 1>, at: At) -> [T::Compute; N] {
        if at.is_plain::<N>() || x.plain(at.i, at.w as i64) {
            // SAFETY: the elements are inside, one after the other or all the same.
            unsafe {
                if x.strides[0] == 1 {
                    let p = x.ptr.wrapping_offset(at.i as isize);
                    let mem = if at.is_whole::<N>() {
                        p.cast::<[T::Mem; N]>().read_unaligned()
                    } else {
                        load_part::<L, T::Mem, N>(p, at.w)
                    };
                    widen::<L, T, N>(&mem)
                } else {
                    [T::widen(*x.ptr); N]
                }
            }
        } else {
            gather(x, at.i, at.w).0
        }
    }
    #[inline(always)]
    fn repeated<T: Any, const N: usize>(x: CpuTensor<T, 1>, times: i64, at: At) -> [T::Compute; N] {
        if times == 1 && x.plain(at.i, at.w as i64) {
            return Self::block(x, at);
        }
        let first = at.i.checked_div(times).unwrap_or(0);
        // Most blocks are of one element. `times` is at least 1, and so what is left of it is less.
        if at.w as i64 <= times - at.i.wrapping_sub(first.wrapping_mul(times)) {
            [Self::load(x, [first]); N]
        } else {
            repeat_each(x, times, at.i, at.w).0
        }
    }
    #[inline(always)]
    fn block_lane<T: Any, const N: usize>(b: &[T::Compute; N], j: usize) -> T::Compute {
        b[j]
    }
    #[inline(always)]
    fn blank<T: Any, const N: usize>() -> [T::Compute; N] {
        [T::Compute::default(); N]
    }
    #[inline(always)]
    fn set_lane<T: Any, const N: usize>(b: &mut [T::Compute; N], j: usize, v: T::Compute) {
        b[j] = v;
    }
    #[inline(always)]
    fn store_block<T: Any, const N: usize>(x: CpuTensor<T, 1>, at: At, b: &[T::Compute; N]) {
        Self::store_lanes(x, at, b);
    }
    #[inline(always)]
    fn plain_segments<T: Any>(
        x: CpuTensor<T, 1>,
        from: i64,
        levels: &[Rounds<Self>],
        size: usize,
        lanes: [i64; 2],
    ) -> bool {
        segments::are_plain(x, from, levels, size, lanes)
    }
    #[inline(always)]
    fn number<U: Any>(x: CpuTensor<u8, 1>, i: i64) -> U::Compute {
        segments::number::<L, U>(x, i)
    }
    #[inline(always)]
    fn known_number<U: Any>(x: CpuTensor<u8, 1>, i: i64) -> U::Compute {
        segments::known_number::<L, U>(x, i)
    }
    #[inline(always)]
    fn numbers<U: Any, const N: usize>(
        x: CpuTensor<u8, 1>,
        start: impl Fn(Val<Self, i64>) -> Val<Self, i64>,
        at: At,
        plain: impl FnOnce([i64; 2]) -> bool,
    ) -> [U::Compute; N] {
        segments::numbers::<L, U, N>(x, start, at, plain)
    }
    #[inline(always)]
    fn at_index(i: i64) -> At {
        At { plain: false, ..At::whole(i, 1) }
    }
    #[inline(always)]
    fn segments<T: Any, const S: usize, const N: usize>(
        x: CpuTensor<T, 1>,
        start: impl Fn(Val<Self, i64>) -> Val<Self, i64>,
        at: At,
    ) -> [T::Compute; N] {
        segments::load::<L, T, S, N>(x, start, at)
    }
    #[inline(always)]
    fn words<const S: usize, const N: usize>(
        x: CpuTensor<u8, 1>,
        start: impl Fn(Val<Self, i64>) -> Val<Self, i64>,
        levels: &[Rounds<Self>],
        at: At,
    ) -> [i32; N] {
        let twice = matches!(levels.last(), Some((Val(2), Val(0))));
        segments::words::<L, S, N>(x, start, twice, at)
    }
    #[inline(always)]
    fn dot4<const N: usize>(a: &[i32; N], b: &[i32; N]) -> [i32; N] {
        isa::dot4::<L, N>(a, b)
    }
    #[inline(always)]
    fn known_element<T: Any>(x: CpuTensor<T, 1>, i: i64) -> T::Compute {
        // SAFETY: the element is inside, and elements lie one after the other or are all the same.
        widen_one::<L, T>(unsafe { *x.ptr.wrapping_offset(i.wrapping_mul(x.strides[0]) as isize) })
    }
    #[inline(always)]
    fn repeat_each<A: Lanes<Self, Item: LaneItem<Self>>, const S: usize, const N: usize>(
        lanes: A,
        at: At,
    ) -> <A::Item as LaneItem<Self>>::Array<N> {
        segments::repeat::<L, A, S, N>(lanes, at)
    }
    #[inline(always)]
    fn bytes<A: Lanes<Self, Item = Val<Self, U>>, U: Any, const N: usize>(lanes: A, at: At) -> [u8; N] {
        segments::bytes::<L, A, U, N>(lanes, at)
    }
    #[inline(always)]
    fn index_lane(at: At, j: usize) -> i64 {
        at.i.wrapping_add(j as i64)
    }
    #[inline(always)]
    fn for_each<A: Lanes<Self>>(lanes: A, f: impl Fn(A::Item)) {
        lanes::for_each(lanes, f);
    }
    #[inline(always)]
    fn fold<A: Lanes<Self>, I: LaneItem<Self>>(
        lanes: A,
        init: I,
        f: impl Fn(I, A::Item) -> I,
        combine: impl Fn(I, I) -> I,
    ) -> I {
        let n = lanes.len().0;
        if const { splits::<L, A>() } && n >= LONG_ROW && lanes.plain(0, n) {
            return split_reduction::fold::<L, A, I>(apart(lanes), n, init, &f, &combine);
        }
        lanes::fold::<L, A, I>(lanes, [0, n], init, &f, &combine)
    }
    #[inline(always)]
    fn plain_columns<T: Any>(x: CpuTensor<T, 2>, from: i64, rows: i64, lo: i64, hi: i64) -> bool {
        rows <= x.dims[0] && x.select::<1>(0, 0).plain(from.wrapping_add(lo), hi.wrapping_sub(lo))
    }
    #[inline(always)]
    fn items<A: Lanes<Self, Item: LaneItem<Self>>, const N: usize>(
        lanes: A,
        at: At,
    ) -> <A::Item as LaneItem<Self>>::Array<N> {
        columns::items::<L, A, N>(lanes, at)
    }
    #[inline(always)]
    fn wide_columns<C: ColumnLanes<Self>>(columns: C) -> bool {
        columns.rows().0 >= columns::MANY_ROWS
    }
    #[inline(always)]
    fn column_block<T: Any, const N: usize>(
        x: CpuTensor<T, 2>,
        [row, column]: [i64; 2],
        first: usize,
        at: At,
    ) -> [T::Compute; N] {
        Self::block(x.select::<1>(0, row), at.moved::<N>(column.wrapping_add(first as i64)))
    }
    #[inline(always)]
    fn fold_columns<C: ColumnLanes<Self>, A: LaneItem<Self>, const N: usize>(
        columns: C,
        at: At,
        init: A,
        f: impl Fn(A, (C::Item, Val<Self, i64>)) -> A,
        combine: impl Fn(A, A) -> A,
    ) -> A::Array<N> {
        columns::fold::<L, C, A, N>(columns, at, init, f, combine)
    }
    #[inline(always)]
    fn fold_columns_twice<
        C: ColumnLanes<Self>,
        A: LaneItem<Self>,
        B: LaneItem<Self>,
        S: LaneItem<Self>,
        const N: usize,
    >(
        columns: C,
        at: At,
        first: (A, impl Fn(A, (C::Item, Val<Self, i64>)) -> A),
        finish: impl Fn(A) -> B,
        second: (S, impl Fn(S, (C::Item, Val<Self, i64>), B) -> S),
        combine: impl Fn((B, S), (B, S)) -> (B, S),
    ) -> <(B, S) as LaneItem<Self>>::Array<N> {
        columns::fold_twice::<L, C, A, B, S, N>(columns, at, first, finish, second, combine)
    }
    #[inline(always)]
    fn write_columns<T: Any, C: ColumnLanes<Self, Item = Val<Self, T>>>(
        out: Unlocked<OwnedColumns<Self, T>>,
        columns: C,
    ) {
        columns::write::<L, T, C>(out.0, columns);
    }
    #[inline(always)]
    fn scan_columns<T: Any, C: ColumnLanes<Self, Item = Val<Self, T>>>(
        out: Unlocked<OwnedColumns<Self, T>>,
        columns: C,
        init: Val<Self, T>,
        exclusive: bool,
        combine: impl Fn(Val<Self, T>, Val<Self, T>) -> Val<Self, T>,
    ) {
        columns::scan::<L, T, C>(out.0, columns, (init.0, exclusive), &combine);
    }
    #[inline(always)]
    fn fold_chunks<T: Any, A: LaneItem<Self>, const S: usize, const N: usize>(
        x: In<Self, T, 1>,
        at: At,
        init: A,
        f: impl Fn(A, Val<Self, T>) -> A,
        combine: impl Fn(A, A) -> A,
    ) -> A::Array<N> {
        let mut out = init.splat::<N>();
        let size = S as i64;
        let mut j = 0;
        // Both bounds, so that no check of the index remains.
        while j < N && j < at.w {
            let first = (at.i + j as i64) * size;
            let rest = x.0.dims[0] - first;
            let part = x.0.slice(first, if rest < size { rest } else { size });
            let folded = lanes::fold::<L, _, A>(In(part), [0, part.dims[0]], init, &f, &combine);
            A::set_lane(&mut out, j, folded);
            j += 1;
        }
        out
    }
    #[inline(always)]
    fn behind<T: Any>(row: CpuTensor<T, 1>) -> usize {
        if row.strides[0] == 1 { row.ptr.wrapping_offset(row.dims[0] as isize).addr() } else { 0 }
    }
    #[inline(always)]
    fn start<T: Any>(row: CpuTensor<T, 1>) -> *const u8 {
        if row.strides[0] == 1 { row.ptr.cast_const().cast() } else { std::ptr::null() }
    }
    #[inline(always)]
    fn materialize<T: Any, A: Lanes<Self, Item = Val<Self, T>>>(lanes: A) -> impl Lanes<Self, Item = Val<Self, T>> {
        let cached = CachedRow::<T>::new(lanes.len().0);
        cached.write::<L, A>(lanes);
        cached
    }
    #[inline(always)]
    fn write<T: Any, A: Lanes<Self, Item = Val<Self, T>>>(out: CpuTensor<T, 1>, lanes: A) {
        lanes::write(out, lanes);
    }
    #[inline(always)]
    fn scan<T: Any, A: Lanes<Self, Item = Val<Self, T>>>(
        out: CpuTensor<T, 1>,
        lanes: A,
        init: Val<Self, T>,
        combine: impl Fn(Val<Self, T>, Val<Self, T>) -> Val<Self, T>,
    ) {
        lanes::scan(out, lanes, init.0, &combine);
    }
    #[inline(always)]
    unsafe fn element_in<T: Any>(self, operand: u32) -> CpuTensor<T, 1> {
        // SAFETY: the caller's promise is the same.
        unsafe { self.tensor(operand) }
    }
    #[inline(always)]
    unsafe fn element_out<T: Any>(self, operand: u32) -> CpuTensor<T, 1> {
        // SAFETY: the caller's promise is the same.
        unsafe { self.tensor(operand) }
    }
    #[inline(always)]
    fn elementwise<O: Outs<Self>, A: Lanes<Self, Item = O::Items>>(self, outs: O, lanes: A) {
        // An end for each run costs little, and is to be little code.
        Self::blocks::<TAIL>(
            self.run.0,
            self.run.1,
            Self::whole(
                self.run.0,
                self.run.1,
                lanes.plain(self.run.0, self.run.1) && outs.plain(self.run.0, self.run.1),
            ),
            #[inline(always)]
            |at| outs_block::<L, O, A, BLOCK>(outs, lanes, at),
            #[inline(always)]
            |at| outs_block::<L, O, A, TAIL>(outs, lanes, at),
        );
    }

    #[inline(always)]
    fn tile_full<T: Any, const R: usize, const C: usize>(v: T::Compute) -> CpuTile<T::Compute, R, C> {
        CpuTile([[v; C]; R])
    }
    #[inline(always)]
    fn tile_load<T: Any, const R: usize, const C: usize>(
        x: CpuTensor<T, 2>,
        origin: [i64; 2],
        transpose: bool,
    ) -> CpuTile<T::Compute, R, C> {
        CpuTile(gemm::load_tile::<L, T, R, C>(&x, origin, transpose))
    }
    #[inline(always)]
    fn tile_rows<T: Any, A: Lanes<Self, Item = Val<Self, T>>, const R: usize, const C: usize>(
        row: impl Fn(Val<Self, i64>) -> A,
    ) -> CpuTile<T::Compute, R, C> {
        // SAFETY: rows are filled as a whole.
        CpuTile(unsafe {
            tile::from_rows(
                #[inline(always)]
                |i, to| tile::fill_row::<L, T, A, C>(to, row(Val(i as i64))),
            )
        })
    }
    #[inline(always)]
    fn tile_store<T: Any, const R: usize, const C: usize>(
        x: CpuTensor<T, 2>,
        origin: [i64; 2],
        v: CpuTile<T::Compute, R, C>,
    ) {
        gemm::store_tile::<L, T, R, C>(&x, origin, &v);
    }
    #[inline(always)]
    fn tile_store_var<T: Any, const R: usize, const C: usize>(
        x: CpuTensor<T, 2>,
        origin: [i64; 2],
        v: &CpuTileVar<T::Compute, R, C>,
    ) {
        gemm::store_var::<L, T, R, C>(x, origin, v);
    }
    #[inline(always)]
    fn tile_map<T: Any, U: Any, const R: usize, const C: usize>(
        a: CpuTile<T::Compute, R, C>,
        f: impl Fn(Val<Self, i64>, Val<Self, i64>, Val<Self, T>) -> Val<Self, U>,
    ) -> CpuTile<U::Compute, R, C> {
        let mut out = CpuTile([[U::Compute::default(); C]; R]);
        let mut i = 0;
        while i < R {
            let mut j = 0;
            while j < C {
                out[i][j] = f(Val(i as i64), Val(j as i64), Val(a[i][j])).0;
                j += 1;
            }
            i += 1;
        }
        out
    }
    #[inline(always)]
    fn tile_zip<T: Any, U: Any, V: Any, const R: usize, const C: usize, const P: usize, const Q: usize>(
        a: CpuTile<T::Compute, R, C>,
        b: CpuTile<U::Compute, P, Q>,
        f: impl Fn(Val<Self, T>, Val<Self, U>) -> Val<Self, V>,
    ) -> CpuTile<V::Compute, R, C> {
        tile::zip::<L, T, U, V, R, C, P, Q>(&a, &b, f)
    }
    #[inline(always)]
    fn tile_reduce<T: Any, const R: usize, const C: usize>(
        op: ReduceOp,
        a: CpuTile<T::Compute, R, C>,
    ) -> CpuTile<T::Compute, R, 1> {
        let mut out = CpuTile([[T::Compute::default(); 1]; R]);
        let mut i = 0;
        while i < R {
            out[i][0] = tile::reduce_row(op, &a[i]);
            i += 1;
        }
        out
    }
    #[inline(always)]
    fn tile_map_assign<T: Any, const R: usize, const C: usize>(
        v: &CpuTileVar<T::Compute, R, C>,
        f: impl Fn(Val<Self, i64>, Val<Self, i64>, Val<Self, T>) -> Val<Self, T>,
    ) {
        tile::map_assign::<L, T, R, C>(v, f);
    }
    #[inline(always)]
    fn tile_zip_assign<T: Any, U: Any, const R: usize, const C: usize, const P: usize, const Q: usize>(
        v: &CpuTileVar<T::Compute, R, C>,
        b: CpuTile<U::Compute, P, Q>,
        f: impl Fn(Val<Self, T>, Val<Self, U>) -> Val<Self, T>,
    ) {
        tile::zip_assign::<L, T, U, R, C, P, Q>(v, b, f);
    }
    #[inline(always)]
    fn tile_reduce_var<T: Any, const R: usize, const C: usize>(
        op: ReduceOp,
        v: &CpuTileVar<T::Compute, R, C>,
    ) -> CpuTile<T::Compute, R, 1> {
        tile::reduce_var::<L, T, R, C>(op, v)
    }
    #[inline(always)]
    fn tile_element<T: Any, const R: usize, const C: usize>(
        a: CpuTile<T::Compute, R, C>,
        [i, j]: [i64; 2],
    ) -> T::Compute {
        let row = a.get(usize::try_from(i).unwrap_or(R));
        row.and_then(|row| row.get(usize::try_from(j).unwrap_or(C))).copied().unwrap_or_default()
    }
    #[inline(always)]
    fn tile_cast<T: Any, U: Any, const R: usize, const C: usize>(
        a: CpuTile<T::Compute, R, C>,
    ) -> CpuTile<U::Compute, R, C> {
        Self::tile_map::<T, U, R, C>(
            a,
            #[inline(always)]
            |_, _, v| Val(Self::cast::<T, U>(v.0)),
        )
    }
    #[inline(always)]
    fn dot_views<T: Any, U: Any, A: Any, const R: usize, const K: usize, const C: usize>(
        a: (CpuTensor<T, 2>, [i64; 2], bool),
        b: (CpuTensor<U, 2>, [i64; 2], bool),
        acc: CpuTile<A::Compute, R, C>,
    ) -> CpuTile<A::Compute, R, C> {
        let acc = CpuTileVar::new(acc);
        gemm::views::<L, T, U, A, R, K, C>(a, b, &acc);
        acc.get::<L>()
    }
    #[inline(always)]
    fn dot_tile_view<T: Any, U: Any, A: Any, const R: usize, const K: usize, const C: usize>(
        a: CpuTile<T::Compute, R, K>,
        b: (CpuTensor<U, 2>, [i64; 2], bool),
        acc: CpuTile<A::Compute, R, C>,
    ) -> CpuTile<A::Compute, R, C> {
        let acc = CpuTileVar::new(acc);
        gemm::tile_view::<L, T, U, A, R, K, C>(&a, b, &acc);
        acc.get::<L>()
    }
    #[inline(always)]
    fn dot_tiles<T: Any, U: Any, A: Any, const R: usize, const K: usize, const C: usize>(
        a: CpuTile<T::Compute, R, K>,
        b: CpuTile<U::Compute, K, C>,
        acc: CpuTile<A::Compute, R, C>,
    ) -> CpuTile<A::Compute, R, C> {
        let acc = CpuTileVar::new(acc);
        gemm::tiles::<L, T, U, A, R, K, C>(&a, &b, &acc);
        acc.get::<L>()
    }
    #[inline(always)]
    fn dot_tiles_assign<T: Any, U: Any, A: Any, const R: usize, const K: usize, const C: usize>(
        a: &CpuTile<T::Compute, R, K>,
        b: &CpuTile<U::Compute, K, C>,
        acc: &CpuTileVar<A::Compute, R, C>,
    ) {
        gemm::tiles::<L, T, U, A, R, K, C>(a, b, acc);
    }
    #[inline(always)]
    fn dot_views_assign<T: Any, U: Any, A: Any, const R: usize, const K: usize, const C: usize>(
        a: (CpuTensor<T, 2>, [i64; 2], bool),
        b: (CpuTensor<U, 2>, [i64; 2], bool),
        acc: &CpuTileVar<A::Compute, R, C>,
    ) {
        gemm::views::<L, T, U, A, R, K, C>(a, b, acc);
    }
    #[inline(always)]
    fn dot_tile_view_assign<T: Any, U: Any, A: Any, const R: usize, const K: usize, const C: usize>(
        a: &CpuTile<T::Compute, R, K>,
        b: (CpuTensor<U, 2>, [i64; 2], bool),
        acc: &CpuTileVar<A::Compute, R, C>,
    ) {
        gemm::tile_view::<L, T, U, A, R, K, C>(a, b, acc);
    }
    #[inline(always)]
    fn dot_var_view_assign<T: Any, U: Any, A: Any, const R: usize, const K: usize, const C: usize>(
        a: &CpuTileVar<T::Compute, R, K>,
        b: (CpuTensor<U, 2>, [i64; 2], bool),
        acc: &CpuTileVar<A::Compute, R, C>,
    ) {
        if std::ptr::addr_eq(a, acc) {
            return gemm::tile_view::<L, T, U, A, R, K, C>(&a.get::<L>(), b, acc);
        }
        // SAFETY: the variables are not the same, and the left one is not used meanwhile.
        gemm::tile_view::<L, T, U, A, R, K, C>(unsafe { &*a.materialize::<L>() }, b, acc);
    }
    #[inline(always)]
    fn dot_scaled<
        W: ScaledRow<Self>,
        const R: usize,
        const K: usize,
        const G: usize,
        const H: usize,
        const C: usize,
    >(
        row: impl Fn(Val<Self, i64>) -> W,
        b: gemm::Operand<u8>,
        scale: gemm::Operand<f32>,
        acc: &CpuTileVar<f32, R, C>,
    ) {
        gemm::dot_scaled::multiply::<L, W, R, K, G, H, C>(row, b, scale, acc);
    }
    #[inline(always)]
    fn tile_zeros<T: Any, const R: usize, const C: usize>(place: &mut MaybeUninit<CpuTileVar<T::Compute, R, C>>) {
        CpuTileVar::zeros(place);
    }
    #[inline(always)]
    fn tile_var<T: Any, const R: usize, const C: usize>(v: CpuTile<T::Compute, R, C>) -> CpuTileVar<T::Compute, R, C> {
        CpuTileVar::new(v)
    }
    #[inline(always)]
    fn tile_get<T: Any, const R: usize, const C: usize>(v: &CpuTileVar<T::Compute, R, C>) -> CpuTile<T::Compute, R, C> {
        v.get::<L>()
    }
    #[inline(always)]
    fn tile_set<T: Any, const R: usize, const C: usize>(
        v: &CpuTileVar<T::Compute, R, C>,
        x: CpuTile<T::Compute, R, C>,
    ) {
        v.set(x);
    }

    #[inline(always)]
    fn push_value<T: Any>(_: T::Compute, _: &mut Vec<ir::Value>) {}
    #[inline(always)]
    fn fresh<T: Any>() -> T::Compute {
        T::Compute::default()
    }
    #[inline(always)]
    fn push_tile<T: Any, const R: usize, const C: usize>(_: CpuTile<T::Compute, R, C>, _: &mut Vec<ir::Value>) {}
    #[inline(always)]
    fn fresh_tile<T: Any, const R: usize, const C: usize>() -> CpuTile<T::Compute, R, C> {
        CpuTile([[T::Compute::default(); C]; R])
    }
}
