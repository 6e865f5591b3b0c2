//! Weights by name: what a graph declares with [`Graph::add_weight`](super::Graph::add_weight), and a [`WeightsRegistry`] gives when it is loaded.
//!
//! A graph with declared weights is built without their values. [`InferenceSession::load_with_weights`] looks each name up,
//! checks dtype and shape, and makes a constant of the tensor, in the memory that it lies in: [`SafetensorWeights`] may map
//! files, and a `HashMap` of tensors is a registry too.
//!
//! [`InferenceSession::load_with_weights`]: crate::engine::InferenceSession::load_with_weights

mod allocate;
mod archive;
mod data;
mod error;
mod format;
mod gguf;
mod pytorch;
mod safetensors;
mod sharding;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::hash::BuildHasher;
use std::sync::Arc;

pub use self::allocate::WeightOptions;
pub use self::archive::{FileWeights, Format};
pub use self::data::WeightData;
pub use self::error::{WeightType, WeightsError};
pub use self::format::{AnyFormat, Weights, WeightsFormat, load_weights};
pub use self::gguf::write::{GgufTensor, save_gguf};
pub use self::gguf::{Gguf, GgufWeights, MetadataValue};
pub use self::pytorch::{Pytorch, PytorchWeights};
pub use self::safetensors::write::save_safetensors;
pub use self::safetensors::{SafetensorWeights, Safetensors};
pub(super) use self::sharding::Shard;
pub use self::sharding::ShardingStrategy;
use super::quantization::QuantizationEncoding;
use super::symbolic::shape::Shape;
use super::types::TensorType;
use crate::driver::{Device, DeviceRef, Tensor};
use crate::dtype::DType;

/// A weight that a graph declares: its value comes from a [`WeightsRegistry`] when the graph is loaded.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Weight {
    /// The name in the registry.
    pub name: Arc<str>,
    /// Dtype, shape and the device that it is used on.
    pub ty: TensorType,
    sharding_strategy: Option<ShardingStrategy>,
    pub(super) shard: Option<Shard>,
    quantization_encoding: Option<QuantizationEncoding>,
}

impl Weight {
    /// A weight. The shape has to be static.
    pub fn new(name: impl Into<Arc<str>>, dtype: DType, shape: impl Into<Shape>, device: DeviceRef) -> Weight {
        Weight::of(name, TensorType::new(dtype, shape, device))
    }

    /// A weight of this type, whose shape has to be static.
    pub fn of(name: impl Into<Arc<str>>, ty: TensorType) -> Weight {
        Weight { name: name.into(), ty, sharding_strategy: None, shard: None, quantization_encoding: None }
    }

    /// This weight as one of blocks: `ty` is that of their bytes, `[.., blocks * block_size]` of `uint8`.
    pub fn with_quantization_encoding(self, encoding: QuantizationEncoding) -> Weight {
        Weight { quantization_encoding: Some(encoding), ..self }
    }

    /// How its bytes are quantized, for [`qmatmul`](crate::graph::ops::qmatmul) and
    /// [`dequantize`](crate::graph::ops::dequantize); `None` where its elements are numbers.
    pub fn quantization_encoding(&self) -> Option<QuantizationEncoding> {
        self.quantization_encoding
    }

    /// Dtype and shape of its elements: of blocks, `float32` and as many as they hold.
    ///
    /// ```
    /// use max_core::{driver::DeviceRef, dtype::DType, graph::{Weight, quantization::QuantizationEncoding}};
    ///
    /// let bytes = Weight::new("w", DType::U8, (1024, 4096 / 256 * 144), DeviceRef::CPU);
    /// let weight = bytes.with_quantization_encoding(QuantizationEncoding::Q4_K);
    /// let (dtype, shape) = weight.original_dtype_and_shape();
    /// assert_eq!((dtype, shape.to_string()), (DType::F32, "[1024, 4096]".to_owned()));
    /// ```
    pub fn original_dtype_and_shape(&self) -> (DType, Shape) {
        let Some(encoding) = self.quantization_encoding else { return (self.ty.dtype, self.ty.shape.clone()) };
        let mut dims = self.ty.shape.to_vec();
        if let Some(last) = dims.last_mut() {
            *last = last.clone() / encoding.block_size() as i64 * encoding.elements_per_block() as i64;
        }
        (DType::F32, dims.into())
    }

    /// The bytes that its address is a multiple of, at least.
    pub fn align(&self) -> usize {
        self.ty.dtype.align()
    }
}

impl fmt::Display for Weight {
    /// `fc.weight: float32[10, 4]`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name, self.ty)
    }
}

/// Where a graph's weights are found by name when it is loaded.
pub trait WeightsRegistry {
    /// The tensor of that name; `None` if there is none.
    ///
    /// # Errors
    /// When it cannot be read.
    fn weight(&self, name: &str) -> Result<Option<Tensor>, WeightsError>;

    /// The blocks of a quantized weight, as bytes `[.., blocks * block_size]`, and how they are read; `None` for other weights, and for
    /// registries that give the elements alone.
    ///
    /// # Errors
    /// When it cannot be read.
    fn quantized(&self, name: &str) -> Result<Option<(Tensor, QuantizationEncoding)>, WeightsError> {
        let _ = name;
        Ok(None)
    }

    /// The order in which the blocks of a quantized weight take the elements of an input, `int32` `[in]`; `None` if it is that of the
    /// elements.
    ///
    /// # Errors
    /// When it cannot be read.
    fn input_order(&self, name: &str) -> Result<Option<Tensor>, WeightsError> {
        let _ = name;
        Ok(None)
    }

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
