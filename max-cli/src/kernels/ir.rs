//! `max ir`: the tile IR that a kernel records.

use std::io::Write;

use max::kernel::KernelLibrary;

use crate::error::CliError;
use crate::kernels::variant::VariantArgs;

/// Arguments of `max ir`.
#[derive(clap::Args)]
pub struct Args {
    /// The kernel
    kernel: String,
    #[command(flatten)]
    variant: VariantArgs,
}

/// Runs the command.
pub fn run(args: &Args, library: &KernelLibrary, out: &mut dyn Write) -> Result<(), CliError> {
    let def = library.table(&args.kernel)?;
    let variant = args.variant.choose(def)?;
    let params = variant.param_bits(def)?;
    let text = def.ir_text(&variant.recorded_dtypes(def), params.as_deref());
    writeln!(out, "{}", text.trim_end())?;
    Ok(())
}
