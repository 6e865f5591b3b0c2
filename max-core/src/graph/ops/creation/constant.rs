//! Constants: numbers, slices, nested arrays and driver tensors as tensors of any dtype.

use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::dispatch;
use crate::driver::{Device, DeviceRef, DriverError, Tensor};
use crate::dtype::{DType, Element};
use crate::graph::Graph;
use crate::graph::builder::site::{Result, Site, at, type_error};
use crate::graph::error::{GraphErrorKind, STATIC};
use crate::graph::node::Op;
use crate::graph::ops;
use crate::graph::ops::movement::slice::DimSlice;
use crate::graph::types::{TensorType, Type};
use crate::graph::value::number::{Number, numbers};
use crate::graph::value::{Scalar, TensorValue};
use crate::graph::weights::{Shard, Weight};

/// What [`constant`] takes: a number (rank 0), a slice or `Vec` (rank 1), nested arrays (up to rank 3), or a
/// [`Tensor`] of the host, which is not copied if it has the dtype asked for.
#[derive(Debug)]
pub struct ConstantData(std::result::Result<Tensor, DriverError>);

/// The tensor in another dtype.
fn convert(tensor: Tensor, dtype: DType) -> std::result::Result<Tensor, GraphErrorKind> {
    if tensor.dtype() == dtype {
        return Ok(tensor.contiguous()?);
    }
    let numbers = numbers(&tensor)?;
    dispatch!(dtype, T => {
        let mut elements = Vec::<T>::with_capacity(tensor.num_elements());
        for value in numbers {
            let unrepresentable = || GraphErrorKind::Unrepresentable { value: value.to_string(), dtype };
            elements.push(Number::from_scalar(value).ok_or_else(unrepresentable)?);
        }
        Ok(Tensor::from_vec(elements, tensor.shape())?)
    })
}

impl From<DriverError> for GraphErrorKind {
    fn from(source: DriverError) -> Self {
        GraphErrorKind::Driver { source: Arc::new(source) }
    }
}

impl Scalar {
    /// A host tensor of rank 0 that holds the number. Floats are rounded to the nearest; an integer has to be exact.
    ///
    /// # Errors
    /// When the dtype cannot hold the number, and when there is no memory.
    pub fn to_tensor(self, dtype: DType) -> std::result::Result<Tensor, GraphErrorKind> {
        dispatch!(dtype, T => match <T as Number>::from_scalar(self) {
            Some(element) => Tensor::scalar(element).map_err(GraphErrorKind::from),
            None => Err(GraphErrorKind::Unrepresentable { value: self.to_string(), dtype }),
        })
    }
}

impl Site {
    /// A number as a constant beside `like`.
    pub(in crate::graph) fn scalar(&self, like: &TensorValue, value: Scalar, dtype: DType) -> Result<TensorValue> {
        match value.to_tensor(dtype) {
            Ok(tensor) => {
                let ty = TensorType::new(dtype, (), like.device());
                Ok(self.push(&like.graph, Op::Constant(tensor), SmallVec::new(), ty))
            }
            Err(kind) => self.fail(&[like], kind),
        }
    }
}

impl From<Tensor> for ConstantData {
    fn from(tensor: Tensor) -> Self {
        // Constants are brought to where they are used when the graph is loaded.
        ConstantData(tensor.to(&Device::cpu()))
    }
}

impl From<&Tensor> for ConstantData {
    fn from(tensor: &Tensor) -> Self {
        ConstantData(tensor.to(&Device::cpu()))
    }
}

impl<T: Element> From<T> for ConstantData {
    fn from(value: T) -> Self {
        ConstantData(Tensor::scalar(value))
    }
}

impl<T: Element> From<&[T]> for ConstantData {
    fn from(values: &[T]) -> Self {
        ConstantData(Tensor::from_slice(values, [values.len()]))
    }
}

impl<T: Element> From<&Vec<T>> for ConstantData {
    fn from(values: &Vec<T>) -> Self {
        values.as_slice().into()
    }
}

impl<T: Element> From<Vec<T>> for ConstantData {
    fn from(values: Vec<T>) -> Self {
        let count = values.len();
        ConstantData(Tensor::from_vec(values, [count]))
    }
}

impl<T: Element, const A: usize> From<[T; A]> for ConstantData {
    fn from(values: [T; A]) -> Self {
        ConstantData(Tensor::from_slice(&values, [A]))
    }
}

impl<T: Element, const A: usize, const B: usize> From<[[T; B]; A]> for ConstantData {
    fn from(values: [[T; B]; A]) -> Self {
        ConstantData(Tensor::from_slice(values.as_flattened(), [A, B]))
    }
}

impl<T: Element, const A: usize, const B: usize, const C: usize> From<[[[T; C]; B]; A]> for ConstantData {
    fn from(values: [[[T; C]; B]; A]) -> Self {
        ConstantData(Tensor::from_slice(values.as_flattened().as_flattened(), [A, B, C]))
    }
}

/// A constant tensor, in any dtype. See [`ConstantData`] for what can be one.
///
/// Floats are rounded to the dtype; an integer has to be exact.
///
/// # Errors
/// When the dtype cannot hold a value: out of range, a float in an integer dtype, or an integer that a float dtype
/// would round. When a tensor is not on the host, and when there is no memory.
///
/// ```
/// # use max_core::{driver::DeviceRef, dtype::DType, graph::{Graph, ops}};
/// let graph = Graph::new("constants", ());
/// let x = ops::constant(&graph, [[1.0, 2.0], [3.0, 4.0]], DType::BF16, DeviceRef::CPU)?;
/// assert_eq!(x.ty().to_string(), "bfloat16[2, 2]");
/// assert!(ops::constant(&graph, 300, DType::U8, DeviceRef::CPU).is_err());
/// # Ok::<(), max_core::graph::GraphError>(())
/// ```
#[track_caller]
pub fn constant(graph: &Graph, value: impl Into<ConstantData>, dtype: DType, device: DeviceRef) -> Result<TensorValue> {
    let site = Site::new("constant");
    let converted = value.into().0.map_err(GraphErrorKind::from).and_then(|tensor| convert(tensor, dtype));
    match converted {
        Ok(tensor) => {
            let ty = TensorType::new(dtype, tensor.shape(), device);
            Ok(site.push(graph.reference(), Op::Constant(tensor), SmallVec::new(), ty))
        }
        Err(kind) => Err(site.error(graph.reference(), None::<Type>, kind)),
    }
}

/// A constant whose value is found by name when the graph is loaded: [`Graph::add_weight`] under MAX's other name.
///
/// # Errors
/// Those of [`Graph::add_weight`].
#[track_caller]
pub fn constant_external(graph: &Graph, name: impl Into<Arc<str>>, ty: TensorType) -> Result<TensorValue> {
    add_weight(graph, Site::new("constant_external"), &Weight::of(name, ty))
}

impl Graph {
    /// Declares a weight, whose value [`load_with_weights`](crate::engine::InferenceSession::load_with_weights) finds by
    /// name. One that the graph has already is the same value again. Of a [shard](Weight::shard), the value is its part.
    ///
    /// ```
    /// # extern crate max_core as max;
    /// # use max::kernel;
    /// # #[kernel(op = "add")]
    /// # fn add<T: Number>(x: T, y: T) -> T { x + y }
    /// use std::collections::HashMap;
    /// use max::driver::{DeviceRef, Tensor};
    /// use max::{dtype::DType, engine::InferenceSession, graph::{Graph, TensorType, Weight, ops}};
    ///
    /// let x = TensorType::new(DType::F32, ("n", 2), DeviceRef::CPU);
    /// let graph = Graph::build("shift", [x], |graph, inputs| {
    ///     ops::add(&inputs[0], graph.add_weight(&Weight::new("bias", DType::F32, [2], DeviceRef::CPU))?)
    /// })?;
    /// let weights = HashMap::from([("bias".to_owned(), Tensor::from_slice(&[1.0f32, -1.0], [2])?)]);
    /// let model = InferenceSession::new().load_with_weights(&graph, &weights)?;
    ///
    /// let outputs = model.execute(&Tensor::from_slice(&[10.0f32, 20.0], [1, 2])?)?;
    /// assert_eq!(outputs[0].to_vec::<f32>()?, [11.0, 19.0]);
    /// # Ok::<(), max::Error>(())
    /// ```
    ///
    /// # Errors
    /// When the graph has a weight of that name and another type; when the shape is not static.
    #[track_caller]
    pub fn add_weight(&self, weight: &Weight) -> Result<TensorValue> {
        add_weight(self, Site::new("add_weight"), weight)
    }
}

fn add_weight(graph: &Graph, site: Site, weight: &Weight) -> Result<TensorValue> {
    let reference = graph.reference();
    if let Some(Shard { whole, axis, ranges, .. }) = &weight.shard {
        let location = site.location;
        let whole = add_weight(graph, site, &Weight::of(weight.name.clone(), whole.clone()))?;
        let part = |range: &Range<i64>| {
            let mut indices = vec![DimSlice::from(..); *axis];
            indices.push(DimSlice::from(range.clone()));
            ops::slice_tensor(&whole, indices)
        };
        return at(location, || {
            let part = match ranges.is_empty() {
                true => whole.clone(),
                false => ops::concat(ranges.iter().map(part).collect::<Result<Vec<_>>>()?, *axis as i64)?,
            };
            ops::transfer_to(part, weight.ty.device)
        });
    }
    let fail = |kind| Err(site.error(reference, [&weight.ty], kind));
    if let Some(kind) = type_error(&Type::Tensor(weight.ty.clone())) {
        return fail(kind);
    }
    if let Some(dim) = weight.ty.shape.iter().find(|dim| !dim.is_static()) {
        return fail(GraphErrorKind::DimValue { what: "a dim of the weight", dim: dim.clone(), expected: STATIC });
    }
    let known = {
        let data = reference.lock();
        let same = |op: &Op| matches!(op, Op::ConstantExternal(name) if *name == weight.name);
        let node = data.nodes.iter().find(|node| same(&node.op));
        node.map(|node| (node.first_result, data.ty(node.first_result).clone(), node.location))
    };
    match known {
        None => Ok(site.push(reference, Op::ConstantExternal(weight.name.clone()), SmallVec::new(), weight.ty.clone())),
        Some((id, Type::Tensor(ty), _)) if ty == weight.ty => {
            Ok(TensorValue { graph: reference.clone(), id, ty, error: None })
        }
        Some((_, first, line)) => {
            let (name, first) = (weight.name.clone(), Box::new(first));
            fail(GraphErrorKind::WeightTwice { name, first, line })
        }
    }
}
