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
mod interfaces;
mod kv_cache_config;
mod llm;
mod model;
mod progress;
mod registry;
mod structured_output;
mod task_pipeline;
mod text_generation;
mod tokenizer;

pub use config::{PipelineConfig, PipelineConfigBuilder};
pub use embeddings::EmbeddingsPipeline;
pub use error::{PipelineError, Result};
pub use interfaces::{
    BaseContext, EmbeddingsContext, EmbeddingsGenerationOutput, EmbeddingsGenerationRequest, MaxPullQueue,
    MaxPushQueue, Pipeline, PipelineOutput, PipelineScheduler, Request, RequestId, Scheduler, SchedulerResult,
    drain_queue, get_blocking,
};
pub use kv_cache_config::KvCacheConfig;
pub use llm::LLM;
pub use model::{
    GgufType, HuggingFaceConfig, HuggingFaceRepo, ModelFiles, ModelInfo, WeightPart, generate_local_model_path, info,
    quantize, try_to_load_from_cache,
};
#[cfg(feature = "hf_hub")]
pub use model::{download_weight_files, validate_hf_repo_access};
pub use progress::{DownloadProgress, LoadProgress};
pub use registry::{EmbeddingModel, PipelineModel, PipelineRegistry, PipelineTask, SupportedArchitecture, TextModel};
pub use structured_output::TextGenerationResponseFormat;
pub use task_pipeline::{TaskPipeline, get_pipeline_for_task};
pub use text_generation::{
    BatchInfo, BatchLogitsProcessor, BatchProcessorInputs, GenerationStatus, LogProbabilities, LogitsProcessor,
    LoraOperation, LoraRequest, LoraResponse, LoraStatus, LoraType, ModelOutputs, ProcessorInputs, RaggedLogits,
    SamplingConfig, SamplingParams, SpeculativeContext, SpeculativeDecodingMetrics,
    SpeculativeDecodingTextGenerationPipeline, TextContext, TextGenerationOutput, TextGenerationPipeline,
    TextGenerationRequest, Timing, compute_log_probabilities_ragged, log_probabilities_ragged_graph,
    max_tokens_to_generate, rejection_sampler, rejection_sampler_with_residuals, token_sampler, upper_bounded_default,
};
pub use tokenizer::{
    ChatMessage, IdentityPipelineTokenizer, PipelineTokenizer, TextGenerationRequestFunction,
    TextGenerationRequestTool, TextTokenizer,
};
