//! What can go wrong before a kernel runs: text that is not understood.

use thiserror::Error;

/// PTX text that the simulator does not accept: a syntax error, an unknown
/// instruction or modifier, an operand of the wrong type, a missing symbol.
///
/// ```
/// let text = ".version 8.0\n.target sm_80\n.address_size 64\n.entry k() { frobnicate.u32; }";
/// let error = ptx_sim::Module::parse(text).unwrap_err();
/// assert_eq!(error.line, 4);
/// assert!(error.to_string().contains("frobnicate"));
/// ```
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("PTX line {line}: {message}\n    {text}")]
pub struct ParseError {
    /// The 1-based line in the text.
    pub line: u32,
    /// That line, trimmed.
    pub text: String,
    /// What is wrong with it.
    pub message: String,
}

impl ParseError {
    pub(crate) fn new(line: u32, text: &str, message: impl Into<String>) -> Self {
        ParseError { line, text: text.trim().to_owned(), message: message.into() }
    }
}
