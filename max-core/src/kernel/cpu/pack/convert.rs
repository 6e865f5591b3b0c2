//! The converting (dequantizing) pack: integers to `f32`, so that GEMM runs in `f32`.
//!
//! It exists for mixed operands, such as 8-bit weights, which no microkernel accumulates directly. A tile is converted
//! once and then multiplied as any other.

use std::ptr;

use super::super::gemm::{Operand, begins_inside, computed_lhs, dot_in_memory};
use super::super::isa::Level;
use super::super::scratch;
use super::super::scratch::Side;
use super::super::tile::AnyVar;
use super::super::{CpuTensor, widen};
use crate::dtype::DType;
use crate::kernel::lang::{Any, Prim};

/// Elements that are converted at a time.
const STEP: usize = 16;

/// Whether a number of that dtype is computed with in `f32`.
const fn is_f32<T: Any>() -> bool {
    matches!(<T::Compute as Prim>::DTYPE, DType::F32)
}

/// `acc += a · b` of so many steps, with those of them converted that are of another dtype than the accumulators.
/// Whether it was done.
#[inline(always)]
pub(in crate::kernel::cpu) fn views<L: Level, T: Any, U: Any, A: Any>(
    a: &Operand<T>,
    b: &Operand<U>,
    acc: AnyVar<'_, A::Compute>,
    steps: usize,
) -> bool {
    let [rows, columns] = acc.shape;
    let shape = |transposed: bool, [i, j]: [usize; 2]| if transposed { [j, i] } else { [i, j] };
    // Conditions that are constant, so that only one of these is compiled.
    if const { !is_f32::<A>() || is_f32::<T>() && is_f32::<U>() } {
        return false;
    } else if const { is_f32::<U>() } {
        let Some(a) = tile::<L, T>(a, shape(a.2, [rows, steps]), Side::ConvertedLhs) else { return false };
        dot_in_memory::<L, f32, U, A>(&a, b, acc, steps, None, false);
    } else if const { is_f32::<T>() } {
        let Some(b) = tile::<L, U>(b, shape(b.2, [steps, columns]), Side::ConvertedRhs) else { return false };
        dot_in_memory::<L, T, f32, A>(a, &b, acc, steps, None, true);
    } else {
        let Some(a) = tile::<L, T>(a, shape(a.2, [rows, steps]), Side::ConvertedLhs) else { return false };
        let Some(b) = tile::<L, U>(b, shape(b.2, [steps, columns]), Side::ConvertedRhs) else { return false };
        dot_in_memory::<L, f32, f32, A>(&a, &b, acc, steps, None, true);
    }
    // What is converted is gone with the next tile.
    acc.flush::<L>();
    true
}

/// `acc += lhs · b` with as many rows of the left operand as the sum has, which are computed, and the right one
/// converted, if it has to be. Whether it was done.
///
/// # Safety
/// As for [`computed_lhs`]; `A` must be added in `f32`.
#[inline(always)]
pub(in crate::kernel::cpu) unsafe fn computed_view<L: Level, U: Any, A: Any>(
    lhs: *const A::Compute,
    b: &Operand<U>,
    acc: AnyVar<'_, A::Compute>,
    steps: usize,
) -> bool {
    if const { is_f32::<U>() || !is_f32::<A>() } {
        return false;
    }
    let columns = acc.shape[1];
    let shape = if b.2 { [columns, steps] } else { [steps, columns] };
    let Some(b) = tile::<L, U>(b, shape, Side::ConvertedRhs) else { return false };
    // SAFETY: by the contract above.
    unsafe { computed_lhs::<L, f32, A>(lhs, &b, acc, steps) };
    true
}

/// A tile of an operand, which lies there as `[height, width]`, in `f32`. It is valid until the thread converts another
/// one for the same side. `None` if the tile begins outside of the operand, or there is no memory for it.
#[inline(always)]
fn tile<L: Level, T: Any>(x: &Operand<T>, [height, width]: [usize; 2], side: Side) -> Option<Operand<f32>> {
    let (from, [row, column], transposed) = (&x.0, x.1, x.2);
    if !begins_inside(x) {
        return None;
    }
    let height = Ord::clamp(from.dims[0] - row, 0, height as i64) as usize;
    let columns = Ord::clamp(from.count - column, 0, width as i64) as usize;
    // Rows that are a power of two apart would share few of the cache's sets.
    let stride = width.next_multiple_of(STEP) + STEP;
    let room = scratch::tile(side, height * stride * size_of::<f32>())?.cast::<f32>();
    let mut i = 0;
    while i < height {
        let first = (row + i as i64).wrapping_mul(from.strides[0]).wrapping_add(column.wrapping_mul(from.strides[1]));
        let (source, to) = (from.ptr.wrapping_offset(first as isize), room.wrapping_add(i * stride));
        let mut j = 0;
        // SAFETY: these rows and columns are inside the operand, and the room has as many.
        unsafe {
            while from.strides[1] == 1 && j + STEP <= columns {
                let wide = widen::<L, T, STEP>(&source.add(j).cast::<[T::Mem; STEP]>().read_unaligned());
                let mut row = [0.0; STEP];
                let mut lane = 0;
                while lane < STEP {
                    row[lane] = f32::cast_from(wide[lane]);
                    lane += 1;
                }
                to.add(j).cast::<[f32; STEP]>().write_unaligned(row);
                j += STEP;
            }
            while j < columns {
                let element = *source.offset((j as i64 * from.strides[1]) as isize);
                *to.add(j) = f32::cast_from(T::widen(element));
                j += 1;
            }
        }
        i += 1;
    }
    let (dims, strides) = ([height as i64, columns as i64], [stride as i64, 1]);
    let count = columns as i64;
    let pack = ptr::null();
    Some((
        CpuTensor { ptr: room, dims, strides, lo: 0, count, pad: 0.0, stream: false, pack, part: 0 },
        [0, 0],
        transposed,
    ))
}
