//! [`ModelOutputs`] and [`BatchInfo`]: what a model computes of several sequences, and how long these are.

use max_core::driver::Tensor;

/// The logits behind tokens of several sequences, which lie behind each other.
#[derive(Clone)]
pub struct ModelOutputs {
    /// Of each token, `[tokens, vocabulary]`, in `float32`.
    pub logits: Tensor,
    /// Of the last token of each sequence, `[sequences, vocabulary]`.
    pub next_token_logits: Option<Tensor>,
    /// Where the tokens of each sequence begin in `logits`, and where those of the last one end: `int64`, `[sequences + 1]`.
    pub logit_offsets: Option<Tensor>,
}

/// The lengths of sequences that a step computed together.
///
/// ```
/// use max_pipelines::BatchInfo;
///
/// // A prompt, and the next token of a text.
/// let info = BatchInfo { past_seq_lens: vec![0, 40], seq_lens: vec![12, 1], num_steps: 1 };
/// assert_eq!(info.tokens(), 13);
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct BatchInfo {
    /// The tokens of each sequence that were in the cache.
    pub past_seq_lens: Vec<usize>,
    /// Those that were computed.
    pub seq_lens: Vec<usize>,
    /// How many tokens of each text were chosen, one behind the other.
    pub num_steps: usize,
}

impl BatchInfo {
    /// The tokens that were computed.
    pub fn tokens(&self) -> usize {
        self.seq_lens.iter().sum()
    }
}
