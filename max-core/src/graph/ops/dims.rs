//! Dims as values, and values as dims.

use smallvec::{SmallVec, smallvec};

use super::movement::views::reshape_at;
use super::rows::cumsum;
use super::{greater, where_};
use crate::driver::{DeviceRef, Tensor};
use crate::dtype::DType;
use crate::graph::builder::site::{Result, Site};
use crate::graph::error::GraphErrorKind;
use crate::graph::node::Op;
use crate::graph::symbolic::dim::Dim;
use crate::graph::symbolic::shape::Shape;
use crate::graph::types::{TensorType, Type};
use crate::graph::value::{GraphRef, Operand, Scalar, TensorValue};

/// Sequences up to this length are constants of the graph.
const LONGEST_CONSTANT: i64 = 1 << 16;

/// Gives names the sizes that a tensor of integers holds, when the graph is executed: `sizes[i]` is that of dim i. Names
/// that are new to the graph may be used from here on; of other dims it is asserted.
///
/// So the size of a result may depend on data: a kernel writes as much as there is room for, and how much it wrote, and
/// [`slice_tensor`](super::slice_tensor) takes that part. The host reads the sizes, and waits for a GPU that computes them.
///
/// ```
/// # use max_core::{driver::DeviceRef, dtype::DType, graph::{Dim, Graph, TensorType, ops}};
/// let x = TensorType::new(DType::F32, (100, 8), DeviceRef::CPU);
/// let count = TensorType::new(DType::I64, (), DeviceRef::CPU);
/// let graph = Graph::build("first", [x, count], |_, inputs| {
///     let [used] = &ops::to_dims(&inputs[1], ("used",))?[..] else { return Ok(inputs[0].tensor()?.clone()) };
///     ops::slice_tensor(&inputs[0], [..used.clone()])
/// })?;
/// assert_eq!(graph.output_types()[0].to_string(), "float32[used, 8]");
/// # Ok::<(), max_core::graph::GraphError>(())
/// ```
///
/// # Errors
/// When the tensor is not of integers, or does not have one element for each dim; when an expression uses a name that gets
/// no size.
#[track_caller]
pub fn to_dims(sizes: impl Into<Operand>, dims: impl Into<Shape>) -> Result<Shape> {
    let site = Site::new("to_dims");
    let sizes = site.tensor("the sizes", sizes)?;
    bind(&site, &sizes, dims.into())
}

/// Gives dims their sizes.
pub(super) fn bind(site: &Site, sizes: &TensorValue, dims: Shape) -> Result<Shape> {
    site.require("the sizes", sizes, "integers", DType::is_integral)?;
    if sizes.shape().num_elements() != dims.rank() || sizes.rank() > 1 {
        let expected = format!("one axis, of {} elements", dims.rank()).into();
        return site.fail(&[sizes], GraphErrorKind::Rank { what: "the sizes", rank: sizes.rank(), expected });
    }
    let graph = sizes.graph.clone();
    // Names have to be such that they can be dims of a tensor.
    site.checked(&[sizes], TensorType::new(DType::U8, dims.clone(), DeviceRef::CPU))?;
    let wide = reshape_at(site, &site.cast(sizes.clone(), DType::I64)?, Shape::from([dims.rank()]))?;
    graph.lock().declare_symbols(&dims);
    site.known_symbols(&graph, &dims).or_else(|kind| site.fail(&[sizes], kind))?;
    let (op, device) = (Op::BindDims(dims.clone()), wide.device());
    site.push_values(&graph, op, smallvec![wide.id], SmallVec::new(), device, false);
    Ok(dims)
}

/// A dim that has no name of the user's.
pub(super) fn unnamed(graph: &GraphRef) -> Dim {
    let mut data = graph.lock();
    loop {
        let name = format!("_{}", data.hidden);
        data.hidden += 1;
        if data.symbols.find(&name).is_none() {
            return Dim::from(name);
        }
    }
}

/// The position that an integer scalar holds, as a dim: a negative one counts from the end of an axis of that size.
#[track_caller]
pub(super) fn position(site: &Site, value: &TensorValue, size: &Dim) -> Result<Dim> {
    site.require("an index", value, "integers", DType::is_integral)?;
    let value = reshape_at(site, &site.cast(value.clone(), DType::I64)?, Shape::from([1]))?;
    let from_end = super::add(&value, size)?;
    let value = where_(greater(0, &value)?, from_end, &value)?;
    let dim = unnamed(&value.graph);
    bind(site, &value, Shape::from([dim.clone()]))?;
    Ok(dim)
}

/// The numbers from 0 to `count`, without that, as `int64`.
#[track_caller]
pub(super) fn numbers(site: &Site, graph: &GraphRef, count: &Dim, device: DeviceRef) -> Result<TensorValue> {
    let ty = TensorType::new(DType::I64, [count.clone()], device);
    let fail = |kind| site.error(graph, None::<Type>, kind);
    match count.as_static() {
        Some(count) if count <= LONGEST_CONSTANT => {
            let values = Tensor::from_vec((0..count).collect::<Vec<i64>>(), [count.max(0) as usize]);
            let values = values.map_err(|error| fail(error.into()))?;
            Ok(site.push(graph, Op::Constant(values), SmallVec::new(), ty))
        }
        _ => {
            site.known_symbols(graph, &ty.shape).map_err(fail)?;
            let one = Tensor::scalar(1_i64).map_err(|error| fail(error.into()))?;
            let one = site.push(graph, Op::Constant(one), SmallVec::new(), TensorType::new(DType::I64, (), device));
            cumsum(site.broadcast(one, &ty.shape)?, 0, true, false)
        }
    }
}

impl Site {
    /// A dim as a scalar of a dtype, on a device.
    pub(in crate::graph) fn dim(
        &self,
        graph: &GraphRef,
        dim: &Dim,
        (dtype, device): (DType, DeviceRef),
    ) -> Result<TensorValue> {
        let all = self.dims(graph, &Shape::from([dim.clone()]), (dtype, device))?;
        reshape_at(self, &all, Shape::from(()))
    }

    /// Dims as a vector of a dtype, on a device.
    pub(in crate::graph) fn dims(
        &self,
        graph: &GraphRef,
        dims: &Shape,
        (dtype, device): (DType, DeviceRef),
    ) -> Result<TensorValue> {
        self.known_symbols(graph, dims).map_err(|kind| self.error(graph, None::<Type>, kind))?;
        let ty = TensorType::new(DType::I64, [dims.rank()], DeviceRef::CPU);
        let values = self.push(graph, Op::ShapeToTensor(dims.clone()), SmallVec::new(), ty);
        let values = super::transfer_to(&values, device)?;
        self.cast(values, dtype)
    }

    /// What an operand that has no tensor stands for, beside one: a number or a dim as a scalar, dims as a vector.
    pub(in crate::graph) fn beside(&self, like: &TensorValue, operand: &Operand, dtype: DType) -> Result<TensorValue> {
        match operand {
            Operand::Scalar(value) => self.scalar(like, *value, dtype),
            Operand::Dim(dim) => match dim.as_static() {
                Some(size) => self.scalar(like, Scalar::Int(size.into()), dtype),
                None => self.dim(&like.graph, dim, (dtype, like.device())),
            },
            Operand::Shape(dims) => self.dims(&like.graph, dims, (dtype, like.device())),
            Operand::Tensor(_) | Operand::Buffer(_) => self.tensor("an operand", operand),
        }
    }
}
