//! [`TextContext`]: a sequence that is being generated.

use std::fmt;
use std::sync::Arc;

use super::cache::CacheLease;
use super::lora::lora_manager::LoraSlot;
use super::sampling::Random;
use super::{LogProbabilities, TextGenerationRequest};
use crate::error::PipelineError;
use crate::interfaces::RequestId;
use crate::structured_output::Matcher;
use crate::tokenizer::TextStream;

/// Whether a text is finished, and why.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GenerationStatus {
    /// It is not.
    Active,
    /// Nobody wants it any more.
    Cancelled,
    /// The model ended it, or a stop sequence or token did.
    EndOfSequence,
    /// It has as many tokens as were asked for, or as the context holds.
    MaximumLength,
    /// It alone could not go on: [`TextContext::error`] says why.
    Failed,
}

impl GenerationStatus {
    /// Whether nothing is added any more.
    pub fn is_done(self) -> bool {
        self != GenerationStatus::Active
    }

    /// `end_of_sequence`
    pub fn name(self) -> &'static str {
        match self {
            GenerationStatus::Active => "active",
            GenerationStatus::Cancelled => "cancelled",
            GenerationStatus::EndOfSequence => "end_of_sequence",
            GenerationStatus::MaximumLength => "maximum_length",
            GenerationStatus::Failed => "failed",
        }
    }
}

impl fmt::Display for GenerationStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What was generated.
#[derive(Clone, Debug)]
pub struct TextGenerationOutput {
    /// The name of the request.
    pub request_id: RequestId,
    /// The new tokens, with the one that ended the text.
    pub tokens: Vec<u32>,
    /// Their text, up to a stop sequence; empty without a tokenizer.
    pub text: String,
    /// The tokens of the prompt.
    pub prompt_tokens: usize,
    /// Why it ended.
    pub final_status: GenerationStatus,
    /// The log probabilities of each new token, if the request asked for them.
    pub log_probabilities: Option<Vec<LogProbabilities>>,
    /// Why it [failed](GenerationStatus::Failed).
    pub error: Option<Arc<PipelineError>>,
}

impl TextGenerationOutput {
    /// Whether nothing is added any more.
    pub fn is_done(&self) -> bool {
        self.final_status.is_done()
    }
}

/// A sequence that is being generated: its tokens, and the pages of the pipeline's cache that have their keys and values. They are
/// given back when it is done, or dropped.
pub struct TextContext {
    /// The prompt, and what was generated.
    pub(super) tokens: Vec<u32>,
    pub(super) prompt_length: usize,
    /// The tokens whose keys and values are in the cache.
    pub(super) processed: usize,
    /// Its pages of the cache; none when it is done.
    pub(super) lease: Option<CacheLease>,
    pub(super) request: TextGenerationRequest,
    pub(super) random: Random,
    pub(super) status: GenerationStatus,
    pub(super) stream: TextStream,
    /// The length at which it ends.
    pub(super) longest: usize,
    /// Of each new token, if they are asked for.
    pub(super) log_probabilities: Vec<LogProbabilities>,
    /// Of the prompt's tokens, until there is a new one.
    pub(super) echo: LogProbabilities,
    /// The adapter that it has.
    pub(super) lora: Option<LoraSlot>,
    /// What the text may go on with, if it must have a form.
    pub(super) matcher: Option<Matcher>,
    pub(super) error: Option<Arc<PipelineError>>,
    /// How many new tokens were given out, and whether it was said that it is done.
    pub(super) given: (usize, bool),
}

impl TextContext {
    /// All tokens, the prompt's included.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// The new tokens.
    pub fn generated(&self) -> &[u32] {
        &self.tokens[self.prompt_length..]
    }

    /// Whether it is finished, and why.
    pub fn status(&self) -> GenerationStatus {
        self.status
    }

    /// Why it failed, if it did.
    pub fn error(&self) -> Option<&PipelineError> {
        self.error.as_deref()
    }

    /// The log probabilities of each new token; empty unless the request asked for them.
    pub fn log_probabilities(&self) -> &[LogProbabilities] {
        &self.log_probabilities
    }

    /// What was asked for.
    pub fn request(&self) -> &TextGenerationRequest {
        &self.request
    }

    /// Ends it: nothing is added any more.
    pub fn cancel(&mut self) {
        if !self.status.is_done() {
            self.end(GenerationStatus::Cancelled);
        }
    }

    /// The text that is new since this was last asked: whole characters, and nothing that may be the beginning of a stop sequence.
    pub fn take_text(&mut self) -> &str {
        self.stream.take(&self.request.sampling_params.stop)
    }

    /// What is new since this was last asked: tokens, their log probabilities, and text as [`take_text`](Self::take_text) gives it. `None`
    /// where nothing is, and it is not done.
    pub fn to_generation_output(&mut self) -> Option<TextGenerationOutput> {
        let (given, ended) = self.given;
        if given == self.generated().len() && ended == self.status.is_done() {
            return None;
        }
        let text = self.take_text().to_owned();
        let mut output = TextGenerationOutput { text, ..self.output() };
        output.tokens.drain(..given);
        if let Some(log_probabilities) = &mut output.log_probabilities {
            log_probabilities.drain(..given.min(log_probabilities.len()));
        }
        self.given = (self.generated().len(), self.status.is_done());
        Some(output)
    }

    /// What was generated so far.
    pub fn output(&self) -> TextGenerationOutput {
        TextGenerationOutput {
            request_id: self.request.request_id.clone(),
            tokens: self.generated().to_vec(),
            text: self.stream.text().to_owned(),
            prompt_tokens: self.prompt_length,
            final_status: self.status,
            log_probabilities: (self.request.logprobs > 0).then(|| self.log_probabilities.clone()),
            error: self.error.clone(),
        }
    }

    /// Nothing is added any more: others may have its pages.
    pub(super) fn end(&mut self, status: GenerationStatus) {
        self.status = status;
        self.lease = None;
    }

    /// The tokens that are not in the cache.
    pub(super) fn remaining(&self) -> usize {
        self.tokens.len() - self.processed
    }
}
