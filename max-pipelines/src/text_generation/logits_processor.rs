//! [`LogitsProcessor`]: a function of one's own that changes logits before a token is chosen.

use std::fmt;
use std::sync::Arc;

use super::TextContext;

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

    pub(super) fn call(&self, inputs: ProcessorInputs<'_>) {
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
