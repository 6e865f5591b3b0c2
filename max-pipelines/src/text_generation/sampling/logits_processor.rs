//! [`LogitsProcessor`] and [`BatchLogitsProcessor`]: functions of one's own that change logits before tokens are chosen.

use std::fmt;
use std::sync::Arc;

use crate::text_generation::TextContext;

/// What a [`LogitsProcessor`] is given.
pub struct ProcessorInputs<'a> {
    /// The logits of the next token, one for each of the vocabulary; negative infinity rules a token out.
    pub logits: &'a mut [f32],
    /// The sequence so far.
    pub context: &'a TextContext,
}

/// A function that changes logits before penalties, masks and temperature. Clones are the same function, and only these are
/// equal.
///
/// ```
/// use max_pipelines::{LogitsProcessor, ProcessorInputs, SamplingParams};
///
/// // Never token 13.
/// let never = LogitsProcessor::new(|inputs: ProcessorInputs<'_>| {
///     if let Some(logit) = inputs.logits.get_mut(13) {
///         *logit = f32::NEG_INFINITY;
///     }
/// });
/// let params = SamplingParams { logits_processors: vec![never], ..SamplingParams::greedy() };
/// ```
#[derive(Clone)]
pub struct LogitsProcessor(Arc<dyn Fn(ProcessorInputs<'_>) + Send + Sync>);

impl LogitsProcessor {
    /// Of a function.
    pub fn new(function: impl Fn(ProcessorInputs<'_>) + Send + Sync + 'static) -> LogitsProcessor {
        LogitsProcessor(Arc::new(function))
    }

    pub(in crate::text_generation) fn call(&self, inputs: ProcessorInputs<'_>) {
        (self.0)(inputs);
    }
}

impl fmt::Debug for LogitsProcessor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LogitsProcessor")
    }
}

impl PartialEq for LogitsProcessor {
    fn eq(&self, other: &LogitsProcessor) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// What a [`BatchLogitsProcessor`] is given.
pub struct BatchProcessorInputs<'a> {
    /// The logits of rows behind each other, as many of each as the vocabulary has; negative infinity rules a token out.
    pub logits: &'a mut [f32],
    /// Where the rows of each sequence begin, and where those of the last one end, unless each has one: a part of a prompt has none, and
    /// with [`echo`](crate::TextGenerationRequest::echo) each of its tokens has one.
    pub logit_offsets: Option<&'a [usize]>,
    /// The sequences of the step.
    pub context_batch: &'a [&'a TextContext],
}

/// A function that changes the logits of all sequences of a step, before those of each go through its own [`LogitsProcessor`]s. Log
/// probabilities are the model's own nevertheless. Clones are the same function.
///
/// ```
/// use max_pipelines::{BatchLogitsProcessor, BatchProcessorInputs};
///
/// // Texts that are done together: no sequence ends before the others are as long.
/// let together = BatchLogitsProcessor::new(|inputs: BatchProcessorInputs<'_>| {
///     let shortest = inputs.context_batch.iter().map(|context| context.generated().len()).min().unwrap_or(0);
///     let vocabulary = inputs.logits.len() / inputs.context_batch.len().max(1);
///     if inputs.logit_offsets.is_none() && shortest < 8 {
///         inputs.logits.chunks_mut(vocabulary.max(1)).for_each(|row| row[1] = f32::NEG_INFINITY);
///     }
/// });
/// ```
#[derive(Clone)]
pub struct BatchLogitsProcessor(Arc<dyn Fn(BatchProcessorInputs<'_>) + Send + Sync>);

impl BatchLogitsProcessor {
    /// Of a function.
    pub fn new(function: impl Fn(BatchProcessorInputs<'_>) + Send + Sync + 'static) -> BatchLogitsProcessor {
        BatchLogitsProcessor(Arc::new(function))
    }

    pub(in crate::text_generation) fn call(&self, inputs: BatchProcessorInputs<'_>) {
        (self.0)(inputs);
    }
}

impl fmt::Debug for BatchLogitsProcessor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BatchLogitsProcessor")
    }
}
