//! [`Profile`]: how long each step of an execution took.

use std::fmt;
use std::panic::Location;
use std::time::Duration;

use crate::driver::DeviceRef;

/// One step of an execution.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StepTime {
    /// The op that it came from; of several that became one, the first.
    pub op: &'static str,
    /// The kernel that it ran, if it was one of the host's; of elementwise kernels that became one step, the last.
    pub kernel: Option<&'static str>,
    /// The line that added the op.
    pub location: &'static Location<'static>,
    /// Where it was executed.
    pub device: DeviceRef,
    /// When it began, from the beginning of the execution on.
    pub begin: Duration,
    /// How long it took. Of a step on a GPU, how long it took to enqueue it.
    pub time: Duration,
    /// How many bytes its operands and results have.
    pub bytes: u64,
    /// How often a product of matrices multiplies and adds.
    pub operations: Option<u64>,
    /// The least that the machine needs for it, if [`Profile::with_floor`] said it.
    pub floor: Option<Duration>,
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

    /// The profile with the least time that each step needs on a machine: what moving its `bytes` and computing its `operations`
    /// take. The table then has a column that shows how much of each op's time that is.
    ///
    /// ```
    /// use std::time::Duration;
    /// # use max_core::engine::{Profile, StepTime};
    /// # fn beside(profile: Profile) -> Profile {
    /// // 40 GB/s and 200 GFLOP/s.
    /// let floor = |step: &StepTime| (step.bytes as f64 / 40e9).max(step.operations.unwrap_or(0) as f64 / 200e9);
    /// profile.with_floor(|step| Duration::from_secs_f64(floor(step)))
    /// # }
    /// ```
    #[must_use]
    pub fn with_floor(mut self, floor: impl Fn(&StepTime) -> Duration) -> Profile {
        for step in &mut self.steps {
            step.floor = Some(floor(step));
        }
        self
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
                "args": {
                    "line": step.location.to_string(),
                    "kernel": step.kernel,
                    "bytes": step.bytes,
                    "operations": step.operations,
                },
            })
        };
        let spans: Vec<_> = self.steps.iter().map(span).collect();
        serde_json::json!({ "traceEvents": spans, "displayTimeUnit": "ns" }).to_string()
    }
}

fn percent(part: f64) -> String {
    format!("{:.0}%", 100.0 * part)
}

/// The steps of one op of a line.
struct Row<'a> {
    op: &'a str,
    kernel: &'a str,
    line: String,
    count: u64,
    time: Duration,
    bytes: u64,
    operations: Option<u64>,
    floor: Option<Duration>,
}

impl Row<'_> {
    fn add(&mut self, step: &StepTime) {
        (self.count, self.time, self.bytes) = (self.count + 1, self.time + step.time, self.bytes + step.bytes);
        self.operations = self.operations.zip(step.operations).map(|(all, one)| all + one);
        self.floor = self.floor.zip(step.floor).map(|(all, one)| all + one);
    }
}

impl fmt::Display for Profile {
    /// Op, kernel, how often, milliseconds, share of the whole, memory read and written in GB/s, of products GFLOP/s, how much of
    /// the time the machine needs at least, line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rows: Vec<Row<'_>> = Vec::new();
        for step in self.steps.iter().filter(|step| step.depth == 0) {
            let line = format!("{}:{}", step.location.file(), step.location.line());
            let kernel = step.kernel.unwrap_or("-");
            match rows.iter_mut().find(|row| row.op == step.op && row.kernel == kernel && row.line == line) {
                Some(row) => row.add(step),
                None => {
                    let StepTime { op, time, bytes, operations, floor, .. } = *step;
                    rows.push(Row { op, kernel, line, count: 1, time, bytes, operations, floor });
                }
            }
        }
        rows.sort_by_key(|row| std::cmp::Reverse(row.time));
        let width = |text: fn(&Row<'_>) -> usize| rows.iter().map(text).max().unwrap_or(0).max(6);
        let (op, kernel) = (width(|row| row.op.len()), width(|row| row.kernel.len()));
        let whole = self.total.as_secs_f64().max(f64::MIN_POSITIVE);
        let has_floor = rows.iter().any(|row| row.floor.is_some());
        let column = |text: String| if has_floor { format!("{text:>8}  ") } else { String::new() };
        let (times, ms, share, gb, gflop) = ("times", "ms", "share", "GB/s", "GFLOP/s");
        let floor = column("of floor".to_owned());
        writeln!(
            f,
            "{:op$}  {:kernel$}  {times:>5}  {ms:>10}  {share:>6}  {gb:>6}  {gflop:>7}  {floor}line",
            "op", "kernel"
        )?;
        for row in rows {
            let seconds = row.time.as_secs_f64();
            let rate = |count: u64| count as f64 / seconds.max(f64::MIN_POSITIVE) / 1e9;
            let gflop = row.operations.map_or_else(|| "-".to_owned(), |count| format!("{:.1}", rate(count)));
            let (ms, share, gb) = (seconds * 1e3, 100.0 * seconds / whole, rate(row.bytes));
            let seconds = seconds.max(f64::MIN_POSITIVE);
            let floor = row.floor.map_or_else(|| "-".to_owned(), |floor| percent(floor.as_secs_f64() / seconds));
            let (floor, Row { op: name, kernel: run, count, line, .. }) = (column(floor), row);
            writeln!(
                f,
                "{name:op$}  {run:kernel$}  {count:>5}  {ms:>10.4}  {share:>5.1}%  {gb:>6.1}  {gflop:>7}  {floor}{line}"
            )?;
        }
        writeln!(f, "{:.4} ms in all", self.total.as_secs_f64() * 1e3)
    }
}
