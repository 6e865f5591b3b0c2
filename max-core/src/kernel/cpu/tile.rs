//! Tiles in variables, changed where they are.

use std::cell::Cell;

use super::level::Level;
use super::{Cpu, dot};
use crate::kernel::ir::ReduceOp;
use crate::kernel::lang::{Any, Val};

/// A tile: its rows. It begins a cache line, so that no vector of a row of whole vectors lies in two.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub struct CpuTile<P, const R: usize, const C: usize>(pub(super) [[P; C]; R]);

impl<P, const R: usize, const C: usize> std::ops::Deref for CpuTile<P, R, C> {
    type Target = [[P; C]; R];
    #[inline(always)]
    fn deref(&self) -> &[[P; C]; R] {
        &self.0
    }
}

impl<P, const R: usize, const C: usize> std::ops::DerefMut for CpuTile<P, R, C> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [[P; C]; R] {
        &mut self.0
    }
}

#[inline(always)]
pub(super) fn map_assign<L: Level, T: Any, const R: usize, const C: usize>(
    v: &Cell<CpuTile<T::Compute, R, C>>,
    f: impl Fn(Val<Cpu<L>, i64>, Val<Cpu<L>, i64>, Val<Cpu<L>, T>) -> Val<Cpu<L>, T>,
) {
    let tile = v.as_ptr();
    let mut i = 0;
    while i < R {
        let mut j = 0;
        while j < C {
            // SAFETY: the element is in the variable, to which no reference is kept while lane code runs.
            let element = unsafe { (&(*tile).0)[i][j] };
            let element = f(Val(i as i64), Val(j as i64), Val(element)).0;
            // SAFETY: as above.
            unsafe { (&mut (*tile).0)[i][j] = element };
            j += 1;
        }
        i += 1;
    }
}

#[inline(always)]
pub(super) fn zip_assign<L: Level, T: Any, U: Any, const R: usize, const C: usize, const P: usize, const Q: usize>(
    v: &Cell<CpuTile<T::Compute, R, C>>,
    b: CpuTile<U::Compute, P, Q>,
    f: impl Fn(Val<Cpu<L>, T>, Val<Cpu<L>, U>) -> Val<Cpu<L>, T>,
) {
    const { assert!((P == R || P == 1) && (Q == C || Q == 1), "tiles of these shapes do not broadcast") }
    let tile = v.as_ptr();
    let mut i = 0;
    while i < R {
        let row = if P == 1 { &b[0] } else { &b[i] };
        let mut j = 0;
        while j < C {
            // SAFETY: as in `map_assign`.
            let element = unsafe { (&(*tile).0)[i][j] };
            let element = f(Val(element), Val(if Q == 1 { row[0] } else { row[j] })).0;
            // SAFETY: as above.
            unsafe { (&mut (*tile).0)[i][j] = element };
            j += 1;
        }
        i += 1;
    }
}

#[inline(always)]
pub(super) fn reduce_var<T: Any, const R: usize, const C: usize>(
    op: ReduceOp,
    v: &Cell<CpuTile<T::Compute, R, C>>,
) -> CpuTile<T::Compute, R, 1> {
    // SAFETY: nothing assigns the variable meanwhile.
    let tile = unsafe { &*v.as_ptr() };
    let mut out = CpuTile([[T::Compute::default(); 1]; R]);
    let mut i = 0;
    while i < R {
        out[i][0] = dot::reduce_row(op, tile[i]);
        i += 1;
    }
    out
}
