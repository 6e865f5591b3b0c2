//! Read-modify-write of one element.

use std::sync::atomic::{AtomicI32, AtomicI64, AtomicU32, AtomicU64, Ordering};

use crate::dtype::DType;
use crate::kernel::ir::AtomicOp;
use crate::kernel::lang::Prim;

/// # Safety
/// `p` must point to an aligned number of dtype `dtype` that is accessed atomically alone.
#[inline(always)]
pub(super) unsafe fn atomic(op: AtomicOp, dtype: DType, p: *mut u8, bits: u64) {
    macro_rules! apply {
        ($atomic:ident, $t:ty) => {{
            // SAFETY: by the contract above.
            let cell = unsafe { $atomic::from_ptr(p.cast()) };
            let v = bits as $t;
            match op {
                AtomicOp::Add => cell.fetch_add(v, Ordering::Relaxed),
                AtomicOp::Min => cell.fetch_min(v, Ordering::Relaxed),
                AtomicOp::Max => cell.fetch_max(v, Ordering::Relaxed),
                AtomicOp::And => cell.fetch_and(v, Ordering::Relaxed),
                AtomicOp::Or => cell.fetch_or(v, Ordering::Relaxed),
                AtomicOp::Xor => cell.fetch_xor(v, Ordering::Relaxed),
            };
        }};
    }
    macro_rules! exchange {
        ($atomic:ident, $bits:ty, $float:ty) => {{
            // SAFETY: by the contract above.
            let cell = unsafe { $atomic::from_ptr(p.cast()) };
            let v = <$float>::from_bits(bits as $bits);
            let mut old = cell.load(Ordering::Relaxed);
            loop {
                let before = <$float>::from_bits(old);
                let after = match op {
                    AtomicOp::Add => Prim::add(before, v),
                    AtomicOp::Min => Prim::min(before, v),
                    AtomicOp::Max => Prim::max(before, v),
                    AtomicOp::And | AtomicOp::Or | AtomicOp::Xor => before,
                };
                match cell.compare_exchange_weak(old, after.to_bits(), Ordering::Relaxed, Ordering::Relaxed) {
                    Ok(_) => break,
                    Err(seen) => old = seen,
                }
            }
        }};
    }
    match dtype {
        DType::F32 => exchange!(AtomicU32, u32, f32),
        DType::F64 => exchange!(AtomicU64, u64, f64),
        DType::I32 => apply!(AtomicI32, i32),
        DType::U32 => apply!(AtomicU32, u32),
        DType::I64 => apply!(AtomicI64, i64),
        DType::U64 => apply!(AtomicU64, u64),
        // The language lets no other dtype come here.
        _ => {}
    }
}
