//! Qwen 2: a Llama whose queries, keys and values have biases.

use super::DecoderConfig;
use crate::registry::SupportedArchitecture;

pub(super) fn architecture() -> SupportedArchitecture {
    SupportedArchitecture::text_generation("Qwen2ForCausalLM", |config| {
        let mut decoder = DecoderConfig { qkv_bias: true, o_bias: false, ..DecoderConfig::new(config)? };
        if config.bool_or("use_sliding_window", false)? {
            decoder = decoder.windowed(config)?;
        }
        Ok(Box::new(decoder.llama()?))
    })
    .example_repo_ids(&["Qwen/Qwen2.5-0.5B-Instruct"])
}
