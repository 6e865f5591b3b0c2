//! [`PipelineError`]: what kept a model from being loaded or run, with the file and what to do.

use std::path::PathBuf;

use max::nn::kv_cache::KvCacheError;
use max_core::driver::DriverError;
use max_core::engine::EngineError;
use max_core::graph::GraphError;
use max_core::graph::weights::WeightsError;

use crate::interfaces::RequestId;

/// A result of this crate.
pub type Result<T, E = PipelineError> = std::result::Result<T, E>;

/// Why a model could not be loaded, or a request not be answered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PipelineError {
    /// There is no model there.
    #[error("{}: {reason}; a model is a folder with config.json, safetensors and tokenizer.json, or a GGUF file", path.display())]
    NoModel {
        /// What was asked for.
        path: PathBuf,
        /// What is missing.
        reason: String,
    },
    /// A model of Hugging Face's hub could not be downloaded.
    #[error("the download of `{repository}`, revision `{revision}`: {reason}")]
    Download {
        /// `org/name`.
        repository: String,
        /// The branch, tag or commit.
        revision: String,
        /// What is missing, why, and what to do.
        reason: String,
    },
    /// A file could not be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file does not hold what it should.
    #[error("{}: {reason}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong, and what is expected.
        reason: String,
    },
    /// No architecture of that name is registered.
    #[error(
        "{}: the architecture `{name}` is not known; known are {}. `PipelineRegistry::register` adds one of your own: see the \
         example `own_architecture`", path.display(), known.join(", ")
    )]
    UnknownArchitecture {
        /// The file that names it.
        path: PathBuf,
        /// Its name.
        name: String,
        /// Those that are registered.
        known: Vec<String>,
    },
    /// The model has another task.
    #[error("{}: `{name}` is a model for {has}, not for {wanted}", path.display())]
    Task {
        /// The model.
        path: PathBuf,
        /// Its architecture.
        name: String,
        /// What it is for.
        has: crate::PipelineTask,
        /// What was asked for.
        wanted: crate::PipelineTask,
    },
    /// An architecture of that name is registered already.
    #[error("the architecture `{0}` is registered already; `register_override` replaces it")]
    Registered(String),
    /// The files do not have the weights that the architecture has.
    #[error("{}: the weights do not fit the architecture `{architecture}`: {source}", path.display())]
    Weights {
        /// The model.
        path: PathBuf,
        /// The architecture.
        architecture: String,
        /// All that is missing, unexpected or of another shape.
        source: GraphError,
    },
    /// The prompt does not fit the model's context.
    #[error(
        "the prompt has {prompt} tokens, and the model's context is {max_length}, which has to hold at least one new token as \
         well: shorten the prompt, or raise `max_length` if the model takes more"
    )]
    PromptTooLong {
        /// The prompt's tokens.
        prompt: usize,
        /// The longest sequence.
        max_length: usize,
    },
    /// The cache is smaller than a sequence of that length.
    #[error(
        "a sequence of {length} tokens does not fit the cache, which has pages for {capacity}: shorten the prompt, ask for fewer new \
         tokens, or raise `cache_memory`"
    )]
    CacheTooSmall {
        /// The longest that the sequence may become.
        length: usize,
        /// The tokens that the cache holds.
        capacity: usize,
    },
    /// Sequences that are not in the batch have the pages that it needs.
    #[error(
        "the cache is full: of its {total} pages, sequences outside of this batch have all but {available}; end some of them"
    )]
    CacheFull {
        /// The pages of the cache.
        total: usize,
        /// Those that nobody has.
        available: usize,
    },
    /// A token that the vocabulary does not have.
    #[error("token {token} is not in the vocabulary, which has {vocab_size}")]
    Token {
        /// The token.
        token: u32,
        /// How many there are.
        vocab_size: usize,
    },
    /// An argument that nothing can be done with.
    #[error("{argument}: {value} is not {expected}")]
    Argument {
        /// Its name.
        argument: &'static str,
        /// Its value.
        value: String,
        /// What it may be.
        expected: &'static str,
    },
    /// Nobody says which model.
    #[error(
        "no model is given: name one by `--model`, by the variable MAX_SERVE_MODEL_PATH, or as `model_path` in a file of settings"
    )]
    WhichModel,
    /// A setting of a file, a variable or a flag is none.
    #[error("{origin}: {value} is not {expected}")]
    Setting {
        /// Who says so.
        origin: String,
        /// What it says.
        value: String,
        /// What it may be.
        expected: &'static str,
    },
    /// An adapter could not be loaded, or is not there.
    #[error("the adapter `{name}`: {reason}")]
    Lora {
        /// Its name.
        name: String,
        /// What is wrong, and what to do.
        reason: String,
    },
    /// A tokenizer is needed, and the model has none.
    #[error("{}: there is no tokenizer.json, so there is no text: give tokens (`--ids`)", path.display())]
    NoTokenizer {
        /// The model.
        path: PathBuf,
    },
    /// Text could not be tokenized, or tokens not be decoded.
    #[error("{}: {reason}", path.display())]
    Tokenizer {
        /// Where the tokenizer is from.
        path: PathBuf,
        /// What it says.
        reason: String,
    },
    /// A chat template failed.
    #[error("the chat template of {}: {reason}", path.display())]
    ChatTemplate {
        /// Where it is from.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The model computed no numbers.
    #[error(
        "the logits behind token {position} are not numbers: the weights, or the dtype, do not fit the model. `check_numerics` names the \
         layer"
    )]
    NotNumbers {
        /// The position.
        position: usize,
    },
    /// A layer computed what is not finite, of finite numbers: with [`check_numerics`](crate::PipelineConfig::check_numerics).
    #[error(
        "the output of layer `{layer}` has infinities or NaN for token {position}, and no layer that ran before it has: its weights, or the \
         dtype, do not fit the model"
    )]
    NotFinite {
        /// The layer's name, that of its weights.
        layer: String,
        /// The position.
        position: usize,
    },
    /// What processors, masks and penalties leave is nothing.
    #[error(
        "no token is left behind token {position}: logits processors, `min_new_tokens` or the form of the text rule out all of them"
    )]
    NoToken {
        /// The position.
        position: usize,
    },
    /// A logits processor made something else than a logit.
    #[error("a logits processor made the logit of token {token} NaN or infinite, behind token {position}")]
    Processor {
        /// The token.
        token: u32,
        /// The position.
        position: usize,
    },
    /// A text cannot have the form that is asked for.
    #[error("the {kind}: {reason}")]
    ResponseFormat {
        /// `JSON schema`, `grammar` or `regular expression`.
        kind: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// A file of weights could not be read.
    #[error(transparent)]
    WeightsFile(#[from] WeightsError),
    /// The model's graph could not be built.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// The model could not be compiled or executed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A sequence of the cache could not be found.
    #[error(transparent)]
    KvCache(#[from] KvCacheError),
    /// Nobody takes results any more.
    #[error("nobody takes the result of request `{request}`: its queue is closed, and all requests were ended")]
    QueueClosed {
        /// The request.
        request: RequestId,
    },
    /// The memory of the cache could not be made, or its pages not be moved.
    #[error("the cache of keys and values: {0}")]
    KvCacheMemory(#[from] max_core::Error),
    /// There was no memory for a tensor.
    #[error(transparent)]
    Driver(#[from] DriverError),
}
