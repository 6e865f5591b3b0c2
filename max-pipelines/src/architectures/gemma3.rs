//! Gemma 3 for text: four norms a layer, whose weights are stored around 0; most layers see a window, with a rotary embedding of
//! their own.

use super::decoder::renamed;
use super::{DecoderConfig, rope};
use crate::registry::SupportedArchitecture;

/// The rotary embeddings of layers that see everything, and of those with a window.
const GLOBAL: usize = 0;
const LOCAL: usize = 1;

pub(super) fn architecture() -> SupportedArchitecture {
    SupportedArchitecture::text_generation("Gemma3ForCausalLM", |config| {
        let tie_word_embeddings = config.bool_or("tie_word_embeddings", true)?;
        // GGUF has them as they are multiplied.
        let norm_weight_offset = config.opt_f64("norm_weight_offset")?.unwrap_or(1.0);
        let mut decoder = DecoderConfig { norm_weight_offset, tie_word_embeddings, ..DecoderConfig::new(config)? };
        if config.get("layer_types").is_some() {
            decoder = decoder.windowed(config)?;
        } else if let Some(window) = config.opt_usize("sliding_window")? {
            let pattern = config.opt_usize("sliding_window_pattern")?.unwrap_or(6).max(1);
            let windows = (1..=decoder.num_hidden_layers).map(|layer| (layer % pattern != 0).then_some(window));
            decoder.sliding_windows = windows.collect();
        }
        let section = config.section("rope_parameters");
        let of_layers = |kind| section.as_ref().and_then(|section| section.section(kind));
        let (full, sliding) = (of_layers("full_attention"), of_layers("sliding_attention"));
        let theta = config.opt_f64("rope_theta")?.unwrap_or(1_000_000.0);
        let local_theta = config.opt_f64("rope_local_base_freq")?.unwrap_or(10_000.0);
        let scaling = config.section("rope_scaling");
        decoder.rope = vec![
            rope::of_section(config, full.as_ref().or(scaling.as_ref()), decoder.head_dim, theta)?,
            rope::of_section(config, sliding.as_ref(), decoder.head_dim, local_theta)?,
        ];
        let scale = 1.0 / config.opt_f64("query_pre_attn_scalar")?.unwrap_or(256.0).sqrt();
        let is_local = |layer: usize, types: &Option<Vec<&str>>| match types {
            Some(types) => types.get(layer) == Some(&"sliding_attention"),
            None => decoder.sliding_windows.get(layer).is_some_and(Option::is_some),
        };
        let types = config.opt_strs("layer_types")?;
        let mut model = decoder.transformer(|layer| {
            let mut block = decoder.block(layer, Box::new(decoder.mlp(decoder.intermediate_size)?))?;
            block.attention_output_norm = Some(decoder.norm(decoder.hidden_size)?);
            block.mlp_output_norm = Some(decoder.norm(decoder.hidden_size)?);
            block.self_attn.q_norm = Some(decoder.norm(decoder.head_dim)?);
            block.self_attn.k_norm = Some(decoder.norm(decoder.head_dim)?);
            block.self_attn.scale = scale;
            block.rope = if is_local(layer, &types) { LOCAL } else { GLOBAL };
            Ok(block)
        })?;
        model.embedding_multiplier = (decoder.hidden_size as f64).sqrt();
        model.logits_soft_cap = config.opt_f64("final_logit_softcapping")?;
        Ok(Box::new(model))
    })
    .weight_adapter(renamed(&[
        ("post_attention_layernorm", "attention_output_norm"),
        ("pre_feedforward_layernorm", "post_attention_layernorm"),
        ("post_feedforward_layernorm", "mlp_output_norm"),
    ]))
    .example_repo_ids(&["google/gemma-3-1b-it"])
}
