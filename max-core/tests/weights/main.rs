//! Weights in GGUF files: one that ggml's own Python package wrote, and damaged ones.

extern crate max_core as max;

mod damaged;
mod gguf;
