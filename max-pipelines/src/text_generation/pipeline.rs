//! [`TextGenerationPipeline`]: a loaded model, and steps of sequences.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use max::nn::kv_cache::{KvCacheMetrics, KvCacheParams, PagedKvCacheInputs};
use max_core::driver::{Device, DeviceRef, Tensor};
use max_core::engine::{InferenceSession, Input, Model};

use super::cache::{Cache, SharedCache};
use super::context::{GenerationStatus, TextContext, TextGenerationOutput};
use super::graph::step_graph;
use super::lengths::{max_tokens_to_generate, upper_bounded_default};
use super::lora::lora_manager::LoraManager;
use super::numerics::NumericsCheck;
use super::sampling::{Random, Row, Sampler};
use super::scheduler::{Limits, part, reserve, restart, schedule};
use super::{
    BatchInfo, BatchLogitsProcessor, BatchProcessorInputs, LogProbabilities, ModelOutputs, SamplingParams,
    TextGenerationRequest,
};
use crate::architectures::longest_sequence;
use crate::config::PipelineConfig;
use crate::error::{PipelineError, Result};
use crate::model::{ModelFiles, PACKED_LIMIT, compute_dtype};
use crate::registry::{PipelineModel, PipelineRegistry, PipelineTask};
use crate::tokenizer::{TextStream, TextTokenizer};

/// The longest sequence of a model that does not say it.
const DEFAULT_LENGTH: usize = 2048;

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
/// them: a step takes the last token of each text, and next parts of prompts. Keys and values of all of them are in one cache, whose
/// pages sequences with the same beginning share.
pub struct TextGenerationPipeline {
    path: PathBuf,
    model: Model,
    sampler: Sampler,
    numerics: Option<NumericsCheck>,
    lora: Option<LoraManager>,
    layers: Vec<KvCacheParams>,
    vocab_size: usize,
    max_length: usize,
    slots: usize,
    limits: Limits,
    cache: SharedCache,
    batch_processors: Vec<BatchLogitsProcessor>,
    eos_token_ids: Vec<u32>,
    tokenizer: Option<TextTokenizer>,
}

/// What a step computed.
struct Computed {
    /// Of the rows that were asked for, `[rows, vocabulary]`.
    logits: Tensor,
    /// Sequences, by their places in the batch, in which a layer's output is not finite.
    failed: Vec<(usize, PipelineError)>,
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
        if config.kv_cache.kv_cache_page_size == 0 {
            return fail("kv_cache_page_size", 0, "1 or more");
        }
        let cache_dtype = config.cache_dtype.map(|dtype| compute_dtype("cache_dtype", dtype)).transpose()?;
        if config.prefill_chunk_size == 0 {
            return fail("prefill_chunk_size", 0, "1 or more");
        }
        let files = ModelFiles::configured(config)?;
        let architecture = registry.retrieve_architecture(&files.config)?;
        let longest = longest_sequence(&files.config)?;
        let bound = longest.or(config.max_length).unwrap_or(DEFAULT_LENGTH);
        let max_length = match upper_bounded_default(bound, config.max_length) {
            Ok(length) if length >= 2 => length,
            _ => {
                let length = config.max_length.unwrap_or(bound);
                return fail("max_length", length, "at least 2, and at most the context of the model");
            }
        };
        let (model, dtype) = architecture.load(&files, config.dtype)?;
        let lora = LoraManager::new(config, &files, architecture, dtype)?;
        let PipelineModel::Text(model) = model else {
            return Err(PipelineError::Task {
                path: files.path,
                name: architecture.name.clone(),
                has: architecture.task,
                wanted: PipelineTask::TextGeneration,
            });
        };
        let (mut layers, vocab_size) = (model.kv_params(), model.vocab_size());
        let supported = model.prefix_caching_supported();
        for layer in &mut layers {
            layer.dtype = cache_dtype.unwrap_or(layer.dtype);
            layer.page_size = config.kv_cache.kv_cache_page_size;
            layer.enable_prefix_caching &= supported && config.kv_cache.enable_prefix_caching;
        }
        let limits = Limits { chunk: config.prefill_chunk_size, recompute_beyond: model.recompute_beyond() };
        let cache = SharedCache::new(&layers, &config.kv_cache, config.max_batch_size, max_length)?;
        let tokenizer = TextTokenizer::find(&files, config.chat_template.as_deref(), vocab_size)?;
        let (graph, numerics) = step_graph(&*model, &layers, config.check_numerics, lora.as_ref())?;
        // The graph has the weights now.
        drop(model);
        let mut session = InferenceSession::new().packed_constants_limit(PACKED_LIMIT);
        if let Some(threads) = config.num_threads {
            session = session.num_threads(threads)?;
        }
        let model = session.load(&graph)?;
        drop(graph);
        let sampler = Sampler::new(&session, DeviceRef::CPU)?;
        // The allocator keeps what the compiler put together in other memory, such as weights of queries, keys and values: as much as
        // an eleventh of a model, which no step would ask for.
        Device::cpu().release_cached_memory();
        // What the first step would do is part of loading.
        model.warm_up()?;
        Ok(TextGenerationPipeline {
            model,
            sampler,
            numerics,
            lora,
            layers,
            vocab_size,
            max_length,
            slots: config.max_batch_size,
            limits,
            cache,
            batch_processors: Vec::new(),
            eos_token_ids: files.eos_token_ids()?,
            tokenizer,
            path: files.path,
        })
    }

    /// Changes the logits of all sequences of each step by these functions, one behind the other.
    pub fn set_batch_processors(&mut self, batch_processors: Vec<BatchLogitsProcessor>) {
        self.batch_processors = batch_processors;
    }

    /// The most sequences that are computed together.
    pub fn max_batch_size(&self) -> usize {
        self.slots
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

    /// The tokens of a page of the cache, its pages, and how many of these no sequence has.
    pub fn cache_pages(&self) -> (usize, usize, usize) {
        let cache = self.cache.lock();
        (cache.manager.page_size(), cache.manager.total_blocks(), cache.manager.free_blocks())
    }

    /// What the cache has done so far: how many tokens of prompts were there already, and how many pages were given up.
    pub fn cache_metrics(&self) -> KvCacheMetrics {
        self.cache.lock().manager.metrics()
    }

    /// Loads an adapter of low rank from a folder as PEFT writes it, which requests choose by the name. It changes no other layers than
    /// those of [`lora_paths`](PipelineConfig::lora_paths) do.
    ///
    /// # Errors
    /// When it cannot be read or does not fit, there is one of that name, or there is no place for it.
    pub fn load_lora(&mut self, name: &str, path: impl AsRef<Path>) -> Result<()> {
        match &mut self.lora {
            Some(lora) => lora.load(name, path.as_ref()),
            None => Err(no_loras(name)),
        }
    }

    /// Gives up an adapter. Sequences that have it fail.
    ///
    /// # Errors
    /// When there is none of that name.
    pub fn unload_lora(&mut self, name: &str) -> Result<()> {
        match &mut self.lora {
            Some(lora) => lora.unload(name),
            None => Err(no_loras(name)),
        }
    }

    /// The names of the adapters that requests choose from.
    pub fn lora_names(&self) -> Vec<&str> {
        self.lora.iter().flat_map(LoraManager::names).collect()
    }

    /// Whether there is place for another adapter.
    pub(super) fn has_free_lora(&self) -> bool {
        self.lora.as_ref().is_some_and(LoraManager::has_free_slot)
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
    /// As [`new_context`](Self::new_context).
    pub fn context(&self, prompt: &[u32], params: &SamplingParams) -> Result<TextContext> {
        self.new_context(&TextGenerationRequest::new(prompt, params.clone()))
    }

    /// A sequence of a request.
    ///
    /// # Errors
    /// When the prompt is empty, too long or has a token that the vocabulary does not have; when the sequence that is asked for is
    /// longer than the whole cache; when a parameter is not possible; when there are stop sequences or a form and no tokenizer, or
    /// no text can have the form.
    pub fn new_context(&self, request: &TextGenerationRequest) -> Result<TextContext> {
        request.check()?;
        let (prompt, params) = (&request.prompt, &request.sampling_params);
        if prompt.len() >= self.max_length {
            return Err(PipelineError::PromptTooLong { prompt: prompt.len(), max_length: self.max_length });
        }
        if let Some(token) = prompt.iter().find(|token| **token as usize >= self.vocab_size) {
            return Err(PipelineError::Token { token: *token, vocab_size: self.vocab_size });
        }
        if !params.stop.is_empty() {
            self.tokenizer()?;
        }
        let lora = match (&request.lora, &self.lora) {
            (None, _) => None,
            (Some(name), Some(lora)) => Some(lora.slot(name).ok_or_else(|| lora.unknown(name))?),
            (Some(name), None) => return Err(no_loras(name)),
        };
        let matcher = match &request.response_format {
            Some(format) => Some(self.tokenizer()?.matcher(format, &self.eos_token_ids, self.vocab_size)?),
            None => None,
        };
        let wanted = max_tokens_to_generate(prompt.len(), Some(self.max_length), params.max_new_tokens).unwrap_or(0);
        let (page_size, pages, _) = self.cache_pages();
        let capacity = pages.saturating_mul(page_size);
        let longest = match params.max_new_tokens {
            // As many as there is room for.
            None => self.max_length.min(capacity),
            Some(_) => prompt.len() + wanted,
        };
        if longest > capacity || prompt.len() >= capacity {
            return Err(PipelineError::CacheTooSmall { length: longest.max(prompt.len() + 1), capacity });
        }
        // Nobody asks for all that there is room for.
        let expected = if params.max_new_tokens.is_some() { longest } else { prompt.len() };
        let adapter = lora.map_or(0, |lora| lora.serial);
        Ok(TextContext {
            tokens: prompt.clone(),
            prompt_length: prompt.len(),
            processed: 0,
            lease: if wanted == 0 { None } else { Some(self.cache.claim(adapter, expected)?) },
            random: Random(params.seed),
            status: if wanted == 0 { GenerationStatus::MaximumLength } else { GenerationStatus::Active },
            stream: TextStream::default(),
            longest,
            log_probabilities: Vec::new(),
            echo: LogProbabilities::default(),
            lora,
            matcher,
            error: None,
            given: (0, false),
            request: request.clone(),
        })
    }

    /// Computes the next part of each sequence that is not done, and its next token where its prompt ends. How many sequences got
    /// a token. A sequence whose logits are no numbers, or whose form leaves no token, [fails](GenerationStatus::Failed) alone.
    ///
    /// # Errors
    /// When there are more sequences than [`max_batch_size`](PipelineConfig::max_batch_size); when the model fails. The sequences
    /// are as they were then.
    pub fn step(&self, batch: &mut [&mut TextContext]) -> Result<usize> {
        Ok(self.step_batch(batch)?.0)
    }

    /// [`step`](Self::step), with what was computed.
    ///
    /// # Errors
    /// As [`step`](Self::step).
    pub fn step_batch(&self, batch: &mut [&mut TextContext]) -> Result<(usize, BatchInfo)> {
        for context in batch.iter_mut().filter(|context| !context.status.is_done()) {
            if let Err(error) = self.has_adapter(context) {
                context.fail(error);
            }
        }
        let mut active: Vec<&mut TextContext> =
            batch.iter_mut().map(|context| &mut **context).filter(|context| !context.status.is_done()).collect();
        if active.is_empty() {
            return Ok((0, BatchInfo::default()));
        }
        if active.len() > self.slots {
            let (argument, value) = ("batch", active.len().to_string());
            return Err(PipelineError::Argument { argument, value, expected: "at most `max_batch_size` sequences" });
        }
        let mut scheduled: Vec<(&mut TextContext, usize)>;
        let (mut rows, mut wanted, mut offsets) = (Vec::new(), Vec::new(), vec![0]);
        let mut info = BatchInfo { num_steps: 1, ..BatchInfo::default() };
        let Computed { logits, failed } = {
            // Unlocked before a sequence ends, which gives its pages back.
            let mut cache = self.cache.lock();
            let parts = schedule(&mut cache, &mut active, self.limits)?;
            scheduled = active.into_iter().zip(parts).filter(|(_, part)| *part > 0).collect();
            let mut before = 0;
            for (i, (context, part)) in scheduled.iter().enumerate() {
                for row in context.wanted_rows(*part) {
                    rows.push((before + row) as i64);
                    wanted.push((i, context.processed + row));
                }
                before += part;
                offsets.push(rows.len());
                info.past_seq_lens.push(context.processed);
                info.seq_lens.push(*part);
            }
            self.execute(&mut cache, &mut scheduled, &rows)?
        };
        for (i, error) in failed {
            scheduled[i].0.fail(error);
        }
        let on_host = !self.batch_processors.is_empty();
        let random: Vec<Random> = scheduled.iter().map(|(context, _)| context.random.clone()).collect();
        let (mut in_graph, mut sampled) = (Vec::with_capacity(wanted.len()), Vec::with_capacity(wanted.len()));
        for (i, position) in &wanted {
            let context = &mut *scheduled[*i].0;
            let is_sampled = !on_host && position + 1 == context.tokens.len() && context.is_sampled_in_graph();
            in_graph.push(is_sampled);
            sampled.push(match is_sampled {
                true => Row::new(&context.request.sampling_params, &mut context.random),
                false => Row::unused(),
            });
        }
        let draw = || {
            let tokens = if in_graph.contains(&true) { self.sampler.tokens(&logits, &sampled)? } else { Vec::new() };
            // Logits come to the host for what the graph does not know.
            let logits = if in_graph.contains(&false) { logits.to_vec::<f32>()? } else { Vec::new() };
            Ok((tokens, logits))
        };
        let (tokens, logits) = match draw() {
            Ok(drawn) => drawn,
            Err(error) => {
                // The sequences are as they were.
                for ((context, part), random) in scheduled.iter_mut().zip(random) {
                    context.random = random;
                    let length = context.processed.saturating_sub(*part);
                    self.truncate(context, length)?;
                }
                return Err(error);
            }
        };
        let changed = self.changed(&logits, &offsets, &scheduled);
        let (eos_token_ids, tokenizer) = (&self.eos_token_ids, self.tokenizer.as_ref());
        let mut chosen = 0;
        for (at, ((i, position), is_sampled)) in wanted.into_iter().zip(in_graph).enumerate() {
            let context = &mut *scheduled[i].0;
            chosen += usize::from(position + 1 == context.tokens.len());
            match is_sampled {
                true => context.take(tokens.get(at).copied().unwrap_or(-1), eos_token_ids, tokenizer),
                false => {
                    let changed = changed.as_deref().map(|changed| row_of(changed, at, self.vocab_size));
                    let logits = row_of(&logits, at, self.vocab_size);
                    context.advance(position, logits, changed, eos_token_ids, tokenizer);
                }
            }
        }
        Ok((chosen, info))
    }

    /// What the processors of batches make of the logits of a step, if there are any.
    fn changed(&self, logits: &[f32], offsets: &[usize], batch: &[(&mut TextContext, usize)]) -> Option<Vec<f32>> {
        if self.batch_processors.is_empty() {
            return None;
        }
        let (mut logits, contexts) = (logits.to_vec(), batch.iter().map(|(context, _)| &**context).collect::<Vec<_>>());
        let one_each = offsets.iter().enumerate().all(|(i, offset)| i == *offset);
        for processor in &self.batch_processors {
            let logit_offsets = (!one_each).then_some(offsets);
            let (logits, context_batch) = (logits.as_mut_slice(), contexts.as_slice());
            processor.call(BatchProcessorInputs { logits, logit_offsets, context_batch });
        }
        Some(logits)
    }

    /// Whether the adapter of a sequence is loaded, if it has one.
    fn has_adapter(&self, context: &TextContext) -> Result<()> {
        match (context.lora, &self.lora) {
            (Some(slot), Some(lora)) if !lora.has(slot) => {
                Err(lora.unknown(context.request.lora.as_deref().unwrap_or_default()))
            }
            _ => Ok(()),
        }
    }

    /// The tokens that end a text.
    pub(super) fn eos_token_ids(&self) -> &[u32] {
        &self.eos_token_ids
    }

    /// How many tokens can be added before the cache of a sequence is computed again.
    pub(super) fn without_recomputation(&self, context: &TextContext) -> usize {
        match self.limits.recompute_beyond {
            Some(length) if context.processed <= length => length.saturating_sub(context.tokens.len()),
            _ => usize::MAX,
        }
    }

    /// Lets a sequence have at most its first `length` tokens in the cache.
    pub(super) fn truncate(&self, context: &mut TextContext, length: usize) -> Result<()> {
        context.processed = context.processed.min(length);
        match &context.lease {
            Some(lease) => Ok(self.cache.lock().manager.truncate(lease.id, context.processed)?),
            None => Ok(()),
        }
    }

    /// The logits behind every token of a sequence: `[tokens, vocabulary]`, in `float32`.
    ///
    /// # Errors
    /// As [`context`](Self::context) and [`step`](Self::step).
    pub fn logits(&self, tokens: &[u32]) -> Result<Tensor> {
        Ok(self.outputs(&[tokens])?.logits)
    }

    /// The logits behind every token of several sequences, which are computed one behind the other.
    ///
    /// # Errors
    /// As [`logits`](Self::logits).
    pub fn outputs(&self, sequences: &[&[u32]]) -> Result<ModelOutputs> {
        let (mut all, mut last, mut offsets) = (Vec::new(), Vec::new(), vec![0i64]);
        for tokens in sequences {
            let mut context = self.context(tokens, &SamplingParams::greedy().max_new_tokens(1))?;
            let logits = self.last_logits(&mut context, tokens.len())?;
            last.extend_from_slice(&logits[logits.len().saturating_sub(self.vocab_size)..]);
            all.extend(logits);
            offsets.push((all.len() / self.vocab_size.max(1)) as i64);
        }
        let rows = sequences.iter().map(|tokens| tokens.len()).sum();
        Ok(ModelOutputs {
            logits: Tensor::from_vec(all, [rows, self.vocab_size])?,
            next_token_logits: Some(Tensor::from_vec(last, [sequences.len(), self.vocab_size])?),
            logit_offsets: Some(Tensor::from_vec(offsets, [sequences.len() + 1])?),
        })
    }

    /// Computes all of a sequence that is not in the cache, and gives the logits behind its last `count` tokens, which must not be
    /// there.
    pub(super) fn last_logits(&self, context: &mut TextContext, count: usize) -> Result<Vec<f32>> {
        self.has_adapter(context)?;
        let first = context.tokens.len().saturating_sub(count);
        let mut logits = Vec::with_capacity(count * self.vocab_size);
        let mut cache = self.cache.lock();
        restart(&mut cache, context, self.limits)?;
        while context.remaining() > 0 {
            let part = part(context, self.limits.chunk, self.limits);
            if !reserve(&mut cache, context, part)? {
                let (total, available) = (cache.manager.total_blocks(), cache.manager.free_blocks());
                return Err(PipelineError::CacheFull { total, available });
            }
            let row = first.saturating_sub(context.processed).min(part);
            let rows: Vec<i64> = (row as i64..part as i64).collect();
            let computed = self.execute(&mut cache, &mut [(&mut *context, part)], &rows)?;
            if let Some((_, error)) = computed.failed.into_iter().next() {
                return Err(error);
            }
            logits.extend(computed.logits.to_vec::<f32>()?);
        }
        Ok(logits)
    }

    /// Runs the model on the next tokens of sequences, so many of each, and gives the logits of rows.
    fn execute(&self, cache: &mut Cache, batch: &mut [(&mut TextContext, usize)], rows: &[i64]) -> Result<Computed> {
        let (mut ids, mut sequences) = (Vec::with_capacity(batch.len()), Vec::with_capacity(batch.len()));
        let (mut tokens, mut positions) = (Vec::new(), Vec::new());
        for (context, part) in batch.iter() {
            let new = context.processed..context.processed + part;
            tokens.extend(context.tokens[new.clone()].iter().map(|token| i64::from(*token)));
            positions.extend(new.map(|position| position as i64));
            sequences.push((context.processed, *part));
            ids.extend(context.lease.as_ref().map(|lease| lease.id));
        }
        let (table, columns) = cache.manager.lookup_table(&ids)?;
        let paging = PagedKvCacheInputs::new(&sequences, table, columns)?;
        let count = tokens.len();
        let shared = [
            Tensor::from_slice(rows, [rows.len()])?,
            Tensor::from_vec(tokens, [count])?,
            Tensor::from_vec(positions, [count])?,
        ];
        let slots: Vec<i32> =
            batch.iter().map(|(context, _)| context.lora.map_or(-1, |lora| lora.index as i32)).collect();
        let slots = self.lora.is_some().then(|| Tensor::from_slice(&slots, [slots.len()])).transpose()?;
        let adapters = slots.iter().chain(self.lora.iter().flat_map(LoraManager::tensors));
        let inputs = shared.iter().chain(adapters).chain(paging.tensors()).map(Input::from);
        let inputs: Vec<Input<'_>> = inputs.chain(cache.memory.tensors_mut().iter_mut().map(Input::from)).collect();
        let outputs = self.model.execute(inputs)?;
        let (logits, flags) = match &*outputs {
            [logits, flags @ ..] => (logits.clone(), flags),
            [] => (Tensor::from_vec(Vec::<f32>::new(), [0, self.vocab_size])?, &[][..]),
        };
        let (mut failed, mut first) = (Vec::new(), 0);
        for (i, (context, part)) in batch.iter().enumerate() {
            let new = first..first + part;
            if let Some(check) = &self.numerics
                && let Some((layer, token)) = check.first_layer(flags, &new, rows)?
            {
                let position = context.processed + token - first;
                failed.push((i, PipelineError::NotFinite { layer: layer.to_owned(), position }));
            }
            first = new.end;
        }
        for ((context, part), id) in batch.iter_mut().zip(ids) {
            context.processed += *part;
            cache.manager.step(id, &context.tokens[..context.processed])?;
        }
        Ok(Computed { logits, failed })
    }

    /// Continues prompts: [`generate_requests`](Self::generate_requests) with the same parameters for all.
    ///
    /// # Errors
    /// As [`generate_requests`](Self::generate_requests).
    pub fn generate(
        &self,
        prompts: &[Vec<u32>],
        params: &SamplingParams,
        on_step: impl FnMut(usize, &mut TextContext),
    ) -> Result<(Vec<TextGenerationOutput>, Timing)> {
        let request = |prompt: &Vec<u32>| TextGenerationRequest::new(prompt.as_slice(), params.clone());
        self.generate_requests(&prompts.iter().map(request).collect::<Vec<_>>(), on_step)
    }

    /// Continues prompts, as many at a time as the batch holds: a sequence that is done makes room for the next. `on_step` hears of
    /// each sequence by its number, whenever it has a new token. A sequence that fails alone has its
    /// [error](TextGenerationOutput::error) in its output.
    ///
    /// # Errors
    /// As [`new_context`](Self::new_context), of all requests before any is computed, and as [`step`](Self::step).
    pub fn generate_requests(
        &self,
        requests: &[TextGenerationRequest],
        mut on_step: impl FnMut(usize, &mut TextContext),
    ) -> Result<(Vec<TextGenerationOutput>, Timing)> {
        let contexts = requests.iter().map(|request| self.new_context(request)).collect::<Result<Vec<_>>>()?;
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
            let prompts = running.iter().any(|(_, context)| context.tokens.len() == context.prompt_length);
            let (_, info) = self.step_batch(&mut running.iter_mut().map(|(_, context)| context).collect::<Vec<_>>())?;
            let (time, tokens) = match prompts {
                true => (&mut timing.prefill, &mut timing.prefill_tokens),
                false => (&mut timing.decode, &mut timing.decode_tokens),
            };
            *time += start.elapsed();
            *tokens += info.tokens();
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

/// That there is no place for adapters.
fn no_loras(name: &str) -> PipelineError {
    let reason = "the model was loaded without `lora_paths`".to_owned();
    PipelineError::Lora { name: name.to_owned(), reason }
}

/// Row `at` of some logits.
fn row_of(logits: &[f32], at: usize, vocab_size: usize) -> &[f32] {
    logits.get(at * vocab_size..(at + 1) * vocab_size).unwrap_or_default()
}
