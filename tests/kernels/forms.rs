//! The forms that every kernel has for every binding of its generics: IR and PTX.

use std::fmt::Write;

use max::dtype::DType;
use max::kernel::table::{KernelDef, ParamBits};
use max::kernel::{KernelLibrary, ir, ptx};

use crate::case::bindings;
use crate::ptxas::assemble;
use crate::simulator::TARGETS;
use crate::threads::all;

/// A kernel for one binding; `params` are bound to these values, or symbolic.
struct Form {
    def: &'static KernelDef,
    dtypes: Vec<DType>,
    params: Option<Vec<ParamBits>>,
}

impl Form {
    fn name(&self) -> String {
        let dtypes: Vec<&str> = self.dtypes.iter().map(|d| d.short_name()).collect();
        let params = if self.params.is_some() { "" } else { " with symbolic parameters" };
        format!("{}<{}>{params}", self.def.name.as_str(), dtypes.join(", "))
    }

    /// The IR, checked: it reads back as it was written, and follows the rules.
    fn ir(&self) -> Result<ir::Kernel, String> {
        let text = self.def.ir_text(&self.dtypes, self.params.as_deref());
        let kernel = ir::parse(&text).map_err(|e| format!("{}: {e}\n{text}", self.name()))?;
        let printed = kernel.to_string();
        if printed != text {
            return Err(format!("{} reads back as another kernel:\n{text}\n{printed}", self.name()));
        }
        ir::verify(&kernel).map_err(|e| format!("{}: {e}\n{text}", self.name()))?;
        Ok(kernel)
    }

    fn ptx(&self, target: ptx::Target) -> Result<ptx::Module, String> {
        let kernel = self.ir()?;
        let write = |annotate| ptx::write(&kernel, ptx::Options { target, annotate });
        let module = write(true).map_err(|e| format!("{} for {target}: {e}", self.name()))?;
        if write(true).as_ref() != Ok(&module) {
            return Err(format!("{} for {target} has other PTX when written again", self.name()));
        }
        Ok(module)
    }
}

/// Every kernel with every binding, parameters bound to their defaults (0 without), and once more with symbolic ones.
fn forms() -> Vec<Form> {
    max::kernels::link();
    let mut forms = Vec::new();
    for def in KernelLibrary::linked().iter() {
        for dtypes in bindings(def) {
            let params = def.params.as_slice();
            if !params.is_empty() {
                forms.push(Form { def, dtypes: dtypes.clone(), params: None });
            }
            let defaults = params.iter().map(|p| p.default).collect();
            forms.push(Form { def, dtypes, params: Some(defaults) });
        }
    }
    forms
}

#[test]
fn ir_reads_back_and_follows_the_rules() {
    all(&forms(), |form| form.ir().map(|_| ()));
}

/// Entries in one file: `ptxas` takes longer to start than for most kernels.
const BATCH: usize = 60;

#[test]
fn ptx_assembles_without_a_warning() {
    let forms = forms();
    let batches: Vec<(ptx::Target, &[Form])> =
        TARGETS.into_iter().flat_map(|target| forms.chunks(BATCH).map(move |forms| (target, forms))).collect();
    all(&batches, |(target, forms)| {
        let mut file = String::new();
        for (i, form) in forms.iter().enumerate() {
            let module = form.ptx(*target)?;
            // A file has one header, and declares shared memory once.
            let at = module.text.find(".visible").ok_or("PTX has an entry")?;
            if i == 0 {
                let shared = ".extern .shared .align 16 .b8 shared[];\n\n";
                file = module.text[..at].replace(shared, "") + shared;
            }
            let _ = writeln!(file, "// {}", form.name());
            file += &module.text[at..].replace(&format!("{}(", module.entry), &format!("{}_{i}(", module.entry));
        }
        let names: Vec<String> = forms.iter().map(Form::name).collect();
        assemble(&names.join(", "), &target.to_string(), &file);
        Ok(())
    });
}
