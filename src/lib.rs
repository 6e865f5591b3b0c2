//! MAX for Rust: a graph compiler and runtime for AI models whose kernels are Rust functions, written once.

pub use max_core::*;

// Linked by name, so that the built-in kernels register themselves in every program that uses this crate.
extern crate max_kernels as _;
