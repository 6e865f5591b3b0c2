//! [`CliError`]: why a command failed.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use max::driver::{DeviceRef, DriverError};
use max::dtype::DType;
use max::engine::EngineError;
use max::graph::GraphError;
use max::graph::weights::WeightsError;
use max::kernel::KernelError;
use max::kernel::ir;
use max::kernel::ptx::PtxError;
use max::pipelines::PipelineError;

use crate::interrupt;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CliError {
    // What the command line asks for and is not there: exit code 2.
    /// Neither a kernel nor `--all`, or both.
    #[error("say which kernel, or `--all --out DIR` for all of them")]
    WhichKernel,
    /// Neither a kernel nor `--all`, where no crate but `max-kernels` has kernels.
    #[error("say which kernels, or `--all` for those of `max` itself: no other crate's are linked")]
    NothingToCheck,
    /// A dtype that a kernel does not have.
    #[error("kernel `{kernel}`: `{generic}` cannot be {dtype}; it is one of: {}\n  kernel: {signature}", names(known))]
    DType {
        /// The kernel.
        kernel: &'static str,
        /// The generic.
        generic: &'static str,
        /// What it was to be.
        dtype: DType,
        /// What it can be.
        known: Vec<DType>,
        /// The kernel's signature.
        signature: &'static str,
    },
    /// A dtype for a kernel that has no choice of dtypes.
    #[error("kernel `{kernel}` is not generic, and none of its operands is {dtype}\n  kernel: {signature}")]
    FixedDType {
        /// The kernel.
        kernel: &'static str,
        /// The dtype given.
        dtype: DType,
        /// The kernel's signature.
        signature: &'static str,
    },
    /// A dtype for a generic that the kernel does not have.
    #[error("kernel `{kernel}` has no dtype generic `{generic}`\n  kernel: {signature}")]
    Generic {
        /// The kernel.
        kernel: &'static str,
        /// The name given.
        generic: String,
        /// The kernel's signature.
        signature: &'static str,
    },
    /// A parameter that the kernel does not have.
    #[error("kernel `{kernel}` has no parameter `{name}`{}\n  kernel: {signature}", has(known))]
    UnknownParam {
        /// The kernel.
        kernel: &'static str,
        /// The name given.
        name: String,
        /// The parameters that it has.
        known: Vec<&'static str>,
        /// The kernel's signature.
        signature: &'static str,
    },
    /// A parameter with a value of another kind, or not among its choices.
    #[error("kernel `{kernel}`: parameter `{name}` is {value:?}, but must be {expected}\n  kernel: {signature}")]
    ParamValue {
        /// The kernel.
        kernel: &'static str,
        /// The parameter.
        name: &'static str,
        /// The value given.
        value: String,
        /// What it may be.
        expected: String,
        /// The kernel's signature.
        signature: &'static str,
    },
    /// A parameter without a value.
    #[error(
        "kernel `{kernel}`: parameter `{name}` has no default; give it a value: `--param {name}=VALUE`\n  kernel: {signature}"
    )]
    MissingParam {
        /// The kernel.
        kernel: &'static str,
        /// The parameter.
        name: &'static str,
        /// The kernel's signature.
        signature: &'static str,
    },
    /// A work that `max bench` does not know.
    #[error("there is no work `{name}`{}; `max bench --list` lists them all", nearest(near))]
    UnknownWork {
        /// The name given.
        name: String,
        /// Works with similar names.
        near: Vec<String>,
    },
    /// A work whose name has sizes that make no sense.
    #[error("work `{name}`: {problem}; its form is `{form}`")]
    WorkSizes {
        /// The name given.
        name: String,
        /// What is wrong.
        problem: &'static str,
        /// The form of such names.
        form: &'static str,
    },
    /// A shape for a kernel's operand that does not fit it.
    #[error("work `{name}`: {problem}\n  kernel: {signature}")]
    WorkShape {
        /// The name given.
        name: String,
        /// What is wrong.
        problem: String,
        /// The kernel's signature.
        signature: &'static str,
    },

    /// A model without anything to work on.
    #[error("say what the model is given: `--prompt TEXT`, `--prompt-file FILE`, or tokens, `--ids 1,2,3`")]
    NoPrompt,
    /// A processor beside the first one.
    #[error("there is no device `{device}`: all processors are `cpu`")]
    Processor {
        /// The name given.
        device: DeviceRef,
    },
    /// An input of a graph that no file has.
    #[error("no file has the input {name}; give a file that has it with `--input FILE`{}", has(known))]
    NoInput {
        /// The input, and its type.
        name: String,
        /// The names that the files have.
        known: Vec<String>,
    },
    // What could not be done: exit code 1.
    /// A model that cannot be loaded or run.
    #[error(transparent)]
    Pipeline(#[from] PipelineError),
    /// A prompt that could not be continued to its end.
    #[error(transparent)]
    Request(Arc<PipelineError>),
    /// A file that is no JSON.
    #[error("{}: {source}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: serde_json::Error,
    },
    /// Ctrl-C was pressed.
    #[error("interrupted")]
    Interrupted,
    /// A graph that cannot be read.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// A graph that cannot be loaded or executed.
    #[error(transparent)]
    Engine(Box<EngineError>),
    /// Files of tensors that cannot be read or written.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// A device that is not there, or that failed.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// A kernel that cannot be found or bound.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// What a kernel recorded is not IR.
    #[error("kernel `{kernel}` recorded what is not IR: {source}")]
    Ir {
        /// The kernel and its dtypes.
        kernel: String,
        /// What is wrong.
        source: ir::ParseError,
    },
    /// A kernel that cannot be written as PTX.
    #[error("{kernel} for {target}: {source}")]
    Ptx {
        /// The kernel and its dtypes.
        kernel: String,
        /// The GPU.
        target: String,
        /// Why.
        source: PtxError,
    },
    /// Kernels that cannot be written as PTX, each reported before.
    #[error("{failed} of {all} modules could not be written")]
    PtxAll {
        /// How many failed.
        failed: usize,
        /// How many were asked for.
        all: usize,
    },
    /// A file or directory that cannot be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// The path.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// A line of a baseline that is not one of `max bench --json`.
    #[error("{}, line {line}: {source}; make a baseline with `max bench --json > FILE`", path.display())]
    Baseline {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong.
        source: serde_json::Error,
    },
    /// Threads could not be started.
    #[error("{threads} threads could not be started: {reason}")]
    Threads {
        /// How many were asked for.
        threads: usize,
        /// What the system says.
        reason: String,
    },
    /// Works that could not be run, each reported before.
    #[error("{failed} of {all} works could not be run")]
    Works {
        /// How many failed.
        failed: usize,
        /// How many were asked for.
        all: usize,
    },
    /// A process of `max bench --cold` that failed.
    #[error("`{work}` in a new process: {reason}")]
    ColdSample {
        /// The work.
        work: String,
        /// What it said.
        reason: String,
    },
    /// A kernel by itself, which is no model.
    #[error("`{work}` is a kernel and not a graph; `max bench --cold` takes the works of `max bench --list`")]
    ColdKernel {
        /// The work.
        work: String,
    },
    /// Kernels that give other results elsewhere, each reported before.
    #[error("{failed} of {all} problems were not solved alike everywhere")]
    Differences {
        /// How many failed.
        failed: usize,
        /// How many were tried.
        all: usize,
    },
    /// Standard output cannot be written.
    #[error("standard output: {0}")]
    Output(#[from] io::Error),
}

impl CliError {
    /// The exit code: 2 if the command line asks for something that there is not, 130 after Ctrl-C, otherwise 1.
    pub fn exit_code(&self) -> u8 {
        match self {
            CliError::Interrupted => interrupt::EXIT_CODE,
            CliError::WhichKernel
            | CliError::NoPrompt
            | CliError::NothingToCheck
            | CliError::DType { .. }
            | CliError::FixedDType { .. }
            | CliError::Generic { .. }
            | CliError::UnknownParam { .. }
            | CliError::ParamValue { .. }
            | CliError::MissingParam { .. }
            | CliError::UnknownWork { .. }
            | CliError::WorkSizes { .. }
            | CliError::WorkShape { .. }
            | CliError::Processor { .. }
            | CliError::NoInput { .. }
            | CliError::ColdKernel { .. }
            | CliError::Pipeline(PipelineError::Setting { .. } | PipelineError::WhichModel)
            | CliError::Driver(DriverError::NoAccelerator { .. })
            | CliError::Kernel(KernelError::Unknown { .. }) => 2,
            _ => 1,
        }
    }
}

impl From<EngineError> for CliError {
    fn from(error: EngineError) -> CliError {
        CliError::Engine(Box::new(error))
    }
}

/// Why a graph that a command made could not be run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorkError {
    /// Its graph cannot be built.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// Its graph cannot be loaded, or the model not be executed.
    #[error(transparent)]
    Engine(Box<EngineError>),
    /// Its operands cannot be made.
    #[error(transparent)]
    Data(#[from] DriverError),
    /// It needs more memory than is free; the system would rather end the process than refuse.
    #[error("it needs {needed} bytes of memory, but {free} are free")]
    Memory {
        /// Bytes of its operands and results.
        needed: u64,
        /// Bytes that there are.
        free: u64,
    },
}

impl From<EngineError> for WorkError {
    fn from(error: EngineError) -> WorkError {
        WorkError::Engine(Box::new(error))
    }
}

fn names(dtypes: &[DType]) -> String {
    dtypes.iter().map(|dtype| dtype.short_name()).collect::<Vec<_>>().join(", ")
}

fn has<S: AsRef<str>>(known: &[S]) -> String {
    let known: Vec<&str> = known.iter().map(AsRef::as_ref).collect();
    if known.is_empty() { "; it has none".to_owned() } else { format!("; it has `{}`", known.join("`, `")) }
}

fn nearest(near: &[String]) -> String {
    if near.is_empty() { String::new() } else { format!(" (nearest: `{}`)", near.join("`, `")) }
}
