//! The `max` command as a library: the same commands over whatever kernels a program links.
//!
//! A crate with kernels of its own gets `max ops`, `max ptx`, `max ir`, `max check` and `max bench` over them in three lines:
//!
//! ```no_run
//! // use my_ops as _; // the crate that defines the kernels
//! fn main() {
//!     max_cli::main()
//! }
//! ```
//!
//! Results go to standard output, notes and errors to standard error. The exit code is 0, 1 if something could not be
//! done, or 2 if the command line asks for something that there is not. A reader that closes the pipe early ends the
//! program without a message.

#![allow(clippy::needless_doctest_main, reason = "the three lines are a whole program")]

mod bench;
mod columns;
mod data;
mod error;
mod graph;
mod info;
mod interrupt;
mod kernels;
mod memory;
mod models;
mod name;

use std::ffi::OsString;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::PathBuf;

use clap::{ColorChoice, CommandFactory, FromArgMatches, Parser, Subcommand};
use max::kernel::KernelLibrary;

pub use error::CliError;

/// Language models, device information, registered kernels, their PTX and IR, benchmarks, and graphs in files.
#[derive(Parser)]
#[command(name = "max", version, color = ColorChoice::Never, max_term_width = 120)]
struct Cli {
    /// A dynamic library of kernels to load first; may be repeated
    #[arg(long, global = true, value_name = "FILE")]
    extension: Vec<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Continue prompts with a model's text
    Generate(Box<models::GenerateArgs>),
    /// Write the logits behind every token of a prompt to a file
    Logits(models::LogitsArgs),
    /// Make a vector of each text
    Embed(models::EmbedArgs),
    /// Write a model's folder as a GGUF file, its matrices quantized
    Quantize(models::QuantizeArgs),
    /// Show the version, the CPU level in use, threads, AMX, GPUs, and how the kernels were built; or what a model is
    Info(info::Args),
    /// List the registered kernels, or describe one
    Ops(kernels::ops::Args),
    /// Print the PTX of a kernel, or write that of all kernels into a directory
    Ptx(kernels::ptx::Args),
    /// Print the tile IR of a kernel
    Ir(kernels::ir::Args),
    /// Run kernels in every form, and on simulated GPUs, and compare the results
    Check(kernels::check::Args),
    /// Time graph ops and kernels beside the floor that this machine sets
    Bench(bench::Args),
    /// Execute the graph of a file, on inputs in safetensors files
    Run(graph::RunArgs),
    /// Compile the graph of a file, and say what became of its ops
    Compile(graph::CompileArgs),
    /// Print the graph of a file, as text or for a drawing
    Graph(graph::GraphArgs),
}

/// Runs the command that the program's arguments name, and exits the process if it fails.
///
/// `main` of a program that is the `max` command over its own kernels.
pub fn main() {
    let stdout = BufWriter::new(io::stdout().lock());
    // The error stream is not kept locked: bars of progress are drawn there meanwhile.
    match run_as(Caller::Process, std::env::args_os(), stdout, &mut io::stderr()) {
        0 => {}
        code => std::process::exit(code.into()),
    }
}

/// Runs the command of `args` (whose first item is the program's name), writes what it prints to `out` and notes and
/// errors to `err`, and returns the exit code.
///
/// ```
/// let (mut out, mut err) = (Vec::new(), Vec::new());
/// assert_eq!(max_cli::run(["max", "ops", "relu"], &mut out, &mut err), 0);
/// assert!(String::from_utf8_lossy(&out).contains("relu<T: Number>(x: T) -> T"));
/// assert_eq!(max_cli::run(["max", "ops", "rellu"], &mut out, &mut err), 2);
/// assert!(String::from_utf8_lossy(&err).contains("nearest: `relu`"));
/// ```
pub fn run<A: Into<OsString> + Clone>(args: impl IntoIterator<Item = A>, out: impl Write, err: &mut dyn Write) -> u8 {
    run_as(Caller::Program, args, out, err)
}

/// Who runs a command.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Caller {
    /// The process does nothing else: Ctrl-C and the terminal are the command's.
    Process,
    /// A program that does other things as well.
    Program,
}

fn run_as<A: Into<OsString> + Clone>(
    caller: Caller,
    args: impl IntoIterator<Item = A>,
    mut out: impl Write,
    err: &mut dyn Write,
) -> u8 {
    let is_colored = caller == Caller::Process && is_colored();
    // A negative number is a value that its option refuses, if it does, and no option of its own.
    let command = Cli::command().mut_subcommands(|command| command.allow_negative_numbers(true));
    let cli = match command.try_get_matches_from(args).and_then(|found| Cli::from_arg_matches(&found)) {
        Ok(cli) => cli,
        // Asking for help or the version is such an error too.
        Err(error) if error.use_stderr() => {
            // There is nowhere left to report that standard error cannot be written.
            let _ = match is_colored {
                true => write!(err, "{}", error.render().ansi()),
                false => write!(err, "{}", error.render()),
            };
            return 2;
        }
        Err(help) => {
            let written = write!(out, "{}", help.render()).map_err(CliError::Output);
            return finish(written, &mut out, err, is_colored);
        }
    };
    let result = dispatch(caller, cli, &mut out, err);
    finish(result, &mut out, err, is_colored)
}

/// Whether errors have colors: on a terminal, unless `NO_COLOR` says otherwise (<https://no-color.org>).
fn is_colored() -> bool {
    io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

fn dispatch(caller: Caller, cli: Cli, out: &mut dyn Write, err: &mut dyn Write) -> Result<(), CliError> {
    let mut library = KernelLibrary::linked();
    for path in &cli.extension {
        // SAFETY: whoever runs the command named the file as an extension to run code of, as they do with a program.
        library = unsafe { library.with_extension(path) }?;
    }
    match cli.command {
        Command::Generate(args) => models::generate(&args, out, caller == Caller::Process),
        Command::Logits(args) => models::logits(&args, out),
        Command::Embed(args) => models::embed(&args, out),
        Command::Quantize(args) => models::quantize(&args, out),
        Command::Info(args) => match &args.model {
            Some(path) => models::info(path, out),
            None => info::run(&library, out),
        },
        Command::Ops(args) => kernels::ops::run(&args, &library, out),
        Command::Ptx(args) => kernels::ptx::run(&args, &library, out, err),
        Command::Ir(args) => kernels::ir::run(&args, &library, out),
        Command::Check(args) => kernels::check::run(&args, &library, out, err),
        Command::Bench(args) => bench::run(&args, &library, out, err),
        Command::Run(args) => graph::run(&args, &library, out),
        Command::Compile(args) => graph::compile(&args, &library, out),
        Command::Graph(args) => graph::show(&args, out),
    }
}

/// Flushes `out`, reports an error, and gives the exit code.
fn finish(result: Result<(), CliError>, out: &mut dyn Write, err: &mut dyn Write, is_colored: bool) -> u8 {
    match result.and_then(|()| out.flush().map_err(CliError::Output)) {
        Ok(()) => 0,
        // Whoever read our output has seen enough.
        Err(CliError::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => 0,
        Err(error) => {
            // What was printed before the error, if it still can be.
            let _ = out.flush();
            let name = if is_colored { "\x1b[1;31merror:\x1b[0m" } else { "error:" };
            let _ = writeln!(err, "{name} {error}");
            error.exit_code()
        }
    }
}
