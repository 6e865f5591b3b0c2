//! Quantized weights of folders: which there are, and their blocks or numbers.

mod group_quantized;
pub(super) mod quantization_config;
