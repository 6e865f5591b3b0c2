//! `max generate`: text that continues prompts.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args as ClapArgs;
use max::pipelines::{
    ChatMessage, PipelineConfig, PipelineError, SamplingParams, SpeculativeDecodingMetrics,
    SpeculativeDecodingTextGenerationPipeline, TextContext, TextGenerationOutput, TextGenerationPipeline,
    TextGenerationRequest, TextGenerationResponseFormat, Timing,
};
use serde_json::Value;

use super::report::report;
use super::{ModelArgs, PromptArgs, read};
use crate::error::CliError;
use crate::interrupt;

/// The arguments of `max generate`.
#[derive(ClapArgs)]
pub struct GenerateArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    prompts: PromptArgs,
    /// Take the prompt as a user's message, in the model's chat template
    #[arg(long)]
    chat: bool,
    /// What the model is told before the conversation
    #[arg(long, value_name = "TEXT", requires = "chat")]
    system: Option<String>,
    /// A chat template in place of the model's own
    #[arg(long, value_name = "FILE")]
    chat_template: Option<PathBuf>,
    /// The most new tokens
    #[arg(long, value_name = "N", default_value_t = 100)]
    max_new_tokens: usize,
    /// The fewest new tokens
    #[arg(long, value_name = "N", default_value_t = 0)]
    min_new_tokens: usize,
    /// Divide logits by this and draw a token; at 0 the likeliest is taken
    #[arg(long, value_name = "T", default_value_t = 0.0)]
    temperature: f64,
    /// Draw from so many of the likeliest tokens, -1 for all
    #[arg(long, value_name = "K", default_value_t = -1)]
    top_k: i64,
    /// Draw from the likeliest tokens whose shares add up to this
    #[arg(long, value_name = "P", default_value_t = 1.0)]
    top_p: f64,
    /// Draw from tokens with at least this share of the likeliest
    #[arg(long, value_name = "P", default_value_t = 0.0)]
    min_p: f64,
    /// Divide the logits of tokens that were generated
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    repetition_penalty: f64,
    /// Lower the logits of tokens for each time that they were generated
    #[arg(long, value_name = "X", default_value_t = 0.0)]
    frequency_penalty: f64,
    /// Lower the logits of tokens that were generated
    #[arg(long, value_name = "X", default_value_t = 0.0)]
    presence_penalty: f64,
    /// The same seed draws the same tokens
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// A text that ends the text before it; may be repeated
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,
    /// Take the model's own end as a token as all others
    #[arg(long)]
    ignore_eos: bool,
    /// A token that ends the text; may be repeated
    #[arg(long, value_name = "ID")]
    stop_token_id: Vec<u32>,
    /// With `--json`: the log probabilities of each new token, and of so many of the likeliest
    #[arg(long, value_name = "N", default_value_t = 0, requires = "json")]
    logprobs: usize,
    /// With `--logprobs`: those of the prompt's tokens, too
    #[arg(long)]
    echo: bool,
    /// The text is JSON that the schema of this file describes
    #[arg(long, value_name = "FILE", conflicts_with_all = ["grammar", "regex"])]
    json_schema: Option<PathBuf>,
    /// The text is one of the context-free grammar of this file, in Lark's syntax
    #[arg(long, value_name = "FILE", conflicts_with = "regex")]
    grammar: Option<PathBuf>,
    /// The text matches this regular expression
    #[arg(long, value_name = "REGEX")]
    regex: Option<String>,
    /// How many prompts are computed together: 1 unless a file or the environment says so
    #[arg(long, value_name = "N")]
    max_batch_size: Option<usize>,
    /// How many tokens of prompts are computed at once: 8192 unless a file or the environment says so
    #[arg(long, value_name = "N")]
    prefill_chunk_size: Option<usize>,
    /// A smaller model of the same vocabulary, which drafts tokens that the model then verifies together
    #[arg(long, value_name = "PATH")]
    draft_model: Option<PathBuf>,
    /// How many tokens it drafts at once: 4 unless a file or the environment says so
    #[arg(long, value_name = "N")]
    num_speculative_tokens: Option<usize>,
    /// The adapter of `--lora-paths` that continues them, by the name of its folder
    #[arg(long, value_name = "NAME")]
    lora_name: Option<String>,
    /// Continue so many random tokens instead of a prompt, twice, and report the second time as JSON
    #[arg(long, value_name = "N", conflicts_with = "chat")]
    bench_prompt: Option<usize>,
    /// By so many tokens, whether the model would end or not
    #[arg(long, value_name = "N", requires = "bench_prompt", conflicts_with_all = ["max_new_tokens", "ignore_eos"])]
    bench_new: Option<usize>,
    /// Print the text of a single prompt as it comes
    #[arg(long, conflicts_with = "json")]
    stream: bool,
    /// Print tokens, text and times as JSON
    #[arg(long)]
    json: bool,
}

impl GenerateArgs {
    fn config(&self) -> Result<PipelineConfig, CliError> {
        let builder = self.model.builder()?;
        let builder = builder.flag_if("max_batch_size", self.max_batch_size);
        let builder = builder.flag_if("prefill_chunk_size", self.prefill_chunk_size);
        let builder = builder.flag_if("num_speculative_tokens", self.num_speculative_tokens);
        let mut config = self.model.build(&builder)?;
        config.draft_model_path = self.draft_model.clone().or(config.draft_model_path);
        config.chat_template = self.chat_template.clone().or(config.chat_template);
        Ok(config)
    }

    fn params(&self) -> SamplingParams {
        SamplingParams {
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            temperature: self.temperature,
            frequency_penalty: self.frequency_penalty,
            presence_penalty: self.presence_penalty,
            repetition_penalty: self.repetition_penalty,
            max_new_tokens: Some(self.bench_new.unwrap_or(self.max_new_tokens)),
            min_new_tokens: self.min_new_tokens,
            ignore_eos: self.ignore_eos || self.bench_new.is_some(),
            stop: self.stop.clone(),
            stop_token_ids: self.stop_token_id.clone(),
            seed: self.seed,
            ..SamplingParams::default()
        }
    }

    /// What the text has to be.
    fn response_format(&self) -> Result<Option<TextGenerationResponseFormat>, CliError> {
        let schema = |path: &Path| {
            let schema = serde_json::from_str::<Value>(&read(path)?);
            let path = path.to_path_buf();
            schema.map(TextGenerationResponseFormat::JsonSchema).map_err(|source| CliError::Json { path, source })
        };
        if let Some(path) = &self.json_schema {
            return schema(path).map(Some);
        }
        let grammar =
            self.grammar.as_deref().map(|path| Ok::<_, CliError>(TextGenerationResponseFormat::Grammar(read(path)?)));
        let regex = self.regex.clone().map(|regex| Ok(TextGenerationResponseFormat::Regex(regex)));
        grammar.or(regex).transpose()
    }

    fn requests(
        &self,
        pipeline: &TextGenerationPipeline,
        batch: usize,
    ) -> Result<Vec<TextGenerationRequest>, CliError> {
        let (format, params) = (self.response_format()?, self.params());
        let request = |prompt: Vec<u32>| TextGenerationRequest {
            logprobs: self.logprobs,
            echo: self.echo,
            response_format: format.clone(),
            lora: self.lora_name.clone(),
            ..TextGenerationRequest::new(prompt, params.clone())
        };
        Ok(self.tokens(pipeline, batch)?.into_iter().map(request).collect())
    }

    fn tokens(&self, pipeline: &TextGenerationPipeline, batch: usize) -> Result<Vec<Vec<u32>>, CliError> {
        if let Some(length) = self.bench_prompt {
            return Ok((0..batch as u32).map(|seed| random_tokens(length, pipeline.vocab_size(), seed)).collect());
        }
        let prompts = self.prompts.required()?;
        if !self.chat {
            return prompts.tokens(|| pipeline.tokenizer());
        }
        let tokenizer = pipeline.tokenizer()?;
        let system = self.system.iter().map(ChatMessage::system);
        let prompt = |text: String| {
            let messages: Vec<ChatMessage> = system.clone().chain([ChatMessage::user(text)]).collect();
            Ok(tokenizer.encode(&tokenizer.apply_chat_template(&messages)?, false)?)
        };
        prompts.texts()?.into_iter().map(prompt).collect()
    }
}

/// Runs the command. Ctrl-C ends it with what there is, if it `listens`.
pub fn generate(args: &GenerateArgs, out: &mut dyn Write, listens: bool) -> Result<(), CliError> {
    let start = Instant::now();
    let config = args.config()?;
    let pipeline = Pipeline::new(&config)?;
    let load = start.elapsed();
    // Before, there is no text that could be kept: Ctrl-C ends a download or a load at once.
    if listens {
        interrupt::listen();
    }
    let requests = args.requests(pipeline.target(), config.max_batch_size)?;
    if args.bench_prompt.is_some() {
        // What the first execution prepares is not measured. Another prompt, since the cache keeps the blocks of one that was computed.
        let short = |request: &TextGenerationRequest| {
            let sampling_params = request.sampling_params.clone().max_new_tokens(2);
            let prompt = request.prompt.iter().rev().copied().collect();
            TextGenerationRequest { sampling_params, prompt, ..request.clone() }
        };
        pipeline.generate(&requests.iter().map(short).collect::<Vec<_>>(), &mut |_| {})?;
    }
    let stream = args.stream && requests.len() == 1;
    let mut failed = Ok(());
    let (outputs, timing, metrics) = pipeline.generate(&requests, &mut |context| {
        if stream && failed.is_ok() {
            let text = context.take_text();
            failed = write!(out, "{text}").and_then(|()| out.flush());
        }
        if failed.is_err() || interrupt::was_pressed() {
            // Nobody reads it any more.
            context.cancel();
        }
    })?;
    failed.map_err(CliError::Output)?;
    if args.json || args.bench_prompt.is_some() {
        writeln!(out, "{}", report(&outputs, load, &timing, metrics)).map_err(CliError::Output)?;
    } else if stream {
        writeln!(out).map_err(CliError::Output)?;
    } else {
        let has_text = pipeline.target().tokenizer().is_ok();
        for output in &outputs {
            let tokens = || output.tokens.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
            writeln!(out, "{}", if has_text { output.text.clone() } else { tokens() }).map_err(CliError::Output)?;
        }
    }
    match outputs.into_iter().find_map(|output| output.error) {
        _ if interrupt::was_pressed() => Err(CliError::Interrupted),
        Some(error) => Err(CliError::Request(error)),
        None => Ok(()),
    }
}

/// A model alone, or with one that drafts for it.
enum Pipeline {
    Alone(Box<TextGenerationPipeline>),
    Drafted(Box<SpeculativeDecodingTextGenerationPipeline>),
}

/// What is generated, in which time, and how much of it was drafted.
type Generated = (Vec<TextGenerationOutput>, Timing, Option<SpeculativeDecodingMetrics>);

impl Pipeline {
    fn new(config: &PipelineConfig) -> Result<Pipeline, PipelineError> {
        Ok(match &config.draft_model_path {
            Some(_) => Pipeline::Drafted(Box::new(SpeculativeDecodingTextGenerationPipeline::new(config)?)),
            None => Pipeline::Alone(Box::new(TextGenerationPipeline::new(config)?)),
        })
    }

    fn target(&self) -> &TextGenerationPipeline {
        match self {
            Pipeline::Alone(pipeline) => pipeline,
            Pipeline::Drafted(pipeline) => pipeline.target(),
        }
    }

    fn generate(
        &self,
        requests: &[TextGenerationRequest],
        on_step: &mut dyn FnMut(&mut TextContext),
    ) -> Result<Generated, PipelineError> {
        match self {
            Pipeline::Alone(pipeline) => {
                let (outputs, timing) = pipeline.generate_requests(requests, |_, context| on_step(context))?;
                Ok((outputs, timing, None))
            }
            Pipeline::Drafted(pipeline) => {
                let (outputs, timing, metrics) = pipeline.generate_requests(requests, |_, context| on_step(context))?;
                Ok((outputs, timing, Some(metrics)))
            }
        }
    }
}

/// Tokens that differ from each other, always the same for a seed.
fn random_tokens(count: usize, vocab_size: usize, seed: u32) -> Vec<u32> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(1);
    let next = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        ((u64::from(state) * vocab_size as u64) >> 32) as u32
    };
    (0..count).map(next).collect()
}
