//! The vocabulary that a GGUF file holds, as the text of a `tokenizer.json` and of a `tokenizer_config.json`.

use std::collections::BTreeMap;
use std::path::Path;

use max_core::graph::weights::MetadataValue;
use serde_json::{Value, json};

use super::sentencepiece::{self, Parts};
use crate::error::{PipelineError, Result};

/// Where byte-level tokenizers cut texts before they merge, by the names that files have for it.
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// The most bytes of a token, so that what is made of all of its parts stays small.
const LONGEST: usize = 1024;

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
    let tokens: Option<Vec<&str>> = list("tokenizer.ggml.tokens").iter().map(MetadataValue::as_str).collect();
    let merges: Option<Vec<&str>> = list("tokenizer.ggml.merges").iter().map(MetadataValue::as_str).collect();
    let (Some(tokens), Some(merges)) = (tokens, merges) else {
        return Err(fail("has tokens or merges that are no texts".into()));
    };
    if let Some((id, token)) = tokens.iter().enumerate().find(|(_, token)| token.len() > LONGEST) {
        return Err(fail(format!("token {id} has {} bytes, more than {LONGEST}", token.len())));
    }
    let numbers = |key: &str| list(key).iter().map(MetadataValue::as_f64).collect::<Option<Vec<f64>>>();
    let (scores, kinds) = (numbers("tokenizer.ggml.scores"), numbers("tokenizer.ggml.token_type"));
    let (Some(scores), Some(kinds)) = (scores, kinds) else {
        return Err(fail("has scores or kinds of tokens that are no numbers".into()));
    };
    let kinds: Vec<i64> = kinds.into_iter().map(|kind| kind as i64).collect();
    let flag = |key: &str| match metadata.get(key) {
        Some(MetadataValue::Bool(value)) => Some(*value),
        _ => None,
    };
    let is_sentencepiece = kind == "llama";
    let (parts, pre_tokenizer) = match kind {
        "gpt2" => byte_level(&tokens, &merges, text("tokenizer.ggml.pre")).map_err(fail)?,
        "llama" if scores.len() == tokens.len() => {
            let unknown = metadata.get("tokenizer.ggml.unknown_token_id").and_then(MetadataValue::as_usize);
            let prefix = flag("tokenizer.ggml.add_space_prefix").unwrap_or(true);
            (sentencepiece::parts(&tokens, &scores, &kinds, prefix, unknown), Value::Null)
        }
        "llama" => return Err(fail(format!("has {} scores for {} tokens", scores.len(), tokens.len()))),
        _ => {
            let reason = format!(
                "has a vocabulary of the kind `{kind}`, and only `gpt2` and `llama` are read: put the model's tokenizer.json \
                 beside the file"
            );
            return Err(fail(reason));
        }
    };
    let added = tokens.iter().enumerate().filter_map(|(id, content)| {
        let kind = *kinds.get(id)?;
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
    let adds_bos = flag("tokenizer.ggml.add_bos_token").unwrap_or(is_sentencepiece);
    let post_processor = bos.filter(|_| adds_bos).map(|(id, content)| {
        let first = json!({"SpecialToken": {"id": content, "type_id": 0}});
        let part = |name: &str, ty: usize| json!({"Sequence": {"id": name, "type_id": ty}});
        json!({
            "type": "TemplateProcessing", "single": [first.clone(), part("A", 0)],
            "pair": [first, part("A", 0), part("B", 1)],
            "special_tokens": {content: {"id": content, "ids": [id], "tokens": [content]}},
        })
    });
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": parts.normalizer, "added_tokens": added,
        "pre_tokenizer": pre_tokenizer, "post_processor": post_processor, "decoder": parts.decoder, "model": parts.model,
    });
    let config = json!({
        "chat_template": text("tokenizer.chat_template"),
        "bos_token": bos.map(|(_, content)| content), "eos_token": eos.map(|(_, content)| content),
    });
    Ok(Some((tokenizer, config)))
}

/// A vocabulary of letters for bytes, as GPT-2 has it, and how texts are cut before bytes are joined; or why it is not known.
fn byte_level(tokens: &[&str], merges: &[&str], cut: Option<&str>) -> Result<(Parts, Value), String> {
    let split = match cut {
        Some("llama-bpe" | "llama3" | "llama-v3") => Some(LLAMA3),
        Some("qwen2" | "deepseek-r1-qwen") => Some(QWEN2),
        None | Some("default" | "gpt-2") => None,
        Some(name) => {
            return Err(format!(
                "cuts texts as `{name}` does, which is not known here: put the model's tokenizer.json beside the file"
            ));
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
    let vocab: BTreeMap<&str, usize> = tokens.iter().enumerate().map(|(id, token)| (*token, id)).collect();
    let parts = Parts {
        normalizer: Value::Null,
        decoder: byte_level(true),
        model: json!({"type": "BPE", "vocab": vocab, "merges": merges, "fuse_unk": false, "byte_fallback": false}),
    };
    Ok((parts, pre_tokenizer))
}
