//! The operands of a program kernel: [`In`], [`Out`], [`Buffer`], and the parts of them that a program instance owns.
//!
//! A kernel cannot touch memory that is not its own: reading outside an operand gives its pad value (0 unless
//! [`In::pad`] says otherwise), writing outside does nothing. Indices are computed as all integers are, modulo 2^64: element `i`
//! of a slice from `lo` on is the operand's element `lo + i`, wherever that comes to lie. An [`Out`] or [`Buffer`] is writable only at the place
//! that [`program_id`](super::builtins::program_id) names, which no other instance shares; everything else goes
//! through `scatter` and atomics.
//!
//! Types alone cannot tell that no other instance shares a place: that takes the ids of all axes of the grid. So an [`Out`] and its
//! parts ([`Owned`], [`OwnedTile`]) are names of memory without a method that touches it. [`Unlocked`] has those, and is made by an
//! `unsafe` function, which `#[kernel]` calls where it has followed the output to a method of it.

use std::ops;

use super::control::Var;
use super::lanes::{Item, Lanes};
use super::target::Target;
use super::tile::{Tile, View};
use super::value::Val;
use super::value::scalar::{Any, Int, Number, Scalar};
use crate::kernel::ir::AtomicOp;

/// The index of this program instance along one axis of the grid: an `i64`, and the proof that a part of an output is
/// this instance's own.
pub struct ProgramId<M: Target>(pub(crate) Val<M, i64>);

impl<M: Target> Clone for ProgramId<M> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}
impl<M: Target> Copy for ProgramId<M> {}

impl<M: Target> ProgramId<M> {
    /// As a number of another dtype.
    #[inline(always)]
    #[track_caller]
    pub fn cast<U: Scalar>(self) -> Val<M, U> {
        self.0.cast()
    }

    /// Reading a variable: an id is one already.
    #[doc(hidden)]
    #[inline(always)]
    pub fn get(self) -> Self {
        self
    }
}

macro_rules! id_operators {
    ($($trait:ident $method:ident),*) => { $(
        impl<M: Target> ops::$trait<Val<M, i64>> for ProgramId<M> {
            type Output = Val<M, i64>;
            #[inline(always)]
            #[track_caller]
            fn $method(self, b: Val<M, i64>) -> Val<M, i64> {
                ops::$trait::$method(self.0, b)
            }
        }
        impl<M: Target> ops::$trait<ProgramId<M>> for Val<M, i64> {
            type Output = Val<M, i64>;
            #[inline(always)]
            #[track_caller]
            fn $method(self, b: ProgramId<M>) -> Val<M, i64> {
                ops::$trait::$method(self, b.0)
            }
        }
    )* };
}
id_operators!(Add add, Sub sub, Mul mul, Div div, Rem rem);

/// What can index an operand for reading: an `i64`, or a program id.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot index an operand",
    note = "an index is an i64 or a program id: cast with `as i64`"
)]
pub trait Index<M: Target>: Copy {
    /// The index as a number.
    fn index(self) -> Val<M, i64>;
    /// The first element of the tile: a program id counts tiles, a number counts elements.
    #[doc(hidden)]
    fn offset(self, size: usize) -> Val<M, i64>;
}

impl<M: Target> Index<M> for Val<M, i64> {
    #[inline(always)]
    fn index(self) -> Val<M, i64> {
        self
    }
    #[inline(always)]
    fn offset(self, _: usize) -> Val<M, i64> {
        self
    }
}

impl<M: Target> Index<M> for ProgramId<M> {
    #[inline(always)]
    fn index(self) -> Val<M, i64> {
        self.0
    }
    #[inline(always)]
    #[track_caller]
    fn offset(self, size: usize) -> Val<M, i64> {
        self.0 * super::tile_const(size)
    }
}

/// What names the part of an output that this program instance owns: a program id, nothing else.
#[diagnostic::on_unimplemented(
    message = "an output is writable only at the program's own place, and `{Self}` is not a program id",
    label = "not a program id",
    note = "write at `program_id(axis)` itself; to write elsewhere use `.scatter(index, value)` or an atomic"
)]
pub trait Own<M: Target>: Index<M> {}

impl<M: Target> Own<M> for ProgramId<M> {}

/// What names one element of an operand of rank `R`: an index for each dimension, as a tuple or an array. `#[kernel]` makes a
/// tuple of the indices of `x.at(i, j)`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not name an element of an operand of rank {R}",
    label = "not the indices of an element",
    note = "an element has an index for each dimension, an i64 or a program id: `x.at(i, j)`, `x.at([i, j])`; cast with `as i64`"
)]
pub trait Position<M: Target, const R: usize>: Copy {
    /// The indices.
    #[doc(hidden)]
    fn indices(self) -> [M::Val<i64>; R];
}

impl<M: Target> Position<M, 1> for Val<M, i64> {
    #[inline(always)]
    fn indices(self) -> [M::Val<i64>; 1] {
        [self.0]
    }
}
impl<M: Target> Position<M, 1> for ProgramId<M> {
    #[inline(always)]
    fn indices(self) -> [M::Val<i64>; 1] {
        [self.0.0]
    }
}

macro_rules! positions {
    ($($r:literal $($i:ident $I:ident),*;)*) => { $(
        impl<M: Target, $($I: Index<M>),*> Position<M, $r> for ($($I,)*) {
            #[inline(always)]
            fn indices(self) -> [M::Val<i64>; $r] {
                let ($($i,)*) = self;
                [$($i.index().0),*]
            }
        }
        impl<M: Target> Position<M, $r> for [Val<M, i64>; $r] {
            #[inline(always)]
            fn indices(self) -> [M::Val<i64>; $r] {
                let [$($i),*] = self;
                [$($i.0),*]
            }
        }
    )* };
}
positions! {
    1 i I;
    2 i I, j J;
    3 i I, j J, k K;
    4 i I, j J, k K, l L;
    5 i I, j J, k K, l L, n N;
}

/// That an operand of rank `R` has a dimension `D`.
#[diagnostic::on_unimplemented(
    message = "an operand of rank {R} has no dimension {D}",
    label = "no dimension {D}",
    note = "dimensions count from 0"
)]
pub trait HasDim<const R: usize, const D: usize> {}

macro_rules! dims {
    ($($r:literal: $($d:literal)*;)*) => { $($(
        #[diagnostic::do_not_recommend]
        impl HasDim<$r, $d> for () {}
    )*)* };
}
dims! {
    1: 0;
    2: 0 1;
    3: 0 1 2;
    4: 0 1 2 3;
    5: 0 1 2 3 4;
}

macro_rules! operand_type {
    ($(#[$doc:meta])* $name:ident $raw:ident) => {
        $(#[$doc])*
        pub struct $name<M: Target, T: Any, const R: usize>(pub(crate) M::$raw<T, R>);

        impl<M: Target, T: Any, const R: usize> Clone for $name<M, T, R> {
            #[inline(always)]
            fn clone(&self) -> Self {
                *self
            }
        }
        impl<M: Target, T: Any, const R: usize> Copy for $name<M, T, R> {}
    };
}

operand_type! {
    /// A tensor of rank `R` that a kernel reads.
    In In
}
operand_type! {
    /// A tensor of rank `R` that a kernel writes: its result. The methods that touch its elements are those of [`Unlocked`].
    Out Out
}
operand_type! {
    /// A tensor of rank `R` that a kernel reads and writes in place. The methods that touch its elements are those of [`Unlocked`].
    Buffer Out
}
operand_type! {
    /// A part of an output that this program instance owns.
    Owned Out
}
operand_type! {
    /// A part of a buffer that this program instance owns.
    OwnedBuffer Out
}

impl<M: Target, T: Any, const R: usize> In<M, T, R> {
    /// The operand of index `operand`.
    ///
    /// # Safety
    /// As for [`Target::input`].
    #[doc(hidden)]
    #[inline(always)]
    pub unsafe fn operand(m: M, operand: u32) -> Self {
        // SAFETY: the caller's promise is the same.
        In(unsafe { m.input(operand) })
    }

    /// The extent of dimension `D`: `x.dim(0)`.
    #[inline(always)]
    #[track_caller]
    pub fn dim<const D: usize>(self) -> Val<M, i64>
    where
        (): HasDim<R, D>,
    {
        Val(M::dim_in(self.0, D))
    }

    /// One element; the pad value outside the bounds.
    #[inline(always)]
    #[track_caller]
    pub fn at(self, index: impl Position<M, R>) -> Val<M, T> {
        Val(M::load(self.0, index.indices()))
    }

    /// The same tensor, reading `value` outside its bounds.
    #[inline(always)]
    #[track_caller]
    pub fn pad(self, value: Val<M, T>) -> Self {
        In(M::pad(self.0, value.0))
    }
}

/// An output, or a part of one, with the right to touch its elements.
///
/// In a kernel, `y.row(i).write(…)` makes one by itself: `#[kernel]` puts it there for each access of which it has found that no other
/// program instance touches the same elements at the same time, or that all of them do so atomically.
pub struct Unlocked<P>(pub(crate) P);

/// The right to touch the elements of `part`.
///
/// # Safety
/// In one launch, all accesses to an output are `scatter` and atomics; or those of two program instances are to different elements.
#[doc(hidden)]
#[inline(always)]
pub unsafe fn unlocked<P>(part: P) -> Unlocked<P> {
    Unlocked(part)
}

macro_rules! writable {
    ($($name:ident $owned:ident),*) => { $(
        impl<M: Target, T: Any, const R: usize> $name<M, T, R> {
            /// The operand of index `operand`.
            ///
            /// # Safety
            /// As for [`Target::output`].
            #[doc(hidden)]
            #[inline(always)]
            pub unsafe fn operand(m: M, operand: u32) -> Self {
                // SAFETY: the caller's promise is the same.
                $name(unsafe { m.output(operand) })
            }

            /// The extent of dimension `D`: `y.dim(0)`.
            #[inline(always)]
            #[track_caller]
            pub fn dim<const D: usize>(self) -> Val<M, i64>
            where
                (): HasDim<R, D>,
            {
                Val(M::dim_out(self.0, D))
            }
        }

        impl<M: Target, T: Any, const R: usize> Unlocked<$name<M, T, R>> {
            /// Writes any element, which other programs may write as well: one of the values stands, and which one may differ from
            /// run to run. Where they may be different values, let one program make all updates of an element in order.
            #[inline(always)]
            #[track_caller]
            pub fn scatter(self, index: impl Position<M, R>, v: Val<M, T>) {
                M::scatter(self.0.0, index.indices(), v.0)
            }
        }

        impl<M: Target, T: Any> Unlocked<$name<M, T, 1>> {
            /// Writes the element that belongs to program `i`.
            #[inline(always)]
            #[track_caller]
            pub fn set<I: Own<M>>(self, i: I, v: Val<M, T>) {
                M::store(self.0.0, [i.index().0], v.0)
            }
        }

        impl<M: Target, T: Any> $name<M, T, 1> {
            /// The `N` elements that belong to program `i` (fewer at the end).
            #[inline(always)]
            #[track_caller]
            pub fn block<const N: usize>(self, i: impl Own<M>) -> $owned<M, T, 1> {
                $owned(M::slice_out(self.0, i.offset(N).0, super::tile_const::<M>(N).0))
            }
        }

        impl<M: Target, T: Any> $name<M, T, 2> {
            /// The row that belongs to program `i`.
            #[inline(always)]
            #[track_caller]
            pub fn row<I: Own<M>>(self, i: I) -> $owned<M, T, 1> {
                $owned(M::select_out(self.0, i.index().0))
            }

            /// The column that belongs to program `j`.
            #[inline(always)]
            #[track_caller]
            pub fn column<I: Own<M>>(self, j: I) -> $owned<M, T, 1> {
                $owned(M::column_out(self.0, j.index().0))
            }

            /// The tile of `TR` rows and `TC` columns that belongs to program `(i, j)`.
            #[inline(always)]
            #[track_caller]
            pub fn tile<const TR: usize, const TC: usize>(self, i: impl Own<M>, j: impl Own<M>) -> OwnedTile<M, T, TR, TC> {
                OwnedTile { out: self.0, origin: [i.offset(TR), j.offset(TC)] }
            }

            /// The `TR` whole rows that belong to program `i`, as a tile of `TC` columns, which must not be fewer than
            /// the operand has; what is outside the operand is dropped.
            #[inline(always)]
            #[track_caller]
            pub fn rows<const TR: usize, const TC: usize>(self, i: impl Own<M>) -> OwnedTile<M, T, TR, TC> {
                OwnedTile { out: self.0, origin: [i.offset(TR), Val(M::int::<i64>(0))] }
            }
        }
    )* };
}
writable!(Out Owned, Buffer OwnedBuffer);

macro_rules! selections {
    ($($r:literal $s:literal),*) => { $(
        impl<M: Target, T: Any> In<M, T, $r> {
            /// The part at index `i` of the first dimension; reads as padding if `i` is outside.
            #[inline(always)]
            #[track_caller]
            pub fn select(self, i: impl Index<M>) -> In<M, T, $s> {
                In(M::select_in(self.0, i.index().0))
            }
        }
        impl<M: Target, T: Any> Out<M, T, $r> {
            /// The part at index `i` of the first dimension, which belongs to program `i`.
            #[inline(always)]
            #[track_caller]
            pub fn select<I: Own<M>>(self, i: I) -> Out<M, T, $s> {
                Out(M::select_out(self.0, i.index().0))
            }
        }
        impl<M: Target, T: Any> Buffer<M, T, $r> {
            /// The part at index `i` of the first dimension, which belongs to program `i`.
            #[inline(always)]
            #[track_caller]
            pub fn select<I: Own<M>>(self, i: I) -> Buffer<M, T, $s> {
                Buffer(M::select_out(self.0, i.index().0))
            }
        }
    )* };
}
selections!(2 1, 3 2, 4 3, 5 4);

impl<M: Target, T: Any> In<M, T, 1> {
    /// `n` elements from `lo`; outside the operand they read as padding.
    #[inline(always)]
    #[track_caller]
    pub fn slice(self, lo: Val<M, i64>, n: Val<M, i64>) -> Self {
        In(M::slice_in(self.0, lo.0, n.0))
    }

    /// As many elements, each that `by` places further on: element `j` is this one's `j + by`. Outside they read as padding.
    #[inline(always)]
    #[track_caller]
    pub fn shift(self, by: impl Index<M>) -> Self {
        self.slice(by.index(), self.dim::<0>())
    }

    /// The elements from the last to the first.
    #[inline(always)]
    #[track_caller]
    pub fn reverse(self) -> Self {
        In(M::reverse_in(self.0))
    }

    /// The `i`-th block of `N` elements (fewer at the end).
    #[inline(always)]
    #[track_caller]
    pub fn block<const N: usize>(self, i: impl Index<M>) -> Self {
        let size = super::tile_const::<M>(N);
        let lo = i.index() * size;
        self.slice(lo, size.min(self.dim::<0>() - lo))
    }
}

impl<M: Target, T: Any> In<M, T, 2> {
    /// Row `i`; reads as padding if `i` is outside.
    #[inline(always)]
    #[track_caller]
    pub fn row(self, i: impl Index<M>) -> In<M, T, 1> {
        In(M::select_in(self.0, i.index().0))
    }

    /// Column `j`.
    #[inline(always)]
    #[track_caller]
    pub fn column(self, j: impl Index<M>) -> In<M, T, 1> {
        In(M::column_in(self.0, j.index().0))
    }

    /// A tile of `TR` rows and `TC` columns. A program id counts tiles, a number is the first row or column.
    /// Outside the operand a tile reads 0.
    #[inline(always)]
    #[track_caller]
    pub fn tile<const TR: usize, const TC: usize>(self, i: impl Index<M>, j: impl Index<M>) -> View<M, T, TR, TC> {
        View { x: self, origin: [i.offset(TR), j.offset(TC)], transpose: false }
    }

    /// A tile of gathered rows: row `i` has `TC` columns of row `indices[i]`. A program id counts tiles, a number is the first
    /// column. What is outside the operand reads as padding; past the end of `indices`, so do whole rows.
    #[inline(always)]
    #[track_caller]
    pub fn rows_at<const TR: usize, const TC: usize>(
        self,
        indices: In<M, impl Int, 1>,
        j: impl Index<M>,
    ) -> Tile<M, T, TR, TC> {
        let (indices, first, width) = (indices.pad(Val::max_value()), j.offset(TC), super::tile_const::<M>(TC));
        Tile::from_rows(
            #[inline(always)]
            move |i| self.row(indices.at(i).cast::<i64>()).slice(first, width),
        )
    }
}

/// The tile of an output that this program instance owns.
pub struct OwnedTile<M: Target, T: Any, const R: usize, const C: usize> {
    out: M::Out<T, 2>,
    origin: [Val<M, i64>; 2],
}

impl<M: Target, T: Any, const R: usize, const C: usize> Unlocked<OwnedTile<M, T, R, C>> {
    /// Writes the tile; what lies outside the operand is dropped.
    #[inline(always)]
    #[track_caller]
    pub fn write(self, v: Tile<M, T, R, C>) {
        M::tile_store(self.0.out, [self.0.origin[0].0, self.0.origin[1].0], v.0)
    }

    /// [`write`](Self::write) of a variable, without a copy of the tile.
    #[doc(hidden)]
    #[inline(always)]
    #[track_caller]
    pub fn write_var(self, v: &Var<M, Tile<M, T, R, C>>) {
        M::tile_store_var(self.0.out, [self.0.origin[0].0, self.0.origin[1].0], &v.0)
    }
}

macro_rules! owned {
    ($($name:ident),*) => { $(
        impl<M: Target, T: Any> $name<M, T, 1> {
            /// The number of elements.
            #[inline(always)]
            #[track_caller]
            pub fn len(self) -> Val<M, i64> {
                Val(M::dim_out(self.0, 0))
            }

            /// The elements from the last to the first.
            #[inline(always)]
            #[track_caller]
            pub fn reverse(self) -> Self {
                $name(M::reverse_out(self.0))
            }

            /// `n` elements from `lo`: of those that the part has. Nothing else is written by way of the slice.
            #[inline(always)]
            #[track_caller]
            pub fn slice(self, lo: Val<M, i64>, n: Val<M, i64>) -> Self {
                $name(M::slice_out(self.0, lo.0, n.0))
            }
        }

        impl<M: Target, T: Any> Unlocked<$name<M, T, 1>> {
            /// Writes every element from `lanes`, which reads as padding past its own length.
            #[inline(always)]
            #[track_caller]
            pub fn write<L: Lanes<M, Item = Val<M, T>>>(self, lanes: L) {
                M::write(self.0.0, lanes)
            }

            /// Writes the inclusive prefix combination of `lanes`: element `i` combines items `0..=i`. `combine` must
            /// be associative, with `init` as its identity: the order of combination is fixed, but a machine's own (a
            /// CPU combines 16 neighbours in a tree, then groups of them, then what came before).
            #[inline(always)]
            #[track_caller]
            pub fn write_scan<L: Lanes<M, Item = Val<M, T>>>(
                self,
                lanes: L,
                init: Val<M, T>,
                combine: impl Fn(Val<M, T>, Val<M, T>) -> Val<M, T>,
            ) {
                M::scan(self.0.0, lanes, init, combine)
            }

            /// Writes what comes before each element of a row combined, `init` at the first: as
            /// [`write_scan`](Self::write_scan).
            #[inline(always)]
            #[track_caller]
            pub fn write_exclusive_scan(
                self,
                row: In<M, T, 1>,
                init: Val<M, T>,
                combine: impl Fn(Val<M, T>, Val<M, T>) -> Val<M, T>,
            ) {
                self.write_scan(row.pad(init).slice(-Val::one(), row.dim::<0>()), init, combine)
            }

            /// The one if `exclusive`, else the other: in code of one.
            #[inline(always)]
            #[track_caller]
            pub fn write_any_scan(
                self,
                row: In<M, T, 1>,
                exclusive: Val<M, bool>,
                init: Val<M, T>,
                combine: impl Fn(Val<M, T>, Val<M, T>) -> Val<M, T>,
            ) {
                let shift: Val<M, i64> = Item::select(exclusive, Val::one(), Val::zero());
                self.write_scan(row.pad(init).slice(-shift, row.dim::<0>()), init, combine)
            }

            /// Writes one element.
            #[inline(always)]
            #[track_caller]
            pub fn set<I: Index<M>>(self, i: I, v: Val<M, T>) {
                M::store(self.0.0, [i.index().0], v.0)
            }

            /// The elements as they are now: of a result, as this program wrote them, or 0.
            #[inline(always)]
            #[track_caller]
            pub fn read(self) -> In<M, T, 1> {
                In(M::read(self.0.0))
            }

            /// One element as it is now: of a result, as this program wrote it, or 0. Outside the part it is 0.
            #[inline(always)]
            #[track_caller]
            pub fn at(self, i: impl Index<M>) -> Val<M, T> {
                Val(M::load(M::read(self.0.0), [i.index().0]))
            }
        }
    )* };
}
owned!(Owned, OwnedBuffer);

impl<M: Target, T: Any> Unlocked<Buffer<M, T, 1>> {
    /// The element that belongs to program `i`, as it is now.
    #[inline(always)]
    #[track_caller]
    pub fn at<I: Own<M>>(self, i: I) -> Val<M, T> {
        Val(M::load(M::read(self.0.0), [i.index().0]))
    }
}

/// What an atomic may combine: integers. Floating-point addition is not associative, so its result would depend on the
/// order of the programs; reduce with `sum` or write partial sums instead.
#[diagnostic::on_unimplemented(
    message = "atomics take integers, not `{Self}`",
    note = "a float's sum would depend on the order of the programs: reduce with `.sum()`, scale to an integer, or say that results may \
            differ from run to run: `#[kernel(.., nondeterministic)]`"
)]
pub trait Atomic: Int {}
impl Atomic for i32 {}
impl Atomic for u32 {}
impl Atomic for i64 {}
impl Atomic for u64 {}
impl<const I: usize> Atomic for super::value::scalar::Sym<I> {}

/// What atomics of a kernel that is `nondeterministic` may combine: floats too.
#[diagnostic::on_unimplemented(message = "atomics take integers of 32 and 64 bits, `f32` and `f64`, not `{Self}`")]
pub trait UnorderedAtomic: Number {}
impl<T: Atomic> UnorderedAtomic for T {}
impl UnorderedAtomic for f32 {}
impl UnorderedAtomic for f64 {}

macro_rules! atomics {
    ($name:ident: $($(#[$doc:meta])* $method:ident $op:ident $($unordered:ident)?;)*) => {
        // Of any `T`: a trait's method of the same name would be taken for dtypes that this is not of.
        impl<M: Target, T: Any, const R: usize> Unlocked<$name<M, T, R>> { $(
            $(#[$doc])*
            #[inline(always)]
            #[track_caller]
            pub fn $method(self, index: impl Position<M, R>, v: Val<M, T>)
            where
                T: Atomic,
            {
                M::atomic(AtomicOp::$op, self.0.0, index.indices(), v.0)
            }

            $(
                /// The same of floats too.
                #[doc(hidden)]
                #[inline(always)]
                #[track_caller]
                pub fn $unordered(self, index: impl Position<M, R>, v: Val<M, T>)
                where
                    T: UnorderedAtomic,
                {
                    M::atomic(AtomicOp::$op, self.0.0, index.indices(), v.0)
                }
            )?
        )* }
    };
    ($($name:ident)*) => { $(
        atomics! { $name:
            /// Adds `v` to an element, indivisibly; integers wrap. Outside the bounds nothing happens.
            atomic_add Add atomic_add_unordered;
            /// Keeps the larger of an element and `v`, indivisibly.
            atomic_max Max atomic_max_unordered;
            /// Keeps the smaller of an element and `v`, indivisibly.
            atomic_min Min atomic_min_unordered;
            /// Bitwise or of an element and `v`, indivisibly.
            atomic_or Or;
        }
    )* };
}
atomics!(Out Buffer);
