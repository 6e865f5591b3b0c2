//! Who may be lanes: the language's own types.
//!
//! Targets read whole blocks of lanes without a look at bounds where [`Lanes::plain`](super::super::Lanes::plain) says that they may. An
//! implementation outside of this crate could say so of anything.

use super::super::lanes::columns::{
    Columns, EachColumn, MapColumns, ReducedChunks, ReducedColumns, ReducedTwice, ZipColumns,
};
use super::super::lanes::reductions::Means;
use super::super::lanes::repeat::Repeat;
use super::super::lanes::segments::{Bytes, Dot4, Numbers, RepeatEach, Segments, Words};
use super::super::lanes::two_level_scales::TwoLevel;
use super::super::lanes::{Indices, Map, Recomputed, Zip};
use super::super::target::Target;
use super::super::tensors::In;
use super::scalar::Any;

/// Implemented in this crate, and nowhere else.
#[doc(hidden)]
pub trait Sealed {}

impl<M: Target, T: Any> Sealed for In<M, T, 1> {}
impl<M: Target> Sealed for Indices<M> {}
impl<L, F> Sealed for Map<L, F> {}
impl<M: Target, L> Sealed for Recomputed<M, L> {}
impl<A, B> Sealed for Zip<A, B> {}
impl<M: Target, T: Any> Sealed for Repeat<M, T> {}
impl<X, F, L, const S: usize> Sealed for Segments<X, F, L, S> {}
impl<X, F, L, const S: usize> Sealed for Words<X, F, L, S> {}
impl<A, B> Sealed for Dot4<A, B> {}
impl<M: Target, U, N> Sealed for Numbers<M, U, N> {}
impl<L, const S: usize> Sealed for RepeatEach<L, S> {}
impl<L, U> Sealed for Bytes<L, U> {}
impl<L, F, const S: usize> Sealed for TwoLevel<L, F, S> {}
impl<T, const D: usize> Sealed for [T; D] {}
impl<M: Target, F> Sealed for EachColumn<M, F> {}
impl<C, A, F, K> Sealed for ReducedColumns<C, A, F, K> {}
impl<C, A, F, B, S, G, H, K> Sealed for ReducedTwice<C, A, F, B, S, G, H, K> {}
impl<M: Target, T: Any, const N: usize, A, F, C> Sealed for ReducedChunks<M, T, N, A, F, C> {}
impl<M: Target, T: Any> Sealed for Columns<M, T> {}
impl<C, F> Sealed for MapColumns<C, F> {}
impl<C, L> Sealed for ZipColumns<C, L> {}
impl<C> Sealed for Means<C> {}

macro_rules! tuples {
    ($($item:ident)*) => {
        impl<$($item),*> Sealed for ($($item,)*) {}
    };
    ($($item:ident)* ; $next:ident $($rest:ident)*) => {
        tuples!($($item)*);
        tuples!($($item)* $next ; $($rest)*);
    };
    ($($item:ident)* ;) => {
        tuples!($($item)*);
    };
}
tuples!(; A B C D E F G H);
