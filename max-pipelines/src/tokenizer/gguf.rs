//! The vocabulary that a GGUF file holds, as the text of a `tokenizer.json` and of a `tokenizer_config.json`.

use std::collections::BTreeMap;
use std::path::Path;

use max_core::graph::weights::MetadataValue;
use serde_json::{Value, json};

use crate::error::{PipelineError, Result};

/// Where byte-level tokenizers cut texts before they merge, by the names that files have for it.
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Tokens that only the model or a template writes, and those that a user may write as one.
const CONTROL: i64 = 3;
const USER_DEFINED: i64 = 4;

type Metadata = BTreeMap<String, MetadataValue>;

/// The tokenizer and its settings; `None` where the file has no vocabulary.
pub(super) fn tokenizer(path: &Path, metadata: &Metadata) -> Result<Option<(Value, Value)>> {
    let fail = |reason: String| PipelineError::File { path: path.into(), reason };
    let text = |key: &str| metadata.get(key).and_then(MetadataValue::as_str);
    let list = |key: &str| metadata.get(key).and_then(MetadataValue::as_array).unwrap_or_default();
    let kind = match text("tokenizer.ggml.model") {
        None | Some("no_vocab" | "none") => return Ok(None),
        Some(kind) => kind,
    };
    if kind != "gpt2" {
        let reason = format!(
            "has a vocabulary of the kind `{kind}`, and only `gpt2` is read: put the model's tokenizer.json beside the file"
        );
        return Err(fail(reason));
    }
    let tokens: Option<Vec<&str>> = list("tokenizer.ggml.tokens").iter().map(MetadataValue::as_str).collect();
    let merges: Option<Vec<&str>> = list("tokenizer.ggml.merges").iter().map(MetadataValue::as_str).collect();
    let (Some(tokens), Some(merges)) = (tokens, merges) else {
        return Err(fail("has tokens or merges that are no texts".into()));
    };
    let split = match text("tokenizer.ggml.pre") {
        Some("llama-bpe" | "llama3" | "llama-v3") => Some(LLAMA3),
        Some("qwen2" | "deepseek-r1-qwen") => Some(QWEN2),
        None | Some("default" | "gpt-2") => None,
        Some(name) => {
            let reason = format!(
                "cuts texts as `{name}` does, which is not known here: put the model's tokenizer.json beside the file"
            );
            return Err(fail(reason));
        }
    };
    let byte_level = |use_regex: bool| json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex});
    let pre_tokenizer = match split {
        None => byte_level(true),
        Some(pattern) => json!({"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false},
            byte_level(false),
        ]}),
    };
    let kinds = list("tokenizer.ggml.token_type");
    let added = tokens.iter().enumerate().filter_map(|(id, content)| {
        let kind = kinds.get(id).and_then(MetadataValue::as_f64)? as i64;
        matches!(kind, CONTROL | USER_DEFINED).then(|| {
            json!({
                "id": id, "content": content, "special": kind == CONTROL, "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false,
            })
        })
    });
    let added: Vec<Value> = added.collect();
    let token =
        |key: &str| metadata.get(key).and_then(MetadataValue::as_usize).and_then(|id| Some((id, *tokens.get(id)?)));
    let (bos, eos) = (token("tokenizer.ggml.bos_token_id"), token("tokenizer.ggml.eos_token_id"));
    let adds_bos = matches!(metadata.get("tokenizer.ggml.add_bos_token"), Some(MetadataValue::Bool(true)));
    let post_processor = bos.filter(|_| adds_bos).map(|(id, content)| {
        let first = json!({"SpecialToken": {"id": content, "type_id": 0}});
        let part = |name: &str, ty: usize| json!({"Sequence": {"id": name, "type_id": ty}});
        json!({
            "type": "TemplateProcessing", "single": [first.clone(), part("A", 0)],
            "pair": [first, part("A", 0), part("B", 1)],
            "special_tokens": {content: {"id": content, "ids": [id], "tokens": [content]}},
        })
    });
    let vocab: BTreeMap<&str, usize> = tokens.iter().enumerate().map(|(id, token)| (*token, id)).collect();
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "added_tokens": added,
        "pre_tokenizer": pre_tokenizer, "post_processor": post_processor, "decoder": byte_level(true),
        "model": {"type": "BPE", "vocab": vocab, "merges": merges, "fuse_unk": false, "byte_fallback": false},
    });
    let config = json!({
        "chat_template": text("tokenizer.chat_template"),
        "bos_token": bos.map(|(_, content)| content), "eos_token": eos.map(|(_, content)| content),
    });
    Ok(Some((tokenizer, config)))
}
