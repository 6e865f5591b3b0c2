//! GGUF: its architectures, its metadata as a configuration, and its names of weights as those of a hub, and back. `quantize.rs` writes
//! such files.

pub(super) mod quantize;

use std::path::Path;

use max_core::dtype::DType;
use max_core::graph::weights::{MetadataValue, Weights, WeightsError};
use serde_json::{Map, Value, json};

use super::{HuggingFaceConfig, WeightPart};
use crate::error::{PipelineError, Result};

/// An architecture as GGUF has it.
pub(super) struct GgufArchitecture {
    /// Its name there.
    pub name: &'static str,
    /// Its name on a hub.
    pub hub: &'static str,
    /// Whether queries and keys lie there as pairs of neighbours rotate.
    pub paired: bool,
    /// What the weights of norms, but not of the model's own layers without one, have more there than on a hub.
    pub norm_offset: f64,
    /// What weights are called on a hub, where [`NAMES`] does not say it.
    names: &'static [(&'static str, &'static str)],
    /// What is before a layer's number on a hub.
    pub layers: &'static str,
    /// What experts are called on a hub, in order of [`EXPERTS`].
    pub experts: Option<[&'static str; 3]>,
}

/// Stacks of experts: those of the gates, of what they multiply, and of the results.
pub(super) const EXPERTS: [&str; 3] = ["ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"];

const LLAMA: GgufArchitecture = GgufArchitecture {
    name: "llama",
    hub: "LlamaForCausalLM",
    paired: true,
    norm_offset: 0.0,
    names: &[],
    layers: DECODER_LAYERS,
    experts: None,
};

/// What decoders' layers are called on a hub.
pub(super) const DECODER_LAYERS: &str = "model.layers.";

/// All that are read and written. Of one name, the one with experts has them.
const ARCHITECTURES: [GgufArchitecture; 11] = [
    LLAMA,
    // Without windows, which GGUF's `llama` does not have.
    GgufArchitecture { hub: "MistralForCausalLM", ..LLAMA },
    GgufArchitecture {
        hub: "MixtralForCausalLM",
        names: &[("ffn_gate_inp", "block_sparse_moe.gate")],
        experts: Some([
            "block_sparse_moe.experts.{}.w1",
            "block_sparse_moe.experts.{}.w3",
            "block_sparse_moe.experts.{}.w2",
        ]),
        ..LLAMA
    },
    GgufArchitecture { name: "qwen2", hub: "Qwen2ForCausalLM", paired: false, ..LLAMA },
    GgufArchitecture { name: "qwen3", hub: "Qwen3ForCausalLM", paired: false, ..LLAMA },
    GgufArchitecture {
        name: "qwen3moe",
        hub: "Qwen3MoeForCausalLM",
        paired: false,
        names: &[("ffn_gate_inp", "mlp.gate")],
        experts: Some(["mlp.experts.{}.gate_proj", "mlp.experts.{}.up_proj", "mlp.experts.{}.down_proj"]),
        ..LLAMA
    },
    GgufArchitecture {
        name: "phi3",
        hub: "Phi3ForCausalLM",
        paired: false,
        names: &[("attn_qkv", "self_attn.qkv_proj"), ("ffn_up", "mlp.gate_up_proj")],
        ..LLAMA
    },
    GgufArchitecture { name: "granite", hub: "GraniteForCausalLM", ..LLAMA },
    GgufArchitecture { name: "olmo2", hub: "Olmo2ForCausalLM", paired: false, names: &OUTPUT_NORMS, ..LLAMA },
    GgufArchitecture {
        name: "gemma3",
        hub: "Gemma3ForCausalLM",
        paired: false,
        norm_offset: 1.0,
        names: &[OUTPUT_NORMS[0], OUTPUT_NORMS[1], ("ffn_norm", "pre_feedforward_layernorm")],
        ..LLAMA
    },
    GgufArchitecture {
        name: "bert",
        hub: "BertModel",
        paired: false,
        layers: "encoder.layer.",
        names: &[
            ("token_embd", "embeddings.word_embeddings"),
            ("position_embd", "embeddings.position_embeddings"),
            ("token_types", "embeddings.token_type_embeddings"),
            ("token_embd_norm", "embeddings.LayerNorm"),
            ("attn_q", "attention.self.query"),
            ("attn_k", "attention.self.key"),
            ("attn_v", "attention.self.value"),
            ("attn_output", "attention.output.dense"),
            ("attn_output_norm", "attention.output.LayerNorm"),
            ("ffn_up", "intermediate.dense"),
            ("ffn_down", "output.dense"),
            ("layer_output_norm", "output.LayerNorm"),
        ],
        ..LLAMA
    },
];

/// Norms behind attention and the feed-forward layer.
const OUTPUT_NORMS: [(&str, &str); 2] =
    [("post_attention_norm", "post_attention_layernorm"), ("post_ffw_norm", "post_feedforward_layernorm")];

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

/// Numbers of a configuration: behind the architecture's name in GGUF, and in `config.json`.
pub(super) const KEYS: [(&str, &str); 19] = [
    ("embedding_length", "hidden_size"),
    ("feed_forward_length", "intermediate_size"),
    ("block_count", "num_hidden_layers"),
    ("attention.head_count", "num_attention_heads"),
    ("attention.head_count_kv", "num_key_value_heads"),
    ("attention.key_length", "head_dim"),
    ("attention.layer_norm_rms_epsilon", "rms_norm_eps"),
    ("attention.layer_norm_epsilon", "layer_norm_eps"),
    ("attention.sliding_window", "sliding_window"),
    ("attention.scale", "attention_multiplier"),
    ("context_length", "max_position_embeddings"),
    ("rope.freq_base", "rope_theta"),
    ("rope.freq_base_swa", "rope_local_base_freq"),
    ("embedding_scale", "embedding_multiplier"),
    ("residual_scale", "residual_multiplier"),
    ("logit_scale", "logits_scaling"),
    ("expert_count", "num_local_experts"),
    ("expert_used_count", "num_experts_per_tok"),
    ("expert_feed_forward_length", "moe_intermediate_size"),
];

/// Factors of frequencies: of all sequences, of those up to the original length, and of longer ones.
pub(super) const ROPE_FREQS: &str = "rope_freqs.weight";
pub(super) const ROPE_FACTORS_SHORT: &str = "rope_factors_short.weight";
pub(super) const ROPE_FACTORS_LONG: &str = "rope_factors_long.weight";

/// How an embedding is made of vectors: their mean, where no way is said too, or the first of them.
const POOLING_MEAN: usize = 1;
const POOLING_FIRST: usize = 2;

/// The layers of Gemma 3's largest model, whose attention is scaled by another number of elements than a head has.
const GEMMA3_27B_LAYERS: usize = 62;

/// What the metadata of a file say, by the names that `config.json` has. Without a matrix of its own for logits, a file ties them to the
/// embedding.
pub(super) fn config(path: &Path, weights: &Weights) -> Result<HuggingFaceConfig> {
    let metadata = weights.metadata();
    let fail = |reason: String| PipelineError::File { path: path.into(), reason };
    let Some(name) = metadata.get("general.architecture").and_then(MetadataValue::as_str) else {
        return Err(fail("the metadata have no `general.architecture`".into()));
    };
    let value = |key: &str| metadata.get(&format!("{name}.{key}"));
    let size = |key: &str| value(key).and_then(MetadataValue::as_usize);
    let real = |key: &str| value(key).and_then(MetadataValue::as_f64);
    let has_experts = size("expert_count").is_some_and(|count| count > 0);
    let Some(architecture) =
        ARCHITECTURES.iter().find(|known| known.name == name && known.experts.is_some() == has_experts)
    else {
        let mut known: Vec<String> = ARCHITECTURES.iter().map(|known| known.name.to_owned()).collect();
        known.dedup();
        return Err(PipelineError::UnknownArchitecture { path: path.into(), name: name.into(), known });
    };
    let mut values = Map::new();
    let mut set = |key: &str, value: Value| values.insert(key.into(), value);
    set("architectures", json!([architecture.hub]));
    set("tie_word_embeddings", json!(!weights.exists("output.weight")));
    set("attention_bias", json!(weights.exists("blk.0.attn_output.bias")));
    set("mlp_bias", json!(weights.exists("blk.0.ffn_down.bias")));
    let number = |from: Option<&MetadataValue>| match from?.as_usize() {
        Some(number) => Some(json!(number)),
        None => Some(json!(from?.as_f64()?)),
    };
    for (key, hub) in KEYS {
        if let Some(number) = number(value(key)) {
            set(hub, number);
        }
    }
    for key in ["eos_token_id", "bos_token_id"] {
        if let Some(number) = number(metadata.get(&format!("tokenizer.ggml.{key}"))) {
            set(key, number);
        }
    }
    let tokens = metadata.get("tokenizer.ggml.tokens").and_then(MetadataValue::as_array).map(<[_]>::len);
    match size("vocab_size").or(tokens) {
        Some(size) => set("vocab_size", json!(size)),
        None => return Err(fail(format!("the metadata have neither `{name}.vocab_size` nor tokens"))),
    };
    let (hidden, heads) =
        (size("embedding_length").unwrap_or_default(), size("attention.head_count").unwrap_or(1).max(1));
    let head_dim = size("attention.key_length").unwrap_or(hidden / heads);
    match name {
        "gemma3" => {
            let layers = size("block_count").unwrap_or_default();
            set("query_pre_attn_scalar", json!(gemma3_scaled_by(layers, hidden, heads, head_dim)));
            set("sliding_window_pattern", json!(GEMMA3_PATTERN));
            set("hidden_activation", json!("gelu_pytorch_tanh"));
            set("norm_weight_offset", json!(0.0));
            if let Some(cap) = real("final_logit_softcapping").filter(|cap| *cap > 0.0) {
                set("final_logit_softcapping", json!(cap));
            }
        }
        "bert" => {
            set("hidden_act", json!("gelu"));
            // As `1_Pooling/config.json` says it.
            let pooling = size("pooling_type").unwrap_or(POOLING_MEAN);
            set("pooling_mode_cls_token", json!(pooling == POOLING_FIRST));
            set("pooling_mode_mean_tokens", json!(pooling <= POOLING_MEAN));
            if let Some(types) = number(metadata.get("tokenizer.ggml.token_type_count")) {
                set("type_vocab_size", types);
            }
        }
        "qwen3moe" => {
            set("norm_topk_prob", json!(true));
        }
        _ => {}
    }
    if let Some(rotated) = size("rope.dimension_count").filter(|rotated| *rotated < head_dim) {
        set("partial_rotary_factor", json!(rotated as f64 / head_dim as f64));
    }
    let scaling = rope_scaling(path, weights, name)?;
    if scaling.contains_key("rope_type") {
        set("rope_scaling", Value::Object(scaling));
    }
    Ok(HuggingFaceConfig::of(path, values))
}

/// How a file says that its embedding of positions is stretched, as `rope_scaling` of a `config.json`.
fn rope_scaling(path: &Path, weights: &Weights, architecture: &str) -> Result<Map<String, Value>> {
    let value = |key: &str| weights.metadata().get(&format!("{architecture}.rope.scaling.{key}"));
    let real = |key: &str| value(key).and_then(MetadataValue::as_f64).filter(|number| *number > 0.0);
    let factors = |name: &str| -> Result<Option<Vec<f32>>> {
        if !weights.exists(name) {
            return Ok(None);
        }
        let numbers = weights.data(name)?.astype(DType::F32)?.data.to_vec();
        Ok(Some(numbers.map_err(|source| WeightsError::Tensor {
            name: name.into(),
            path: Some(path.into()),
            source,
        })?))
    };
    let mut scaling = Map::new();
    let kind = value("type").and_then(MetadataValue::as_str).filter(|kind| *kind != "none");
    if let Some(factor) = real("factor") {
        scaling.insert("factor".into(), json!(factor));
    }
    if let Some(length) = value("original_context_length").and_then(MetadataValue::as_usize) {
        scaling.insert("original_max_position_embeddings".into(), json!(length));
    }
    if let (Some(short), Some(long)) = (factors(ROPE_FACTORS_SHORT)?, factors(ROPE_FACTORS_LONG)?) {
        scaling.insert("rope_type".into(), json!("longrope"));
        scaling.insert("short_factor".into(), json!(short));
        scaling.insert("long_factor".into(), json!(long));
        if let Some(magnitude) = real("attn_factor") {
            scaling.insert("attention_factor".into(), json!(magnitude));
        }
    } else if let Some(factors) = factors(ROPE_FREQS)? {
        scaling.insert("rope_type".into(), json!("factors"));
        scaling.insert("factors".into(), json!(factors));
    } else if let Some(kind) = kind {
        scaling.insert("rope_type".into(), json!(kind));
    }
    Ok(scaling)
}

/// Of so many layers of a Gemma 3 one has no window: GGUF does not say it.
pub(super) const GEMMA3_PATTERN: usize = 6;

/// The elements whose number's root divides the products of Gemma 3's queries and keys: GGUF does not say it.
pub(super) fn gemma3_scaled_by(layers: usize, hidden: usize, heads: usize, head_dim: usize) -> usize {
    if layers == GEMMA3_27B_LAYERS { hidden / heads } else { head_dim }
}

/// The names that a weight of a file has on a hub, and which part of it each is: one of a stack of experts, and heads that are to be
/// rearranged. None for what is read with the configuration.
pub(crate) fn hub_names(config: &HuggingFaceConfig, name: &str) -> Result<Vec<(String, WeightPart)>> {
    if [ROPE_FREQS, ROPE_FACTORS_SHORT, ROPE_FACTORS_LONG].contains(&name) {
        return Ok(Vec::new());
    }
    let architecture = architecture(config)?;
    let (layer, rest) = match name.strip_prefix("blk.").and_then(|rest| rest.split_once('.')) {
        Some((layer, rest)) => (format!("{}{layer}.", architecture.layers), rest),
        None => (String::new(), name),
    };
    let (stem, suffix) = rest.split_once('.').unwrap_or((rest, ""));
    if let (Some(experts), Some(kind)) = (architecture.experts, EXPERTS.iter().position(|known| *known == stem)) {
        let one = |index: usize| {
            let expert = experts[kind].replace("{}", &index.to_string());
            (format!("{layer}{expert}.{suffix}"), WeightPart { index: Some(index), ..WeightPart::whole() })
        };
        return Ok((0..config.count("num_local_experts")?).map(one).collect());
    }
    let Some((_, known)) = architecture.all_names().find(|(known, _)| *known == stem) else {
        return Ok(vec![(name.to_owned(), WeightPart::whole())]);
    };
    let heads = architecture.paired_heads(config, rest)?;
    Ok(vec![(format!("{layer}{known}.{suffix}"), WeightPart { heads, ..WeightPart::whole() })])
}

impl GgufArchitecture {
    /// The names of its weights, those of its own first.
    fn all_names(&self) -> impl Iterator<Item = &(&'static str, &'static str)> {
        self.names.iter().chain(&NAMES)
    }

    /// The heads of queries or keys, whose rows lie as pairs where an architecture has them so.
    pub fn paired_heads(&self, config: &HuggingFaceConfig, name: &str) -> Result<Option<usize>> {
        let name = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.')).map_or(name, |(_, rest)| rest);
        let of_keys =
            || config.opt_usize("num_key_value_heads")?.map_or_else(|| config.usize("num_attention_heads"), Ok);
        match name.split_once('.').map(|(stem, _)| stem) {
            Some("attn_q") if self.paired => config.usize("num_attention_heads").map(Some),
            Some("attn_k") if self.paired => of_keys().map(Some),
            _ => Ok(None),
        }
    }

    /// The name in GGUF of a weight of a hub, and which of a stack of experts it is.
    pub fn file_name(&self, name: &str) -> Option<(String, Option<usize>)> {
        let (layer, rest) = match name.strip_prefix(self.layers).and_then(|rest| rest.split_once('.')) {
            Some((layer, rest)) => (format!("blk.{layer}."), rest),
            None => (String::new(), name),
        };
        let (stem, suffix) = rest.rsplit_once('.')?;
        for (pattern, stack) in self.experts.iter().flatten().zip(EXPERTS) {
            let (before, after) = pattern.split_once("{}")?;
            let index = stem.strip_prefix(before).and_then(|rest| rest.strip_suffix(after)?.parse().ok());
            if index.is_some() {
                return Some((format!("{layer}{stack}.{suffix}"), index));
            }
        }
        let (file, _) = self.all_names().find(|(_, known)| *known == stem)?;
        Some((format!("{layer}{file}.{suffix}"), None))
    }
}

/// How GGUF has a model's architecture.
pub(super) fn architecture(config: &HuggingFaceConfig) -> Result<&'static GgufArchitecture> {
    let name = config.architecture()?;
    ARCHITECTURES.iter().find(|known| known.hub == name).ok_or_else(|| PipelineError::UnknownArchitecture {
        path: config.path().into(),
        name: name.into(),
        known: ARCHITECTURES.iter().map(|known| known.hub.to_owned()).collect(),
    })
}
