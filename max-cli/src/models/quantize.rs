//! `max quantize`: a model's folder as a GGUF file.

use std::io::Write;
use std::path::PathBuf;

use clap::Args as ClapArgs;
use max::pipelines::GgufType;

use crate::error::CliError;

/// The arguments of `max quantize`.
#[derive(ClapArgs)]
pub struct QuantizeArgs {
    /// A folder with config.json and safetensors, of an architecture that GGUF has
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// The GGUF file to write
    #[arg(value_name = "OUT")]
    out: PathBuf,
    /// How matrices are stored: q4_0, q8_0, q4_k, q5_k, q6_k, f16, bf16 or f32
    #[arg(long = "type", value_name = "TYPE")]
    ty: GgufType,
}

/// Runs the command.
pub fn quantize(args: &QuantizeArgs, out: &mut dyn Write) -> Result<(), CliError> {
    if let Some(reason) = max::pipelines::quantize(&args.model, &args.out, args.ty)? {
        writeln!(out, "without a tokenizer: {reason}; put tokenizer.json beside the file").map_err(CliError::Output)?;
    }
    let bytes = std::fs::metadata(&args.out).map_err(|source| CliError::File { path: args.out.clone(), source })?.len();
    writeln!(out, "{}: {:.1} MB of {}", args.out.display(), bytes as f64 / 1e6, args.ty).map_err(CliError::Output)
}
