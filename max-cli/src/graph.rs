//! `max run`, `max compile` and `max graph`: graphs in files.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;

use clap::ValueEnum;
use max::driver::Tensor;
use max::engine::{InferenceSession, Input, Model};
use max::graph::Graph;
use max::graph::weights::{SafetensorWeights, WeightsRegistry, save_safetensors};
use max::kernel::KernelLibrary;

use crate::CliError;

/// A graph in a file, and its weights.
#[derive(clap::Args)]
pub struct Source {
    /// The file, which `Graph::save` wrote
    graph: PathBuf,
    /// A safetensors file of weights, or the index of one in shards; may be repeated
    #[arg(long, value_name = "FILE")]
    weights: Vec<PathBuf>,
}

#[derive(clap::Args)]
pub struct RunArgs {
    #[command(flatten)]
    source: Source,
    /// A safetensors file with a tensor for each input, by name (`input0`, `input1`, …); may be repeated
    #[arg(long, value_name = "FILE")]
    input: Vec<PathBuf>,
    /// Where the outputs are written, by name (`output0`, …), and the buffers that the graph changed; else they are printed
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Where a Chrome trace is written, with a span for each step
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Print how long each op took, beside the least that this machine needs for it
    #[arg(long)]
    profile: bool,
}

#[derive(clap::Args)]
pub struct CompileArgs {
    #[command(flatten)]
    source: Source,
    /// Say in which kernel each op ended, and why neighbours are not one step
    #[arg(long)]
    explain: bool,
}

#[derive(clap::Args)]
pub struct GraphArgs {
    /// The file, which `Graph::save` wrote
    graph: PathBuf,
    /// What is printed
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    /// The text form
    Text,
    /// A drawing for Graphviz
    Dot,
}

impl Source {
    fn weights(&self) -> Result<Box<dyn WeightsRegistry>, CliError> {
        if self.weights.is_empty() {
            return Ok(Box::new(()));
        }
        let weights = SafetensorWeights::open(&self.weights)?;
        Ok(Box::new(weights))
    }

    fn load(&self, library: &KernelLibrary) -> Result<Model, CliError> {
        let session = InferenceSession::new().library(library.clone());
        Ok(session.load_file(&self.graph, &*self.weights()?)?)
    }
}

pub fn run(args: &RunArgs, library: &KernelLibrary, out: &mut dyn Write) -> Result<(), CliError> {
    let model = args.source.load(library)?;
    let mut given = Vec::new();
    for path in &args.input {
        given.push(SafetensorWeights::open([path])?);
    }
    let mut tensors: Vec<Tensor> = Vec::new();
    for spec in model.input_metadata() {
        let Some(file) = given.iter().find(|file| file.exists(spec.name())) else {
            let known = given.iter().flat_map(SafetensorWeights::names).map(str::to_owned).collect();
            return Err(CliError::NoInput { name: spec.to_string(), known });
        };
        tensors.push(file.tensor(spec.name())?);
    }
    let inputs: Vec<Input<'_>> = tensors.iter_mut().map(Input::Buffer).collect();
    let (outputs, profile) = model.profile(inputs)?;
    let changed = model.input_metadata().iter().zip(&tensors).filter(|(spec, _)| spec.is_buffer());
    let results = model.output_metadata().iter().zip(&outputs).chain(changed);
    let results: Vec<(&str, &Tensor)> = results.map(|(spec, tensor)| (spec.name(), tensor)).collect();
    match &args.output {
        Some(path) => save_safetensors(path, results, &BTreeMap::new())?,
        None => {
            for (name, tensor) in results {
                writeln!(out, "{name} = {tensor}").map_err(CliError::Output)?;
            }
        }
    }
    if let Some(path) = &args.trace {
        let written = std::fs::write(path, profile.to_chrome_trace());
        written.map_err(|source| CliError::File { path: path.clone(), source })?;
    }
    if args.profile {
        write!(out, "{}", crate::bench::beside_floor(profile)).map_err(CliError::Output)?;
    }
    Ok(())
}

pub fn compile(args: &CompileArgs, library: &KernelLibrary, out: &mut dyn Write) -> Result<(), CliError> {
    let graph = Graph::load(&args.source.graph)?;
    let session = InferenceSession::new().library(library.clone());
    let weights = args.source.weights()?;
    let text = match args.explain {
        true => session.explain(&graph, &*weights)?,
        false => {
            let model = session.load_with_weights(&graph, &*weights)?;
            format!("{}\n", model.signature())
        }
    };
    write!(out, "{text}").map_err(CliError::Output)
}

pub fn show(args: &GraphArgs, out: &mut dyn Write) -> Result<(), CliError> {
    let graph = Graph::load(&args.graph)?;
    let text = match args.format {
        Format::Text => graph.to_string(),
        Format::Dot => graph.to_dot(),
    };
    write!(out, "{text}").map_err(CliError::Output)
}
