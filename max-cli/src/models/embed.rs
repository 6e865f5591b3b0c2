//! `max embed`: a vector for each text.

use std::io::Write;

use clap::Args as ClapArgs;
use max::pipelines::EmbeddingsPipeline;
use serde_json::json;

use super::{ModelArgs, PromptArgs};
use crate::error::CliError;

/// The arguments of `max embed`.
#[derive(ClapArgs)]
pub struct EmbedArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    prompts: PromptArgs,
    /// Print the vectors as JSON: `embeddings`, a list for each text, and `prompt_tokens`
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn embed(args: &EmbedArgs, out: &mut dyn Write) -> Result<(), CliError> {
    let pipeline = EmbeddingsPipeline::new(&args.model.configuration()?)?;
    let prompts = args.prompts.required()?.tokens(|| pipeline.tokenizer())?;
    let vectors = prompts.iter().map(|tokens| pipeline.embed_tokens(tokens)).collect::<Result<Vec<_>, _>>()?;
    if args.json {
        let tokens: Vec<usize> = prompts.iter().map(Vec::len).collect();
        return writeln!(out, "{}", json!({"embeddings": vectors, "prompt_tokens": tokens})).map_err(CliError::Output);
    }
    for vector in vectors {
        let numbers: Vec<String> = vector.iter().map(f32::to_string).collect();
        writeln!(out, "{}", numbers.join(" ")).map_err(CliError::Output)?;
    }
    Ok(())
}
