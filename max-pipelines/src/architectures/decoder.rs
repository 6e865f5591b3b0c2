//! [`DecoderConfig`]: what decoders have in common, and the parts that they are made of.

use max::nn::rope::RotaryFrequencies;
use max::nn::transformer::{AttentionImpl, AttentionWithRope, Transformer, TransformerBlock};
use max::nn::{Activation, Embedding, Forward, Linear, Mlp, RmsNorm};
use max::tensor::default_dtype;
use max_core::dtype::DType;

use super::rope::rotary_frequencies;
use crate::error::Result;
use crate::model::{HuggingFaceConfig, WeightPart};

/// The values of a decoder's configuration, by the names that Llama's has, and the layers that they say. An architecture changes
/// what is different in its models.
#[derive(Clone, Debug)]
pub struct DecoderConfig {
    /// The elements of a token's vector.
    pub hidden_size: usize,
    /// Those within the feed-forward layer.
    pub intermediate_size: usize,
    /// The layers.
    pub num_hidden_layers: usize,
    /// The heads.
    pub num_attention_heads: usize,
    /// The heads of keys and values.
    pub num_key_value_heads: usize,
    /// The elements of a head.
    pub head_dim: usize,
    /// The tokens.
    pub vocab_size: usize,
    /// What norms add to the mean of the squares.
    pub rms_norm_eps: f64,
    /// What norms add to their weights.
    pub norm_weight_offset: f64,
    /// What the gate goes through.
    pub hidden_act: Activation,
    /// Whether queries, keys and values have biases.
    pub qkv_bias: bool,
    /// Whether the output of attention has a bias.
    pub o_bias: bool,
    /// Whether the feed-forward layer has biases.
    pub mlp_bias: bool,
    /// Whether logits are products with the embedding.
    pub tie_word_embeddings: bool,
    /// How many tokens a token sees in each layer; all where there is `None`.
    pub sliding_windows: Vec<Option<usize>>,
    /// The rotary embeddings that layers choose from.
    pub rope: Vec<RotaryFrequencies>,
}

impl DecoderConfig {
    /// Reads a configuration.
    ///
    /// # Errors
    /// When a value is missing, of another kind, or does not fit the others.
    pub fn new(config: &HuggingFaceConfig) -> Result<DecoderConfig> {
        let (hidden_size, heads) = (config.usize("hidden_size")?, config.usize("num_attention_heads")?);
        let head_dim = match config.opt_usize("head_dim")? {
            Some(size) if size > 0 => config.usize("head_dim")?,
            _ if hidden_size % heads == 0 => hidden_size / heads,
            _ => return Err(config.error("num_attention_heads", format!("does not divide hidden_size, {hidden_size}"))),
        };
        DecoderConfig::with_head_dim(config, head_dim)
    }

    /// As [`new`](Self::new), with heads of which so many elements are rotated, or some of them.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with_head_dim(config: &HuggingFaceConfig, head_dim: usize) -> Result<DecoderConfig> {
        let (hidden_size, heads) = (config.usize("hidden_size")?, config.usize("num_attention_heads")?);
        let key_heads = config.opt_usize("num_key_value_heads")?.unwrap_or(heads);
        if key_heads == 0 || heads % key_heads != 0 {
            return Err(config.error("num_key_value_heads", format!("does not divide num_attention_heads, {heads}")));
        }
        let layers = config.count("num_hidden_layers")?;
        let attention_bias = config.bool_or("attention_bias", false)?;
        Ok(DecoderConfig {
            hidden_size,
            intermediate_size: config.usize("intermediate_size")?,
            num_hidden_layers: layers,
            num_attention_heads: heads,
            num_key_value_heads: key_heads,
            head_dim,
            vocab_size: config.usize("vocab_size")?,
            rms_norm_eps: config.opt_f64("rms_norm_eps")?.unwrap_or(1e-6),
            norm_weight_offset: 0.0,
            hidden_act: activation(config)?,
            qkv_bias: attention_bias,
            o_bias: attention_bias,
            mlp_bias: config.bool_or("mlp_bias", false)?,
            tie_word_embeddings: config.bool_or("tie_word_embeddings", false)?,
            sliding_windows: vec![None; layers],
            rope: match config.section("rope_parameters").filter(|rope| rope.section("full_attention").is_some()) {
                // One for each kind of layers: the architecture reads them.
                Some(_) => Vec::new(),
                None => vec![rotary_frequencies(config, head_dim)?],
            },
        })
    }

    /// With the window of `sliding_window`: in the layers that `layer_types` names, or in all of them.
    ///
    /// # Errors
    /// When there is not one type for each layer.
    pub fn windowed(mut self, config: &HuggingFaceConfig) -> Result<DecoderConfig> {
        let Some(window) = config.opt_usize("sliding_window")?.filter(|window| *window > 0) else { return Ok(self) };
        self.sliding_windows = match config.opt_strs("layer_types")? {
            Some(types) if types.len() == self.num_hidden_layers => {
                types.iter().map(|ty| (*ty == "sliding_attention").then_some(window)).collect()
            }
            Some(types) => return Err(config.error("layer_types", format!("has {} entries", types.len()))),
            None => vec![Some(window); self.num_hidden_layers],
        };
        // As long as all positions are within the window, it hides nothing.
        let longest = config.opt_usize("max_position_embeddings")?.unwrap_or(usize::MAX);
        if window >= longest {
            self.sliding_windows.fill(None);
        }
        Ok(self)
    }

    /// A norm of vectors.
    ///
    /// # Errors
    /// When there is no memory for it.
    pub fn norm(&self, size: usize) -> Result<RmsNorm> {
        Ok(RmsNorm { eps: self.rms_norm_eps, weight_offset: self.norm_weight_offset, ..RmsNorm::new(size)? })
    }

    /// Attention without norms.
    ///
    /// # Errors
    /// When there is no memory for it.
    pub fn attention(&self) -> Result<AttentionWithRope> {
        let (heads, key_heads) = (self.num_attention_heads, self.num_key_value_heads);
        let mut layer = AttentionWithRope::new(self.hidden_size, heads, key_heads, self.head_dim)?;
        let (hidden, width, key_width) = (self.hidden_size, heads * self.head_dim, key_heads * self.head_dim);
        layer.q_proj = linear(hidden, width, self.qkv_bias)?;
        layer.k_proj = linear(hidden, key_width, self.qkv_bias)?;
        layer.v_proj = linear(hidden, key_width, self.qkv_bias)?;
        layer.o_proj = linear(width, hidden, self.o_bias)?;
        Ok(layer)
    }

    /// A gated feed-forward layer.
    ///
    /// # Errors
    /// When there is no memory for it.
    pub fn mlp(&self, intermediate_size: usize) -> Result<Mlp> {
        let (hidden, bias) = (self.hidden_size, self.mlp_bias);
        Ok(Mlp {
            gate_proj: linear(hidden, intermediate_size, bias)?,
            down_proj: linear(intermediate_size, hidden, bias)?,
            up_proj: linear(hidden, intermediate_size, bias)?,
            activation_function: self.hidden_act,
        })
    }

    /// A layer with norms before attention and before the feed-forward layer.
    ///
    /// # Errors
    /// When there is no memory for it.
    pub fn block(&self, layer: usize, mlp: Box<dyn Forward>) -> Result<TransformerBlock> {
        self.block_of(layer, self.attention()?, mlp)
    }

    /// As [`block`](Self::block), with another attention.
    ///
    /// # Errors
    /// When there is no memory for it.
    pub fn block_of<A: AttentionImpl>(
        &self,
        layer: usize,
        attention: A,
        mlp: Box<dyn Forward>,
    ) -> Result<TransformerBlock<A>> {
        let (before, between) = (self.norm(self.hidden_size)?, self.norm(self.hidden_size)?);
        let mut block = TransformerBlock::new(attention, mlp, before, between);
        block.sliding_window = self.sliding_windows.get(layer).copied().flatten();
        Ok(block)
    }

    /// A decoder of the layers that `block` makes, by their numbers.
    ///
    /// # Errors
    /// Those of `block`; when there is no memory for it.
    pub fn transformer<A: AttentionImpl>(
        &self,
        block: impl Fn(usize) -> Result<TransformerBlock<A>>,
    ) -> Result<Transformer<A>> {
        let embedding = Embedding::new(self.vocab_size, self.hidden_size)?;
        let layers = (0..self.num_hidden_layers).map(block).collect::<Result<_>>()?;
        let head = (!self.tie_word_embeddings).then(|| linear(self.hidden_size, self.vocab_size, false)).transpose()?;
        Ok(Transformer::new(embedding, layers, self.norm(self.hidden_size)?, head, self.rope.clone()))
    }

    /// A Llama: every layer of attention and a gated feed-forward layer.
    ///
    /// # Errors
    /// When there is no memory for it.
    pub fn llama(&self) -> Result<Transformer> {
        self.transformer(|layer| self.block(layer, Box::new(self.mlp(self.intermediate_size)?)))
    }
}

pub(super) fn linear(from: usize, to: usize, bias: bool) -> Result<Linear> {
    let layer = Linear::new(from, to)?;
    Ok(if bias { layer } else { layer.without_bias() })
}

/// The layer that scores experts. Rounding must not choose these, so that it is `float32`: see [`part_of`].
pub(super) fn gate(from: usize, experts: usize) -> Result<Linear> {
    default_dtype(DType::F32, || linear(from, experts, false))
}

/// The part of a file's tensor that a weight of a [`Transformer`] is.
pub(super) fn part_of(name: &str) -> WeightPart {
    if name.ends_with(".mlp.gate.weight") { WeightPart::whole().dtype(DType::F32) } else { WeightPart::whole() }
}

/// The activation that a configuration names.
pub(super) fn activation(config: &HuggingFaceConfig) -> Result<Activation> {
    let key = if config.get("hidden_activation").is_some() { "hidden_activation" } else { "hidden_act" };
    match config.opt_str(key)?.unwrap_or("silu") {
        "silu" | "swish" => Ok(Activation::Silu),
        "gelu" => Ok(Activation::Gelu),
        "gelu_new" | "gelu_pytorch_tanh" => Ok(Activation::GeluTanh),
        "relu" => Ok(Activation::Relu),
        "tanh" => Ok(Activation::Tanh),
        name => Err(config.error(key, format!("is `{name}`, which is not known"))),
    }
}

/// The name that a weight of a causal language model has in a [`Transformer`]; `None` for what the module computes itself.
pub(crate) fn llama_name(config: &HuggingFaceConfig, name: &str) -> Result<Option<String>> {
    let tied = config.bool_or("tie_word_embeddings", false)?;
    let left_out = name.ends_with("rotary_emb.inv_freq") || (tied && name == "lm_head.weight");
    Ok((!left_out).then(|| name.strip_prefix("model.").unwrap_or(name).to_owned()))
}

/// [`llama_name`], with parts of it replaced, and [`part_of`].
pub(super) fn renamed(
    replacements: &'static [(&str, &str)],
) -> impl Fn(&HuggingFaceConfig, &str) -> Result<Vec<(String, WeightPart)>> + Send + Sync + 'static {
    move |config, name| {
        let Some(name) = llama_name(config, name)? else { return Ok(Vec::new()) };
        let found = replacements.iter().find(|(from, _)| name.contains(from));
        let name = found.map_or(name.clone(), |(from, to)| name.replace(from, to));
        let part = part_of(&name);
        Ok(vec![(name, part)])
    }
}
