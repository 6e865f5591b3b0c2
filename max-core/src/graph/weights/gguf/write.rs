//! Writes GGUF files.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use super::{ALIGNMENT, MAGIC, MetadataValue, kind, number_of};
use crate::dtype::DType;
use crate::graph::quantization::QuantizationEncoding;
use crate::graph::weights::{WeightData, WeightsError};

/// A tensor of a GGUF file that is written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GgufTensor {
    /// Its name there.
    pub name: String,
    /// Its shape as elements, the last size that of what lies side by side.
    pub shape: Vec<usize>,
    /// The dtype of its elements; of blocks, `uint8`.
    pub dtype: DType,
    /// How its blocks are quantized; `None` for elements.
    pub quantization_encoding: Option<QuantizationEncoding>,
}

impl GgufTensor {
    /// The bytes that it takes; `None` if its rows are not whole blocks, or there are too many.
    fn bytes(&self) -> Option<usize> {
        let elements = self.shape.iter().try_fold(1usize, |product, size| product.checked_mul(*size))?;
        match self.quantization_encoding {
            None => elements.checked_mul(self.dtype.size_in_bytes()),
            Some(encoding) => {
                let row = self.shape.last()?;
                row.is_multiple_of(encoding.elements_per_block())
                    .then(|| (elements / encoding.elements_per_block()).checked_mul(encoding.block_size()))?
            }
        }
    }
}

/// Writes metadata and tensors as a [GGUF](https://github.com/ggml-org/ggml/blob/master/docs/gguf.md) file of version 3. The file takes the
/// place of one that is there once all of it is written.
///
/// Tensors are asked for one after the other, so that no more than one is in memory. Integers of metadata are `uint32`, where that
/// has them, and `int32` in arrays; floats are `float32`.
///
/// ```
/// # use max_core as max;
/// # let folder = std::env::temp_dir();
/// use std::collections::BTreeMap;
/// use max::driver::Tensor;
/// use max::dtype::DType;
/// use max::graph::quantization::QuantizationEncoding::Q8_0;
/// use max::graph::weights::{GgufTensor, GgufWeights, MetadataValue, save_gguf};
///
/// let path = folder.join(format!("doc-{}.gguf", std::process::id()));
/// let metadata = BTreeMap::from([("general.architecture".to_owned(), MetadataValue::String("mine".to_owned()))]);
/// let tensor = GgufTensor { name: "x".to_owned(), shape: vec![1, 32], dtype: DType::U8, quantization_encoding: Some(Q8_0) };
/// let blocks = Tensor::from_slice(&Q8_0.quantize(&[1.5; 32]), [1, 34])?;
/// save_gguf(&path, &metadata, &[tensor], |_| Ok(blocks.clone()))?;
/// let read = GgufWeights::open([&path])?.data("x")?.astype(DType::F32)?;
/// assert!((read.data.to_vec::<f32>()?[7] - 1.5).abs() < 1e-3);
/// # std::fs::remove_file(&path).unwrap();
/// # Ok::<(), max::Error>(())
/// ```
///
/// # Errors
/// Those of `data`; when a tensor is not what its entry says, or its dtype is none of the format's; when the file cannot be written.
pub fn save_gguf(
    path: impl AsRef<Path>,
    metadata: &BTreeMap<String, MetadataValue>,
    tensors: &[GgufTensor],
    mut data: impl FnMut(&GgufTensor) -> Result<crate::driver::Tensor, WeightsError>,
) -> Result<(), WeightsError> {
    let path = path.as_ref();
    let refuse = |reason: String| WeightsError::Write { path: path.to_path_buf(), reason };
    let mut header = Vec::from(MAGIC);
    header.extend(3u32.to_le_bytes());
    header.extend((tensors.len() as u64).to_le_bytes());
    header.extend((metadata.len() as u64).to_le_bytes());
    for (name, value) in metadata {
        text(&mut header, name);
        header.extend(kind_of(value, false).to_le_bytes());
        write_value(&mut header, value, false);
    }
    let mut at = 0u64;
    for tensor in tensors {
        let Some(number) = number_of(tensor.dtype, tensor.quantization_encoding) else {
            return Err(refuse(format!("`{}` is {}, which the format does not have", tensor.name, tensor.dtype)));
        };
        let Some(bytes) = tensor.bytes() else {
            return Err(refuse(format!("`{}` of {:?} is not whole blocks", tensor.name, tensor.shape)));
        };
        text(&mut header, &tensor.name);
        header.extend((tensor.shape.len() as u32).to_le_bytes());
        tensor.shape.iter().rev().for_each(|size| header.extend((*size as u64).to_le_bytes()));
        header.extend(number.to_le_bytes());
        header.extend(at.to_le_bytes());
        at += (bytes as u64).next_multiple_of(ALIGNMENT);
    }
    header.resize(header.len().next_multiple_of(ALIGNMENT as usize), 0);
    let partial = path.with_extension("partial");
    let failed = |error: io::Error| WeightsError::Write { path: path.to_path_buf(), reason: error.to_string() };
    let mut write = || -> Result<(), WeightsError> {
        let mut file = BufWriter::new(File::create(&partial).map_err(failed)?);
        file.write_all(&header).map_err(failed)?;
        for entry in tensors {
            let tensor = data(entry)?;
            let name = &entry.name;
            let tensor = tensor.contiguous().map_err(|error| refuse(format!("`{name}`: {error}")))?;
            let given = WeightData::new(name.clone(), tensor.clone(), entry.quantization_encoding);
            if tensor.dtype() != entry.dtype || given.logical_shape() != entry.shape || !tensor.is_host() {
                let is = format!("{}{:?}", tensor.dtype(), tensor.shape());
                return Err(refuse(format!("`{name}` is {is}, and not {} of {:?}", entry.dtype, entry.shape)));
            }
            // SAFETY: the memory of a contiguous host tensor, which nobody can write while it is borrowed.
            let bytes = unsafe { std::slice::from_raw_parts(tensor.data_ptr(), tensor.num_bytes()) };
            file.write_all(bytes).map_err(failed)?;
            let rest = bytes.len().next_multiple_of(ALIGNMENT as usize) - bytes.len();
            file.write_all(&[0; ALIGNMENT as usize][..rest]).map_err(failed)?;
        }
        file.into_inner().map_err(|error| error.into_error()).and_then(|file| file.sync_all()).map_err(failed)?;
        std::fs::rename(&partial, path).map_err(failed)
    };
    write().inspect_err(|_| {
        // Of what was not finished, nothing is kept.
        let _ = std::fs::remove_file(&partial);
    })
}

fn text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

/// The number of the kind that a value is written as.
fn kind_of(value: &MetadataValue, in_array: bool) -> u32 {
    match value {
        MetadataValue::Int(value) if !in_array && u32::try_from(*value).is_ok() => 4,
        MetadataValue::Int(value) if i32::try_from(*value).is_ok() => 5,
        MetadataValue::Int(value) if *value < 0 => 11,
        MetadataValue::Int(_) => 10,
        MetadataValue::Float(_) => 6,
        MetadataValue::Bool(_) => 7,
        MetadataValue::String(_) => kind::STRING,
        MetadataValue::Array(_) => kind::ARRAY,
    }
}

fn write_value(out: &mut Vec<u8>, value: &MetadataValue, in_array: bool) {
    match value {
        // As many of the low bytes as the kind has.
        MetadataValue::Int(value) => {
            let size = kind::least_bytes(kind_of(&MetadataValue::Int(*value), in_array)).unwrap_or(8) as usize;
            out.extend(&value.to_le_bytes()[..size]);
        }
        MetadataValue::Float(value) => out.extend((*value as f32).to_le_bytes()),
        MetadataValue::Bool(value) => out.push(u8::from(*value)),
        MetadataValue::String(value) => text(out, value),
        MetadataValue::Array(values) => {
            out.extend(values.first().map_or(4, |first| kind_of(first, true)).to_le_bytes());
            out.extend((values.len() as u64).to_le_bytes());
            values.iter().for_each(|value| write_value(out, value, true));
        }
    }
}
