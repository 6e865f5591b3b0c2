//! Qwen 3: a Llama that normalizes the heads of queries and keys, with one feed-forward layer or a mixture of experts.

use max::nn::Forward;
use max::nn::transformer::{MoE, Transformer};

use super::DecoderConfig;
use super::decoder::{gate, renamed};
use crate::error::Result;
use crate::model::HuggingFaceConfig;
use crate::registry::SupportedArchitecture;

fn decoder(
    config: &HuggingFaceConfig,
    mlp: impl Fn(&DecoderConfig, usize) -> Result<Box<dyn Forward>>,
) -> Result<Transformer> {
    let mut decoder = DecoderConfig::new(config)?;
    if config.bool_or("use_sliding_window", false)? {
        decoder = decoder.windowed(config)?;
    }
    decoder.transformer(|layer| {
        let mut block = decoder.block(layer, mlp(&decoder, layer)?)?;
        block.self_attn.q_norm = Some(decoder.norm(decoder.head_dim)?);
        block.self_attn.k_norm = Some(decoder.norm(decoder.head_dim)?);
        Ok(block)
    })
}

/// With one feed-forward layer.
pub(super) fn dense() -> SupportedArchitecture {
    SupportedArchitecture::text_generation("Qwen3ForCausalLM", |config| {
        let mlp = |decoder: &DecoderConfig, _| -> Result<Box<dyn Forward>> {
            Ok(Box::new(decoder.mlp(decoder.intermediate_size)?))
        };
        Ok(Box::new(self::decoder(config, mlp)?))
    })
    .example_repo_ids(&["Qwen/Qwen3-0.6B"])
}

/// With experts, in all layers or in some.
pub(super) fn moe() -> SupportedArchitecture {
    SupportedArchitecture::text_generation("Qwen3MoeForCausalLM", |config| {
        let key = if config.get("num_experts").is_some() { "num_experts" } else { "num_local_experts" };
        let experts = config.count(key)?;
        let (per_token, size) = (config.usize("num_experts_per_tok")?, config.usize("moe_intermediate_size")?);
        let step = config.opt_usize("decoder_sparse_step")?.unwrap_or(1);
        let dense = config.opt_f64s("mlp_only_layers")?.unwrap_or_default();
        let norm_topk_prob = config.bool_or("norm_topk_prob", false)?;
        let mlp = |decoder: &DecoderConfig, layer: usize| -> Result<Box<dyn Forward>> {
            let is_dense = dense.contains(&(layer as f64)) || !(layer + 1).is_multiple_of(step);
            if is_dense {
                return Ok(Box::new(decoder.mlp(decoder.intermediate_size)?));
            }
            let gate = gate(decoder.hidden_size, experts)?;
            let experts = (0..experts).map(|_| decoder.mlp(size)).collect::<Result<_>>()?;
            let mut moe = MoE::new(gate, experts, per_token, format!("layer_{layer}"))?;
            moe.norm_topk_prob = norm_topk_prob;
            Ok(Box::new(moe))
        };
        Ok(Box::new(decoder(config, mlp)?))
    })
    .weight_adapter(renamed(&[]))
    .example_repo_ids(&["Qwen/Qwen3-30B-A3B"])
}
