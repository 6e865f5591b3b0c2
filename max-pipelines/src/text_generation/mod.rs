//! Text from prompts: sampling, sequences, their cache, and the pipeline that computes them together.

mod cache;
mod context;
mod graph;
mod pipeline;
mod sampling;
mod scheduler;

pub use context::{GenerationStatus, TextContext, TextGenerationOutput};
pub use pipeline::{TextGenerationPipeline, Timing};
pub use sampling::SamplingParams;
