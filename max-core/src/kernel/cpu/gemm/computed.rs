//! GEMM of two computed tiles.

use super::super::isa::Level;
use super::super::{CpuTensor, CpuTileVar};
use super::{in_loops, tile_view};
use crate::dtype::DType;
use crate::kernel::lang::{Any, Prim};

/// `acc += a · b` with both operands computed: the right one is an operand in memory for as long as this takes.
#[inline(always)]
pub(in crate::kernel::cpu) fn tiles<
    L: Level,
    T: Any,
    U: Any,
    A: Any,
    const R: usize,
    const K: usize,
    const C: usize,
>(
    a: &[[T::Compute; K]; R],
    b: &[[U::Compute; C]; K],
    acc: &CpuTileVar<A::Compute, R, C>,
) {
    // A product with a computed left operand is never deferred, so that nothing refers to `b` afterwards.
    match U::Compute::DTYPE {
        DType::F32 => {
            tile_view::<L, T, f32, A, R, K, C>(a, (CpuTensor::of_tile(b.as_ptr().cast(), [K, C]), [0; 2], false), acc)
        }
        DType::F64 => {
            tile_view::<L, T, f64, A, R, K, C>(a, (CpuTensor::of_tile(b.as_ptr().cast(), [K, C]), [0; 2], false), acc)
        }
        _ => in_loops::<L, T, A, R, K, C>(
            a,
            #[inline(always)]
            |k| {
                let mut wide = [A::Compute::default(); C];
                let mut j = 0;
                while j < C {
                    wide[j] = A::Compute::cast_from(b[k][j]);
                    j += 1;
                }
                wide
            },
            acc,
        ),
    }
}
