//! Decoders: [`Transformer`] of [`TransformerBlock`]s, each of [`AttentionWithRope`] and a feed-forward layer, over a cache of keys
//! and values that lies in buffers of the graph.

mod attention;
mod block;
mod decoder;
mod kv_cache;
mod moe;
mod shared_expert_moe;

pub use attention::{AttentionStep, AttentionWithRope};
pub use block::TransformerBlock;
pub use decoder::{Step, Transformer};
pub use kv_cache::{KvCacheParams, KvCacheValues};
pub use moe::MoE;
pub use shared_expert_moe::SharedExpertMoE;
