//! MPNet: a BERT whose scores have a bias by the distance of tokens.

use max::functional as f;
use max::nn::{Embedding, Module};
use max::tensor::Tensor;
use max_core::driver;
use max_core::dtype::DType;
use max_core::graph::GraphError;

use super::encoder::{Encoder, adapted, positions};
use crate::registry::{EmbeddingModel, SupportedArchitecture};

/// From this distance on, all have one bias.
const FARTHEST: i64 = 128;

/// Positions are counted from behind the one of padding.
const FIRST_POSITION: usize = 2;

#[derive(Module)]
struct MpNet {
    #[module(name = "")]
    encoder: Encoder,
    relative_attention_bias: Embedding,
    buckets: usize,
}

impl MpNet {
    /// The row of the table for a distance from the query to a key: half of them are for keys before it, the other half for those
    /// behind; the first of each are for one distance each, the others for ranges that grow.
    fn bucket(&self, distance: i64) -> i64 {
        let side = self.buckets as i64 / 2;
        let (exact, far) = (side / 2, distance.unsigned_abs() as i64);
        let start = if distance < 0 { side } else { 0 };
        if far < exact {
            return start + far;
        }
        let share = (far as f32 / exact as f32).ln() / (FARTHEST as f32 / exact as f32).ln();
        start + (exact + (share * (side - exact) as f32) as i64).min(side - 1)
    }
}

impl EmbeddingModel for MpNet {
    fn vocab_size(&self) -> usize {
        self.encoder.vocab_size()
    }

    fn max_length(&self) -> usize {
        self.encoder.max_length()
    }

    fn hidden(&self, tokens: &Tensor) -> Result<Tensor, GraphError> {
        let table: Vec<i64> = (-FARTHEST..=FARTHEST).map(|distance| self.bucket(distance)).collect();
        let table = Tensor::constant(driver::Tensor::from_vec(table, [2 * FARTHEST as usize + 1])?)?;
        let positions = f::cast(positions(tokens)?, DType::I64)?;
        let distance = f::sub(f::unsqueeze(&positions, 1)?, f::unsqueeze(&positions, 0)?)?;
        let place = f::add(f::maximum(f::minimum(distance, FARTHEST)?, -FARTHEST)?, FARTHEST)?;
        let bias = f::gather(self.relative_attention_bias.weight.clone(), f::gather(table, place, 0)?, 0)?;
        self.encoder.hidden(tokens, Some(&f::cast(f::permute(bias, [2, 0, 1])?, DType::F32)?))
    }
}

/// MPNet, by the name of the model with or without its head, which is left out.
pub(in crate::architectures) fn mpnet(name: &str) -> SupportedArchitecture {
    SupportedArchitecture::embeddings(name, |config| {
        let encoder = Encoder::new(config, FIRST_POSITION)?;
        let buckets = config.opt_usize("relative_attention_num_buckets")?.unwrap_or(32);
        if buckets < 4 || buckets % 4 != 0 {
            return Err(config.error("relative_attention_num_buckets", format!("is {buckets}, not a multiple of 4")));
        }
        let relative_attention_bias = Embedding::new(buckets, config.usize("num_attention_heads")?)?;
        Ok(Box::new(MpNet { encoder, relative_attention_bias, buckets }))
    })
    .weight_adapter(adapted(
        "mpnet.",
        &[
            ("attention.attn.q", "query"),
            ("attention.attn.k", "key"),
            ("attention.attn.v", "value"),
            ("attention.attn.o", "attention_output"),
            ("encoder.relative_attention_bias", "relative_attention_bias"),
        ],
    ))
    .example_repo_ids(&["sentence-transformers/all-mpnet-base-v2"])
}
