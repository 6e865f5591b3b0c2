//! [`TextContext`]: a sequence that is being generated.

use std::fmt;

use super::SamplingParams;
use super::cache::CacheLease;
use super::sampling::Random;
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
        }
    }
}

impl fmt::Display for GenerationStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What was generated.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TextGenerationOutput {
    /// The new tokens, with the one that ended the text.
    pub tokens: Vec<u32>,
    /// Their text, up to a stop sequence; empty without a tokenizer.
    pub text: String,
    /// The tokens of the prompt.
    pub prompt_tokens: usize,
    /// Why it ended.
    pub final_status: GenerationStatus,
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
    pub(super) params: SamplingParams,
    pub(super) random: Random,
    pub(super) status: GenerationStatus,
    pub(super) stream: TextStream,
    /// The length at which it ends.
    pub(super) longest: usize,
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

    /// Ends it: nothing is added any more.
    pub fn cancel(&mut self) {
        if !self.status.is_done() {
            self.end(GenerationStatus::Cancelled);
        }
    }

    /// The text that is new since this was last asked: whole characters, and nothing that may be the beginning of a stop sequence.
    pub fn take_text(&mut self) -> &str {
        self.stream.take(&self.params.stop)
    }

    /// What was generated so far.
    pub fn output(&self) -> TextGenerationOutput {
        TextGenerationOutput {
            tokens: self.generated().to_vec(),
            text: self.stream.text().to_owned(),
            prompt_tokens: self.prompt_length,
            final_status: self.status,
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
