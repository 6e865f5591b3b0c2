//! How near texts are to the first, by an encoder: `cargo run --release -p max-pipelines --example embeddings -- FOLDER TEXT TEXT`.

use max_pipelines::{EmbeddingsPipeline, PipelineConfig};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // The kernels; whoever depends on `max` has them.
    max_kernels::link();
    let mut args = std::env::args().skip(1);
    let folder = args.next().ok_or("say which folder: one with config.json, safetensors and tokenizer.json")?;
    let pipeline = EmbeddingsPipeline::new(&PipelineConfig::new(folder))?;
    let texts: Vec<String> = args.collect();
    let vectors = texts.iter().map(|text| pipeline.embed(text)).collect::<Result<Vec<_>, _>>()?;
    for (text, vector) in texts.iter().zip(&vectors) {
        // Vectors have the length 1, so that this is the cosine of the angle between them.
        let cosine: f32 = vectors[0].iter().zip(vector).map(|(a, b)| a * b).sum();
        println!("{cosine:.3} {text}");
    }
    Ok(())
}
