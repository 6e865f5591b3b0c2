//! [`PipelineTokenizer`]: what makes tokens of texts, and texts of tokens.

use super::TextTokenizer;
use crate::error::Result;

/// What makes the form that a pipeline computes on of texts, and texts of what comes out.
pub trait PipelineTokenizer: Send + Sync {
    /// What a pipeline computes on.
    type Encoded;

    /// What ends a text; `None` where nothing does.
    fn eos(&self) -> Option<u32>;

    /// Whether chat templates take contents of messages as lists of parts, and not as texts.
    fn expects_content_wrapping(&self) -> bool {
        false
    }

    /// What a prompt is to the pipeline; with what the model wants before and behind it, if `add_special_tokens`.
    ///
    /// # Errors
    /// When the prompt cannot be encoded.
    fn encode(&self, prompt: &str, add_special_tokens: bool) -> Result<Self::Encoded>;

    /// The text of what a pipeline made.
    ///
    /// # Errors
    /// When it has none.
    fn decode(&self, encoded: &Self::Encoded) -> Result<String>;
}

impl PipelineTokenizer for TextTokenizer {
    type Encoded = Vec<u32>;

    fn eos(&self) -> Option<u32> {
        TextTokenizer::eos(self)
    }

    fn encode(&self, prompt: &str, add_special_tokens: bool) -> Result<Vec<u32>> {
        TextTokenizer::encode(self, prompt, add_special_tokens)
    }

    fn decode(&self, encoded: &Vec<u32>) -> Result<String> {
        TextTokenizer::decode(self, encoded)
    }
}

/// Of pipelines that take texts as they are.
///
/// ```
/// use max_pipelines::{IdentityPipelineTokenizer, PipelineTokenizer};
///
/// let same = |tokenizer: &dyn PipelineTokenizer<Encoded = String>| tokenizer.decode(&tokenizer.encode("as it is", true)?);
/// assert_eq!(same(&IdentityPipelineTokenizer)?, "as it is");
/// assert_eq!(IdentityPipelineTokenizer.eos(), None);
/// # Ok::<(), max_pipelines::PipelineError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct IdentityPipelineTokenizer;

impl PipelineTokenizer for IdentityPipelineTokenizer {
    type Encoded = String;

    fn eos(&self) -> Option<u32> {
        None
    }

    fn encode(&self, prompt: &str, _: bool) -> Result<String> {
        Ok(prompt.to_owned())
    }

    fn decode(&self, encoded: &String) -> Result<String> {
        Ok(encoded.clone())
    }
}
