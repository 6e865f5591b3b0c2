//! [`quantize`]: a model's folder as a GGUF file, with weights in blocks of small integers.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::thread;

use max::nn::rope::{Llama3RopeScalingParams, LongRoPEScalingParams};
use max_core::driver::{DriverError, Tensor};
use max_core::dtype::{DType, Element, bf16, f16};
use max_core::graph::quantization::QuantizationEncoding;
use max_core::graph::weights::{GgufTensor, MetadataValue, Weights, WeightsError, WeightsFormat, save_gguf};

use crate::error::{PipelineError, Result};
use crate::model::gguf::{self, GgufArchitecture};
use crate::model::{HuggingFaceConfig, ModelFiles};
use crate::tokenizer::gguf_vocabulary;

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
        let [.., _, row] = shape else { return GgufType::Floats(DType::F32) };
        // Which experts a token has is decided by small differences.
        if name.contains("ffn_gate_inp") {
            return GgufType::Floats(DType::F32);
        }
        let GgufType::Blocks(mut encoding) = self else { return self };
        if name == logits && encoding != QuantizationEncoding::Q8_0 {
            encoding = QuantizationEncoding::Q6_K;
        }
        let fits = |encoding: &QuantizationEncoding| row.is_multiple_of(encoding.elements_per_block());
        let fitting = [encoding, QuantizationEncoding::Q8_0].into_iter().find(fits);
        fitting.map_or(GgufType::Floats(DType::F16), GgufType::Blocks)
    }
}

/// Writes the model of a folder as a GGUF file, with its tokenizer and chat template. Matrices are quantized on all threads, a tensor at a
/// time. Returns why the tokenizer is not in the file, where GGUF has no words for it: its `tokenizer.json` is read beside the file, too.
///
/// # Errors
/// When there is no model, it is none of the architectures that are read from GGUF, its embedding of positions cannot be said there,
/// or a file cannot be read or written.
pub fn quantize(model: impl AsRef<Path>, out: impl AsRef<Path>, ty: GgufType) -> Result<Option<String>> {
    let files = ModelFiles::find(model)?;
    if files.format == WeightsFormat::Gguf {
        let value = files.path.display().to_string();
        return Err(PipelineError::Argument {
            argument: "model",
            value,
            expected: "a folder, but a GGUF file already",
        });
    }
    let architecture = gguf::architecture(&files.config)?;
    if architecture.layers != gguf::DECODER_LAYERS {
        return Err(files.config.error("architectures", "is an encoder's, which is not written to GGUF"));
    }
    let weights = files.open()?;
    let mut metadata = metadata(&files, architecture, ty)?;
    let left_out = match gguf_vocabulary(&files, files.config.usize("vocab_size")?)? {
        Ok(vocabulary) => {
            metadata.extend(vocabulary);
            None
        }
        Err(reason) => {
            metadata.extend(no_vocabulary(&files.config)?);
            Some(reason)
        }
    };
    let tied = files.config.bool_or("tie_word_embeddings", architecture.name == "gemma3")?;
    let logits = if tied { "token_embd.weight" } else { "output.weight" };
    let (mut tensors, mut sources) = (Vec::new(), BTreeMap::new());
    for (name, numbers) in rope(&files.config, architecture.name, &mut metadata)? {
        tensors.push(GgufTensor {
            name: name.into(),
            shape: vec![numbers.len()],
            dtype: DType::F32,
            quantization_encoding: None,
        });
        sources.insert(name.to_owned(), Source { numbers, ..Source::default() });
    }
    for source in weights.names() {
        if source.ends_with("rotary_emb.inv_freq") || (tied && source == "lm_head.weight") {
            continue;
        }
        let Some((name, expert)) = architecture.file_name(source) else {
            let reason = format!("the weight `{source}` has no name in GGUF");
            return Err(PipelineError::File { path: files.path.clone(), reason });
        };
        let known = sources.entry(name.clone()).or_insert_with(|| {
            tensors.push(GgufTensor {
                name: name.clone(),
                shape: vec![],
                dtype: DType::F32,
                quantization_encoding: None,
            });
            Source::default()
        });
        known.weights.insert(expert, source);
        known.heads = architecture.paired_heads(&files.config, &name)?;
        known.offset = if name.ends_with("norm.weight") { architecture.norm_offset } else { 0.0 };
    }
    for tensor in &mut tensors {
        let Some(weights_of) = sources.get(&tensor.name).map(|source| &source.weights) else { continue };
        let Some(first) = weights_of.values().next() else { continue };
        tensor.shape = weights.ty(first)?.shape;
        if weights_of.keys().any(Option::is_some) {
            tensor.shape.insert(0, weights_of.len());
        }
        (tensor.dtype, tensor.quantization_encoding) = match ty.of(&tensor.name, &tensor.shape, logits) {
            GgufType::Floats(dtype) => (dtype, None),
            GgufType::Blocks(encoding) => (DType::U8, Some(encoding)),
        };
    }
    let stored = |tensor: &GgufTensor| match sources.get(&tensor.name) {
        Some(source) => source.tensor(&weights, tensor),
        None => Err(WeightsError::NoFiles),
    };
    save_gguf(out, &metadata, &tensors, stored)?;
    Ok(left_out)
}

/// The tokens around texts, of a model whose vocabulary is not in the file.
fn no_vocabulary(config: &HuggingFaceConfig) -> Result<Metadata> {
    let mut metadata = BTreeMap::from([("tokenizer.ggml.model".to_owned(), MetadataValue::String("no_vocab".into()))]);
    for key in ["bos_token_id", "eos_token_id"] {
        if let Some(token) = config.tokens(key)?.first() {
            metadata.insert(format!("tokenizer.ggml.{key}"), MetadataValue::Int((*token).into()));
        }
    }
    Ok(metadata)
}

/// What a tensor of the file is made of.
#[derive(Default)]
struct Source<'a> {
    /// Numbers of the configuration.
    numbers: Vec<f32>,
    /// Else a weight of the folder, or a stack of them by their places in it.
    weights: BTreeMap<Option<usize>, &'a str>,
    /// The heads whose rows become pairs.
    heads: Option<usize>,
    /// What is added.
    offset: f64,
}

impl Source<'_> {
    /// It, as it is stored.
    fn tensor(&self, weights: &Weights, tensor: &GgufTensor) -> Result<Tensor, WeightsError> {
        let fail = |error| WeightsError::Tensor { name: tensor.name.clone(), path: None, source: error };
        if self.weights.is_empty() {
            return Tensor::from_slice(&self.numbers, &tensor.shape).map_err(fail);
        }
        let mut parts = Vec::new();
        for name in self.weights.values() {
            parts.push(self.part(weights, name, tensor)?);
        }
        let [first, ..] = &parts[..] else { return Err(WeightsError::NoFiles) };
        if self.weights.keys().all(Option::is_none) {
            return Ok(first.clone());
        }
        let stack = match first.dtype() {
            DType::F32 => stack::<f32>(&parts),
            DType::F16 => stack::<f16>(&parts),
            DType::BF16 => stack::<bf16>(&parts),
            _ => stack::<u8>(&parts),
        };
        stack.map_err(fail)
    }

    /// One weight, as it is stored.
    fn part(&self, weights: &Weights, source: &str, tensor: &GgufTensor) -> Result<Tensor, WeightsError> {
        let fail = |error| WeightsError::Tensor { name: source.into(), path: None, source: error };
        let dtype = if tensor.quantization_encoding.is_some() { DType::F32 } else { tensor.dtype };
        let mut data = weights.data(source)?.astype(dtype)?.data;
        let shape = data.shape().to_vec();
        if let Some(heads) = self.heads {
            let count = shape.first().copied().unwrap_or_default();
            let mut halves = vec![heads, 2, count / (2 * heads).max(1)];
            halves.extend(shape.get(1..).unwrap_or_default());
            let pairs = data.reshape(&halves).and_then(|halves| halves.transpose(1, 2)?.contiguous()?.reshape(&shape));
            data = pairs.map_err(fail)?;
        }
        let data = data.contiguous().map_err(fail)?;
        if self.offset != 0.0 {
            // Vectors, which are stored as `f32`.
            let moved: Vec<f32> = data.to_vec::<f32>().map_err(fail)?.iter().map(|x| x + self.offset as f32).collect();
            return Tensor::from_vec(moved, &shape).map_err(fail);
        }
        let Some(encoding) = tensor.quantization_encoding else { return Ok(data) };
        let (elements, blocks) = (data.as_slice::<f32>().map_err(fail)?, encoding.elements_per_block());
        let threads = thread::available_parallelism().map_or(1, usize::from);
        let part = (elements.len() / blocks).div_ceil(threads).max(1) * blocks;
        let bytes: Vec<u8> = thread::scope(|scope| {
            let running: Vec<_> =
                elements.chunks(part).map(|part| scope.spawn(move || encoding.quantize(part))).collect();
            // Nothing in there panics; of what did, the size would be refused.
            running.into_iter().flat_map(|thread| thread.join().unwrap_or_default()).collect()
        });
        let mut shape = shape;
        if let Some(last) = shape.last_mut() {
            *last = *last / blocks * encoding.block_size();
        }
        Tensor::from_vec(bytes, &shape).map_err(fail)
    }
}

/// Tensors of one shape, one behind the other.
fn stack<T: Element>(parts: &[Tensor]) -> Result<Tensor, DriverError> {
    let mut shape = vec![parts.len()];
    shape.extend(parts.iter().take(1).flat_map(|part| part.shape()));
    let mut all = Vec::new();
    for part in parts {
        all.extend(part.to_vec::<T>()?);
    }
    Tensor::from_vec(all, &shape)
}

type Metadata = BTreeMap<String, MetadataValue>;

/// What the configuration says, by the names that GGUF has.
fn metadata(files: &ModelFiles, architecture: &GgufArchitecture, ty: GgufType) -> Result<Metadata> {
    let config = &files.config;
    let mut values = BTreeMap::new();
    let mut set = |key: &str, value: MetadataValue| values.insert(key.replace("{}", architecture.name), value);
    let size = |size: usize| MetadataValue::Int(size as i128);
    let (hidden, heads) = (config.usize("hidden_size")?, config.usize("num_attention_heads")?);
    let head_dim = head_dim(config)?;
    set("general.architecture", MetadataValue::String(architecture.name.into()));
    let name = files.path.file_name().map(|name| name.to_string_lossy().into_owned());
    set("general.name", MetadataValue::String(name.unwrap_or_default()));
    set("general.file_type", MetadataValue::Int(file_type(ty)));
    set("general.quantization_version", MetadataValue::Int(2));
    for (key, hub) in gguf::KEYS {
        let Some(number) = config.opt_f64(hub)? else { continue };
        let whole = config.get(hub).is_some_and(serde_json::Value::is_u64);
        set(&format!("{{}}.{key}"), if whole { size(config.usize(hub)?) } else { MetadataValue::Float(number) });
    }
    set("{}.attention.head_count_kv", size(config.opt_usize("num_key_value_heads")?.unwrap_or(heads)));
    set("{}.attention.key_length", size(head_dim));
    set("{}.attention.value_length", size(head_dim));
    set("{}.vocab_size", size(config.usize("vocab_size")?));
    set("{}.attention.layer_norm_rms_epsilon", MetadataValue::Float(config.opt_f64("rms_norm_eps")?.unwrap_or(1e-6)));
    if architecture.experts.is_some() {
        let key = if config.get("num_experts").is_some() { "num_experts" } else { "num_local_experts" };
        set("{}.expert_count", size(config.count(key)?));
    }
    // What GGUF has no words for, or others than a hub.
    let refuse = |key: &str, reason: &str| Err(config.error(key, format!("{reason}, which cannot be said in GGUF")));
    let window = config.opt_usize("sliding_window")?.filter(|window| *window > 0);
    let hides = window.is_some_and(|window| window < config.usize("max_position_embeddings").unwrap_or(usize::MAX));
    match architecture.hub {
        "MistralForCausalLM" | "MixtralForCausalLM" if hides => {
            return refuse("sliding_window", "is shorter than the longest sequence");
        }
        "Qwen2ForCausalLM" | "Qwen3ForCausalLM" | "Qwen3MoeForCausalLM"
            if config.bool_or("use_sliding_window", false)? =>
        {
            return refuse("use_sliding_window", "is true");
        }
        "Qwen3MoeForCausalLM" if !config.bool_or("norm_topk_prob", false)? => {
            return refuse("norm_topk_prob", "is false");
        }
        "Qwen3MoeForCausalLM" if config.opt_f64s("mlp_only_layers")?.is_some_and(|layers| !layers.is_empty()) => {
            return refuse("mlp_only_layers", "names layers without experts");
        }
        "Gemma3ForCausalLM" => {
            let types = config.opt_strs("layer_types")?.unwrap_or_default();
            let sees_all = |layer: usize| (layer + 1).is_multiple_of(gguf::GEMMA3_PATTERN);
            if types.iter().enumerate().any(|(layer, ty)| (*ty == "full_attention") != sees_all(layer)) {
                return refuse("layer_types", "does not have full attention in each sixth layer and nowhere else");
            }
            let scaled_by = config.opt_f64("query_pre_attn_scalar")?.unwrap_or(256.0);
            if scaled_by != gguf::gemma3_scaled_by(config.count("num_hidden_layers")?, hidden, heads, head_dim) as f64 {
                return refuse(
                    "query_pre_attn_scalar",
                    &format!("is {scaled_by}, another number than the elements of a head"),
                );
            }
        }
        _ => {}
    }
    if let Some(cap) = config.opt_f64("final_logit_softcapping")? {
        set("{}.final_logit_softcapping", MetadataValue::Float(cap));
    }
    Ok(values)
}

/// The elements of a head.
fn head_dim(config: &HuggingFaceConfig) -> Result<usize> {
    match config.opt_usize("head_dim")?.filter(|size| *size > 0) {
        Some(size) => Ok(size),
        None => Ok(config.usize("hidden_size")? / config.usize("num_attention_heads")?),
    }
}

/// The embedding of positions: what metadata say of it, and the factors of its frequencies.
fn rope(
    config: &HuggingFaceConfig,
    architecture: &str,
    metadata: &mut Metadata,
) -> Result<Vec<(&'static str, Vec<f32>)>> {
    let mut set = |key: &str, value: MetadataValue| metadata.insert(format!("{architecture}.rope.{key}"), value);
    let head_dim = head_dim(config)?;
    let parameters = config.section("rope_parameters");
    let of_layers = |kind: &str| parameters.as_ref().and_then(|section| section.section(kind));
    if let Some(theta) =
        of_layers("sliding_attention").map(|section| section.opt_f64("rope_theta")).transpose()?.flatten()
    {
        set("freq_base_swa", MetadataValue::Float(theta));
    }
    let own = of_layers("full_attention").or(parameters);
    let theta = match own.as_ref().map(|section| section.opt_f64("rope_theta")).transpose()?.flatten() {
        Some(theta) => theta,
        None => config.opt_f64("rope_theta")?.unwrap_or(if architecture == "gemma3" { 1e6 } else { 1e4 }),
    };
    set("freq_base", MetadataValue::Float(theta));
    let scaling = own.or_else(|| config.section("rope_scaling"));
    let share = |section: Option<&HuggingFaceConfig>| match section {
        Some(section) => section.opt_f64("partial_rotary_factor"),
        None => Ok(None),
    };
    let share = share(scaling.as_ref())?.or(share(Some(config))?).unwrap_or(1.0);
    let rotated = (head_dim as f64 * share) as usize;
    set("dimension_count", MetadataValue::Int(rotated as i128));
    let Some(scaling) = scaling else { return Ok(Vec::new()) };
    let kind = scaling.opt_str("rope_type")?.or(scaling.opt_str("type")?).unwrap_or("default");
    let longest = config.usize("max_position_embeddings")?;
    let original = match scaling.opt_usize("original_max_position_embeddings")? {
        Some(length) => Some(length),
        None => config.opt_usize("original_max_position_embeddings")?,
    };
    let factors = |key: &str| scaling.opt_f64s(key)?.ok_or_else(|| scaling.error(key, "is missing"));
    let tensors = match kind {
        "default" => return Ok(Vec::new()),
        "linear" | "yarn" => {
            set("scaling.type", MetadataValue::String(kind.into()));
            set("scaling.factor", MetadataValue::Float(scaling.f64("factor")?));
            Vec::new()
        }
        "llama3" => {
            let params = Llama3RopeScalingParams {
                factor: scaling.f64("factor")?,
                low_freq_factor: scaling.f64("low_freq_factor")?,
                high_freq_factor: scaling.f64("high_freq_factor")?,
                orig_max_position: original.unwrap_or(longest),
            };
            let stretched = params.frequencies(rotated, theta)?;
            let plain = |pair: usize| theta.powf(-2.0 * pair as f64 / rotated as f64);
            vec![(gguf::ROPE_FREQS, stretched.iter().enumerate().map(|(i, freq)| (plain(i) / freq) as f32).collect())]
        }
        "longrope" | "su" => {
            let params = LongRoPEScalingParams {
                short_factor: factors("short_factor")?,
                long_factor: factors("long_factor")?,
                original_max_position: original.unwrap_or(longest),
                max_position_embeddings: longest,
            };
            let magnitude = scaling.opt_f64("attention_factor")?.unwrap_or_else(|| params.magnitude());
            set("scaling.attn_factor", MetadataValue::Float(magnitude));
            let numbers = |factors: Vec<f64>| factors.into_iter().map(|factor| factor as f32).collect();
            vec![
                (gguf::ROPE_FACTORS_SHORT, numbers(params.short_factor)),
                (gguf::ROPE_FACTORS_LONG, numbers(params.long_factor)),
            ]
        }
        other => {
            let reason =
                format!("is `{other}`, which is not written to GGUF; default, linear, llama3, longrope and yarn are");
            return Err(scaling.error("rope_type", reason));
        }
    };
    if let Some(length) = original {
        set("scaling.original_context_length", MetadataValue::Int(length as i128));
    }
    Ok(tensors)
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
