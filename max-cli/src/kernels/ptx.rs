//! `max ptx`: the PTX of one kernel on standard output, or that of every kernel in a directory.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use max::dtype::DType;
use max::kernel::abi::{KernelDef, ParamBits};
use max::kernel::ptx::{self, Float32MatmulPrecision, Module, Options};
use max::kernel::{KernelLibrary, ir};
use rayon::iter::{IntoParallelRefIterator, ParallelIterator};

use crate::error::CliError;
use crate::kernels::variant::{VariantArgs, combinations, describe, dtype_names};

/// Arguments of `max ptx`.
#[derive(clap::Args)]
pub struct Args {
    /// The kernel
    #[arg(conflicts_with = "all")]
    kernel: Option<String>,
    /// Write every kernel, in every combination of dtypes that it was compiled for, one file each
    #[arg(long, requires = "out", conflicts_with_all = ["dtype", "dtypes", "params"])]
    all: bool,
    /// Where `--all` writes; made if it is not there
    #[arg(long, value_name = "DIR", requires = "all")]
    out: Option<PathBuf>,
    /// The GPU's compute capability: `80`, `90a`, `100`; with `--all` also several: `80,90a,100`
    #[arg(long, default_value = "80", value_delimiter = ',')]
    sm: Vec<Target>,
    /// Name the source lines, in comments and by `.file` and `.loc`, which `ptxas -lineinfo` passes on to profilers
    #[arg(long)]
    annotate: bool,
    /// Report accesses outside of operands, by printing
    #[arg(long)]
    bounds: bool,
    /// Let tensor cores make products of `f32`, rounded to tf32
    #[arg(long)]
    tf32: bool,
    #[command(flatten)]
    variant: VariantArgs,
}

impl Args {
    fn options(&self, Target(target): Target) -> Options {
        let precision = if self.tf32 { Float32MatmulPrecision::High } else { Float32MatmulPrecision::Highest };
        let plain = Options::new(target);
        Options { annotate: self.annotate, bounds: self.bounds, float32_matmul_precision: precision, ..plain }
    }
}

/// A compute capability on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Target(ptx::Target);

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Target, String> {
        let number = text.strip_prefix("sm_").unwrap_or(text);
        let (number, arch_specific) = number.strip_suffix('a').map_or((number, false), |number| (number, true));
        match number.parse() {
            Ok(sm) => Ok(Target(ptx::Target { sm, arch_specific })),
            Err(_) => Err("expected a compute capability such as `80`, `90a` or `sm_100`".to_owned()),
        }
    }
}

/// Runs the command.
pub fn run(args: &Args, library: &KernelLibrary, out: &mut dyn Write, err: &mut dyn Write) -> Result<(), CliError> {
    if let (true, Some(dir)) = (args.all, &args.out) {
        return write_all(args, dir, library, out, err);
    }
    let Some(name) = &args.kernel else { return Err(CliError::WhichKernel) };
    let def = library.table(name)?;
    let variant = args.variant.choose(def)?;
    let params = variant.param_bits(def)?;
    for (i, target) in args.sm.iter().enumerate() {
        let kernel = record(def, *target, &variant.recorded_dtypes(def), params.as_deref())?;
        let module = write(def, &variant.dtypes, &kernel, args.options(*target))?;
        if i > 0 {
            writeln!(out)?;
        }
        writeln!(out, "{}", module.text.trim_end())?;
    }
    Ok(())
}

fn record(
    def: &KernelDef,
    Target(target): Target,
    dtypes: &[DType],
    params: Option<&[ParamBits]>,
) -> Result<ir::Kernel, CliError> {
    let text = def.ir_text_on(target, dtypes, params);
    let parsed = text.and_then(|text| ir::parse(&text));
    parsed.map_err(|source| CliError::Ir { kernel: describe(def, dtypes), source })
}

fn write(def: &KernelDef, dtypes: &[DType], kernel: &ir::Kernel, options: Options) -> Result<Module, CliError> {
    ptx::write(kernel, options).map_err(|source| CliError::Ptx {
        kernel: describe(def, dtypes),
        target: options.target.to_string(),
        source,
    })
}

/// One kernel in one combination of dtypes: what was written for it, and what could not be.
struct Outcome {
    written: usize,
    errors: Vec<CliError>,
}

fn write_all(
    args: &Args,
    dir: &Path,
    library: &KernelLibrary,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> Result<(), CliError> {
    fs::create_dir_all(dir).map_err(|source| CliError::File { path: dir.to_owned(), source })?;
    let kernels: Vec<&KernelDef> = library.tables().collect();
    let work: Vec<(&KernelDef, Vec<DType>)> =
        kernels.iter().flat_map(|def| combinations(def).into_iter().map(|dtypes| (*def, dtypes))).collect();
    let outcomes: Vec<Outcome> = work.par_iter().map(|(def, dtypes)| write_one(args, dir, def, dtypes)).collect();

    let (mut written, mut errors) = (0, Vec::new());
    for outcome in outcomes {
        written += outcome.written;
        errors.extend(outcome.errors);
    }
    let targets: Vec<String> = args.sm.iter().map(|Target(target)| target.to_string()).collect();
    let (modules, forms) = (work.len() * targets.len(), work.len());
    writeln!(
        out,
        "wrote {written} of {modules} modules to {}: {} kernels in {forms} combinations of dtypes, for {}",
        dir.display(),
        kernels.len(),
        targets.join(", ")
    )?;
    let failed = errors.len();
    for error in errors {
        if let CliError::File { .. } = error {
            return Err(error);
        }
        // Standard error may be closed; the exit code still tells.
        let _ = writeln!(err, "not written: {error}");
    }
    if failed > 0 { Err(CliError::PtxAll { failed, all: modules }) } else { Ok(()) }
}

fn write_one(args: &Args, dir: &Path, def: &KernelDef, dtypes: &[DType]) -> Outcome {
    let mut outcome = Outcome { written: 0, errors: Vec::new() };
    for target in &args.sm {
        let kernel = record(def, *target, dtypes, None);
        let written = kernel.and_then(|kernel| write(def, dtypes, &kernel, args.options(*target))).and_then(|module| {
            let path = dir.join(file_name(def.name.as_str(), dtypes, *target));
            fs::write(&path, module.text).map_err(|source| CliError::File { path, source })
        });
        match written {
            Ok(()) => outcome.written += 1,
            Err(error) => outcome.errors.push(error),
        }
    }
    outcome
}

/// `cast.f32-i64.sm_80.ptx`. What a file's name cannot hold everywhere stands as `%` and its code.
fn file_name(kernel: &str, dtypes: &[DType], Target(target): Target) -> String {
    let mut name = String::new();
    for byte in kernel.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'-' => name.push(byte.into()),
            _ => name += &format!("%{byte:02x}"),
        }
    }
    let dtypes = if dtypes.is_empty() { String::new() } else { format!(".{}", dtype_names(dtypes)) };
    format!("{name}{dtypes}.{target}.ptx")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_read_in_three_spellings() {
        let read = |text: &str| text.parse::<Target>().map(|Target(target)| target.to_string());
        assert_eq!(read("80").as_deref(), Ok("sm_80"));
        assert_eq!(read("90a").as_deref(), Ok("sm_90a"));
        assert_eq!(read("sm_100").as_deref(), Ok("sm_100"));
        for wrong in ["", "a", "ninety", "-80", "90b"] {
            assert!(read(wrong).unwrap_err().contains("compute capability"), "{wrong}");
        }
    }

    #[test]
    fn file_names_hold_no_separators() {
        let target: Target = "90a".parse().unwrap();
        assert_eq!(file_name("cast", &[DType::F32, DType::I64], target), "cast.f32-i64.sm_90a.ptx");
        assert_eq!(file_name("my/op::x.y", &[], target), "my%2fop%3a%3ax%2ey.sm_90a.ptx");
    }
}
