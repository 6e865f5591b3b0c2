//! Llama 1 to 3, and Mistral, which is a Llama with a window.

use super::DecoderConfig;
use crate::registry::SupportedArchitecture;

/// Llama.
pub(super) fn llama() -> SupportedArchitecture {
    SupportedArchitecture::text_generation("LlamaForCausalLM", |config| {
        let decoder = DecoderConfig::new(config)?;
        Ok(Box::new(decoder.llama()?))
    })
    .example_repo_ids(&["meta-llama/Llama-3.2-1B-Instruct", "HuggingFaceTB/SmolLM2-135M-Instruct"])
}

/// Mistral.
pub(super) fn mistral() -> SupportedArchitecture {
    SupportedArchitecture::text_generation("MistralForCausalLM", |config| {
        let decoder = DecoderConfig::new(config)?.windowed(config)?;
        Ok(Box::new(decoder.llama()?))
    })
    .example_repo_ids(&["mistralai/Mistral-7B-Instruct-v0.3"])
}
