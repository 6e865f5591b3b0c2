//! The vocabulary that a GGUF file holds, as the text of a `tokenizer.json` and of a `tokenizer_config.json`.

use std::collections::BTreeMap;
use std::path::Path;

use max_core::graph::weights::MetadataValue;
use serde_json::{Value, json};

use super::sentencepiece::{self, Parts};
use crate::error::{PipelineError, Result};

/// How a byte-level tokenizer cuts texts before it joins bytes, by the names that files have for it. The expressions are those of the
/// models' tokenizers.
pub(super) struct Cut {
    /// The names; the first is written.
    names: &'static [&'static str],
    /// What a piece is; `None` for the expression of GPT-2.
    pattern: Option<&'static str>,
    /// Whether each digit is a piece before that.
    digits: bool,
    /// Whether a piece that is a token is taken whole, whatever its merges; such tokenizers put a token before texts unless a file says
    /// otherwise.
    whole_tokens: bool,
}

const GPT2: Cut = Cut {
    names: &["gpt-2", "default", "olmo", "mpt", "phi-2", "jina-es", "jina-de", "jina-v2-es", "jina-v2-de"],
    pattern: None,
    digits: false,
    whole_tokens: false,
};

const CUTS: [Cut; 8] = [
    GPT2,
    Cut { names: &["smollm", "refact", "starcoder", "command-r", "codeshell", "exaone"], digits: true, ..GPT2 },
    Cut {
        names: &["llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "lfm2"],
        pattern: Some(LLAMA3),
        whole_tokens: true,
        ..GPT2
    },
    Cut { names: &["dbrx", "smaug-bpe"], pattern: Some(LLAMA3), ..GPT2 },
    Cut { names: &["qwen2", "deepseek-r1-qwen", "stablelm2", "hunyuan"], pattern: Some(QWEN2), ..GPT2 },
    Cut {
        names: &["qwen35"],
        pattern: Some(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ),
        ..GPT2
    },
    Cut {
        names: &["tekken"],
        pattern: Some(
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ),
        whole_tokens: true,
        ..GPT2
    },
    Cut {
        names: &["gpt-4o", "llama4"],
        pattern: Some(
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ),
        ..GPT2
    },
];

const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

impl Cut {
    /// The one of a name; GPT-2's where a file says none.
    fn named(name: Option<&str>) -> Option<&'static Cut> {
        let name = name.unwrap_or("default");
        CUTS.iter().find(|cut| cut.names.contains(&name))
    }

    /// It as the `pre_tokenizer` of a `tokenizer.json`.
    fn pre_tokenizer(&self) -> Value {
        let mut parts = Vec::new();
        if self.digits {
            parts.push(json!({"type": "Digits", "individual_digits": true}));
        }
        if let Some(pattern) = self.pattern {
            parts
                .push(json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false}));
        }
        parts.push(byte_level(self.pattern.is_none()));
        json!({"type": "Sequence", "pretokenizers": parts})
    }

    /// The name of what a `pre_tokenizer` does, if it has one.
    pub(super) fn of_pre_tokenizer(pre_tokenizer: &Value, whole_tokens: bool) -> Option<&'static str> {
        let parts = match pre_tokenizer["pretokenizers"].as_array() {
            Some(parts) => parts.iter().collect(),
            None => vec![pre_tokenizer],
        };
        let (mut digits, mut pattern, mut bytes) = (false, None, None);
        for part in parts {
            match part["type"].as_str()? {
                "Digits" if part["individual_digits"] == true => digits = true,
                "Split" if part["behavior"] == "Isolated" && part["invert"] != true && pattern.is_none() => {
                    pattern = Some(part["pattern"]["Regex"].as_str()?);
                }
                "ByteLevel" if part["add_prefix_space"] != true => bytes = Some(part["use_regex"] != false),
                _ => return None,
            }
        }
        // Either the expression of a part of its own, or GPT-2's within the last part.
        if bytes? == pattern.is_some() {
            return None;
        }
        let same = |cut: &&Cut| (cut.digits, cut.pattern, cut.whole_tokens) == (digits, pattern, whole_tokens);
        let cut = CUTS.iter().find(same)?;
        cut.names.first().copied()
    }
}

fn byte_level(use_regex: bool) -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex})
}

/// The most bytes of a token, so that what is made of all of its parts stays small.
const LONGEST: usize = 1024;

/// Kinds of tokens: those of texts, what stands for what is none, those that only the model or a template writes, those that a user may
/// write as one, those that fill the embedding's last rows, and bytes.
pub(super) const NORMAL: i64 = 1;
pub(super) const UNKNOWN: i64 = 2;
pub(super) const CONTROL: i64 = 3;
pub(super) const USER_DEFINED: i64 = 4;
pub(super) const UNUSED: i64 = 5;
pub(super) const BYTE: i64 = 6;

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
    let cut = Cut::named(text("tokenizer.ggml.pre"));
    let (parts, pre_tokenizer) = match (kind, cut) {
        ("gpt2", Some(cut)) => (of_bytes(&tokens, &merges, cut), cut.pre_tokenizer()),
        ("gpt2", None) => {
            let name = text("tokenizer.ggml.pre").unwrap_or_default();
            return Err(fail(format!(
                "cuts texts as `{name}` does, which is not known here: put the model's tokenizer.json beside the file"
            )));
        }
        ("llama", _) if scores.len() == tokens.len() => {
            let unknown = metadata.get("tokenizer.ggml.unknown_token_id").and_then(MetadataValue::as_usize);
            let prefix = flag("tokenizer.ggml.add_space_prefix").unwrap_or(true);
            (sentencepiece::parts(&tokens, &scores, &kinds, prefix, unknown), Value::Null)
        }
        ("bert", _) => {
            let lowercase = flag("tokenizer.ggml.normalizer.lowercase").unwrap_or(true);
            let unknown = metadata.get("tokenizer.ggml.unknown_token_id").and_then(MetadataValue::as_usize);
            (word_pieces(&tokens, &kinds, lowercase, unknown), json!({"type": "BertPreTokenizer"}))
        }
        ("llama", _) => return Err(fail(format!("has {} scores for {} tokens", scores.len(), tokens.len()))),
        _ => {
            let reason = format!(
                "has a vocabulary of the kind `{kind}`, and only `gpt2`, `llama` and `bert` are read: put the model's tokenizer.json \
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
    // The format spells it so.
    let (class, separator) = (token("tokenizer.ggml.cls_token_id"), token("tokenizer.ggml.seperator_token_id"));
    let is_bert = kind == "bert";
    let adds_bos = flag("tokenizer.ggml.add_bos_token");
    let adds_bos = adds_bos.unwrap_or(is_sentencepiece || is_bert || cut.is_some_and(|cut| cut.whole_tokens));
    let adds_eos = flag("tokenizer.ggml.add_eos_token").unwrap_or(is_bert);
    let first = if is_bert { class.or(bos) } else { bos }.filter(|_| adds_bos);
    let last = if is_bert { separator.or(eos) } else { eos }.filter(|_| adds_eos);
    let post_processor = (first.is_some() || last.is_some()).then(|| around(first, last));
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

/// What puts tokens before and behind a text.
fn around(first: Option<(usize, &str)>, last: Option<(usize, &str)>) -> Value {
    let special =
        |token: Option<(usize, &str)>| token.map(|(_, content)| json!({"SpecialToken": {"id": content, "type_id": 0}}));
    let text = |name: &str, ty: usize| Some(json!({"Sequence": {"id": name, "type_id": ty}}));
    let known =
        |(id, content): (usize, &str)| (content.to_owned(), json!({"id": content, "ids": [id], "tokens": [content]}));
    let all = |parts: Vec<Option<Value>>| parts.into_iter().flatten().collect::<Vec<Value>>();
    json!({
        "type": "TemplateProcessing",
        "single": all(vec![special(first), text("A", 0), special(last)]),
        "pair": all(vec![special(first), text("A", 0), special(last), text("B", 1), special(last)]),
        "special_tokens": first.into_iter().chain(last).map(known).collect::<serde_json::Map<String, Value>>(),
    })
}

/// A vocabulary of WordPiece, as BERT has it: words begin with a letter for a space in files, and their further parts with `##` here.
fn word_pieces(tokens: &[&str], kinds: &[i64], lowercase: bool, unknown: Option<usize>) -> Parts {
    let piece = |(id, token): (usize, &&str)| {
        let is_text = kinds.get(id).is_none_or(|kind| *kind == NORMAL);
        let text = match token.strip_prefix(sentencepiece::SPACE) {
            _ if !is_text => (*token).to_owned(),
            Some(word) => word.to_owned(),
            None => format!("##{token}"),
        };
        (text, id)
    };
    let vocab: BTreeMap<String, usize> = tokens.iter().enumerate().map(piece).collect();
    Parts {
        normalizer: json!({
            "type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": null,
            "lowercase": lowercase,
        }),
        decoder: json!({"type": "WordPiece", "prefix": "##", "cleanup": true}),
        model: json!({
            "type": "WordPiece", "vocab": vocab, "unk_token": unknown.and_then(|id| tokens.get(id)).unwrap_or(&"[UNK]"),
            "continuing_subword_prefix": "##", "max_input_chars_per_word": 100,
        }),
    }
}

/// A vocabulary of letters for bytes, as GPT-2 has it.
fn of_bytes(tokens: &[&str], merges: &[&str], cut: &Cut) -> Parts {
    let vocab: BTreeMap<&str, usize> = tokens.iter().enumerate().map(|(id, token)| (*token, id)).collect();
    Parts {
        normalizer: Value::Null,
        decoder: byte_level(true),
        model: json!({
            "type": "BPE", "vocab": vocab, "merges": merges, "fuse_unk": false, "byte_fallback": false,
            "ignore_merges": cut.whole_tokens,
        }),
    }
}
