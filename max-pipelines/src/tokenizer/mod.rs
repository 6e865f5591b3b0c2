//! [`TextTokenizer`]: text to tokens and back.

mod chat_template;
mod gguf;
mod gguf_write;
mod growth;
mod pipeline_tokenizer;
mod sentencepiece;
mod stream;

use std::path::{Path, PathBuf};

use max_core::graph::weights::WeightsFormat;
use serde_json::Value;
use tokenizers::Tokenizer;

use chat_template::ChatTemplate;
pub use chat_template::{ChatMessage, TextGenerationRequestFunction, TextGenerationRequestTool};
pub(crate) use gguf_write::gguf_vocabulary;
pub use pipeline_tokenizer::{IdentityPipelineTokenizer, PipelineTokenizer};
pub(crate) use stream::TextStream;

use crate::error::{PipelineError, Result};
use crate::model::ModelFiles;
use crate::structured_output::{Grammars, Matcher, TextGenerationResponseFormat};

/// The most bytes of `tokenizer.json` that are read: those of the largest vocabularies have a tenth of it.
const LARGEST: u64 = 256 << 20;

/// A model's tokenizer, and its chat template if it has one.
pub struct TextTokenizer {
    path: PathBuf,
    tokenizer: Tokenizer,
    template: Option<ChatTemplate>,
    eos: Option<u32>,
    grammars: Grammars,
}

impl TextTokenizer {
    /// The tokenizer of a model: `tokenizer.json`, with `tokenizer_config.json` and `chat_template.jinja` if they are there, or the
    /// vocabulary within a GGUF file. `None` for a model without one.
    ///
    /// # Errors
    /// When a file cannot be read, is damaged, or larger than any tokenizer; when it has more tokens than `vocab_size`, those of
    /// the model's embedding.
    pub fn find(files: &ModelFiles, chat_template: Option<&Path>, vocab_size: usize) -> Result<Option<TextTokenizer>> {
        let (path, text, config) = match files.beside("tokenizer.json") {
            Some(path) => {
                let config = files.beside("tokenizer_config.json").map_or(Ok(Value::Null), |path| json(&path))?;
                let text = read(&path)?;
                (path, text, config)
            }
            None if files.format == WeightsFormat::Gguf => {
                match gguf::tokenizer(&files.path, files.open()?.metadata())? {
                    Some((tokenizer, config)) => (files.path.clone(), tokenizer.to_string(), config),
                    None => return Ok(None),
                }
            }
            None => return Ok(None),
        };
        let fail =
            |error: tokenizers::Error| PipelineError::Tokenizer { path: path.clone(), reason: error.to_string() };
        if let Some(reason) = growth::refusal(&text) {
            return Err(PipelineError::File { path, reason });
        }
        let mut tokenizer: Tokenizer = text.parse().map_err(fail)?;
        // A file may ask for texts of any length.
        tokenizer.with_padding(None);
        let largest = tokenizer.get_vocab(true).into_values().max().map_or(0, |token| token as usize + 1);
        if largest > vocab_size {
            return Err(PipelineError::File {
                path,
                reason: format!(
                    "has tokens up to {}, and the model's embedding has {vocab_size} rows: this tokenizer is another model's",
                    largest - 1
                ),
            });
        }
        let template = match (chat_template, files.beside("chat_template.jinja")) {
            (Some(path), _) => Some((path.to_path_buf(), read(path)?)),
            (None, Some(path)) => Some((path.clone(), read(&path)?)),
            (None, None) => template_of(&config).map(|text| (path.clone(), text)),
        };
        let template = template.map(|(path, text)| ChatTemplate::new(path, text, &config));
        let eos = files.eos_token_ids()?.first().copied();
        Ok(Some(TextTokenizer { path, tokenizer, template, eos, grammars: Grammars::new() }))
    }

    /// The token that ends a text, the first of several; `None` for a model that does not say one.
    pub fn eos(&self) -> Option<u32> {
        self.eos
    }

    /// The tokenizer as the text of a `tokenizer.json`, also where a GGUF file has it.
    ///
    /// # Errors
    /// When the tokenizer cannot be written.
    pub fn to_json(&self) -> Result<String> {
        self.tokenizer.to_string(false).map_err(|error| self.error(error))
    }

    /// The tokens of a text; with those that the model wants before and behind a prompt, if `add_special_tokens`.
    ///
    /// # Errors
    /// When the tokenizer refuses the text.
    pub fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>> {
        let encoding = self.tokenizer.encode_fast(text, add_special_tokens).map_err(|error| self.error(error))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The text of tokens, without special ones.
    ///
    /// # Errors
    /// When the tokenizer refuses the tokens.
    pub fn decode(&self, tokens: &[u32]) -> Result<String> {
        self.tokenizer.decode(tokens, true).map_err(|error| self.error(error))
    }

    /// A conversation as the prompt that the model was trained on; the answer comes next.
    ///
    /// # Errors
    /// When the model has no chat template, or the template fails, or takes too long.
    pub fn apply_chat_template(&self, messages: &[ChatMessage]) -> Result<String> {
        self.apply_chat_template_with_tools(messages, &[])
    }

    /// As [`apply_chat_template`](Self::apply_chat_template), with tools that the model may use, if its template tells of any.
    ///
    /// # Errors
    /// As [`apply_chat_template`](Self::apply_chat_template).
    pub fn apply_chat_template_with_tools(
        &self,
        messages: &[ChatMessage],
        tools: &[TextGenerationRequestTool],
    ) -> Result<String> {
        match &self.template {
            Some(template) => template.apply(messages, tools),
            None => Err(PipelineError::ChatTemplate {
                path: self.path.clone(),
                reason: "there is none: give one (`--chat-template`), or a prompt without roles".into(),
            }),
        }
    }

    /// A text of a form, in these tokens.
    pub(crate) fn matcher(
        &self,
        format: &TextGenerationResponseFormat,
        eos_token_ids: &[u32],
        vocab_size: usize,
    ) -> Result<Matcher> {
        self.grammars.matcher(format, &self.tokenizer, eos_token_ids, vocab_size)
    }

    fn error(&self, error: tokenizers::Error) -> PipelineError {
        PipelineError::Tokenizer { path: self.path.clone(), reason: error.to_string() }
    }
}

/// The text of a file that is not too large.
fn read(path: &Path) -> Result<String> {
    let io_error = |source| PipelineError::Io { path: path.into(), source };
    let size = std::fs::metadata(path).map_err(io_error)?.len();
    if size > LARGEST {
        let reason = format!("has {size} bytes, more than the {LARGEST} that are read");
        return Err(PipelineError::File { path: path.into(), reason });
    }
    std::fs::read_to_string(path).map_err(io_error)
}

fn json(path: &Path) -> Result<Value> {
    let fail = |error: serde_json::Error| PipelineError::File { path: path.into(), reason: error.to_string() };
    serde_json::from_str(&read(path)?).map_err(fail)
}

/// The template of older models, which have it among other settings: one, or several with names.
fn template_of(config: &Value) -> Option<String> {
    let template = config.get("chat_template")?;
    let named = |all: &Value| {
        let default = all.as_array()?.iter().find(|one| one.get("name").and_then(Value::as_str) == Some("default"))?;
        default.get("template").and_then(Value::as_str).map(str::to_owned)
    };
    template.as_str().map(str::to_owned).or_else(|| named(template))
}
