//! The functions of the kernel language. Inside a kernel they are called without the first argument, which `#[kernel]`
//! supplies.

use std::panic::Location;

pub use super::dot_scaled::dot_scaled;
use super::lanes::{Indices, Item};
use super::print::Print;
use super::target::Target;
use super::tensors::{Index, ProgramId};
use super::tile::{DotLeft, DotRight, Tile};
use super::value::Val;
use super::value::scalar::{Int, Number};

/// `program_id(axis)`: the index of this program instance along an axis of the grid.
#[inline(always)]
#[track_caller]
pub fn program_id<M: Target>(m: M, axis: u32) -> ProgramId<M> {
    ProgramId(Val(m.program_id(axis)))
}

/// `let [i, j] = program_id();`: all of them.
#[inline(always)]
#[track_caller]
pub fn program_ids<M: Target, const N: usize>(m: M) -> [ProgramId<M>; N] {
    // Not a closure: it would lose the caller's line.
    let mut ids = [program_id(m, 0); N];
    let mut axis = 1;
    while axis < N {
        ids[axis] = program_id(m, axis as u32);
        axis += 1;
    }
    ids
}

/// `num_programs(axis)`: the number of program instances along an axis of the grid.
#[inline(always)]
#[track_caller]
pub fn num_programs<M: Target>(m: M, axis: u32) -> Val<M, i64> {
    Val(m.num_programs(axis))
}

/// `lanes(n)`: the indices `0..n`, to be mapped, written or reduced.
#[inline(always)]
pub fn lanes<M: Target>(_: M, n: impl Index<M>) -> Indices<M> {
    Indices { len: n.index() }
}

/// `select(c, a, b)`: `a` where `c` is true, else `b`. Both are evaluated.
#[inline(always)]
#[track_caller]
pub fn select<M: Target, X: Item<M>>(_: M, c: Val<M, bool>, a: X, b: X) -> X {
    X::select(c, a, b)
}

/// `dot(a, b, acc)`: the matrix product of `a` (`R x K`) and `b` (`K x C`), added to `acc` (`R x C`). Products are
/// added in the dtype of `acc`, to which factors are converted: `f32`, `f64` or `i32`. Either operand may be computed.
#[inline(always)]
#[track_caller]
pub fn dot<M: Target, A: Number, const R: usize, const K: usize, const C: usize>(
    _: M,
    a: impl DotLeft<M, R, K>,
    b: impl DotRight<M, K, C>,
    acc: Tile<M, A, R, C>,
) -> Tile<M, A, R, C> {
    b.after(a, acc)
}

/// `print("label", value)`: prints a line on standard output, for finding mistakes: the place in the source, the program's ids,
/// the label, and the value: a number, a tuple of numbers, or a tile (a line for each element, with its row and column).
///
/// On a CPU, a kernel that prints runs in its reference form, in order on one thread. A GPU's lines appear when the host waits for
/// it, those of different threads in any order, and the first ones are lost if there are more than its buffer holds (1 MiB).
#[inline(always)]
#[track_caller]
pub fn print<M: Target>(m: M, label: &'static str, value: impl Print<M>) {
    value.print(m, label, Location::caller());
}

/// `ceildiv(a, b)`: `a / b` rounded up, of non-negative integers.
#[inline(always)]
#[track_caller]
pub fn ceildiv<M: Target, T: Int>(_: M, a: Val<M, T>, b: Val<M, T>) -> Val<M, T> {
    (a + b - Val::one()) / b
}
