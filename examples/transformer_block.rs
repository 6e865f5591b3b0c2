//! One block of a transformer: eager, as a region and as a model, with the same results.
use std::time::Instant;

use max::driver::DeviceRef;
use max::dtype::DType;
use max::functional::{self as F, functional};
use max::graph::TensorType;
use max::nn::{Activation, Forward, Mlp, Module, ModuleExt, MultiHeadAttention, RmsNorm, RotaryEmbedding};
use max::random;
use max::tensor::Tensor;

#[derive(Module)]
struct TransformerBlock {
    input_layernorm: RmsNorm,
    self_attn: MultiHeadAttention,
    post_attention_layernorm: RmsNorm,
    mlp: Mlp,
}

impl Forward for TransformerBlock {
    fn forward(&self, x: &Tensor) -> max::Result<Tensor, max::graph::GraphError> {
        let x = F::add(x, self.self_attn.call(&self.input_layernorm.call(x)?)?)?;
        F::add(&x, self.mlp.call(&self.post_attention_layernorm.call(&x)?)?)
    }
}

fn main() -> max::Result<()> {
    const HIDDEN: usize = 256;
    let mut self_attn = MultiHeadAttention::new(HIDDEN, 8, 4)?;
    self_attn.rope = Some(RotaryEmbedding::new(self_attn.head_dim, 10000.0, 512)?.interleaved(false));
    self_attn.causal = true;
    let mlp = Mlp::new(HIDDEN, 4 * HIDDEN, Activation::Silu)?;
    let norms = [RmsNorm::new(HIDDEN)?, RmsNorm::new(HIDDEN)?];
    let [input_layernorm, post_attention_layernorm] = norms;
    let block = TransformerBlock { input_layernorm, self_attn, post_attention_layernorm, mlp };
    print!("{}", block.tree());

    let x = random::normal([1, 512, HIDDEN], 0.0, 1.0)?;
    x.realize()?;
    let ty = TensorType::new(DType::F32, (1, "tokens", HIDDEN), DeviceRef::CPU);
    let (model, input) = (block.compile(&ty)?, x.driver_tensor()?);
    let run = |name: &str, run: &dyn Fn() -> max::Result<Vec<f32>>| -> max::Result<Vec<f32>> {
        let y = run()?; // loads, packs and so on
        let start = Instant::now();
        assert!(run()? == y);
        println!("{name:>7}: {:.1?}", start.elapsed());
        Ok(y)
    };
    let eager = run("eager", &|| Ok(block.call(&x)?.to_vec()?))?;
    let region = run("region", &|| Ok(functional(|| block.call(&x))?.to_vec()?))?;
    let graph = run("model", &|| Ok(model.execute(&input)?[0].to_vec()?))?;
    assert!(eager == region);
    let far = eager.iter().zip(&graph).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    println!("the model's results differ by {far:e} at most");
    assert!(far < 1e-4);
    Ok(())
}
