//! Tiles in memory and matrix products on the CPU.
//!
//! The inner loop keeps a block of accumulators in vector registers and, for each `k`, multiplies one row of `b` by
//! one element of each row of `a`. It is written over `std::arch` vectors: over plain arrays LLVM's choice of the axis
//! to vectorize depends on the block's shape, and falls off a cliff at some.

use super::level::Level;
use super::{Cpu, CpuTensor};
use crate::dtype::DType;
use crate::kernel::ir::ReduceOp;
use crate::kernel::lang::{Any, Prim, Target};

/// Reduces the columns of a row by halves, in a fixed order.
#[inline(always)]
pub(super) fn reduce_row<P: Prim, const C: usize>(op: ReduceOp, row: [P; C]) -> P {
    let mut row = row;
    let mut n = C;
    while n > 1 {
        let half = n / 2;
        let mut j = 0;
        while j < half {
            let (a, b) = (row[j], row[n - half + j]);
            row[j] = match op {
                ReduceOp::Sum => a.add(b),
                ReduceOp::Max => a.max(b),
                ReduceOp::Min => a.min(b),
            };
            j += 1;
        }
        n -= half;
    }
    row[0]
}

/// Reads a tile of `R x C`; of `C x R` there, if it is transposed. Outside the operand: 0.
#[inline(always)]
pub(super) fn load_tile<L: Level, T: Any, const R: usize, const C: usize>(
    x: &CpuTensor<T, 2>,
    [row, column]: [i64; 2],
    transpose: bool,
) -> [[T::Compute; C]; R] {
    let mut tile = [[T::Compute::default(); C]; R];
    let mut i = 0;
    while i < R {
        load_row::<L, T, C>(x, [row, column], i, transpose, &mut tile[i]);
        i += 1;
    }
    tile
}

/// Reads row `i` of a tile.
#[inline(always)]
fn load_row<L: Level, T: Any, const C: usize>(
    x: &CpuTensor<T, 2>,
    [row, column]: [i64; 2],
    i: usize,
    transpose: bool,
    to: &mut [T::Compute; C],
) {
    let whole = column >= x.lo && column + C as i64 <= x.hi && x.strides[1] == 1;
    if !transpose && whole && row + (i as i64) < x.dims[0] && row + i as i64 >= 0 {
        let p = x.ptr.wrapping_offset(((row + i as i64) * x.strides[0] + column) as isize);
        // SAFETY: the row and all its columns are inside the operand.
        *to = super::widen::<L, T, C>(&unsafe { p.cast::<[T::Mem; C]>().read_unaligned() });
    } else {
        let mut j = 0;
        while j < C {
            let (di, dj) = if transpose { (j, i) } else { (i, j) };
            to[j] = Cpu::<L>::load(*x, [row + di as i64, column + dj as i64]);
            j += 1;
        }
    }
}

/// Writes a tile; what is outside the operand is dropped.
#[inline(always)]
pub(super) fn store_tile<L: Level, T: Any, const R: usize, const C: usize>(
    x: &CpuTensor<T, 2>,
    [row, column]: [i64; 2],
    tile: &[[T::Compute; C]; R],
) {
    let whole = column >= x.lo && column + C as i64 <= x.hi && x.strides[1] == 1;
    let mut i = 0;
    while i < R {
        let r = row + i as i64;
        if whole && r >= 0 && r < x.dims[0] {
            let p = x.ptr.wrapping_offset((r * x.strides[0] + column) as isize);
            // SAFETY: the row and all its columns are inside the operand, in a part that this instance owns.
            unsafe { p.cast::<[T::Mem; C]>().write_unaligned(super::narrow::<L, T, C>(&tile[i])) };
        } else {
            let mut j = 0;
            while j < C {
                Cpu::<L>::store(*x, [r, column + j as i64], tile[i][j]);
                j += 1;
            }
        }
        i += 1;
    }
}

/// `a · b + acc` with both operands in memory.
#[inline(always)]
pub(super) fn views<L: Level, T: Any, U: Any, A: Any, const R: usize, const K: usize, const C: usize>(
    a: (CpuTensor<T, 2>, [i64; 2], bool),
    b: (CpuTensor<U, 2>, [i64; 2], bool),
    acc: [[A::Compute; C]; R],
) -> [[A::Compute; C]; R] {
    tile_view::<L, T, U, A, R, K, C>(&load_tile::<L, T, R, K>(&a.0, a.1, a.2), b, acc)
}

/// `a · b + acc` with the left operand computed.
#[inline(always)]
pub(super) fn tile_view<L: Level, T: Any, U: Any, A: Any, const R: usize, const K: usize, const C: usize>(
    a: &[[T::Compute; K]; R],
    b: (CpuTensor<U, 2>, [i64; 2], bool),
    mut acc: [[A::Compute; C]; R],
) -> [[A::Compute; C]; R] {
    let mut k = 0;
    while k < K {
        let mut row = [U::Compute::default(); C];
        load_row::<L, U, C>(&b.0, b.1, k, b.2, &mut row);
        let mut wide = [A::Compute::default(); C];
        let mut j = 0;
        while j < C {
            wide[j] = A::Compute::cast_from(row[j]);
            j += 1;
        }
        let mut i = 0;
        while i < R {
            multiply_add::<L, A::Compute, C>(A::Compute::cast_from(a[i][k]), &wide, &mut acc[i]);
            i += 1;
        }
        k += 1;
    }
    acc
}

#[inline(always)]
fn multiply_add<L: Level, P: Prim, const C: usize>(a: P, b: &[P; C], acc: &mut [P; C]) {
    let mut j = 0;
    while j < C {
        acc[j] = if L::FMA || !matches!(P::DTYPE, DType::F32 | DType::F64) {
            a.fma(b[j], acc[j])
        } else {
            a.mul(b[j]).add(acc[j])
        };
        j += 1;
    }
}
