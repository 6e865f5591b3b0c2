//! Ops whose results have sizes that data decide, and ops that take tensors for numbers.

use super::dims::{bind, numbers};
use super::movement::pad::pad_axis_with;
use super::movement::slice::narrow;
use super::movement::views::reshape_at;
use super::rows::{cumsum, sum};
use super::{add, div, gather, mul, not_equal, scatter, scatter_add, stack, sub, where_};
use crate::dtype::DType;
use crate::graph::builder::site::{Result, Site};
use crate::graph::error::GraphErrorKind;
use crate::graph::parameters::Parameters;
use crate::graph::symbolic::dim::Dim;
use crate::graph::symbolic::shape::Shape;
use crate::graph::value::{Operand, Scalar, TensorValue};

/// The indices of all elements that are not zero, in row-major order: `[out_dim, rank]`, as `int64`.
///
/// `out_dim` is a new name, which gets the number of these elements when the graph is executed, or a dim, of which that is
/// asserted.
///
/// ```
/// # use max_core::{driver::DeviceRef, dtype::DType, graph::{Graph, TensorType, ops}};
/// let graph = Graph::new("g", [TensorType::new(DType::F32, ("rows", "columns"), DeviceRef::CPU)]);
/// let places = ops::nonzero(&graph.inputs()[0], "found")?;
/// assert_eq!(places.ty().to_string(), "int64[found, 2]");
/// # Ok::<(), max_core::graph::GraphError>(())
/// ```
///
/// # Errors
/// When the operand is a scalar; when `out_dim` cannot be a dim.
#[track_caller]
pub fn nonzero(x: impl Into<Operand>, out_dim: impl Into<Dim>) -> Result<TensorValue> {
    let site = Site::new("nonzero");
    let x = site.tensor("the operand", x)?;
    let out_dim = out_dim.into();
    if x.rank() == 0 {
        let kind = GraphErrorKind::Rank { what: "the operand", rank: 0, expected: "1 axis or more".into() };
        return site.fail(&[&x], kind);
    }
    let all = x.shape().num_elements();
    let flags = if x.dtype() == DType::Bool { x.clone() } else { not_equal(&x, 0)? };
    let flags = reshape_at(&site, &flags, Shape::from([all.clone()]))?;
    let ones = site.cast(flags.clone(), DType::I64)?;
    bind(&site, &sum(&ones, 0)?, Shape::from([out_dim.clone()]))?;
    // Each goes where so many were before it, others behind all.
    let place = where_(&flags, cumsum(&ones, 0, true, false)?, Operand::Dim(all.clone()))?;
    let places = numbers(&site, &x.graph, &all, x.device())?;
    let room = Shape::from([all.clone() + 1]);
    let zeros = site.broadcast(site.scalar(&x, Scalar::Int(0), DType::I64)?, &room)?;
    let found = scatter(zeros, places, place, 0)?;
    let mut rest = narrow(&site, &found, 0, Dim::Static(0), out_dim)?;
    let mut columns = Vec::new();
    for dim in x.shape().iter().skip(1).rev() {
        let size = site.beside(&rest, &Operand::Dim(dim.clone()), DType::I64)?;
        let size = site.broadcast(size, rest.shape())?;
        columns.insert(0, site.kernel("mod", &[&rest, &size], rest.ty.clone(), Parameters::new())?);
        rest = site.kernel("div", &[&rest, &size], rest.ty.clone(), Parameters::new())?;
    }
    columns.insert(0, rest);
    stack(columns, 1)
}

/// The numbers from `start` to `stop`, without that, by steps of `step`, each a tensor of one element: as
/// [`range`](super::range), where numbers are computed.
///
/// `out_dim` is the size of the result: a new name, or a dim, which is asserted when the graph is executed.
///
/// # Errors
/// When a tensor has more than one element; when dtypes have no common one; when `out_dim` cannot be a dim.
#[track_caller]
pub fn range_tensor(
    start: impl Into<Operand>,
    stop: impl Into<Operand>,
    step: impl Into<Operand>,
    out_dim: impl Into<Dim>,
    dtype: DType,
) -> Result<TensorValue> {
    let site = Site::new("range");
    let out_dim = out_dim.into();
    let [start, stop, step] = site.promote([start.into(), stop.into(), step.into()])?;
    let all = [&start, &stop, &step];
    if all.iter().any(|value| value.shape().num_elements() != 1) {
        let rank = all.iter().map(|value| value.rank()).max().unwrap_or(0);
        return site
            .fail(&all, GraphErrorKind::Rank { what: "an end of the range", rank, expected: "one element".into() });
    }
    // Integers are exact where they are computed with, floats as they are.
    let wide = if start.dtype().is_integral() { DType::I64 } else { DType::F64 };
    let one = |value: &TensorValue| reshape_at(&site, &site.cast(value.clone(), wide)?, Shape::from([1]));
    let (start, stop, step) = (one(&start)?, one(&stop)?, one(&step)?);
    let count = super::ceil(site.cast(div(sub(&stop, &start)?, &step)?, DType::F64)?)?;
    let count = super::maximum(site.cast(count, DType::I64)?, 0)?;
    bind(&site, &count, Shape::from([out_dim.clone()]))?;
    let steps = site.cast(numbers(&site, &start.graph, &out_dim, start.device())?, wide)?;
    site.cast(add(&start, mul(steps, step)?)?, dtype)
}

/// Every element of an axis `repeats[i]` times, next to each other, for its position i; without an axis, of the flattened
/// tensor. A single number of repeats is that of all. Numbers below 0 count as 0.
///
/// `out_dim` is the size of the axis in the result: a new name, or a dim, which is asserted when the graph is executed.
///
/// # Errors
/// When the axis is out of range; when `repeats` are no integers, or neither one nor one for each element of the axis; when
/// devices or graphs differ; when `out_dim` cannot be a dim.
#[track_caller]
pub fn repeat_interleave_tensor(
    x: impl Into<Operand>,
    repeats: impl Into<Operand>,
    axis: Option<i64>,
    out_dim: impl Into<Dim>,
) -> Result<TensorValue> {
    let site = Site::new("repeat_interleave");
    let (mut x, repeats) = (site.tensor("the operand", x)?, site.tensor("the repeats", repeats)?);
    site.together(&[&x, &repeats])?;
    site.require("the repeats", &repeats, "integers", DType::is_integral)?;
    let out_dim = out_dim.into();
    let axis = match axis {
        Some(axis) => site.axis(&x, axis)?,
        None => {
            x = reshape_at(&site, &x, Shape::from([x.shape().num_elements()]))?;
            0
        }
    };
    let size = x.shape()[axis].clone();
    let counts = super::maximum(site.cast(repeats.clone(), DType::I64)?, 0)?;
    let counts = match repeats.shape().num_elements() == 1 {
        true => reshape_at(&site, &counts, Shape::from([1]))?,
        false => counts,
    };
    let vector = Shape::from([size]);
    if !counts.shape().broadcasts_to(&vector) || counts.rank() != 1 {
        let (from, to) = (Box::new(repeats.shape().clone()), Box::new(vector));
        return site.fail(&[&x, &repeats], GraphErrorKind::BroadcastTo { from, to });
    }
    let counts = site.broadcast(counts, &vector)?;
    bind(&site, &sum(&counts, 0)?, Shape::from([out_dim.clone()]))?;
    // A mark behind the last copy of each element: so many marks until a place, so many elements before its own.
    let like = numbers(&site, &x.graph, &out_dim, x.device())?;
    let ones = site.broadcast(site.scalar(&x, Scalar::Int(1), DType::I64)?, &vector)?;
    let marks = scatter_add(sub(&like, &like)?, ones, cumsum(&counts, 0, false, false)?, 0)?;
    gather(&x, cumsum(marks, 0, false, false)?, axis as i64)
}

/// The tensor repeated to the shape that a tensor of integers holds: as [`broadcast_to`](super::broadcast_to), where the
/// shape is computed. `out_dims` are its dims: new names get the sizes, of others they are asserted.
///
/// # Errors
/// When the shape is no vector of integers with an element for each of `out_dims`; as [`broadcast_to`](super::broadcast_to)
/// for `out_dims`.
#[track_caller]
pub fn broadcast_to_tensor(
    x: impl Into<Operand>,
    shape: impl Into<Operand>,
    out_dims: impl Into<Shape>,
) -> Result<TensorValue> {
    let site = Site::new("broadcast_to");
    let (x, shape) = (site.tensor("the operand", x)?, site.tensor("the shape", shape)?);
    site.one_graph([&x, &shape])?;
    let dims = bind(&site, &shape, out_dims.into())?;
    super::broadcast_to(&x, dims)
}

/// The tensor with copies of a tensor of one element before and after it along each axis; see [`pad`](super::pad()).
///
/// # Errors
/// When there are not two paddings for each axis or a number is below 0; when the value has more than one element, or another
/// dtype; when devices or graphs differ.
#[track_caller]
pub fn pad_tensor(
    input: impl Into<Operand>,
    paddings: impl Into<Shape>,
    value: impl Into<Operand>,
) -> Result<TensorValue> {
    let site = Site::new("pad");
    let (mut x, value) = (site.tensor("the operand", input)?, site.tensor("the value", value)?);
    site.together(&[&x, &value])?;
    if x.dtype() != value.dtype() {
        let dtypes = vec![x.dtype(), value.dtype()];
        return site.fail(&[&x, &value], GraphErrorKind::Promotion { dtypes });
    }
    if value.shape().num_elements() != 1 {
        let kind = GraphErrorKind::Rank { what: "the value", rank: value.rank(), expected: "one element".into() };
        return site.fail(&[&x, &value], kind);
    }
    let (value, paddings) = (reshape_at(&site, &value, Shape::from(()))?, paddings.into());
    if paddings.rank() != 2 * x.rank() || paddings.iter().any(|dim| dim.as_static().is_some_and(|size| size < 0)) {
        let expected = format!("two numbers of at least 0 for each of {} axes", x.rank());
        return site.argument(&[&x], "paddings", &paddings, expected);
    }
    site.known_symbols(&x.graph, &paddings).or_else(|kind| site.fail(&[&x], kind))?;
    for (axis, ends) in paddings.dims().chunks_exact(2).enumerate() {
        x = pad_axis_with(&site, x, axis, [ends[0].clone(), ends[1].clone()], &value)?;
    }
    Ok(x)
}
