//! From PTX text to its syntax tree.

pub(crate) mod error;
pub(crate) mod lex;
pub(crate) mod syntax;
