//! [`LLM`]: prompts in, text out.

use crate::config::PipelineConfig;
use crate::error::Result;
use crate::registry::PipelineRegistry;
use crate::text_generation::{SamplingParams, TextGenerationOutput, TextGenerationPipeline};
use crate::tokenizer::ChatMessage;

/// A language model: prompts in, text out.
///
/// ```no_run
/// use max_pipelines::{LLM, PipelineConfig, SamplingParams};
///
/// let llm = LLM::new(&PipelineConfig::new("models/llama"))?;
/// let params = SamplingParams::greedy().max_new_tokens(64);
/// for output in llm.generate(&["In the beginning", "The answer is"], &params)? {
///     println!("{}", output.text);
/// }
/// # Ok::<(), max_pipelines::PipelineError>(())
/// ```
pub struct LLM {
    pipeline: TextGenerationPipeline,
}

impl LLM {
    /// Loads a model.
    ///
    /// # Errors
    /// As [`TextGenerationPipeline::new`].
    pub fn new(config: &PipelineConfig) -> Result<LLM> {
        Ok(LLM { pipeline: TextGenerationPipeline::new(config)? })
    }

    /// As [`new`](Self::new), with the architectures of a registry.
    ///
    /// # Errors
    /// As [`TextGenerationPipeline::new`].
    pub fn with_registry(config: &PipelineConfig, registry: &PipelineRegistry) -> Result<LLM> {
        Ok(LLM { pipeline: TextGenerationPipeline::with_registry(config, registry)? })
    }

    /// What continues each of the prompts, in their order. Threads may share a model. A prompt that fails alone has its
    /// [error](TextGenerationOutput::error) in its output.
    ///
    /// # Errors
    /// When the model has no tokenizer; as [`TextGenerationPipeline::generate`].
    pub fn generate<S: AsRef<str>>(&self, prompts: &[S], params: &SamplingParams) -> Result<Vec<TextGenerationOutput>> {
        let tokenizer = self.pipeline.tokenizer()?;
        let prompts =
            prompts.iter().map(|prompt| tokenizer.encode(prompt.as_ref(), true)).collect::<Result<Vec<_>>>()?;
        Ok(self.pipeline.generate(&prompts, params, |_, _| {})?.0)
    }

    /// The model's next message of a conversation.
    ///
    /// # Errors
    /// When the model has no tokenizer or no chat template; as [`TextGenerationPipeline::generate`].
    pub fn chat(&self, messages: &[ChatMessage], params: &SamplingParams) -> Result<TextGenerationOutput> {
        let tokenizer = self.pipeline.tokenizer()?;
        // The template writes special tokens itself.
        let prompt = tokenizer.encode(&tokenizer.apply_chat_template(messages)?, false)?;
        let mut context = self.pipeline.context(&prompt, params)?;
        while !context.status().is_done() {
            self.pipeline.step(&mut [&mut context])?;
        }
        Ok(context.output())
    }

    /// The pipeline: tokens one at a time, logits, the tokenizer.
    pub fn pipeline(&self) -> &TextGenerationPipeline {
        &self.pipeline
    }
}
