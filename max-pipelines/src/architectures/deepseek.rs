//! DeepSeek V2 and V3: latent attention, and experts of which one, shared by all tokens, is beside those that tokens choose.

use max::nn::Forward;
use max::nn::transformer::{
    ExpertGroups, GroupScore, LatentAttentionWithRope, LatentDims, LatentQueries, MoE, ScoringFunc, SharedExpertMoE,
};
use max::tensor::{Tensor, default_dtype};
use max_core::dtype::DType;

use super::decoder::{gate, linear, llama_name, part_of};
use super::{DecoderConfig, rope};
use crate::error::Result;
use crate::model::{HuggingFaceConfig, WeightPart};
use crate::registry::SupportedArchitecture;

/// What differs between the two.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Version {
    /// Scores are softmax's.
    V2,
    /// Scores are sigmoids, corrected by a bias where experts are chosen.
    V3,
}

/// DeepSeek V2.
pub(super) fn v2() -> SupportedArchitecture {
    architecture("DeepseekV2ForCausalLM", Version::V2).example_repo_ids(&["deepseek-ai/DeepSeek-V2-Lite-Chat"])
}

/// DeepSeek V3, and R1.
pub(super) fn v3() -> SupportedArchitecture {
    architecture("DeepseekV3ForCausalLM", Version::V3).example_repo_ids(&["deepseek-ai/DeepSeek-V3"])
}

fn architecture(name: &str, version: Version) -> SupportedArchitecture {
    SupportedArchitecture::text_generation(name, move |config| {
        let dims = dims(config)?;
        let mut decoder = DecoderConfig::with_head_dim(config, dims.qk_rope_head_dim)?;
        let interleaved = version == Version::V2 || config.bool_or("rope_interleave", true)?;
        decoder.rope = decoder.rope.into_iter().map(|rope| rope.interleaved(interleaved)).collect();
        let magnitude = rope::attention_magnitude(config)?;
        let experts = match config.opt_usize("n_routed_experts")? {
            Some(_) => Some(Experts::new(config, version)?),
            None => None,
        };
        Ok(Box::new(decoder.transformer(|layer| {
            let mlp: Box<dyn Forward> = match experts.as_ref().filter(|experts| experts.are_in(layer)) {
                Some(experts) => experts.layer(&decoder, layer)?,
                None => Box::new(decoder.mlp(decoder.intermediate_size)?),
            };
            decoder.block_of(layer, attention(&decoder, dims, magnitude)?, mlp)
        })?))
    })
    .weight_adapter(adapted)
}

fn dims(config: &HuggingFaceConfig) -> Result<LatentDims> {
    Ok(LatentDims {
        hidden_size: config.usize("hidden_size")?,
        num_attention_heads: config.usize("num_attention_heads")?,
        q_lora_rank: config.get("q_lora_rank").map(|_| config.usize("q_lora_rank")).transpose()?,
        kv_lora_rank: config.usize("kv_lora_rank")?,
        qk_nope_head_dim: config.usize("qk_nope_head_dim")?,
        qk_rope_head_dim: config.usize("qk_rope_head_dim")?,
        v_head_dim: config.usize("v_head_dim")?,
    })
}

fn attention(decoder: &DecoderConfig, dims: LatentDims, magnitude: f64) -> Result<LatentAttentionWithRope> {
    let mut layer = LatentAttentionWithRope::new(dims)?;
    layer.scale *= magnitude;
    if decoder.qkv_bias {
        let (hidden, heads) = (decoder.hidden_size, dims.num_attention_heads);
        layer.kv_a_proj_with_mqa = linear(hidden, dims.cached(), true)?;
        layer.o_proj = linear(heads * dims.v_head_dim, hidden, true)?;
        if let (LatentQueries::LowRank { q_a_proj, .. }, Some(rank)) = (&mut layer.queries, dims.q_lora_rank) {
            *q_a_proj = linear(hidden, rank, true)?;
        }
    }
    Ok(layer)
}

/// The experts of a layer, as a configuration says.
struct Experts {
    version: Version,
    count: usize,
    shared: usize,
    per_token: usize,
    intermediate_size: usize,
    groups: Option<ExpertGroups>,
    norm_topk_prob: bool,
    routed_scaling_factor: f64,
    first_k_dense_replace: usize,
    moe_layer_freq: usize,
}

impl Experts {
    fn new(config: &HuggingFaceConfig, version: Version) -> Result<Experts> {
        let (scoring_func, methods): (_, &[&str]) = match version {
            Version::V2 => ("softmax", &["greedy", "group_limited_greedy"]),
            Version::V3 => ("sigmoid", &["noaux_tc"]),
        };
        let scores = config.opt_str("scoring_func")?.unwrap_or(scoring_func);
        if scores != scoring_func {
            return Err(config.error("scoring_func", format!("is `{scores}`; known is {scoring_func}")));
        }
        let method = config.opt_str("topk_method")?.unwrap_or(methods[0]);
        if !methods.contains(&method) {
            return Err(config.error("topk_method", format!("is `{method}`; known are {}", methods.join(", "))));
        }
        let norm_topk_prob = config.bool_or("norm_topk_prob", version == Version::V3)?;
        if norm_topk_prob && version == Version::V2 {
            return Err(config.error("norm_topk_prob", "is true, of which V2's implementations differ in the meaning"));
        }
        let (count, per_token) = (config.count("n_routed_experts")?, config.usize("num_experts_per_tok")?);
        let groups = (method != "greedy").then(|| {
            let score = if version == Version::V2 { GroupScore::Largest } else { GroupScore::TwoLargest };
            Ok::<_, crate::PipelineError>(ExpertGroups {
                n_group: config.usize("n_group")?,
                topk_group: config.usize("topk_group")?,
                score,
            })
        });
        let groups = groups.transpose()?;
        if let Some(groups) = groups {
            groups
                .check(count, per_token)
                .map_err(|error| config.error("n_group", format!("does not fit: {error}")))?;
        }
        let (shared, intermediate_size) =
            (config.opt_usize("n_shared_experts")?.unwrap_or(0), config.usize("moe_intermediate_size")?);
        if shared.checked_mul(intermediate_size).is_none() {
            return Err(config.error("n_shared_experts", format!("is {shared}, of {intermediate_size} units each")));
        }
        Ok(Experts {
            version,
            count,
            shared,
            per_token,
            intermediate_size,
            groups,
            norm_topk_prob,
            routed_scaling_factor: config.opt_f64("routed_scaling_factor")?.unwrap_or(1.0),
            first_k_dense_replace: config.opt_usize("first_k_dense_replace")?.unwrap_or(0),
            moe_layer_freq: config.opt_usize("moe_layer_freq")?.unwrap_or(1).max(1),
        })
    }

    fn are_in(&self, layer: usize) -> bool {
        layer >= self.first_k_dense_replace && layer.is_multiple_of(self.moe_layer_freq)
    }

    fn layer(&self, decoder: &DecoderConfig, layer: usize) -> Result<Box<dyn Forward>> {
        let mlp = |experts: usize| decoder.mlp(experts * self.intermediate_size);
        let experts = (0..self.count).map(|_| mlp(1)).collect::<Result<_>>()?;
        let mut moe =
            MoE::new(gate(decoder.hidden_size, self.count)?, experts, self.per_token, format!("layer_{layer}"))?;
        if self.version == Version::V3 {
            moe.scoring_func = ScoringFunc::Sigmoid;
            moe.e_score_correction_bias = Some(default_dtype(DType::F32, || Tensor::zeros([self.count]))?);
        }
        moe.groups = self.groups;
        moe.norm_topk_prob = self.norm_topk_prob;
        moe.routed_scaling_factor = self.routed_scaling_factor;
        Ok(match self.shared {
            0 => Box::new(moe),
            shared => Box::new(SharedExpertMoE { experts: moe, shared_expert: mlp(shared)?, shared_expert_gate: None }),
        })
    }
}

fn adapted(config: &HuggingFaceConfig, name: &str) -> Result<Vec<(String, WeightPart)>> {
    let Some(name) = llama_name(config, name)? else { return Ok(Vec::new()) };
    let layer = name.strip_prefix("layers.").and_then(|rest| rest.split('.').next()?.parse::<usize>().ok());
    if layer.is_some_and(|layer| config.count("num_hidden_layers").is_ok_and(|layers| layer >= layers)) {
        // A layer behind the last one drafts tokens (multi-token prediction), which logits do not need.
        return Ok(Vec::new());
    }
    let name = name.replace(".shared_experts.", ".shared_expert.").replace(".gate.e_score", ".e_score");
    let is_bias = name.ends_with(".e_score_correction_bias");
    let part = if is_bias { WeightPart::whole().dtype(DType::F32) } else { part_of(&name) };
    Ok(vec![(name, part)])
}
