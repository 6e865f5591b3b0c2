//! [`Encoder`]: what encoders have in common.

use max::functional as f;
use max::nn::{Activation, Embedding, Forward, LayerList, LayerNorm, Linear, Module};
use max::tensor::Tensor;
use max_core::dtype::DType;
use max_core::graph::ops::AttentionOptions;
use max_core::graph::{Dim, DimSlice, GraphError, Shape, ops};

use crate::architectures::decoder::{activation, linear};
use crate::error::Result;
use crate::model::{HuggingFaceConfig, WeightPart};

/// Embeddings of tokens and positions, and layers.
#[derive(Module)]
pub(super) struct Encoder {
    pub(super) words: Embedding,
    pub(super) positions: Embedding,
    /// Of which the first row is added to every token: texts are not pairs here.
    pub(super) types: Option<Embedding>,
    norm: LayerNorm,
    layers: LayerList<EncoderLayer>,
    /// The position of the first token.
    first_position: usize,
}

#[derive(Module)]
struct EncoderLayer {
    query: Linear,
    key: Linear,
    value: Linear,
    attention_output: Linear,
    attention_norm: LayerNorm,
    intermediate: Linear,
    output: Linear,
    output_norm: LayerNorm,
    activation: Activation,
    heads: usize,
    head_dim: usize,
}

impl Encoder {
    pub(super) fn new(config: &HuggingFaceConfig, first_position: usize) -> Result<Encoder> {
        let (hidden, heads) = (config.usize("hidden_size")?, config.usize("num_attention_heads")?);
        let (vocab, positions) = (config.usize("vocab_size")?, config.usize("max_position_embeddings")?);
        let wide = config.usize("intermediate_size")?;
        if hidden % heads != 0 {
            return Err(config.error("num_attention_heads", format!("does not divide hidden_size, {hidden}")));
        }
        let eps = config.opt_f64("layer_norm_eps")?.unwrap_or(1e-12);
        let norm = || -> Result<LayerNorm> { Ok(LayerNorm { eps, ..LayerNorm::new(hidden)? }) };
        let activation = activation(config)?;
        let layer = |_| {
            Ok(EncoderLayer {
                query: linear(hidden, hidden, true)?,
                key: linear(hidden, hidden, true)?,
                value: linear(hidden, hidden, true)?,
                attention_output: linear(hidden, hidden, true)?,
                attention_norm: norm()?,
                intermediate: linear(hidden, wide, true)?,
                output: linear(wide, hidden, true)?,
                output_norm: norm()?,
                activation,
                heads,
                head_dim: hidden / heads,
            })
        };
        let layers: Vec<EncoderLayer> = (0..config.count("num_hidden_layers")?).map(layer).collect::<Result<_>>()?;
        Ok(Encoder {
            words: Embedding::new(vocab, hidden)?,
            positions: Embedding::new(positions, hidden)?,
            types: None,
            norm: norm()?,
            layers: layers.into(),
            first_position,
        })
    }

    /// The tokens of the vocabulary.
    pub(super) fn vocab_size(&self) -> usize {
        let rows = self.words.weight.shape().first().and_then(Dim::as_static);
        rows.and_then(|rows| usize::try_from(rows).ok()).unwrap_or_default()
    }

    /// The positions that there are embeddings of.
    pub(super) fn max_length(&self) -> usize {
        let rows = self.positions.weight.shape().first().and_then(Dim::as_static);
        let rows = rows.and_then(|rows| usize::try_from(rows).ok()).unwrap_or_default();
        rows.saturating_sub(self.first_position)
    }

    /// The vectors of `tokens`, `[n]`, with `bias`, `[heads, n, n]`, added to the scores of attention.
    pub(super) fn hidden(&self, tokens: &Tensor, bias: Option<&Tensor>) -> Result<Tensor, GraphError> {
        let first = self.first_position as i64;
        let mut x = self.words.call(tokens)?;
        if let Some(types) = &self.types {
            x = f::add(x, f::slice_tensor(types.weight.clone(), [DimSlice::range(0, 1)])?)?;
        }
        x = f::add(x, self.positions.call(&f::add(positions(tokens)?, first)?)?)?;
        x = self.norm.call(&x)?;
        for layer in self.layers.iter() {
            x = layer.step(&x, bias)?;
        }
        f::cast(x, DType::F32)
    }
}

/// 0, 1, 2 and so on, for each token.
pub(super) fn positions(tokens: &Tensor) -> Result<Tensor, GraphError> {
    let count = tokens.shape().num_elements();
    match (tokens.graph_value(), count.as_static()) {
        (Some(value), _) => Ok(ops::range(&value.graph(), 0, count, 1, tokens.dtype(), tokens.device())?.into()),
        (None, Some(count)) => f::cast(Tensor::arange(0i64, count, 1i64)?, tokens.dtype()),
        (None, None) => Err(GraphError::argument("encoder", "tokens", tokens.ty(), "of a size")),
    }
}

impl EncoderLayer {
    fn step(&self, x: &Tensor, bias: Option<&Tensor>) -> Result<Tensor, GraphError> {
        let heads = |layer: &Linear| -> Result<Tensor, GraphError> {
            let y = layer.call(x)?;
            let dims = y.shape().dims()[..1].iter().cloned().chain([Dim::from(self.heads), Dim::from(self.head_dim)]);
            f::transpose(f::reshape(&y, dims.collect::<Shape>())?, 0, 1)
        };
        let (q, k, v) = (heads(&self.query)?, heads(&self.key)?, heads(&self.value)?);
        let y = match bias {
            Some(bias) => f::attention_masked(q, k, v, bias, AttentionOptions::default())?,
            None => f::attention(q, k, v, AttentionOptions::default())?,
        };
        let y = self.attention_output.call(&f::flatten(f::transpose(y, 0, 1)?, 1, 2)?)?;
        let x = self.attention_norm.call(&f::add(y, x)?)?;
        let y = self.output.call(&self.activation.apply(self.intermediate.call(&x)?)?)?;
        self.output_norm.call(&f::add(y, x)?)
    }
}

/// The names of the weights of an encoder's layers; what pools or predicts is left out.
pub(super) fn adapted(
    prefix: &'static str,
    replacements: &'static [(&str, &str)],
) -> impl Fn(&HuggingFaceConfig, &str) -> Result<Vec<(String, WeightPart)>> + Send + Sync + 'static {
    const SHARED: [(&str, &str); 9] = [
        ("embeddings.word_embeddings", "words"),
        ("embeddings.position_embeddings", "positions"),
        ("embeddings.token_type_embeddings", "types"),
        ("embeddings.LayerNorm", "norm"),
        ("intermediate.dense", "intermediate"),
        ("attention.output.LayerNorm", "attention_norm"),
        ("attention.LayerNorm", "attention_norm"),
        ("output.LayerNorm", "output_norm"),
        ("output.dense", "output"),
    ];
    move |_, name| {
        let name = name.strip_prefix(prefix).unwrap_or(name);
        let left_out = ["pooler.", "cls.", "lm_head.", "classifier."].iter().any(|start| name.starts_with(start));
        if left_out || name.ends_with("position_ids") {
            return Ok(Vec::new());
        }
        let name = name.replace("encoder.layer.", "layers.").replace(".gamma", ".weight").replace(".beta", ".bias");
        let found = replacements.iter().chain(&SHARED).find(|(from, _)| name.contains(from));
        Ok(vec![(found.map_or(name.clone(), |(from, to)| name.replace(from, to)), WeightPart::whole())])
    }
}
