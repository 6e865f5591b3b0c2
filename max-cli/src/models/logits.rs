//! `max logits`: what a model makes of tokens.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;

use clap::Args as ClapArgs;
use max::graph::weights::save_safetensors;
use max::pipelines::TextGenerationPipeline;

use super::{ModelArgs, PromptArgs};
use crate::error::CliError;

/// The arguments of `max logits`.
#[derive(ClapArgs)]
pub struct LogitsArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    prompts: PromptArgs,
    /// The file to write: `logits`, [tokens, vocabulary]; of several prompts `logits.0`, `logits.1` and so on
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
}

/// Runs the command.
pub fn logits(args: &LogitsArgs, out: &mut dyn Write) -> Result<(), CliError> {
    let pipeline = TextGenerationPipeline::new(&args.model.configuration()?)?;
    let prompts = args.prompts.required()?.tokens(|| pipeline.tokenizer())?;
    let all = prompts.iter().map(|prompt| pipeline.logits(prompt)).collect::<Result<Vec<_>, _>>()?;
    let name = |i: usize| if all.len() == 1 { "logits".to_owned() } else { format!("logits.{i}") };
    let names: Vec<String> = (0..all.len()).map(name).collect();
    let named = names.iter().map(String::as_str).zip(&all);
    save_safetensors(&args.out, named, &BTreeMap::new())?;
    for (name, logits) in names.iter().zip(&all) {
        writeln!(out, "{name}: {} {:?}", logits.dtype(), logits.shape()).map_err(CliError::Output)?;
    }
    Ok(())
}
