//! Padding: a tensor between copies of a number, or of its own elements.

use smallvec::SmallVec;

use super::super::concat;
use crate::graph::builder::site::{Result, Site};
use crate::graph::error::GraphErrorKind;
use crate::graph::node::{Op, SliceAxes, SliceAxis};
use crate::graph::symbolic::dim::Dim;
use crate::graph::value::{Operand, Scalar, TensorValue};

/// What stands beyond the border of a padded tensor.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum PadMode {
    /// A number.
    Constant(Scalar),
    /// The elements in reverse order, without that at the border: `3 2 | 1 2 3 | 2 1`.
    Reflect,
    /// The element at the border.
    Edge,
}

/// The tensor with more elements before and after it along each axis: `paddings` is before and after the first axis,
/// before and after the second, and so on.
///
/// # Errors
/// When there are not two paddings for each axis or one is below 0; when [`PadMode::Reflect`] asks for more than an axis
/// has beside its border, [`PadMode::Edge`] for elements of an empty axis; when the dtype cannot hold the number.
///
/// ```
/// # use max_core::{driver::DeviceRef, dtype::DType, graph::{Graph, TensorType, ops, ops::PadMode}};
/// let graph = Graph::new("g", [TensorType::new(DType::F32, ("rows", 4), DeviceRef::CPU)]);
/// let x = ops::pad(&graph.inputs()[0], [0, 2, 1, 1], PadMode::Constant(0.0.into()))?;
/// assert_eq!(x.shape().to_string(), "[rows + 2, 6]");
/// # Ok::<(), max_core::graph::GraphError>(())
/// ```
#[track_caller]
pub fn pad(input: impl Into<Operand>, paddings: impl AsRef<[i64]>, mode: PadMode) -> Result<TensorValue> {
    let site = Site::new("pad");
    let x = site.tensor("the operand", input)?;
    let paddings = paddings.as_ref();
    if paddings.len() != 2 * x.rank() || paddings.iter().any(|padding| *padding < 0) {
        let expected = format!("two numbers of at least 0 for each of {} axes", x.rank());
        return site.argument(&[&x], "paddings", format!("{paddings:?}"), expected);
    }
    let mut padded = x;
    for (axis, ends) in paddings.chunks_exact(2).enumerate() {
        padded = pad_axis(&site, padded, axis, [ends[0], ends[1]], mode)?;
    }
    Ok(padded)
}

/// Pads one axis.
#[track_caller]
pub(in crate::graph::ops) fn pad_axis(
    site: &Site,
    x: TensorValue,
    axis: usize,
    ends: [i64; 2],
    mode: PadMode,
) -> Result<TensorValue> {
    if let PadMode::Constant(value) = mode {
        if ends == [0, 0] {
            return Ok(x);
        }
        let value = site.scalar(&x, value, x.dtype())?;
        return pad_axis_with(site, x, axis, ends.map(Dim::Static), &value);
    }
    let ([before, after], dim) = (ends, &x.shape()[axis]);
    let needed = match mode {
        PadMode::Constant(_) => 0,
        PadMode::Edge => i64::from(before.max(after) > 0),
        PadMode::Reflect if before.max(after) > 0 => before.max(after) + 1,
        PadMode::Reflect => 0,
    };
    if let Some(size) = dim.as_static().filter(|size| *size < needed) {
        let expected = format!("less, as axis {axis} has only {size} elements to take");
        return site.argument(&[&x], "paddings", before.max(after), expected);
    }
    let mut parts: SmallVec<[TensorValue; 3]> = SmallVec::new();
    for (size, is_before) in [(before, true), (after, false)] {
        if size > 0 {
            let size = Dim::Static(size);
            parts.push(match mode {
                PadMode::Constant(_) | PadMode::Edge => {
                    let start = if is_before { Dim::Static(0) } else { dim - 1 };
                    let border = part(site, &x, axis, SliceAxis { start, step: 1 }, Dim::Static(1))?;
                    let mut shape = x.shape().clone();
                    shape[axis] = size;
                    site.broadcast(border, &shape)?
                }
                PadMode::Reflect => {
                    let start = if is_before { size.clone() } else { dim - 2 };
                    part(site, &x, axis, SliceAxis { start, step: -1 }, size)?
                }
            });
        }
        if is_before {
            parts.push(x.clone());
        }
    }
    concat(parts.iter(), axis as i64)
}

/// Pads one axis with a scalar.
pub(in crate::graph::ops) fn pad_axis_with(
    site: &Site,
    x: TensorValue,
    axis: usize,
    ends: [Dim; 2],
    value: &TensorValue,
) -> Result<TensorValue> {
    let border = |size: Dim| {
        let mut shape = x.shape().clone();
        shape[axis] = size;
        site.broadcast(value.clone(), &shape)
    };
    let [before, after] = ends;
    let mut parts: SmallVec<[TensorValue; 3]> = SmallVec::new();
    if before != 0 {
        parts.push(border(before)?);
    }
    parts.push(x.clone());
    if after != 0 {
        parts.push(border(after)?);
    }
    concat(parts.iter(), axis as i64)
}

/// A part of one axis whose bounds are known to be inside.
pub(in crate::graph::ops) fn part(
    site: &Site,
    x: &TensorValue,
    axis: usize,
    range: SliceAxis,
    size: Dim,
) -> Result<TensorValue> {
    if x.rank() <= axis {
        return site.fail(&[x], GraphErrorKind::Axis { axis: axis as i64, rank: x.rank() });
    }
    let whole = || SliceAxis { start: Dim::Static(0), step: 1 };
    let mut axes: SliceAxes = (0..x.rank()).map(|_| whole()).collect();
    axes[axis] = range;
    let mut shape = x.shape().clone();
    shape[axis] = size;
    site.view(Op::Slice(axes), x, x.ty.with_shape(shape))
}
