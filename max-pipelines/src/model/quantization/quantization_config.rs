//! [`QuantizationConfig`]: how weights of a folder are quantized, as `quantization_config` of its `config.json` says. Those of groups
//! that have blocks stay packed; others become numbers when they are read.

use std::path::PathBuf;

use max_core::driver::{DriverError, Tensor};
use max_core::dtype::DType;
use max_core::graph::quantization::QuantizationEncoding;
use max_core::graph::weights::{Weights, WeightsError, WeightsFormat};

use super::group_quantized::{Float8, Gptq, by_group};
use crate::error::Result;
use crate::model::ModelFiles;

/// What stands beside a weight of 8-bit floats. A name ends with its scales, which values are multiplied by, whether it is called
/// an inverse or not.
const FLOAT8_SCALES: [&str; 2] = [".weight_scale", ".weight_scale_inv"];

/// What is for activations, which are not quantized here.
const FLOAT8_UNUSED: [&str; 2] = [".input_scale", ".activation_scale"];

/// What stands beside the words of a GPTQ weight.
const GPTQ_COMPANIONS: [&str; 3] = [".qzeros", ".scales", ".g_idx"];

/// How weights are quantized.
pub(in crate::model) struct QuantizationConfig {
    /// The folder, for messages.
    path: PathBuf,
    method: Method,
}

enum Method {
    /// Floats of 8 bits, with a scale for the tensor, for each row, or for each block of so many rows and columns.
    Float8 { block: Option<[usize; 2]> },
    /// Integers in words of 32 bits, with scales and zeros for groups of inputs (Frantar et al.: GPTQ, 2022). The layout is
    /// AutoGPTQ's, whose first version stores each zero less 1.
    Gptq { bits: u32, group_size: Option<usize>, zero_offset: u32 },
}

impl QuantizationConfig {
    /// Of a model's configuration; `None` if its weights are numbers.
    ///
    /// # Errors
    /// When it says something that is not known here.
    pub fn of(files: &ModelFiles) -> Result<Option<QuantizationConfig>> {
        let Some(config) = files.config.section("quantization_config") else { return Ok(None) };
        let method = match config.opt_str("quant_method")?.unwrap_or_default() {
            "fp8" | "fbgemm_fp8" => Method::Float8 {
                block: match config.opt_f64s("weight_block_size")?.as_deref() {
                    None => None,
                    Some(&[rows, columns]) if rows >= 1.0 && columns >= 1.0 => Some([rows as usize, columns as usize]),
                    Some(other) => {
                        return Err(config.error("weight_block_size", format!("is {other:?}, not rows and columns")));
                    }
                },
            },
            "compressed-tensors" => match config.opt_str("format")?.unwrap_or_default() {
                "float-quantized" => Method::Float8 { block: None },
                other => return Err(config.error("format", format!("is `{other}`; `float-quantized` is known"))),
            },
            "gptq" => Method::Gptq {
                bits: match config.usize("bits")? {
                    2 => 2,
                    4 => 4,
                    8 => 8,
                    other => return Err(config.error("bits", format!("is {other}; 2, 4 and 8 are known"))),
                },
                // -1 is one group for all.
                group_size: config.opt_f64("group_size")?.filter(|size| *size >= 1.0).map(|size| size as usize),
                zero_offset: match config.opt_str("checkpoint_format")?.unwrap_or("gptq") {
                    "gptq" => 1,
                    "gptq_v2" => 0,
                    other => {
                        let reason = format!("is `{other}`; `gptq` and `gptq_v2` are known");
                        return Err(config.error("checkpoint_format", reason));
                    }
                },
            },
            other => {
                let known = "fp8, fbgemm_fp8, compressed-tensors and gptq are known";
                return Err(config.error("quant_method", format!("is `{other}`; {known}")));
            }
        };
        Ok(Some(QuantizationConfig { path: files.path.clone(), method }))
    }

    /// The name of the weight that a file's tensor is; `None` for what belongs to another.
    pub fn weight_name(&self, weights: &Weights, name: &str) -> Option<String> {
        let beside = |ends: &[&str], weight: &str| {
            let found = ends.iter().find_map(|end| name.strip_suffix(end));
            found.is_some_and(|layer| weights.exists(&format!("{layer}{weight}")))
        };
        let belongs = match self.method {
            Method::Float8 { .. } => beside(&FLOAT8_SCALES, ".weight") || beside(&FLOAT8_UNUSED, ".weight"),
            Method::Gptq { .. } => beside(&GPTQ_COMPANIONS, ".qweight"),
        };
        if belongs {
            return None;
        }
        Some(match (name.strip_suffix(".qweight"), &self.method) {
            (Some(layer), Method::Gptq { .. }) => format!("{layer}.weight"),
            _ => name.to_owned(),
        })
    }

    /// The numbers of a file's tensor, in `float32`; `None` if it is not quantized.
    ///
    /// # Errors
    /// When it cannot be read, or does not fit what stands beside it.
    pub fn dequantize(&self, weights: &Weights, name: &str) -> Result<Option<Tensor>, WeightsError> {
        let failed = |source| self.tensor_error(name, source);
        let (values, sizes) = match &self.method {
            Method::Float8 { block } => match self.float8(weights, name, *block)? {
                Some(floats) => (floats.values().map_err(failed)?, floats.sizes),
                None => return Ok(None),
            },
            Method::Gptq { .. } => match self.gptq(weights, name)? {
                Some(integers) => (integers.values(), integers.sizes),
                None => return Ok(None),
            },
        };
        Tensor::from_vec(values, sizes).map(Some).map_err(failed)
    }

    /// The blocks of a file's tensor, `[rows, bytes]`, and how they are read; `None` if it is not quantized, or in groups that no blocks
    /// have.
    ///
    /// # Errors
    /// When it cannot be read, or does not fit what stands beside it.
    pub fn packed(
        &self,
        weights: &Weights,
        name: &str,
    ) -> Result<Option<(Tensor, QuantizationEncoding)>, WeightsError> {
        let packed = match &self.method {
            Method::Float8 { block } => match self.float8(weights, name, *block)? {
                Some(floats) => floats.packed(),
                None => None,
            },
            Method::Gptq { .. } => match self.gptq(weights, name)? {
                Some(integers) => integers.packed(),
                None => None,
            },
        };
        let Some((blocks, shape, encoding)) = packed else { return Ok(None) };
        let blocks = Tensor::from_vec(blocks, shape).map_err(|source| self.tensor_error(name, source))?;
        Ok(Some((blocks, encoding)))
    }

    /// The order in which the blocks of a file's tensor take an input, if it is not that of the elements.
    ///
    /// # Errors
    /// As [`packed`](Self::packed).
    pub fn input_order(&self, weights: &Weights, name: &str) -> Result<Option<Tensor>, WeightsError> {
        let Some(group_of) = self.group_of(weights, name)?.filter(|group_of| !group_of.is_sorted()) else {
            return Ok(None);
        };
        let order: Vec<i32> = by_group(&group_of).into_iter().map(|column| column as i32).collect();
        let columns = order.len();
        Tensor::from_vec(order, [columns]).map(Some).map_err(|source| self.tensor_error(name, source))
    }

    /// The groups of the columns of a tensor of GPTQ, if they stand in the file.
    fn group_of(&self, weights: &Weights, name: &str) -> Result<Option<Vec<usize>>, WeightsError> {
        let layer = matches!(self.method, Method::Gptq { .. }).then(|| name.strip_suffix(".qweight")).flatten();
        let Some(indices) = layer.map(|layer| format!("{layer}.g_idx")).filter(|name| weights.exists(name)) else {
            return Ok(None);
        };
        Ok(Some(self.words(weights, &indices)?.0.into_iter().map(|group| group as usize).collect()))
    }

    fn float8(&self, weights: &Weights, name: &str, block: Option<[usize; 2]>) -> Result<Option<Float8>, WeightsError> {
        let Some(layer) = name.strip_suffix(".weight") else { return Ok(None) };
        let beside = FLOAT8_SCALES.iter().map(|end| format!("{layer}{end}")).find(|name| weights.exists(name));
        let Some(scale_name) = beside else { return Ok(None) };
        let tensor = weights.tensor(name)?;
        if !matches!(tensor.dtype(), DType::F8E4M3FN | DType::F8E5M2) {
            let dtype = tensor.dtype();
            return Err(self.wrong(format!("{name} is {dtype}, and {scale_name} scales floats of 8 bits")));
        }
        let scales = weights.data(&scale_name)?.astype(DType::F32)?.data;
        let (shape, scale_shape) = (tensor.shape().to_vec(), scales.shape().to_vec());
        let scales = scales.to_vec::<f32>().map_err(|source| self.tensor_error(&scale_name, source))?;
        let (rows, columns) = match shape[..] {
            [rows, columns] => (rows, columns),
            _ => return Err(self.wrong(format!("{name} is {shape:?}, and a matrix is expected"))),
        };
        let [high, wide] = match (block, &scale_shape[..]) {
            (_, shape) if shape.iter().product::<usize>() == 1 => [rows.max(1), columns.max(1)],
            (None, [n] | [n, 1]) if *n == rows => [1, columns.max(1)],
            (Some([high, wide]), [n, m]) if [*n, *m] == [rows.div_ceil(high), columns.div_ceil(wide)] => [high, wide],
            _ => {
                let expected = match block {
                    Some([high, wide]) => format!("of blocks of {high} x {wide}"),
                    None => "of the whole or of its rows".to_owned(),
                };
                let reason = format!("{scale_name} is {scale_shape:?}; {name} is {shape:?}, and scales {expected}");
                return Err(self.wrong(format!("{reason} are expected")));
            }
        };
        Ok(Some(Float8 { tensor, sizes: [rows, columns], scales, block: [high, wide] }))
    }

    fn gptq(&self, weights: &Weights, name: &str) -> Result<Option<Gptq>, WeightsError> {
        let Method::Gptq { bits, group_size, zero_offset } = &self.method else { return Ok(None) };
        let Some(layer) = name.strip_suffix(".qweight") else { return Ok(None) };
        let per_word = (32 / bits) as usize;
        let (words, shape) = self.words(weights, name)?;
        let (zeros, zeros_shape) = self.words(weights, &format!("{layer}.qzeros"))?;
        let scales = weights.data(&format!("{layer}.scales"))?.astype(DType::F32)?.data;
        let scales_shape = scales.shape().to_vec();
        let scales = scales.to_vec::<f32>().map_err(|source| self.tensor_error(layer, source))?;
        let (&[word_rows, rows], &[groups, _]) = (&shape[..], &scales_shape[..]) else {
            let reason = format!("{layer}.qweight is {shape:?} and .scales {scales_shape:?}: matrices are expected");
            return Err(self.wrong(reason));
        };
        let columns = word_rows * per_word;
        if scales_shape[1] != rows || zeros_shape[..] != [groups, rows.div_ceil(per_word)] {
            let expected = format!("[groups, {rows}] and [groups, {}]", rows.div_ceil(per_word));
            let reason = format!("{layer}.scales is {scales_shape:?} and .qzeros {zeros_shape:?}: {expected}");
            return Err(self.wrong(format!("{reason} are expected")));
        }
        let group_of = self.group_of(weights, name)?.unwrap_or_else(|| {
            let size = group_size.unwrap_or(columns).max(1);
            (0..columns).map(|column| column / size).collect()
        });
        if group_of.len() != columns || group_of.iter().any(|group| *group >= groups) {
            let reason = format!("the groups of {layer} are not {columns} numbers below {groups}");
            return Err(self.wrong(format!("{reason}: see `group_size` and {layer}.g_idx")));
        }
        let sizes = [rows, columns];
        Ok(Some(Gptq { bits: *bits, zero_offset: *zero_offset, sizes, words, zeros, scales, group_of }))
    }

    /// The words of a tensor of 32-bit integers, and its shape.
    fn words(&self, weights: &Weights, name: &str) -> Result<(Vec<u32>, Vec<usize>), WeightsError> {
        let tensor = weights.tensor(name)?;
        if tensor.dtype() != DType::I32 {
            return Err(self.wrong(format!("{name} is {}, and int32 is expected", tensor.dtype())));
        }
        let words = tensor.to_vec::<i32>().map_err(|source| self.tensor_error(name, source))?;
        Ok((words.into_iter().map(i32::cast_unsigned).collect(), tensor.shape().to_vec()))
    }

    fn wrong(&self, reason: String) -> WeightsError {
        WeightsError::Format { path: self.path.clone(), format: WeightsFormat::Safetensors, reason }
    }

    fn tensor_error(&self, name: &str, source: DriverError) -> WeightsError {
        WeightsError::Tensor { name: name.to_owned(), path: Some(self.path.clone()), source }
    }
}
