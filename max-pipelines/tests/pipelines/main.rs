//! Models of each architecture against what transformers computes, and pipelines on them.

mod architectures;
mod batching;
mod errors;
mod folders;
mod generation;
mod gguf;
mod gguf_write;
mod interfaces;
mod log_probabilities;
mod lora;
#[path = "../../examples/own_architecture.rs"]
mod own_architecture;
mod quantization_config;
mod quantized;
mod samplers;
mod speculative;
mod structured_output;
