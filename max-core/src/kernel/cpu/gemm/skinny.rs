//! Skinny GEMM: few rows by a B that is transposed or narrower than what is added, and few columns, all read in place.
//!
//! It exists because packing reads an operand twice and writes it once, which pays where many rows or columns meet it, and because the
//! microkernels' vectors are of columns: of one column they use one lane. Few columns are dot products along the rows of A: [`gemv_t`]
//! with the operands in each other's place.

use std::ptr;

use super::microkernel::gemv::{self, Gemv};
use super::microkernel::gemv_t::{self, GemvT};
use super::microkernel::{self, Accumulators, Lhs};
use super::{Gemm, Operand, extent, slot, source};
use crate::dtype::DType;
use crate::kernel::abi::PackForm;
use crate::kernel::cpu::isa::{Level, TAIL};
use crate::kernel::cpu::pack::Source;
use crate::kernel::cpu::scratch::{self, Side};
use crate::kernel::cpu::tensor::widen;
use crate::kernel::cpu::tile::{self, AnyVar};
use crate::kernel::lang::{Any, Prim};

/// The most columns that are multiplied here: of more, vectors of columns have enough, which are half a vector of AVX-512.
const fn most_columns<L: Level>() -> usize {
    if L::AVX512 { 8 } else { 4 }
}
/// The fewest steps of K for a column: of fewer, the sums over lanes are most of the work.
const DEPTH: usize = 16;

/// Runs as GEMV or skinny GEMM, if B is transposed, or of a narrower dtype and not packed, and says so. `lhs` gives the rows, of the
/// dtype that the GEMM accumulates in, and `None` if there is no memory for them; and whether they last. A tile of B is `[steps, width]`.
pub(super) fn few_rows<L: Level, U: Any, A: Any>(
    [depth, rows, above]: [usize; 3],
    [steps, width]: [usize; 2],
    (lhs, lasts): (impl FnOnce() -> Option<Lhs<A::Compute>>, bool),
    b: &Operand<U>,
    acc: AnyVar<'_, A::Compute>,
) -> Option<bool> {
    let accumulator = A::Compute::DTYPE;
    let [_, panel] = microkernel::register_block(L::AVX512, accumulator, width);
    let is_packed = || [PackForm::Panels, PackForm::Blocks].iter().any(|&form| slot(b, [steps, width], form).is_some());
    let from = source(b, 1);
    let is_gemv_t = from.strides[1] == 1 && rows <= gemv_t::ROWS && depth >= panel && accumulator == DType::F32;
    let is_gemv = from.strides[0] == 1 && gemv::multiplies(rows, depth) && gemv::widens(U::dtype(), accumulator);
    if U::Compute::DTYPE != accumulator || !(is_gemv_t || is_gemv && !is_packed()) {
        return Some(false);
    }
    let (lhs, rhs) = (lhs()?, from.ptr);
    let columns = extent(b, 1).clamp(0, width as i64) as usize;
    // SAFETY: the left operand has the rows, the right one the columns that are inside of it, and both K; `U` computes
    // with what the GEMM accumulates in. Rows that are not in scratch memory last as long as the launch.
    unsafe {
        if is_gemv_t {
            let ((lhs, lhs_row), rhs_row) = ((lhs.ptr.cast(), lhs.row), from.strides[0] as isize);
            let (none, acc_row) = (ptr::null_mut(), width);
            let gemm = GemvT { depth, rows, columns, lhs, lhs_row, rhs, rhs_row, acc: none, acc_row };
            let gemm = Gemm::Dots(gemv_t::Deferred::new::<L, U>(gemm));
            match lasts && above == 0 {
                true => acc.defer::<L>(gemm),
                false => acc.add::<L>(above, &gemm),
            }
        } else {
            let acc = tile::materialize::<L, _>(acc).wrapping_add(above * width);
            let lhs = Lhs { ptr: lhs.ptr.cast(), row: lhs.row, group: None };
            let accumulators =
                Accumulators { from: acc.cast_const().cast(), to: acc.cast(), from_row: width, to_row: width };
            let rhs_row = from.strides[1] as isize;
            gemv::multiply::<L, U>(&Gemv { depth, rows, columns, lhs, rhs, rhs_row }, &accumulators);
        }
    }
    Some(true)
}

/// `acc += a · b` from row `above` of the sum on, and whether that was done: where there are few columns, the rows of A lie in memory
/// one after the other, and `f32` is added. `None`, with the sum as it was, if there is no memory for the columns.
#[inline(always)]
pub(super) fn few_columns<L: Level, T: Any, U: Any, A: Any>(
    a: &Operand<T>,
    b: &Operand<U>,
    acc: AnyVar<'_, A::Compute>,
    [depth, rows, above]: [usize; 3],
) -> Option<bool> {
    let in_f32 = [T::Compute::DTYPE, U::Compute::DTYPE, A::Compute::DTYPE].iter().all(|dtype| *dtype == DType::F32);
    let [_, width] = acc.shape;
    let columns = extent(b, 1).clamp(0, width as i64) as usize;
    let from = source(a, 0);
    if !cfg!(target_arch = "x86_64") || !L::AVX2 || !in_f32 || from.strides[1] != 1 {
        return Some(false);
    }
    // Columns of one result are added in one order: those at the end of more are not done otherwise than these.
    let are_last_of_more = b.1[usize::from(!b.2)] > 0;
    if columns == 0
        || columns > most_columns::<L>()
        || are_last_of_more
        || rows <= columns
        || depth < DEPTH * Ord::max(columns, 2)
    {
        return Some(false);
    }
    let room = scratch::tile(Side::Rhs, columns * (depth + rows) * size_of::<f32>())?.cast::<f32>();
    let sums = room.wrapping_add(columns * depth);
    // SAFETY: the columns and steps are inside of B, the rows inside of A and of the accumulators, which are of `f32`; there is room
    // for columns and for sums, and the level has vectors.
    unsafe {
        elements_by_rows::<L, U>(&source(b, 1), [columns, depth], room.cast());
        sums.write_bytes(0, columns * rows);
        gemv_t::multiply::<L, T>(&GemvT {
            depth,
            rows: columns,
            columns: rows,
            lhs: room,
            lhs_row: depth as isize,
            rhs: from.ptr,
            rhs_row: from.strides[0] as isize,
            acc: sums,
            acc_row: rows,
        });
        let acc = tile::materialize::<L, _>(acc).cast::<f32>().wrapping_add(above * width);
        for i in 0..rows {
            for j in 0..columns {
                *acc.add(i * width + j) += *sums.add(j * rows + i);
            }
        }
    }
    Some(true)
}

/// Rows of a left operand as they are computed with, in scratch memory.
pub(super) fn widened_lhs<L: Level, T: Any, A: Any>(
    a: &Operand<T>,
    [rows, depth]: [usize; 2],
) -> Option<Lhs<A::Compute>> {
    let room = scratch::tile(Side::Lhs, rows * depth * size_of::<T::Compute>())?.cast::<T::Compute>();
    // SAFETY: these rows and steps are inside the operand, and there is room for them.
    unsafe { elements_by_rows::<L, T>(&source(a, 0), [rows, depth], room) };
    Some(Lhs { ptr: room.cast_const().cast(), row: depth as isize, group: None })
}

/// Copies so many rows (columns) and steps as they are computed with, one row after the other.
///
/// # Safety
/// They must be inside the source, there must be room for them, and the machine must have the level.
#[inline(always)]
unsafe fn elements_by_rows<L: Level, T: Any>(from: &Source<T::Mem>, shape: [usize; 2], to: *mut T::Compute) {
    // SAFETY: by the contract above.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        if L::AVX512 {
            return elements_v4::<L, T>(from, shape, to);
        } else if L::AVX2 {
            return elements_v3::<L, T>(from, shape, to);
        }
        elements::<L, T>(from, shape, to);
    }
}

/// # Safety
/// As for [`elements_by_rows`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,fma,f16c")]
unsafe fn elements_v4<L: Level, T: Any>(from: &Source<T::Mem>, shape: [usize; 2], to: *mut T::Compute) {
    // SAFETY: by the contract above.
    unsafe { elements::<L, T>(from, shape, to) };
}

/// # Safety
/// As for [`elements_by_rows`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn elements_v3<L: Level, T: Any>(from: &Source<T::Mem>, shape: [usize; 2], to: *mut T::Compute) {
    // SAFETY: by the contract above.
    unsafe { elements::<L, T>(from, shape, to) };
}

/// # Safety
/// As for [`elements_by_rows`].
#[inline(always)]
unsafe fn elements<L: Level, T: Any>(from: &Source<T::Mem>, [rows, depth]: [usize; 2], to: *mut T::Compute) {
    let [across, along] = from.strides.map(|stride| stride as isize);
    for i in 0..rows {
        let (row, to) = (from.ptr.wrapping_offset(i as isize * across), to.wrapping_add(i * depth));
        let mut k = 0;
        // SAFETY: by the contract above.
        unsafe {
            while along == 1 && k + TAIL <= depth {
                let block = widen::<L, T, TAIL>(&row.add(k).cast::<[T::Mem; TAIL]>().read_unaligned());
                to.add(k).cast::<[T::Compute; TAIL]>().write_unaligned(block);
                k += TAIL;
            }
            while k < depth {
                *to.add(k) = T::widen(*row.offset(k as isize * along));
                k += 1;
            }
        }
    }
}
