//! [`TextGenerationResponseFormat`]: a form that a text must have, held by masks over the tokens that may come next.

#[cfg(feature = "structured_output")]
mod matcher;
#[cfg(feature = "structured_output")]
mod token_bytes;
#[cfg(not(feature = "structured_output"))]
mod without;

use serde_json::Value;

#[cfg(feature = "structured_output")]
pub(crate) use matcher::{Grammars, Matcher};
#[cfg(not(feature = "structured_output"))]
pub(crate) use without::{Grammars, Matcher};

/// A form that a text must have: of the tokens that may come next, those that break it are ruled out. It takes the feature
/// `structured_output`.
///
/// ```
/// use max_pipelines::TextGenerationResponseFormat;
///
/// let schema = serde_json::json!({"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]});
/// let format = TextGenerationResponseFormat::JsonSchema(schema);
/// ```
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub enum TextGenerationResponseFormat {
    /// JSON that a schema describes: of JSON Schema's draft 2020-12, what
    /// [llguidance](https://github.com/guidance-ai/llguidance) knows.
    JsonSchema(Value),
    /// A context-free grammar in Lark's syntax, whose first rule is `start`.
    Grammar(String),
    /// A regular expression that the whole text matches.
    Regex(String),
}

impl TextGenerationResponseFormat {
    /// What it is.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            TextGenerationResponseFormat::JsonSchema(_) => "JSON schema",
            TextGenerationResponseFormat::Grammar(_) => "grammar",
            TextGenerationResponseFormat::Regex(_) => "regular expression",
        }
    }
}
