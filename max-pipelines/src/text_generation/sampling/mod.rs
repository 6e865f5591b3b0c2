//! From logits to the next token: parameters, draws on the host and where logits are, what changes logits before, and what they say of
//! tokens.

mod log_probabilities;
mod logits_processor;
mod next_token;
mod params;
mod rejection_sampler;
mod sampler;
mod token_sampler;
mod verify;

pub use log_probabilities::{
    LogProbabilities, RaggedLogits, compute_log_probabilities_ragged, log_probabilities_ragged_graph,
};
pub use logits_processor::{BatchLogitsProcessor, BatchProcessorInputs, LogitsProcessor, ProcessorInputs};
pub use params::SamplingParams;
pub(super) use params::{Random, draw};
pub use rejection_sampler::{rejection_sampler, rejection_sampler_with_residuals};
pub(super) use sampler::{Row, Sampler};
pub use token_sampler::{SamplingConfig, token_sampler};
pub(super) use verify::verify;
