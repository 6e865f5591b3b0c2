//! The forms that every kernel has for every binding of its generics: IR and PTX.

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::Mutex;

use max::dtype::DType;
use max::kernel::table::{KernelDef, ParamBits};
use max::kernel::{KernelLibrary, ir, ptx};

use crate::case::bindings;
use crate::ptxas::{assemble, ptxas, together};
use crate::simulator::{TARGETS, with_tf32};
use crate::threads::all;

/// A kernel for one binding; `params` are bound to these values, or symbolic.
struct Form {
    def: &'static KernelDef,
    dtypes: Vec<DType>,
    params: Option<Vec<ParamBits>>,
    /// Whether tensor cores make products of `f32`.
    tf32: bool,
}

impl Form {
    fn name(&self) -> String {
        let dtypes: Vec<&str> = self.dtypes.iter().map(|d| d.short_name()).collect();
        let params = if self.params.is_some() { "" } else { " with symbolic parameters" };
        let tf32 = if self.tf32 { " with tf32" } else { "" };
        format!("{}<{}>{params}{tf32}", self.def.name.as_str(), dtypes.join(", "))
    }

    /// The IR, checked: it reads back as it was written, and follows the rules.
    fn ir(&self, target: ptx::Target) -> Result<ir::Kernel, String> {
        let text = self.def.ir_text_on(target, &self.dtypes, self.params.as_deref());
        let text = text.map_err(|e| format!("{}: {e}", self.name()))?;
        let kernel = ir::parse(&text).map_err(|e| format!("{}: {e}\n{text}", self.name()))?;
        let printed = kernel.to_string();
        if printed != text {
            return Err(format!("{} reads back as another kernel:\n{text}\n{printed}", self.name()));
        }
        ir::verify(&kernel).map_err(|e| format!("{}: {e}\n{text}", self.name()))?;
        Ok(kernel)
    }

    fn ptx(&self, target: ptx::Target) -> Result<ptx::Module, String> {
        let kernel = self.ir(target)?;
        let options = if self.tf32 { with_tf32(target) } else { ptx::Options::new(target) };
        let write = || ptx::write(&kernel, ptx::Options { annotate: true, ..options });
        let module = write().map_err(|e| format!("{} for {target}: {e}", self.name()))?;
        if write().as_ref() != Ok(&module) {
            return Err(format!("{} for {target} has other PTX when written again", self.name()));
        }
        Ok(module)
    }
}

/// Every kernel with every binding, parameters bound to their defaults (0 without), and once more with symbolic ones; those
/// with products of `f32` also with tf32.
fn forms() -> Vec<Form> {
    max::kernels::link();
    let mut forms = Vec::new();
    for def in KernelLibrary::linked().iter() {
        for dtypes in bindings(def) {
            let params = def.params.as_slice();
            if !params.is_empty() {
                forms.push(Form { def, dtypes: dtypes.clone(), params: None, tf32: false });
            }
            let defaults: Vec<ParamBits> = params.iter().map(|p| p.default).collect();
            if dtypes.contains(&DType::F32) && def.ir_text(&dtypes, Some(&defaults)).contains(" = dot ") {
                forms.push(Form { def, dtypes: dtypes.clone(), params: Some(defaults.clone()), tf32: true });
            }
            forms.push(Form { def, dtypes, params: Some(defaults), tf32: false });
        }
    }
    forms
}

#[test]
fn ir_reads_back_and_follows_the_rules() {
    all(&forms(), |form| TARGETS.into_iter().try_for_each(|target| form.ir(target).map(|_| ())));
}

/// Entries in one file: `ptxas` takes longer to start than for most kernels.
const BATCH: usize = 60;

/// The kernels of which [`REGISTERS`] has the registers.
const COUNTED: [&str; 10] = [
    "matmul<",
    "batch_matmul<",
    "matmul_integer<",
    "matmul_static_scaled_float8<",
    "attention<",
    "softmax<",
    "logsoftmax<",
    "layer_norm<",
    "rms_norm<",
    "conv<",
];

/// Registers of a thread, by form and target, as a release of `ptxas` gives them out. `MAX_BLESS=1` writes them anew.
const REGISTERS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/kernels/registers.txt");

/// Each entry's number and what `ptxas -v` says of it: registers, and bytes that are spilled.
fn counted(said: &str) -> Vec<(usize, u32, u32)> {
    let mut found = Vec::new();
    for entry in said.split("Compiling entry function '").skip(1) {
        let number = |before: &str| -> Option<u32> {
            let (head, _) = entry.split_once(before)?;
            head.rsplit(' ').find(|word| !word.is_empty())?.parse().ok()
        };
        let index = entry.split('\'').next().and_then(|name| name.rsplit('_').next()).and_then(|n| n.parse().ok());
        let spilled = [" bytes spill stores", " bytes spill loads"].into_iter().filter_map(number).sum();
        if let (Some(index), Some(registers)) = (index, number(" registers")) {
            found.push((index, registers, spilled));
        }
    }
    found
}

/// The assembler's release, as it names itself.
fn release() -> Option<String> {
    let output = std::process::Command::new(ptxas()?).arg("--version").output().ok()?;
    let said = String::from_utf8(output.stdout).ok()?;
    said.lines().find(|line| line.contains("release")).map(str::to_owned)
}

/// Compares registers with those that are kept: they may fall, and not rise. Nothing is spilled.
fn compare(all: &BTreeMap<String, (u32, u32)>) {
    let spilling: Vec<&String> = all.iter().filter(|(_, (_, spilled))| *spilled > 0).map(|(name, _)| name).collect();
    assert!(spilling.is_empty(), "registers are spilled to memory by {spilling:#?}");
    let Some(release) = release() else { return };
    let mut text = format!("{release}\n");
    all.iter().for_each(|(name, (registers, _))| text += &format!("{registers:4} {name}\n"));
    if std::env::var_os("MAX_BLESS").is_some() {
        std::fs::write(REGISTERS, &text).expect("a writable file");
    }
    let kept = std::fs::read_to_string(REGISTERS).unwrap_or_default();
    if kept.lines().next() != Some(&release) {
        let why = format!("SKIPPED: registers are not compared: {REGISTERS} is of another release than {release}");
        // By `eprintln`, the harness would keep it to itself.
        return writeln!(std::io::stderr(), "{why}").unwrap_or_default();
    }
    let kept: BTreeMap<&str, u32> = kept
        .lines()
        .filter_map(|line| line.trim().split_once(' '))
        .filter_map(|(registers, name)| Some((name, registers.parse().ok()?)))
        .collect();
    let more: Vec<String> = all
        .iter()
        .filter(|(name, (registers, _))| kept.get(name.as_str()).is_none_or(|kept| kept < registers))
        .map(|(name, (registers, _))| format!("{name}: {registers}, before {:?}", kept.get(name.as_str())))
        .collect();
    assert!(more.is_empty(), "more registers (MAX_BLESS=1 accepts them): {more:#?}");
}

#[test]
fn ptx_assembles_without_a_warning() {
    let forms = forms();
    let batches: Vec<(ptx::Target, &[Form])> =
        TARGETS.into_iter().flat_map(|target| forms.chunks(BATCH).map(move |forms| (target, forms))).collect();
    let registers = Mutex::new(BTreeMap::new());
    all(&batches, |(target, forms)| {
        let modules: Vec<ptx::Module> = forms.iter().map(|form| form.ptx(*target)).collect::<Result<_, _>>()?;
        let file = together(forms.iter().zip(modules).map(|(form, module)| (form.name(), module.text, module.entry)));
        let names: Vec<String> = forms.iter().map(Form::name).collect();
        let Some(said) = assemble(&names.join(", "), &target.to_string(), &file) else { return Ok(()) };
        let counts = counted(&said);
        if counts.len() != forms.len() {
            return Err(format!("ptxas says nothing of some entries:\n{said}"));
        }
        let mut registers = registers.lock().map_err(|e| e.to_string())?;
        for (i, used, spilled) in counts {
            if COUNTED.iter().any(|kernel| names[i].starts_with(kernel)) {
                registers.insert(format!("{target} {}", names[i]), (used, spilled));
            }
        }
        Ok(())
    });
    let registers = registers.into_inner().expect("no thread panics while it holds the lock");
    if !registers.is_empty() {
        compare(&registers);
    }
}
