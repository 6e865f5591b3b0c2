//! Language models from folders of weights: [`LLM`] from a path to text.
//!
//! - [`PipelineConfig`]: which model, how long, how many sequences at once; from a file, the environment and flags.
//! - [`LLM`]: prompts in, text out; [`TextGenerationPipeline`] with the same a token at a time.
//! - [`SamplingParams`]: how tokens are chosen, and when a text ends.
//! - [`SpeculativeDecodingTextGenerationPipeline`]: the same with a small model that drafts.
//! - [`EmbeddingsPipeline`]: a vector for each text.
//! - [`PipelineRegistry`]: the architectures by the names that `config.json` has, and those of your own.
//! - [`TextTokenizer`]: text to tokens and back, and chat templates.
//!
//! A model is a folder with `config.json`, safetensors and `tokenizer.json`, as a hub has it, one that Hugging Face's tools have put in
//! their cache, or a GGUF file. Nothing is fetched unasked: only with the feature `hf_hub` and
//! [`PipelineConfig::download`] is a model downloaded that the cache does not have.

pub mod architectures;
mod config;
mod embeddings;
mod error;
mod kv_cache_config;
mod llm;
mod model;
mod progress;
mod registry;
mod structured_output;
mod text_generation;
mod tokenizer;

pub use config::{PipelineConfig, PipelineConfigBuilder};
pub use embeddings::EmbeddingsPipeline;
pub use error::{PipelineError, Result};
pub use kv_cache_config::KvCacheConfig;
pub use llm::LLM;
pub use model::{GgufType, HuggingFaceConfig, ModelFiles, ModelInfo, WeightPart, info, quantize};
pub use progress::{DownloadProgress, LoadProgress};
pub use registry::{EmbeddingModel, PipelineModel, PipelineRegistry, PipelineTask, SupportedArchitecture, TextModel};
pub use structured_output::TextGenerationResponseFormat;
pub use text_generation::{
    GenerationStatus, LogProbabilities, LogitsProcessor, LoraOperation, LoraRequest, LoraResponse, LoraStatus,
    LoraType, ProcessorInputs, RaggedLogits, SamplingConfig, SamplingParams, SpeculativeContext,
    SpeculativeDecodingMetrics, SpeculativeDecodingTextGenerationPipeline, TextContext, TextGenerationOutput,
    TextGenerationPipeline, TextGenerationRequest, Timing, compute_log_probabilities_ragged,
    log_probabilities_ragged_graph, rejection_sampler, rejection_sampler_with_residuals, token_sampler,
};
pub use tokenizer::{ChatMessage, TextGenerationRequestFunction, TextGenerationRequestTool, TextTokenizer};
