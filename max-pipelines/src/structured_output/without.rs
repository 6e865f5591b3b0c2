//! What stands for matchers in a build without them: none can be made.

use tokenizers::Tokenizer;

use super::TextGenerationResponseFormat;
use crate::error::{PipelineError, Result};

/// A matcher that there is not.
pub(crate) enum Matcher {}

impl Matcher {
    pub fn mask(&mut self, _: &mut [f32]) -> Result<()> {
        match *self {}
    }

    pub fn consume(&mut self, _: u32) -> Result<bool> {
        match *self {}
    }
}

/// The forms of texts that can be held: none.
pub(crate) struct Grammars;

impl Grammars {
    pub fn new() -> Grammars {
        Grammars
    }

    pub fn matcher(
        &self,
        format: &TextGenerationResponseFormat,
        _: &Tokenizer,
        _: &[u32],
        _: usize,
    ) -> Result<Matcher> {
        let reason = "this program was built without the feature `structured_output`: build it with that".into();
        Err(PipelineError::ResponseFormat { kind: format.kind(), reason })
    }
}
