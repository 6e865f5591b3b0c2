//! [`Profile`]: how long each step of an execution took.

use std::fmt::{self, Write};
use std::panic::Location;
use std::time::Duration;

use crate::driver::DeviceRef;

/// One step of an execution.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StepTime {
    /// The op that it came from; of several that became one, the first.
    pub op: &'static str,
    /// The line that added the op.
    pub location: &'static Location<'static>,
    /// Where it was executed.
    pub device: DeviceRef,
    /// When it began, from the beginning of the execution on.
    pub begin: Duration,
    /// How long it took. Of a step on a GPU, how long it took to enqueue it.
    pub time: Duration,
    /// How many regions it was executed in: 0 for a step of the graph itself.
    pub depth: usize,
}

/// How long each step of an execution took: see [`Model::profile`](super::Model::profile). It prints as a table, the ops
/// that took longest first.
#[derive(Clone, Debug, Default)]
pub struct Profile {
    pub(super) steps: Vec<StepTime>,
    pub(super) total: Duration,
}

impl Profile {
    /// The steps, in the order in which they ended.
    pub fn steps(&self) -> &[StepTime] {
        &self.steps
    }

    /// How long the whole execution took.
    pub fn total(&self) -> Duration {
        self.total
    }

    /// The steps as a Chrome trace, which `chrome://tracing` and Perfetto show: a span for each.
    pub fn to_chrome_trace(&self) -> String {
        let span = |step: &StepTime| {
            serde_json::json!({
                "name": step.op,
                "cat": step.device.to_string(),
                "ph": "X",
                "ts": step.begin.as_nanos() as f64 / 1e3,
                "dur": step.time.as_nanos() as f64 / 1e3,
                "pid": 0,
                "tid": 0,
                "args": { "line": step.location.to_string() },
            })
        };
        let spans: Vec<_> = self.steps.iter().map(span).collect();
        serde_json::json!({ "traceEvents": spans, "displayTimeUnit": "ns" }).to_string()
    }
}

impl fmt::Display for Profile {
    /// Op, line, how often, milliseconds, share of the whole.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rows: Vec<(&str, String, usize, Duration)> = Vec::new();
        for step in self.steps.iter().filter(|step| step.depth == 0) {
            let line = format!("{}:{}", step.location.file(), step.location.line());
            match rows.iter_mut().find(|(op, known, ..)| *op == step.op && *known == line) {
                Some((_, _, count, time)) => (*count, *time) = (*count + 1, *time + step.time),
                None => rows.push((step.op, line, 1, step.time)),
            }
        }
        rows.sort_by_key(|(.., time)| std::cmp::Reverse(*time));
        let width = rows.iter().map(|(op, ..)| op.len()).max().unwrap_or(2);
        let whole = self.total.as_secs_f64().max(f64::MIN_POSITIVE);
        writeln!(f, "{:width$}  {:>5}  {:>10}  {:>6}  line", "op", "times", "ms", "share")?;
        for (op, line, count, time) in rows {
            let (ms, share) = (time.as_secs_f64() * 1e3, 100.0 * time.as_secs_f64() / whole);
            writeln!(f, "{op:width$}  {count:>5}  {ms:>10.4}  {share:>5.1}%  {line}")?;
        }
        let mut total = String::new();
        write!(total, "{:.4} ms in all", self.total.as_secs_f64() * 1e3)?;
        writeln!(f, "{total}")
    }
}
