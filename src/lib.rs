//! MAX for Rust.
pub use max_core::*;
