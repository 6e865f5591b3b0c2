//! `max check`: runs kernels in their reference form, in the compiled form, and on GPUs, which are simulated where none is
//! named, and compares what they write.
//!
//! Operands are random and of sizes around the widths of vectors and blocks; integers that are indices reach outside. What a
//! kernel reads outside of an operand is 0 everywhere, so any sizes serve.

use std::io::{self, Write};

use max::driver::{Device, DeviceRef, Tensor};
use max::dtype::{DType, Element};
use max::engine::InferenceSession;
use max::kernel::abi::KernelDef;
use max::kernel::{KernelLibrary, form};

use crate::error::{CliError, WorkError};
use crate::info::form_name;
use crate::kernels::launch::{KernelLaunch, Named};
use crate::kernels::variant::{Variant, VariantArgs, combinations};

/// Arguments of `max check`.
#[derive(clap::Args)]
pub struct Args {
    /// The kernels, such as `my_op`, `my_op:bf16` or `my_op:f32:77x1000` [default: those of crates other than `max` itself]
    kernels: Vec<String>,
    /// All registered kernels, those of `max` included, but for those with a parameter that has no default
    #[arg(long, conflicts_with_all = ["kernels", "dtype", "dtypes", "params"])]
    all: bool,
    /// Run on this device and not on simulated GPUs: `gpu`, `gpu:1`; `cpu` for no GPU at all
    #[arg(long, value_name = "DEVICE")]
    device: Option<DeviceRef>,
    /// How far results may be from those of the reference form, as a part of the largest of them [default: a few roundings of
    /// their dtype]
    #[arg(long, value_name = "PART")]
    tolerance: Option<f64>,
    #[command(flatten)]
    variant: VariantArgs,
}

/// Somewhere to run kernels.
struct Place {
    name: String,
    session: InferenceSession,
}

/// Runs the command.
pub fn run(args: &Args, library: &KernelLibrary, out: &mut dyn Write, err: &mut dyn Write) -> Result<(), CliError> {
    let launches = launches(args, library, err)?;
    let places = places(args, library)?;
    let reference = InferenceSession::new().library(library.clone()).reference(true);

    let mut lines = Lines::new(&launches, out);
    lines.print(["kernel", "dtypes", "operands"].map(str::to_owned), places.iter().map(|place| place.name.clone()))?;
    let mut failed = 0;
    for launch in &launches {
        let (mut cells, mut fails) = (Vec::new(), false);
        match launch.load(&reference, library).and_then(|mut loaded| loaded.written()) {
            Ok(want) => {
                for place in &places {
                    let compared = solve(launch, place, library)
                        .and_then(|got| compare(launch, &want, &got, args.tolerance).map_err(Mismatch::Element));
                    cells.push(compared.as_ref().map_or_else(Mismatch::cell, |difference| cell(*difference)));
                    if let Err(mismatch) = compared {
                        fails = true;
                        let _ = writeln!(err, "{} on {}: {}", launch.name(), place.name, mismatch.text());
                    }
                }
            }
            Err(error) => {
                fails = true;
                let _ = writeln!(err, "{} in the reference form: {error}", launch.name());
            }
        }
        failed += usize::from(fails);
        lines.print(names(launch), cells)?;
    }
    let all = launches.len();
    if failed > 0 {
        return Err(CliError::Differences { failed, all });
    }
    let places: Vec<&str> = places.iter().map(|place| place.name.as_str()).collect();
    writeln!(out, "\n{all} problems: {} agree with the reference form", places.join(", "))?;
    Ok(())
}

/// A table whose lines are printed as they come.
struct Lines<'a> {
    widths: [usize; 3],
    out: &'a mut dyn Write,
}

impl<'a> Lines<'a> {
    fn new(launches: &[KernelLaunch], out: &'a mut dyn Write) -> Lines<'a> {
        let longest = |lengths: [usize; 3], launch: &KernelLaunch| {
            let names = names(launch);
            [0, 1, 2].map(|i| lengths[i].max(names[i].chars().count()))
        };
        Lines { widths: launches.iter().fold(["kernel", "dtypes", "operands"].map(str::len), longest), out }
    }

    fn print(&mut self, names: [String; 3], cells: impl IntoIterator<Item = String>) -> io::Result<()> {
        let names: String = names.iter().zip(self.widths).map(|(name, width)| format!("{name:width$}  ")).collect();
        let cells: String = cells.into_iter().map(|cell| format!("{cell:>7}  ")).collect();
        writeln!(self.out, "{}", (names + &cells).trim_end())?;
        // A problem may take a while.
        self.out.flush()
    }
}

fn names(launch: &KernelLaunch) -> [String; 3] {
    [launch.def.name.as_str().to_owned(), launch.dtypes(), launch.shapes()]
}

/// What is run: each chosen kernel in the chosen form or in all, on the named shape or on several.
fn launches(args: &Args, library: &KernelLibrary, err: &mut dyn Write) -> Result<Vec<KernelLaunch>, CliError> {
    let own = |def: &&KernelDef| args.all || def.krate.as_str() != "max-kernels";
    let names: Vec<String> = match args.kernels.is_empty() {
        true => library.tables().filter(own).map(|def| def.name.as_str().to_owned()).collect(),
        false => args.kernels.clone(),
    };
    if names.is_empty() {
        return Err(CliError::NothingToCheck);
    }
    let mut all = Vec::new();
    for name in &names {
        let text = name.strip_prefix("kernel:").unwrap_or(name);
        let named = Named::read(text, library)?;
        if args.all
            && let Some(param) = named.def.params.as_slice().iter().find(|param| !param.has_default)
        {
            // Standard error may be closed; the table says what was run.
            let _ = writeln!(err, "{name} is left out: its parameter `{}` has no default", param.name.as_str());
            continue;
        }
        let chosen = named.variant(name, &args.variant)?;
        let open = named.dtypes.is_empty() && args.variant.dtype.is_none() && args.variant.dtypes.is_empty();
        let forms = if open { combinations(named.def) } else { vec![chosen.dtypes] };
        let shapes = named.shapes.map_or_else(|| shapes(named.def), |shapes| vec![shapes.to_owned()]);
        for dtypes in forms {
            let form = Variant { dtypes, params: chosen.params.clone() };
            for shapes in &shapes {
                all.push(KernelLaunch::new(name, named.def, &form, Some(shapes))?);
            }
        }
    }
    Ok(all)
}

/// Shapes to try, of the largest rank among the operands: empty, of one element, and around vectors and blocks.
fn shapes(def: &KernelDef) -> Vec<String> {
    let most = def.operands.as_slice().iter().map(|operand| operand.rank).max().unwrap_or(0);
    let shapes: &[&str] = match most {
        ..=0 => &["0", "1", "7", "257", "3x5x7"],
        1 => &["0", "1", "7", "64", "257"],
        2 => &["0x5", "1x1", "3x7", "5x64", "4x257", "33x33"],
        3 => &["2x0x5", "1x1x1", "2x3x7", "3x5x64", "2x33x33"],
        _ => &["1x1", "3x7", "2x64"],
    };
    let ones = if most > 3 { "2x".to_owned() + &"1x".repeat(most as usize - 3) } else { String::new() };
    shapes.iter().map(|shape| format!("{ones}{shape}")).collect()
}

/// The compiled form on this machine, and GPUs.
fn places(args: &Args, library: &KernelLibrary) -> Result<Vec<Place>, CliError> {
    let place = |name: &str, device| {
        let session = InferenceSession::with_devices([device]).library(library.clone());
        Place { name: name.to_owned(), session }
    };
    let mut places = vec![place(form_name(form()?), Device::cpu())];
    let gpus = match args.device {
        None => max::simulator::gpus()?.to_vec(),
        Some(DeviceRef::CPU) => Vec::new(),
        Some(device) if device.is_cpu() => return Err(CliError::Processor { device }),
        Some(device) => vec![Device::accelerator(device.id)?],
    };
    for gpu in gpus {
        places.push(place(gpu.architecture_name()?, gpu));
    }
    Ok(places)
}

/// Why a kernel does not do somewhere what its reference form does.
enum Mismatch {
    /// It cannot be loaded or executed.
    Fails(WorkError),
    /// An element differs.
    Element(String),
}

impl Mismatch {
    fn cell(&self) -> String {
        match self {
            Mismatch::Fails(_) => "fails".to_owned(),
            Mismatch::Element(_) => "differs".to_owned(),
        }
    }

    fn text(&self) -> String {
        match self {
            Mismatch::Fails(error) => error.to_string(),
            Mismatch::Element(text) => text.clone(),
        }
    }
}

fn solve(launch: &KernelLaunch, place: &Place, library: &KernelLibrary) -> Result<Vec<Tensor>, Mismatch> {
    let written = launch.load(&place.session, library).and_then(|mut loaded| loaded.written());
    written.map_err(Mismatch::Fails)
}

/// `same`, or the largest difference as a part of the largest result.
fn cell(difference: f64) -> String {
    if difference == 0.0 { "same".to_owned() } else { format!("{difference:.0e}") }
}

/// The largest difference between what a kernel wrote and what it was to write, as a part of the largest element of the
/// same operand; or the first element that is too far off.
fn compare(launch: &KernelLaunch, want: &[Tensor], got: &[Tensor], tolerance: Option<f64>) -> Result<f64, String> {
    let mut largest = 0.0f64;
    for ((name, want), got) in launch.written_names().zip(want).zip(got) {
        let allowed = tolerance.unwrap_or_else(|| roundings(want.dtype()));
        let found = max::dispatch!(want.dtype(), T => difference::<T>(name, want, got, allowed));
        largest = largest.max(found?);
    }
    Ok(largest)
}

/// What is left to the order of sums, and to functions such as `exp`, in results of a dtype.
fn roundings(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => 1e-12,
        DType::F32 => 1e-5,
        DType::F16 => 2f64.powi(-9),
        DType::BF16 => 2f64.powi(-6),
        dtype if dtype.is_float() => 0.25,
        _ => 0.0,
    }
}

fn difference<T: Element>(name: &str, want: &Tensor, got: &Tensor, allowed: f64) -> Result<f64, String> {
    let values = |tensor: &Tensor| tensor.to_vec::<T>().map_err(|error| error.to_string());
    let (shape, wanted, found) = (want.shape(), values(want)?, values(got)?);
    let finite = wanted.iter().map(|v| v.to_f64().abs()).filter(|v| v.is_finite());
    let scale = finite.fold(0.0, f64::max);
    let mut largest = 0.0f64;
    for (i, (want, got)) in wanted.iter().zip(&found).enumerate() {
        let (a, b) = (want.to_f64(), got.to_f64());
        if want == got || a.is_nan() && b.is_nan() {
            continue;
        }
        let part = (a - b).abs() / scale;
        // Also where one of them is not a number or infinite.
        if part.is_nan() || part > allowed {
            let at = indices(i, shape);
            return Err(format!("`{name}` at {at:?} is {got}, but {want} in the reference form"));
        }
        largest = largest.max(part);
    }
    Ok(largest)
}

/// The index along each axis of an element by its place in row-major order.
fn indices(place: usize, shape: &[usize]) -> Vec<usize> {
    let mut rest = place;
    let mut indices: Vec<usize> = shape.iter().rev().map(|dim| (rest % dim, rest /= dim).0).collect();
    indices.reverse();
    indices
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_is_named_by_its_index() {
        let tensor = |values: [f32; 6]| Tensor::from_slice(&values, [2, 3]).unwrap();
        let want = tensor([1.0, 2.0, f32::NAN, 4.0, 5.0, f32::INFINITY]);
        let compare = |got, allowed| difference::<f32>("y", &want, &tensor(got), allowed);
        assert_eq!(compare([1.0, 2.0, f32::NAN, 4.0, 5.0, f32::INFINITY], 0.0), Ok(0.0));
        assert_eq!(compare([1.5, 2.0, f32::NAN, 4.0, 5.0, f32::INFINITY], 0.2), Ok(0.1));
        let error = compare([1.0, 2.0, f32::NAN, 6.0, 5.0, f32::INFINITY], 0.2).unwrap_err();
        assert_eq!(error, "`y` at [1, 0] is 6, but 4 in the reference form");
        for wrong in [f32::NAN, 3.0, f32::NEG_INFINITY] {
            assert!(compare([1.0, 2.0, f32::NAN, 4.0, 5.0, wrong], 1e9).is_err(), "{wrong}");
            assert!(compare([1.0, 2.0, 3.0, 4.0, 5.0, f32::INFINITY], 1e9).is_err());
        }
    }

    #[test]
    fn shapes_fit_kernels_of_all_ranks() {
        let library = KernelLibrary::linked();
        for name in ["relu", "softmax", "batch_matmul", "attention", "conv"] {
            let def = library.get(name).unwrap();
            let variant = VariantArgs::default().choose(def).unwrap();
            for shape in shapes(def) {
                let launch = KernelLaunch::new(name, def, &variant, Some(&shape));
                let missing = matches!(launch, Err(CliError::MissingParam { .. }));
                assert!(launch.is_ok() || missing, "{name} {shape}");
            }
        }
    }
}
