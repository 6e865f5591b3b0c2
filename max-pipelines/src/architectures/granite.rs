//! Granite: a Llama with multipliers of embeddings, attention, residuals and logits.

use super::DecoderConfig;
use crate::registry::SupportedArchitecture;

pub(super) fn architecture() -> SupportedArchitecture {
    SupportedArchitecture::text_generation("GraniteForCausalLM", |config| {
        let decoder = DecoderConfig::new(config)?;
        let mut model = decoder.llama()?;
        model.embedding_multiplier = config.opt_f64("embedding_multiplier")?.unwrap_or(1.0);
        model.logits_scaling = config.opt_f64("logits_scaling")?.unwrap_or(1.0);
        for block in model.layers.iter_mut() {
            block.self_attn.scale = config.opt_f64("attention_multiplier")?.unwrap_or(1.0);
            block.residual_multiplier = config.opt_f64("residual_multiplier")?.unwrap_or(1.0);
        }
        Ok(Box::new(model))
    })
    .example_repo_ids(&["ibm-granite/granite-3.1-2b-instruct"])
}
