//! `max bench --cold`: what a model costs in a process that has just begun.
//!
//! Each sample is a process of its own: it loads the work's graph, packs its weights, which lie in a mapped file, executes it,
//! and prints what that took. Shown is the median of each figure.

use std::collections::BTreeMap;
use std::io::Write;
use std::process::Command;
use std::time::Instant;

use max::engine::InferenceSession;
use max::graph::weights::{SafetensorWeights, WeightsRegistry, save_safetensors};
use serde::{Deserialize, Serialize};

use super::work::{Parts, Work};
use crate::columns::{Align, Columns};
use crate::error::{CliError, WorkError};
use crate::memory;

/// The works that run when none is named: of 1 op, of 100 ops, of over 1,000, and of 206 MB of weights.
pub const LISTED: &[&str] =
    &["load_graph_1", "load_graph_100", "llama_l32_h2_d16_f64_t1", "llama_l4_h16_d64_f2816_t64"];

/// Processes for each work, unless a number was asked for.
const SAMPLES: usize = 11;
/// Executions behind the first.
const LATER: usize = 9;

/// What one process found.
#[derive(Serialize, Deserialize)]
struct Sample {
    /// The first load, in microseconds.
    load_us: f64,
    /// The same load once more.
    second_load_us: f64,
    /// Packing ahead of the first execution, in milliseconds.
    warm_up_ms: f64,
    /// The first execution, and the median of later ones.
    first_ms: f64,
    later_ms: f64,
    /// Bytes of the weights, and of what is between layers.
    weights: u64,
    activations: u64,
    /// The bytes that the process has more in memory than before it loaded the model.
    resident: u64,
}

impl Sample {
    fn figures(&self) -> [f64; 8] {
        let bytes = [self.weights, self.activations, self.resident].map(|bytes| bytes as f64);
        let [weights, activations, resident] = bytes;
        let (load, second) = (self.load_us, self.second_load_us);
        [load, second, self.warm_up_ms, self.first_ms, self.later_ms, weights, activations, resident]
    }

    fn of(
        [load_us, second_load_us, warm_up_ms, first_ms, later_ms, weights, activations, resident]: [f64; 8],
    ) -> Sample {
        let [weights, activations, resident] = [weights, activations, resident].map(|bytes| bytes as u64);
        Sample { load_us, second_load_us, warm_up_ms, first_ms, later_ms, weights, activations, resident }
    }
}

/// Runs the processes, and shows the medians.
pub fn run(works: &[Work], samples: Option<u32>, json: bool, out: &mut dyn Write) -> Result<(), CliError> {
    let samples = samples.map_or(SAMPLES, |samples| samples as usize);
    let program = std::env::current_exe()?;
    let header = [
        "load us",
        "again us",
        "ops",
        "warm-up ms",
        "first ms",
        "later ms",
        "first/later",
        "weights MB",
        "resident MB",
        "of needed",
    ];
    let columns = std::iter::once(("work", Align::Left)).chain(header.map(|name| (name, Align::Right)));
    let mut table = Columns::new(&columns.collect::<Vec<_>>());
    for work in works {
        let ops = ops_of(work)?;
        let mut found: Vec<[f64; 8]> = Vec::with_capacity(samples);
        for _ in 0..samples {
            let output = Command::new(&program).args(["bench", "--cold-sample", work.name()]).output()?;
            let text = String::from_utf8_lossy(&output.stdout);
            match serde_json::from_str::<Sample>(&text) {
                Ok(sample) => found.push(sample.figures()),
                Err(_) => {
                    let reason = String::from_utf8_lossy(&output.stderr).trim().to_owned();
                    return Err(CliError::ColdSample { work: work.name().to_owned(), reason });
                }
            }
        }
        let median = |figure: usize| {
            let mut all: Vec<f64> = found.iter().map(|sample| sample[figure]).collect();
            all.sort_unstable_by(f64::total_cmp);
            all.get(all.len() / 2).copied().unwrap_or_default()
        };
        let sample = Sample::of(std::array::from_fn(median));
        if json {
            let value = serde_json::json!({ "work": work.name(), "ops": ops, "samples": samples, "cold": sample });
            writeln!(out, "{value}")?;
            continue;
        }
        let needed = (sample.weights + sample.activations) as f64;
        let share = if sample.weights > 0 { format!("{:.2}", sample.resident as f64 / needed) } else { "-".to_owned() };
        table.row([
            work.name().to_owned(),
            format!("{:.1}", sample.load_us),
            format!("{:.1}", sample.second_load_us),
            ops.to_string(),
            format!("{:.2}", sample.warm_up_ms),
            format!("{:.3}", sample.first_ms),
            format!("{:.3}", sample.later_ms),
            format!("{:.2}", sample.first_ms / sample.later_ms),
            format!("{:.1}", sample.weights as f64 / 1e6),
            format!("{:.1}", sample.resident as f64 / 1e6),
            share,
        ]);
    }
    if !json {
        table.print(0, out)?;
    }
    Ok(())
}

/// How many ops the graph of a work has, without its inputs.
fn ops_of(work: &Work) -> Result<usize, CliError> {
    let Parts { graph, .. } = parts(work)?;
    Ok(graph.to_string().lines().filter(|line| line.contains(" = ")).count())
}

fn parts(work: &Work) -> Result<Parts, CliError> {
    let Work::Named(named) = work else { return Err(CliError::ColdKernel { work: work.name().to_owned() }) };
    let parts = named.parts(max::driver::Device::cpu());
    parts.map_err(|error| CliError::ColdSample { work: work.name().to_owned(), reason: error.to_string() })
}

/// Measures in this process, which has done nothing yet, and prints what it found.
pub fn sample(work: &Work, out: &mut dyn Write) -> Result<(), CliError> {
    let failed = |reason: String| CliError::ColdSample { work: work.name().to_owned(), reason };
    let Parts { graph, inputs, weights } = parts(work)?;
    let bytes: usize = weights.values().map(max::driver::Tensor::num_bytes).sum();
    let folder = folder_for(bytes)?;
    let mapped = match &folder {
        None => None,
        Some(folder) => {
            let path = folder.0.join("model.safetensors");
            let named: Vec<_> = weights.iter().map(|(name, tensor)| (&**name, tensor)).collect();
            save_safetensors(&path, named, &BTreeMap::new()).map_err(|error| failed(error.to_string()))?;
            // SAFETY: the file is this process's, which does not change it.
            Some(unsafe { SafetensorWeights::mmap([&path]) }.map_err(|error| failed(error.to_string()))?)
        }
    };
    drop(weights);
    let registry: &dyn WeightsRegistry = match &mapped {
        Some(mapped) => mapped,
        None => &(),
    };
    max::driver::Device::cpu().release_cached_memory();
    let before = memory::resident().unwrap_or_default();
    let measured = measure(&graph, registry, &inputs).map_err(|error| failed(error.to_string()))?;
    let resident = memory::resident().unwrap_or_default().saturating_sub(before);
    let activations = match work {
        Work::Named(work) => work.activation_bytes(),
        Work::Kernel(_) => 0,
    };
    let (times, _model) = measured;
    let sample = Sample { weights: bytes as u64, activations, resident, ..times };
    writeln!(out, "{}", serde_json::json!(sample))?;
    Ok(())
}

/// The times, and the model, which is still there.
fn measure(
    graph: &max::graph::Graph,
    weights: &dyn WeightsRegistry,
    inputs: &[max::driver::Tensor],
) -> Result<(Sample, max::engine::Model), WorkError> {
    let seconds = |start: Instant| start.elapsed().as_secs_f64();
    let start = Instant::now();
    let model = InferenceSession::new().load_with_weights(graph, weights)?;
    let load_us = seconds(start) * 1e6;
    let start = Instant::now();
    drop(InferenceSession::new().load_with_weights(graph, weights)?);
    let second_load_us = seconds(start) * 1e6;
    let start = Instant::now();
    model.warm_up()?;
    let warm_up_ms = seconds(start) * 1e3;
    let execute = || {
        let start = Instant::now();
        model.execute(inputs)?;
        Ok::<f64, WorkError>(seconds(start) * 1e3)
    };
    let first_ms = execute()?;
    let mut later = (0..LATER).map(|_| execute()).collect::<Result<Vec<_>, _>>()?;
    later.sort_unstable_by(f64::total_cmp);
    let later_ms = later[LATER / 2];
    let (weights, activations, resident) = (0, 0, 0);
    Ok((Sample { load_us, second_load_us, warm_up_ms, first_ms, later_ms, weights, activations, resident }, model))
}

/// A folder that is removed at the end.
struct Folder(std::path::PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        // What cannot be removed is left for the system.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A folder of this process for a file of so many bytes; none where there are none.
fn folder_for(bytes: usize) -> Result<Option<Folder>, CliError> {
    if bytes == 0 {
        return Ok(None);
    }
    let path = std::env::temp_dir().join(format!("max-bench-{}", std::process::id()));
    std::fs::create_dir_all(&path)?;
    Ok(Some(Folder(path)))
}
