//! Repetition, and other elements in another arrangement: views, and one copy where a view cannot be.

use super::views::reshape_at;
use crate::graph::builder::site::{Result, Site};
use crate::graph::error::GraphErrorKind;
use crate::graph::symbolic::dim::Dim;
use crate::graph::symbolic::shape::Shape;
use crate::graph::value::{Operand, TensorValue};

/// The tensor `repeats[i]` times along each axis `i`, one after the other.
///
/// # Errors
/// When there is not one number of at least 0 for each axis.
///
/// ```
/// # use max_core::{driver::DeviceRef, dtype::DType, graph::{Graph, TensorType, ops}};
/// let graph = Graph::new("g", [TensorType::new(DType::F32, ("rows", 4), DeviceRef::CPU)]);
/// assert_eq!(ops::tile(&graph.inputs()[0], [2, 3])?.shape().to_string(), "[rows * 2, 12]");
/// # Ok::<(), max_core::graph::GraphError>(())
/// ```
#[track_caller]
pub fn tile(x: impl Into<Operand>, repeats: impl Into<Shape>) -> Result<TensorValue> {
    let site = Site::new("tile");
    let x = site.tensor("the operand", x)?;
    let repeats = repeats.into();
    if repeats.rank() != x.rank() || repeats.iter().any(|count| count.as_static().is_some_and(|count| count < 0)) {
        let expected = format!("a number of at least 0 for each of {} axes", x.rank());
        return site.argument(&[&x], "repeats", repeats, expected);
    }
    site.known_symbols(&x.graph, &repeats).or_else(|kind| site.fail(&[&x], kind))?;
    // Each axis as a pair: which repetition, and the axis itself.
    let dims = || x.shape().iter().zip(repeats.iter());
    let apart: Shape = dims().flat_map(|(dim, _)| [Dim::Static(1), dim.clone()]).collect();
    let repeated: Shape = dims().flat_map(|(dim, count)| [count.clone(), dim.clone()]).collect();
    let joined: Shape = dims().map(|(dim, count)| dim * count).collect();
    let wide = site.broadcast(reshape_at(&site, &x, apart)?, &repeated)?;
    reshape_at(&site, &wide, joined)
}

/// Every element `repeats` times along an axis, next to each other; without an axis, those of the flattened tensor.
///
/// # Errors
/// When the axis is out of range, or `repeats` below 1.
#[track_caller]
pub fn repeat_interleave(x: impl Into<Operand>, repeats: i64, axis: Option<i64>) -> Result<TensorValue> {
    let site = Site::new("repeat_interleave");
    let mut x = site.tensor("the operand", x)?;
    if repeats < 1 {
        return site.argument(&[&x], "repeats", repeats, "at least 1");
    }
    let axis = match axis {
        Some(axis) => site.axis(&x, axis)?,
        None => {
            x = reshape_at(&site, &x, Shape::from([x.shape().num_elements()]))?;
            0
        }
    };
    let mut dims: Vec<Dim> = x.shape().to_vec();
    dims.insert(axis + 1, Dim::Static(1));
    let apart = reshape_at(&site, &x, dims.as_slice().into())?;
    dims[axis + 1] = Dim::Static(repeats);
    let wide = site.broadcast(apart, &dims.as_slice().into())?;
    dims.remove(axis + 1);
    dims[axis] = &dims[axis] * repeats;
    reshape_at(&site, &wide, dims.as_slice().into())
}

/// Complex numbers, whose real and imaginary parts alternate along the last axis, as pairs on an axis of their own.
///
/// # Errors
/// When there is no last axis, or its size is not even for every size of its symbols.
#[track_caller]
pub fn as_interleaved_complex(x: impl Into<Operand>) -> Result<TensorValue> {
    let site = Site::new("as_interleaved_complex");
    let x = site.tensor("the operand", x)?;
    let axis = site.axis(&x, -1)?;
    let Some(pairs) = x.shape()[axis].exact_div(&Dim::Static(2)) else {
        let (what, dim) = ("the last dim", x.shape()[axis].clone());
        return site.fail(&[&x], GraphErrorKind::DimValue { what, dim, expected: "even" });
    };
    let mut dims: Vec<Dim> = x.shape().to_vec();
    dims[axis] = pairs;
    dims.push(Dim::Static(2));
    reshape_at(&site, &x, dims.as_slice().into())
}
