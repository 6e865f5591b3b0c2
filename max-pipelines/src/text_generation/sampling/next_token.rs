//! From the logits behind a sequence to its next token: processors, penalties, masks, the draw, and where the text ends.

use std::ops::Range;
use std::sync::Arc;

use super::logits_processor::ProcessorInputs;
use super::params::draw;
use crate::error::{PipelineError, Result};
use crate::text_generation::context::{GenerationStatus, TextContext};
use crate::tokenizer::TextTokenizer;

impl TextContext {
    /// Which of the next `part` tokens are those whose logits are wanted: the last of all, and with `echo` all of the prompt's.
    pub(in crate::text_generation) fn wanted_rows(&self, part: usize) -> Range<usize> {
        let last = self.tokens.len() - 1;
        let first = if self.echoes() { self.echo.token_log_probabilities.len() } else { last };
        first.saturating_sub(self.processed).min(part)..part
    }

    /// Whether the logits of the prompt's tokens are wanted, too.
    pub(in crate::text_generation) fn echoes(&self) -> bool {
        self.request.echo && self.log_probabilities.is_empty()
    }

    /// Whether a [`Sampler`](super::sampler::Sampler) draws the next token. That is so wherever it can, whatever the batch: a sequence has the
    /// tokens that it would have alone.
    pub(in crate::text_generation) fn is_sampled_in_graph(&self) -> bool {
        let params = &self.request.sampling_params;
        self.request.logprobs == 0
            && self.matcher.is_none()
            && params.logits_processors.is_empty()
            && !params.has_penalties()
            && self.generated().len() >= params.min_new_tokens
    }

    /// Takes the next token, which was drawn in a graph; below 0 there is none. What goes wrong ends this sequence alone.
    pub(in crate::text_generation) fn take(
        &mut self,
        token: i64,
        eos_token_ids: &[u32],
        tokenizer: Option<&TextTokenizer>,
    ) {
        if self.status.is_done() {
            return;
        }
        let result = match u32::try_from(token) {
            // Log probabilities, which are of logits, are not asked for.
            Ok(token) => self.accept(token, &[], eos_token_ids, tokenizer),
            Err(_) => Err(PipelineError::NotNumbers { position: self.tokens.len() - 1 }),
        };
        if let Err(error) = result {
            self.fail(error);
        }
    }

    /// Takes the logits behind the token at `position`: those of a prompt's token that is known, or of the next one, which is
    /// chosen by `changed`, if processors of the batch changed them. What goes wrong ends this sequence alone.
    pub(in crate::text_generation) fn advance(
        &mut self,
        position: usize,
        logits: &[f32],
        changed: Option<&[f32]>,
        eos_token_ids: &[u32],
        tokenizer: Option<&TextTokenizer>,
    ) {
        if self.status.is_done() {
            return;
        }
        if let Some(known) = self.tokens.get(position + 1) {
            self.echo.push(*known, logits, self.request.logprobs);
            return;
        }
        let candidates = self.are_numbers(logits).and_then(|()| self.changed(changed.unwrap_or(logits), eos_token_ids));
        let result = candidates.and_then(|candidates| match draw(&candidates, &mut self.random) {
            Some(token) => self.accept(token, logits, eos_token_ids, tokenizer),
            None => Err(self.no_token()),
        });
        if let Err(error) = result {
            self.fail(error);
        }
    }

    /// Ends it, for this reason. Nobody begins with what it has in the cache: its numbers may be none.
    pub(in crate::text_generation) fn fail(&mut self, error: PipelineError) {
        if let Some(lease) = self.lease.take() {
            lease.discard();
        }
        self.end(GenerationStatus::Failed);
        self.error = Some(Arc::new(error));
    }

    /// The error of a sequence without candidates.
    pub(in crate::text_generation) fn no_token(&self) -> PipelineError {
        PipelineError::NoToken { position: self.tokens.len() - 1 }
    }

    /// The tokens that may come next with their shares, of the logits behind the last one.
    pub(in crate::text_generation) fn candidates(
        &mut self,
        logits: &[f32],
        eos_token_ids: &[u32],
    ) -> Result<Vec<(u32, f64)>> {
        self.are_numbers(logits)?;
        self.changed(logits, eos_token_ids)
    }

    /// Whether a model computed numbers.
    fn are_numbers(&self, logits: &[f32]) -> Result<()> {
        let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        if !largest.is_finite() || logits.iter().any(|logit| logit.is_nan()) {
            return Err(PipelineError::NotNumbers { position: self.tokens.len() - 1 });
        }
        Ok(())
    }

    /// The candidates that processors, penalties and masks leave of logits.
    fn changed(&mut self, logits: &[f32], eos_token_ids: &[u32]) -> Result<Vec<(u32, f64)>> {
        let params = &self.request.sampling_params;
        let mut logits = logits.to_vec();
        for processor in &params.logits_processors {
            processor.call(ProcessorInputs { logits: &mut logits, context: &*self });
        }
        if let Some(token) = logits.iter().position(|logit| logit.is_nan() || *logit == f32::INFINITY) {
            return Err(PipelineError::Processor { token: token as u32, position: self.tokens.len() - 1 });
        }
        let generated = &self.tokens[self.prompt_length..];
        params.penalize(&mut logits, generated);
        if generated.len() < params.min_new_tokens {
            for token in eos_token_ids.iter().chain(&params.stop_token_ids) {
                if self.ends(*token, eos_token_ids)
                    && let Some(logit) = logits.get_mut(*token as usize)
                {
                    *logit = f32::NEG_INFINITY;
                }
            }
        }
        if let Some(matcher) = &mut self.matcher {
            matcher.mask(&mut logits)?;
        }
        Ok(self.request.sampling_params.candidates(&logits))
    }

    /// Adds a token, which may end the text.
    pub(in crate::text_generation) fn accept(
        &mut self,
        token: u32,
        logits: &[f32],
        eos_token_ids: &[u32],
        tokenizer: Option<&TextTokenizer>,
    ) -> Result<()> {
        if self.request.logprobs > 0 {
            let mut log_probabilities = std::mem::take(&mut self.echo);
            log_probabilities.push(token, logits, self.request.logprobs);
            self.log_probabilities.push(log_probabilities);
        }
        let ended = self.ends(token, eos_token_ids);
        self.tokens.push(token);
        let is_complete = match &mut self.matcher {
            Some(matcher) if !ended => matcher.consume(token)?,
            _ => false,
        };
        let (params, full) = (&self.request.sampling_params, self.tokens.len() >= self.longest);
        let mut stopped = false;
        if let Some(tokenizer) = tokenizer.filter(|_| params.detokenize) {
            if !ended {
                stopped = self.stream.push(token, tokenizer, &params.stop)?;
            }
            if ended || stopped || is_complete || full {
                self.stream.finish(tokenizer, &params.stop)?;
            }
        }
        if ended || stopped || is_complete {
            self.end(GenerationStatus::EndOfSequence);
        } else if full {
            self.end(GenerationStatus::MaximumLength);
        }
        Ok(())
    }

    /// Whether a token ends the text.
    fn ends(&self, token: u32, eos_token_ids: &[u32]) -> bool {
        let params = &self.request.sampling_params;
        params.stop_token_ids.contains(&token) || (!params.ignore_eos && eos_token_ids.contains(&token))
    }
}
