//! The pipelines of this crate as [`Pipeline`]s.

use std::sync::Arc;

use super::{BaseContext, Pipeline, PipelineOutput, Request, RequestId};
use crate::embeddings::EmbeddingsPipeline;
use crate::error::{PipelineError, Result};
use crate::text_generation::{
    GenerationStatus, SpeculativeContext, SpeculativeDecodingTextGenerationPipeline, TextContext, TextGenerationOutput,
    TextGenerationPipeline, TextGenerationRequest,
};

impl Request for TextGenerationRequest {
    fn request_id(&self) -> &RequestId {
        &self.request_id
    }
}

impl PipelineOutput for TextGenerationOutput {
    fn is_done(&self) -> bool {
        self.final_status.is_done()
    }

    fn error(&self) -> Option<&Arc<PipelineError>> {
        self.error.as_ref()
    }
}

impl BaseContext for TextContext {
    fn request_id(&self) -> &RequestId {
        &self.request().request_id
    }

    fn status(&self) -> GenerationStatus {
        TextContext::status(self)
    }
}

impl BaseContext for SpeculativeContext {
    fn request_id(&self) -> &RequestId {
        self.target().request_id()
    }

    fn status(&self) -> GenerationStatus {
        self.target().status()
    }
}

/// Each output has the tokens that are new.
impl Pipeline for TextGenerationPipeline {
    type Request = TextGenerationRequest;
    type Context = TextContext;
    type Output = TextGenerationOutput;

    fn max_batch_size(&self) -> usize {
        TextGenerationPipeline::max_batch_size(self)
    }

    fn new_context(&self, request: &TextGenerationRequest) -> Result<TextContext> {
        TextGenerationPipeline::new_context(self, request)
    }

    fn execute(&self, batch: &mut [&mut TextContext]) -> Result<Vec<(RequestId, TextGenerationOutput)>> {
        self.step(batch)?;
        Ok(batch.iter_mut().filter_map(|context| new_output(context)).collect())
    }

    fn release(&self, context: &mut TextContext) {
        context.cancel();
    }
}

/// One text at a time: several tokens of it are what a step has.
impl Pipeline for SpeculativeDecodingTextGenerationPipeline {
    type Request = TextGenerationRequest;
    type Context = SpeculativeContext;
    type Output = TextGenerationOutput;

    fn max_batch_size(&self) -> usize {
        1
    }

    fn new_context(&self, request: &TextGenerationRequest) -> Result<SpeculativeContext> {
        SpeculativeDecodingTextGenerationPipeline::new_context(self, request)
    }

    fn execute(&self, batch: &mut [&mut SpeculativeContext]) -> Result<Vec<(RequestId, TextGenerationOutput)>> {
        if batch.len() > 1 {
            let (argument, value) = ("batch", batch.len().to_string());
            return Err(PipelineError::Argument { argument, value, expected: "one text with drafts at a time" });
        }
        let mut outputs = Vec::new();
        for context in batch {
            self.step(context)?;
            outputs.extend(new_output(context.target_mut()));
        }
        Ok(outputs)
    }

    fn release(&self, context: &mut SpeculativeContext) {
        context.target_mut().cancel();
    }
}

/// What is new of a text, if anything is.
fn new_output(context: &mut TextContext) -> Option<(RequestId, TextGenerationOutput)> {
    let output = context.to_generation_output()?;
    Some((output.request_id.clone(), output))
}

/// A text of which a vector is wanted.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct EmbeddingsGenerationRequest {
    /// Its name.
    pub request_id: RequestId,
    /// The tokens of the text.
    pub tokens: Vec<u32>,
}

impl Request for EmbeddingsGenerationRequest {
    fn request_id(&self) -> &RequestId {
        &self.request_id
    }
}

/// A text whose vector is computed.
#[derive(Clone, Debug)]
pub struct EmbeddingsContext {
    request: EmbeddingsGenerationRequest,
    status: GenerationStatus,
}

impl BaseContext for EmbeddingsContext {
    fn request_id(&self) -> &RequestId {
        &self.request.request_id
    }

    fn status(&self) -> GenerationStatus {
        self.status
    }
}

/// The vector of a text.
#[derive(Clone, Debug)]
pub struct EmbeddingsGenerationOutput {
    /// The vector, of length 1; empty where there is an error.
    pub embeddings: Vec<f32>,
    /// Why there is none.
    pub error: Option<Arc<PipelineError>>,
}

impl PipelineOutput for EmbeddingsGenerationOutput {
    /// A vector comes at once.
    fn is_done(&self) -> bool {
        true
    }

    fn error(&self) -> Option<&Arc<PipelineError>> {
        self.error.as_ref()
    }
}

impl Pipeline for EmbeddingsPipeline {
    type Request = EmbeddingsGenerationRequest;
    type Context = EmbeddingsContext;
    type Output = EmbeddingsGenerationOutput;

    fn max_batch_size(&self) -> usize {
        1
    }

    fn new_context(&self, request: &EmbeddingsGenerationRequest) -> Result<EmbeddingsContext> {
        self.check(&request.tokens)?;
        Ok(EmbeddingsContext { request: request.clone(), status: GenerationStatus::Active })
    }

    fn execute(&self, batch: &mut [&mut EmbeddingsContext]) -> Result<Vec<(RequestId, EmbeddingsGenerationOutput)>> {
        if batch.len() > 1 {
            let (argument, value) = ("batch", batch.len().to_string());
            return Err(PipelineError::Argument { argument, value, expected: "one text at a time" });
        }
        let active = batch.iter_mut().filter(|context| !context.is_done());
        // An error is its text's: others may have vectors.
        let outputs = active.map(|context| {
            let (embeddings, error) = match self.embed_tokens(&context.request.tokens) {
                Ok(vector) => (vector, None),
                Err(error) => (Vec::new(), Some(Arc::new(error))),
            };
            let failed = error.is_some();
            context.status = if failed { GenerationStatus::Failed } else { GenerationStatus::EndOfSequence };
            (context.request.request_id.clone(), EmbeddingsGenerationOutput { embeddings, error })
        });
        Ok(outputs.collect())
    }

    fn release(&self, context: &mut EmbeddingsContext) {
        if !context.is_done() {
            context.status = GenerationStatus::Cancelled;
        }
    }
}
