//! `max info`: what this machine has, and what of it is used.

pub mod cpu;
mod cuda;

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;

use max::kernel::abi::Level;
use max::kernel::tuning::PARAMETERS;
use max::kernel::{Form, KernelLibrary, form, num_threads};

use crate::columns::Columns;
use crate::error::CliError;

/// The arguments of `max info`.
#[derive(clap::Args)]
pub struct Args {
    /// Show what this model is: a folder with config.json and safetensors, or a GGUF file
    #[arg(long, value_name = "PATH")]
    pub model: Option<PathBuf>,
}

/// Runs the command.
pub fn run(library: &KernelLibrary, out: &mut dyn Write) -> Result<(), CliError> {
    let form = form();
    let mut rows = Columns::list();
    let mut row = |name: &str, value: String| rows.row([name.to_owned(), value]);
    row("version", format!("max {}", env!("CARGO_PKG_VERSION")));
    row("CPU", cpu::name().unwrap_or_else(|| std::env::consts::ARCH.to_owned()));
    match &form {
        Ok(form) => row("CPU level", format!("{}, {}", form_name(*form), decided_by(*form))),
        Err(error) => row("CPU level", format!("unknown: {error}")),
    }
    let available: Vec<&str> = Level::available().iter().map(|level| level.name()).collect();
    row("", format!("this machine has {}; MAX_CPU_LEVEL chooses one of them, or `reference`", available.join(", ")));
    row("threads", format!("{}, {}", num_threads(), threads_decided_by()));
    row("AMX", cpu::amx().to_string());
    row("last-level cache", last_level_cache());
    for parameter in PARAMETERS {
        row(parameter.name, format!("{}: {}", parameter.get(), parameter.doc));
    }
    match cuda::probe() {
        Ok(driver) => {
            row("CUDA driver", driver.version());
            for (i, gpu) in driver.gpus.iter().enumerate() {
                row(if i == 0 { "GPUs" } else { "" }, format!("gpu:{i} {gpu}"));
            }
            match max::driver::accelerator_count() {
                _ if driver.gpus.is_empty() => row("GPUs", "none".to_owned()),
                count => row("", format!("graphs can use {count} of them")),
            }
        }
        Err(error) => row("GPUs", format!("none: {error}")),
    }
    let builds = Builds::of(library);
    row("kernels", builds.summary());
    let levels: Vec<&str> = library.levels().into_iter().map(Level::name).collect();
    let levels = if levels.is_empty() { "no level of this machine".to_owned() } else { levels.join(", ") };
    row("", format!("compiled for {levels}; MAX_BUILD_LEVELS chooses when they are built"));
    rows.print(0, out)?;
    if let Some(advice) = builds.advice() {
        writeln!(out, "\n{advice}")?;
    }
    form.map(|_| ()).map_err(CliError::from)
}

fn last_level_cache() -> String {
    match max::kernel::last_level_cache() {
        Some(bytes) => format!("{} KiB", bytes >> 10),
        None => "the system does not say".to_owned(),
    }
}

/// The name of a form of kernels, as in `MAX_CPU_LEVEL`.
pub fn form_name(form: Form) -> &'static str {
    match form {
        Form::Reference => "reference",
        Form::Compiled(level) => level.name(),
    }
}

fn decided_by(form: Form) -> String {
    let what = match form {
        Form::Reference => "scalar and bounds-checked",
        Form::Compiled(Level::Portable) => "what the compiler assumes on this architecture",
        Form::Compiled(Level::V2) => "SSE4.2",
        Form::Compiled(Level::V3) => "AVX2 and FMA",
        Form::Compiled(Level::V4) => "AVX-512",
    };
    match std::env::var_os("MAX_CPU_LEVEL") {
        Some(value) => format!("{what}: MAX_CPU_LEVEL={}", value.display()),
        None => format!("{what}: the highest that this machine has"),
    }
}

fn threads_decided_by() -> String {
    match std::env::var_os("RAYON_NUM_THREADS") {
        Some(value) => format!("RAYON_NUM_THREADS={}", value.display()),
        None => "one for each processor (RAYON_NUM_THREADS chooses)".to_owned(),
    }
}

/// How the kernels of each crate were built: how many with optimization, how many without.
pub struct Builds(BTreeMap<&'static str, (usize, usize)>);

impl Builds {
    /// Counts the kernels of a library.
    pub fn of(library: &KernelLibrary) -> Builds {
        let mut crates: BTreeMap<&'static str, (usize, usize)> = BTreeMap::new();
        for def in library.iter() {
            let (optimized, unoptimized) = crates.entry(def.krate.as_str()).or_default();
            *(if def.optimized { optimized } else { unoptimized }) += 1;
        }
        Builds(crates)
    }

    fn summary(&self) -> String {
        let crates: Vec<String> = self.0.iter().map(|(name, (a, b))| format!("{} in {name}", a + b)).collect();
        let built = if self.unoptimized().next().is_some() { "NOT all optimized" } else { "all optimized" };
        if crates.is_empty() { "none".to_owned() } else { format!("{}; {built}", crates.join(", ")) }
    }

    fn unoptimized(&self) -> impl Iterator<Item = (&'static str, usize)> {
        self.0.iter().filter(|(_, (_, unoptimized))| *unoptimized > 0).map(|(name, (_, count))| (*name, *count))
    }

    /// What to do about kernels that were built without optimization, if there are any.
    pub fn advice(&self) -> Option<String> {
        let crates: Vec<(&str, usize)> = self.unoptimized().collect();
        if crates.is_empty() {
            return None;
        }
        let listed: Vec<String> = crates.iter().map(|(name, count)| format!("{count} of crate `{name}`")).collect();
        let mut text = format!(
            "warning: kernels were built without optimization and are many times slower: {}\n\
             build with `--release`, or put this into the Cargo.toml of your workspace:\n",
            listed.join(", ")
        );
        for (name, _) in crates {
            text += &format!("\n    [profile.dev.package.{name}]\n    opt-level = 3\n    debug-assertions = false\n");
        }
        text.pop();
        Some(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_names_the_crates_that_need_it() {
        let builds = Builds(BTreeMap::from([("good", (3, 0)), ("slow", (0, 2))]));
        assert_eq!(builds.summary(), "3 in good, 2 in slow; NOT all optimized");
        let advice = builds.advice().unwrap();
        assert!(advice.contains("2 of crate `slow`") && advice.contains("[profile.dev.package.slow]"), "{advice}");
        assert!(!advice.contains("good"), "{advice}");
        assert!(Builds(BTreeMap::from([("good", (3, 0))])).advice().is_none());
    }
}
