//! [`quantize`]: a model's folder as a GGUF file, with weights in blocks of small integers.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::thread;

use max_core::driver::Tensor;
use max_core::dtype::DType;
use max_core::graph::quantization::QuantizationEncoding;
use max_core::graph::weights::{GgufTensor, MetadataValue, Weights, WeightsError, WeightsFormat, save_gguf};

use super::{HuggingFaceConfig, ModelFiles, gguf};
use crate::error::{PipelineError, Result};

/// How the matrices of a GGUF file are stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GgufType {
    /// Floats: `f32`, `f16` or `bf16`.
    Floats(DType),
    /// Blocks of small integers with scales.
    Blocks(QuantizationEncoding),
}

impl FromStr for GgufType {
    type Err = PipelineError;

    fn from_str(name: &str) -> Result<GgufType> {
        Ok(match name.to_ascii_lowercase().as_str() {
            "f32" => GgufType::Floats(DType::F32),
            "f16" => GgufType::Floats(DType::F16),
            "bf16" => GgufType::Floats(DType::BF16),
            name => GgufType::Blocks(name.parse().map_err(|_| PipelineError::Argument {
                argument: "type",
                value: name.into(),
                expected: "q4_0, q8_0, q4_k, q5_k, q6_k, f16, bf16 or f32",
            })?),
        })
    }
}

impl fmt::Display for GgufType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GgufType::Floats(DType::F32) => f.write_str("f32"),
            GgufType::Floats(DType::F16) => f.write_str("f16"),
            GgufType::Floats(DType::BF16) => f.write_str("bf16"),
            GgufType::Floats(dtype) => dtype.fmt(f),
            GgufType::Blocks(encoding) => encoding.fmt(f),
        }
    }
}

impl GgufType {
    /// How a tensor is stored: vectors as `f32`, rows that are no whole blocks as `q8_0` or, where those are not whole either, as `f16`.
    /// Logits suffer most from few bits: their matrix has six at least, as in the files of llama.cpp.
    fn of(self, name: &str, shape: &[usize], logits: &str) -> GgufType {
        let [_, row] = shape else { return GgufType::Floats(DType::F32) };
        let GgufType::Blocks(mut encoding) = self else { return self };
        if name == logits && encoding != QuantizationEncoding::Q8_0 {
            encoding = QuantizationEncoding::Q6_K;
        }
        let fits = |encoding: &QuantizationEncoding| row.is_multiple_of(encoding.elements_per_block());
        let fitting = [encoding, QuantizationEncoding::Q8_0].into_iter().find(fits);
        fitting.map_or(GgufType::Floats(DType::F16), GgufType::Blocks)
    }
}

/// Writes the model of a folder as a GGUF file. Matrices are quantized on all threads, a tensor at a time.
///
/// # Errors
/// When there is no model, it is none of the architectures that are read from GGUF, its embedding of positions cannot be said there,
/// or a file cannot be read or written.
pub fn quantize(model: impl AsRef<Path>, out: impl AsRef<Path>, ty: GgufType) -> Result<()> {
    let files = ModelFiles::find(model)?;
    if files.format == WeightsFormat::Gguf {
        let value = files.path.display().to_string();
        return Err(PipelineError::Argument {
            argument: "model",
            value,
            expected: "a folder, but a GGUF file already",
        });
    }
    let (architecture, paired) = gguf::architecture(&files.config)?;
    let metadata = metadata(&files, architecture, ty)?;
    let weights = files.open()?;
    let tied = files.config.bool_or("tie_word_embeddings", false)?;
    let logits = if tied { "token_embd.weight" } else { "output.weight" };
    // Names in the file with those of the folder, and the heads whose rows become pairs.
    let (mut tensors, mut sources) = (Vec::new(), BTreeMap::new());
    for source in weights.names() {
        if source.ends_with("rotary_emb.inv_freq") || (tied && source == "lm_head.weight") {
            continue;
        }
        let Some(name) = gguf::file_name(source) else {
            let reason = format!("the weight `{source}` has no name in GGUF");
            return Err(PipelineError::File { path: files.path.clone(), reason });
        };
        let shape = weights.ty(source)?.shape;
        let (dtype, quantization_encoding) = match ty.of(&name, &shape, logits) {
            GgufType::Floats(dtype) => (dtype, None),
            GgufType::Blocks(encoding) => (DType::U8, Some(encoding)),
        };
        let heads = if paired { gguf::paired_heads(&files.config, &name)? } else { None };
        sources.insert(name.clone(), (source, heads));
        tensors.push(GgufTensor { name, shape, dtype, quantization_encoding });
    }
    let stored = |tensor: &GgufTensor| match sources.get(&tensor.name) {
        Some((source, heads)) => converted(&weights, source, *heads, tensor),
        None => Err(WeightsError::NoFiles),
    };
    Ok(save_gguf(out, &metadata, &tensors, stored)?)
}

/// A weight as it is stored.
fn converted(
    weights: &Weights,
    source: &str,
    heads: Option<usize>,
    tensor: &GgufTensor,
) -> Result<Tensor, WeightsError> {
    let fail = |error| WeightsError::Tensor { name: source.into(), path: None, source: error };
    let dtype = if tensor.quantization_encoding.is_some() { DType::F32 } else { tensor.dtype };
    let mut data = weights.data(source)?.astype(dtype)?.data;
    if let Some(heads) = heads {
        let (shape, count) = (data.shape().to_vec(), data.shape().first().copied().unwrap_or_default());
        let mut halves = vec![heads, 2, count / (2 * heads).max(1)];
        halves.extend(&shape[1..]);
        let pairs = data.reshape(&halves).and_then(|halves| halves.transpose(1, 2)?.contiguous()?.reshape(&shape));
        data = pairs.map_err(fail)?;
    }
    let Some(encoding) = tensor.quantization_encoding else { return Ok(data) };
    let data = data.contiguous().map_err(fail)?;
    let (elements, blocks) = (data.as_slice::<f32>().map_err(fail)?, encoding.elements_per_block());
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let part = (elements.len() / blocks).div_ceil(threads).max(1) * blocks;
    let bytes: Vec<u8> = thread::scope(|scope| {
        let running: Vec<_> = elements.chunks(part).map(|part| scope.spawn(move || encoding.quantize(part))).collect();
        // Nothing in there panics; of what did, the size would be refused.
        running.into_iter().flat_map(|thread| thread.join().unwrap_or_default()).collect()
    });
    let mut shape = tensor.shape.clone();
    if let Some(last) = shape.last_mut() {
        *last = *last / blocks * encoding.block_size();
    }
    Tensor::from_vec(bytes, &shape).map_err(fail)
}

/// What the configuration says, by the names that GGUF has.
fn metadata(files: &ModelFiles, architecture: &str, ty: GgufType) -> Result<BTreeMap<String, MetadataValue>> {
    let config = &files.config;
    let mut values = BTreeMap::new();
    let mut set = |key: &str, value: MetadataValue| values.insert(key.replace("{}", architecture), value);
    let size = |size: usize| MetadataValue::Int(size as i128);
    let (hidden, heads) = (config.usize("hidden_size")?, config.usize("num_attention_heads")?);
    let head_dim = config.opt_usize("head_dim")?.filter(|size| *size > 0).unwrap_or(hidden / heads);
    set("general.architecture", MetadataValue::String(architecture.into()));
    let name = files.path.file_name().map(|name| name.to_string_lossy().into_owned());
    set("general.name", MetadataValue::String(name.unwrap_or_default()));
    set("general.file_type", MetadataValue::Int(file_type(ty)));
    set("general.quantization_version", MetadataValue::Int(2));
    set("{}.embedding_length", size(hidden));
    set("{}.feed_forward_length", size(config.usize("intermediate_size")?));
    set("{}.block_count", size(config.count("num_hidden_layers")?));
    set("{}.attention.head_count", size(heads));
    set("{}.attention.head_count_kv", size(config.opt_usize("num_key_value_heads")?.unwrap_or(heads)));
    set("{}.attention.key_length", size(head_dim));
    set("{}.attention.value_length", size(head_dim));
    set("{}.rope.dimension_count", size(head_dim));
    set("{}.vocab_size", size(config.usize("vocab_size")?));
    set("{}.context_length", size(config.usize("max_position_embeddings")?));
    let eps = config.opt_f64("rms_norm_eps")?.unwrap_or(1e-6);
    set("{}.attention.layer_norm_rms_epsilon", MetadataValue::Float(eps));
    rope(config, &mut set)?;
    set("tokenizer.ggml.model", MetadataValue::String("no_vocab".into()));
    for (key, from) in
        [("tokenizer.ggml.bos_token_id", "bos_token_id"), ("tokenizer.ggml.eos_token_id", "eos_token_id")]
    {
        if let Some(token) = config.tokens(from)?.first() {
            set(key, MetadataValue::Int((*token).into()));
        }
    }
    Ok(values)
}

/// The embedding of positions.
fn rope(config: &HuggingFaceConfig, set: &mut impl FnMut(&str, MetadataValue) -> Option<MetadataValue>) -> Result<()> {
    let parameters = config.section("rope_parameters");
    let scaling = parameters.clone().or_else(|| config.section("rope_scaling"));
    let theta = match parameters.map(|parameters| parameters.opt_f64("rope_theta")).transpose()?.flatten() {
        Some(theta) => theta,
        None => config.opt_f64("rope_theta")?.unwrap_or(10000.0),
    };
    set("{}.rope.freq_base", MetadataValue::Float(theta));
    let Some(scaling) = scaling else { return Ok(()) };
    let kind = scaling.opt_str("rope_type")?.or(scaling.opt_str("type")?).unwrap_or("default");
    match kind {
        "default" => return Ok(()),
        "linear" | "yarn" => {}
        other => {
            let reason = format!("is `{other}`, which is not written to GGUF; default, linear and yarn are");
            return Err(scaling.error("rope_type", reason));
        }
    }
    set("{}.rope.scaling.type", MetadataValue::String(kind.into()));
    set("{}.rope.scaling.factor", MetadataValue::Float(scaling.f64("factor")?));
    if let Some(length) = scaling.opt_usize("original_max_position_embeddings")? {
        set("{}.rope.scaling.original_context_length", MetadataValue::Int(length as i128));
    }
    Ok(())
}

/// The number that llama.cpp has for files of a type, `llama_ftype`.
fn file_type(ty: GgufType) -> i128 {
    match ty {
        GgufType::Floats(DType::F16) => 1,
        GgufType::Floats(DType::BF16) => 32,
        GgufType::Floats(_) => 0,
        GgufType::Blocks(QuantizationEncoding::Q4_0) => 2,
        GgufType::Blocks(QuantizationEncoding::Q8_0) => 7,
        GgufType::Blocks(QuantizationEncoding::Q4_K) => 14,
        GgufType::Blocks(QuantizationEncoding::Q5_K) => 16,
        GgufType::Blocks(_) => 18,
    }
}
