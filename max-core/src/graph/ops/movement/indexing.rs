//! Ops that pick elements by index tensors.

use super::super::dims::numbers;
use super::slice::narrow;
use super::views::reshape_at;
use crate::dtype::DType;
use crate::graph::builder::site::{Result, Site};
use crate::graph::error::{GraphErrorKind, STATIC};
use crate::graph::parameters::Parameters;
use crate::graph::symbolic::dim::Dim;
use crate::graph::symbolic::shape::Shape;
use crate::graph::value::{Operand, Scalar, TensorValue};

/// The slices of `input` along an axis that `indices` name: the axis is replaced by the shape of `indices`.
///
/// Indices are integers of any dtype. Negative ones count from the end; an index outside of the axis gives 0.
///
/// # Errors
/// When the axis is out of range, when `indices` are not integers, and when the devices or graphs differ.
#[track_caller]
pub fn gather(input: impl Into<Operand>, indices: impl Into<Operand>, axis: i64) -> Result<TensorValue> {
    let site = Site::new("gather");
    let (x, indices) = (site.tensor("the input", input)?, site.tensor("the indices", indices)?);
    site.together(&[&x, &indices])?;
    let indices = signed(&site, indices)?;
    let axis = site.axis(&x, axis)?;
    // The kernel takes [outer, axis, inner] and a vector of indices.
    let (before, after) = (Shape::from(&x.shape()[..axis]), Shape::from(&x.shape()[axis + 1..]));
    let (outer, inner, count) = (before.num_elements(), after.num_elements(), indices.shape().num_elements());
    let cube = reshape_at(&site, &x, [outer.clone(), x.shape()[axis].clone(), inner.clone()].into())?;
    let flat = reshape_at(&site, &indices, Shape::from([count.clone()]))?;
    let ty = cube.ty.with_shape(Shape::from([outer, count, inner]));
    let picked = site.kernel("gather", &[&cube, &flat], ty, Parameters::new())?;
    let dims: Vec<Dim> = before.iter().chain(indices.shape().iter()).chain(after.iter()).cloned().collect();
    reshape_at(&site, &picked, dims.into())
}

/// Indices in a dtype that kernels take: integers of all others are cast.
pub(in crate::graph::ops) fn signed(site: &Site, indices: TensorValue) -> Result<TensorValue> {
    site.require("the tensor of indices", &indices, "integers", DType::is_integral)?;
    match indices.dtype() {
        DType::I32 | DType::I64 => Ok(indices),
        DType::U64 => {
            // What has no sign stays outside of every axis, instead of counting from its end.
            let largest = site.scalar(&indices, Scalar::Int(i64::MAX.into()), DType::U64)?;
            let largest = site.broadcast(largest, indices.shape())?;
            let inside = site.kernel("min", &[&indices, &largest], indices.ty.clone(), Parameters::new())?;
            site.cast(inside, DType::I64)
        }
        _ => site.cast(indices, DType::I64),
    }
}

/// The parts of `input` that vectors of indices name: the last axis of `indices` holds an index for each of as many axes
/// of the input, those after the first `batch_dims`, which both share. The result has the axes of `indices` but the
/// last, then the axes of the input that no index is for.
///
/// Indices are integers of any dtype. Negative ones count from the end; an index outside of its axis gives 0.
///
/// # Errors
/// When `indices` are not integers; when the size of their last axis is symbolic, or more than the input has axes for;
/// when the shared axes differ; when the devices or graphs differ.
///
/// ```
/// # use max_core::{driver::DeviceRef, dtype::DType, graph::{Graph, TensorType, ops}};
/// let x = TensorType::new(DType::F32, (2, 3, 4, "n"), DeviceRef::CPU);
/// let indices = TensorType::new(DType::I64, (2, "f", 2), DeviceRef::CPU);
/// let graph = Graph::new("g", [x, indices]);
/// let y = ops::gather_nd(&graph.inputs()[0], &graph.inputs()[1], 1)?;
/// assert_eq!(y.shape().to_string(), "[2, f, n]");
/// # Ok::<(), max_core::graph::GraphError>(())
/// ```
#[track_caller]
pub fn gather_nd(input: impl Into<Operand>, indices: impl Into<Operand>, batch_dims: usize) -> Result<TensorValue> {
    let site = Site::new("gather_nd");
    let (x, indices) = (site.tensor("the input", input)?, site.tensor("the indices", indices)?);
    site.together(&[&x, &indices])?;
    let indices = signed(&site, indices)?;
    let axis = site.axis(&indices, -1)?;
    let fail = |what, dim: &Dim, expected| {
        site.fail(&[&x, &indices], GraphErrorKind::DimValue { what, dim: dim.clone(), expected })
    };
    let Some(depth) = indices.shape()[axis].as_static() else {
        return fail("the last dim of the indices", &indices.shape()[axis], STATIC);
    };
    let depth = depth as usize;
    if batch_dims > axis || batch_dims + depth > x.rank() || depth == 0 {
        let expected = format!("such that, with {depth} indices, at most the input's {} axes are named", x.rank());
        return site.argument(&[&x, &indices], "batch_dims", batch_dims, expected);
    }
    let (named, rest) = x.shape().split_at(batch_dims + depth);
    let mut sizes = Vec::new();
    for (i, dim) in named.iter().enumerate() {
        if i < batch_dims && indices.shape()[i] != *dim {
            let (lhs, rhs) = (dim.clone(), indices.shape()[i].clone());
            let what = "the input's first dims and the indices'";
            return site.fail(&[&x, &indices], GraphErrorKind::DimMismatch { what, lhs, rhs });
        }
        sizes.push(dim.clone());
    }
    let place = places(&site, &indices, batch_dims, &sizes)?;
    let all = sizes.iter().fold(Dim::Static(1), |all, size| all * size);
    let parts = [all].into_iter().chain(rest.iter().cloned()).collect();
    gather(reshape_at(&site, &x, parts)?, place, 0)
}

/// The place of each part when axes of these sizes are one: of the last axis of `indices`, an index of each axis after the
/// first `batch_dims`, times the size of those after it. Where an index is outside of its axis, so is the place.
pub(in crate::graph::ops) fn places(
    site: &Site,
    indices: &TensorValue,
    batch_dims: usize,
    sizes: &[Dim],
) -> Result<TensorValue> {
    let wide = site.cast(indices.clone(), DType::I64)?;
    let axis = site.axis(indices, -1)?;
    let shape: Shape = indices.shape()[..axis].into();
    let all = sizes.iter().fold(Dim::Static(1), |all, size| all * size);
    let mut place = site.broadcast(site.scalar(&wide, Scalar::Int(0), DType::I64)?, &shape)?;
    let mut stride = Dim::Static(1);
    for (i, size) in sizes.iter().enumerate().rev() {
        place = match i.checked_sub(batch_dims) {
            Some(of) => {
                let one = narrow(site, &wide, axis, Dim::from(of), Dim::Static(1))?;
                let one = reshape_at(site, &one, shape.clone())?;
                let index =
                    super::super::where_(super::super::greater(0, &one)?, super::super::add(&one, size)?, &one)?;
                let inside = super::super::logical_and(
                    super::super::greater_equal(&index, 0)?,
                    super::super::greater(size, &index)?,
                )?;
                super::super::where_(inside, super::super::add(super::super::mul(index, &stride)?, &place)?, &all)?
            }
            None => {
                // The shared axis itself.
                let numbers = numbers(site, &indices.graph, size, indices.device())?;
                let along = |axis: usize| if axis == i { size.clone() } else { Dim::Static(1) };
                let along: Shape = (0..axis).map(along).collect();
                let numbers = site.broadcast(reshape_at(site, &numbers, along)?, &shape)?;
                super::super::add(super::super::mul(numbers, &stride)?, &place)?
            }
        };
        stride = stride * size;
    }
    Ok(place)
}
