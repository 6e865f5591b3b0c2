//! Views: the same elements in another shape or order, and ops made of views.

use std::sync::Arc;

use smallvec::SmallVec;

use super::slice::narrow;
use crate::driver::DeviceRef;
use crate::dtype::DType;
use crate::graph::Graph;
use crate::graph::builder::site::{Result, Site};
use crate::graph::error::GraphErrorKind;
use crate::graph::node::{Op, Window};
use crate::graph::symbolic::dim::Dim;
use crate::graph::symbolic::shape::{Shape, normalize_axis};
use crate::graph::types::TensorType;
use crate::graph::value::{Operand, TensorValue};

/// The same elements, in the same order, in another shape. One dim may be -1: it takes what is left.
///
/// # Errors
/// When the number of elements is not equal for every size of the symbolic dims; when the dim for -1 is not a whole
/// number for every size; when a symbol of the shape gets no size in the graph.
///
/// ```
/// # use max_core::{driver::DeviceRef, dtype::DType, graph::{Graph, TensorType, ops}};
/// let graph = Graph::new("g", [TensorType::new(DType::F32, ("batch", 6), DeviceRef::CPU)]);
/// let x = ops::reshape(&graph.inputs()[0], ("batch", -1, 2))?;
/// assert_eq!(x.shape().to_string(), "[batch, 3, 2]");
/// # Ok::<(), max_core::graph::GraphError>(())
/// ```
#[track_caller]
pub fn reshape(x: impl Into<Operand>, shape: impl Into<Shape>) -> Result<TensorValue> {
    let site = Site::new("reshape");
    let x = site.tensor("the operand", x)?;
    let mut shape = shape.into();
    let wildcard = Dim::Static(-1);
    match shape.iter().filter(|dim| **dim == wildcard).count() {
        0 => {}
        1 => {
            let known = shape.iter().filter(|dim| **dim != wildcard).fold(Dim::Static(1), |all, dim| all * dim);
            let elements = x.shape().num_elements();
            let Some(dim) = elements.exact_div(&known) else {
                return site.fail(&[&x], GraphErrorKind::ReshapeWildcard { elements, known });
            };
            for slot in shape.iter_mut().filter(|dim| **dim == wildcard) {
                *slot = dim.clone();
            }
        }
        _ => return site.argument(&[&x], "shape", shape, "a shape with at most one -1"),
    }
    reshape_at(&site, &x, shape)
}

/// Adds a reshape after checking the number of elements and the symbols.
pub(in crate::graph::ops) fn reshape_at(site: &Site, x: &TensorValue, shape: Shape) -> Result<TensorValue> {
    if x.shape() == &shape {
        return Ok(x.clone());
    }
    site.known_symbols(&x.graph, &shape).or_else(|kind| site.fail(&[x], kind))?;
    let ty = site.checked(&[x], x.ty.with_shape(shape))?;
    if x.shape().num_elements() != ty.shape.num_elements() {
        let (from, to) = (Box::new(x.shape().clone()), Box::new(ty.shape));
        return site.fail(&[x], GraphErrorKind::Reshape { from, to });
    }
    site.view(Op::Reshape, x, ty)
}

/// The tensor with two axes swapped. Negative axes count from the end.
///
/// # Errors
/// When an axis is out of range.
#[track_caller]
pub fn transpose(x: impl Into<Operand>, axis_1: i64, axis_2: i64) -> Result<TensorValue> {
    let site = Site::new("transpose");
    let x = site.tensor("the operand", x)?;
    let (a, b) = (site.axis(&x, axis_1)?, site.axis(&x, axis_2)?);
    let mut dims: SmallVec<[usize; 4]> = (0..x.rank()).collect();
    dims.swap(a, b);
    permute_at(&site, &x, dims)
}

/// The tensor with its axes in the order of `dims`: result axis i is operand axis `dims[i]`.
///
/// # Errors
/// When `dims` does not name every axis once.
#[track_caller]
pub fn permute(x: impl Into<Operand>, dims: impl AsRef<[i64]>) -> Result<TensorValue> {
    let site = Site::new("permute");
    let x = site.tensor("the operand", x)?;
    let dims = dims.as_ref();
    let rank = x.rank();
    let axes: Option<SmallVec<[usize; 4]>> = dims.iter().map(|axis| normalize_axis(*axis, rank)).collect();
    let axes = axes.filter(|axes| axes.len() == rank && (0..rank).all(|axis| axes.contains(&axis)));
    match axes {
        Some(axes) => permute_at(&site, &x, axes),
        None => site.fail(&[&x], GraphErrorKind::Permutation { dims: dims.to_vec(), rank }),
    }
}

pub(in crate::graph::ops) fn permute_at(
    site: &Site,
    x: &TensorValue,
    dims: SmallVec<[usize; 4]>,
) -> Result<TensorValue> {
    if dims.iter().enumerate().all(|(i, axis)| i == *axis) {
        return Ok(x.clone());
    }
    let shape = dims.iter().map(|axis| x.shape()[*axis].clone()).collect();
    site.view(Op::Permute(dims), x, x.ty.with_shape(shape))
}

/// The windows of `elements` elements along a static axis whose bounds are known to be inside, `count` of them.
pub(in crate::graph::ops) fn sliding_window(
    site: &Site,
    x: &TensorValue,
    window: Window,
    count: i64,
    elements: i64,
) -> Result<TensorValue> {
    let mut shape: Vec<Dim> = x.shape().to_vec();
    shape[window.axis] = count.into();
    shape.insert(window.axis + 1, elements.into());
    site.view(Op::SlidingWindow(window), x, x.ty.with_shape(shape.into()))
}

/// The tensor repeated along axes of size 1, and along new leading axes, to a shape.
///
/// # Errors
/// When a dim is neither 1 nor the target's, when the target has fewer axes, and when a symbol of the shape gets no size
/// in the graph.
#[track_caller]
pub fn broadcast_to(x: impl Into<Operand>, shape: impl Into<Shape>) -> Result<TensorValue> {
    let site = Site::new("broadcast_to");
    let x = site.tensor("the operand", x)?;
    let shape = shape.into();
    if !x.shape().broadcasts_to(&shape) {
        let (from, to) = (Box::new(x.shape().clone()), Box::new(shape));
        return site.fail(&[&x], GraphErrorKind::BroadcastTo { from, to });
    }
    site.known_symbols(&x.graph, &shape).or_else(|kind| site.fail(&[&x], kind))?;
    site.broadcast(x, &shape)
}

/// The axes from `start_dim` to `end_dim`, both included, merged into one.
///
/// # Errors
/// When an axis is out of range or they are in the wrong order. A scalar becomes a vector of one element.
#[track_caller]
pub fn flatten(x: impl Into<Operand>, start_dim: i64, end_dim: i64) -> Result<TensorValue> {
    let site = Site::new("flatten");
    let x = site.tensor("the operand", x)?;
    if x.rank() == 0 && matches!(start_dim, 0 | -1) && matches!(end_dim, 0 | -1) {
        return reshape_at(&site, &x, Shape::from([1]));
    }
    let (start, end) = (site.axis(&x, start_dim)?, site.axis(&x, end_dim)?);
    if start > end {
        return site.argument(&[&x], "start_dim", start_dim, format!("an axis not after end_dim = {end_dim}"));
    }
    let dims = x.shape().dims();
    let merged = dims[start..=end].iter().fold(Dim::Static(1), |all, dim| all * dim);
    let shape = dims[..start].iter().cloned().chain([merged]).chain(dims[end + 1..].iter().cloned()).collect();
    reshape_at(&site, &x, shape)
}

/// The tensor without an axis of size 1.
///
/// # Errors
/// When the axis is out of range or its size is not 1.
#[track_caller]
pub fn squeeze(x: impl Into<Operand>, axis: i64) -> Result<TensorValue> {
    let site = Site::new("squeeze");
    let x = site.tensor("the operand", x)?;
    let axis = site.axis(&x, axis)?;
    let dim = x.shape()[axis].clone();
    if dim != 1 {
        return site.fail(&[&x], GraphErrorKind::DimValue { what: "the squeezed dim", dim, expected: "1" });
    }
    let shape = x.shape().iter().enumerate().filter(|(i, _)| *i != axis).map(|(_, dim)| dim.clone()).collect();
    reshape_at(&site, &x, shape)
}

/// The tensor with a new axis of size 1 at `axis`; -1 is behind the last one.
///
/// # Errors
/// When the axis is out of range for the result.
#[track_caller]
pub fn unsqueeze(x: impl Into<Operand>, axis: i64) -> Result<TensorValue> {
    let site = Site::new("unsqueeze");
    let x = site.tensor("the operand", x)?;
    unsqueeze_at(&site, &x, axis)
}

fn unsqueeze_at(site: &Site, x: &TensorValue, axis: i64) -> Result<TensorValue> {
    let rank = x.rank() + 1;
    let Some(axis) = normalize_axis(axis, rank) else {
        return site.fail(&[x], GraphErrorKind::Axis { axis, rank });
    };
    let mut dims = x.shape().to_vec();
    dims.insert(axis, Dim::Static(1));
    reshape_at(site, x, dims.into())
}

/// The tensor with its shape asserted: when the model executes, the actual sizes have to be those of `shape`.
///
/// A name that is new to the graph gets its size here. `message` is printed when the assertion fails; it may be empty.
///
/// # Errors
/// When the rank differs, when two static dims differ, and when an expression uses a name that gets no size.
#[track_caller]
pub fn rebind(x: impl Into<Operand>, shape: impl Into<Shape>, message: &str) -> Result<TensorValue> {
    let site = Site::new("rebind");
    let x = site.tensor("the operand", x)?;
    let shape = shape.into();
    if shape.rank() != x.rank() {
        let (rank, expected) = (x.rank(), format!("the rank of {shape}, {}", shape.rank()).into());
        return site.fail(&[&x], GraphErrorKind::Rank { what: "the operand", rank, expected });
    }
    let mut dims = x.shape().iter().zip(shape.iter());
    if let Some((lhs, rhs)) = dims.find(|(a, b)| a.is_static() && b.is_static() && a != b) {
        let (lhs, rhs) = (lhs.clone(), rhs.clone());
        return site.fail(&[&x], GraphErrorKind::DimMismatch { what: "static dims", lhs, rhs });
    }
    let ty = site.checked(&[&x], x.ty.with_shape(shape))?;
    x.graph.lock().declare_symbols(&ty.shape);
    site.known_symbols(&x.graph, &ty.shape).or_else(|kind| site.fail(&[&x], kind))?;
    site.view(Op::Rebind { message: Arc::from(message) }, &x, ty)
}

/// The tensors one after the other along an axis.
///
/// # Errors
/// When there are none, when the axis is out of range, and when dtypes, devices, ranks or the other dims differ.
#[track_caller]
pub fn concat<V: Into<Operand>>(values: impl IntoIterator<Item = V>, axis: i64) -> Result<TensorValue> {
    concat_at(&Site::new("concat"), values.into_iter().map(Into::into).collect(), axis)
}

fn concat_at(site: &Site, values: Vec<Operand>, axis: i64) -> Result<TensorValue> {
    let values = values.into_iter().map(|value| site.tensor("an operand", value)).collect::<Result<Vec<_>>>()?;
    let all: Vec<&TensorValue> = values.iter().collect();
    let Some(first) = values.first() else {
        return site.fail(&[], GraphErrorKind::NoOperands);
    };
    site.together(&all)?;
    let axis = site.axis(first, axis)?;
    let mut shape = first.shape().clone();
    for value in &values[1..] {
        if value.dtype() != first.dtype() {
            let dtypes = values.iter().map(TensorValue::dtype).collect();
            return site.fail(&all, GraphErrorKind::Promotion { dtypes });
        }
        if value.rank() != first.rank() {
            let expected = format!("the rank of the first one, {}", first.rank()).into();
            return site.fail(&all, GraphErrorKind::Rank { what: "an operand", rank: value.rank(), expected });
        }
        for (i, dim) in value.shape().iter().enumerate() {
            if i == axis {
                shape[i] = &shape[i] + dim;
            } else if *dim != shape[i] {
                let (lhs, rhs) = (shape[i].clone(), dim.clone());
                return site.fail(&all, GraphErrorKind::DimMismatch { what: "dims beside the axis", lhs, rhs });
            }
        }
    }
    if values.len() == 1 {
        return Ok(first.clone());
    }
    site.node(Op::Concat(axis), &all, first.ty.with_shape(shape))
}

/// The tensors stacked along a new axis.
///
/// # Errors
/// As [`concat()`]; all shapes have to be equal.
#[track_caller]
pub fn stack<V: Into<Operand>>(values: impl IntoIterator<Item = V>, axis: i64) -> Result<TensorValue> {
    let site = Site::new("stack");
    let mut parts = Vec::new();
    for value in values {
        let value = site.tensor("an operand", value)?;
        parts.push(Operand::Tensor(unsqueeze_at(&site, &value, axis)?));
    }
    concat_at(&site, parts, axis)
}

/// The tensor cut along an axis into parts of the given sizes.
///
/// # Errors
/// When the sizes do not add up to the axis's dim.
#[track_caller]
pub fn split<D: Into<Dim>>(
    x: impl Into<Operand>,
    split_sizes: impl IntoIterator<Item = D>,
    axis: i64,
) -> Result<Vec<TensorValue>> {
    let site = Site::new("split");
    let x = site.tensor("the operand", x)?;
    let sizes: Vec<Dim> = split_sizes.into_iter().map(Into::into).collect();
    split_at(&site, &x, sizes, axis)
}

fn split_at(site: &Site, x: &TensorValue, sizes: Vec<Dim>, axis: i64) -> Result<Vec<TensorValue>> {
    let axis = site.axis(x, axis)?;
    let (lhs, rhs) = (sizes.iter().fold(Dim::Static(0), |all, size| all + size), x.shape()[axis].clone());
    if lhs != rhs {
        return site.fail(&[x], GraphErrorKind::DimMismatch { what: "the sum of the sizes and the dim", lhs, rhs });
    }
    if let Some(size) = sizes.iter().find(|size| size.as_static().is_some_and(|size| size < 0)) {
        return site.argument(&[x], "split_sizes", size, "sizes of at least 0");
    }
    let mut start = Dim::Static(0);
    let part = |size: Dim| {
        let from = start.clone();
        start = &start + &size;
        narrow(site, x, axis, from, size)
    };
    sizes.into_iter().map(part).collect()
}

/// The tensor cut along an axis into equal parts.
///
/// # Errors
/// When `chunks` is 0 or does not divide the axis's dim.
#[track_caller]
pub fn chunk(x: impl Into<Operand>, chunks: usize, axis: i64) -> Result<Vec<TensorValue>> {
    let site = Site::new("chunk");
    let x = site.tensor("the operand", x)?;
    let dim = x.shape()[site.axis(&x, axis)?].clone();
    match dim.exact_div(&Dim::from(chunks)) {
        Some(size) => split_at(&site, &x, vec![size; chunks], axis),
        None => site.argument(&[&x], "chunks", chunks, format!("a divisor of the axis's dim, {dim}")),
    }
}

/// The dims of a shape as an `int64` tensor, on the CPU.
///
/// # Errors
/// When a dim uses a name that gets no size in the graph.
#[track_caller]
pub fn shape_to_tensor(graph: &Graph, shape: impl Into<Shape>) -> Result<TensorValue> {
    let site = Site::new("shape_to_tensor");
    let (shape, reference) = (shape.into(), graph.reference());
    let fail = |kind| site.error(reference, None::<crate::graph::Type>, kind);
    site.known_symbols(reference, &shape).map_err(fail)?;
    let ty = TensorType::new(DType::I64, [shape.rank()], DeviceRef::CPU);
    Ok(site.push(reference, Op::ShapeToTensor(shape), SmallVec::new(), ty))
}

/// The tensor on another device; itself if it is there.
///
/// # Errors
/// When the operand is a buffer.
#[track_caller]
pub fn transfer_to(x: impl Into<Operand>, device: DeviceRef) -> Result<TensorValue> {
    let site = Site::new("transfer_to");
    let x = site.tensor("the operand", x)?;
    if x.device() == device {
        return Ok(x);
    }
    let ty = TensorType { device, ..x.ty.clone() };
    site.view(Op::TransferTo, &x, ty)
}

macro_rules! view_methods {
    ($($name:ident($($arg:ident: $ty:ty),*);)*) => {
        impl TensorValue {$(
            #[doc = concat!("See [`ops::", stringify!($name), "`](crate::graph::ops::", stringify!($name), ").")]
            ///
            /// # Errors
            #[doc = concat!("As [`ops::", stringify!($name), "`](crate::graph::ops::", stringify!($name), ").")]
            #[track_caller]
            pub fn $name(&self, $($arg: $ty),*) -> Result<TensorValue> {
                $name(self, $($arg),*)
            }
        )*}
    };
}
view_methods! {
    reshape(shape: impl Into<Shape>);
    transpose(axis_1: i64, axis_2: i64);
    permute(dims: impl AsRef<[i64]>);
    broadcast_to(shape: impl Into<Shape>);
    flatten(start_dim: i64, end_dim: i64);
    squeeze(axis: i64);
    unsqueeze(axis: i64);
    rebind(shape: impl Into<Shape>, message: &str);
}

impl TensorValue {
    /// The tensor with its last two axes swapped, or itself if it has fewer.
    ///
    /// # Errors
    /// When the value stands for a mistake made before.
    #[track_caller]
    pub fn t(&self) -> Result<TensorValue> {
        if self.rank() < 2 { Site::new("transpose").tensor("the operand", self) } else { transpose(self, -1, -2) }
    }

    /// See [`transfer_to`].
    ///
    /// # Errors
    /// As [`transfer_to`].
    #[track_caller]
    pub fn to(&self, device: DeviceRef) -> Result<TensorValue> {
        transfer_to(self, device)
    }
}
