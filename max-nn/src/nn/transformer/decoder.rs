//! [`Transformer`]: a decoder, from tokens to logits.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use max_core::dtype::DType;
use max_core::graph::{Dim, DimSlice, GraphError, ops};

use super::{AttentionImpl, AttentionStep, AttentionWithRope, TransformerBlock};
use crate::Result;
use crate::functional as f;
use crate::module::run_hooks;
use crate::nn::kv_cache::{KvCacheParams, PagedKvCacheValues};
use crate::nn::rope::{RotaryAngles, RotaryFrequencies};
use crate::nn::{Embedding, Forward, LayerList, Linear, Module, RmsNorm};
use crate::tensor::Tensor;

/// What a [`Transformer`] computes on: tokens of one or several sequences, behind those that their caches hold.
#[derive(Clone)]
pub struct Step {
    /// The new tokens, integers `[new]`: those of the first sequence, then those of the second, and so on.
    pub tokens: Tensor,
    /// Their positions in their sequences, `[new]`.
    pub positions: Tensor,
    /// Which of the new tokens logits are wanted of, `[rows]`; of all of them, if `None`.
    pub rows: Option<Tensor>,
    /// The sequences, with keys and values of the tokens before; without it, the new tokens are one whole sequence.
    pub cache: Option<PagedKvCacheValues>,
}

impl Step {
    fn angles(&self, rope: &RotaryFrequencies) -> Result<RotaryAngles> {
        match &self.cache {
            Some(cache) if rope.depends_on_length() => rope.ragged_angles(&self.positions, &cache.lengths_of_tokens()),
            Some(_) => rope.angles(&self.positions, 0),
            None => rope.angles(&self.positions, self.tokens.shape().num_elements()),
        }
    }

    /// Where the new tokens of each sequence begin, and where those of the last one end: `int64`, `[sequences + 1]`.
    fn offsets(&self) -> Result<Tensor> {
        let (device, count) = (self.tokens.device(), self.tokens.shape().num_elements());
        match (&self.cache, count.as_static(), self.tokens.graph_value()) {
            (Some(cache), ..) => f::cast(&cache.input_row_offsets, DType::I64),
            (None, Some(count), _) => f::constant([0i64, count], DType::I64, device),
            (None, None, Some(tokens)) => {
                let count = Tensor::from(ops::shape_to_tensor(&tokens.graph(), [count])?).to(device)?;
                let count = f::cast(count, DType::I64)?;
                f::concat([f::mul(&count, 0i64)?, count], 0)
            }
            (None, None, None) => Err(GraphError::argument("transformer", "tokens", self.tokens.ty(), "of sizes")),
        }
    }
}

/// Of which tokens [`Transformer::outputs`] gives logits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ReturnLogits {
    /// Of the last new token of each sequence.
    #[default]
    LastToken,
    /// Of so many of the last new tokens of each sequence, which has as many or more.
    Variable(usize),
    /// Of all new tokens.
    All,
}

/// What [`Transformer::outputs`] gives.
#[derive(Clone)]
pub struct TransformerOutputs {
    /// Behind the last new token of each sequence, `[sequences, vocabulary]`, in `float32`.
    pub next_token_logits: Tensor,
    /// Behind the tokens that [`ReturnLogits`] names, those of a sequence behind each other, `[rows, vocabulary]`; none of the last tokens
    /// alone.
    pub logits: Option<Tensor>,
    /// Where the rows of each sequence begin in `logits`, and where those of the last one end: `int64`, `[sequences + 1]`.
    pub logit_offsets: Option<Tensor>,
    /// What layers make of all new tokens, before the last norm, `[new, hidden]`: `float32`, or `float64` where parameters are.
    pub hidden_states: Tensor,
}

/// A decoder: an embedding, layers, a norm, and the linear layer whose results are the logits of the next token. Without one
/// (`lm_head`), they are products with the embedding's rows.
///
/// Where parameters have 16 bits, layers compute in their dtype, and what they add up, the residual stream, is `float32`: it is not rounded
/// after each layer, and does not overflow `float16`.
#[derive(Module)]
pub struct Transformer<A: AttentionImpl = AttentionWithRope> {
    /// A vector for each token of the vocabulary.
    pub embed_tokens: Embedding,
    /// The layers.
    pub layers: LayerList<TransformerBlock<A>>,
    /// Before the logits.
    pub norm: RmsNorm,
    /// From `hidden` to the vocabulary.
    pub lm_head: Option<Linear>,
    /// The rotary embeddings that layers choose from.
    #[module(skip)]
    pub rope: Vec<RotaryFrequencies>,
    /// What embeddings are multiplied by.
    pub embedding_multiplier: f64,
    /// What logits are divided by.
    pub logits_scaling: f64,
    /// `cap · tanh(logits / cap)`, in models that have a cap.
    #[module(skip)]
    pub logits_soft_cap: Option<f64>,
}

impl<A: AttentionImpl> Transformer<A> {
    /// A decoder of these parts.
    pub fn new(
        embed_tokens: Embedding,
        layers: Vec<TransformerBlock<A>>,
        norm: RmsNorm,
        lm_head: Option<Linear>,
        rope: Vec<RotaryFrequencies>,
    ) -> Transformer<A> {
        Transformer {
            embed_tokens,
            layers: layers.into(),
            norm,
            lm_head,
            rope,
            embedding_multiplier: 1.0,
            logits_scaling: 1.0,
            logits_soft_cap: None,
        }
    }

    /// What each layer keeps of a token.
    pub fn kv_params(&self) -> Vec<KvCacheParams> {
        let dtype = self.norm.weight.dtype();
        self.layers.iter().map(|block| block.self_attn.kv_params(dtype)).collect()
    }

    /// [Prepares](Forward::prepare) the feed-forward layers, once parameters are set.
    ///
    /// # Errors
    /// When there is no memory for it.
    pub fn prepare(&mut self) -> Result<()> {
        self.layers.iter_mut().try_for_each(|block| block.mlp.prepare())
    }

    /// The logits of the tokens that follow, `[rows, vocabulary]`, in `float32`.
    ///
    /// # Errors
    /// When the types of the inputs do not fit, or a layer names a rotary embedding that there is not.
    #[track_caller]
    pub fn logits(&self, step: &Step) -> Result<Tensor> {
        let (x, dtype, table) = self.layers_of(step)?;
        match &step.rows {
            Some(rows) => self.logits_of(&f::gather(x, rows, 0)?, dtype, table),
            None => self.logits_of(&x, dtype, table),
        }
    }

    /// The logits that `return_logits` names, and what they are made of; [`Step::rows`] changes nothing. Without a cache, all new tokens are
    /// one sequence.
    ///
    /// # Errors
    /// As [`logits`](Self::logits); when a number of tokens is 0.
    #[track_caller]
    pub fn outputs(&self, step: &Step, return_logits: ReturnLogits) -> Result<TransformerOutputs> {
        let (hidden_states, dtype, table) = self.layers_of(step)?;
        let offsets = step.offsets()?;
        let ends = f::slice_tensor(&offsets, [DimSlice::from(1i64..)])?;
        let (logits, logit_offsets) = match return_logits {
            ReturnLogits::LastToken => (None, None),
            ReturnLogits::All => (Some(self.logits_of(&hidden_states, dtype, table.clone())?), Some(offsets.clone())),
            ReturnLogits::Variable(count) => {
                let Some(count) = i64::try_from(count).ok().filter(|count| *count > 0) else {
                    let (argument, value) = ("return_logits", format!("{count} tokens"));
                    return Err(GraphError::argument("transformer", argument, value, "1 to 2^63 - 1 of a sequence"));
                };
                let back = f::range(-count, 0, 1, DType::I64, offsets.device())?;
                let rows = f::flatten(f::add(f::unsqueeze(&ends, 1)?, f::unsqueeze(back, 0)?)?, 0, 1)?;
                let logits = self.logits_of(&f::gather(&hidden_states, rows, 0)?, dtype, table.clone())?;
                let ones = f::add(f::mul(&offsets, 0i64)?, count)?;
                (Some(logits), Some(f::cumsum(ones, 0, true, false)?))
            }
        };
        let last = f::sub(ends, 1i64)?;
        let next_token_logits = match (&logits, &logit_offsets) {
            // Those of the last rows.
            (Some(logits), Some(offsets)) => {
                f::gather(logits, f::sub(f::slice_tensor(offsets, [DimSlice::from(1i64..)])?, 1i64)?, 0)?
            }
            _ => self.logits_of(&f::gather(&hidden_states, last, 0)?, dtype, table)?,
        };
        Ok(TransformerOutputs { next_token_logits, logits, logit_offsets, hidden_states })
    }

    /// What layers make of the new tokens, the dtype that they compute in, and the embedding's table.
    #[track_caller]
    fn layers_of(&self, step: &Step) -> Result<(Tensor, DType, Tensor)> {
        let angles: Vec<_> = self.rope.iter().map(|rope| step.angles(rope)).collect::<Result<_>>()?;
        let mut masks = BTreeMap::new();
        for window in self.layers.iter().filter(|_| step.cache.is_none()).filter_map(|layer| layer.sliding_window) {
            if let Entry::Vacant(entry) = masks.entry(window) {
                entry.insert(window_mask(&step.positions, &step.tokens.shape().num_elements(), window)?);
            }
        }
        // In a graph, one constant serves the embedding and the logits.
        let table = match step.tokens.graph_value() {
            Some(value) => self.embed_tokens.weight.in_graph(&value.graph())?.into(),
            None => self.embed_tokens.weight.clone(),
        };
        let quantization_encoding = self.embed_tokens.quantization_encoding;
        let embedding = Embedding { weight: table.clone(), quantization_encoding };
        let mut x = run_hooks(&self.embed_tokens, &step.tokens, embedding.forward(&step.tokens)?)?;
        if quantization_encoding.is_some() {
            x = f::cast(x, self.norm.weight.dtype())?;
        }
        let dtype = x.dtype();
        if matches!(dtype, DType::F16 | DType::BF16) {
            x = f::cast(x, DType::F32)?;
        }
        if self.embedding_multiplier != 1.0 {
            x = f::mul(x, self.embedding_multiplier)?;
        }
        for (layer, block) in self.layers.iter().enumerate() {
            let Some(angles) = angles.get(block.rope) else {
                return Err(GraphError::argument("transformer", "rope", block.rope, format!("below {}", angles.len())));
            };
            let window = block.sliding_window;
            let mask = window.and_then(|window| masks.get(&window));
            x = block.step(&x, dtype, AttentionStep { angles, cache: step.cache.as_ref(), window, mask, layer })?;
        }
        Ok((x, dtype, table))
    }

    /// The logits of rows that layers made, in the dtype that these compute in, with the embedding's table.
    #[track_caller]
    fn logits_of(&self, x: &Tensor, dtype: DType, table: Tensor) -> Result<Tensor> {
        let quantization_encoding = self.embed_tokens.quantization_encoding;
        let x = f::cast(self.norm.call(x)?, dtype)?;
        let logits = match &self.lm_head {
            Some(head) => head.call(&x)?,
            None => Linear { quantization_encoding, ..Linear::of(table) }.forward(&x)?,
        };
        let mut logits = f::cast(logits, DType::F32)?;
        if self.logits_scaling != 1.0 {
            logits = f::mul(logits, 1.0 / self.logits_scaling)?;
        }
        match self.logits_soft_cap {
            Some(cap) => f::mul(f::tanh(f::mul(logits, 1.0 / cap)?)?, cap),
            None => Ok(logits),
        }
    }
}

/// `[new, length]`: 0 where a key is less than `window` positions before the query, negative infinity before that.
fn window_mask(positions: &Tensor, length: &Dim, window: usize) -> Result<Tensor> {
    let keys: Tensor = match (positions.graph_value(), length.as_static()) {
        (Some(value), _) => ops::range(&value.graph(), 0, length, 1, positions.dtype(), positions.device())?.into(),
        (None, Some(length)) => f::cast(Tensor::arange(0i64, length, 1i64)?, positions.dtype())?,
        (None, None) => return Err(GraphError::argument("transformer", "length", length, "a number")),
    };
    let distance = f::sub(f::unsqueeze(positions, 1)?, f::unsqueeze(keys, 0)?)?;
    let seen = f::cast(f::mul(&distance, 0)?, DType::F32)?;
    f::where_(f::greater(window as i64, distance)?, seen, f32::NEG_INFINITY)
}
