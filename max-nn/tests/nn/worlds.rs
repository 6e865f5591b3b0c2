//! Layers have the same bits eagerly, in a region, and as a model.

use max::functional::{self as F, functional};
use max::nn::{Activation, Forward, Linear, Mlp, Module, MultiHeadAttention, RmsNorm, RotaryEmbedding};
use max::random;
use max::tensor::Tensor;

#[derive(Module)]
struct Block {
    input_layernorm: RmsNorm,
    self_attn: MultiHeadAttention,
    post_attention_layernorm: RmsNorm,
    mlp: Mlp,
}

impl Forward for Block {
    fn forward(&self, x: &Tensor) -> max::Result<Tensor> {
        let x = F::add(x, self.self_attn.call(&self.input_layernorm.call(x)?)?)?;
        F::add(&x, self.mlp.call(&self.post_attention_layernorm.call(&x)?)?)
    }
}

fn attention(hidden: usize) -> max::Result<MultiHeadAttention> {
    let mut attention = MultiHeadAttention::new(hidden, 8, 4)?;
    attention.rope = Some(RotaryEmbedding::new(attention.head_dim, 10000.0, 512)?.interleaved(false));
    attention.causal = true;
    Ok(attention)
}

/// How many elements differ between the worlds: eagerly and in a region, and eagerly and in a model.
fn differences<L: Forward>(layer: &L, x: &Tensor) -> Result<[usize; 2], max::Error> {
    let eager = layer.forward(x)?.to_vec::<f32>()?;
    let region = functional(|| layer.forward(x))?.to_vec::<f32>()?;
    let model = layer.compile(x.ty())?;
    let in_graph = model.execute(&x.driver_tensor()?)?[0].to_vec::<f32>()?;
    let count = |other: &[f32]| {
        assert_eq!(eager.len(), other.len());
        eager.iter().zip(other).filter(|(a, b)| a.to_bits() != b.to_bits()).count()
    };
    Ok([count(&region), count(&in_graph)])
}

#[test]
fn a_block_of_a_transformer_has_the_same_bits_in_all_worlds() -> Result<(), max::Error> {
    max_kernels::link();
    const HIDDEN: usize = 128;
    let block = Block {
        input_layernorm: RmsNorm::new(HIDDEN)?,
        self_attn: attention(HIDDEN)?,
        post_attention_layernorm: RmsNorm::new(HIDDEN)?,
        mlp: Mlp::new(HIDDEN, 3 * HIDDEN, Activation::Silu)?,
    };
    for tokens in [1, 7, 64, 512] {
        let x = random::normal([1, tokens, HIDDEN], 0.0, 1.0)?;
        x.realize()?;
        let found = [
            ("norm", differences(&block.input_layernorm, &x)?),
            ("linear", differences(&Linear::new(HIDDEN, 200)?, &x)?),
            ("mlp", differences(&block.mlp, &x)?),
            ("attention", differences(&block.self_attn, &x)?),
            ("block", differences(&block, &x)?),
        ];
        assert!(found.iter().all(|(_, counts)| *counts == [0; 2]), "{tokens} tokens: {found:?}");
    }
    Ok(())
}
