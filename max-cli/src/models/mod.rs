//! `max generate`, `max logits`, `max embed`, `max quantize` and `max info --model`: models in folders of weights.

mod embed;
mod generate;
mod info;
mod logits;
mod progress;
mod quantize;
mod report;

use std::io::Read as _;
use std::path::{Path, PathBuf};

use clap::Args as ClapArgs;
use max::dtype::DType;
use max::pipelines::{PipelineConfig, PipelineConfigBuilder, TextTokenizer};

pub use embed::{EmbedArgs, embed};
pub use generate::{GenerateArgs, generate};
pub use info::info;
pub use logits::{LogitsArgs, logits};
pub use quantize::{QuantizeArgs, quantize};

use crate::error::CliError;

/// The model of a command, and how it is loaded.
#[derive(ClapArgs)]
pub struct ModelArgs {
    /// A folder with config.json, safetensors and tokenizer.json, a GGUF file, or `org/name` in Hugging Face's cache
    #[arg(long, alias = "model-path", value_name = "PATH")]
    model: Option<PathBuf>,
    /// Of a model in that cache: the branch, tag or commit
    #[arg(long, value_name = "NAME")]
    revision: Option<String>,
    /// Download it to that cache if it is not there: nothing is fetched without this flag, which takes the feature `hf_hub`
    #[arg(long)]
    download: bool,
    /// A file of settings, TOML or JSON; variables (`MAX_SERVE_MAX_LENGTH`) go before it, and flags before these
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Compute in this dtype instead of the weights' own: float32, float16 or bfloat16
    #[arg(long, value_name = "DTYPE")]
    dtype: Option<DType>,
    /// Hold keys and values in this dtype instead of the activations' own: float32, float16 or bfloat16
    #[arg(long, value_name = "DTYPE")]
    cache_dtype: Option<DType>,
    /// The longest sequence, prompt included
    #[arg(long, value_name = "TOKENS")]
    max_length: Option<usize>,
    /// An adapter of low rank (LoRA) to merge into the weights: a folder as PEFT writes it
    #[arg(long, value_name = "PATH")]
    lora: Option<PathBuf>,
    /// Adapters that `--lora-name` chooses from, which are not merged
    #[arg(long, value_name = "PATH", value_delimiter = ',')]
    lora_paths: Vec<PathBuf>,
    /// Check every layer's output, and name the first that has infinities or NaN: a debug mode
    #[arg(long)]
    check_numerics: bool,
    /// How many threads compute
    #[arg(long, alias = "num-threads", value_name = "N")]
    threads: Option<usize>,
}

impl ModelArgs {
    /// The settings of the file, the environment, and these.
    fn builder(&self) -> Result<PipelineConfigBuilder, CliError> {
        let mut builder = PipelineConfig::builder().environment();
        if let Some(path) = &self.config {
            builder = builder.file(path)?;
        }
        Ok(builder
            .flag_if("model_path", self.model.as_ref().map(|path| path.to_string_lossy()))
            .flag_if("revision", self.revision.clone())
            .flag_if("download", self.download.then_some(true))
            .flag_if("dtype", self.dtype.map(|dtype| dtype.to_string()))
            .flag_if("cache_dtype", self.cache_dtype.map(|dtype| dtype.to_string()))
            .flag_if("max_length", self.max_length)
            .flag_if("check_numerics", self.check_numerics.then_some(true))
            .flag_if("num_threads", self.threads))
    }

    /// What a builder has, with the path of the model as it was given: a path may be no text.
    fn build(&self, builder: &PipelineConfigBuilder) -> Result<PipelineConfig, CliError> {
        let mut config = builder.build()?;
        config.model_path = self.model.clone().unwrap_or(config.model_path);
        config.lora_path = self.lora.clone().or(config.lora_path);
        if !self.lora_paths.is_empty() {
            config.lora_paths = self.lora_paths.clone();
        }
        config.load_progress = progress::bar();
        config.download_progress = progress::download_bar();
        Ok(config)
    }

    fn configuration(&self) -> Result<PipelineConfig, CliError> {
        self.build(&self.builder()?)
    }
}

/// What a model is given: texts, a file with one, or tokens.
#[derive(ClapArgs)]
#[group(multiple = true)]
pub struct PromptArgs {
    /// A text; may be repeated
    #[arg(long, value_name = "TEXT")]
    prompt: Vec<String>,
    /// A file with a text, `-` for standard input
    #[arg(long, value_name = "FILE")]
    prompt_file: Option<PathBuf>,
    /// Tokens, `1,2,3`
    #[arg(long, value_name = "IDS", value_delimiter = ',')]
    ids: Vec<u32>,
}

impl PromptArgs {
    /// These, unless there are none.
    fn required(&self) -> Result<&PromptArgs, CliError> {
        let none = self.prompt.is_empty() && self.prompt_file.is_none() && self.ids.is_empty();
        if none { Err(CliError::NoPrompt) } else { Ok(self) }
    }

    /// The texts.
    fn texts(&self) -> Result<Vec<String>, CliError> {
        let file = self.prompt_file.as_deref().map(read).transpose()?;
        Ok(self.prompt.iter().cloned().chain(file).collect())
    }

    /// The tokens of all texts, and those that are given.
    fn tokens<'a>(
        &self,
        tokenizer: impl Fn() -> max::pipelines::Result<&'a TextTokenizer>,
    ) -> Result<Vec<Vec<u32>>, CliError> {
        let texts = self.texts()?.into_iter().map(|text| Ok(tokenizer()?.encode(&text, true)?));
        let given = (!self.ids.is_empty()).then(|| Ok(self.ids.clone()));
        texts.chain(given).collect()
    }
}

fn read(path: &Path) -> Result<String, CliError> {
    let mut text = String::new();
    let read = match path.to_str() {
        Some("-") => std::io::stdin().read_to_string(&mut text).map(drop),
        _ => std::fs::File::open(path).and_then(|mut file| file.read_to_string(&mut text)).map(drop),
    };
    read.map_err(|source| CliError::File { path: path.into(), source })?;
    Ok(text)
}
