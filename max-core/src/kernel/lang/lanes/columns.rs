//! Columns: what a matrix whose columns lie side by side is read, reduced and written with, whole rows at a time.

use std::marker::PhantomData;

use super::remainder::Remainder;
use super::{Item, LaneItem, Lanes};
use crate::kernel::lang::target::Target;
use crate::kernel::lang::tensors::{In, Index, Out, Own, Unlocked};
use crate::kernel::lang::tile_const;
use crate::kernel::lang::value::Val;
use crate::kernel::lang::value::scalar::Any;
use crate::kernel::lang::value::sealed::Sealed;

/// Neighbouring columns that lane code reads, row after row.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a sequence of columns",
    note = "columns come from `x.columns::<N>(i)` of a matrix, or `.map(..)` and `.zip(..)` of these"
)]
// Emptiness is a number in a kernel as well.
#[allow(clippy::len_without_is_empty)]
pub trait ColumnLanes<M: Target>: Copy + Sealed {
    /// What lane code sees of each row of each column.
    type Item: Item<M>;
    /// What is the same in all rows of `N` columns.
    #[doc(hidden)]
    type Fixed<const N: usize>: Copy;
    /// What is loaded of a row for `N` columns.
    #[doc(hidden)]
    type Block<const N: usize>: Copy;

    /// The number of columns.
    fn len(self) -> Val<M, i64>;
    /// The number of rows.
    fn rows(self) -> Val<M, i64>;
    /// Whether so many rows of the columns `lo..hi` can be read in whole blocks.
    #[doc(hidden)]
    fn plain(self, rows: i64, lo: i64, hi: i64) -> bool;
    /// What is the same in all rows.
    #[doc(hidden)]
    fn fixed<const N: usize>(self, at: M::At) -> Self::Fixed<N>;
    /// Loads a row of the `B` columns from `first` on among the `N` at `at`.
    #[doc(hidden)]
    fn block<const N: usize, const B: usize>(
        self,
        fixed: &Self::Fixed<N>,
        at: M::At,
        first: usize,
        row: Val<M, i64>,
    ) -> Self::Block<B>;
    /// The item of a column of such a block.
    #[doc(hidden)]
    fn lane<const N: usize, const B: usize>(
        &self,
        fixed: &Self::Fixed<N>,
        block: &Self::Block<B>,
        first: usize,
        j: usize,
    ) -> Self::Item;

    /// Applies `f` to each item.
    #[inline(always)]
    fn map<U: Item<M>, F: Fn(Self::Item) -> U + Copy>(self, f: F) -> MapColumns<Self, F> {
        MapColumns { columns: self, f }
    }

    /// Pairs of each item and what the other sequence has for its column, the same in all rows, which is computed once.
    #[inline(always)]
    fn zip<L: Lanes<M, Item: LaneItem<M>>>(self, each: L) -> ZipColumns<Self, L> {
        ZipColumns { columns: self, each }
    }

    /// Reduces each column from `init` by `f`, in an unspecified but fixed order, as [`Lanes::fold`] does. Finish with
    /// [`ColumnFold::reduce`].
    #[inline(always)]
    #[allow(clippy::type_complexity, reason = "what is returned is a fold with one function around the author's")]
    fn fold<F: Fn(Self::Item, Self::Item) -> Self::Item + Copy>(
        self,
        init: Self::Item,
        f: F,
    ) -> ColumnFold<Self, Self::Item, impl Fn(Self::Item, (Self::Item, Val<M, i64>)) -> Self::Item + Copy>
    where
        Self::Item: LaneItem<M>,
    {
        self.fold_with(
            init,
            #[inline(always)]
            move |a, (v, _)| f(a, v),
        )
    }

    /// Reduces each column from `init` by `f`, which is given pairs of an item and its row, in an unspecified but
    /// fixed order: several partial results each start at `init`, which must be the identity. Finish with
    /// [`ColumnFold::reduce`].
    #[inline(always)]
    fn fold_with<A: LaneItem<M>, F: Fn(A, (Self::Item, Val<M, i64>)) -> A + Copy>(
        self,
        init: A,
        f: F,
    ) -> ColumnFold<Self, A, F> {
        ColumnFold { columns: self, init, f }
    }
}

/// Neighbouring columns of a matrix; made by [`In::columns`].
#[derive(Clone, Copy)]
pub struct Columns<M: Target, T: Any> {
    x: In<M, T, 2>,
    from: Val<M, i64>,
    len: Val<M, i64>,
    /// Whether the last row is the first one.
    reversed: bool,
}

impl<M: Target, T: Any> In<M, T, 2> {
    /// The `i`-th `N` columns (fewer at the end), each of which can be reduced: `y.block::<N>(i).write(x.columns::<N>(i)
    /// .sum())`.
    #[inline(always)]
    #[track_caller]
    pub fn columns<const N: usize>(self, i: impl Index<M>) -> Columns<M, T> {
        let size = tile_const::<M>(N);
        let from = i.index() * size;
        Columns { x: self, from, len: size.min(self.dim::<1>() - from), reversed: false }
    }
}

impl<M: Target, T: Any> Columns<M, T> {
    /// The same elements, from the last row to the first.
    #[inline(always)]
    pub fn reverse(self) -> Self {
        Columns { reversed: !self.reversed, ..self }
    }
}

/// The row of that number, or from the end.
#[inline(always)]
#[track_caller]
fn row_of<M: Target>(row: Val<M, i64>, rows: Val<M, i64>, reversed: bool) -> Val<M, i64> {
    if reversed { rows - Val(M::int::<i64>(1)) - row } else { row }
}

impl<M: Target, T: Any> ColumnLanes<M> for Columns<M, T> {
    type Item = Val<M, T>;
    /// The first column.
    type Fixed<const N: usize> = Val<M, i64>;
    type Block<const N: usize> = M::Block<T, N>;

    #[inline(always)]
    fn len(self) -> Val<M, i64> {
        self.len
    }
    #[inline(always)]
    #[track_caller]
    fn rows(self) -> Val<M, i64> {
        self.x.dim::<0>()
    }
    #[inline(always)]
    fn plain(self, rows: i64, lo: i64, hi: i64) -> bool {
        M::plain_columns(self.x.0, self.from.0, rows, lo, hi)
    }
    #[inline(always)]
    #[track_caller]
    fn fixed<const N: usize>(self, at: M::At) -> Val<M, i64> {
        self.from + Val(M::index_lane(at, 0))
    }
    #[inline(always)]
    #[track_caller]
    fn block<const N: usize, const B: usize>(
        self,
        fixed: &Val<M, i64>,
        at: M::At,
        first: usize,
        row: Val<M, i64>,
    ) -> M::Block<T, B> {
        M::column_block(self.x.0, [row_of(row, self.rows(), self.reversed).0, fixed.0], first, at)
    }
    #[inline(always)]
    fn lane<const N: usize, const B: usize>(
        &self,
        _: &Val<M, i64>,
        block: &M::Block<T, B>,
        _: usize,
        j: usize,
    ) -> Val<M, T> {
        Val(M::block_lane(block, j))
    }
}

/// Columns with a function applied; made by [`ColumnLanes::map`].
#[derive(Clone, Copy)]
pub struct MapColumns<C, F> {
    columns: C,
    f: F,
}

impl<M: Target, C: ColumnLanes<M>, U: Item<M>, F: Fn(C::Item) -> U + Copy> ColumnLanes<M> for MapColumns<C, F> {
    type Item = U;
    type Fixed<const N: usize> = C::Fixed<N>;
    type Block<const N: usize> = C::Block<N>;

    #[inline(always)]
    fn len(self) -> Val<M, i64> {
        self.columns.len()
    }
    #[inline(always)]
    #[track_caller]
    fn rows(self) -> Val<M, i64> {
        self.columns.rows()
    }
    #[inline(always)]
    fn plain(self, rows: i64, lo: i64, hi: i64) -> bool {
        self.columns.plain(rows, lo, hi)
    }
    #[inline(always)]
    #[track_caller]
    fn fixed<const N: usize>(self, at: M::At) -> C::Fixed<N> {
        self.columns.fixed::<N>(at)
    }
    #[inline(always)]
    #[track_caller]
    fn block<const N: usize, const B: usize>(
        self,
        fixed: &C::Fixed<N>,
        at: M::At,
        first: usize,
        row: Val<M, i64>,
    ) -> C::Block<B> {
        self.columns.block::<N, B>(fixed, at, first, row)
    }
    #[inline(always)]
    fn lane<const N: usize, const B: usize>(
        &self,
        fixed: &C::Fixed<N>,
        block: &C::Block<B>,
        first: usize,
        j: usize,
    ) -> U {
        (self.f)(self.columns.lane::<N, B>(fixed, block, first, j))
    }
}

/// Columns with what each has of another sequence; made by [`ColumnLanes::zip`].
#[derive(Clone, Copy)]
pub struct ZipColumns<C, L> {
    columns: C,
    each: L,
}

impl<M: Target, C: ColumnLanes<M>, L: Lanes<M, Item: LaneItem<M>>> ColumnLanes<M> for ZipColumns<C, L> {
    type Item = (C::Item, L::Item);
    type Fixed<const N: usize> = (C::Fixed<N>, <L::Item as LaneItem<M>>::Array<N>);
    type Block<const N: usize> = C::Block<N>;

    #[inline(always)]
    fn len(self) -> Val<M, i64> {
        self.columns.len()
    }
    #[inline(always)]
    #[track_caller]
    fn rows(self) -> Val<M, i64> {
        self.columns.rows()
    }
    #[inline(always)]
    fn plain(self, rows: i64, lo: i64, hi: i64) -> bool {
        self.columns.plain(rows, lo, hi) && self.each.plain(lo, hi)
    }
    #[inline(always)]
    #[track_caller]
    fn fixed<const N: usize>(self, at: M::At) -> Self::Fixed<N> {
        (self.columns.fixed::<N>(at), M::items::<L, N>(self.each, at))
    }
    #[inline(always)]
    #[track_caller]
    fn block<const N: usize, const B: usize>(
        self,
        fixed: &Self::Fixed<N>,
        at: M::At,
        first: usize,
        row: Val<M, i64>,
    ) -> C::Block<B> {
        self.columns.block::<N, B>(&fixed.0, at, first, row)
    }
    #[inline(always)]
    fn lane<const N: usize, const B: usize>(
        &self,
        fixed: &Self::Fixed<N>,
        block: &C::Block<B>,
        first: usize,
        j: usize,
    ) -> Self::Item {
        (self.columns.lane::<N, B>(&fixed.0, block, first, j), L::Item::lane::<N>(&fixed.1, first + j))
    }
}

/// A reduction of columns that lacks its last step; made by [`ColumnLanes::fold_with`].
#[derive(Clone, Copy)]
#[must_use = "a fold does nothing until `.reduce(..)` combines its partial results and the lanes are written"]
pub struct ColumnFold<C, A, F> {
    columns: C,
    init: A,
    f: F,
}

impl<C, A, F> ColumnFold<C, A, F> {
    /// The lanes that combine each column's partial results by `combine`, which must be associative with `init` as its
    /// identity.
    #[inline(always)]
    pub fn reduce<K: Fn(A, A) -> A + Copy>(self, combine: K) -> ReducedColumns<C, A, F, K> {
        ReducedColumns { fold: self, combine }
    }

    /// Reduces the same items once more, knowing what came out: a CPU reads a few rows, reduces these twice while they are
    /// near and combines that with what came out of others, so that memory is read once. `finish` makes of the result of a
    /// few rows what `f` is given with each item of them and its row. Finish with `.reduce(..)`.
    #[inline(always)]
    pub fn then<M: Target, B, S, G, H>(self, finish: G, init: S, f: H) -> ColumnFolds<C, A, F, B, S, G, H>
    where
        C: ColumnLanes<M>,
        G: Fn(A) -> B + Copy,
        H: Fn(S, (C::Item, Val<M, i64>), B) -> S + Copy,
    {
        ColumnFolds { first: self, finish, init, f, finished: PhantomData }
    }
}

/// Two reductions of columns, of which the second one knows what the first one gave; made by [`ColumnFold::then`].
#[derive(Clone, Copy)]
#[must_use = "folds do nothing until `.reduce(..)` combines their partial results and the lanes are written"]
pub struct ColumnFolds<C, A, F, B, S, G, H> {
    first: ColumnFold<C, A, F>,
    finish: G,
    init: S,
    f: H,
    finished: PhantomData<B>,
}

impl<C, A, F, B, S, G, H> ColumnFolds<C, A, F, B, S, G, H> {
    /// The lanes that combine what both folds gave for some rows, as `(finished, second)`, with what they gave for others,
    /// by `combine`, which must be associative.
    #[inline(always)]
    pub fn reduce<K: Fn((B, S), (B, S)) -> (B, S) + Copy>(self, combine: K) -> ReducedTwice<C, A, F, B, S, G, H, K> {
        ReducedTwice { folds: self, combine }
    }
}

/// What two folds make of each column; made by [`ColumnFolds::reduce`].
#[derive(Clone, Copy)]
pub struct ReducedTwice<C, A, F, B, S, G, H, K> {
    folds: ColumnFolds<C, A, F, B, S, G, H>,
    combine: K,
}

impl<M, C, A, F, B, S, G, H, K> Lanes<M> for ReducedTwice<C, A, F, B, S, G, H, K>
where
    M: Target,
    C: ColumnLanes<M>,
    A: LaneItem<M>,
    F: Fn(A, (C::Item, Val<M, i64>)) -> A + Copy,
    B: LaneItem<M>,
    S: LaneItem<M>,
    G: Fn(A) -> B + Copy,
    H: Fn(S, (C::Item, Val<M, i64>), B) -> S + Copy,
    K: Fn((B, S), (B, S)) -> (B, S) + Copy,
{
    type Item = (B, S);
    type Block<const N: usize> = <(B, S) as LaneItem<M>>::Array<N>;

    #[inline(always)]
    fn len(self) -> Val<M, i64> {
        self.folds.first.columns.len()
    }
    const STRIPS: bool = true;
    const REMAINDER: Remainder = Remainder::Columns;
    #[inline(always)]
    fn wide(self) -> bool {
        M::wide_columns(self.folds.first.columns)
    }
    #[inline(always)]
    fn plain(self, lo: i64, hi: i64) -> bool {
        self.folds.first.columns.plain(0, lo, hi)
    }
    #[inline(always)]
    #[track_caller]
    fn block<const N: usize>(self, at: M::At) -> Self::Block<N> {
        let ColumnFolds { first: ColumnFold { columns, init, f }, finish, init: second, f: again, .. } = self.folds;
        M::fold_columns_twice::<C, A, B, S, N>(columns, at, (init, f), finish, (second, again), self.combine)
    }
    #[inline(always)]
    fn lane<const N: usize>(&self, b: &Self::Block<N>, j: usize) -> (B, S) {
        <(B, S)>::lane(b, j)
    }
}

/// What each column is reduced to; made by [`ColumnFold::reduce`].
#[derive(Clone, Copy)]
pub struct ReducedColumns<C, A, F, K> {
    fold: ColumnFold<C, A, F>,
    combine: K,
}

impl<M, C, A, F, K> Lanes<M> for ReducedColumns<C, A, F, K>
where
    M: Target,
    C: ColumnLanes<M>,
    A: LaneItem<M> + Item<M>,
    F: Fn(A, (C::Item, Val<M, i64>)) -> A + Copy,
    K: Fn(A, A) -> A + Copy,
{
    type Item = A;
    type Block<const N: usize> = A::Array<N>;

    #[inline(always)]
    fn len(self) -> Val<M, i64> {
        self.fold.columns.len()
    }
    const STRIPS: bool = true;
    const REMAINDER: Remainder = Remainder::Columns;
    #[inline(always)]
    fn wide(self) -> bool {
        M::wide_columns(self.fold.columns)
    }
    #[inline(always)]
    fn plain(self, lo: i64, hi: i64) -> bool {
        self.fold.columns.plain(0, lo, hi)
    }
    #[inline(always)]
    #[track_caller]
    fn block<const N: usize>(self, at: M::At) -> A::Array<N> {
        let ColumnFold { columns, init, f } = self.fold;
        M::fold_columns::<C, A, N>(columns, at, init, f, self.combine)
    }
    #[inline(always)]
    fn lane<const N: usize>(&self, b: &A::Array<N>, j: usize) -> A {
        A::lane(b, j)
    }
}

/// Neighbouring columns of a result, which belong to this program; made by [`Out::columns`].
#[derive(Clone, Copy)]
pub struct OwnedColumns<M: Target, T: Any> {
    pub(crate) out: M::Out<T, 2>,
    pub(crate) from: Val<M, i64>,
    pub(crate) len: Val<M, i64>,
    /// Whether the last row is the first one.
    reversed: bool,
}

impl<M: Target, T: Any> Out<M, T, 2> {
    /// The `N` columns that belong to program `i` (fewer at the end): `y.columns::<N>(i).write(x.columns::<N>(i))`.
    #[inline(always)]
    #[track_caller]
    pub fn columns<const N: usize>(self, i: impl Own<M>) -> OwnedColumns<M, T> {
        let size = tile_const::<M>(N);
        let from = i.index() * size;
        OwnedColumns { out: self.0, from, len: size.min(self.dim::<1>() - from), reversed: false }
    }
}

impl<M: Target, T: Any> OwnedColumns<M, T> {
    /// The same elements, from the last row to the first.
    #[inline(always)]
    pub fn reverse(self) -> Self {
        OwnedColumns { reversed: !self.reversed, ..self }
    }

    /// The row of that number, as the operand counts.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn row(self, row: Val<M, i64>) -> Val<M, i64> {
        row_of(row, Val(M::dim_out(self.out, 0)), self.reversed)
    }
}

impl<M: Target, T: Any> Unlocked<OwnedColumns<M, T>> {
    /// Writes all of the columns; where `columns` has fewer rows, what it makes of padding.
    #[inline(always)]
    #[track_caller]
    pub fn write(self, columns: impl ColumnLanes<M, Item = Val<M, T>>) {
        M::write_columns(self, columns)
    }

    /// Writes prefix results of each column: every element combined with those above it. `init` must be the identity of
    /// `f`, which must be associative.
    #[inline(always)]
    #[track_caller]
    pub fn write_scan(
        self,
        columns: impl ColumnLanes<M, Item = Val<M, T>>,
        init: Val<M, T>,
        f: impl Fn(Val<M, T>, Val<M, T>) -> Val<M, T>,
    ) {
        M::scan_columns(self, columns, init, false, f)
    }

    /// Writes what comes before each element of a column: those above it combined, `init` in the first row. As
    /// [`write_scan`](Self::write_scan).
    #[inline(always)]
    #[track_caller]
    pub fn write_exclusive_scan(
        self,
        columns: impl ColumnLanes<M, Item = Val<M, T>>,
        init: Val<M, T>,
        f: impl Fn(Val<M, T>, Val<M, T>) -> Val<M, T>,
    ) {
        M::scan_columns(self, columns, init, true, f)
    }

    /// The one if `exclusive`, else the other.
    #[inline(always)]
    #[track_caller]
    pub fn write_any_scan(
        self,
        columns: impl ColumnLanes<M, Item = Val<M, T>>,
        exclusive: Val<M, bool>,
        init: Val<M, T>,
        f: impl Fn(Val<M, T>, Val<M, T>) -> Val<M, T> + Copy,
    ) {
        let part = self.0;
        M::if_(
            exclusive.0,
            #[inline(always)]
            || M::scan_columns(Unlocked(part), columns, init, true, f),
            #[inline(always)]
            || M::scan_columns(Unlocked(part), columns, init, false, f),
        );
    }
}

/// Code that runs once for each column; its lanes hold nothing.
#[derive(Clone, Copy)]
pub(crate) struct EachColumn<M: Target, F> {
    pub(crate) len: Val<M, i64>,
    pub(crate) run: F,
}

impl<M: Target, F: Fn(M::At) + Copy> Lanes<M> for EachColumn<M, F> {
    type Item = ();
    type Block<const N: usize> = ();
    #[inline(always)]
    fn len(self) -> Val<M, i64> {
        self.len
    }
    #[inline(always)]
    fn plain(self, _: i64, _: i64) -> bool {
        false
    }
    #[inline(always)]
    #[track_caller]
    fn block<const N: usize>(self, at: M::At) {
        (self.run)(at);
    }
    #[inline(always)]
    fn lane<const N: usize>(&self, _: &(), _: usize) {}
}

/// Neighbouring parts of a row, of `N` elements each (fewer at the end); made by [`In::chunks`].
pub struct Chunks<M: Target, T: Any, const N: usize>(In<M, T, 1>);

impl<M: Target, T: Any, const N: usize> Clone for Chunks<M, T, N> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}
impl<M: Target, T: Any, const N: usize> Copy for Chunks<M, T, N> {}

impl<M: Target, T: Any> In<M, T, 1> {
    /// The parts of `N` elements (fewer at the end), each of which can be reduced.
    #[inline(always)]
    pub fn chunks<const N: usize>(self) -> Chunks<M, T, N> {
        Chunks(self)
    }
}

impl<M: Target, T: Any, const N: usize> Chunks<M, T, N> {
    /// Reduces each part from `init` by `f`, in an unspecified but fixed order, as [`Lanes::fold_with`] does. Finish with
    /// [`ChunkFold::reduce`].
    #[inline(always)]
    pub fn fold_with<A: LaneItem<M>, F: Fn(A, Val<M, T>) -> A + Copy>(self, init: A, f: F) -> ChunkFold<M, T, N, A, F> {
        ChunkFold { chunks: self, init, f }
    }
}

/// A reduction of parts that lacks its last step; made by [`Chunks::fold_with`].
#[derive(Clone, Copy)]
#[must_use = "a fold does nothing until `.reduce(..)` combines its partial results and the lanes are read"]
pub struct ChunkFold<M: Target, T: Any, const N: usize, A, F> {
    chunks: Chunks<M, T, N>,
    init: A,
    f: F,
}

impl<M: Target, T: Any, const N: usize, A, F> ChunkFold<M, T, N, A, F> {
    /// The lanes that combine each part's partial results by `combine`, which must be associative with `init` as its
    /// identity.
    #[inline(always)]
    pub fn reduce<C: Fn(A, A) -> A + Copy>(self, combine: C) -> ReducedChunks<M, T, N, A, F, C> {
        ReducedChunks { fold: self, combine }
    }
}

/// What each part is reduced to; made by [`ChunkFold::reduce`].
#[derive(Clone, Copy)]
pub struct ReducedChunks<M: Target, T: Any, const N: usize, A, F, C> {
    fold: ChunkFold<M, T, N, A, F>,
    combine: C,
}

impl<M, T, const N: usize, A, F, C> Lanes<M> for ReducedChunks<M, T, N, A, F, C>
where
    M: Target,
    T: Any,
    A: LaneItem<M> + Item<M>,
    F: Fn(A, Val<M, T>) -> A + Copy,
    C: Fn(A, A) -> A + Copy,
{
    type Item = A;
    type Block<const B: usize> = A::Array<B>;
    const REMAINDER: Remainder = Remainder::Folded;

    #[inline(always)]
    #[track_caller]
    fn len(self) -> Val<M, i64> {
        let size = tile_const::<M>(N);
        let up = Val(M::int::<i64>(N as i128 - 1));
        (self.fold.chunks.0.len() + up) / size
    }
    #[inline(always)]
    fn plain(self, _: i64, _: i64) -> bool {
        true
    }
    #[inline(always)]
    #[track_caller]
    fn block<const B: usize>(self, at: M::At) -> A::Array<B> {
        let ChunkFold { chunks, init, f } = self.fold;
        M::fold_chunks::<T, A, N, B>(chunks.0, at, init, f, self.combine)
    }
    #[inline(always)]
    fn lane<const B: usize>(&self, b: &A::Array<B>, j: usize) -> A {
        A::lane(b, j)
    }
}
