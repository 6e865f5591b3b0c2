//! Reductions of columns, and of rows in more than one step: the variance, the sum of exponentials, the position of the largest
//! element.
//!
//! A row lies in a cache when it is read once more. Rows of columns lie far from each other: some of them are reduced in all steps
//! while they are near, and that is combined with what came out of others, so that memory is read once.

use super::columns::ColumnLanes;
use super::remainder::Remainder;
use super::{Item, LaneItem, Lanes, NumberLanes, ScalarLanes};
use crate::dtype::DType;
use crate::kernel::lang::control::{eq, ge, gt, le, lt, ne, var};
use crate::kernel::lang::target::Target;
use crate::kernel::lang::tensors::In;
use crate::kernel::lang::value::Val;
use crate::kernel::lang::value::scalar::{Float, Number};

/// Elements of a row whose positions are told apart by 32 bits, which are as many as most dtypes have: positions take no more
/// registers than elements.
const PART: i128 = 1 << 20;

/// A reduction that lacks its last step; made by [`Lanes::fold`].
#[derive(Clone, Copy)]
#[must_use = "a fold does nothing until `.sum()`, `.max()`, `.min()`, `.prod()` or `.reduce(..)` combines its partial results"]
pub struct Fold<L, F, A> {
    pub(super) lanes: L,
    pub(super) init: A,
    pub(super) f: F,
}

impl<L, F, A> Fold<L, F, A> {
    /// Combines the partial results by `combine`, which must be associative with `init` as its identity.
    #[inline(always)]
    #[track_caller]
    pub fn reduce<M: Target>(self, combine: impl Fn(A, A) -> A) -> A
    where
        L: Lanes<M>,
        A: LaneItem<M>,
        F: Fn(A, L::Item) -> A,
    {
        M::fold(self.lanes, self.init, self.f, combine)
    }
}

macro_rules! fold_ends {
    ($($(#[$doc:meta])* $name:ident |$a:ident, $b:ident| $e:expr;)*) => {
        impl<M: Target, T: Number, L: Lanes<M>, F: Fn(Val<M, T>, L::Item) -> Val<M, T>> Fold<L, F, Val<M, T>> {
            $(
                $(#[$doc])*
                #[inline(always)]
                #[track_caller]
                pub fn $name(self) -> Val<M, T> {
                    M::fold(self.lanes, self.init, self.f, #[inline(always)] |$a, $b| $e)
                }
            )*
        }
    };
}
fold_ends! {
    /// Adds the partial results.
    sum |a, b| a + b;
    /// Multiplies the partial results.
    prod |a, b| a * b;
    /// The largest partial result.
    max |a, b| a.max(b);
    /// The smallest partial result.
    min |a, b| a.min(b);
}

/// Reductions of a sequence of floats.
pub trait FloatLanes<M: Target, T: Float>: Lanes<M, Item = Val<M, T>> {
    /// The mean, and the mean of the squares of the differences from it, the variance; NaN of nothing.
    #[inline(always)]
    #[track_caller]
    fn mean_variance(self) -> (Val<M, T>, Val<M, T>) {
        let mean = self.mean();
        let squares = self.map(
            #[inline(always)]
            move |v| (v - mean) * (v - mean),
        );
        (mean, squares.mean())
    }

    /// The largest element, and the sum of the exponentials of all elements less it.
    #[inline(always)]
    #[track_caller]
    fn max_exp_sum(self) -> (Val<M, T>, Val<M, T>) {
        let m = largest(self);
        let e = self.map(
            #[inline(always)]
            move |v| (v - m).exp(),
        );
        (m, e.sum())
    }

    /// The exponentials of all elements less the largest one, which do not overflow,
    /// [materialized](ScalarLanes::materialize); and their sum.
    #[inline(always)]
    #[track_caller]
    fn shifted_exp(self) -> (impl Lanes<M, Item = Val<M, T>>, Val<M, T>) {
        let m = largest(self);
        let e = self.map(
            #[inline(always)]
            move |v| (v - m).exp(),
        );
        let e = e.materialize();
        (e, e.sum())
    }
}

impl<M: Target, T: Float, L: Lanes<M, Item = Val<M, T>>> FloatLanes<M, T> for L {}

/// The largest element but for NaN, which gets into sums of exponentials.
#[inline(always)]
#[track_caller]
fn largest<M: Target, T: Float>(lanes: impl Lanes<M, Item = Val<M, T>>) -> Val<M, T> {
    let parts = lanes.fold(
        Val::neg_infinity(),
        #[inline(always)]
        |m, v| Item::select(gt(v, m), v, m),
    );
    parts.max()
}

/// Reductions of columns of numbers.
pub trait NumberColumns<M: Target, T: Number>: ColumnLanes<M, Item = Val<M, T>> {
    /// The sum of each column. Half types add in `f32`, integers wrap.
    #[inline(always)]
    #[track_caller]
    fn sum(self) -> impl Lanes<M, Item = Val<M, T>> {
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

    /// The sum divided by the number of rows, as [`NumberLanes::mean`].
    #[inline(always)]
    #[track_caller]
    fn mean(self) -> Means<Self> {
        Means(self)
    }

    /// The product of each column.
    #[inline(always)]
    #[track_caller]
    fn prod(self) -> impl Lanes<M, Item = Val<M, T>> {
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
    fn max(self) -> impl Lanes<M, Item = Val<M, T>> {
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
    fn min(self) -> impl Lanes<M, Item = Val<M, T>> {
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

    /// The position of the largest element of each column, as [`In::argmax`].
    #[inline(always)]
    #[track_caller]
    fn argmax(self) -> impl Lanes<M, Item = Val<M, i64>> {
        position(
            self,
            Val::lowest(),
            #[inline(always)]
            |v, m| above(v, m),
        )
    }

    /// The position of the smallest element of each column, as [`In::argmin`].
    #[inline(always)]
    #[track_caller]
    fn argmin(self) -> impl Lanes<M, Item = Val<M, i64>> {
        position(
            self,
            Val::highest(),
            #[inline(always)]
            |v, m| below(v, m),
        )
    }
}

impl<M: Target, T: Number, C: ColumnLanes<M, Item = Val<M, T>>> NumberColumns<M, T> for C {}

/// The mean of each column; made by [`NumberColumns::mean`].
#[derive(Clone, Copy)]
pub struct Means<C>(C);

impl<M: Target, T: Number, C: ColumnLanes<M, Item = Val<M, T>>> Lanes<M> for Means<C> {
    type Item = Val<M, T>;
    type Block<const N: usize> = M::Block<T, N>;

    #[inline(always)]
    fn len(self) -> Val<M, i64> {
        self.0.len()
    }
    const STRIPS: bool = true;
    const REMAINDER: Remainder = Remainder::Columns;
    #[inline(always)]
    fn wide(self) -> bool {
        M::wide_columns(self.0)
    }
    #[inline(always)]
    fn plain(self, lo: i64, hi: i64) -> bool {
        self.0.plain(0, lo, hi)
    }
    #[inline(always)]
    #[track_caller]
    fn block<const N: usize>(self, at: M::At) -> M::Block<T, N> {
        let n = self.0.rows();
        if T::dtype().is_float() {
            let n = n.convert::<T>();
            return M::items::<_, N>(
                self.0.sum().map(
                    #[inline(always)]
                    move |s| s / n,
                ),
                at,
            );
        }
        if T::dtype() == DType::U64 {
            let (wide, n) = (
                self.0.map(
                    #[inline(always)]
                    |v| v.cast::<u64>(),
                ),
                n.cast::<u64>(),
            );
            return M::items::<_, N>(
                wide.sum().map(
                    #[inline(always)]
                    move |s| (s / n).cast::<T>(),
                ),
                at,
            );
        }
        let wide = self.0.map(
            #[inline(always)]
            |v| v.cast::<i64>(),
        );
        M::items::<_, N>(
            wide.sum().map(
                #[inline(always)]
                move |s| (s / n).cast::<T>(),
            ),
            at,
        )
    }
    #[inline(always)]
    fn lane<const N: usize>(&self, b: &M::Block<T, N>, j: usize) -> Val<M, T> {
        Val(M::block_lane(b, j))
    }
}

/// Reductions of columns of floats.
pub trait FloatColumns<M: Target, T: Float>: ColumnLanes<M, Item = Val<M, T>> {
    /// The mean of each column and its variance, as [`FloatLanes::mean_variance`]. Rows are combined with others by Chan, Golub and
    /// LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances" (1979).
    #[inline(always)]
    #[track_caller]
    fn mean_variance(self) -> impl Lanes<M, Item = (Val<M, T>, Val<M, T>)> {
        let sums = self.fold_with(
            (Val::zero(), Val::zero()),
            #[inline(always)]
            |(n, s): (Val<M, T>, Val<M, T>), (v, _)| (n + Val::one(), s + v),
        );
        let moments = sums
            .then(
                #[inline(always)]
                |(n, s)| (n, s / n),
                Val::zero(),
                #[inline(always)]
                |q: Val<M, T>, (v, _), (_, mean): (Val<M, T>, Val<M, T>)| q + (v - mean) * (v - mean),
            )
            .reduce(
                #[inline(always)]
                |((n, mean), q), ((m, other), r)| {
                    let all = n + m;
                    let d = other - mean;
                    ((all, mean + d * (m / all)), q + r + d * d * (n * (m / all)))
                },
            );
        moments.map(
            #[inline(always)]
            |((n, mean), q)| (mean, q / n),
        )
    }

    /// The largest element of each column, and the sum of exponentials, as [`FloatLanes::max_exp_sum`]; of a column of negative
    /// infinity, the most negative finite number and 0.
    #[inline(always)]
    #[track_caller]
    fn max_exp_sum(self) -> impl Lanes<M, Item = (Val<M, T>, Val<M, T>)> {
        let largest = self.fold_with(
            Val::neg_infinity(),
            #[inline(always)]
            |m, (v, _)| Item::select(gt(v, m), v, m),
        );
        largest
            .then(
                // Some rows may be negative infinity where others are not.
                #[inline(always)]
                |m: Val<M, T>| Item::select(gt(m, Val::min_value()), m, Val::min_value()),
                Val::zero(),
                #[inline(always)]
                |s: Val<M, T>, (v, _), m: Val<M, T>| s + (v - m).exp(),
            )
            .reduce(
                // The sum of the smaller one is brought to the larger one.
                #[inline(always)]
                |(m, s), (n, r)| {
                    let l = m.max(n);
                    let d = (m.min(n) - l).exp();
                    (l, Item::select(lt(m, n), s * d + r, s + r * d))
                },
            )
    }
}

impl<M: Target, T: Float, C: ColumnLanes<M, Item = Val<M, T>>> FloatColumns<M, T> for C {}

/// Whether `v` is larger than `m`; NaN is larger than everything else.
#[inline(always)]
#[track_caller]
fn above<M: Target, T: Number>(v: Val<M, T>, m: Val<M, T>) -> Val<M, bool> {
    eq(m, m) & !le(v, m)
}

/// Whether `v` is smaller than `m`; NaN is smaller than everything else.
#[inline(always)]
#[track_caller]
fn below<M: Target, T: Number>(v: Val<M, T>, m: Val<M, T>) -> Val<M, bool> {
    eq(m, m) & !ge(v, m)
}

/// Whether neither is larger; NaN equals NaN.
#[inline(always)]
#[track_caller]
fn same<M: Target, T: Number>(a: Val<M, T>, b: Val<M, T>) -> Val<M, bool> {
    eq(a, b) | (ne(a, a) & ne(b, b))
}

impl<M: Target, T: Number> In<M, T, 1> {
    /// The position of the largest element: the first of equal ones, the first NaN if there is one; 0 of nothing.
    #[inline(always)]
    #[track_caller]
    pub fn argmax(self) -> Val<M, i64> {
        self.position(
            Val::lowest(),
            #[inline(always)]
            |v, m| above(v, m),
        )
    }

    /// The position of the smallest element: the first of equal ones, the first NaN if there is one; 0 of nothing.
    #[inline(always)]
    #[track_caller]
    pub fn argmin(self) -> Val<M, i64> {
        self.position(
            Val::highest(),
            #[inline(always)]
            |v, m| below(v, m),
        )
    }

    /// The position of the element that none is beyond; nothing is beyond `last` but NaN, or in order where there is nothing else.
    #[inline(always)]
    #[track_caller]
    fn position(self, last: Val<M, T>, beyond: impl Fn(Val<M, T>, Val<M, T>) -> Val<M, bool> + Copy) -> Val<M, i64> {
        let (n, part) = (self.len(), Val(M::int::<i64>(PART)));
        let (best, at) = (var::<M, _>(last), var::<M, _>(Val::<M, i64>::zero()));
        M::for_range(
            Val::<M, i64>::zero().0,
            n.0,
            part.0,
            #[inline(always)]
            |first: Val<M, i64>| {
                let none = Val::<M, i32>::max_value();
                let (m, i) = self
                    .slice(first, (n - first).min(part))
                    .enumerate()
                    .map(
                        #[inline(always)]
                        |(v, i)| (v, i.cast::<i32>()),
                    )
                    .fold_with(
                        (last, none),
                        #[inline(always)]
                        |(m, at), (v, i)| Item::select(beyond(v, m), (v, i), (m, at)),
                    )
                    .reduce(
                        #[inline(always)]
                        |(m, at), (v, i)| {
                            let is_first = beyond(v, m) | (same(v, m) & lt(i, at));
                            Item::select(is_first, (v, i), (m, at))
                        },
                    );
                // Neighbouring programs may run side by side: each chooses for itself.
                let (old, is_better) = (best.get(), beyond(m, best.get()));
                best.assign(Item::select(is_better, m, old));
                at.assign(Item::select(is_better, first + i.cast::<i64>(), at.get()));
            },
        );
        at.get()
    }
}

/// The position of an element of each column, as [`In::argmax`].
#[inline(always)]
#[track_caller]
fn position<M: Target, T: Number>(
    columns: impl ColumnLanes<M, Item = Val<M, T>>,
    last: Val<M, T>,
    beyond: impl Fn(Val<M, T>, Val<M, T>) -> Val<M, bool> + Copy,
) -> impl Lanes<M, Item = Val<M, i64>> {
    let n = columns.rows();
    let found = columns
        .fold_with(
            (last, n),
            #[inline(always)]
            move |(m, at), (v, i)| Item::select(beyond(v, m), (v, i), (m, at)),
        )
        .reduce(
            #[inline(always)]
            move |(m, at), (v, i)| {
                let is_first = beyond(v, m) | (same(v, m) & lt(i, at));
                Item::select(is_first, (v, i), (m, at))
            },
        );
    found.map(
        #[inline(always)]
        move |(_, at)| Item::select(lt(at, n), at, Val::zero()),
    )
}
