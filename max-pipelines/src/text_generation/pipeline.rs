//! [`TextGenerationPipeline`]: a loaded model, and steps of sequences.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use max::nn::transformer::KvCacheParams;
use max_core::driver::{Device, Tensor};
use max_core::dtype::DType;
use max_core::engine::{InferenceSession, Input, Model};

use super::SamplingParams;
use super::context::{GenerationStatus, TextContext, TextGenerationOutput};
use super::graph::step_graph;
use super::sampling::Random;
use crate::architectures::longest_sequence;
use crate::config::PipelineConfig;
use crate::error::{PipelineError, Result};
use crate::model::ModelFiles;
use crate::registry::{PipelineModel, PipelineRegistry, PipelineTask};
use crate::tokenizer::{TextStream, TextTokenizer};

/// How long steps took.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Timing {
    /// Until the first new token of each sequence.
    pub prefill: Duration,
    /// The prompts' tokens.
    pub prefill_tokens: usize,
    /// For all tokens after the first.
    pub decode: Duration,
    /// How many these are.
    pub decode_tokens: usize,
}

/// A model that continues texts. Sequences are computed together, up to [`max_batch_size`](PipelineConfig::max_batch_size) of
/// them: a step takes the next part of each prompt, or the last token of each text.
pub struct TextGenerationPipeline {
    path: PathBuf,
    model: Model,
    layers: Vec<KvCacheParams>,
    vocab_size: usize,
    max_length: usize,
    slots: usize,
    chunk: usize,
    recompute_beyond: Option<usize>,
    eos_token_ids: Vec<u32>,
    tokenizer: Option<TextTokenizer>,
    /// What stands in the place of a cache where there is no sequence.
    nothing: Vec<Tensor>,
}

impl TextGenerationPipeline {
    /// Loads a model of one of this crate's architectures.
    ///
    /// # Errors
    /// When there is no model, its architecture is not known or is for another task, its files are damaged, its weights or its
    /// tokenizer do not fit; when a value of the configuration is not possible.
    pub fn new(config: &PipelineConfig) -> Result<TextGenerationPipeline> {
        TextGenerationPipeline::with_registry(config, &PipelineRegistry::new())
    }

    /// As [`new`](Self::new), with the architectures of a registry.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with_registry(config: &PipelineConfig, registry: &PipelineRegistry) -> Result<TextGenerationPipeline> {
        let fail = |argument, value: usize, expected| {
            Err(PipelineError::Argument { argument, value: value.to_string(), expected })
        };
        if config.max_batch_size == 0 || config.max_batch_size > 256 {
            return fail("max_batch_size", config.max_batch_size, "from 1 to 256");
        }
        if config.prefill_chunk_size == 0 {
            return fail("prefill_chunk_size", 0, "1 or more");
        }
        let files = ModelFiles::configured(config)?;
        let architecture = registry.retrieve_architecture(&files.config)?;
        let longest = longest_sequence(&files.config)?;
        let max_length = config.max_length.or(longest).unwrap_or(2048);
        if max_length < 2 || longest.is_some_and(|longest| max_length > longest) {
            return fail("max_length", max_length, "at least 2, and at most the context of the model");
        }
        let (model, _) = architecture.load(&files, config.dtype)?;
        let PipelineModel::Text(model) = model else {
            return Err(PipelineError::Task {
                path: files.path,
                name: architecture.name.clone(),
                has: architecture.task,
                wanted: PipelineTask::TextGeneration,
            });
        };
        let (layers, vocab_size) = (model.kv_params(), model.vocab_size());
        let recompute_beyond = model.recompute_beyond();
        let tokenizer = TextTokenizer::find(&files, config.chat_template.as_deref(), vocab_size)?;
        let graph = step_graph(&*model, config.max_batch_size)?;
        // The graph has the weights now.
        drop(model);
        let mut session = InferenceSession::new();
        if let Some(threads) = config.num_threads {
            session = session.num_threads(threads)?;
        }
        let empty =
            |layer: &KvCacheParams| Tensor::zeros(layer.dtype, [layer.n_kv_heads, 1, layer.head_dim], &Device::cpu());
        let nothing = (1..config.max_batch_size)
            .flat_map(|_| layers.iter().flat_map(|layer| [layer, layer]))
            .map(empty)
            .collect::<Result<_, _>>()?;
        Ok(TextGenerationPipeline {
            model: session.load(&graph)?,
            layers,
            vocab_size,
            max_length,
            slots: config.max_batch_size,
            chunk: config.prefill_chunk_size,
            recompute_beyond,
            eos_token_ids: files.eos_token_ids()?,
            tokenizer,
            nothing,
            path: files.path,
        })
    }

    /// The longest sequence, prompt included.
    pub fn max_length(&self) -> usize {
        self.max_length
    }

    /// The tokens of the vocabulary.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// The bytes that the cache takes for each token.
    pub fn cache_bytes_per_token(&self) -> usize {
        self.layers.iter().map(KvCacheParams::bytes_per_token).sum()
    }

    /// The model's tokenizer.
    ///
    /// # Errors
    /// When it has none.
    pub fn tokenizer(&self) -> Result<&TextTokenizer> {
        self.tokenizer.as_ref().ok_or_else(|| PipelineError::NoTokenizer { path: self.path.clone() })
    }

    /// A sequence of a prompt.
    ///
    /// # Errors
    /// When the prompt is empty, too long or has a token that the vocabulary does not have; when a parameter is not possible, or
    /// there are stop sequences and no tokenizer.
    pub fn context(&self, prompt: &[u32], params: &SamplingParams) -> Result<TextContext> {
        params.check()?;
        if prompt.is_empty() {
            let expected = "a prompt: give at least one token";
            return Err(PipelineError::Argument { argument: "prompt", value: "no token".into(), expected });
        }
        if prompt.len() >= self.max_length {
            return Err(PipelineError::PromptTooLong { prompt: prompt.len(), max_length: self.max_length });
        }
        if let Some(token) = prompt.iter().find(|token| **token as usize >= self.vocab_size) {
            return Err(PipelineError::Token { token: *token, vocab_size: self.vocab_size });
        }
        if !params.stop.is_empty() {
            self.tokenizer()?;
        }
        let wanted = params.max_new_tokens.unwrap_or(usize::MAX);
        Ok(TextContext {
            tokens: prompt.to_vec(),
            prompt_length: prompt.len(),
            processed: 0,
            caches: Vec::new(),
            room: 0,
            random: Random(params.seed),
            params: params.clone(),
            status: if wanted == 0 { GenerationStatus::MaximumLength } else { GenerationStatus::Active },
            stream: TextStream::default(),
            longest: prompt.len().saturating_add(wanted).min(self.max_length),
        })
    }

    /// Computes the next part of each sequence that is not done, and its next token where its prompt ends. How many sequences got
    /// a token.
    ///
    /// # Errors
    /// When there are more sequences than [`max_batch_size`](PipelineConfig::max_batch_size); when the model fails. The sequences
    /// are as they were then, or without the tokens that were not chosen.
    pub fn step(&self, batch: &mut [&mut TextContext]) -> Result<usize> {
        let mut active: Vec<&mut TextContext> =
            batch.iter_mut().map(|context| &mut **context).filter(|context| !context.status.is_done()).collect();
        if active.is_empty() {
            return Ok(0);
        }
        // Prompts share what is computed at once; texts take a token each.
        let share = (self.chunk / active.len()).max(1);
        let parts: Vec<usize> = active.iter_mut().map(|context| self.next_part(context, share)).collect();
        let (mut rows, mut row, mut finished) = (Vec::new(), 0, Vec::new());
        for (i, (context, part)) in active.iter().zip(&parts).enumerate() {
            row += *part as i64;
            if context.processed + part == context.tokens.len() {
                rows.push(row - 1);
                finished.push(i);
            }
        }
        let logits = self.execute(&mut active, &parts, &rows)?;
        for (i, logits) in finished.iter().zip(logits.chunks(self.vocab_size.max(1))) {
            self.choose(active[*i], logits)?;
        }
        Ok(finished.len())
    }

    /// How many tokens of a sequence are computed next.
    fn next_part(&self, context: &mut TextContext, share: usize) -> usize {
        let mut share = share;
        let switch = self.recompute_beyond.filter(|length| context.tokens.len() > *length);
        if let Some(length) = switch.filter(|length| context.processed <= *length) {
            context.processed = 0;
            // What is computed at once tells the model how long the sequence is.
            share = share.max(length + 1);
        }
        (context.tokens.len() - context.processed).min(share)
    }

    /// The logits behind every token of a sequence: `[tokens, vocabulary]`, in `float32`.
    ///
    /// # Errors
    /// As [`context`](Self::context) and [`step`](Self::step).
    pub fn logits(&self, tokens: &[u32]) -> Result<Tensor> {
        let mut context = self.context(tokens, &SamplingParams::greedy())?;
        let mut logits = Vec::with_capacity(tokens.len() * self.vocab_size);
        while context.processed < tokens.len() {
            let part = self.next_part(&mut context, self.chunk);
            let rows: Vec<i64> = (0..part as i64).collect();
            logits.extend(self.execute(&mut [&mut context], &[part], &rows)?);
        }
        Ok(Tensor::from_vec(logits, [tokens.len(), self.vocab_size])?)
    }

    /// Runs the model on the next `parts` of the sequences, and gives the logits of rows.
    fn execute(&self, active: &mut [&mut TextContext], parts: &[usize], rows: &[i64]) -> Result<Vec<f32>> {
        if active.len() > self.slots {
            let (argument, value) = ("batch", active.len().to_string());
            return Err(PipelineError::Argument { argument, value, expected: "at most `max_batch_size` sequences" });
        }
        let rows = Tensor::from_slice(rows, [rows.len()])?;
        let mut steps = Vec::with_capacity(self.slots);
        for (context, part) in active.iter_mut().zip(parts) {
            let stop = context.processed + part;
            context.reserve(stop, &self.layers)?;
            let new: Vec<i64> = context.tokens[context.processed..stop].iter().map(|token| i64::from(*token)).collect();
            let past = Tensor::zeros(DType::U8, [context.processed, 0], &Device::cpu())?;
            steps.push([Tensor::from_vec(new, [*part])?, past]);
        }
        let idle = self.slots - active.len();
        for _ in 0..idle {
            let none = Tensor::from_vec(Vec::<i64>::new(), [0])?;
            steps.push([none, Tensor::zeros(DType::U8, [0, 0], &Device::cpu())?]);
        }
        // Buffers are changed by who executes: each execution has its own, and those of no sequence hold nothing.
        let mut nothing: Vec<Tensor> =
            self.nothing[..idle * 2 * self.layers.len()].iter().map(Tensor::copy).collect::<Result<_, _>>()?;
        let caches = active.iter_mut().map(|context| context.caches.as_mut_slice());
        let caches = caches.chain(nothing.chunks_mut((2 * self.layers.len()).max(1)));
        let mut inputs: Vec<Input<'_>> = vec![Input::from(&rows)];
        for (step, caches) in steps.iter().zip(caches) {
            inputs.extend(step.iter().map(Input::from));
            inputs.extend(caches.iter_mut().map(Input::from));
        }
        let outputs = self.model.execute(inputs)?;
        for (context, part) in active.iter_mut().zip(parts) {
            context.processed += part;
        }
        match outputs.into_iter().next() {
            Some(logits) => Ok(logits.to_vec::<f32>()?),
            None => Ok(Vec::new()),
        }
    }

    /// Adds the next token to a sequence.
    fn choose(&self, context: &mut TextContext, logits: &[f32]) -> Result<()> {
        let params = &context.params;
        let ends = |token: &u32| {
            params.stop_token_ids.contains(token) || (!params.ignore_eos && self.eos_token_ids.contains(token))
        };
        let generated = &context.tokens[context.prompt_length..];
        let banned: Vec<u32> = match generated.len() < params.min_new_tokens {
            true => self.eos_token_ids.iter().chain(&params.stop_token_ids).copied().filter(ends).collect(),
            false => Vec::new(),
        };
        let mut logits = logits.to_vec();
        let Some(token) = params.choose(&mut logits, generated, &banned, &mut context.random) else {
            return Err(PipelineError::NotNumbers { position: context.tokens.len() - 1 });
        };
        let ended = ends(&token);
        context.tokens.push(token);
        let mut stopped = false;
        if let Some(tokenizer) = self.tokenizer.as_ref().filter(|_| context.params.detokenize) {
            if !ended {
                stopped = context.stream.push(token, tokenizer, &context.params.stop)?;
            }
            if ended || stopped || context.tokens.len() >= context.longest {
                context.stream.finish(tokenizer, &context.params.stop)?;
            }
        }
        if ended || stopped {
            context.status = GenerationStatus::EndOfSequence;
        } else if context.tokens.len() >= context.longest {
            context.status = GenerationStatus::MaximumLength;
        }
        Ok(())
    }

    /// Continues prompts, as many at a time as the batch holds: a sequence that is done makes room for the next. `on_step` hears of
    /// each sequence by its number, whenever it has a new token.
    ///
    /// # Errors
    /// As [`context`](Self::context), of all prompts before any is computed, and as [`step`](Self::step).
    pub fn generate(
        &self,
        prompts: &[Vec<u32>],
        params: &SamplingParams,
        mut on_step: impl FnMut(usize, &mut TextContext),
    ) -> Result<(Vec<TextGenerationOutput>, Timing)> {
        let contexts = prompts.iter().map(|prompt| self.context(prompt, params)).collect::<Result<Vec<_>>>()?;
        let mut waiting: VecDeque<(usize, TextContext)> = contexts.into_iter().enumerate().collect();
        let (mut running, mut done) = (Vec::new(), Vec::new());
        let mut timing = Timing::default();
        while !(waiting.is_empty() && running.is_empty()) {
            while running.len() < self.slots
                && let Some(next) = waiting.pop_front()
            {
                running.push(next);
            }
            let start = Instant::now();
            let before: Vec<usize> = running.iter().map(|(_, context)| context.tokens.len()).collect();
            let computed: usize = running.iter().map(|(_, context)| context.processed).sum();
            let prompts = running.iter().any(|(_, context)| context.tokens.len() == context.prompt_length);
            self.step(&mut running.iter_mut().map(|(_, context)| context).collect::<Vec<_>>())?;
            let after: usize = running.iter().map(|(_, context)| context.processed).sum();
            match prompts {
                true => {
                    (timing.prefill, timing.prefill_tokens) =
                        (timing.prefill + start.elapsed(), timing.prefill_tokens + after - computed)
                }
                false => {
                    (timing.decode, timing.decode_tokens) =
                        (timing.decode + start.elapsed(), timing.decode_tokens + after - computed)
                }
            }
            for ((number, context), before) in running.iter_mut().zip(before) {
                if context.tokens.len() > before {
                    on_step(*number, context);
                }
            }
            let (ended, going): (Vec<_>, Vec<_>) =
                running.into_iter().partition(|(_, context)| context.status.is_done());
            done.extend(ended.into_iter().map(|(number, context)| (number, context.output())));
            running = going;
        }
        done.sort_by_key(|(number, _)| *number);
        Ok((done.into_iter().map(|(_, output)| output).collect(), timing))
    }
}
