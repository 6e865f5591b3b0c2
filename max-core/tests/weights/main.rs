//! Weights in GGUF and PyTorch files: those that the formats' own packages wrote, and damaged ones.

extern crate max_core as max;

mod damaged;
mod gguf;
mod gguf_convert;
mod pytorch;
