//! A model that the registry does not know: a Llama whose feed-forward layers square what `relu` leaves, without a gate.
//! `cargo run --release -p max-pipelines --example own_architecture -- FOLDER 1,2,3`, with `MyForCausalLM` in `config.json`.

use max::functional as f;
use max::nn::{Forward, Linear, Module};
use max::tensor::Tensor;
use max_pipelines::architectures::DecoderConfig;
use max_pipelines::{PipelineConfig, PipelineRegistry, SamplingParams, SupportedArchitecture, TextGenerationPipeline};

/// `down(relu(up(x))²)`; the fields have the names that the weights have.
#[derive(Module)]
struct SquaredRelu {
    up_proj: Linear,
    down_proj: Linear,
}

impl Forward for SquaredRelu {
    fn forward(&self, x: &Tensor) -> max::Result<Tensor> {
        let y = f::relu(self.up_proj.call(x)?)?;
        self.down_proj.call(&f::mul(&y, &y)?)
    }
}

/// The architectures of the crate, and this one.
pub fn registry() -> max_pipelines::Result<PipelineRegistry> {
    let mine = SupportedArchitecture::text_generation("MyForCausalLM", |config| {
        let decoder = DecoderConfig::new(config)?;
        let (hidden, wide) = (decoder.hidden_size, decoder.intermediate_size);
        Ok(Box::new(decoder.transformer(|layer| {
            let up_proj = Linear::new(hidden, wide)?.without_bias();
            let down_proj = Linear::new(wide, hidden)?.without_bias();
            decoder.block(layer, Box::new(SquaredRelu { up_proj, down_proj }))
        })?))
    });
    let mut registry = PipelineRegistry::new();
    registry.register(mine)?;
    Ok(registry)
}

#[allow(dead_code, reason = "the tests run what is above on a model of theirs")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    // The kernels; whoever depends on `max` has them.
    max_kernels::link();
    let mut args = std::env::args().skip(1);
    let folder = args.next().ok_or("say which folder: one with config.json and safetensors")?;
    let ids = args.next().ok_or("say which tokens: 1,2,3")?;
    let prompt = ids.split(',').map(str::parse).collect::<Result<Vec<u32>, _>>()?;
    let pipeline = TextGenerationPipeline::with_registry(&PipelineConfig::new(folder), &registry()?)?;
    let params = SamplingParams::greedy().max_new_tokens(32);
    let (outputs, _) = pipeline.generate(&[prompt], &params, |_, _| {})?;
    println!("{:?}", outputs[0].tokens);
    Ok(())
}
