//! GGUF: its metadata as a configuration, and its names of weights as those of a hub, and back.

use std::collections::BTreeMap;
use std::path::Path;

use max_core::graph::weights::MetadataValue;
use serde_json::{Map, Value, json};

use super::{HuggingFaceConfig, WeightPart};
use crate::error::{PipelineError, Result};

/// The architectures by their names in GGUF, and whether queries and keys lie there as pairs of neighbours rotate.
const ARCHITECTURES: [(&str, &str, bool); 3] =
    [("llama", "LlamaForCausalLM", true), ("qwen2", "Qwen2ForCausalLM", false), ("qwen3", "Qwen3ForCausalLM", false)];

/// The key under which the configuration says what [`ARCHITECTURES`] does.
const PAIRED: &str = "gguf_paired_heads";

/// Names of weights, of their layer or of the model: in GGUF, and on a hub.
const NAMES: [(&str, &str); 14] = [
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("ffn_norm", "post_attention_layernorm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
    ("token_embd", "model.embed_tokens"),
    ("output_norm", "model.norm"),
    ("output", "lm_head"),
];

/// What the metadata of a file say, by the names that `config.json` has. Without a matrix of its own for logits, a file ties them to the
/// embedding.
pub(super) fn config(
    path: &Path,
    metadata: &BTreeMap<String, MetadataValue>,
    has_output: bool,
) -> Result<HuggingFaceConfig> {
    let fail = |reason: String| PipelineError::File { path: path.into(), reason };
    let Some(name) = metadata.get("general.architecture").and_then(MetadataValue::as_str) else {
        return Err(fail("the metadata have no `general.architecture`".into()));
    };
    let Some((_, architecture, paired)) = ARCHITECTURES.iter().find(|(known, ..)| *known == name) else {
        let known: Vec<&str> = ARCHITECTURES.iter().map(|(known, ..)| *known).collect();
        return Err(PipelineError::UnknownArchitecture {
            path: path.into(),
            name: name.into(),
            known: known.iter().map(|known| (*known).to_owned()).collect(),
        });
    };
    let value = |key: &str| metadata.get(&format!("{name}.{key}"));
    let mut values = Map::new();
    values.insert("architectures".into(), json!([architecture]));
    values.insert(PAIRED.into(), json!(paired));
    values.insert("tie_word_embeddings".into(), json!(!has_output));
    let mut number = |key: &str, from: Option<&MetadataValue>| {
        if let Some(number) = from.and_then(MetadataValue::as_usize) {
            values.insert(key.into(), json!(number));
        } else if let Some(number) = from.and_then(MetadataValue::as_f64) {
            values.insert(key.into(), json!(number));
        }
    };
    number("hidden_size", value("embedding_length"));
    number("intermediate_size", value("feed_forward_length"));
    number("num_hidden_layers", value("block_count"));
    number("num_attention_heads", value("attention.head_count"));
    number("num_key_value_heads", value("attention.head_count_kv"));
    number("head_dim", value("attention.key_length"));
    number("max_position_embeddings", value("context_length"));
    number("rms_norm_eps", value("attention.layer_norm_rms_epsilon"));
    number("rope_theta", value("rope.freq_base"));
    number("eos_token_id", metadata.get("tokenizer.ggml.eos_token_id"));
    number("bos_token_id", metadata.get("tokenizer.ggml.bos_token_id"));
    let tokens = metadata.get("tokenizer.ggml.tokens").and_then(MetadataValue::as_array).map(<[_]>::len);
    match value("vocab_size").and_then(MetadataValue::as_usize).or(tokens) {
        Some(size) => values.insert("vocab_size".into(), json!(size)),
        None => return Err(fail(format!("the metadata have neither `{name}.vocab_size` nor tokens"))),
    };
    if let Some(kind) = value("rope.scaling.type").and_then(MetadataValue::as_str).filter(|kind| *kind != "none") {
        let mut scaling = Map::new();
        scaling.insert("rope_type".into(), json!(kind));
        if let Some(factor) = value("rope.scaling.factor").and_then(MetadataValue::as_f64) {
            scaling.insert("factor".into(), json!(factor));
        }
        if let Some(length) = value("rope.scaling.original_context_length").and_then(MetadataValue::as_usize) {
            scaling.insert("original_max_position_embeddings".into(), json!(length));
        }
        values.insert("rope_scaling".into(), Value::Object(scaling));
    }
    Ok(HuggingFaceConfig::of(path, values))
}

/// The name that a weight of a file has on a hub, and the heads that are to be rearranged; `None` for what the module computes
/// itself.
pub(crate) fn hub_name(config: &HuggingFaceConfig, name: &str) -> Result<Option<(String, WeightPart)>> {
    if name == "rope_freqs.weight" {
        return Err(config.error(
            "rope_freqs.weight",
            "is a tensor of frequencies, as Llama 3.1 has, which is not read yet: use the model's safetensors",
        ));
    }
    let (layer, rest) = match name.strip_prefix("blk.").and_then(|rest| rest.split_once('.')) {
        Some((layer, rest)) => (format!("model.layers.{layer}."), rest),
        None => (String::new(), name),
    };
    let (stem, suffix) = rest.split_once('.').unwrap_or((rest, ""));
    let Some((_, known)) = NAMES.iter().find(|(known, _)| *known == stem) else {
        return Ok(Some((name.to_owned(), WeightPart::whole())));
    };
    let heads = if config.bool_or(PAIRED, false)? { paired_heads(config, rest)? } else { None };
    Ok(Some((format!("{layer}{known}.{suffix}"), WeightPart { heads, ..WeightPart::whole() })))
}

/// The heads of queries or keys, whose rows lie as pairs where an architecture has them so.
pub(super) fn paired_heads(config: &HuggingFaceConfig, name: &str) -> Result<Option<usize>> {
    let name = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.')).map_or(name, |(_, rest)| rest);
    let of_keys = || config.opt_usize("num_key_value_heads")?.map_or_else(|| config.usize("num_attention_heads"), Ok);
    match name.split_once('.').map(|(stem, _)| stem) {
        Some("attn_q") => config.usize("num_attention_heads").map(Some),
        Some("attn_k") => of_keys().map(Some),
        _ => Ok(None),
    }
}

/// The name that an architecture has in GGUF, and whether queries and keys lie there as pairs.
pub(super) fn architecture(config: &HuggingFaceConfig) -> Result<(&'static str, bool)> {
    let name = config.architecture()?;
    let found = ARCHITECTURES.iter().find(|(_, known, _)| *known == name);
    found.map(|(name, _, paired)| (*name, *paired)).ok_or_else(|| PipelineError::UnknownArchitecture {
        path: config.path().into(),
        name: name.into(),
        known: ARCHITECTURES.iter().map(|(_, known, _)| (*known).to_owned()).collect(),
    })
}

/// The name in GGUF of a weight of a hub.
pub(super) fn file_name(name: &str) -> Option<String> {
    let (layer, rest) = match name.strip_prefix("model.layers.").and_then(|rest| rest.split_once('.')) {
        Some((layer, rest)) => (format!("blk.{layer}."), rest),
        None => (String::new(), name),
    };
    let (stem, suffix) = rest.rsplit_once('.')?;
    let (file, _) = NAMES.iter().find(|(_, known)| *known == stem)?;
    Some(format!("{layer}{file}.{suffix}"))
}
