//! [`TextGenerationRequest`]: a prompt, and all that is asked of its continuation.

use super::SamplingParams;
use crate::error::{PipelineError, Result};
use crate::interfaces::RequestId;
use crate::structured_output::TextGenerationResponseFormat;

/// The most alternatives whose log probabilities are given for a token: what OpenAI's API allows.
const MOST_LOGPROBS: usize = 20;

/// A prompt, and all that is asked of its continuation.
///
/// ```
/// use max_pipelines::{SamplingParams, TextGenerationRequest};
///
/// let params = SamplingParams::greedy().max_new_tokens(8);
/// let request = TextGenerationRequest { logprobs: 3, echo: true, ..TextGenerationRequest::new([5, 6, 7], params) };
/// assert!(request.check().is_ok());
/// ```
#[derive(Clone, PartialEq, Debug, Default)]
pub struct TextGenerationRequest {
    /// Its name, which its outputs have.
    pub request_id: RequestId,
    /// The tokens that are continued.
    pub prompt: Vec<u32>,
    /// How tokens are chosen, and when the text ends.
    pub sampling_params: SamplingParams,
    /// Of how many of the likeliest tokens the log probabilities are given, for each new token; at 0 none are.
    pub logprobs: usize,
    /// Whether log probabilities are given for the prompt's tokens as well, from the second on.
    pub echo: bool,
    /// A form that the text must have.
    pub response_format: Option<TextGenerationResponseFormat>,
    /// The adapter of low rank that computes it, by its name: see [`lora_paths`](crate::PipelineConfig::lora_paths). `None` for the model
    /// alone.
    pub lora: Option<String>,
}

impl TextGenerationRequest {
    /// A prompt without log probabilities and without a form.
    pub fn new(prompt: impl Into<Vec<u32>>, sampling_params: SamplingParams) -> TextGenerationRequest {
        TextGenerationRequest { prompt: prompt.into(), sampling_params, ..TextGenerationRequest::default() }
    }

    /// Whether every value is one that something can be done with.
    ///
    /// # Errors
    /// The first that is not, with what it may be.
    pub fn check(&self) -> Result<()> {
        self.sampling_params.check()?;
        let fail = |argument, value: String, expected| Err(PipelineError::Argument { argument, value, expected });
        if self.prompt.is_empty() {
            return fail("prompt", "no token".into(), "a prompt: give at least one token");
        }
        if self.logprobs > MOST_LOGPROBS {
            return fail("logprobs", self.logprobs.to_string(), "from 0 to 20");
        }
        if self.echo && self.logprobs == 0 {
            return fail("echo", "true".into(), "of any use without `logprobs`: ask for 1 or more");
        }
        Ok(())
    }
}
