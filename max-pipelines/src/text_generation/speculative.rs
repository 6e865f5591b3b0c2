//! [`SpeculativeDecodingTextGenerationPipeline`]: a small model drafts tokens, and the target verifies several of them at once.

use std::time::Instant;

use super::context::{GenerationStatus, TextContext, TextGenerationOutput};
use super::pipeline::{TextGenerationPipeline, Timing};
use super::sampling::{Random, draw, verify};
use super::{SamplingParams, TextGenerationRequest};
use crate::config::PipelineConfig;
use crate::error::{PipelineError, Result};
use crate::registry::PipelineRegistry;
use crate::tokenizer::TextTokenizer;

/// What the draft's seed differs by from the target's: their draws are independent.
const DRAFT_SEED: u64 = 0x6a09_e667_f3bc_c908;

/// How many drafted tokens the target took.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SpeculativeDecodingMetrics {
    /// The tokens that the draft model drew.
    pub draft_tokens_generated: usize,
    /// Those that the target took.
    pub draft_tokens_accepted: usize,
    /// The steps of the target, each of which gave one token more than it took.
    pub target_steps: usize,
}

impl SpeculativeDecodingMetrics {
    /// The share of drafted tokens that the target took; 0 if there were none.
    pub fn acceptance_rate(&self) -> f64 {
        self.draft_tokens_accepted as f64 / self.draft_tokens_generated.max(1) as f64
    }
}

/// A sequence, with what the draft model has of it.
pub struct SpeculativeContext {
    target: TextContext,
    draft: TextContext,
    /// How many tokens are drafted next.
    ahead: usize,
    metrics: SpeculativeDecodingMetrics,
}

impl SpeculativeContext {
    /// The sequence.
    pub fn target(&self) -> &TextContext {
        &self.target
    }

    /// The sequence, whose text can be taken, or which can be cancelled.
    pub fn target_mut(&mut self) -> &mut TextContext {
        &mut self.target
    }

    /// How many drafted tokens were taken.
    pub fn metrics(&self) -> SpeculativeDecodingMetrics {
        self.metrics
    }
}

/// A model that continues texts, and a smaller one with the same tokens that drafts for it. A step of the target verifies up to
/// [`num_speculative_tokens`](PipelineConfig::num_speculative_tokens) drafted tokens at once, and reads its weights as often as for
/// one token. Where it does not take all of them, one fewer is drafted next, down to one; where it does, two more (the heuristic
/// schedule of assisted generation in transformers). Tokens are distributed as the target's own; the likeliest tokens are the same
/// ones, but for the rounding of a step of several tokens.
///
/// ```no_run
/// use max_pipelines::{PipelineConfig, SamplingParams, SpeculativeDecodingTextGenerationPipeline};
///
/// let config = PipelineConfig { draft_model_path: Some("models/small".into()), ..PipelineConfig::new("models/large") };
/// let pipeline = SpeculativeDecodingTextGenerationPipeline::new(&config)?;
/// let prompt = pipeline.tokenizer()?.encode("Once upon a time", true)?;
/// let (outputs, _, metrics) = pipeline.generate(&[prompt], &SamplingParams::greedy().max_new_tokens(64), |_, _| {})?;
/// println!("{} ({:.0} % of the draft)", outputs[0].text, 100.0 * metrics.acceptance_rate());
/// # Ok::<(), max_pipelines::PipelineError>(())
/// ```
pub struct SpeculativeDecodingTextGenerationPipeline {
    target: TextGenerationPipeline,
    draft: TextGenerationPipeline,
    count: usize,
}

impl SpeculativeDecodingTextGenerationPipeline {
    /// Loads a model and its draft, of this crate's architectures.
    ///
    /// # Errors
    /// As [`TextGenerationPipeline::new`], for each of them; when there is no draft model, or it has another vocabulary.
    pub fn new(config: &PipelineConfig) -> Result<SpeculativeDecodingTextGenerationPipeline> {
        SpeculativeDecodingTextGenerationPipeline::with_registry(config, &PipelineRegistry::new())
    }

    /// As [`new`](Self::new), with the architectures of a registry.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with_registry(
        config: &PipelineConfig,
        registry: &PipelineRegistry,
    ) -> Result<SpeculativeDecodingTextGenerationPipeline> {
        let fail = |argument, value: String, expected| Err(PipelineError::Argument { argument, value, expected });
        let Some(draft) = &config.draft_model_path else {
            return fail("draft_model_path", "none".into(), "a model: speculative decoding needs one that drafts");
        };
        if config.num_speculative_tokens == 0 {
            return fail("num_speculative_tokens", "0".into(), "1 or more");
        }
        // A sequence at a time: several tokens of it are what a step has.
        let target = PipelineConfig { max_batch_size: 1, ..config.clone() };
        let draft = PipelineConfig {
            model_path: draft.clone(),
            revision: None,
            max_length: None,
            lora_path: None,
            lora_paths: Vec::new(),
            max_num_loras: 0,
            ..target.clone()
        };
        let target = TextGenerationPipeline::with_registry(&target, registry)?;
        let draft = TextGenerationPipeline::with_registry(&draft, registry)?;
        if draft.vocab_size() != target.vocab_size() {
            let value = format!("a model of {} tokens", draft.vocab_size());
            return fail("draft_model_path", value, "of the same vocabulary as the model that it drafts for");
        }
        Ok(SpeculativeDecodingTextGenerationPipeline { target, draft, count: config.num_speculative_tokens })
    }

    /// The tokenizer of the model.
    ///
    /// # Errors
    /// When it has none.
    pub fn tokenizer(&self) -> Result<&TextTokenizer> {
        self.target.tokenizer()
    }

    /// The model that is drafted for.
    pub fn target(&self) -> &TextGenerationPipeline {
        &self.target
    }

    /// A sequence of a request.
    ///
    /// # Errors
    /// As [`TextGenerationPipeline::new_context`].
    pub fn new_context(&self, request: &TextGenerationRequest) -> Result<SpeculativeContext> {
        let target = self.target.new_context(request)?;
        // The draft only proposes: what a text has to be is the target's to hold.
        let base = request.sampling_params.clone();
        let params = SamplingParams { max_new_tokens: None, stop: Vec::new(), detokenize: false, ..base };
        // A prompt that is too long for the draft is continued without it.
        let (page_size, pages, _) = self.draft.cache_pages();
        let most = self.draft.max_length().min(pages.saturating_mul(page_size)).saturating_sub(1);
        let prompt = &request.prompt[..request.prompt.len().min(most.max(1))];
        let mut draft = self.draft.new_context(&TextGenerationRequest::new(prompt, params))?;
        draft.random = Random(request.sampling_params.seed ^ DRAFT_SEED);
        Ok(SpeculativeContext { target, draft, ahead: self.count, metrics: SpeculativeDecodingMetrics::default() })
    }

    /// Computes the next part of a prompt, or some of the next tokens, at least one. How many tokens there are more.
    ///
    /// # Errors
    /// When the target fails. A sequence whose logits are no numbers [fails](GenerationStatus::Failed) itself.
    pub fn step(&self, context: &mut SpeculativeContext) -> Result<usize> {
        Ok(self.counted_step(context)?.0)
    }

    /// [`step`](Self::step), with the number of tokens that the target computed and that are left.
    fn counted_step(&self, context: &mut SpeculativeContext) -> Result<(usize, usize)> {
        let SpeculativeContext { target, draft, ahead: wanted, metrics } = context;
        let length = target.tokens.len();
        if target.status().is_done() {
            return Ok((0, 0));
        }
        let is_prompt = target.processed + 1 < length;
        let room = target.longest.min(draft.longest).saturating_sub(length + 1);
        let ahead = (*wanted).min(room).min(self.target.without_recomputation(target));
        let drafted = match is_prompt || ahead == 0 {
            true => Vec::new(),
            // A draft that fails says nothing, and the target goes on alone.
            false => self.propose(draft, &target.tokens, ahead).unwrap_or_default(),
        };
        if drafted.is_empty() {
            let (chosen, info) = self.target.step_batch(&mut [target])?;
            return Ok((chosen, info.tokens()));
        }
        target.tokens.extend(drafted.iter().map(|(token, _)| token));
        let logits = self.target.last_logits(target, drafted.len() + 1);
        target.tokens.truncate(length);
        let logits = match logits {
            Ok(logits) => logits,
            Err(error @ PipelineError::NotFinite { .. }) => {
                target.fail(error);
                return Ok((0, 0));
            }
            Err(error) => {
                self.target.truncate(target, length - 1)?;
                return Err(error);
            }
        };
        let mut accepted = 0;
        for (i, logits) in logits.chunks(self.target.vocab_size().max(1)).enumerate() {
            match self.next_token(target, logits, drafted.get(i)) {
                Err(error) => target.fail(error),
                Ok(token) => {
                    let is_drafted = drafted.get(i).is_some_and(|(drafted, _)| *drafted == token);
                    accepted += usize::from(is_drafted);
                    if is_drafted && !target.status().is_done() {
                        continue;
                    }
                }
            }
            break;
        }
        // What was computed for tokens that were not taken is no part of the sequence.
        self.target.truncate(target, target.tokens.len() - 1)?;
        *wanted = match accepted == drafted.len() {
            true => (*wanted + 2).min(self.count),
            false => wanted.saturating_sub(1).max(1),
        };
        metrics.draft_tokens_generated += drafted.len();
        metrics.draft_tokens_accepted += accepted;
        metrics.target_steps += 1;
        let new = target.tokens.len() - length;
        Ok((new, new))
    }

    /// Adds the next token of the target, given the one that was drafted for its place, if one was.
    fn next_token(&self, target: &mut TextContext, logits: &[f32], drafted: Option<&Drafted>) -> Result<u32> {
        let eos_token_ids = self.target.eos_token_ids();
        let candidates = target.candidates(logits, eos_token_ids)?;
        let token = match drafted {
            Some((drafted, draft)) => verify(*drafted, &candidates, draft, &mut target.random),
            None => draw(&candidates, &mut target.random),
        };
        let token = token.ok_or_else(|| target.no_token())?;
        target.accept(token, logits, eos_token_ids, self.target.tokenizer().ok())?;
        Ok(token)
    }

    /// Up to `count` tokens behind `tokens`, each with those that it was drawn from.
    fn propose(&self, draft: &mut TextContext, tokens: &[u32], count: usize) -> Result<Vec<Drafted>> {
        // The cache is right as far as the draft's tokens are those of the sequence.
        let same = draft.tokens.iter().zip(tokens).take_while(|(a, b)| a == b).count();
        self.draft.truncate(draft, same.min(tokens.len() - 1))?;
        draft.tokens.clear();
        draft.tokens.extend_from_slice(tokens);
        draft.status = GenerationStatus::Active;
        let mut drafted = Vec::with_capacity(count);
        for _ in 0..count {
            let logits = self.draft.last_logits(draft, 1)?;
            // A draft that does not know what to say leaves it to the target.
            let Ok(candidates) = draft.candidates(&logits, self.draft.eos_token_ids()) else { break };
            let Some(token) = draw(&candidates, &mut draft.random) else { break };
            draft.tokens.push(token);
            drafted.push((token, candidates));
        }
        Ok(drafted)
    }

    /// Continues prompts, one behind the other; `on_step` hears of each by its number whenever it has new tokens.
    ///
    /// # Errors
    /// As [`generate_requests`](Self::generate_requests).
    pub fn generate(
        &self,
        prompts: &[Vec<u32>],
        params: &SamplingParams,
        on_step: impl FnMut(usize, &mut TextContext),
    ) -> Result<(Vec<TextGenerationOutput>, Timing, SpeculativeDecodingMetrics)> {
        let request = |prompt: &Vec<u32>| TextGenerationRequest::new(prompt.as_slice(), params.clone());
        self.generate_requests(&prompts.iter().map(request).collect::<Vec<_>>(), on_step)
    }

    /// As [`generate`](Self::generate), each prompt with what is asked of it.
    ///
    /// # Errors
    /// As [`new_context`](Self::new_context), of all requests before any is computed, and as [`step`](Self::step).
    pub fn generate_requests(
        &self,
        requests: &[TextGenerationRequest],
        mut on_step: impl FnMut(usize, &mut TextContext),
    ) -> Result<(Vec<TextGenerationOutput>, Timing, SpeculativeDecodingMetrics)> {
        let contexts = requests.iter().map(|request| self.new_context(request)).collect::<Result<Vec<_>>>()?;
        let (mut timing, mut all) = (Timing::default(), SpeculativeDecodingMetrics::default());
        let mut outputs = Vec::with_capacity(contexts.len());
        for (number, mut context) in contexts.into_iter().enumerate() {
            while !context.target.status().is_done() {
                let start = Instant::now();
                let is_prompt = context.target.generated().is_empty();
                let (new, computed) = self.counted_step(&mut context)?;
                let (time, tokens) = match is_prompt {
                    true => (&mut timing.prefill, &mut timing.prefill_tokens),
                    false => (&mut timing.decode, &mut timing.decode_tokens),
                };
                *time += start.elapsed();
                *tokens += computed;
                if new > 0 {
                    on_step(number, &mut context.target);
                }
            }
            all.draft_tokens_generated += context.metrics.draft_tokens_generated;
            all.draft_tokens_accepted += context.metrics.draft_tokens_accepted;
            all.target_steps += context.metrics.target_steps;
            outputs.push(context.target.output());
        }
        Ok((outputs, timing, all))
    }
}

/// A token of the draft, and those that it was drawn from with their shares.
type Drafted = (u32, Vec<(u32, f64)>);
