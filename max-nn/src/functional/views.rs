//! Views: ops that move no element where they can, and what joins and splits tensors.

use max_core::driver::{self, DeviceRef, SliceIndex};
use max_core::graph::{Dim, DimSlice, Shape, TensorType, ops};

use crate::Result;
use crate::tensor::{Indices, Operand, Tensor, apply, apply_view, device};

/// The sizes of a type, all of which are known.
fn sizes(ty: &TensorType) -> Option<Vec<usize>> {
    ty.shape.iter().map(|dim| dim.as_static().and_then(|size| usize::try_from(size).ok())).collect()
}

/// The elements in another shape, where they lie in order.
fn reshaped<A>(tensor: &driver::Tensor, _: &A, ty: &TensorType) -> Option<driver::Tensor> {
    tensor.reshape(sizes(ty)?).ok()
}

/// The same elements in row-major order in another shape, of which one dim may be -1.
///
/// # Errors
/// When the number of elements is another.
#[track_caller]
pub fn reshape(x: impl Into<Operand>, shape: impl Into<Shape>) -> Result<Tensor> {
    apply_view("reshape", x.into(), shape.into(), |x, shape| ops::reshape(&x[0], shape), reshaped)
}

/// The axes from `start_dim` to `end_dim` as one.
///
/// # Errors
/// When an axis is out of range, or the first is after the last.
#[track_caller]
pub fn flatten(x: impl Into<Operand>, start_dim: i64, end_dim: i64) -> Result<Tensor> {
    let add = |x: &[_], (start, end): &(i64, i64)| ops::flatten(&x[0], *start, *end);
    apply_view("flatten", x.into(), (start_dim, end_dim), add, reshaped)
}

/// Without an axis of size 1.
///
/// # Errors
/// When the axis is out of range, or has another size.
#[track_caller]
pub fn squeeze(x: impl Into<Operand>, axis: i64) -> Result<Tensor> {
    apply_view("squeeze", x.into(), axis, |x, axis| ops::squeeze(&x[0], *axis), reshaped)
}

/// With a new axis of size 1.
///
/// # Errors
/// When the axis is out of range.
#[track_caller]
pub fn unsqueeze(x: impl Into<Operand>, axis: i64) -> Result<Tensor> {
    apply_view("unsqueeze", x.into(), axis, |x, axis| ops::unsqueeze(&x[0], *axis), reshaped)
}

/// With two axes exchanged.
///
/// # Errors
/// When an axis is out of range.
#[track_caller]
pub fn transpose(x: impl Into<Operand>, axis_1: i64, axis_2: i64) -> Result<Tensor> {
    let add = |x: &[_], (a, b): &(i64, i64)| ops::transpose(&x[0], *a, *b);
    apply_view("transpose", x.into(), (axis_1, axis_2), add, |tensor, (a, b), _| {
        tensor.transpose(*a as isize, *b as isize).ok()
    })
}

/// With the axes in another order: result axis i is operand axis `dims[i]`.
///
/// # Errors
/// When `dims` does not name each axis once.
#[track_caller]
pub fn permute(x: impl Into<Operand>, dims: impl AsRef<[i64]>) -> Result<Tensor> {
    apply_view(
        "permute",
        x.into(),
        dims.as_ref().to_vec(),
        |x, dims| ops::permute(&x[0], dims),
        |tensor, dims, _| {
            let dims: Vec<isize> = dims.iter().map(|axis| *axis as isize).collect();
            tensor.permute(&dims).ok()
        },
    )
}

/// The operand repeated to a shape: axes are aligned at the end, and those of size 1 repeated.
///
/// # Errors
/// When the shape does not broadcast to that.
#[track_caller]
pub fn broadcast_to(x: impl Into<Operand>, shape: impl Into<Shape>) -> Result<Tensor> {
    apply_view(
        "broadcast_to",
        x.into(),
        shape.into(),
        |x, shape| ops::broadcast_to(&x[0], shape),
        |tensor, _, ty| tensor.broadcast_to(sizes(ty)?).ok(),
    )
}

/// The tensor on another device.
///
/// # Errors
/// None when it is called; reading it fails when the machine has no such device.
#[track_caller]
pub fn transfer_to(x: impl Into<Operand>, to: DeviceRef) -> Result<Tensor> {
    apply_view(
        "transfer_to",
        x.into(),
        to,
        |x, to| ops::transfer_to(&x[0], *to),
        |tensor, to, _| tensor.to(&device(*to).ok()?).ok(),
    )
}

/// An index whose bounds are numbers.
fn slice_index(index: &DimSlice) -> Option<SliceIndex> {
    let end = |dim: &Dim| dim.as_static().map(|end| end as isize);
    Some(match index {
        DimSlice::Index(index) => SliceIndex::Index(end(index)?),
        DimSlice::Range { start, stop, step } => SliceIndex::Range {
            start: start.as_ref().map(|start| end(start).ok_or(())).transpose().ok()?,
            stop: stop.as_ref().map(|stop| end(stop).ok_or(())).transpose().ok()?,
            step: *step as isize,
        },
        DimSlice::Ellipsis => SliceIndex::Ellipsis,
        DimSlice::NewAxis => SliceIndex::NewAxis,
        DimSlice::Value(_) | DimSlice::ValueRange { .. } => return None,
    })
}

/// A part of the tensor, as NumPy's basic indexing takes it; axes without an index are taken whole.
///
/// # Errors
/// When there are more indices than axes or two ellipses, when a step is 0, when an index is out of range, and when a bound
/// uses a name that gets no size in the graph.
#[track_caller]
pub fn slice_tensor(x: impl Into<Operand>, indices: impl Indices) -> Result<Tensor> {
    apply_view(
        "slice_tensor",
        x.into(),
        indices.indices(),
        |x, indices| ops::slice_tensor(&x[0], indices),
        |tensor, indices, _| tensor.slice(&indices.iter().map(slice_index).collect::<Option<Vec<SliceIndex>>>()?).ok(),
    )
}

/// The parts of an axis, of these sizes, which add up to its own.
///
/// # Errors
/// When the axis is out of range, or the sizes do not add up to its own.
#[track_caller]
pub fn split<D: Into<Dim>>(
    x: impl Into<Operand>,
    split_sizes: impl IntoIterator<Item = D>,
    axis: i64,
) -> Result<Vec<Tensor>> {
    let sizes: Shape = split_sizes.into_iter().collect();
    apply("split", &mut [x.into()], (sizes, axis), |x, (sizes, axis)| ops::split(&x[0], sizes.iter(), *axis))
}

/// An axis in equal parts.
///
/// # Errors
/// When the axis is out of range, or its size is no multiple of `chunks`.
#[track_caller]
pub fn chunk(x: impl Into<Operand>, chunks: usize, axis: i64) -> Result<Vec<Tensor>> {
    apply("chunk", &mut [x.into()], (chunks, axis), |x, (chunks, axis)| ops::chunk(&x[0], *chunks, *axis))
}

/// The tensors one after the other along an axis.
///
/// # Errors
/// When there are none, when the axis is out of range, or when dtypes, devices or other dims differ.
#[track_caller]
pub fn concat<V: Into<Operand>>(values: impl IntoIterator<Item = V>, axis: i64) -> Result<Tensor> {
    let mut values: Vec<Operand> = values.into_iter().map(Into::into).collect();
    apply("concat", &mut values, axis, |x, axis| ops::concat(x, *axis))
}

/// The tensors one after the other along a new axis.
///
/// # Errors
/// As [`concat()`].
#[track_caller]
pub fn stack<V: Into<Operand>>(values: impl IntoIterator<Item = V>, axis: i64) -> Result<Tensor> {
    let mut values: Vec<Operand> = values.into_iter().map(Into::into).collect();
    apply("stack", &mut values, axis, |x, axis| ops::stack(x, *axis))
}
