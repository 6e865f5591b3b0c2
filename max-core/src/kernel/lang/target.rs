//! [`Target`]: what a kernel's one body is generic over.
//!
//! The types that a kernel's author sees ([`Val`], [`In`](super::In), [`Tile`](super::Tile), …) are thin wrappers of a
//! target's associated types; each of their methods is one call of a method here. A target gives that call its
//! meaning: [`Cpu`](super::Cpu) computes, [`Reference`](super::Reference) computes slowly and checks,
//! [`Record`](super::Record) builds IR.

use std::mem::MaybeUninit;
use std::panic::Location;

use super::dot_scaled::{ScaledRow, multiply_in_full};
use super::lanes::columns::{ColumnLanes, EachColumn, OwnedColumns};
use super::lanes::segments::{Rounds, item};
use super::lanes::{Item, LaneItem, Lanes, Outs};
use super::tensors::{In, Unlocked};
use super::value::Val;
use super::value::prim::op;
use super::value::prim::op::{BinaryFn, CmpFn, UnaryFn};
use super::value::scalar::Any;
use crate::kernel::ir::{self, AtomicOp, ReduceOp};

/// A machine that a kernel's body is instantiated for. The value carries the program instance's ids and operands.
///
/// What a launch hands to a kernel is reached by the `unsafe` methods alone, and no target can be kept beyond the
/// launch: it is not known to be `'static`.
pub trait Target: Copy {
    /// Whether tile constants are numbers when a kernel is compiled. Else they are symbols, for which numbers stand when it runs or is
    /// recorded.
    const HAS_TILE_SIZES: bool = false;
    /// A scalar.
    type Val<T: Any>: Copy;
    /// A variable that holds a scalar.
    type Var<T: Any>;
    /// A read-only operand, or a part of one.
    type In<T: Any, const R: usize>: Copy;
    /// A writable operand, or a part of one.
    type Out<T: Any, const R: usize>: Copy;
    /// The position of a block of lanes.
    type At: Copy;
    /// `N` neighbouring elements.
    type Block<T: Any, const N: usize>: Copy;
    /// A tile of `R` rows and `C` columns.
    type Tile<T: Any, const R: usize, const C: usize>: Copy;
    /// A variable that holds a tile.
    type TileVar<T: Any, const R: usize, const C: usize>;

    /// A number that is to be printed.
    type Shown;

    // Scalars.

    /// An integer literal.
    fn int<T: Any>(v: i128) -> Self::Val<T>;
    /// A float literal.
    fn float<T: Any>(v: f64) -> Self::Val<T>;
    /// The smallest (`false`) or largest (`true`) finite value, as integers have them.
    fn limit<T: Any>(largest: bool) -> Self::Val<T>;
    /// The distance from 1 to the next larger value of a float dtype.
    fn epsilon<T: Any>() -> Self::Val<T>;
    /// The smallest positive normal value of a float dtype.
    fn min_positive<T: Any>() -> Self::Val<T>;
    /// Parameter `index`.
    ///
    /// # Safety
    /// The kernel that runs has one of that index, with bits of `T`.
    unsafe fn param<T: Any>(self, index: u32) -> Self::Val<T>;
    /// One operand.
    fn unary<T: Any, O: UnaryFn>(a: Self::Val<T>) -> Self::Val<T>;
    /// Two operands.
    fn binary<T: Any, O: BinaryFn>(a: Self::Val<T>, b: Self::Val<T>) -> Self::Val<T>;
    /// A comparison.
    fn cmp<T: Any, O: CmpFn>(a: Self::Val<T>, b: Self::Val<T>) -> Self::Val<bool>;
    /// `c ? a : b`
    fn select<T: Any>(c: Self::Val<bool>, a: Self::Val<T>, b: Self::Val<T>) -> Self::Val<T>;
    /// [`Exp2Approx`](ir::UnaryOp::Exp2Approx)
    #[inline(always)]
    #[track_caller]
    fn exp2_approx(a: Self::Val<f32>) -> Self::Val<f32> {
        super::math::exp2_approx::<Self>(Val(a)).0
    }
    /// `a * b + c`, rounded once where the machine can.
    fn fma<T: Any>(a: Self::Val<T>, b: Self::Val<T>, c: Self::Val<T>) -> Self::Val<T>;
    /// Converts, as Rust's `as`; to a small float: rounds.
    fn cast<T: Any, U: Any>(a: Self::Val<T>) -> Self::Val<U>;
    /// Reinterprets the bits.
    fn bitcast<T: Any, U: Any>(a: Self::Val<T>) -> Self::Val<U>;
    /// Whether `T` computes in `f64`: which of two polynomials a math function takes.
    fn wide<T: Any>() -> bool;
    /// The same value under another name of the same compute type (`wide` told which).
    fn rename<T: Any, U: Any>(a: Self::Val<T>) -> Self::Val<U>;

    // Variables and control flow.

    /// A new variable.
    fn var<T: Any>(v: Self::Val<T>) -> Self::Var<T>;
    /// Its value.
    fn get<T: Any>(v: &Self::Var<T>) -> Self::Val<T>;
    /// Assigns it.
    fn set<T: Any>(v: &Self::Var<T>, x: Self::Val<T>);
    /// Runs one of two blocks.
    fn if_<R: Item<Self>>(c: Self::Val<bool>, then: impl FnOnce() -> R, otherwise: impl FnOnce() -> R) -> R;
    /// Runs one of two blocks, as a bool parameter says: where that is known, the other one is no part of the IR.
    ///
    /// # Safety
    /// As for [`param`](Self::param).
    #[inline(always)]
    #[track_caller]
    unsafe fn if_param<R: Item<Self>>(self, index: u32, then: impl FnOnce() -> R, otherwise: impl FnOnce() -> R) -> R {
        // SAFETY: the caller's promise is the same.
        Self::if_(unsafe { self.param::<bool>(index) }, then, otherwise)
    }
    /// Repeats a block.
    fn while_(condition: impl Fn() -> Val<Self, bool>, body: impl Fn());
    /// Prints a line: the program's ids, the label, the numbers.
    fn print(self, label: &'static str, values: Vec<Self::Shown>, place: &'static Location<'static>);
    /// A number that is to be printed.
    fn show<T: Any>(v: Self::Val<T>) -> Self::Shown;
    /// Counts.
    fn for_range(lo: Self::Val<i64>, hi: Self::Val<i64>, step: Self::Val<i64>, body: impl Fn(Val<Self, i64>));

    // The program instance and its operands.

    /// Index of this instance along a grid axis.
    fn program_id(self, axis: u32) -> Self::Val<i64>;
    /// Number of instances along a grid axis.
    fn num_programs(self, axis: u32) -> Self::Val<i64>;
    /// A read-only operand.
    ///
    /// # Safety
    /// The kernel that runs has an operand of that index, dtype and rank.
    unsafe fn input<T: Any, const R: usize>(self, operand: u32) -> Self::In<T, R>;
    /// A writable operand.
    ///
    /// # Safety
    /// As for [`input`](Self::input), and it is one that the kernel writes.
    unsafe fn output<T: Any, const R: usize>(self, operand: u32) -> Self::Out<T, R>;
    /// Extent of a dimension.
    fn dim_in<T: Any, const R: usize>(x: Self::In<T, R>, axis: usize) -> Self::Val<i64>;
    /// Extent of a dimension.
    fn dim_out<T: Any, const R: usize>(x: Self::Out<T, R>, axis: usize) -> Self::Val<i64>;
    /// The part at index `i` of the first dimension; `S` is `R - 1`.
    fn select_in<T: Any, const R: usize, const S: usize>(x: Self::In<T, R>, i: Self::Val<i64>) -> Self::In<T, S>;
    /// The part at index `i` of the first dimension; `S` is `R - 1`.
    fn select_out<T: Any, const R: usize, const S: usize>(x: Self::Out<T, R>, i: Self::Val<i64>) -> Self::Out<T, S>;
    /// Column `j`.
    fn column_in<T: Any>(x: Self::In<T, 2>, j: Self::Val<i64>) -> Self::In<T, 1>;
    /// Column `j`.
    fn column_out<T: Any>(x: Self::Out<T, 2>, j: Self::Val<i64>) -> Self::Out<T, 1>;
    /// `n` elements from `lo`.
    fn slice_in<T: Any>(x: Self::In<T, 1>, lo: Self::Val<i64>, n: Self::Val<i64>) -> Self::In<T, 1>;
    /// `n` elements from `lo`, within the bounds.
    fn slice_out<T: Any>(x: Self::Out<T, 1>, lo: Self::Val<i64>, n: Self::Val<i64>) -> Self::Out<T, 1>;
    /// The elements from the last to the first.
    fn reverse_in<T: Any>(x: Self::In<T, 1>) -> Self::In<T, 1>;
    /// The elements from the last to the first.
    fn reverse_out<T: Any>(x: Self::Out<T, 1>) -> Self::Out<T, 1>;
    /// The same operand with another value outside the bounds.
    fn pad<T: Any, const R: usize>(x: Self::In<T, R>, v: Self::Val<T>) -> Self::In<T, R>;
    /// One element, or the pad value.
    fn load<T: Any, const R: usize>(x: Self::In<T, R>, index: [Self::Val<i64>; R]) -> Self::Val<T>;
    /// Writes one element that no other instance writes.
    fn store<T: Any, const R: usize>(x: Self::Out<T, R>, index: [Self::Val<i64>; R], v: Self::Val<T>);
    /// Writes one element that others may write too.
    fn scatter<T: Any, const R: usize>(x: Self::Out<T, R>, index: [Self::Val<i64>; R], v: Self::Val<T>);
    /// Read-modify-write of one element.
    fn atomic<T: Any, const R: usize>(op: AtomicOp, x: Self::Out<T, R>, index: [Self::Val<i64>; R], v: Self::Val<T>);
    /// A part of an operand that is read and written, for reading.
    fn read<T: Any>(x: Self::Out<T, 1>) -> Self::In<T, 1>;

    // Lanes.

    /// Whether the elements `lo..hi` can be read in whole blocks.
    fn plain_in<T: Any>(_x: Self::In<T, 1>, _lo: i64, _hi: i64) -> bool {
        true
    }
    /// Whether the elements `lo..hi` can be written in whole blocks.
    fn plain_out<T: Any>(_x: Self::Out<T, 1>, _lo: i64, _hi: i64) -> bool {
        true
    }
    /// Loads a block.
    fn block<T: Any, const N: usize>(x: Self::In<T, 1>, at: Self::At) -> Self::Block<T, N>;
    /// An element that [`plain_in`](Self::plain_in) has said can be read.
    #[track_caller]
    fn known_element<T: Any>(x: Self::In<T, 1>, i: Self::Val<i64>) -> Self::Val<T> {
        Self::load(x, [i])
    }
    /// Loads a block of a vector whose elements are each repeated `times` times, which is at least 1.
    fn repeated<T: Any, const N: usize>(x: Self::In<T, 1>, times: Self::Val<i64>, at: Self::At) -> Self::Block<T, N> {
        let mut block = Self::blank::<T, N>();
        let mut j = 0;
        while j < N {
            let part = Self::binary::<i64, op::Div>(Self::index_lane(at, j), times);
            Self::set_lane(&mut block, j, Self::load(x, [part]));
            j += 1;
        }
        block
    }
    /// An element of a block.
    fn block_lane<T: Any, const N: usize>(b: &Self::Block<T, N>, j: usize) -> Self::Val<T>;
    /// A block to be filled.
    fn blank<T: Any, const N: usize>() -> Self::Block<T, N>;
    /// Fills an element of a block.
    fn set_lane<T: Any, const N: usize>(b: &mut Self::Block<T, N>, j: usize, v: Self::Val<T>);
    /// Writes a block.
    fn store_block<T: Any, const N: usize>(x: Self::Out<T, 1>, at: Self::At, b: &Self::Block<T, N>);
    /// Whether the lanes from one to another can be read that are of segments of so many elements, which begin `from` and are repeated
    /// as the levels say.
    fn plain_segments<T: Any>(
        _x: Self::In<T, 1>,
        _from: Self::Val<i64>,
        _levels: &[Rounds<Self>],
        _size: usize,
        _lanes: [i64; 2],
    ) -> bool {
        true
    }
    /// The number whose bytes begin at element `i`.
    #[track_caller]
    fn number<U: Any>(x: Self::In<u8, 1>, i: Self::Val<i64>) -> Self::Val<U> {
        super::lanes::segments::number_of_bytes::<Self, U>(x, Val(i))
    }
    /// The same, of bytes that are known to be inside and side by side.
    #[track_caller]
    fn known_number<U: Any>(x: Self::In<u8, 1>, i: Self::Val<i64>) -> Self::Val<U> {
        Self::number::<U>(x, i)
    }
    /// Loads a block of numbers whose bytes begin where `start` says. Of lanes that are no whole block, `plain` says whether they can be
    /// read.
    #[track_caller]
    fn numbers<U: Any, const N: usize>(
        x: Self::In<u8, 1>,
        start: impl Fn(Val<Self, i64>) -> Val<Self, i64>,
        at: Self::At,
        _plain: impl FnOnce([i64; 2]) -> bool,
    ) -> Self::Block<U, N> {
        let mut block = Self::blank::<U, N>();
        let mut j = 0;
        while j < N {
            let place = start(Val(Self::index_lane(at, j)));
            Self::set_lane(&mut block, j, Self::number::<U>(x, place.0));
            j += 1;
        }
        block
    }
    /// The position of one lane.
    fn at_index(i: Self::Val<i64>) -> Self::At;
    /// Loads a block of lanes that are read in segments of `S` elements.
    #[track_caller]
    fn segments<T: Any, const S: usize, const N: usize>(
        x: Self::In<T, 1>,
        start: impl Fn(Val<Self, i64>) -> Val<Self, i64>,
        at: Self::At,
    ) -> Self::Block<T, N> {
        let size = super::tile_const::<Self>(S);
        let mut block = Self::blank::<T, N>();
        let mut j = 0;
        while j < N {
            let i = Val(Self::index_lane(at, j));
            let s = i / size;
            Self::set_lane(&mut block, j, Self::load(x, [(start(s) + (i - s * size)).0]));
            j += 1;
        }
        block
    }
    /// Loads a block of words of four bytes that are read in segments of `S` words, whose places are nested repetitions.
    #[track_caller]
    fn words<const S: usize, const N: usize>(
        x: Self::In<u8, 1>,
        start: impl Fn(Val<Self, i64>) -> Val<Self, i64>,
        _levels: &[Rounds<Self>],
        at: Self::At,
    ) -> Self::Block<i32, N> {
        let (size, bytes) = (super::tile_const::<Self>(S), super::tile_const::<Self>(4));
        let mut block = Self::blank::<i32, N>();
        let mut j = 0;
        while j < N {
            let i = Val(Self::index_lane(at, j));
            let s = i / size;
            let place = start(s) + (i - s * size) * bytes;
            Self::set_lane(&mut block, j, Self::number::<i32>(x, place.0));
            j += 1;
        }
        block
    }
    /// The sums of the products of four bytes, for each pair of words: [`Dot4`](ir::BinaryOp::Dot4).
    #[track_caller]
    fn dot4<const N: usize>(a: &Self::Block<i32, N>, b: &Self::Block<i32, N>) -> Self::Block<i32, N> {
        let mut sums = Self::blank::<i32, N>();
        let mut j = 0;
        while j < N {
            let (a, b) = (Self::block_lane::<i32, N>(a, j), Self::block_lane::<i32, N>(b, j));
            Self::set_lane(&mut sums, j, Self::binary::<i32, op::Dot4>(a, b));
            j += 1;
        }
        sums
    }
    /// A block of lanes of which `S` have each item.
    #[track_caller]
    fn repeat_each<L: Lanes<Self, Item: LaneItem<Self>>, const S: usize, const N: usize>(
        lanes: L,
        at: Self::At,
    ) -> <L::Item as LaneItem<Self>>::Array<N> {
        let size = super::tile_const::<Self>(S);
        let mut items = item(lanes, Val(Self::index_lane(at, 0)) / size).splat::<N>();
        let mut j = 1;
        while j < N {
            L::Item::set_lane(&mut items, j, item(lanes, Val(Self::index_lane(at, j)) / size));
            j += 1;
        }
        items
    }
    /// A block of the bytes of integers.
    #[track_caller]
    fn bytes<L: Lanes<Self, Item = Val<Self, U>>, U: Any, const N: usize>(
        lanes: L,
        at: Self::At,
    ) -> Self::Block<u8, N> {
        let [size, bits] = [size_of::<U::Mem>(), 8].map(super::tile_const::<Self>);
        let mut block = Self::blank::<u8, N>();
        let mut j = 0;
        while j < N {
            let i = Val(Self::index_lane(at, j));
            let place = i / size;
            let shift = Self::cast::<i64, U>(((i - place * size) * bits).0);
            let byte = Self::binary::<U, op::Shr>(item(lanes, place).0, shift);
            Self::set_lane(&mut block, j, Self::cast::<U, u8>(byte));
            j += 1;
        }
        block
    }
    /// The index of an element of the block at `at`.
    fn index_lane(at: Self::At, j: usize) -> Self::Val<i64>;
    /// Calls `f` for each lane.
    fn for_each<L: Lanes<Self>>(lanes: L, f: impl Fn(L::Item));
    /// Reduces; `init` is the identity of `combine`.
    fn fold<L: Lanes<Self>, A: LaneItem<Self>>(
        lanes: L,
        init: A,
        f: impl Fn(A, L::Item) -> A,
        combine: impl Fn(A, A) -> A,
    ) -> A;
    /// Whether so many rows of the columns `lo..hi`, counted from `from`, can be read in whole blocks.
    fn plain_columns<T: Any>(_x: Self::In<T, 2>, _from: Self::Val<i64>, _rows: i64, _lo: i64, _hi: i64) -> bool {
        true
    }
    /// The items of lanes.
    #[inline(always)]
    #[track_caller]
    fn items<L: Lanes<Self, Item: LaneItem<Self>>, const N: usize>(
        lanes: L,
        at: Self::At,
    ) -> <L::Item as LaneItem<Self>>::Array<N> {
        let block = lanes.block::<N>(at);
        let mut items = lanes.lane::<N>(&block, 0).splat::<N>();
        let mut j = 1;
        while j < N {
            L::Item::set_lane(&mut items, j, lanes.lane::<N>(&block, j));
            j += 1;
        }
        items
    }
    /// Whether there are so many rows that columns are better taken many together.
    fn wide_columns<C: ColumnLanes<Self>>(_columns: C) -> bool {
        false
    }
    /// Loads the columns of a row that are `first` and more right of `place`, its row and the column of the block at
    /// `at`.
    fn column_block<T: Any, const N: usize>(
        x: Self::In<T, 2>,
        place: [Self::Val<i64>; 2],
        _first: usize,
        _at: Self::At,
    ) -> Self::Block<T, N> {
        let mut block = Self::blank::<T, N>();
        Self::set_lane(&mut block, 0, Self::load(x, place));
        block
    }
    /// Reduces the columns of a block; `f` is given an item and its row.
    fn fold_columns<C: ColumnLanes<Self>, A: LaneItem<Self>, const N: usize>(
        columns: C,
        at: Self::At,
        init: A,
        f: impl Fn(A, (C::Item, Val<Self, i64>)) -> A,
        _combine: impl Fn(A, A) -> A,
    ) -> A::Array<N> {
        let fixed = columns.fixed::<1>(at);
        let acc = init.vars();
        let body = |k: Val<Self, i64>| {
            let block = columns.block::<1, 1>(&fixed, at, 0, k);
            let v = f(A::get(&acc), (columns.lane::<1, 1>(&fixed, &block, 0, 0), k));
            A::set(&acc, v);
        };
        Self::for_range(Self::int::<i64>(0), columns.rows().0, Self::int::<i64>(1), body);
        A::get(&acc).splat()
    }
    /// Reduces the columns of a block, and once more, knowing what came out.
    fn fold_columns_twice<
        C: ColumnLanes<Self>,
        A: LaneItem<Self>,
        B: LaneItem<Self>,
        S: LaneItem<Self>,
        const N: usize,
    >(
        columns: C,
        at: Self::At,
        (init, f): (A, impl Fn(A, (C::Item, Val<Self, i64>)) -> A),
        finish: impl Fn(A) -> B,
        (second, again): (S, impl Fn(S, (C::Item, Val<Self, i64>), B) -> S),
        _combine: impl Fn((B, S), (B, S)) -> (B, S),
    ) -> <(B, S) as LaneItem<Self>>::Array<N> {
        let first = Self::fold_columns::<C, A, 1>(columns, at, init, f, |a, _| a);
        let first = finish(A::lane(&first, 0));
        let second = Self::fold_columns::<C, S, 1>(columns, at, second, |acc, item| again(acc, item, first), |a, _| a);
        (first, S::lane(&second, 0)).splat()
    }
    /// Writes columns.
    fn write_columns<T: Any, C: ColumnLanes<Self, Item = Val<Self, T>>>(
        out: Unlocked<OwnedColumns<Self, T>>,
        columns: C,
    ) {
        let out = out.0;
        let run = |at: Self::At| {
            let column = Self::binary::<i64, op::Add>(out.from.0, Self::index_lane(at, 0));
            let fixed = columns.fixed::<1>(at);
            let body = |k: Val<Self, i64>| {
                let block = columns.block::<1, 1>(&fixed, at, 0, k);
                let v = columns.lane::<1, 1>(&fixed, &block, 0, 0);
                Self::store(out.out, [out.row(k).0, column], v.0);
            };
            Self::for_range(Self::int::<i64>(0), Self::dim_out(out.out, 0), Self::int::<i64>(1), body);
        };
        Self::for_each(EachColumn { len: out.len, run }, |()| ());
    }
    /// Writes the prefix combinations of each column; without the row itself if `exclusive`.
    fn scan_columns<T: Any, C: ColumnLanes<Self, Item = Val<Self, T>>>(
        out: Unlocked<OwnedColumns<Self, T>>,
        columns: C,
        init: Val<Self, T>,
        exclusive: bool,
        combine: impl Fn(Val<Self, T>, Val<Self, T>) -> Val<Self, T>,
    ) {
        let (out, combine) = (out.0, &combine);
        let run = |at: Self::At| {
            let column = Self::binary::<i64, op::Add>(out.from.0, Self::index_lane(at, 0));
            let fixed = columns.fixed::<1>(at);
            let acc = Self::var::<T>(init.0);
            let body = |k: Val<Self, i64>| {
                let block = columns.block::<1, 1>(&fixed, at, 0, k);
                let before = Val(Self::get::<T>(&acc));
                let after = combine(before, columns.lane::<1, 1>(&fixed, &block, 0, 0));
                Self::store(out.out, [out.row(k).0, column], if exclusive { before.0 } else { after.0 });
                Self::set::<T>(&acc, after.0);
            };
            Self::for_range(Self::int::<i64>(0), Self::dim_out(out.out, 0), Self::int::<i64>(1), body);
        };
        Self::for_each(EachColumn { len: out.len, run }, |()| ());
    }
    /// Reduces the parts of `S` elements that the lanes of a block stand for.
    fn fold_chunks<T: Any, A: LaneItem<Self>, const S: usize, const N: usize>(
        x: In<Self, T, 1>,
        at: Self::At,
        init: A,
        f: impl Fn(A, Val<Self, T>) -> A,
        _combine: impl Fn(A, A) -> A,
    ) -> A::Array<N> {
        let size = super::tile_const::<Self>(S);
        let first = Val(Self::index_lane(at, 0)) * size;
        let acc = init.vars();
        let body = |k: Val<Self, i64>| {
            let v = f(A::get(&acc), x.at(k));
            A::set(&acc, v);
        };
        let last = (first + size).min(x.len());
        Self::for_range(first.0, last.0, Self::int::<i64>(1), body);
        A::get(&acc).splat()
    }
    /// What [`Lanes::behind`] says of a row.
    #[inline(always)]
    fn behind<T: Any>(_row: Self::In<T, 1>) -> usize {
        0
    }
    /// What [`Lanes::start`] says of a row.
    #[inline(always)]
    fn start<T: Any>(_row: Self::In<T, 1>) -> *const u8 {
        std::ptr::null()
    }
    /// The same items, materialized where memory serves better than computing them again; 0 past the length.
    fn materialize<T: Any, L: Lanes<Self, Item = Val<Self, T>>>(lanes: L) -> impl Lanes<Self, Item = Val<Self, T>>;
    /// Writes all of `out`; beyond its own length, `lanes` gives the pad value.
    fn write<T: Any, L: Lanes<Self, Item = Val<Self, T>>>(out: Self::Out<T, 1>, lanes: L);
    /// Writes the inclusive prefix combination of `lanes`.
    fn scan<T: Any, L: Lanes<Self, Item = Val<Self, T>>>(
        out: Self::Out<T, 1>,
        lanes: L,
        init: Val<Self, T>,
        combine: impl Fn(Val<Self, T>, Val<Self, T>) -> Val<Self, T>,
    );
    /// The element of an operand of an elementwise kernel.
    ///
    /// # Safety
    /// The kernel that runs is elementwise, and has an operand of that index and dtype.
    unsafe fn element_in<T: Any>(self, operand: u32) -> Self::In<T, 1>;
    /// The element of a result of an elementwise kernel.
    ///
    /// # Safety
    /// As for [`element_in`](Self::element_in), and it is one that the kernel writes.
    unsafe fn element_out<T: Any>(self, operand: u32) -> Self::Out<T, 1>;
    /// Runs an elementwise kernel.
    fn elementwise<O: Outs<Self>, L: Lanes<Self, Item = O::Items>>(self, outs: O, lanes: L);

    // Tiles.

    /// Every element `v`.
    fn tile_full<T: Any, const R: usize, const C: usize>(v: Self::Val<T>) -> Self::Tile<T, R, C>;
    /// Reads a tile; `transpose`: of shape `C x R` there.
    fn tile_load<T: Any, const R: usize, const C: usize>(
        x: Self::In<T, 2>,
        origin: [Self::Val<i64>; 2],
        transpose: bool,
    ) -> Self::Tile<T, R, C>;
    /// Writes a tile.
    fn tile_store<T: Any, const R: usize, const C: usize>(
        x: Self::Out<T, 2>,
        origin: [Self::Val<i64>; 2],
        v: Self::Tile<T, R, C>,
    );
    /// Writes the tile that a variable holds.
    #[track_caller]
    fn tile_store_var<T: Any, const R: usize, const C: usize>(
        x: Self::Out<T, 2>,
        origin: [Self::Val<i64>; 2],
        v: &Self::TileVar<T, R, C>,
    ) {
        Self::tile_store(x, origin, Self::tile_get(v));
    }
    /// A tile whose rows are made of lanes.
    #[track_caller]
    fn tile_rows<T: Any, L: Lanes<Self, Item = Val<Self, T>>, const R: usize, const C: usize>(
        row: impl Fn(Val<Self, i64>) -> L,
    ) -> Self::Tile<T, R, C> {
        Self::tile_map::<T, T, R, C>(Self::tile_full(Self::int::<T>(0)), |i, j, _| item(row(i), j))
    }
    /// Applies `f` to `(row, column, element)`.
    fn tile_map<T: Any, U: Any, const R: usize, const C: usize>(
        a: Self::Tile<T, R, C>,
        f: impl Fn(Val<Self, i64>, Val<Self, i64>, Val<Self, T>) -> Val<Self, U>,
    ) -> Self::Tile<U, R, C>;
    /// Applies `f` to the elements of two tiles; a dimension of `b` that is 1 is broadcast.
    fn tile_zip<T: Any, U: Any, V: Any, const R: usize, const C: usize, const P: usize, const Q: usize>(
        a: Self::Tile<T, R, C>,
        b: Self::Tile<U, P, Q>,
        f: impl Fn(Val<Self, T>, Val<Self, U>) -> Val<Self, V>,
    ) -> Self::Tile<V, R, C>;
    /// [`tile_map`](Self::tile_map) of what a variable holds, in place.
    #[track_caller]
    fn tile_map_assign<T: Any, const R: usize, const C: usize>(
        v: &Self::TileVar<T, R, C>,
        f: impl Fn(Val<Self, i64>, Val<Self, i64>, Val<Self, T>) -> Val<Self, T>,
    ) {
        Self::tile_set(v, Self::tile_map(Self::tile_get(v), f));
    }
    /// [`tile_zip`](Self::tile_zip) of what a variable holds, in place.
    #[track_caller]
    fn tile_zip_assign<T: Any, U: Any, const R: usize, const C: usize, const P: usize, const Q: usize>(
        v: &Self::TileVar<T, R, C>,
        b: Self::Tile<U, P, Q>,
        f: impl Fn(Val<Self, T>, Val<Self, U>) -> Val<Self, T>,
    ) {
        Self::tile_set(v, Self::tile_zip(Self::tile_get(v), b, f));
    }
    /// [`tile_reduce`](Self::tile_reduce) of what a variable holds.
    #[track_caller]
    fn tile_reduce_var<T: Any, const R: usize, const C: usize>(
        op: ReduceOp,
        v: &Self::TileVar<T, R, C>,
    ) -> Self::Tile<T, R, 1> {
        Self::tile_reduce(op, Self::tile_get(v))
    }
    /// Reduces each row.
    fn tile_reduce<T: Any, const R: usize, const C: usize>(op: ReduceOp, a: Self::Tile<T, R, C>)
    -> Self::Tile<T, R, 1>;
    /// One element; 0 outside of the tile.
    fn tile_element<T: Any, const R: usize, const C: usize>(
        a: Self::Tile<T, R, C>,
        index: [Self::Val<i64>; 2],
    ) -> Self::Val<T>;
    /// Converts each element.
    fn tile_cast<T: Any, U: Any, const R: usize, const C: usize>(a: Self::Tile<T, R, C>) -> Self::Tile<U, R, C>;
    /// `a · b + acc`, with operands in memory.
    fn dot_views<T: Any, U: Any, A: Any, const R: usize, const K: usize, const C: usize>(
        a: (Self::In<T, 2>, [Self::Val<i64>; 2], bool),
        b: (Self::In<U, 2>, [Self::Val<i64>; 2], bool),
        acc: Self::Tile<A, R, C>,
    ) -> Self::Tile<A, R, C>;
    /// `a · b + acc`, with the left operand a tile and the right one in memory.
    fn dot_tile_view<T: Any, U: Any, A: Any, const R: usize, const K: usize, const C: usize>(
        a: Self::Tile<T, R, K>,
        b: (Self::In<U, 2>, [Self::Val<i64>; 2], bool),
        acc: Self::Tile<A, R, C>,
    ) -> Self::Tile<A, R, C>;
    /// `a · b + acc`, with both operands tiles.
    fn dot_tiles<T: Any, U: Any, A: Any, const R: usize, const K: usize, const C: usize>(
        a: Self::Tile<T, R, K>,
        b: Self::Tile<U, K, C>,
        acc: Self::Tile<A, R, C>,
    ) -> Self::Tile<A, R, C>;
    /// `acc += a · b`, with both operands tiles.
    #[track_caller]
    fn dot_tiles_assign<T: Any, U: Any, A: Any, const R: usize, const K: usize, const C: usize>(
        a: &Self::Tile<T, R, K>,
        b: &Self::Tile<U, K, C>,
        acc: &Self::TileVar<A, R, C>,
    ) {
        let value = Self::tile_get(acc);
        Self::tile_set(acc, Self::dot_tiles::<T, U, A, R, K, C>(*a, *b, value));
    }
    /// `acc += a · b`, with operands in memory.
    #[track_caller]
    fn dot_views_assign<T: Any, U: Any, A: Any, const R: usize, const K: usize, const C: usize>(
        a: (Self::In<T, 2>, [Self::Val<i64>; 2], bool),
        b: (Self::In<U, 2>, [Self::Val<i64>; 2], bool),
        acc: &Self::TileVar<A, R, C>,
    ) {
        let value = Self::tile_get(acc);
        Self::tile_set(acc, Self::dot_views::<T, U, A, R, K, C>(a, b, value));
    }
    /// `acc += a · b`, with the left operand a tile and the right one in memory.
    #[track_caller]
    fn dot_tile_view_assign<T: Any, U: Any, A: Any, const R: usize, const K: usize, const C: usize>(
        a: &Self::Tile<T, R, K>,
        b: (Self::In<U, 2>, [Self::Val<i64>; 2], bool),
        acc: &Self::TileVar<A, R, C>,
    ) {
        let value = Self::tile_get(acc);
        Self::tile_set(acc, Self::dot_tile_view::<T, U, A, R, K, C>(*a, b, value));
    }
    /// `acc += a · b`, with the left operand a variable and the right one in memory.
    #[track_caller]
    fn dot_var_view_assign<T: Any, U: Any, A: Any, const R: usize, const K: usize, const C: usize>(
        a: &Self::TileVar<T, R, K>,
        b: (Self::In<U, 2>, [Self::Val<i64>; 2], bool),
        acc: &Self::TileVar<A, R, C>,
    ) {
        Self::dot_tile_view_assign::<T, U, A, R, K, C>(&Self::tile_get(a), b, acc);
    }
    /// `acc += a · b` of scaled integers, of which `row` gives the left rows.
    #[track_caller]
    fn dot_scaled<
        W: ScaledRow<Self>,
        const R: usize,
        const K: usize,
        const G: usize,
        const H: usize,
        const C: usize,
    >(
        row: impl Fn(Val<Self, i64>) -> W,
        b: (Self::In<u8, 2>, [Self::Val<i64>; 2], bool),
        scale: (Self::In<f32, 2>, [Self::Val<i64>; 2], bool),
        acc: &Self::TileVar<f32, R, C>,
    ) {
        multiply_in_full::<Self, W, R, K, G, H, C>(row, b, scale, acc);
    }
    /// The bytes of tiles that were recorded so far, and how many are said to be from now on.
    fn tile_bytes(_now: Option<u64>) -> u64 {
        0
    }
    /// A new variable of zeros, at a place.
    #[track_caller]
    fn tile_zeros<T: Any, const R: usize, const C: usize>(place: &mut MaybeUninit<Self::TileVar<T, R, C>>) {
        place.write(Self::tile_var(Self::tile_full(Self::int::<T>(0))));
    }
    /// A new variable.
    fn tile_var<T: Any, const R: usize, const C: usize>(v: Self::Tile<T, R, C>) -> Self::TileVar<T, R, C>;
    /// Its value.
    fn tile_get<T: Any, const R: usize, const C: usize>(v: &Self::TileVar<T, R, C>) -> Self::Tile<T, R, C>;
    /// Assigns it.
    fn tile_set<T: Any, const R: usize, const C: usize>(v: &Self::TileVar<T, R, C>, x: Self::Tile<T, R, C>);

    // What recording needs of a region's results; other targets never call these.

    /// Appends the IR value behind `v`.
    fn push_value<T: Any>(v: Self::Val<T>, out: &mut Vec<ir::Value>);
    /// A scalar that a region defines.
    fn fresh<T: Any>() -> Self::Val<T>;
    /// Appends the IR value behind a tile.
    fn push_tile<T: Any, const R: usize, const C: usize>(v: Self::Tile<T, R, C>, out: &mut Vec<ir::Value>);
    /// A tile that a region defines.
    fn fresh_tile<T: Any, const R: usize, const C: usize>() -> Self::Tile<T, R, C>;
}
