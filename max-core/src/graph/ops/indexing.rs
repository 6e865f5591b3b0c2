//! Ops that pick elements by index tensors.

use super::views::reshape_at;
use crate::dtype::DType;
use crate::graph::dim::Dim;
use crate::graph::node::Parameters;
use crate::graph::shape::Shape;
use crate::graph::site::{Result, Site};
use crate::graph::value::{Operand, TensorValue};

/// The slices of `input` along an axis that `indices` name: the axis is replaced by the shape of `indices`.
///
/// Negative indices count from the end; an index outside of the axis gives 0.
///
/// # Errors
/// When the axis is out of range, when `indices` are not integers, and when the devices or graphs differ.
#[track_caller]
pub fn gather(input: impl Into<Operand>, indices: impl Into<Operand>, axis: i64) -> Result<TensorValue> {
    let site = Site::new("gather");
    let (x, indices) = (site.tensor("the input", input)?, site.tensor("the indices", indices)?);
    site.together(&[&x, &indices])?;
    site.require("the indices", &indices, "integers", DType::is_integral)?;
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
