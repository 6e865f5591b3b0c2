//! Weights of files for the tensors of a module, which may have other names, be parts of a file's, or have another dtype.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use max::functional as f;
use max::nn::{Mode, Module, ModuleExt};
use max::tensor::Tensor as Eager;
use max_core::driver::Tensor;
use max_core::dtype::DType;
use max_core::graph::quantization::QuantizationEncoding;
use max_core::graph::weights::{Weights, WeightsError, WeightsRegistry};

use super::ModelFiles;
use super::lora::Lora;
use super::quantization::quantization_config::QuantizationConfig;
use crate::error::{PipelineError, Result};
use crate::progress::LoadProgress;
use crate::registry::{SupportedArchitecture, WeightAdapter};

/// Which part of a file's tensor a module's tensor is.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct WeightPart {
    /// Which one of a stack along the first axis, which the part does not have; `None` for a tensor that is no stack.
    pub index: Option<usize>,
    /// The rows of the first axis; `None` for all.
    pub rows: Option<Range<usize>>,
    /// The heads whose rows lie as pairs of neighbours rotate, and are to lie half a head apart.
    pub heads: Option<usize>,
    /// The dtype that it is computed in; `None` for the model's.
    pub dtype: Option<DType>,
}

impl WeightPart {
    /// All of it.
    pub fn whole() -> WeightPart {
        WeightPart::default()
    }

    /// Some rows.
    pub fn rows(rows: Range<usize>) -> WeightPart {
        WeightPart { rows: Some(rows), ..WeightPart::default() }
    }

    /// In a dtype of its own.
    #[must_use]
    pub fn dtype(self, dtype: DType) -> WeightPart {
        WeightPart { dtype: Some(dtype), ..self }
    }

    /// This part of what is `outer` of a file's tensor: one of its stack, with heads as they lie there.
    pub(crate) fn of_part(self, outer: &WeightPart) -> WeightPart {
        WeightPart { index: outer.index, heads: outer.heads, ..self }
    }

    /// `tensor`'s part; `None` if it does not have one.
    pub(crate) fn of(&self, mut tensor: Tensor) -> Option<Tensor> {
        if let Some(index) = self.index {
            let own = tensor.narrow(0, index, 1).ok()?;
            tensor = own.reshape(own.shape().get(1..)?).ok()?;
        }
        if let Some(rows) = &self.rows {
            tensor = tensor.narrow(0, rows.start, rows.len()).ok()?;
        }
        if let Some(heads) = self.heads {
            let (shape, count) = (tensor.shape().to_vec(), *tensor.shape().first()?);
            let half = count.checked_div(2 * heads).filter(|half| 2 * half * heads == count)?;
            let mut split = vec![heads, half, 2];
            split.extend(&shape[1..]);
            tensor = tensor.reshape(&split).ok()?.transpose(1, 2).ok()?.contiguous().ok()?.reshape(&shape).ok()?;
        }
        Some(tensor)
    }
}

/// A tensor that is kept between its parts, and how many of these are yet to be asked for.
type Shared = (Option<Tensor>, usize);

/// The weights of files by the names that a module's tensors have.
struct Adapted {
    weights: Weights,
    dtype: DType,
    /// The file's name and the part, of each name of the module.
    names: BTreeMap<String, (Arc<str>, WeightPart)>,
    /// Tensors that are read once for several parts, all of one dtype, and for how many more.
    shared: Mutex<HashMap<Arc<str>, Shared>>,
    lora: Option<Arc<Lora>>,
    quantization: Option<QuantizationConfig>,
    /// The model, for messages.
    path: PathBuf,
    /// Who hears of it, the bytes that are read, and all of them.
    progress: Option<(LoadProgress, AtomicU64, u64)>,
}

impl Adapted {
    fn new(weights: Weights, dtype: DType, adapt: &WeightAdapter, files: &ModelFiles) -> Result<Adapted> {
        if let Some(lora) = &files.lora {
            lora.check(&weights)?;
        }
        let quantization = QuantizationConfig::of(files)?;
        let (mut names, mut shared, mut bytes) = (BTreeMap::new(), HashMap::new(), 0);
        for name in weights.names() {
            let weight = match &quantization {
                Some(quantization) => quantization.weight_name(&weights, name).map(Cow::Owned),
                None => Some(Cow::Borrowed(name)),
            };
            let Some(weight) = weight else { continue };
            let parts = adapt(&files.config, &weight)?;
            if !parts.is_empty() {
                bytes += size(&weights, name);
            }
            let name: Arc<str> = name.into();
            if parts.len() > 1 {
                shared.insert(name.clone(), (None, parts.len()));
            }
            names.extend(parts.into_iter().map(|(module, part)| (module, (name.clone(), part))));
        }
        let progress = files.progress.clone().map(|progress| (progress, AtomicU64::new(0), bytes));
        let (lora, path) = (files.lora.clone(), files.path.clone());
        Ok(Adapted { weights, dtype, names, shared: Mutex::new(shared), lora, quantization, path, progress })
    }

    fn tensor(&self, name: &str, dtype: DType) -> Result<Tensor, WeightsError> {
        let dequantized = match &self.quantization {
            Some(quantization) => quantization.dequantize(&self.weights, name)?,
            None => None,
        };
        let tensor = match dequantized {
            Some(numbers) => self.cast(name, numbers, dtype)?,
            None => {
                let weight = self.weights.data(name)?;
                match weight.dtype() {
                    DType::F32 | DType::F16 | DType::BF16 => self.cast(name, weight.data, dtype)?,
                    _ => weight.astype(dtype)?.data,
                }
            }
        };
        self.has_read(name);
        match &self.lora {
            Some(lora) => lora.merge(name, tensor),
            None => Ok(tensor),
        }
    }

    /// Numbers in the dtype that is wanted, by the kernel.
    fn cast(&self, name: &str, numbers: Tensor, dtype: DType) -> Result<Tensor, WeightsError> {
        if numbers.dtype() == dtype {
            return Ok(numbers);
        }
        let cast = f::cast(Eager::from(numbers), dtype).and_then(|tensor| tensor.driver_tensor());
        cast.map_err(|error| WeightsError::Cast {
            name: name.to_owned(),
            path: self.path.clone(),
            dtype,
            reason: error.to_string(),
        })
    }

    /// Tells of a tensor that was read.
    fn has_read(&self, name: &str) {
        if let Some((progress, read, all)) = &self.progress {
            let bytes = size(&self.weights, name);
            progress.report(read.fetch_add(bytes, Ordering::Relaxed) + bytes, *all);
        }
    }
}

/// The bytes of a file's tensor.
fn size(weights: &Weights, name: &str) -> u64 {
    let bytes = weights.ty(name).map(|ty| ty.shape.iter().product::<usize>() * ty.dtype.size_in_bytes());
    bytes.unwrap_or_default() as u64
}

impl WeightsRegistry for Adapted {
    fn weight(&self, name: &str) -> Result<Option<Tensor>, WeightsError> {
        let Some((file, part)) = self.names.get(name) else { return Ok(None) };
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        let read = || self.tensor(file, part.dtype.unwrap_or(self.dtype));
        let whole = match shared.get_mut(file) {
            None => read()?,
            Some((kept, uses)) => {
                let tensor = kept.take().map_or_else(read, Ok)?;
                *uses = uses.saturating_sub(1);
                *kept = (*uses > 0).then(|| tensor.clone());
                tensor
            }
        };
        // A part that is not there is said with the shape of the whole, which does not fit either.
        Ok(Some(part.of(whole.clone()).unwrap_or(whole)))
    }

    fn quantized(&self, name: &str) -> Result<Option<(Tensor, QuantizationEncoding)>, WeightsError> {
        let Some((file, part)) = self.names.get(name) else { return Ok(None) };
        // What an adapter is merged into has other values than the blocks.
        if self.lora.as_ref().is_some_and(|lora| lora.adapts(file)) {
            return Ok(None);
        }
        let (whole, encoding) = match (self.weights.quantization_encoding(file)?, &self.quantization) {
            (Some(encoding), _) => (self.weights.tensor(file)?, encoding),
            (None, Some(quantization)) => match quantization.packed(&self.weights, file)? {
                Some(packed) => packed,
                None => return Ok(None),
            },
            (None, None) => return Ok(None),
        };
        // Rows are whole blocks, so that a part of the rows is one of the blocks.
        self.has_read(file);
        Ok(Some((part.of(whole.clone()).unwrap_or(whole), encoding)))
    }

    fn input_order(&self, name: &str) -> Result<Option<Tensor>, WeightsError> {
        match (self.names.get(name), &self.quantization) {
            (Some((file, _)), Some(quantization)) => quantization.input_order(&self.weights, file),
            _ => Ok(None),
        }
    }

    fn weight_names(&self) -> Vec<String> {
        self.names.keys().cloned().collect()
    }
}

/// A dtype that layers are computed in, which an argument asks for.
pub(crate) fn compute_dtype(argument: &'static str, dtype: DType) -> Result<DType> {
    match dtype {
        DType::F32 | DType::F16 | DType::BF16 => Ok(dtype),
        _ => {
            let (value, expected) = (dtype.to_string(), "float32, float16 or bfloat16");
            Err(PipelineError::Argument { argument, value, expected })
        }
    }
}

/// What weights are computed in: as asked for, or as most bytes of the files are, floats of 8 bits and quantized ones as
/// `float32`.
pub(crate) fn dtype(weights: &Weights, asked: Option<DType>) -> Result<DType> {
    if let Some(dtype) = asked {
        return compute_dtype("dtype", dtype);
    }
    let mut sizes = BTreeMap::new();
    for name in weights.names() {
        let (ty, quantized) = (weights.ty(name)?, weights.quantization_encoding(name)?.is_some());
        let dtype = match ty.dtype {
            DType::F16 | DType::BF16 if !quantized => ty.dtype,
            _ => DType::F32,
        };
        let size: usize = ty.shape.iter().product();
        *sizes.entry(dtype.to_string()).or_insert((dtype, 0)) =
            (dtype, sizes.get(&dtype.to_string()).map_or(0, |(_, n)| *n) + size);
    }
    Ok(sizes.values().max_by_key(|(_, size)| *size).map_or(DType::F32, |(dtype, _)| *dtype))
}

/// Fills a module with the weights of a model's files.
pub(crate) fn load<M: Module>(
    module: &mut M,
    files: &ModelFiles,
    weights: Weights,
    dtype: DType,
    architecture: &SupportedArchitecture,
) -> Result<()> {
    let adapted = Adapted::new(weights, dtype, &*architecture.adapter(files.format), files)?;
    let fail =
        |source| PipelineError::Weights { path: files.path.clone(), architecture: architecture.name.clone(), source };
    module.load_state_dict(&adapted, Mode::Strict).map(drop).map_err(fail)
}
