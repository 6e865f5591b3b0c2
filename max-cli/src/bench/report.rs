//! What `max bench` prints: one JSON object a line, or a table; and the comparison with a baseline.

use std::collections::HashMap;
use std::fs;
use std::io::Write;
use std::path::Path;

use max::driver::DeviceRef;
use serde::{Deserialize, Serialize};

use super::roof::{Bandwidth, Roof};
use super::timer::Timing;
use super::work::{Work, forms};
use crate::columns::{Align, Columns};
use crate::error::{CliError, WorkError};

/// The result of a work.
pub struct Row<'a> {
    /// Its name.
    pub work: String,
    /// Its times.
    pub timing: Timing,
    /// The operations that it needs at least.
    pub flops: u64,
    /// The bytes that it moves at least.
    pub bytes: u64,
    /// The time that this machine needs for that at least.
    pub floor_ns: f64,
    /// The form of kernels that ran, or the architecture of the device.
    pub isa: &'a str,
    /// On how many threads.
    pub threads: usize,
    /// On which device.
    pub device: DeviceRef,
}

/// A row as JSON.
#[derive(Serialize)]
struct Record<'a> {
    work: &'a str,
    median_ns: f64,
    min_ns: f64,
    runs: usize,
    flops: u64,
    bytes: u64,
    floor_ns: f64,
    isa: &'a str,
    threads: usize,
    device: String,
    q1_ns: f64,
    q3_ns: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    baseline_ns: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ratio: Option<f64>,
}

/// A line of a baseline; works that failed have no times.
#[derive(Clone, Copy, Deserialize)]
struct Times {
    median_ns: f64,
    q1_ns: Option<f64>,
    q3_ns: Option<f64>,
}

#[derive(Deserialize)]
struct Line {
    work: String,
    #[serde(default = "cpu_name")]
    device: String,
    #[serde(flatten)]
    times: Option<Times>,
}

/// The device of results that name none.
fn cpu_name() -> String {
    DeviceRef::CPU.to_string()
}

/// Earlier results, by work.
pub struct Baseline(HashMap<String, Times>);

impl Baseline {
    /// Reads what `max bench --json` printed, of that device.
    ///
    /// # Errors
    /// When the file cannot be read, or a line is not such an object.
    pub fn read(path: &Path, device: DeviceRef) -> Result<Baseline, CliError> {
        let text = fs::read_to_string(path).map_err(|source| CliError::File { path: path.to_owned(), source })?;
        let mut works = HashMap::new();
        for (i, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let line: Line = serde_json::from_str(line).map_err(|source| CliError::Baseline {
                path: path.to_owned(),
                line: i + 1,
                source,
            })?;
            if line.device.parse() == Ok(device) {
                works.extend(line.times.map(|times| (line.work, times)));
            }
        }
        Ok(Baseline(works))
    }

    fn of(&self, row: &Row<'_>) -> Option<Comparison> {
        let before = self.0.get(&row.work)?;
        let ratio = row.timing.median_ns / before.median_ns;
        let verdict = match (before.q1_ns, before.q3_ns) {
            (_, Some(q3)) if row.timing.q1_ns > q3 => "slower",
            (Some(q1), _) if row.timing.q3_ns < q1 => "faster",
            // The middle halves of the samples overlap.
            _ => "same",
        };
        Some(Comparison { baseline_ns: before.median_ns, ratio, verdict })
    }
}

struct Comparison {
    baseline_ns: f64,
    ratio: f64,
    verdict: &'static str,
}

/// Prints rows as they come, or collects them for a table.
pub struct Reporter<'a> {
    json: bool,
    baseline: Option<Baseline>,
    table: Columns,
    out: &'a mut dyn Write,
    err: &'a mut dyn Write,
}

impl<'a> Reporter<'a> {
    /// A reporter that writes results to `out` and what went wrong to `err`.
    pub fn new(json: bool, baseline: Option<Baseline>, out: &'a mut dyn Write, err: &'a mut dyn Write) -> Reporter<'a> {
        let mut header = vec![("work", Align::Left)];
        header.extend(["median", "min", "spread", "GB/s", "GFLOP/s", "floor", "of floor"].map(|h| (h, Align::Right)));
        if baseline.is_some() {
            header.extend([("baseline", Align::Right), ("ratio", Align::Right), ("", Align::Left)]);
        }
        Reporter { json, baseline, table: Columns::new(&header), out, err }
    }

    /// Prints what the results depend on, `machine` first: of JSON to standard error, so that every line of output is a work.
    pub fn begin(&mut self, roof: &Roof, machine: &str) -> Result<(), CliError> {
        let mut text = vec![machine.to_owned(), format!("copy  {}", bandwidth_text(&roof.copy))];
        text.extend(roof.read.as_ref().map(|read| format!("read  {}", bandwidth_text(read))));
        if let Some(flops) = roof.f32_flops {
            let halves = roof.bf16_flops.map_or(String::new(), |flops| format!(", {:.0} of bf16", flops / 1e9));
            text.push(format!("peak  {:.0} GFLOP/s of f32 by fused multiply-add{halves}", flops / 1e9));
        } else {
            text.push("floors are of memory alone".to_owned());
        }
        let text = text.join("\n");
        if self.json {
            // Standard error may be closed; the results tell enough.
            let _ = writeln!(self.err, "{text}");
        } else {
            writeln!(self.out, "{text}\n")?;
        }
        Ok(())
    }

    /// Reports a result.
    pub fn row(&mut self, row: Row<'_>) -> Result<(), CliError> {
        let comparison = self.baseline.as_ref().and_then(|baseline| baseline.of(&row));
        if self.json {
            let Row { timing, flops, bytes, floor_ns, isa, threads, device, .. } = row;
            let record = Record {
                work: &row.work,
                median_ns: timing.median_ns,
                min_ns: timing.min_ns,
                runs: timing.runs,
                flops,
                bytes,
                floor_ns,
                isa,
                threads,
                device: device.to_string(),
                q1_ns: timing.q1_ns,
                q3_ns: timing.q3_ns,
                baseline_ns: comparison.as_ref().map(|c| c.baseline_ns),
                ratio: comparison.as_ref().map(|c| c.ratio),
            };
            let line = serde_json::to_string(&record).map_err(std::io::Error::from)?;
            writeln!(self.out, "{line}")?;
            self.out.flush()?;
            return Ok(());
        }
        let timing = &row.timing;
        let rate =
            |count: u64| if count == 0 { String::new() } else { format!("{:.1}", count as f64 / timing.median_ns) };
        let spread = 100.0 * (timing.q3_ns - timing.q1_ns) / timing.median_ns;
        let (floor, part) = match row.floor_ns {
            0.0 => (String::new(), String::new()),
            floor => (time(floor), format!("{:.0}%", 100.0 * floor / timing.median_ns)),
        };
        let mut cells = vec![
            row.work.clone(),
            time(timing.median_ns),
            time(timing.min_ns),
            format!("{spread:.0}%"),
            rate(row.bytes),
            rate(row.flops),
            floor,
            part,
        ];
        if let Some(comparison) = comparison {
            cells.extend([time(comparison.baseline_ns), format!("{:.2}", comparison.ratio), comparison.verdict.into()]);
        }
        self.table.row(cells);
        Ok(())
    }

    /// Reports a work that went wrong.
    pub fn failure(&mut self, work: &str, error: &WorkError) -> Result<(), CliError> {
        // Standard error may be closed; the exit code still tells.
        let _ = writeln!(self.err, "work `{work}` failed: {error}");
        Ok(())
    }

    /// Prints the table.
    pub fn end(&mut self) -> Result<(), CliError> {
        if !self.json {
            self.table.print(0, self.out)?;
        }
        Ok(())
    }
}

/// Prints the works and the forms of their names.
pub fn list(works: &[Work], out: &mut dyn Write) -> Result<(), CliError> {
    for work in works {
        writeln!(out, "{}", work.name())?;
    }
    writeln!(
        out,
        "\nOther sizes, by names of these forms (RxC is a shape of any rank unless the op has a fixed one):\n"
    )?;
    for form in forms() {
        writeln!(out, "    {form}")?;
    }
    writeln!(
        out,
        "\n`kernel:NAME` times any kernel of `max ops` by itself; --dtype, --dtypes and --param choose its form."
    )?;
    Ok(())
}

/// `64 KiB 93, …, 256 MiB 29 GB/s`
fn bandwidth_text(bandwidth: &Bandwidth) -> String {
    let points: Vec<String> =
        bandwidth.0.iter().map(|(size, rate)| format!("{} {:.0}", size_text(*size), rate / 1e9)).collect();
    format!("{} GB/s", points.join(", "))
}

fn size_text(bytes: f64) -> String {
    let kib = bytes / 1024.0;
    if kib < 1024.0 { format!("{kib:.0} KiB") } else { format!("{:.0} MiB", kib / 1024.0) }
}

/// A time in three digits or a little more.
pub fn time(ns: f64) -> String {
    match ns {
        ..1e3 => format!("{ns:.0} ns"),
        ..1e5 => format!("{:.2} us", ns / 1e3),
        ..1e6 => format!("{:.0} us", ns / 1e3),
        ..1e9 => format!("{:.2} ms", ns / 1e6),
        _ => format!("{:.2} s", ns / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(median_ns: f64) -> Row<'static> {
        let timing =
            Timing { median_ns, min_ns: median_ns * 0.9, q1_ns: median_ns * 0.95, q3_ns: median_ns * 1.05, runs: 20 };
        Row {
            work: "relu_5".into(),
            timing,
            flops: 5,
            bytes: 40,
            floor_ns: 1.0,
            isa: "v3",
            threads: 2,
            device: DeviceRef::CPU,
        }
    }

    fn baseline(text: &str) -> Result<Baseline, CliError> {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), text).unwrap();
        Baseline::read(file.path(), DeviceRef::CPU)
    }

    #[test]
    fn rows_are_compared_with_what_was_printed_before() {
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let mut reporter = Reporter::new(true, None, &mut out, &mut err);
        reporter.row(row(1000.0)).unwrap();
        let baseline = baseline(&String::from_utf8(out).unwrap()).unwrap();
        for (now, verdict) in [(2000.0, "slower"), (1020.0, "same"), (500.0, "faster")] {
            let comparison = baseline.of(&row(now)).unwrap();
            assert_eq!((comparison.baseline_ns, comparison.ratio, comparison.verdict), (1000.0, now / 1000.0, verdict));
        }
        assert!(baseline.of(&Row { work: "conv2d_1".into(), ..row(1.0) }).is_none());
    }

    #[test]
    fn results_of_other_devices_are_no_baseline() {
        let text = |device: &str| format!("{{\"work\":\"relu_5\",\"median_ns\":1.0{device}}}");
        for (device, count) in [("", 1), (",\"device\":\"cpu:0\"", 1), (",\"device\":\"gpu:0\"", 0)] {
            assert_eq!(baseline(&text(device)).unwrap().0.len(), count, "{device}");
        }
    }

    #[test]
    fn a_line_that_is_no_result_is_an_error() {
        let error = baseline("{\"work\": \"relu_5\", \"median_ns\": 3}\n\nrelu_5 3\n").err().unwrap().to_string();
        assert!(error.contains("line 3:") && error.contains("max bench --json"), "{error}");
    }

    #[test]
    fn times_have_a_fitting_unit() {
        let texts = [0.4, 730.0, 1234.0, 99_000.0, 123_456.0, 6_908_000.0, 2.5e9].map(time);
        assert_eq!(texts, ["0 ns", "730 ns", "1.23 us", "99.00 us", "123 us", "6.91 ms", "2.50 s"]);
    }
}
