//! OLMo 2: norms stand behind attention and the feed-forward layer, and queries and keys are normalized as whole rows.

use super::DecoderConfig;
use super::decoder::renamed;
use crate::registry::SupportedArchitecture;

pub(super) fn architecture() -> SupportedArchitecture {
    SupportedArchitecture::text_generation("Olmo2ForCausalLM", |config| {
        let decoder = DecoderConfig::new(config)?;
        Ok(Box::new(decoder.transformer(|layer| {
            let mut block = decoder.block(layer, Box::new(decoder.mlp(decoder.intermediate_size)?))?;
            block.attention_output_norm = block.input_layernorm.take();
            block.mlp_output_norm = block.post_attention_layernorm.take();
            block.self_attn.q_norm = Some(decoder.norm(decoder.num_attention_heads * decoder.head_dim)?);
            block.self_attn.k_norm = Some(decoder.norm(decoder.num_key_value_heads * decoder.head_dim)?);
            Ok(block)
        })?))
    })
    .weight_adapter(renamed(&[
        ("post_attention_layernorm", "attention_output_norm"),
        ("post_feedforward_layernorm", "mlp_output_norm"),
    ]))
    .example_repo_ids(&["allenai/OLMo-2-0425-1B-Instruct"])
}
