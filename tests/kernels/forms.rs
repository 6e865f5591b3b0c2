//! The forms that every kernel has for every binding of its generics: IR and PTX.

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::Mutex;

use max::dtype::DType;
use max::kernel::abi::{KernelDef, ParamBits, ParamDef};
use max::kernel::{KernelLibrary, ir, ptx};

use crate::case::bindings;
use crate::ptxas::{assemble, ptxas, together};
use crate::simulator::{TARGETS, Tiles, Way, small, with_tf32};
use crate::threads::all;

/// A kernel for one binding; `params` are bound to these values, or symbolic.
struct Form {
    def: &'static KernelDef,
    dtypes: Vec<DType>,
    params: Option<Vec<ParamBits>>,
    /// Whether all operands are there that may be absent.
    with_all: bool,
    way: Way,
}

impl Form {
    fn name(&self) -> String {
        let dtypes: Vec<&str> = self.dtypes.iter().map(|d| d.short_name()).collect();
        let params = if self.params.is_some() { "" } else { " with symbolic parameters" };
        let tf32 = if self.way.is_tf32() { " with tf32" } else { "" };
        let tiles = match self.way.tiles {
            Tiles::Best => String::new(),
            Tiles::General => " with general tiles".to_owned(),
            Tiles::Small(i) => {
                let tile = small(self.def, self.way.options.target, &self.dtypes).nth(i);
                tile.map_or_else(String::new, |tile| format!(" where {}", self.def.conditions_of(tile)))
            }
        };
        let all = if self.with_all { " with every operand" } else { "" };
        format!("{}<{}>{all}{params}{tf32}{tiles}", self.def.name.as_str(), dtypes.join(", "))
    }

    fn is_counted(&self) -> bool {
        let name = self.def.name.as_str();
        let counted = COUNTED.contains(&name) || name.ends_with("_columns");
        counted && (name == "matmul_integer" || self.dtypes.iter().all(|dtype| dtype.is_float()))
    }

    /// The IR, checked: it reads back as it was written, and follows the rules.
    fn ir(&self) -> Result<ir::Kernel, String> {
        let text = self.way.ir(self.def, &self.dtypes, self.params.as_deref());
        let text = text.map_err(|e| format!("{}: {e}", self.name()))?;
        let kernel = ir::parse(&text).map_err(|e| format!("{}: {e}\n{text}", self.name()))?;
        let printed = kernel.to_string();
        if printed != text {
            return Err(format!("{} reads back as another kernel:\n{text}\n{printed}", self.name()));
        }
        ir::verify(&kernel).map_err(|e| format!("{}: {e}\n{text}", self.name()))?;
        Ok(kernel)
    }

    fn ptx(&self) -> Result<ptx::Module, String> {
        let (kernel, target) = (self.ir()?, self.way.options.target);
        let write = || ptx::write(&kernel, ptx::Options { annotate: true, ..self.way.options });
        let module = write().map_err(|e| format!("{} for {target}: {e}", self.name()))?;
        if write().as_ref() != Ok(&module) {
            return Err(format!("{} for {target} has other PTX when written again", self.name()));
        }
        Ok(module)
    }
}

/// Every kernel with every binding for a target, parameters bound to their defaults (0 without), and once more with symbolic
/// ones; where operands may be absent, which they are by default, also with all of them; those with products of `f32` also with tf32, and with general tiles those for which the target has its own; and with the tiles that there are for small dims.
fn forms(target: ptx::Target) -> Vec<Form> {
    max::kernels::link();
    let mut forms = Vec::new();
    let plain = Way::new(ptx::Options::new(target));
    for def in KernelLibrary::linked().tables() {
        for dtypes in bindings(def) {
            let params = def.params.as_slice();
            let defaults: Vec<ParamBits> = params.iter().map(|p| p.default).collect();
            let general = Way { tiles: Tiles::General, ..plain };
            let text = def.ir_text(&dtypes, Some(&defaults));
            let multiplies = dtypes.contains(&DType::F32) && text.contains(" = dot ");
            let tf32 = multiplies.then(|| Way::new(with_tf32(target)));
            let general = (Ok(text) != plain.ir(def, &dtypes, Some(&defaults))).then_some(general);
            let small = (0..small(def, target, &dtypes).count()).map(|i| Way { tiles: Tiles::Small(i), ..plain });
            let ways = [Some(plain), tf32, general].into_iter().flatten().chain(small);
            let form = |params, with_all, way| Form { def, dtypes: dtypes.clone(), params, with_all, way };
            forms.extend(ways.map(|way| form(Some(defaults.clone()), false, way)));
            let optional: Vec<&str> =
                def.operands.as_slice().iter().filter_map(|o| Some(def.given_param(o)?.name.as_str())).collect();
            if !optional.is_empty() {
                let is_optional = |p: &ParamDef| optional.contains(&p.name.as_str());
                let given = params.iter().map(|p| if is_optional(p) { 1 } else { p.default }).collect();
                forms.push(form(Some(given), true, plain));
            }
            if !params.is_empty() {
                forms.push(form(None, false, plain));
            }
        }
    }
    forms
}

#[test]
fn ir_reads_back_and_follows_the_rules() {
    TARGETS.into_iter().for_each(|target| all(&forms(target), |form| form.ir().map(|_| ())));
}

/// Entries in one file: `ptxas` takes longer to start than for most kernels.
const BATCH: usize = 60;

/// The kernels of which [`REGISTERS`] has the registers, and all along columns; of floats, and the products of integers.
const COUNTED: [&str; 18] = [
    "matmul",
    "batch_matmul",
    "matmul_transposed",
    "matmul_integer",
    "matmul_static_scaled_float8",
    "attention",
    "attention_ragged",
    "flash_attention_ragged",
    "fused_qk_ragged_rope",
    "conv",
    "softmax",
    "logsoftmax",
    "layer_norm",
    "rms_norm",
    "group_norm",
    "sum",
    "cumsum",
    "top_k",
];

/// Registers of a thread, by form and target, as a release of `ptxas` gives them out. `MAX_BLESS=1` writes them anew.
const REGISTERS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/registers.txt");

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

/// Compares registers with those that are kept: they may fall, and not rise.
fn compare(all: &BTreeMap<String, u32>) {
    let Some(release) = release() else { return };
    let mut text = format!("{release}\n");
    all.iter().for_each(|(name, registers)| text += &format!("{registers:4} {name}\n"));
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
        .filter(|(name, registers)| kept.get(name.as_str()).is_none_or(|kept| kept < *registers))
        .map(|(name, registers)| format!("{name}: {registers}, before {:?}", kept.get(name.as_str())))
        .collect();
    assert!(more.is_empty(), "more registers (MAX_BLESS=1 accepts them): {more:#?}");
}

#[test]
fn ptx_assembles_without_a_warning() {
    let forms = TARGETS.map(|target| (target, forms(target)));
    let batches: Vec<(ptx::Target, &[Form])> =
        forms.iter().flat_map(|(target, forms)| forms.chunks(BATCH).map(|forms| (*target, forms))).collect();
    let registers = Mutex::new(BTreeMap::new());
    all(&batches, |(target, forms)| {
        let modules: Vec<ptx::Module> = forms.iter().map(Form::ptx).collect::<Result<_, _>>()?;
        let files = together(forms.iter().zip(modules).map(|(form, module)| (form.name(), module.text, module.entry)));
        let names: Vec<String> = forms.iter().map(Form::name).collect();
        let mut said = String::new();
        for file in files {
            let Some(of_file) = assemble(&names.join(", "), &target.to_string(), &file) else { return Ok(()) };
            said += &of_file;
        }
        let counts = counted(&said);
        if counts.len() != forms.len() {
            return Err(format!("ptxas says nothing of some entries:\n{said}"));
        }
        let spilling: Vec<&String> =
            counts.iter().filter(|(_, _, spilled)| *spilled > 0).map(|(i, ..)| &names[*i]).collect();
        if !spilling.is_empty() {
            return Err(format!("registers are spilled to memory on {target} by {spilling:#?}"));
        }
        let mut registers = registers.lock().map_err(|e| e.to_string())?;
        let counted = counts.into_iter().filter(|(i, ..)| forms[*i].is_counted());
        registers.extend(counted.map(|(i, used, _)| (format!("{target} {}", names[i]), used)));
        Ok(())
    });
    let registers = registers.into_inner().expect("no thread panics while it holds the lock");
    if !registers.is_empty() {
        compare(&registers);
    }
}
