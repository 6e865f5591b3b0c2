//! Text from prompts: sampling, sequences with their caches, and the pipeline that computes them together.

mod context;
mod graph;
mod pipeline;
mod sampling;

pub use context::{GenerationStatus, TextContext, TextGenerationOutput};
pub use pipeline::{TextGenerationPipeline, Timing};
pub use sampling::SamplingParams;
