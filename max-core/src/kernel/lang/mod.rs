//! The kernel language: the types and functions that kernels are written with, and the targets that give them meaning.
//!
//! A kernel's body, as `#[kernel]` rewrites it, is an ordinary Rust function, generic over a [`Target`]. rustc checks
//! it once, at the author's tokens. Its instantiations are the kernel's forms: native code for each machine level
//! ([`Cpu`](super::__private::Cpu)), a scalar form that checks everything ([`Reference`](super::__private::Reference)), and the program that builds its IR ([`Record`](super::__private::Record)).
//!
//! Three rules keep the native code vectorized, and must hold for everything here: every function and closure between
//! a kernel's entry and its lanes is `#[inline(always)]`; lane code is written per element, over blocks loaded
//! beforehand; and nothing in it can panic.

pub mod builtins;
mod control;
mod dot_scaled;
mod lanes;
mod math;
mod optional;
mod print;
pub(crate) mod symbols;
mod target;
mod tensors;
mod tile;
mod value;

pub use control::*;
pub use dot_scaled::{Scale, ScaledRow, ScaledTile, dot_scaled_assign};
pub(crate) use lanes::Recomputed;
pub use lanes::columns::{
    ChunkFold, Chunks, ColumnFold, ColumnLanes, Columns, MapColumns, OwnedColumns, ReducedChunks, ReducedColumns,
    ZipColumns,
};
pub use lanes::reductions::{FloatColumns, FloatLanes, Fold, Means, NumberColumns};
pub use lanes::remainder::Remainder;
pub use lanes::repeat::Repeat;
pub(crate) use lanes::segments::item;
pub use lanes::segments::{Dot4, Nest, RepeatEach, Rounds, WordLanes};
pub use lanes::two_level_scales::{IntegerScale, Levels, TwoLevel};
pub use lanes::{BoolLanes, ElementOut, Indices, Item, LaneItem, Lanes, Map, NumberLanes, Outs, ScalarLanes, Zip};
pub use optional::{Optional, given, if_given, is_given};
pub(crate) use print::general;
pub use print::{Print, Printed};
pub use symbols::sym_tile;
pub use target::Target;
pub use tensors::{
    Atomic, Buffer, HasDim, In, Index, Out, Own, Owned, OwnedBuffer, OwnedTile, Position, ProgramId, Unlocked,
    UnorderedAtomic, unlocked,
};
pub use tile::{DotLeft, DotRight, Tile, View};
pub use value::prim::{Prim, op};
pub use value::scalar::{Any, Bits, Float, Int, Number, SameBits, Scalar, Signed, Sym, compute_dtype};
pub(crate) use value::sealed::Sealed;
pub use value::{Str, Val};

/// The dtypes, by the names that kernels use.
pub mod dtypes {
    pub use crate::dtype::{F8E4M3, F8E4M3FNUZ, F8E5M2, F8E5M2FNUZ, bf16, f16};
}

/// Runs the lanes of an elementwise kernel.
#[inline(always)]
pub fn elementwise<M: Target, O: Outs<M>, L: Lanes<M, Item = O::Items>>(m: M, outs: O, lanes: L) {
    m.elementwise(outs, lanes)
}

/// An operand that an elementwise kernel reads.
///
/// # Safety
/// As for [`Target::element_in`].
#[inline(always)]
pub unsafe fn elem_in<M: Target, T: Any>(m: M, operand: u32) -> In<M, T, 1> {
    // SAFETY: the caller's promise is the same.
    In(unsafe { m.element_in(operand) })
}

/// An operand that an elementwise kernel writes.
///
/// # Safety
/// As for [`Target::element_out`].
#[inline(always)]
pub unsafe fn elem_out<M: Target, T: Any>(m: M, operand: u32) -> ElementOut<M, T> {
    // SAFETY: the caller's promise is the same.
    unsafe { ElementOut::new(m, operand) }
}
