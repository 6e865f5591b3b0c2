//! [`MultiHeadAttention`]: attention of several heads, with fewer heads of keys, and rotary embeddings.

use max_core::graph::ops::AttentionOptions;
use max_core::graph::{Dim, GraphError, Shape};

use crate::Result;
use crate::functional as f;
use crate::nn::{Forward, Linear, Module, RotaryEmbedding};
use crate::tensor::Tensor;

/// `o(concat(softmax(qᵢ kᵢᵀ · scale) vᵢ))` of `x`, `[batch, positions, hidden]`, to the same, with a linear layer each for queries,
/// keys, values and the output (Vaswani et al.: Attention is all you need, 2017). With fewer heads of keys, neighbouring heads share
/// one (Ainslie et al.: GQA, 2023).
///
/// ```
/// # extern crate max_nn as max;
/// # max_kernels::link();
/// use max::nn::{Forward, MultiHeadAttention, RotaryEmbedding};
/// use max::tensor::Tensor;
///
/// let mut layer = MultiHeadAttention::new(32, 4, 2)?;
/// layer.rope = Some(RotaryEmbedding::new(8, 10000.0, 128)?);
/// layer.causal = true;
/// assert_eq!(layer.forward(&Tensor::ones([2, 5, 32])?)?.shape().to_string(), "[2, 5, 32]");
/// # Ok::<(), max::Error>(())
/// ```
#[derive(Clone, Module)]
pub struct MultiHeadAttention {
    /// From `hidden` to `heads · head_dim`.
    pub q_proj: Linear,
    /// From `hidden` to `key heads · head_dim`.
    pub k_proj: Linear,
    /// From `hidden` to `key heads · head_dim`.
    pub v_proj: Linear,
    /// From `heads · head_dim` to `hidden`.
    pub o_proj: Linear,
    /// Rotates queries and keys by their positions.
    pub rope: Option<RotaryEmbedding>,
    /// The number of heads.
    pub num_attention_heads: usize,
    /// The number of heads of keys and values, which divides that of heads.
    pub num_key_value_heads: usize,
    /// The elements of a head.
    pub head_dim: usize,
    /// Whether a position sees none after itself.
    pub causal: bool,
    /// What scores are multiplied by; `None` for what the embedding says, or `1 / sqrt(head_dim)`.
    #[module(skip)]
    pub scale: Option<f64>,
}

impl MultiHeadAttention {
    /// Layers without biases, for heads of `hidden / heads` elements.
    ///
    /// # Errors
    /// When the heads do not divide `hidden`, or the heads of keys those; when there is no memory for it.
    #[track_caller]
    pub fn new(hidden: usize, heads: usize, key_heads: usize) -> Result<MultiHeadAttention> {
        if heads == 0 || !hidden.is_multiple_of(heads) {
            let expected = format!("a divisor of hidden, {hidden}");
            return Err(GraphError::argument("multi_head_attention", "heads", heads, expected));
        }
        let head_dim = hidden / heads;
        let [q_proj, k_proj, v_proj, o_proj] =
            projections("multi_head_attention", hidden, [heads, key_heads], head_dim)?;
        Ok(MultiHeadAttention {
            q_proj,
            k_proj,
            v_proj,
            o_proj,
            rope: None,
            num_attention_heads: heads,
            num_key_value_heads: key_heads,
            head_dim,
            causal: false,
            scale: None,
        })
    }
}

impl Forward for MultiHeadAttention {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        if x.rank() != 3 {
            let expected = "of the rank of [batch, positions, hidden]";
            return Err(GraphError::argument("multi_head_attention", "x", x.ty(), expected));
        }
        let mut q = split_heads(&self.q_proj.call(x)?, self.num_attention_heads, self.head_dim)?;
        let mut k = split_heads(&self.k_proj.call(x)?, self.num_key_value_heads, self.head_dim)?;
        let v = split_heads(&self.v_proj.call(x)?, self.num_key_value_heads, self.head_dim)?;
        if let Some(rope) = &self.rope {
            (q, k) = (rope.apply(&q, 0)?, rope.apply(&k, 0)?);
        }
        let scale = self.scale.or(self.rope.as_ref().map(|rope| rope.compute_scale(None)));
        let options = AttentionOptions { scale, causal: self.causal, ..AttentionOptions::default() };
        let by_head = |x: Tensor| f::transpose(x, 1, 2);
        let y = by_head(f::attention(by_head(q)?, by_head(k)?, by_head(v)?, options)?)?;
        self.o_proj.call(&f::flatten(y, 2, 3)?)
    }
}

/// The layers of queries, keys, values and the output, without biases, of as many heads and heads of keys.
#[track_caller]
pub(super) fn projections(
    op: &'static str,
    hidden: usize,
    [heads, key_heads]: [usize; 2],
    head_dim: usize,
) -> Result<[Linear; 4]> {
    if key_heads == 0 || !heads.is_multiple_of(key_heads) {
        return Err(GraphError::argument(op, "key_heads", key_heads, format!("a divisor of heads, {heads}")));
    }
    let linear = |from: usize, to: usize| Linear::new(from, to).map(Linear::without_bias);
    let (queries, keys) = (heads * head_dim, key_heads * head_dim);
    Ok([linear(hidden, queries)?, linear(hidden, keys)?, linear(hidden, keys)?, linear(queries, hidden)?])
}

/// `[.., heads · head_dim]` as `[.., heads, head_dim]`.
#[track_caller]
pub(super) fn split_heads(x: &Tensor, heads: usize, head_dim: usize) -> Result<Tensor> {
    let dims = x.shape().dims()[..x.rank() - 1].iter().cloned();
    let shape: Shape = dims.chain([Dim::from(heads), Dim::from(head_dim)]).collect();
    f::reshape(x, shape)
}
