//! `max info --model`: what a model is, from the headers of its files.

use std::io::Write;
use std::path::Path;

use max::pipelines::{PipelineRegistry, info as read};

use crate::columns::Columns;
use crate::error::CliError;
use crate::memory;

/// Runs the command.
pub fn info(path: &Path, out: &mut dyn Write) -> Result<(), CliError> {
    let info = read(path, &PipelineRegistry::new())?;
    let mut rows = Columns::list();
    let mut row = |name: &str, value: String| rows.row([name.to_owned(), value]);
    row("model", info.path.display().to_string());
    let task = info.task.map_or("which is not known here".to_owned(), |task| format!("for {task}"));
    row("architecture", format!("{}, {task}", info.architecture));
    row("parameters", format!("{:.1} million", info.parameters as f64 / 1e6));
    for (i, (dtype, bytes)) in info.bytes_by_dtype.iter().enumerate() {
        row(if i == 0 { "weights" } else { "" }, format!("{:.1} MB of {dtype}", *bytes as f64 / 1e6));
    }
    if let Some(length) = info.max_length {
        row("context", format!("{length} tokens"));
    }
    if let Some(bytes) = info.cache_bytes_per_token {
        let whole = info.max_length.map(|length| format!(", {:.1} MB for all", (bytes * length) as f64 / 1e6));
        row("cache", format!("{:.1} kB for each token{}", bytes as f64 / 1e3, whole.unwrap_or_default()));
    }
    if let Some(free) = memory::free() {
        let weights: usize = info.bytes_by_dtype.values().sum();
        let cache = info.cache_bytes_per_token.unwrap_or(0) * info.max_length.unwrap_or(0);
        let (needed, free) = ((weights + cache) as f64, free as f64);
        let fits = match info.cache_bytes_per_token.filter(|bytes| *bytes > 0) {
            _ if needed <= free => "fits, with a whole context".to_owned(),
            Some(bytes) if (weights as f64) < free => {
                format!("fits with {} tokens of context (`--max-length`)", (free - weights as f64) as usize / bytes)
            }
            _ => "does not fit".to_owned(),
        };
        rows.row([
            "memory".to_owned(),
            format!("{:.1} MB, and {:.1} MB are free: it {fits}", needed / 1e6, free / 1e6),
        ]);
    }
    rows.print(0, out).map_err(CliError::Output)
}
