//! Weights by name: what a graph declares with [`Graph::add_weight`], and a [`WeightsRegistry`] gives when it is loaded.
//!
//! A graph with declared weights is built without their values. [`InferenceSession::load_with_weights`] looks each name up,
//! checks dtype and shape, and makes a constant of the tensor, in the memory that it lies in: [`SafetensorWeights`] may map
//! files, and a `HashMap` of tensors is a registry too.
//!
//! [`InferenceSession::load_with_weights`]: crate::engine::InferenceSession::load_with_weights

mod error;
mod header;
mod index;
mod safetensors;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::hash::BuildHasher;
use std::sync::Arc;

use smallvec::SmallVec;

pub use self::error::{WeightType, WeightsError};
pub use self::safetensors::SafetensorWeights;
use super::error::{GraphErrorKind, STATIC};
use super::node::Op;
use super::site::{Site, type_error};
use super::{Graph, GraphError, Shape, TensorType, TensorValue, Type};
use crate::driver::{Device, DeviceRef, Tensor};
use crate::dtype::DType;

/// A weight that a graph declares: its value comes from a [`WeightsRegistry`] when the graph is loaded.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Weight {
    /// The name in the registry.
    pub name: Arc<str>,
    /// Dtype, shape and the device that it is used on.
    pub ty: TensorType,
}

impl Weight {
    /// A weight. The shape has to be static.
    pub fn new(name: impl Into<Arc<str>>, dtype: DType, shape: impl Into<Shape>, device: DeviceRef) -> Weight {
        Weight { name: name.into(), ty: TensorType::new(dtype, shape, device) }
    }
}

impl fmt::Display for Weight {
    /// `fc.weight: float32[10, 4]`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name, self.ty)
    }
}

impl Graph {
    /// Declares a weight, whose value [`load_with_weights`](crate::engine::InferenceSession::load_with_weights) finds by
    /// name. One that the graph has already is the same value again.
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
    pub fn add_weight(&self, weight: &Weight) -> Result<TensorValue, GraphError> {
        add(self, Site::new("add_weight"), weight)
    }
}

pub(super) fn add(graph: &Graph, site: Site, weight: &Weight) -> Result<TensorValue, GraphError> {
    let reference = graph.reference();
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

/// Where a graph's weights are found by name when it is loaded.
pub trait WeightsRegistry {
    /// The tensor of that name; `None` if there is none.
    ///
    /// # Errors
    /// When it cannot be read.
    fn weight(&self, name: &str) -> Result<Option<Tensor>, WeightsError>;

    /// All names, for messages.
    fn weight_names(&self) -> Vec<String>;
}

/// No weights.
impl WeightsRegistry for () {
    fn weight(&self, _: &str) -> Result<Option<Tensor>, WeightsError> {
        Ok(None)
    }

    fn weight_names(&self) -> Vec<String> {
        Vec::new()
    }
}

impl<S: BuildHasher> WeightsRegistry for HashMap<String, Tensor, S> {
    fn weight(&self, name: &str) -> Result<Option<Tensor>, WeightsError> {
        Ok(self.get(name).cloned())
    }

    fn weight_names(&self) -> Vec<String> {
        self.keys().cloned().collect()
    }
}

impl WeightsRegistry for BTreeMap<String, Tensor> {
    fn weight(&self, name: &str) -> Result<Option<Tensor>, WeightsError> {
        Ok(self.get(name).cloned())
    }

    fn weight_names(&self) -> Vec<String> {
        self.keys().cloned().collect()
    }
}

/// What a registry has for a declared weight: a contiguous tensor of the host, of the declared dtype and shape.
pub(crate) fn find(registry: &dyn WeightsRegistry, name: &str, declared: &TensorType) -> Result<Tensor, WeightsError> {
    let Some(tensor) = registry.weight(name)? else {
        let names = registry.weight_names();
        return Err(WeightsError::missing(name, names.iter().map(String::as_str)));
    };
    let shape = declared.shape.iter().map(|dim| dim.as_static().and_then(|size| usize::try_from(size).ok()));
    let expected = WeightType { dtype: declared.dtype, shape: shape.map(Option::unwrap_or_default).collect() };
    WeightType::of(&tensor).require(&expected, name, None)?;
    let host = tensor.to(&Device::cpu()).and_then(|tensor| tensor.contiguous());
    host.map_err(|source| WeightsError::Tensor { name: name.into(), path: None, source })
}
