//! Lane code: what runs once for each index of a row, in parallel. [`Lanes`] is a sequence that can be read at any index: a row of an
//! operand, the indices themselves, several of these side by side, or one of these with a function applied. Nothing is computed until a
//! sequence is reduced, written, scanned or visited. Beside this file are columns, segments, repetition and reductions.

pub(super) mod columns;
pub(super) mod reductions;
pub(super) mod remainder;
pub(super) mod repeat;
pub(super) mod segments;
pub(super) mod two_level_scales;

use std::marker::PhantomData;

use self::reductions::Fold;
use self::remainder::Remainder;
use self::segments::{Bytes, RepeatEach, item};
use self::two_level_scales::{IntegerScale, Levels, TwoLevel};
use super::target::Target;
use super::tensors::In;
use super::value::Val;
use super::value::prim::op;
use super::value::scalar::{Any, Int, Number};
use super::value::sealed::Sealed;
use crate::dtype::DType;
use crate::kernel::ir;

/// What lane code and regions hand over: a [`Val`], a tile, or a tuple of these.
pub trait Item<M: Target>: Copy {
    /// Appends the IR values.
    #[doc(hidden)]
    fn values(self, out: &mut Vec<ir::Value>);
    /// New values of the same types, defined by a region.
    #[doc(hidden)]
    fn fresh() -> Self;
    /// `c ? a : b`
    #[doc(hidden)]
    fn select(c: Val<M, bool>, a: Self, b: Self) -> Self;
}

impl<M: Target, T: Any> Item<M> for Val<M, T> {
    #[inline(always)]
    fn values(self, out: &mut Vec<ir::Value>) {
        M::push_value(self.0, out);
    }
    #[inline(always)]
    fn fresh() -> Self {
        Val(M::fresh::<T>())
    }
    #[inline(always)]
    #[track_caller]
    fn select(c: Val<M, bool>, a: Self, b: Self) -> Self {
        Val(M::select::<T>(c.0, a.0, b.0))
    }
}

/// An [`Item`] that lane code can accumulate: a [`Val`], or a tuple of these.
pub trait LaneItem<M: Target>: Item<M> {
    /// `N` of them, one array a component.
    #[doc(hidden)]
    type Array<const N: usize>: Copy;
    /// One variable a component.
    #[doc(hidden)]
    type Vars;

    /// New variables.
    #[doc(hidden)]
    fn vars(self) -> Self::Vars;
    /// Their values.
    #[doc(hidden)]
    fn get(vars: &Self::Vars) -> Self;
    /// Assigns them.
    #[doc(hidden)]
    fn set(vars: &Self::Vars, v: Self);
    /// `N` times the same.
    #[doc(hidden)]
    fn splat<const N: usize>(self) -> Self::Array<N>;
    /// Element `j`.
    #[doc(hidden)]
    fn lane<const N: usize>(a: &Self::Array<N>, j: usize) -> Self;
    /// Assigns element `j`.
    #[doc(hidden)]
    fn set_lane<const N: usize>(a: &mut Self::Array<N>, j: usize, v: Self);
}

impl<M: Target, T: Any> LaneItem<M> for Val<M, T> {
    type Array<const N: usize> = M::Block<T, N>;
    type Vars = M::Var<T>;
    #[inline(always)]
    #[track_caller]
    fn vars(self) -> M::Var<T> {
        M::var::<T>(self.0)
    }
    #[inline(always)]
    #[track_caller]
    fn get(vars: &M::Var<T>) -> Self {
        Val(M::get::<T>(vars))
    }
    #[inline(always)]
    #[track_caller]
    fn set(vars: &M::Var<T>, v: Self) {
        M::set::<T>(vars, v.0);
    }
    #[inline(always)]
    fn splat<const N: usize>(self) -> M::Block<T, N> {
        let mut block = M::blank::<T, N>();
        let mut j = 0;
        while j < N {
            M::set_lane(&mut block, j, self.0);
            j += 1;
        }
        block
    }
    #[inline(always)]
    fn lane<const N: usize>(a: &M::Block<T, N>, j: usize) -> Self {
        Val(M::block_lane(a, j))
    }
    #[inline(always)]
    fn set_lane<const N: usize>(a: &mut M::Block<T, N>, j: usize, v: Self) {
        M::set_lane(a, j, v.0);
    }
}

/// A sequence that lane code reads.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a row of lanes",
    note = "a row comes from `x.row(i)`, `x.select(i)`, a rank-1 operand, `lanes(n)`, or `.map(..)` and `.zip(..)` of these"
)]
// Emptiness is a number in a kernel as well: `x.len() == 0`.
#[allow(clippy::len_without_is_empty)]
pub trait Lanes<M: Target>: Copy + Sealed {
    /// What lane code sees at each index.
    type Item: Item<M>;
    /// What is loaded for `N` neighbouring indices.
    #[doc(hidden)]
    type Block<const N: usize>: Copy;
    /// Whether any number of neighbours can be computed together.
    #[doc(hidden)]
    const STRIPS: bool = false;
    /// How a loop over blocks does the lanes that are no whole block.
    #[doc(hidden)]
    const REMAINDER: Remainder = Remainder::Masked;
    /// Whether a block can be loaded as its transpose of fours: see [`At`](Target::At) of CPUs.
    #[doc(hidden)]
    const TRANSPOSES: bool = false;
    /// Whether many neighbours cost less together than in blocks.
    #[doc(hidden)]
    #[inline(always)]
    fn wide(self) -> bool {
        false
    }
    /// The bytes of an element in memory; 0 for what is not read from there.
    #[doc(hidden)]
    const BYTES: usize = 0;

    /// The number of lanes.
    fn len(self) -> Val<M, i64>;
    /// Whether the lanes `lo..hi` can be read in whole blocks.
    #[doc(hidden)]
    fn plain(self, lo: i64, hi: i64) -> bool;
    /// Loads a block.
    #[doc(hidden)]
    fn block<const N: usize>(self, at: M::At) -> Self::Block<N>;
    /// The item at an index, alone, where [`plain`](Lanes::plain) has said that it can be read.
    #[doc(hidden)]
    #[inline(always)]
    #[track_caller]
    fn known(self, i: Val<M, i64>) -> Self::Item {
        item(self, i)
    }
    /// The item at one index of a block.
    #[doc(hidden)]
    fn lane<const N: usize>(&self, b: &Self::Block<N>, j: usize) -> Self::Item;
    /// The address behind the row in memory, where the next program's begins if rows lie one after the other; 0 where
    /// there is no such row.
    #[doc(hidden)]
    #[inline(always)]
    fn behind(self) -> usize {
        0
    }
    /// Whether the lanes are elements of memory as they are there, so that writing them moves bytes.
    #[doc(hidden)]
    const MOVED: bool = false;
    /// Where the first of those elements is, if they lie one after the other; null else.
    #[doc(hidden)]
    #[inline(always)]
    fn start(self) -> *const u8 {
        std::ptr::null()
    }
    /// How many neighbours share a factor, of integers times factors; 0 of other lanes.
    #[doc(hidden)]
    const FACTOR_LANES: usize = 0;
    /// The integers at `at` and the factors at `factor`, of such lanes.
    #[doc(hidden)]
    #[inline(always)]
    fn levels<const N: usize>(self, _at: M::At, _factor: M::At) -> Levels<M, N> {
        Levels::zeros()
    }

    /// Applies `f` to each item.
    #[inline(always)]
    fn map<U: Item<M>, F: Fn(Self::Item) -> U + Copy>(self, f: F) -> Map<Self, F> {
        Map { lanes: self, f }
    }

    /// Reads this and another sequence side by side, as pairs. The length is this one's; past its own length, the
    /// other gives its pad value.
    #[inline(always)]
    fn zip<L: Lanes<M>>(self, other: L) -> Zip<Self, L> {
        Zip(self, other)
    }

    /// Each item for `S` neighbouring lanes, computed once for them: what a block of a quantized weight has in common.
    #[inline(always)]
    fn repeat_each<const S: usize>(self) -> RepeatEach<Self, S>
    where
        Self::Item: LaneItem<M>,
    {
        RepeatEach(self)
    }

    /// Small integers times factors that each `S` neighbours share: scales of two levels, such as six bits behind the factor of a
    /// super-block. Pairs of integers are scales and minima: `(scale, minimum)` times `(a, b)` is `(scale * a, -(minimum * b))`. As scales
    /// of a [`ScaledTile`](super::ScaledTile), integers are multiplied as such where that is faster.
    #[inline(always)]
    fn two_level<F: Lanes<M>, const S: usize>(self, factors: RepeatEach<F, S>) -> TwoLevel<Self, F, S>
    where
        Self::Item: IntegerScale<M, F::Item>,
    {
        TwoLevel { integers: self, factors }
    }

    /// The bytes of integers, the lowest of each first: fields of bits that were moved to bytes in all of a word at once.
    #[inline(always)]
    fn bytes<U: Int>(self) -> Bytes<Self, U>
    where
        Self: Lanes<M, Item = Val<M, U>>,
    {
        Bytes { lanes: self, dtype: PhantomData }
    }

    /// Pairs of item and index.
    #[inline(always)]
    fn enumerate(self) -> Zip<Self, Indices<M>> {
        Zip(self, Indices { len: self.len() })
    }

    /// Calls `f` for each item, for the sake of its atomics and scatters.
    #[inline(always)]
    #[track_caller]
    fn for_each(self, f: impl Fn(Self::Item)) {
        M::for_each(self, f)
    }

    /// Reduces from `init` by `f`, in an unspecified but fixed order: several partial results each start at `init`,
    /// which must be the identity. Finish with [`Fold::reduce`], or `sum`, `max`, `min`, `prod`.
    #[inline(always)]
    fn fold<F: Fn(Self::Item, Self::Item) -> Self::Item + Copy>(
        self,
        init: Self::Item,
        f: F,
    ) -> Fold<Self, F, Self::Item> {
        Fold { lanes: self, init, f }
    }

    /// As [`fold`](Lanes::fold), with an accumulator of another type than the items.
    #[inline(always)]
    fn fold_with<A: LaneItem<M>, F: Fn(A, Self::Item) -> A + Copy>(self, init: A, f: F) -> Fold<Self, F, A> {
        Fold { lanes: self, init, f }
    }
}

/// Sequences of scalars.
pub trait ScalarLanes<M: Target, T: Any>: Lanes<M, Item = Val<M, T>> {
    /// The same items, materialized: computed once for all who read them. A CPU puts them into a row cache, unrounded.
    /// For items that cost much, such as exponentials, and are read more than once. Past the length they are 0. Where a
    /// CPU has no memory for them, the launch is an error.
    #[inline(always)]
    #[track_caller]
    fn materialize(self) -> impl Lanes<M, Item = Val<M, T>> {
        M::materialize(self)
    }
}

impl<M: Target, T: Any, L: Lanes<M, Item = Val<M, T>>> ScalarLanes<M, T> for L {}

/// Reductions of a sequence of numbers.
pub trait NumberLanes<M: Target, T: Number>: Lanes<M, Item = Val<M, T>> {
    /// The sum; 0 of nothing. Half types add in `f32`, integers wrap.
    #[inline(always)]
    #[track_caller]
    fn sum(self) -> Val<M, T> {
        M::fold(
            self,
            Val::zero(),
            #[inline(always)]
            |a, v| a + v,
            #[inline(always)]
            |a, b| a + b,
        )
    }

    /// The sum divided by the length; NaN of nothing. Integers add in 64 bits, and the mean is rounded toward zero; 0 of nothing.
    #[inline(always)]
    #[track_caller]
    fn mean(self) -> Val<M, T> {
        let n = self.len();
        if T::dtype().is_float() {
            return self.sum() / n.convert::<T>();
        }
        if T::dtype() == DType::U64 {
            let wide = self.map(
                #[inline(always)]
                |v| v.cast::<u64>(),
            );
            return (wide.sum() / n.cast()).cast();
        }
        let wide = self.map(
            #[inline(always)]
            |v| v.cast::<i64>(),
        );
        (wide.sum() / n).cast()
    }

    /// The product; 1 of nothing.
    #[inline(always)]
    #[track_caller]
    fn prod(self) -> Val<M, T> {
        M::fold(
            self,
            Val::one(),
            #[inline(always)]
            |a, v| a * v,
            #[inline(always)]
            |a, b| a * b,
        )
    }

    /// The largest; NaN if any is NaN; the smallest value of the dtype (negative infinity) of nothing.
    #[inline(always)]
    #[track_caller]
    fn max(self) -> Val<M, T> {
        M::fold(
            self,
            Val::lowest(),
            #[inline(always)]
            |a: Val<M, T>, v| a.max(v),
            #[inline(always)]
            |a, b| a.max(b),
        )
    }

    /// The smallest; NaN if any is NaN; the largest value of the dtype (infinity) of nothing.
    #[inline(always)]
    #[track_caller]
    fn min(self) -> Val<M, T> {
        M::fold(
            self,
            Val::highest(),
            #[inline(always)]
            |a: Val<M, T>, v| a.min(v),
            #[inline(always)]
            |a, b| a.min(b),
        )
    }
}

impl<M: Target, T: Number, L: Lanes<M, Item = Val<M, T>>> NumberLanes<M, T> for L {}

/// Reductions of a sequence of truth values.
pub trait BoolLanes<M: Target>: Lanes<M, Item = Val<M, bool>> {
    /// Whether any is true.
    #[inline(always)]
    #[track_caller]
    fn any(self) -> Val<M, bool> {
        M::fold(
            self,
            Val(M::int::<bool>(0)),
            #[inline(always)]
            |a, v| a | v,
            #[inline(always)]
            |a, b| a | b,
        )
    }

    /// Whether all are true.
    #[inline(always)]
    #[track_caller]
    fn all(self) -> Val<M, bool> {
        M::fold(
            self,
            Val(M::int::<bool>(1)),
            #[inline(always)]
            |a, v| a & v,
            #[inline(always)]
            |a, b| a & b,
        )
    }
}

impl<M: Target, L: Lanes<M, Item = Val<M, bool>>> BoolLanes<M> for L {}

impl<M: Target, T: Any> Lanes<M> for In<M, T, 1> {
    type Item = Val<M, T>;
    type Block<const N: usize> = M::Block<T, N>;
    const BYTES: usize = size_of::<T::Mem>();
    #[inline(always)]
    #[track_caller]
    fn len(self) -> Val<M, i64> {
        Val(M::dim_in(self.0, 0))
    }
    #[inline(always)]
    fn plain(self, lo: i64, hi: i64) -> bool {
        M::plain_in(self.0, lo, hi)
    }
    #[inline(always)]
    #[track_caller]
    fn block<const N: usize>(self, at: M::At) -> M::Block<T, N> {
        M::block(self.0, at)
    }
    #[inline(always)]
    #[track_caller]
    fn known(self, i: Val<M, i64>) -> Val<M, T> {
        Val(M::known_element(self.0, i.0))
    }
    #[inline(always)]
    fn lane<const N: usize>(&self, b: &M::Block<T, N>, j: usize) -> Val<M, T> {
        Val(M::block_lane(b, j))
    }
    #[inline(always)]
    fn behind(self) -> usize {
        M::behind(self.0)
    }
    const MOVED: bool = true;
    #[inline(always)]
    fn start(self) -> *const u8 {
        M::start(self.0)
    }
}

/// The indices `0..len`; made by `lanes(len)`.
pub struct Indices<M: Target> {
    pub(crate) len: Val<M, i64>,
}

impl<M: Target> Clone for Indices<M> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}
impl<M: Target> Copy for Indices<M> {}

impl<M: Target> Lanes<M> for Indices<M> {
    type Item = Val<M, i64>;
    type Block<const N: usize> = M::At;
    #[inline(always)]
    fn len(self) -> Val<M, i64> {
        self.len
    }
    #[inline(always)]
    fn plain(self, _: i64, _: i64) -> bool {
        true
    }
    #[inline(always)]
    fn block<const N: usize>(self, at: M::At) -> M::At {
        at
    }
    #[inline(always)]
    fn lane<const N: usize>(&self, at: &M::At, j: usize) -> Val<M, i64> {
        Val(M::index_lane(*at, j))
    }
}

/// A sequence with a function applied; made by [`Lanes::map`].
#[derive(Clone, Copy)]
pub struct Map<L, F> {
    lanes: L,
    f: F,
}

impl<L, F> Map<L, F> {
    /// Applies `f` to each item of `lanes`.
    #[inline(always)]
    pub fn new<M: Target, U: Item<M>>(lanes: L, f: F) -> Self
    where
        L: Lanes<M>,
        F: Fn(L::Item) -> U + Copy,
    {
        Map { lanes, f }
    }
}

impl<M: Target, L: Lanes<M>, U: Item<M>, F: Fn(L::Item) -> U + Copy> Lanes<M> for Map<L, F> {
    type Item = U;
    type Block<const N: usize> = L::Block<N>;
    const BYTES: usize = L::BYTES;
    const STRIPS: bool = L::STRIPS;
    const REMAINDER: Remainder = L::REMAINDER;
    const TRANSPOSES: bool = L::TRANSPOSES;
    #[inline(always)]
    fn wide(self) -> bool {
        self.lanes.wide()
    }
    #[inline(always)]
    fn len(self) -> Val<M, i64> {
        self.lanes.len()
    }
    #[inline(always)]
    fn plain(self, lo: i64, hi: i64) -> bool {
        self.lanes.plain(lo, hi)
    }
    #[inline(always)]
    #[track_caller]
    fn block<const N: usize>(self, at: M::At) -> L::Block<N> {
        self.lanes.block(at)
    }
    #[inline(always)]
    fn known(self, i: Val<M, i64>) -> U {
        (self.f)(self.lanes.known(i))
    }
    #[inline(always)]
    fn lane<const N: usize>(&self, b: &L::Block<N>, j: usize) -> U {
        (self.f)(self.lanes.lane(b, j))
    }
    #[inline(always)]
    fn behind(self) -> usize {
        self.lanes.behind()
    }
}

/// A sequence that is computed anew for each reader, and is 0 past its end: what [`ScalarLanes::materialize`] is to a
/// target without a cache of its own.
#[derive(Clone, Copy)]
pub(crate) struct Recomputed<M: Target, L> {
    pub(crate) lanes: L,
    pub(crate) len: Val<M, i64>,
}

impl<M: Target, T: Any, L: Lanes<M, Item = Val<M, T>>> Lanes<M> for Recomputed<M, L> {
    type Item = Val<M, T>;
    type Block<const N: usize> = (M::At, L::Block<N>);
    fn len(self) -> Val<M, i64> {
        self.len
    }
    fn plain(self, lo: i64, hi: i64) -> bool {
        self.lanes.plain(lo, hi)
    }
    #[track_caller]
    fn block<const N: usize>(self, at: M::At) -> Self::Block<N> {
        (at, self.lanes.block(at))
    }
    #[track_caller]
    fn lane<const N: usize>(&self, b: &Self::Block<N>, j: usize) -> Val<M, T> {
        let inside = M::cmp::<i64, op::Lt>(M::index_lane(b.0, j), self.len.0);
        Val(M::select::<T>(inside, self.lanes.lane(&b.1, j).0, M::int::<T>(0)))
    }
}

/// Two sequences side by side; made by [`Lanes::zip`].
#[derive(Clone, Copy)]
pub struct Zip<A, B>(A, B);

impl<M: Target, A: Lanes<M>, B: Lanes<M>> Lanes<M> for Zip<A, B> {
    type Item = (A::Item, B::Item);
    type Block<const N: usize> = (A::Block<N>, B::Block<N>);
    const BYTES: usize = A::BYTES;
    const REMAINDER: Remainder = A::REMAINDER.and(B::REMAINDER);
    const TRANSPOSES: bool = A::TRANSPOSES && B::TRANSPOSES;
    #[inline(always)]
    fn len(self) -> Val<M, i64> {
        self.0.len()
    }
    #[inline(always)]
    fn plain(self, lo: i64, hi: i64) -> bool {
        self.0.plain(lo, hi) && self.1.plain(lo, hi)
    }
    #[inline(always)]
    #[track_caller]
    fn block<const N: usize>(self, at: M::At) -> Self::Block<N> {
        (self.0.block(at), self.1.block(at))
    }
    #[inline(always)]
    fn known(self, i: Val<M, i64>) -> Self::Item {
        (self.0.known(i), self.1.known(i))
    }
    #[inline(always)]
    fn lane<const N: usize>(&self, b: &Self::Block<N>, j: usize) -> Self::Item {
        (self.0.lane(&b.0, j), self.1.lane(&b.1, j))
    }
    #[inline(always)]
    fn behind(self) -> usize {
        self.0.behind()
    }
}

/// The results of an elementwise kernel: a tuple of operands to write.
pub trait Outs<M: Target>: Copy + Sealed {
    /// The values to write to them.
    type Items: Item<M>;
    /// `N` neighbouring elements of each.
    #[doc(hidden)]
    type Blocks<const N: usize>;

    /// Whether the elements `lo..hi` of all can be written in whole blocks.
    #[doc(hidden)]
    fn plain(self, lo: i64, hi: i64) -> bool;
    /// Blocks to be filled.
    #[doc(hidden)]
    fn blank<const N: usize>() -> Self::Blocks<N>;
    /// Fills lane `j`.
    #[doc(hidden)]
    fn set_lane<const N: usize>(blocks: &mut Self::Blocks<N>, j: usize, items: Self::Items);
    /// Writes the blocks.
    #[doc(hidden)]
    fn store<const N: usize>(self, at: M::At, blocks: &Self::Blocks<N>);
}

/// One result of an elementwise kernel.
pub struct ElementOut<M: Target, T: Any>(pub(crate) M::Out<T, 1>);

impl<M: Target, T: Any> Clone for ElementOut<M, T> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}
impl<M: Target, T: Any> Copy for ElementOut<M, T> {}

impl<M: Target, T: Any> ElementOut<M, T> {
    /// The operand of index `operand`.
    ///
    /// # Safety
    /// As for [`Target::element_out`].
    #[inline(always)]
    pub(crate) unsafe fn new(m: M, operand: u32) -> Self {
        // SAFETY: the caller's promise is the same.
        ElementOut(unsafe { m.element_out(operand) })
    }
}

// The empty tuple is one of them.
macro_rules! tuples {
    ($($($l:ident $t:ident $i:tt),*;)*) => { $(
        #[allow(clippy::unused_unit)]
        impl<M: Target, $($l: Item<M>),*> Item<M> for ($($l,)*) {
            #[inline(always)]
            fn values(self, _out: &mut Vec<ir::Value>) {
                $(self.$i.values(_out);)*
            }
            #[inline(always)]
            fn fresh() -> Self {
                ($($l::fresh(),)*)
            }
            #[inline(always)]
            #[track_caller]
            fn select(_c: Val<M, bool>, _a: Self, _b: Self) -> Self {
                ($($l::select(_c, _a.$i, _b.$i),)*)
            }
        }
        #[allow(clippy::unused_unit)]
        impl<M: Target, $($l: LaneItem<M>),*> LaneItem<M> for ($($l,)*) {
            type Array<const N: usize> = ($($l::Array<N>,)*);
            type Vars = ($($l::Vars,)*);
            #[inline(always)]
            #[track_caller]
            fn vars(self) -> Self::Vars {
                ($(self.$i.vars(),)*)
            }
            #[inline(always)]
            #[track_caller]
            fn get(_vars: &Self::Vars) -> Self {
                ($($l::get(&_vars.$i),)*)
            }
            #[inline(always)]
            #[track_caller]
            fn set(_vars: &Self::Vars, _v: Self) {
                $($l::set(&_vars.$i, _v.$i);)*
            }
            #[inline(always)]
            fn splat<const N: usize>(self) -> Self::Array<N> {
                ($(self.$i.splat::<N>(),)*)
            }
            #[inline(always)]
            fn lane<const N: usize>(_a: &Self::Array<N>, _j: usize) -> Self {
                ($($l::lane::<N>(&_a.$i, _j),)*)
            }
            #[inline(always)]
            fn set_lane<const N: usize>(_a: &mut Self::Array<N>, _j: usize, _v: Self) {
                $($l::set_lane::<N>(&mut _a.$i, _j, _v.$i);)*
            }
        }
        #[allow(clippy::unused_unit)]
        impl<M: Target, $($t: Any),*> Outs<M> for ($(ElementOut<M, $t>,)*) {
            type Items = ($(Val<M, $t>,)*);
            type Blocks<const N: usize> = ($(M::Block<$t, N>,)*);
            #[inline(always)]
            fn plain(self, _lo: i64, _hi: i64) -> bool {
                true $(&& M::plain_out::<$t>(self.$i.0, _lo, _hi))*
            }
            #[inline(always)]
            fn blank<const N: usize>() -> Self::Blocks<N> {
                ($(M::blank::<$t, N>(),)*)
            }
            #[inline(always)]
            fn set_lane<const N: usize>(_blocks: &mut Self::Blocks<N>, _j: usize, _items: Self::Items) {
                $(M::set_lane::<$t, N>(&mut _blocks.$i, _j, _items.$i.0);)*
            }
            #[inline(always)]
            fn store<const N: usize>(self, _at: M::At, _blocks: &Self::Blocks<N>) {
                $(M::store_block::<$t, N>(self.$i.0, _at, &_blocks.$i);)*
            }
        }
    )* };
}
tuples! {
    ;
    A T 0;
    A T 0, B U 1;
    A T 0, B U 1, C V 2;
    A T 0, B U 1, C V 2, D W 3;
    A T 0, B U 1, C V 2, D W 3, E X 4;
    A T 0, B U 1, C V 2, D W 3, E X 4, F Y 5;
    A T 0, B U 1, C V 2, D W 3, E X 4, F Y 5, G Z 6;
    A T 0, B U 1, C V 2, D W 3, E X 4, F Y 5, G Z 6, H S 7;
}

macro_rules! tuple_lanes {
    ($($first:ident 0 $(, $l:ident $i:tt)*;)*) => { $(
        impl<M: Target, $first: Lanes<M> $(, $l: Lanes<M>)*> Lanes<M> for ($first, $($l,)*) {
            type Item = ($first::Item, $($l::Item,)*);
            type Block<const N: usize> = ($first::Block<N>, $($l::Block<N>,)*);
            const REMAINDER: Remainder = $first::REMAINDER$(.and($l::REMAINDER))*;
            #[inline(always)]
            fn len(self) -> Val<M, i64> {
                self.0.len()
            }
            #[inline(always)]
            fn plain(self, lo: i64, hi: i64) -> bool {
                self.0.plain(lo, hi) $(&& self.$i.plain(lo, hi))*
            }
            #[inline(always)]
            #[track_caller]
            fn block<const N: usize>(self, at: M::At) -> Self::Block<N> {
                (self.0.block(at), $(self.$i.block(at),)*)
            }
            #[inline(always)]
            fn lane<const N: usize>(&self, b: &Self::Block<N>, j: usize) -> Self::Item {
                (self.0.lane(&b.0, j), $(self.$i.lane(&b.$i, j),)*)
            }
        }
    )* };
}
tuple_lanes! {
    A 0;
    A 0, B 1;
    A 0, B 1, C 2;
    A 0, B 1, C 2, D 3;
    A 0, B 1, C 2, D 3, E 4;
    A 0, B 1, C 2, D 3, E 4, F 5;
    A 0, B 1, C 2, D 3, E 4, F 5, G 6;
    A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7;
}

impl<M: Target> Lanes<M> for () {
    type Item = ();
    type Block<const N: usize> = ();
    #[inline(always)]
    #[track_caller]
    fn len(self) -> Val<M, i64> {
        Val(M::int::<i64>(0))
    }
    #[inline(always)]
    fn plain(self, _: i64, _: i64) -> bool {
        true
    }
    #[inline(always)]
    fn block<const N: usize>(self, _: M::At) {}
    #[inline(always)]
    fn lane<const N: usize>(&self, _: &(), _: usize) {}
}
