//! Text from prompts: sampling, sequences, their cache, and the pipelines that compute them.

mod cache;
mod context;
mod graph;
mod lengths;
mod log_probabilities;
mod logits_processor;
mod lora_manager;
mod lora_request;
mod model_outputs;
mod next_token;
mod numerics;
mod pipeline;
mod rejection_sampler;
mod rejection_sampling;
mod request;
mod sampler;
mod sampling;
mod scheduler;
mod speculative;
mod token_sampler;

pub use context::{GenerationStatus, TextContext, TextGenerationOutput};
pub use lengths::{max_tokens_to_generate, upper_bounded_default};
pub use log_probabilities::{
    LogProbabilities, RaggedLogits, compute_log_probabilities_ragged, log_probabilities_ragged_graph,
};
pub use logits_processor::{BatchLogitsProcessor, BatchProcessorInputs, LogitsProcessor, ProcessorInputs};
pub use lora_request::{LoraOperation, LoraRequest, LoraResponse, LoraStatus, LoraType};
pub use model_outputs::{BatchInfo, ModelOutputs};
pub use pipeline::{TextGenerationPipeline, Timing};
pub use rejection_sampler::{rejection_sampler, rejection_sampler_with_residuals};
pub use request::TextGenerationRequest;
pub use sampling::SamplingParams;
pub use speculative::{SpeculativeContext, SpeculativeDecodingMetrics, SpeculativeDecodingTextGenerationPipeline};
pub use token_sampler::{SamplingConfig, token_sampler};
