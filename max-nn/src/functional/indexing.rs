//! Ops that pick and place elements by position or by order.

use max_core::dispatch;
use max_core::driver;
use max_core::dtype::Element;
use max_core::graph::{GraphError, ops};

use crate::Result;
use crate::tensor::{Operand, Tensor, apply};

/// The elements of an axis at `indices`, whose axes stand in its place.
///
/// # Errors
/// When the axis is out of range, or the indices are no integers.
#[track_caller]
pub fn gather(input: impl Into<Operand>, indices: impl Into<Operand>, axis: i64) -> Result<Tensor> {
    apply("gather", &mut [input.into(), indices.into()], axis, |x, axis| ops::gather(&x[0], &x[1], *axis))
}

/// The parts at `indices`, whose last axis holds positions on the input's axes after the first `batch_dims`.
///
/// # Errors
/// When the indices are no integers, or are more than the input has axes.
#[track_caller]
pub fn gather_nd(input: impl Into<Operand>, indices: impl Into<Operand>, batch_dims: usize) -> Result<Tensor> {
    apply("gather_nd", &mut [input.into(), indices.into()], batch_dims, |x, dims| ops::gather_nd(&x[0], &x[1], *dims))
}

macro_rules! scatters {
    ($($(#[doc = $doc:literal])+ $name:ident;)+) => {$(
        $(#[doc = $doc])+
        ///
        /// # Errors
        /// When the axis is out of range, the indices are no integers, or shapes or dtypes do not fit.
        #[track_caller]
        pub fn $name(
            input: impl Into<Operand>,
            updates: impl Into<Operand>,
            indices: impl Into<Operand>,
            axis: i64,
        ) -> Result<Tensor> {
            let mut operands = [input.into(), updates.into(), indices.into()];
            apply(stringify!($name), &mut operands, axis, |x, axis| ops::$name(&x[0], &x[1], &x[2], *axis))
        }
    )+};
}
scatters! {
    /// The input with updates at `indices` along an axis.
    scatter;
    /// The input with updates added at `indices` along an axis.
    scatter_add;
    /// The input with the larger of itself and the updates at `indices` along an axis.
    scatter_max;
    /// The input with the smaller of itself and the updates at `indices` along an axis.
    scatter_min;
    /// The input with updates multiplied at `indices` along an axis.
    scatter_mul;
}

/// The input with updates at `indices`, whose last axis holds positions on its first axes.
///
/// # Errors
/// When the indices are no integers, or shapes or dtypes do not fit.
#[track_caller]
pub fn scatter_nd(
    input: impl Into<Operand>,
    updates: impl Into<Operand>,
    indices: impl Into<Operand>,
) -> Result<Tensor> {
    let mut operands = [input.into(), updates.into(), indices.into()];
    apply("scatter_nd", &mut operands, (), |x, ()| ops::scatter_nd(&x[0], &x[1], &x[2]))
}

/// The input with the updates in its place where the mask is true, one after the other.
///
/// # Errors
/// When the mask is not `bool` of the input's shape, or the dtypes differ.
#[track_caller]
pub fn masked_scatter(
    input: impl Into<Operand>,
    mask: impl Into<Operand>,
    updates: impl Into<Operand>,
) -> Result<Tensor> {
    let mut operands = [input.into(), mask.into(), updates.into()];
    apply("masked_scatter", &mut operands, (), |x, ()| ops::masked_scatter(&x[0], &x[1], &x[2]))
}

/// The positions in which the rows of the first axis are sorted, as `int64`.
///
/// # Errors
/// When the operand is `bool`, or has no axis.
#[track_caller]
pub fn argsort(x: impl Into<Operand>, ascending: bool) -> Result<Tensor> {
    apply("argsort", &mut [x.into()], ascending, |x, ascending| ops::argsort(&x[0], *ascending))
}

/// The `k` largest elements along an axis, from the largest down, and their positions as `int64`.
///
/// # Errors
/// When the axis is out of range, or has fewer elements.
#[track_caller]
pub fn top_k(input: impl Into<Operand>, k: usize, axis: i64) -> Result<(Tensor, Tensor)> {
    apply("top_k", &mut [input.into()], (k, axis), |x, (k, axis)| ops::top_k(&x[0], *k, *axis))
}

/// The `k` smallest elements along an axis, from the smallest up, and their positions as `int64`.
///
/// # Errors
/// As [`top_k`].
#[track_caller]
pub fn bottom_k(input: impl Into<Operand>, k: usize, axis: i64) -> Result<(Tensor, Tensor)> {
    apply("bottom_k", &mut [input.into()], (k, axis), |x, (k, axis)| ops::bottom_k(&x[0], *k, *axis))
}

/// The indices of all elements that are not 0, in row-major order: `[count, rank]`, `int64`.
///
/// Their number depends on the elements, so the operand is computed at once, and the result lies on its device.
///
/// # Errors
/// When the operand is a value of a graph, or cannot be computed.
#[track_caller]
pub fn nonzero(x: impl Into<Operand>) -> Result<Tensor> {
    let Operand::Tensor(tensor) = x.into() else {
        return Err(GraphError::argument("nonzero", "x", "a number or a buffer", "a tensor"));
    };
    let value = tensor.driver_tensor()?;
    let host = value.to(&driver::Device::cpu())?;
    let mut index = vec![0i64; host.rank()];
    let (mut found, mut count) = (Vec::new(), 0);
    dispatch!(host.dtype(), T => {
        for element in host.iter::<T>()? {
            // NaN is not 0 either.
            if element.to_f64() != 0.0 {
                found.extend_from_slice(&index);
                count += 1;
            }
            for (place, size) in index.iter_mut().zip(host.shape()).rev() {
                *place += 1;
                if (*place as usize) < *size {
                    break;
                }
                *place = 0;
            }
        }
    });
    Ok(driver::Tensor::from_vec(found, [count, host.rank()])?.to(value.device())?.into())
}
