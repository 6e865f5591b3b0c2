//! Tiles: small matrices of static shape, the operands and results of [`dot`](super::builtins::dot).

use std::ops;

use super::control::Var;
use super::lanes::{Item, Lanes};
use super::target::Target;
use super::tensors::{In, Index};
use super::value::Val;
use super::value::prim::op;
use super::value::scalar::{Any, Float, Number, Scalar};
use crate::kernel::ir::{self, ReduceOp};

/// A matrix of `R` rows and `C` columns that one program instance computes with.
pub struct Tile<M: Target, T: Any, const R: usize, const C: usize>(pub(crate) M::Tile<T, R, C>);

impl<M: Target, T: Any, const R: usize, const C: usize> Clone for Tile<M, T, R, C> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}
impl<M: Target, T: Any, const R: usize, const C: usize> Copy for Tile<M, T, R, C> {}

impl<M: Target, T: Any, const R: usize, const C: usize> Item<M> for Tile<M, T, R, C> {
    #[inline(always)]
    fn values(self, out: &mut Vec<ir::Value>) {
        M::push_tile(self.0, out);
    }
    #[inline(always)]
    fn fresh() -> Self {
        Tile(M::fresh_tile::<T, R, C>())
    }
    #[inline(always)]
    #[track_caller]
    fn select(c: Val<M, bool>, a: Self, b: Self) -> Self {
        Tile(M::tile_zip::<T, T, T, R, C, R, C>(
            a.0,
            b.0,
            #[inline(always)]
            |a, b| Val(M::select(c.0, a.0, b.0)),
        ))
    }
}

impl<M: Target, T: Any, const R: usize, const C: usize> Tile<M, T, R, C> {
    /// Every element `v`.
    #[inline(always)]
    #[track_caller]
    pub fn full(v: Val<M, T>) -> Self {
        Tile(M::tile_full(v.0))
    }

    /// Every element 0.
    #[inline(always)]
    #[track_caller]
    pub fn zeros() -> Self {
        Tile(M::tile_full(M::int::<T>(0)))
    }

    /// A tile of rows of lanes: row `i` has the first `C` items of `row(i)`.
    #[inline(always)]
    #[track_caller]
    pub fn from_rows<L: Lanes<M, Item = Val<M, T>>>(row: impl Fn(Val<M, i64>) -> L) -> Self {
        Tile(M::tile_rows::<T, L, R, C>(row))
    }

    /// The element in row `i` and column `j` of the tile: a number of the program, 0 outside of the tile.
    #[inline(always)]
    #[track_caller]
    pub fn element(self, i: impl Index<M>, j: impl Index<M>) -> Val<M, T> {
        Val(M::tile_element(self.0, [i.index().0, j.index().0]))
    }

    /// Applies `f` to each element.
    #[inline(always)]
    #[track_caller]
    pub fn map<U: Any>(self, f: impl Fn(Val<M, T>) -> Val<M, U>) -> Tile<M, U, R, C> {
        Tile(M::tile_map(
            self.0,
            #[inline(always)]
            |_, _, v| f(v),
        ))
    }

    /// Applies `f` to the row, the column (within the tile) and the element.
    #[inline(always)]
    #[track_caller]
    pub fn map_indexed<U: Any>(self, f: impl Fn(Val<M, i64>, Val<M, i64>, Val<M, T>) -> Val<M, U>) -> Tile<M, U, R, C> {
        Tile(M::tile_map(self.0, f))
    }

    /// Applies `f` to the elements of two tiles; a dimension of `other` that is 1 is repeated.
    #[inline(always)]
    #[track_caller]
    pub fn zip_map<U: Any, V: Any, const P: usize, const Q: usize>(
        self,
        other: Tile<M, U, P, Q>,
        f: impl Fn(Val<M, T>, Val<M, U>) -> Val<M, V>,
    ) -> Tile<M, V, R, C> {
        Tile(M::tile_zip(self.0, other.0, f))
    }
}

impl<M: Target, T: Any> Tile<M, T, 1, 1> {
    /// The one element, as a number of the program.
    #[inline(always)]
    #[track_caller]
    pub fn item(self) -> Val<M, T> {
        let zero = M::int::<i64>(0);
        Val(M::tile_element(self.0, [zero, zero]))
    }
}

impl<M: Target, T: Scalar, const R: usize, const C: usize> Tile<M, T, R, C> {
    /// Converts each element, as [`Val::cast`].
    #[inline(always)]
    #[track_caller]
    pub fn cast<U: Scalar>(self) -> Tile<M, U, R, C> {
        Tile(M::tile_cast(self.0))
    }
}

impl<M: Target, T: Number, const R: usize, const C: usize> Tile<M, T, R, C> {
    /// The largest element of each row.
    #[inline(always)]
    #[track_caller]
    pub fn row_max(self) -> Tile<M, T, R, 1> {
        Tile(M::tile_reduce(ReduceOp::Max, self.0))
    }

    /// The smallest element of each row.
    #[inline(always)]
    #[track_caller]
    pub fn row_min(self) -> Tile<M, T, R, 1> {
        Tile(M::tile_reduce(ReduceOp::Min, self.0))
    }

    /// The sum of each row.
    #[inline(always)]
    #[track_caller]
    pub fn row_sum(self) -> Tile<M, T, R, 1> {
        Tile(M::tile_reduce(ReduceOp::Sum, self.0))
    }

    /// The larger of two tiles' elements.
    #[inline(always)]
    #[track_caller]
    pub fn max<const P: usize, const Q: usize>(self, other: Tile<M, T, P, Q>) -> Self {
        self.zip_map(
            other,
            #[inline(always)]
            |a, b| a.max(b),
        )
    }

    /// The smaller of two tiles' elements.
    #[inline(always)]
    #[track_caller]
    pub fn min<const P: usize, const Q: usize>(self, other: Tile<M, T, P, Q>) -> Self {
        self.zip_map(
            other,
            #[inline(always)]
            |a, b| a.min(b),
        )
    }
}

impl<M: Target, T: Float, const R: usize, const C: usize> Tile<M, T, R, C> {
    /// The exponential of each element.
    #[inline(always)]
    #[track_caller]
    pub fn exp(self) -> Self {
        self.map(
            #[inline(always)]
            |v| v.exp(),
        )
    }
}

macro_rules! tile_operators {
    ($($trait:ident $method:ident $op:ident),*) => { $(
        impl<M: Target, T: Number, const R: usize, const C: usize, const P: usize, const Q: usize>
            ops::$trait<Tile<M, T, P, Q>> for Tile<M, T, R, C>
        {
            type Output = Self;
            #[inline(always)]
            #[track_caller]
            fn $method(self, b: Tile<M, T, P, Q>) -> Self {
                Tile(M::tile_zip(self.0, b.0, #[inline(always)] |a, b| Val(M::binary::<T, op::$op>(a.0, b.0))))
            }
        }
        impl<M: Target, T: Number, const R: usize, const C: usize> ops::$trait<Val<M, T>> for Tile<M, T, R, C> {
            type Output = Self;
            #[inline(always)]
            #[track_caller]
            fn $method(self, b: Val<M, T>) -> Self {
                Tile(M::tile_map(self.0, #[inline(always)] |_, _, a| Val(M::binary::<T, op::$op>(a.0, b.0))))
            }
        }
        impl<M: Target, T: Number, const R: usize, const C: usize> ops::$trait<Tile<M, T, R, C>> for Val<M, T> {
            type Output = Tile<M, T, R, C>;
            #[inline(always)]
            #[track_caller]
            fn $method(self, b: Tile<M, T, R, C>) -> Tile<M, T, R, C> {
                Tile(M::tile_map(b.0, #[inline(always)] |_, _, v| Val(M::binary::<T, op::$op>(self.0, v.0))))
            }
        }
    )* };
}
tile_operators!(Add add Add, Sub sub Sub, Mul mul Mul, Div div Div);

/// A tile of an operand that has not been read yet: an operand of `dot`, or the source of [`View::load`].
pub struct View<M: Target, T: Any, const R: usize, const C: usize> {
    pub(crate) x: In<M, T, 2>,
    pub(crate) origin: [Val<M, i64>; 2],
    pub(crate) transpose: bool,
}

impl<M: Target, T: Any, const R: usize, const C: usize> Clone for View<M, T, R, C> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}
impl<M: Target, T: Any, const R: usize, const C: usize> Copy for View<M, T, R, C> {}

impl<M: Target, T: Any, const R: usize, const C: usize> View<M, T, R, C> {
    /// The transpose: `C` rows and `R` columns.
    #[inline(always)]
    pub fn t(self) -> View<M, T, C, R> {
        View { x: self.x, origin: self.origin, transpose: !self.transpose }
    }

    /// Reads the tile; outside the operand it is 0.
    #[inline(always)]
    #[track_caller]
    pub fn load(self) -> Tile<M, T, R, C> {
        Tile(M::tile_load(self.x.0, [self.origin[0].0, self.origin[1].0], self.transpose))
    }

    #[inline(always)]
    pub(crate) fn raw(self) -> (M::In<T, 2>, [M::Val<i64>; 2], bool) {
        (self.x.0, [self.origin[0].0, self.origin[1].0], self.transpose)
    }
}

/// The left operand of [`dot`](super::builtins::dot): a [`View`] or a [`Tile`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the left operand of `dot`",
    note = "the left operand is a tile of R rows and K columns: `a.tile::<R, K>(i, k)` or a computed Tile"
)]
pub trait DotLeft<M: Target, const R: usize, const K: usize>: Copy {
    /// `self · b + acc`
    #[doc(hidden)]
    fn dot<U: Any, A: Number, const C: usize>(self, b: View<M, U, K, C>, acc: Tile<M, A, R, C>) -> Tile<M, A, R, C>;
    /// `acc += self · b`, where `acc` is.
    #[doc(hidden)]
    fn dot_assign<U: Any, A: Number, const C: usize>(&self, b: View<M, U, K, C>, acc: &M::TileVar<A, R, C>);
    /// `self · b + acc`, with `b` computed.
    #[doc(hidden)]
    fn dot_computed<U: Number, A: Number, const C: usize>(
        self,
        b: Tile<M, U, K, C>,
        acc: Tile<M, A, R, C>,
    ) -> Tile<M, A, R, C>;
    /// `acc += self · b`, where `acc` is, with `b` computed.
    #[doc(hidden)]
    fn dot_computed_assign<U: Number, A: Number, const C: usize>(
        &self,
        b: &Tile<M, U, K, C>,
        acc: &M::TileVar<A, R, C>,
    );
}

impl<M: Target, T: Scalar, const R: usize, const K: usize> DotLeft<M, R, K> for View<M, T, R, K> {
    #[inline(always)]
    #[track_caller]
    fn dot<U: Any, A: Number, const C: usize>(self, b: View<M, U, K, C>, acc: Tile<M, A, R, C>) -> Tile<M, A, R, C> {
        Tile(M::dot_views::<T, U, A, R, K, C>(self.raw(), b.raw(), acc.0))
    }
    #[inline(always)]
    #[track_caller]
    fn dot_assign<U: Any, A: Number, const C: usize>(&self, b: View<M, U, K, C>, acc: &M::TileVar<A, R, C>) {
        M::dot_views_assign::<T, U, A, R, K, C>(self.raw(), b.raw(), acc);
    }
    #[inline(always)]
    #[track_caller]
    fn dot_computed<U: Number, A: Number, const C: usize>(
        self,
        b: Tile<M, U, K, C>,
        acc: Tile<M, A, R, C>,
    ) -> Tile<M, A, R, C> {
        Tile(M::dot_tiles::<T, U, A, R, K, C>(self.load().0, b.0, acc.0))
    }
    #[inline(always)]
    #[track_caller]
    fn dot_computed_assign<U: Number, A: Number, const C: usize>(
        &self,
        b: &Tile<M, U, K, C>,
        acc: &M::TileVar<A, R, C>,
    ) {
        M::dot_tiles_assign::<T, U, A, R, K, C>(&self.load().0, &b.0, acc);
    }
}

impl<M: Target, T: Number, const R: usize, const K: usize> DotLeft<M, R, K> for Tile<M, T, R, K> {
    #[inline(always)]
    #[track_caller]
    fn dot<U: Any, A: Number, const C: usize>(self, b: View<M, U, K, C>, acc: Tile<M, A, R, C>) -> Tile<M, A, R, C> {
        Tile(M::dot_tile_view::<T, U, A, R, K, C>(self.0, b.raw(), acc.0))
    }
    #[inline(always)]
    #[track_caller]
    fn dot_assign<U: Any, A: Number, const C: usize>(&self, b: View<M, U, K, C>, acc: &M::TileVar<A, R, C>) {
        M::dot_tile_view_assign::<T, U, A, R, K, C>(&self.0, b.raw(), acc);
    }
    #[inline(always)]
    #[track_caller]
    fn dot_computed<U: Number, A: Number, const C: usize>(
        self,
        b: Tile<M, U, K, C>,
        acc: Tile<M, A, R, C>,
    ) -> Tile<M, A, R, C> {
        Tile(M::dot_tiles::<T, U, A, R, K, C>(self.0, b.0, acc.0))
    }
    #[inline(always)]
    #[track_caller]
    fn dot_computed_assign<U: Number, A: Number, const C: usize>(
        &self,
        b: &Tile<M, U, K, C>,
        acc: &M::TileVar<A, R, C>,
    ) {
        M::dot_tiles_assign::<T, U, A, R, K, C>(&self.0, &b.0, acc);
    }
}

/// The right operand of [`dot`](super::builtins::dot): a [`View`] or a [`Tile`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the right operand of `dot`",
    note = "the right operand is a tile of K rows and C columns: `b.tile::<K, C>(k, j)` or a computed Tile of numbers"
)]
pub trait DotRight<M: Target, const K: usize, const C: usize>: Copy {
    /// `a · self + acc`
    #[doc(hidden)]
    fn after<A: Number, const R: usize>(self, a: impl DotLeft<M, R, K>, acc: Tile<M, A, R, C>) -> Tile<M, A, R, C>;
    /// `acc += a · self`, where `acc` is.
    #[doc(hidden)]
    fn after_assign<A: Number, const R: usize>(self, a: &impl DotLeft<M, R, K>, acc: &M::TileVar<A, R, C>);
    /// The same where `a` is a variable.
    #[doc(hidden)]
    fn after_var_assign<T: Number, A: Number, const R: usize>(self, a: &M::TileVar<T, R, K>, acc: &M::TileVar<A, R, C>);
}

impl<M: Target, U: Any, const K: usize, const C: usize> DotRight<M, K, C> for View<M, U, K, C> {
    #[inline(always)]
    #[track_caller]
    fn after<A: Number, const R: usize>(self, a: impl DotLeft<M, R, K>, acc: Tile<M, A, R, C>) -> Tile<M, A, R, C> {
        a.dot(self, acc)
    }
    #[inline(always)]
    #[track_caller]
    fn after_assign<A: Number, const R: usize>(self, a: &impl DotLeft<M, R, K>, acc: &M::TileVar<A, R, C>) {
        a.dot_assign(self, acc);
    }
    #[inline(always)]
    #[track_caller]
    fn after_var_assign<T: Number, A: Number, const R: usize>(
        self,
        a: &M::TileVar<T, R, K>,
        acc: &M::TileVar<A, R, C>,
    ) {
        M::dot_var_view_assign::<T, U, A, R, K, C>(a, self.raw(), acc);
    }
}

impl<M: Target, U: Number, const K: usize, const C: usize> DotRight<M, K, C> for Tile<M, U, K, C> {
    #[inline(always)]
    #[track_caller]
    fn after<A: Number, const R: usize>(self, a: impl DotLeft<M, R, K>, acc: Tile<M, A, R, C>) -> Tile<M, A, R, C> {
        a.dot_computed(self, acc)
    }
    #[inline(always)]
    #[track_caller]
    fn after_assign<A: Number, const R: usize>(self, a: &impl DotLeft<M, R, K>, acc: &M::TileVar<A, R, C>) {
        a.dot_computed_assign(&self, acc);
    }
    #[inline(always)]
    #[track_caller]
    fn after_var_assign<T: Number, A: Number, const R: usize>(
        self,
        a: &M::TileVar<T, R, K>,
        acc: &M::TileVar<A, R, C>,
    ) {
        M::dot_tiles_assign::<T, U, A, R, K, C>(&M::tile_get(a), &self.0, acc);
    }
}

/// What kernels do with a variable that holds a tile, without copies of it: `#[kernel]` writes these for assignments such
/// as `x = x.map(..)` and reads such as `x.row_max()`.
#[doc(hidden)]
impl<M: Target, T: Any, const R: usize, const C: usize> Var<M, Tile<M, T, R, C>> {
    /// `x = x.map(f)`
    #[inline(always)]
    #[track_caller]
    pub fn assign_map(&self, f: impl Fn(Val<M, T>) -> Val<M, T>) {
        M::tile_map_assign(
            &self.0,
            #[inline(always)]
            |_, _, v| f(v),
        );
    }

    /// `x = x.map_indexed(f)`
    #[inline(always)]
    #[track_caller]
    pub fn assign_map_indexed(&self, f: impl Fn(Val<M, i64>, Val<M, i64>, Val<M, T>) -> Val<M, T>) {
        M::tile_map_assign(&self.0, f);
    }

    /// `x = x.zip_map(other, f)`
    #[inline(always)]
    #[track_caller]
    pub fn assign_zip_map<U: Any, const P: usize, const Q: usize>(
        &self,
        other: Tile<M, U, P, Q>,
        f: impl Fn(Val<M, T>, Val<M, U>) -> Val<M, T>,
    ) {
        M::tile_zip_assign(&self.0, other.0, f);
    }
}

#[doc(hidden)]
impl<M: Target, T: Number, const R: usize, const C: usize> Var<M, Tile<M, T, R, C>> {
    /// `x.row_max()`
    #[inline(always)]
    #[track_caller]
    pub fn row_max(&self) -> Tile<M, T, R, 1> {
        Tile(M::tile_reduce_var(ReduceOp::Max, &self.0))
    }

    /// `x.row_min()`
    #[inline(always)]
    #[track_caller]
    pub fn row_min(&self) -> Tile<M, T, R, 1> {
        Tile(M::tile_reduce_var(ReduceOp::Min, &self.0))
    }

    /// `x.row_sum()`
    #[inline(always)]
    #[track_caller]
    pub fn row_sum(&self) -> Tile<M, T, R, 1> {
        Tile(M::tile_reduce_var(ReduceOp::Sum, &self.0))
    }
}
