//! The tokenizer of a folder as the vocabulary of a GGUF file: what [`gguf`](super::gguf) reads, written.

use std::collections::{BTreeMap, HashMap};

use max_core::graph::weights::MetadataValue;
use serde_json::Value;
use tokenizers::Tokenizer;

use super::gguf::{BYTE, CONTROL, Cut, NORMAL, UNKNOWN, UNUSED, USER_DEFINED};
use super::{json, read, template_of};
use crate::error::{PipelineError, Result};
use crate::model::ModelFiles;

type Metadata = BTreeMap<String, MetadataValue>;

/// The vocabulary of a model's folder by the names that GGUF has, or why there is none.
pub(crate) fn gguf_vocabulary(files: &ModelFiles, vocab_size: usize) -> Result<Result<Metadata, String>> {
    let Some(path) = files.beside("tokenizer.json") else { return Ok(Err("there is no tokenizer.json".into())) };
    let text = read(&path)?;
    let fail = |reason: String| PipelineError::Tokenizer { path: path.clone(), reason };
    let value: Value = serde_json::from_str(&text).map_err(|error| fail(error.to_string()))?;
    let (kind, mut metadata) = match kind(&value) {
        Ok(kind) => kind,
        Err(reason) => return Ok(Err(reason)),
    };
    let tokenizer: Tokenizer = text.parse().map_err(|error: tokenizers::Error| fail(error.to_string()))?;
    let mut tokens: Vec<Option<String>> = vec![None; vocab_size];
    for (token, id) in tokenizer.get_vocab(true) {
        match tokens.get_mut(id as usize) {
            Some(known) => *known = Some(token),
            None => return Ok(Err(format!("token {id} is beyond the embedding's {vocab_size} rows"))),
        }
    }
    let unknown = value["model"]["unk_token"].as_str();
    let added = tokenizer.get_added_tokens_decoder();
    let kinds = tokens.iter().enumerate().map(|(id, token)| match (added.get(&(id as u32)), token.as_deref()) {
        (Some(token), _) if token.special => CONTROL,
        (Some(_), _) => USER_DEFINED,
        (_, None) => UNUSED,
        (_, token) if kind == "llama" && token == unknown => UNKNOWN,
        (_, Some(token)) if kind == "llama" && is_byte(token) => BYTE,
        _ => NORMAL,
    });
    let numbers =
        |numbers: Vec<i64>| MetadataValue::Array(numbers.into_iter().map(|n| MetadataValue::Int(n.into())).collect());
    metadata.insert("tokenizer.ggml.token_type".into(), numbers(kinds.collect()));
    let texts =
        |(id, token): (usize, Option<String>)| MetadataValue::String(token.unwrap_or_else(|| format!("[PAD{id}]")));
    let list = tokens.clone().into_iter().enumerate().map(texts).collect();
    metadata.insert("tokenizer.ggml.tokens".into(), MetadataValue::Array(list));
    metadata.insert("tokenizer.ggml.model".into(), MetadataValue::String(kind.into()));
    let merges = merges(&value["model"]["merges"]);
    if kind == "llama" {
        // What is joined first has the best score; pieces that nothing is joined to have none to speak of.
        let mut scores: HashMap<String, usize> = HashMap::new();
        for (rank, [left, right]) in merges.iter().enumerate() {
            scores.entry(format!("{left}{right}")).or_insert(rank);
        }
        let score = |token: &Option<String>| match token.as_ref().and_then(|token| scores.get(token)) {
            Some(rank) => MetadataValue::Float(-(*rank as f64)),
            None => MetadataValue::Float(-1e9),
        };
        metadata.insert("tokenizer.ggml.scores".into(), MetadataValue::Array(tokens.iter().map(score).collect()));
    } else {
        let join = |[left, right]: [String; 2]| MetadataValue::String(format!("{left} {right}"));
        metadata.insert("tokenizer.ggml.merges".into(), MetadataValue::Array(merges.into_iter().map(join).collect()));
    }
    let config = files.beside("tokenizer_config.json").map_or(Ok(Value::Null), |path| json(&path))?;
    let named = |key: &str| {
        config[key].as_str().or(config[key]["content"].as_str()).and_then(|token| tokenizer.token_to_id(token))
    };
    let mut set = |key: &str, token: Option<u32>| {
        if let Some(token) = token {
            metadata.insert(format!("tokenizer.ggml.{key}_token_id"), MetadataValue::Int(token.into()));
        }
    };
    let first = |key: &str| Ok::<_, PipelineError>(files.config.tokens(key)?.first().copied());
    let bos = first("bos_token_id")?.or(named("bos_token"));
    set("bos", bos);
    set("eos", first("eos_token_id")?.or(named("eos_token")));
    set("padding", first("pad_token_id")?.or(named("pad_token")));
    set("unknown", unknown.and_then(|token| tokenizer.token_to_id(token)).or(named("unk_token")));
    // What the tokenizer does is what its configuration means.
    let around = tokenizer.encode_fast("a", true).map_err(|error| fail(error.to_string()))?;
    let adds_bos = bos.is_some() && around.get_ids().first().copied() == bos;
    metadata.insert("tokenizer.ggml.add_bos_token".into(), MetadataValue::Bool(adds_bos));
    let template = match files.beside("chat_template.jinja") {
        Some(path) => Some(read(&path)?),
        None => template_of(&config),
    };
    if let Some(template) = template {
        metadata.insert("tokenizer.chat_template".into(), MetadataValue::String(template));
    }
    Ok(Ok(metadata))
}

/// The kind of a vocabulary and what is said of that kind alone; or why GGUF has none.
fn kind(tokenizer: &Value) -> Result<(&'static str, Metadata), String> {
    let model = &tokenizer["model"];
    let name = model["type"].as_str().unwrap_or("BPE");
    if name != "BPE" {
        return Err(format!("its model is {name}, and only BPE is written"));
    }
    if let Some(prefix) = space_prefix(tokenizer).filter(|_| model["byte_fallback"] == true) {
        let metadata = BTreeMap::from([("tokenizer.ggml.add_space_prefix".to_owned(), MetadataValue::Bool(prefix))]);
        return Ok(("llama", metadata));
    }
    if !matches!(tokenizer["normalizer"]["type"].as_str(), None | Some("NFC")) {
        return Err("its normalizer has no name in GGUF".into());
    }
    let cut = Cut::of_pre_tokenizer(&tokenizer["pre_tokenizer"], model["ignore_merges"] == true);
    let cut = cut.ok_or("how its `pre_tokenizer` cuts texts has no name in GGUF")?;
    Ok(("gpt2", BTreeMap::from([("tokenizer.ggml.pre".to_owned(), MetadataValue::String(cut.into()))])))
}

/// Of a tokenizer that writes spaces as SentencePiece does: whether it puts one before texts.
fn space_prefix(tokenizer: &Value) -> Option<bool> {
    let normalizers = parts(&tokenizer["normalizer"], "normalizers");
    let of = |kind: &str| normalizers.iter().any(|part| part["type"] == kind);
    let metaspace =
        parts(&tokenizer["pre_tokenizer"], "pretokenizers").into_iter().find(|part| part["type"] == "Metaspace");
    match metaspace {
        Some(part) => {
            Some(part["prepend_scheme"].as_str().map_or(part["add_prefix_space"] == true, |scheme| scheme != "never"))
        }
        None if of("Replace") => Some(of("Prepend")),
        None => None,
    }
}

/// The parts of a sequence, or the one that is none.
fn parts<'a>(value: &'a Value, list: &str) -> Vec<&'a Value> {
    match value[list].as_array() {
        Some(all) => all.iter().collect(),
        None if value.is_null() => Vec::new(),
        None => vec![value],
    }
}

/// Merges, which are pairs or, in older files, texts with a space between.
fn merges(list: &Value) -> Vec<[String; 2]> {
    let pair = |merge: &Value| match (merge.as_str(), merge.as_array().map(Vec::as_slice)) {
        (Some(text), _) => text.split_once(' ').map(|(left, right)| [left.to_owned(), right.to_owned()]),
        (None, Some([left, right])) => Some([left.as_str()?.to_owned(), right.as_str()?.to_owned()]),
        _ => None,
    };
    list.as_array().into_iter().flatten().filter_map(pair).collect()
}

/// Whether a token is a byte: `<0x0A>`.
fn is_byte(token: &str) -> bool {
    token
        .strip_prefix("<0x")
        .and_then(|rest| rest.strip_suffix('>'))
        .is_some_and(|hex| u8::from_str_radix(hex, 16).is_ok())
}
