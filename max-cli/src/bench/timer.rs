//! The timing loop.

use std::time::{Duration, Instant};

/// How long a work is timed.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The number of samples; where there is none, the time decides.
    pub runs: Option<usize>,
}

/// Times of a work, in nanoseconds a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Timing {
    /// Half of the samples took less.
    pub median_ns: f64,
    /// The fastest sample.
    pub min_ns: f64,
    /// A quarter of the samples took less.
    pub q1_ns: f64,
    /// Three quarters of the samples took less.
    pub q3_ns: f64,
    /// How many runs were timed: samples times the runs of a sample.
    pub runs: usize,
}

/// A sample takes at least this long, so that reading the clock is not part of the result.
const SAMPLE: Duration = Duration::from_micros(20);
/// The warm-up compares stretches of this length.
const STRETCH: Duration = Duration::from_millis(4);
/// The warm-up ends when two stretches differ by less than this part,
const STABLE: f64 = 0.03;
/// or after this time.
const WARM_UP: Duration = Duration::from_millis(500);
/// Samples that are wanted,
const SAMPLES: usize = 20;
/// for at least this time,
const ENOUGH: Duration = Duration::from_millis(500);
/// unless that takes longer than this; then a few must do.
const PATIENCE: Duration = Duration::from_secs(2);
const FEW_SAMPLES: usize = 5;

/// Times `run`, which runs as often as it is told and waits for the end: warms up until the time is stable, then takes samples
/// of as many runs as the clock needs.
///
/// # Errors
/// The first of `run`.
pub fn measure<E>(run: &mut dyn FnMut(usize) -> Result<(), E>, limits: Limits) -> Result<Timing, E> {
    let batch = warm_up(run)?;
    let mut samples = Vec::new();
    let start = Instant::now();
    let done = |samples: usize| match limits.runs {
        Some(runs) => samples >= runs,
        None => {
            let elapsed = start.elapsed();
            samples >= SAMPLES && elapsed >= ENOUGH || samples >= FEW_SAMPLES && elapsed >= PATIENCE
        }
    };
    while !done(samples.len()) {
        samples.push(timed(run, batch)?.as_nanos() as f64 / batch as f64);
    }
    samples.sort_unstable_by(f64::total_cmp);
    let quantile = |part: f64| samples[((samples.len() - 1) as f64 * part).round() as usize];
    Ok(Timing {
        median_ns: quantile(0.5),
        min_ns: samples[0],
        q1_ns: quantile(0.25),
        q3_ns: quantile(0.75),
        runs: samples.len() * batch,
    })
}

/// Runs until the time of a run is stable; gives the runs of a sample.
fn warm_up<E>(run: &mut dyn FnMut(usize) -> Result<(), E>) -> Result<usize, E> {
    let start = Instant::now();
    let mut per_run = timed(run, 1)?.as_secs_f64();
    loop {
        let runs = runs_in(STRETCH, per_run);
        let now = timed(run, runs)?.as_secs_f64() / runs as f64;
        let stable = (now - per_run).abs() <= STABLE * per_run;
        per_run = now;
        if stable || start.elapsed() >= WARM_UP {
            return Ok(runs_in(SAMPLE, per_run));
        }
    }
}

/// How many runs of `per_run` seconds fill `time`.
fn runs_in(time: Duration, per_run: f64) -> usize {
    (time.as_secs_f64() / per_run.max(1e-9)).ceil().clamp(1.0, 1e7) as usize
}

fn timed<E>(run: &mut dyn FnMut(usize) -> Result<(), E>, runs: usize) -> Result<Duration, E> {
    let start = Instant::now();
    run(runs)?;
    Ok(start.elapsed())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_runs_are_batched_and_long_ones_are_not() {
        let mut count = 0usize;
        let limits = Limits { runs: Some(10) };
        let run = &mut |runs: usize| {
            for _ in 0..runs {
                count = std::hint::black_box(count) + 1;
            }
            Ok(())
        };
        let timing = measure::<()>(run, limits).unwrap();
        assert!(timing.runs >= 10 * 100, "a run of a few nanoseconds: {timing:?}");
        assert!(count > timing.runs, "the warm-up does not count");
        let nap = Duration::from_millis(1);
        let run = &mut |runs: usize| {
            (0..runs).for_each(|_| std::thread::sleep(nap));
            Ok(())
        };
        let timing = measure::<()>(run, limits).unwrap();
        assert_eq!(timing.runs, 10);
        assert!(timing.min_ns >= nap.as_nanos() as f64, "{timing:?}");
        assert!(timing.min_ns <= timing.q1_ns && timing.q1_ns <= timing.median_ns && timing.median_ns <= timing.q3_ns);
    }

    #[test]
    fn an_error_ends_the_loop() {
        let mut left = 5;
        let run = &mut |_| {
            left -= 1;
            if left == 0 { Err("no") } else { Ok(()) }
        };
        assert_eq!(measure(run, Limits { runs: None }), Err("no"));
    }
}
