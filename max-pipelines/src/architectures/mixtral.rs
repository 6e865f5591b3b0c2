//! Mixtral: a Mistral whose feed-forward layers are mixtures of experts.

use max::nn::transformer::MoE;

use super::DecoderConfig;
use super::decoder::{gate, renamed};
use crate::error::Result;
use crate::registry::SupportedArchitecture;

pub(super) fn architecture() -> SupportedArchitecture {
    SupportedArchitecture::text_generation("MixtralForCausalLM", |config| {
        let decoder = DecoderConfig::new(config)?.windowed(config)?;
        let (experts, per_token) = (config.count("num_local_experts")?, config.usize("num_experts_per_tok")?);
        Ok(Box::new(decoder.transformer(|layer| {
            let gate = gate(decoder.hidden_size, experts)?;
            let experts = (0..experts).map(|_| decoder.mlp(decoder.intermediate_size)).collect::<Result<_>>()?;
            decoder.block(layer, Box::new(MoE::new(gate, experts, per_token, format!("layer_{layer}"))?))
        })?))
    })
    .weight_adapter(|config, name| {
        let name = name.replace("block_sparse_moe.", "mlp.");
        renamed(&[(".w1.", ".gate_proj."), (".w2.", ".down_proj."), (".w3.", ".up_proj.")])(config, &name)
    })
    .example_repo_ids(&["mistralai/Mixtral-8x7B-Instruct-v0.1"])
}
