//! MAX for Rust: a graph compiler and runtime for AI models whose kernels are Rust functions, written once.
