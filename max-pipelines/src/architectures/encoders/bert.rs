//! BERT.

use max::nn::{Embedding, Module};
use max::tensor::Tensor;
use max_core::graph::GraphError;

use super::encoder::{Encoder, adapted};
use crate::registry::{EmbeddingModel, SupportedArchitecture};

#[derive(Module)]
struct Bert {
    #[module(name = "")]
    encoder: Encoder,
}

impl EmbeddingModel for Bert {
    fn vocab_size(&self) -> usize {
        self.encoder.vocab_size()
    }

    fn max_length(&self) -> usize {
        self.encoder.max_length()
    }

    fn hidden(&self, tokens: &Tensor) -> Result<Tensor, GraphError> {
        self.encoder.hidden(tokens, None)
    }
}

/// BERT, by the name of the model with or without its head, which is left out.
pub(in crate::architectures) fn bert(name: &str) -> SupportedArchitecture {
    SupportedArchitecture::embeddings(name, |config| {
        let mut encoder = Encoder::new(config, 0)?;
        let types = config.opt_usize("type_vocab_size")?.unwrap_or(2);
        encoder.types = Some(Embedding::new(types, config.usize("hidden_size")?)?);
        Ok(Box::new(Bert { encoder }))
    })
    .weight_adapter(adapted(
        "bert.",
        &[
            ("attention.self.query", "query"),
            ("attention.self.key", "key"),
            ("attention.self.value", "value"),
            ("attention.output.dense", "attention_output"),
        ],
    ))
    .example_repo_ids(&["BAAI/bge-small-en-v1.5", "sentence-transformers/all-MiniLM-L6-v2"])
}
