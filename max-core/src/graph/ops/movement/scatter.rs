//! Ops that write elements to places that a tensor names. Negative indices count from the end, and an index outside of
//! its axis writes nothing. Updates are made in order: of several to one place, `scatter` and `scatter_nd` keep the last.
//!
//! A CPU makes the updates of a row one after the other. On a GPU, where that were the work of one thread, each element of the
//! result looks for its own ones: for the last of them, or for all in sorted indices.

use super::super::rows::cumsum;
use super::super::sort::sort_rows;
use super::super::{add, gather, greater, permute, where_};
use super::indexing::{places, signed};
use super::views::reshape_at;
use crate::dtype::DType;
use crate::graph::builder::site::{Result, Site};
use crate::graph::error::GraphErrorKind;
use crate::graph::parameters::Parameters;
use crate::graph::symbolic::dim::Dim;
use crate::graph::symbolic::shape::Shape;
use crate::graph::value::{Operand, Scalar, TensorValue};

/// So many updates of a row take one thread of a GPU less time than further launches.
const FEW_UPDATES: i64 = 8;

/// The input with `output[.., indices[.., k, ..], ..] = updates[.., k, ..]`, where the index stands at `axis`.
///
/// # Errors
/// When the axis is out of range; when `updates` and `indices` differ in shape, or from the input in another dim than that
/// of the axis; when `indices` are no integers; when dtypes of input and updates, devices or graphs differ.
///
/// ```
/// # use max_core::{driver::DeviceRef, dtype::DType, graph::{Graph, TensorType, ops}};
/// let x = TensorType::new(DType::F32, ("rows", 8), DeviceRef::CPU);
/// let updates = TensorType::new(DType::F32, ("rows", 2), DeviceRef::CPU);
/// let indices = TensorType::new(DType::I64, ("rows", 2), DeviceRef::CPU);
/// let graph = Graph::new("g", [x, updates, indices]);
/// let y = ops::scatter(&graph.inputs()[0], &graph.inputs()[1], &graph.inputs()[2], -1)?;
/// assert_eq!(y.shape().to_string(), "[rows, 8]");
/// # Ok::<(), max_core::graph::GraphError>(())
/// ```
#[track_caller]
pub fn scatter(
    input: impl Into<Operand>,
    updates: impl Into<Operand>,
    indices: impl Into<Operand>,
    axis: i64,
) -> Result<TensorValue> {
    along(&Site::new("scatter"), [input.into(), updates.into(), indices.into()], axis, None)
}

macro_rules! combined {
    ($($(#[doc = $doc:literal])+ $name:ident: $by:literal;)+) => { $(
        $(#[doc = $doc])+
        ///
        /// # Errors
        /// As [`scatter`], and when the dtype is `bool`.
        #[track_caller]
        pub fn $name(
            input: impl Into<Operand>,
            updates: impl Into<Operand>,
            indices: impl Into<Operand>,
            axis: i64,
        ) -> Result<TensorValue> {
            along(&Site::new(stringify!($name)), [input.into(), updates.into(), indices.into()], axis, Some($by))
        }
    )+ };
}
combined! {
    /// The input with each update added where its index says, as in [`scatter`].
    scatter_add: "add";
    /// The input with, where an update's index says, the larger of what is there and the update, as in [`scatter`].
    scatter_max: "max";
    /// The input with, where an update's index says, the smaller of what is there and the update, as in [`scatter`].
    scatter_min: "min";
    /// The input multiplied by each update where its index says, as in [`scatter`].
    scatter_mul: "mul";
}

fn operands(site: &Site, operands: [Operand; 3]) -> Result<[TensorValue; 3]> {
    let [x, updates, indices] = operands;
    let x = site.tensor("the input", x)?;
    let (updates, indices) = (site.tensor("the updates", updates)?, site.tensor("the indices", indices)?);
    site.together(&[&x, &updates, &indices])?;
    let indices = signed(site, indices)?;
    if x.dtype() != updates.dtype() {
        let dtypes = vec![x.dtype(), updates.dtype()];
        return site.fail(&[&x, &updates, &indices], GraphErrorKind::Promotion { dtypes });
    }
    Ok([x, updates, indices])
}

fn along(site: &Site, all: [Operand; 3], axis: i64, by: Option<&'static str>) -> Result<TensorValue> {
    let [x, updates, indices] = operands(site, all)?;
    let all = [&x, &updates, &indices];
    let axis = site.axis(&x, axis)?;
    for (what, value) in [("the tensor of updates", &updates), ("the tensor of indices", &indices)] {
        if value.rank() != x.rank() {
            let expected = format!("{} axes, as the input", x.rank()).into();
            return site.fail(&all, GraphErrorKind::Rank { what, rank: value.rank(), expected });
        }
    }
    for (i, dim) in x.shape().iter().enumerate() {
        let (one, other) = (&updates.shape()[i], &indices.shape()[i]);
        let (what, lhs, rhs) = if one != other {
            ("the dims of updates and indices", one, other)
        } else if i != axis && one != dim {
            ("the dims of input and updates, except that of the axis,", dim, one)
        } else {
            continue;
        };
        return site.fail(&all, GraphErrorKind::DimMismatch { what, lhs: lhs.clone(), rhs: rhs.clone() });
    }
    let ty = x.ty.clone();
    let is_few = updates.shape()[axis].as_static().is_some_and(|count| count <= FEW_UPDATES);
    let apart = x.device().is_gpu() && !is_few;
    let Some(by) = by else {
        if !apart {
            return site.kernel_on_axis("scatter", &all, Some(axis), ty, Parameters::new());
        }
        let numbers = ty.with_dtype(DType::I64);
        let last = site.kernel_on_axis("last_updates", &[&indices], Some(axis), numbers, Parameters::new())?;
        return site.kernel_on_axis("scatter_last", &[&x, &updates, &last], Some(axis), ty, Parameters::new());
    };
    site.require("the input", &x, "integers and floats", |dtype| dtype != DType::Bool)?;
    let parameters = Parameters::new().with("by", by);
    if !apart {
        return site.kernel_on_axis("scatter_reduce", &all, Some(axis), ty, parameters);
    }
    let wide = site.cast(indices.clone(), DType::I64)?;
    let wide = where_(greater(0, &wide)?, add(&wide, &x.shape()[axis])?, &wide)?;
    let mut order: Vec<i64> = (0..x.rank() as i64).collect();
    order.swap(axis, x.rank() - 1);
    let (sorted, positions) = sort_rows(site, &permute(wide, order.clone())?, false)?;
    let (sorted, positions) = (permute(sorted, order.clone())?, permute(positions, order)?);
    site.kernel_on_axis("scatter_reduce_sorted", &[&x, &updates, &sorted, &positions], Some(axis), ty, parameters)
}

/// The input with parts replaced: the last axis of `indices` holds an index for each of the input's first axes, and the
/// update of the same place is the part of the input that they name.
///
/// # Errors
/// When the size of the last axis of `indices` is symbolic, 0, or more than the input has axes; when the shape of `updates` is not that of `indices` without the last axis and then the
/// input's without the indexed ones; as [`scatter`] for dtypes, devices and graphs.
///
/// ```
/// # use max_core::{driver::DeviceRef, dtype::DType, graph::{Graph, TensorType, ops}};
/// let x = TensorType::new(DType::F32, (6, "n"), DeviceRef::CPU);
/// let updates = TensorType::new(DType::F32, (3, "n"), DeviceRef::CPU);
/// let indices = TensorType::new(DType::I64, (3, 1), DeviceRef::CPU);
/// let graph = Graph::new("g", [x, updates, indices]);
/// let y = ops::scatter_nd(&graph.inputs()[0], &graph.inputs()[1], &graph.inputs()[2])?;
/// assert_eq!(y.shape().to_string(), "[6, n]");
/// # Ok::<(), max_core::graph::GraphError>(())
/// ```
#[track_caller]
pub fn scatter_nd(
    input: impl Into<Operand>,
    updates: impl Into<Operand>,
    indices: impl Into<Operand>,
) -> Result<TensorValue> {
    let site = Site::new("scatter_nd");
    let [x, updates, indices] = operands(&site, [input.into(), updates.into(), indices.into()])?;
    let all = [&x, &updates, &indices];
    let last = site.axis(&indices, -1)?;
    let dim = &indices.shape()[last];
    let Some(depth) = dim.as_static().filter(|depth| (1..=x.rank() as i64).contains(depth)) else {
        let (what, dim) = ("the last dim of the indices", dim.clone());
        let expected = "static, at least 1 and at most the input's rank";
        return site.fail(&all, GraphErrorKind::DimValue { what, dim, expected });
    };
    let (named, rest) = x.shape().split_at(depth as usize);
    let sizes = named.to_vec();
    let expected: Shape = indices.shape()[..last].iter().chain(rest).cloned().collect();
    if *updates.shape() != expected {
        let ty = updates.ty.with_shape(expected);
        let (actual, expected) = (Box::new(updates.ty.clone().into()), Box::new(ty.into()));
        return site.fail(&all, GraphErrorKind::TypeMismatch { what: "the updates", actual, expected });
    }
    // Which update each part of the input gets: the last one that names it, or none.
    let (parts, width) = (Shape::from(named).num_elements(), Shape::from(rest).num_elements());
    let count = Shape::from(&indices.shape()[..last]).num_elements();
    let number = |value: i64, shape: [&Dim; 1]| {
        site.broadcast(site.scalar(&x, Scalar::Int(value.into()), DType::I64)?, &Shape::from(shape))
    };
    let numbers = cumsum(number(1, [&count])?, 0, true, false)?;
    let place = reshape_at(&site, &places(&site, &indices, 0, &sizes)?, Shape::from([count.clone()]))?;
    let from = scatter(number(-1, [&parts])?, numbers, place, 0)?;
    let rows = reshape_at(&site, &x, Shape::from([parts, width.clone()]))?;
    let new = reshape_at(&site, &updates, Shape::from([count, width]))?;
    let ty = rows.ty.clone();
    let y = site.kernel("replace_rows", &[&rows, &new, &from], ty, Parameters::new())?;
    reshape_at(&site, &y, x.shape().clone())
}

/// The input with the updates, in order, where the mask is true; 0 where there are fewer updates than that.
///
/// # Errors
/// When the mask is not `bool`, or does not broadcast to the input's shape; when dtypes of input and updates, devices or
/// graphs differ.
#[track_caller]
pub fn masked_scatter(
    input: impl Into<Operand>,
    mask: impl Into<Operand>,
    updates: impl Into<Operand>,
) -> Result<TensorValue> {
    let site = Site::new("masked_scatter");
    let (x, mask) = (site.tensor("the input", input)?, site.tensor("the mask", mask)?);
    let updates = site.tensor("the updates", updates)?;
    let all = [&x, &mask, &updates];
    site.together(&all)?;
    site.require("the mask", &mask, "bool", |dtype| dtype == DType::Bool)?;
    if x.dtype() != updates.dtype() {
        return site.fail(&all, GraphErrorKind::Promotion { dtypes: vec![x.dtype(), updates.dtype()] });
    }
    if mask.shape().broadcast(x.shape()).as_ref() != Some(x.shape()) {
        let (from, to) = (Box::new(mask.shape().clone()), Box::new(x.shape().clone()));
        return site.fail(&all, GraphErrorKind::BroadcastTo { from, to });
    }
    let mask = site.broadcast(mask.clone(), x.shape())?;
    let flat = |value: &TensorValue| reshape_at(&site, value, Shape::from([value.shape().num_elements()]));
    // How many places come before each one.
    let before = cumsum(site.cast(flat(&mask)?, DType::I64)?, 0, true, false)?;
    let (updates, shape) = (flat(&updates)?, x.shape().clone());
    // Where there are fewer, none is named that is not there.
    let count = updates.shape().num_elements();
    let is_there = greater(count.clone(), &before)?;
    let taken = gather(updates, where_(&is_there, before, 0)?, 0)?;
    let zero: Operand = if x.dtype() == DType::Bool { false.into() } else { 0.into() };
    let taken = where_(is_there, taken, zero)?;
    where_(mask, reshape_at(&site, &taken, shape)?, &x)
}
