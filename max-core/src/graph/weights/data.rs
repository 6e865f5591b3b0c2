//! [`WeightData`]: a weight with what its file says of it.

use super::WeightsError;
use crate::dispatch;
use crate::driver::{DriverError, Tensor};
use crate::dtype::{DType, Element};
use crate::graph::quantization::QuantizationEncoding;

/// A weight of a file.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct WeightData {
    /// The name, with its prefix.
    pub name: String,
    /// Its elements on the host; of a quantized weight its blocks, as bytes: `[.., blocks * block_size]`.
    pub data: Tensor,
    /// How the bytes are quantized; `None` where the elements are numbers.
    pub quantization_encoding: Option<QuantizationEncoding>,
}

impl WeightData {
    /// A tensor of the host, of elements or of blocks.
    pub(super) fn new(name: String, data: Tensor, quantization_encoding: Option<QuantizationEncoding>) -> WeightData {
        WeightData { name, data, quantization_encoding }
    }

    /// A weight of numbers that is in no file. With the feature `ndarray`, an array becomes a tensor by `Tensor::try_from`.
    ///
    /// ```
    /// # use max_core as max;
    /// use max::{driver::Tensor, dtype::DType, graph::weights::WeightData};
    ///
    /// let weight = WeightData::from_tensor("bias", Tensor::full(0.5f32, [4])?).astype(DType::BF16)?;
    /// assert_eq!((weight.dtype(), weight.logical_shape()), (DType::BF16, vec![4]));
    /// # Ok::<(), max::Error>(())
    /// ```
    pub fn from_tensor(name: impl Into<String>, data: Tensor) -> WeightData {
        WeightData::new(name.into(), data, None)
    }

    /// The dtype of `data`.
    pub fn dtype(&self) -> DType {
        self.data.dtype()
    }

    /// The shape that the weight has as numbers: a quantized one of `[4096, 2304]` bytes of Q4_K has `[4096, 4096]`.
    pub fn logical_shape(&self) -> Vec<usize> {
        let mut shape = self.data.shape().to_vec();
        if let (Some(encoding), Some(last)) = (self.quantization_encoding, shape.last_mut()) {
            *last = *last / encoding.block_size() * encoding.elements_per_block();
        }
        shape
    }

    /// The weight as floats of a dtype: numbers are rounded to the nearest, blocks are dequantized.
    ///
    /// ```no_run
    /// # use max_core as max;
    /// # use max::{dtype::DType, graph::weights::GgufWeights};
    /// let weights = GgufWeights::open(["model-q8_0.gguf"])?;
    /// let norm = weights.data("output_norm.weight")?.astype(DType::BF16)?;
    /// # Ok::<(), max::Error>(())
    /// ```
    ///
    /// # Errors
    /// When `dtype` is none of the floats; when there is no memory.
    pub fn astype(&self, dtype: DType) -> Result<WeightData, WeightsError> {
        let fail = |source| WeightsError::Tensor { name: self.name.clone(), path: None, source };
        if self.quantization_encoding.is_none() && dtype == self.data.dtype() {
            return Ok(self.clone());
        }
        if !dtype.is_float() {
            return Err(WeightsError::AsType { name: self.name.clone(), dtype });
        }
        let data = self.floats(dtype).map_err(fail)?;
        Ok(WeightData { name: self.name.clone(), data, quantization_encoding: None })
    }

    fn floats(&self, dtype: DType) -> Result<Tensor, DriverError> {
        let shape = self.logical_shape();
        let Some(encoding) = self.quantization_encoding else {
            let numbers: Vec<f64> =
                dispatch!(self.data.dtype(), T => self.data.iter::<T>()?.map(Element::to_f64).collect());
            return dispatch!(dtype, U => {
                Tensor::from_vec(numbers.into_iter().map(<U as Element>::from_f64).collect(), &shape)
            });
        };
        let bytes = self.data.contiguous()?;
        let floats = encoding.dequantize(bytes.as_slice::<u8>()?);
        dispatch!(dtype, U => {
            Tensor::from_vec(floats.into_iter().map(|value| <U as Element>::from_f64(value.into())).collect(), &shape)
        })
    }
}
