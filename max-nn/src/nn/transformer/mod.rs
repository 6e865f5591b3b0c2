//! Decoders: [`Transformer`] of [`TransformerBlock`]s, each of [`AttentionWithRope`] and a feed-forward layer, over a
//! paged cache of keys and values.

mod attention;
mod block;
mod decoder;
mod moe;
mod shared_expert_moe;

pub use attention::{AttentionStep, AttentionWithRope};
pub use block::TransformerBlock;
pub use decoder::{ReturnLogits, Step, Transformer, TransformerOutputs};
pub use moe::{MoE, StackedExperts};
pub use shared_expert_moe::SharedExpertMoE;
