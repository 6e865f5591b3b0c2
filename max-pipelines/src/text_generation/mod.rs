//! Text from prompts: sampling, sequences, their cache, and the pipelines that compute them.

mod cache;
mod context;
mod graph;
mod lengths;
mod lora;
mod model_outputs;
mod numerics;
mod pipeline;
mod request;
mod sampling;
mod scheduler;
mod speculative;

pub use context::{GenerationStatus, TextContext, TextGenerationOutput};
pub use lengths::{max_tokens_to_generate, upper_bounded_default};
pub use lora::lora_request::{LoraOperation, LoraRequest, LoraResponse, LoraStatus, LoraType};
pub use model_outputs::{BatchInfo, ModelOutputs};
pub use pipeline::{TextGenerationPipeline, Timing};
pub use request::TextGenerationRequest;
pub use sampling::{
    BatchLogitsProcessor, BatchProcessorInputs, LogProbabilities, LogitsProcessor, ProcessorInputs, RaggedLogits,
    SamplingConfig, SamplingParams, compute_log_probabilities_ragged, log_probabilities_ragged_graph,
    rejection_sampler, rejection_sampler_with_residuals, token_sampler,
};
pub use speculative::{SpeculativeContext, SpeculativeDecodingMetrics, SpeculativeDecodingTextGenerationPipeline};
