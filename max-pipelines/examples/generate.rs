//! Text from a folder of weights: `cargo run --release -p max-pipelines --example generate -- FOLDER "Once upon a time"`.

use max_pipelines::{LLM, PipelineConfig, SamplingParams};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // The kernels; whoever depends on `max` has them.
    max_kernels::link();
    let mut args = std::env::args().skip(1);
    let folder = args.next().ok_or("say which folder: one with config.json, safetensors and tokenizer.json")?;
    let prompts: Vec<String> = args.collect();
    let llm = LLM::new(&PipelineConfig { max_batch_size: prompts.len().clamp(1, 8), ..PipelineConfig::new(folder) })?;
    let params = SamplingParams::greedy().max_new_tokens(64);
    for (prompt, output) in prompts.iter().zip(llm.generate(&prompts, &params)?) {
        println!("{prompt}{}\n", output.text);
    }
    Ok(())
}
