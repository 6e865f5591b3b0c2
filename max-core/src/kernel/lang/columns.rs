//! Reductions of columns: what a matrix whose columns lie side by side is reduced with, whole rows at a time.

use super::lanes::{Item, LaneItem, Lanes};
use super::scalar::{Any, Number};
use super::target::Target;
use super::tensors::{In, Index};
use super::value::Val;

/// Neighbouring columns of a matrix; made by [`In::columns`].
pub struct Columns<M: Target, T: Any> {
    x: In<M, T, 2>,
    from: Val<M, i64>,
    len: Val<M, i64>,
}

impl<M: Target, T: Any> Clone for Columns<M, T> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}
impl<M: Target, T: Any> Copy for Columns<M, T> {}

impl<M: Target, T: Any> In<M, T, 2> {
    /// The `i`-th `N` columns (fewer at the end), each of which can be reduced: `y.block::<N>(i).write(x.columns::<N>(i)
    /// .sum())`.
    #[inline(always)]
    #[track_caller]
    pub fn columns<const N: usize>(self, i: impl Index<M>) -> Columns<M, T> {
        let size = super::tile_const::<M>(N);
        let from = i.index() * size;
        Columns { x: self, from, len: size.min(self.dim(1) - from) }
    }
}

impl<M: Target, T: Any> Columns<M, T> {
    /// Reduces each column from `init` by `f`, which is given pairs of an element and its row, in an unspecified but
    /// fixed order: several partial results each start at `init`, which must be the identity. Finish with
    /// [`ColumnFold::reduce`].
    #[inline(always)]
    pub fn fold_with<A: LaneItem<M>, F: Fn(A, (Val<M, T>, Val<M, i64>)) -> A + Copy>(
        self,
        init: A,
        f: F,
    ) -> ColumnFold<M, T, A, F> {
        ColumnFold { columns: self, init, f }
    }
}

impl<M: Target, T: Number> Columns<M, T> {
    /// The sum of each column. Half types add in `f32`, integers wrap.
    #[inline(always)]
    #[track_caller]
    pub fn sum(self) -> impl Lanes<M, Item = Val<M, T>> {
        self.fold_with(
            Val::zero(),
            #[inline(always)]
            |a, (v, _)| a + v,
        )
        .reduce(
            #[inline(always)]
            |a, b| a + b,
        )
    }

    /// The product of each column.
    #[inline(always)]
    #[track_caller]
    pub fn prod(self) -> impl Lanes<M, Item = Val<M, T>> {
        self.fold_with(
            Val::one(),
            #[inline(always)]
            |a, (v, _)| a * v,
        )
        .reduce(
            #[inline(always)]
            |a, b| a * b,
        )
    }

    /// The largest element of each column; NaN if any is NaN.
    #[inline(always)]
    #[track_caller]
    pub fn max(self) -> impl Lanes<M, Item = Val<M, T>> {
        self.fold_with(
            Val::lowest(),
            #[inline(always)]
            |a: Val<M, T>, (v, _)| a.max(v),
        )
        .reduce(
            #[inline(always)]
            |a, b| a.max(b),
        )
    }

    /// The smallest element of each column; NaN if any is NaN.
    #[inline(always)]
    #[track_caller]
    pub fn min(self) -> impl Lanes<M, Item = Val<M, T>> {
        self.fold_with(
            Val::highest(),
            #[inline(always)]
            |a: Val<M, T>, (v, _)| a.min(v),
        )
        .reduce(
            #[inline(always)]
            |a, b| a.min(b),
        )
    }
}

/// A reduction of columns that lacks its last step; made by [`Columns::fold_with`].
#[derive(Clone, Copy)]
#[must_use = "a fold does nothing until `.reduce(..)` combines its partial results and the lanes are written"]
pub struct ColumnFold<M: Target, T: Any, A, F> {
    columns: Columns<M, T>,
    init: A,
    f: F,
}

impl<M: Target, T: Any, A, F> ColumnFold<M, T, A, F> {
    /// The lanes that combine each column's partial results by `combine`, which must be associative with `init` as its
    /// identity.
    #[inline(always)]
    pub fn reduce<C: Fn(A, A) -> A + Copy>(self, combine: C) -> ReducedColumns<M, T, A, F, C> {
        ReducedColumns { fold: self, combine }
    }
}

/// What each column is reduced to; made by [`ColumnFold::reduce`].
#[derive(Clone, Copy)]
pub struct ReducedColumns<M: Target, T: Any, A, F, C> {
    fold: ColumnFold<M, T, A, F>,
    combine: C,
}

impl<M, T, A, F, C> Lanes<M> for ReducedColumns<M, T, A, F, C>
where
    M: Target,
    T: Any,
    A: LaneItem<M> + Item<M>,
    F: Fn(A, (Val<M, T>, Val<M, i64>)) -> A + Copy,
    C: Fn(A, A) -> A + Copy,
{
    type Item = A;
    type Block<const N: usize> = A::Array<N>;
    const WIDE: bool = true;

    #[inline(always)]
    fn len(self) -> Val<M, i64> {
        self.fold.columns.len
    }
    #[inline(always)]
    fn plain(self, lo: i64, hi: i64) -> bool {
        M::plain_columns(self.fold.columns.x.0, self.fold.columns.from.0, lo, hi)
    }
    #[inline(always)]
    #[track_caller]
    fn block<const N: usize>(self, at: M::At) -> A::Array<N> {
        let ColumnFold { columns, init, f } = self.fold;
        M::fold_columns::<T, A, N>(columns.x.0, columns.from.0, at, init, f, self.combine)
    }
    #[inline(always)]
    fn lane<const N: usize>(&self, b: &A::Array<N>, j: usize) -> A {
        A::lane(b, j)
    }
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

    #[inline(always)]
    #[track_caller]
    fn len(self) -> Val<M, i64> {
        let size = super::tile_const::<M>(N);
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
