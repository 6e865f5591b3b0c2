//! A model with and without an adapter of low rank (LoRA), a folder as PEFT writes it, which is merged into the weights when they
//! are loaded: `cargo run --release -p max-pipelines --example lora -- FOLDER ADAPTER "Once upon a time"`.

use max_pipelines::{LLM, PipelineConfig, SamplingParams};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // The kernels; whoever depends on `max` has them.
    max_kernels::link();
    let mut args = std::env::args().skip(1);
    let folder = args.next().ok_or("say which folder: one with config.json, safetensors and tokenizer.json")?;
    let adapter =
        args.next().ok_or("say which adapter: a folder with adapter_config.json and adapter_model.safetensors")?;
    let prompt = args.next().ok_or("say what is continued")?;
    let params = SamplingParams::greedy().max_new_tokens(64);
    for lora_path in [None, Some(adapter.into())] {
        let name = if lora_path.is_some() { "adapted" } else { "as it is" };
        let llm = LLM::new(&PipelineConfig { lora_path, ..PipelineConfig::new(&folder) })?;
        for output in llm.generate(&[&prompt], &params)? {
            println!("{name}: {prompt}{}\n", output.text);
        }
    }
    Ok(())
}
