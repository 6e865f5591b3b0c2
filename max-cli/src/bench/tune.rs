//! `max bench --tune`: what other values of the numbers in [`max::kernel::tuning`] would give. They are tried here alone;
//! a value that serves better becomes the default in the source, or a kernel's tile sizes in its attribute.

use std::io::Write;

use max::engine::InferenceSession;
use max::kernel::KernelLibrary;
use max::kernel::tuning::{PARAMETERS, Parameter};
use serde::Serialize;

use super::report::time;
use super::timer::{Limits, measure};
use super::work::{Prepared, Work};
use crate::columns::{Align, Columns};
use crate::error::{CliError, WorkError};

/// A change of less than this is noise.
const NOTABLE: f64 = 0.05;

/// A value that was tried.
#[derive(Clone, Serialize)]
struct Trial<'a> {
    work: &'a str,
    parameter: &'static str,
    value: usize,
    default: usize,
    median_ns: f64,
    /// The median over that with the default.
    ratio: f64,
}

/// Tries each parameter for each work, and prints all trials as JSON, or those that change something as a table.
pub fn run(
    works: &[Work],
    session: &InferenceSession,
    library: &KernelLibrary,
    limits: Limits,
    json: bool,
    (out, err): (&mut dyn Write, &mut dyn Write),
) -> Result<(), CliError> {
    let header =
        [("work", Align::Left), ("parameter", Align::Left), ("value", Align::Right), ("default", Align::Right)];
    let times = [("median", Align::Right), ("ratio", Align::Right), ("", Align::Left)];
    let mut table = Columns::new(&[&header[..], &times[..]].concat());
    let mut failed = 0;
    for work in works {
        let trials = work.prepare(session, library).and_then(|mut once| {
            let trials = PARAMETERS.iter().map(|parameter| try_values(work.name(), parameter, &mut once, limits));
            Ok(trials.collect::<Result<Vec<_>, _>>()?.concat())
        });
        let trials = trials.unwrap_or_else(|error| {
            failed += 1;
            // Standard error may be closed; the exit code still tells.
            let _ = writeln!(err, "work `{}` failed: {error}", work.name());
            Vec::new()
        });
        for trial in trials {
            if json {
                writeln!(out, "{}", serde_json::to_string(&trial).map_err(std::io::Error::from)?)?;
                continue;
            }
            let verdict = match trial.ratio {
                ratio if ratio < 1.0 - NOTABLE => "faster",
                ratio if ratio > 1.0 + NOTABLE => "slower",
                _ => continue,
            };
            let Trial { work, parameter, value, default, median_ns, ratio } = trial;
            let numbers = [value.to_string(), default.to_string(), time(median_ns), format!("{ratio:.2}")];
            let texts = [work.to_owned(), parameter.to_owned()];
            table.row(texts.into_iter().chain(numbers).chain([verdict.to_owned()]));
        }
    }
    if !json {
        writeln!(out, "Values that change a work by more than {:.0} %; what each one decides:", NOTABLE * 100.0)?;
        for parameter in PARAMETERS {
            writeln!(out, "  {}: {}", parameter.name, parameter.doc)?;
        }
        writeln!(out)?;
        table.print(0, out)?;
    }
    if failed > 0 { Err(CliError::Works { failed, all: works.len() }) } else { Ok(()) }
}

/// The work's time with each other value, beside that with the default, taken before and after.
fn try_values<'a>(
    work: &'a str,
    parameter: &'static Parameter,
    once: &mut Prepared<'_>,
    limits: Limits,
) -> Result<Vec<Trial<'a>>, WorkError> {
    /// Sets the default, however this ends.
    struct Reset(&'static Parameter);
    impl Drop for Reset {
        fn drop(&mut self) {
            self.0.set(self.0.default());
        }
    }
    let _reset = Reset(parameter);
    let mut timed = |value: usize| {
        parameter.set(value);
        Ok::<_, WorkError>(measure(&mut **once, limits)?.median_ns)
    };
    let before = timed(parameter.default())?;
    let medians = parameter.others().into_iter().map(|value| Ok((value, timed(value)?)));
    let medians = medians.collect::<Result<Vec<_>, WorkError>>()?;
    let usual = (before + timed(parameter.default())?) / 2.0;
    let trial = |(value, median_ns): (usize, f64)| Trial {
        work,
        parameter: parameter.name,
        value,
        default: parameter.default(),
        median_ns,
        ratio: median_ns / usual,
    };
    Ok(medians.into_iter().map(trial).collect())
}
