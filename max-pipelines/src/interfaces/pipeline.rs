//! [`Pipeline`]: what all pipelines do, whatever comes out of them.

use std::sync::Arc;

use super::{BaseContext, Request, RequestId};
use crate::error::{PipelineError, Result};

/// What comes out of a pipeline.
pub trait PipelineOutput {
    /// Whether nothing comes behind it.
    fn is_done(&self) -> bool;

    /// Why its request failed, if it did.
    fn error(&self) -> Option<&Arc<PipelineError>> {
        None
    }
}

/// A model that requests are computed by, some of them together: text ([`TextGenerationPipeline`](crate::TextGenerationPipeline), or
/// [with a draft](crate::SpeculativeDecodingTextGenerationPipeline)), vectors ([`EmbeddingsPipeline`](crate::EmbeddingsPipeline)), or one of
/// your own.
pub trait Pipeline {
    /// What is asked for.
    type Request: Request;
    /// What is kept of a request between executions.
    type Context: BaseContext;
    /// What comes out.
    type Output: PipelineOutput;

    /// The most requests that are computed together.
    fn max_batch_size(&self) -> usize;

    /// What is kept of a request, of which nothing is computed yet.
    ///
    /// # Errors
    /// When the request is not possible.
    fn new_context(&self, request: &Self::Request) -> Result<Self::Context>;

    /// Computes the next part of each request that is not done, and gives what is new. A request that fails alone says so in its status.
    ///
    /// # Errors
    /// When there are more than [`max_batch_size`](Self::max_batch_size), or the model fails; requests are as they were then.
    fn execute(&self, batch: &mut [&mut Self::Context]) -> Result<Vec<(RequestId, Self::Output)>>;

    /// Ends a request: what it has is given back. One that is done has nothing.
    fn release(&self, context: &mut Self::Context);
}
