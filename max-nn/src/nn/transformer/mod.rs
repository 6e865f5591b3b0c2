//! Decoders: [`Transformer`] of [`TransformerBlock`]s, each of attention ([`AttentionWithRope`], [`LatentAttentionWithRope`],
//! [`RaggedAttention`]) and a feed-forward layer, over a paged cache of keys and values.

mod attention;
mod attention_impl;
mod block;
mod decoder;
mod latent_attention;
mod moe;
mod ragged_attention;
mod router;
mod shared_expert_moe;

pub use attention::AttentionWithRope;
pub use attention_impl::{AttentionImpl, AttentionStep};
pub use block::TransformerBlock;
pub use decoder::{ReturnLogits, Step, Transformer, TransformerOutputs};
pub use latent_attention::{LatentAttentionWithRope, LatentDims, LatentQueries};
pub use moe::{MoE, StackedExperts};
pub use ragged_attention::RaggedAttention;
pub use router::{ExpertGroups, GroupScore, ScoringFunc};
pub use shared_expert_moe::SharedExpertMoE;
