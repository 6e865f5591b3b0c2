//! Phi 3: a Llama whose projections lie in one weight, with LongRoPE in the models for long sequences.

use super::DecoderConfig;
use super::decoder::llama_name;
use crate::model::WeightPart;
use crate::registry::SupportedArchitecture;

pub(super) fn architecture() -> SupportedArchitecture {
    SupportedArchitecture::text_generation("Phi3ForCausalLM", |config| {
        let decoder = DecoderConfig::new(config)?.windowed(config)?;
        Ok(Box::new(decoder.llama()?))
    })
    .weight_adapter(|config, name| {
        let Some(name) = llama_name(config, name)? else { return Ok(Vec::new()) };
        let decoder = DecoderConfig::new(config)?;
        let sizes = |heads: usize| heads * decoder.head_dim;
        let (q, k) = (sizes(decoder.num_attention_heads), sizes(decoder.num_key_value_heads));
        let parts: &[(&str, usize)] = match &name {
            name if name.contains("qkv_proj") => &[("q_proj", q), ("k_proj", k), ("v_proj", k)],
            name if name.contains("gate_up_proj") => {
                &[("gate_proj", decoder.intermediate_size), ("up_proj", decoder.intermediate_size)]
            }
            _ => return Ok(vec![(name, WeightPart::whole())]),
        };
        let (mut start, mut found) = (0, Vec::new());
        for (part, size) in parts {
            let name = name.replace("qkv_proj", part).replace("gate_up_proj", part);
            found.push((name, WeightPart::rows(start..start + size)));
            start += size;
        }
        Ok(found)
    })
    .example_repo_ids(&["microsoft/Phi-3.5-mini-instruct"])
}
