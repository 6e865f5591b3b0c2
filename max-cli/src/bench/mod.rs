//! `max bench`: times works, each a graph run by the engine, beside the floor that this machine sets.
//!
//! A work is named by what it does and its sizes: `softmax_77x1000`. The floor is the larger of the bytes that it must
//! move over the memory bandwidth and the operations that it must do over the arithmetic peak, both measured when the
//! command starts, with as many threads as the works have. Times are of warm runs: the same operands again and again.

mod cold;
mod decoder;
mod kernel_work;
mod report;
mod roof;
mod sweep;
mod timer;
mod tune;
mod work;

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use max::driver::{Device, DeviceRef, DriverError};
use max::dtype::DType;
use max::engine::{InferenceSession, Profile};
use max::kernel::{KernelLibrary, form, num_threads};

use crate::error::{CliError, WorkError};
use crate::info::{Builds, cpu, form_name};
use crate::kernels::variant::VariantArgs;
use report::{Baseline, Reporter, Row};
use roof::{Cost, Roof};
use timer::{Limits, measure};
use work::Work;

/// Arguments of `max bench`.
#[derive(clap::Args)]
pub struct Args {
    /// The works, such as `softmax_77x1000` or `kernel:my_op:512x512` [default: those of `--list`]
    names: Vec<String>,
    /// Time works of random shapes
    #[arg(long, conflicts_with = "names")]
    sweep: bool,
    /// What the random shapes follow from: the same seed draws the same works
    #[arg(long, requires = "sweep", default_value_t = 0)]
    seed: u64,
    /// How many works to draw
    #[arg(long, requires = "sweep", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    count: u32,
    /// Measure the first load, the first execution and the memory in processes that have just begun
    #[arg(long, conflicts_with_all = ["sweep", "tune", "baseline", "threads", "device"])]
    cold: bool,
    /// Measure that in this process
    #[arg(long, hide = true, value_name = "WORK", conflicts_with = "names")]
    cold_sample: Option<String>,
    /// Print the works and the forms of their names, and time nothing
    #[arg(long)]
    list: bool,
    /// Only works whose name contains this
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
    /// Print one JSON object a line
    #[arg(long)]
    json: bool,
    /// How many samples to take of each work [default: as many as half a second holds, at least 20 in two seconds]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    runs: Option<u32>,
    /// How many threads to run on [default: one for each processor]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: Option<u32>,
    /// Run on this device: `cpu`, `gpu`, `gpu:1`
    #[arg(long, default_value = "cpu", value_name = "DEVICE")]
    device: DeviceRef,
    /// Compare with the results in this file, which `max bench --json` printed
    #[arg(long, value_name = "FILE")]
    baseline: Option<PathBuf>,
    /// Try other values of the numbers that decide how work is divided, and print what each would give
    #[arg(long, conflicts_with_all = ["baseline", "device"])]
    tune: bool,
    #[command(flatten, next_help_heading = "Options of `kernel:` works")]
    variant: VariantArgs,
}

/// Runs the command.
pub fn run(args: &Args, library: &KernelLibrary, out: &mut dyn Write, err: &mut dyn Write) -> Result<(), CliError> {
    if let Some(name) = &args.cold_sample {
        return cold::sample(&Work::find(name, library, &args.variant)?, out);
    }
    let works = select(args, library)?;
    if args.list {
        return report::list(&works, out);
    }
    if args.cold {
        return cold::run(&works, args.runs, args.json, out);
    }
    let baseline = args.baseline.as_deref().map(|path| Baseline::read(path, args.device)).transpose()?;
    let threads = args.threads.map_or_else(num_threads, |threads| threads as usize);
    let session = session(args, library)?;
    let device = session.devices()[0];
    let isa = if device.is_host() { form_name(form()?) } else { device.architecture_name()? };
    if let Some(advice) = Builds::of(library).advice() {
        // Standard error may be closed; the times will tell.
        let _ = writeln!(err, "{advice}\n");
    }
    let limits = Limits { runs: args.runs.map(|runs| runs as usize) };
    if args.tune {
        return tune::run(&works, &session, library, limits, args.json, (out, err));
    }
    let roof = if device.is_host() { Roof::measure(threads) } else { Roof::of(&device)? };
    let mut reporter = Reporter::new(args.json, baseline, out, err);
    reporter.begin(&roof, &machine(&device, isa, threads)?)?;
    let mut failed = 0;
    for work in &works {
        match time(work, &session, library, limits) {
            Ok(timing) => {
                let cost = work.cost();
                let floor_ns = roof.floor_ns(cost);
                let (flops, bytes) = (cost.flops, cost.bytes);
                reporter.row(Row {
                    work: work.name().to_owned(),
                    timing,
                    flops,
                    bytes,
                    floor_ns,
                    isa,
                    threads,
                    device: args.device,
                })?;
            }
            Err(error) => {
                failed += 1;
                reporter.failure(work.name(), &error)?;
            }
        }
    }
    reporter.end()?;
    if failed > 0 { Err(CliError::Works { failed, all: works.len() }) } else { Ok(()) }
}

/// A profile beside what this machine needs at least, which is measured, in about a second.
pub fn beside_floor(profile: Profile) -> Profile {
    let roof = Roof::measure(num_threads());
    profile.with_floor(|step| {
        let (flops, bytes) = (step.operations.unwrap_or(0), step.bytes);
        let ns = roof.floor_ns(Cost { flops, bytes, reads_only: false, dtype: DType::F32 });
        Duration::from_nanos(ns as u64)
    })
}

fn time(
    work: &Work,
    session: &InferenceSession,
    library: &KernelLibrary,
    limits: Limits,
) -> Result<timer::Timing, WorkError> {
    measure(&mut *work.prepare(session, library)?, limits)
}

/// What the results depend on.
fn machine(device: &Device, isa: &str, threads: usize) -> Result<String, DriverError> {
    if !device.is_host() {
        return Ok(format!("{}, {isa}, device {}", device.product_name()?, DeviceRef::from(device)));
    }
    let governor = cpu::governor().map_or(String::new(), |governor| format!(", clock governor {governor}"));
    let name = cpu::name().unwrap_or_else(|| "CPU".to_owned());
    Ok(format!("{name}, level {isa}, {threads} threads{governor}"))
}

fn session(args: &Args, library: &KernelLibrary) -> Result<InferenceSession, CliError> {
    let device = match args.device {
        device if device == DeviceRef::CPU => Device::cpu(),
        device if device.is_cpu() => return Err(CliError::Processor { device }),
        device => Device::accelerator(device.id)?,
    };
    let session = InferenceSession::with_devices([device]).library(library.clone());
    let Some(threads) = args.threads else { return Ok(session) };
    let threads = threads as usize;
    session.num_threads(threads).map_err(|error| CliError::Threads { threads, reason: error.to_string() })
}

fn select(args: &Args, library: &KernelLibrary) -> Result<Vec<Work>, CliError> {
    let names: Vec<String> = match args.names.is_empty() {
        _ if args.sweep => sweep::names(args.seed, args.count as usize),
        true if args.cold => cold::LISTED.iter().map(|name| (*name).to_owned()).collect(),
        true => work::LISTED.iter().map(|name| (*name).to_owned()).collect(),
        false => args.names.clone(),
    };
    let chosen = names.iter().filter(|name| args.filter.as_ref().is_none_or(|text| name.contains(text.as_str())));
    chosen.map(|name| Work::find(name, library, &args.variant)).collect()
}
