//! [`FileWeights::allocate`]: weights of files as declarations for graphs, checked against what the caller expects.

use std::collections::BTreeMap;

use super::archive::{FileWeights, Format};
use super::{Weight, WeightType, WeightsError};
use crate::driver::{DeviceRef, Tensor};
use crate::dtype::DType;
use crate::graph::quantization::QuantizationEncoding;

type Result<T> = std::result::Result<T, WeightsError>;

/// What a weight is expected to be, for [`FileWeights::allocate`]; what is not said is not checked.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct WeightOptions {
    dtype: Option<DType>,
    shape: Option<Vec<usize>>,
    quantization_encoding: Option<QuantizationEncoding>,
}

impl WeightOptions {
    /// Nothing is expected.
    pub fn new() -> WeightOptions {
        WeightOptions::default()
    }

    /// The dtype of the elements; of a quantized weight `uint8`.
    pub fn dtype(self, dtype: DType) -> WeightOptions {
        WeightOptions { dtype: Some(dtype), ..self }
    }

    /// The sizes; of a quantized weight those of its elements.
    pub fn shape(self, shape: impl Into<Vec<usize>>) -> WeightOptions {
        WeightOptions { shape: Some(shape.into()), ..self }
    }

    /// How the weight is quantized.
    pub fn quantization_encoding(self, encoding: QuantizationEncoding) -> WeightOptions {
        WeightOptions { quantization_encoding: Some(encoding), ..self }
    }
}

impl<F: Format> FileWeights<F> {
    /// A weight with the dtype and the shape that it has in its file, to be declared in a graph by
    /// [`add_weight`](crate::graph::Graph::add_weight). It has its whole name there, with the prefix: the graph is loaded with the
    /// weights that this one is of.
    ///
    /// # Errors
    /// Those of [`ty`](Self::ty).
    pub fn weight(&self, name: &str, device: DeviceRef) -> Result<Weight> {
        self.allocate(name, &WeightOptions::new(), device)
    }

    /// As [`weight`](Self::weight), of a weight that is as the caller expects.
    ///
    /// ```no_run
    /// # use max_core as max;
    /// use max::driver::DeviceRef;
    /// use max::graph::{quantization::QuantizationEncoding, weights::{GgufWeights, WeightOptions}};
    ///
    /// let weights = GgufWeights::open(["model-q4_k.gguf"])?;
    /// let expected = WeightOptions::new().shape([4096, 4096]).quantization_encoding(QuantizationEncoding::Q4_K);
    /// let q = weights.at("blk.0").allocate("attn_q.weight", &expected, DeviceRef::CPU)?;
    /// assert_eq!(q.quantization_encoding(), Some(QuantizationEncoding::Q4_K));
    /// # Ok::<(), max::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`ty`](Self::ty); [`WeightsError::Mismatch`] for another dtype or shape, [`WeightsError::Quantization`] for another
    /// encoding; [`WeightsError::Allocated`] after [`allocate_as_bytes`](Self::allocate_as_bytes) of the same weight.
    pub fn allocate(&self, name: &str, expected: &WeightOptions, device: DeviceRef) -> Result<Weight> {
        let ty = self.ty(name)?;
        let encoding = self.quantization_encoding(name)?;
        let path = self.path_of(name)?;
        if expected.quantization_encoding.is_some() && expected.quantization_encoding != encoding {
            let (name, path) = (self.full(name).into(), path.to_path_buf());
            let expected = expected.quantization_encoding;
            return Err(WeightsError::Quantization { name, path, expected, actual: encoding });
        }
        let mut shape = ty.shape.clone();
        if let (Some(encoding), Some(last)) = (encoding, shape.last_mut()) {
            *last = *last / encoding.block_size() * encoding.elements_per_block();
        }
        let actual = WeightType { dtype: ty.dtype, shape };
        let declared = WeightType {
            dtype: expected.dtype.unwrap_or(actual.dtype),
            shape: expected.shape.clone().unwrap_or_else(|| actual.shape.clone()),
        };
        actual.require(&declared, &self.full(name), Some(path))?;
        self.note(name, false)?;
        let weight = Weight::new(self.full(name), ty.dtype, ty.shape, device);
        Ok(match encoding {
            Some(encoding) => weight.with_quantization_encoding(encoding),
            None => weight,
        })
    }

    /// A weight as its bytes, `uint8`, whose last axis has as many as the elements take: for elements that the graph unpacks itself.
    ///
    /// # Errors
    /// Those of [`ty`](Self::ty); [`WeightsError::Allocated`] after [`allocate`](Self::allocate) of the same weight.
    pub fn allocate_as_bytes(&self, name: &str, device: DeviceRef) -> Result<Weight> {
        let WeightType { shape, .. } = self.bytes_type(name)?;
        self.note(name, true)?;
        Ok(Weight::new(self.full(name), DType::U8, shape, device))
    }

    /// The values of all weights that were allocated from these files, by their whole names.
    ///
    /// # Errors
    /// Those of [`tensor`](Self::tensor).
    pub fn allocated_weights(&self) -> Result<BTreeMap<String, Tensor>> {
        let allocated: Vec<(String, bool)> =
            self.allocated().iter().map(|(name, bytes)| (name.clone(), *bytes)).collect();
        let all = self.all();
        let value = |(name, as_bytes): (String, bool)| {
            let tensor = if as_bytes { all.bytes(&name) } else { all.tensor(&name) };
            Ok((name, tensor?))
        };
        allocated.into_iter().map(value).collect()
    }

    /// Notes that a graph gets a weight.
    fn note(&self, name: &str, as_bytes: bool) -> Result<()> {
        let name = self.full(name).into_owned();
        let before = *self.allocated().entry(name.clone()).or_insert(as_bytes);
        if before == as_bytes { Ok(()) } else { Err(WeightsError::Allocated { name, as_bytes: before }) }
    }

    /// The type of a weight as bytes.
    fn bytes_type(&self, name: &str) -> Result<WeightType> {
        let WeightType { dtype, mut shape } = self.ty(name)?;
        match shape.last_mut() {
            Some(last) => *last *= dtype.size_in_bytes(),
            None => shape.push(dtype.size_in_bytes()),
        }
        Ok(WeightType { dtype: DType::U8, shape })
    }

    /// A weight as bytes.
    pub(super) fn bytes(&self, name: &str) -> Result<Tensor> {
        let WeightType { dtype, shape } = self.bytes_type(name)?;
        let bytes = self.tensor(name)?.view(dtype, Some(&shape));
        bytes.map_err(|source| WeightsError::Tensor { name: self.full(name).into(), path: None, source })
    }
}
