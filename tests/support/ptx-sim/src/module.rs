//! A module of PTX: its kernels, decoded and ready to run.

use std::collections::HashMap;

use crate::parse::error::ParseError;
use crate::parse::syntax::{self, SourceLine, Variable};
use crate::program::{Instr, Program};

/// A PTX module.
///
/// ```
/// let text = ".version 7.0\n.target sm_80\n.address_size 64\n\
///             .visible .entry k(.param .u64 p) { ret; }";
/// let module = ptx_sim::Module::parse(text).unwrap();
/// let entry = module.entries().next().unwrap();
/// assert_eq!((entry.name(), entry.params().len()), ("k", 1));
/// ```
#[derive(Clone, Debug)]
pub struct Module {
    pub(crate) lines: Vec<String>,
    pub(crate) variables: Vec<Variable>,
    pub(crate) programs: Vec<(String, Program)>,
    files: HashMap<u64, String>,
    places: Vec<SourceLine>,
    version: String,
    target: String,
}

/// A kernel parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Param {
    /// Its name.
    pub name: String,
    /// Its size in bytes.
    pub bytes: u64,
}

/// A kernel of a module.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    name: &'a str,
    program: &'a Program,
}

impl Entry<'_> {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.name
    }

    /// Its parameters in order.
    #[must_use]
    pub fn params(&self) -> Vec<Param> {
        self.program.params.ranges.iter().map(|r| Param { name: r.name.clone(), bytes: r.end - r.start }).collect()
    }

    /// Bytes of shared memory that its declarations take.
    #[must_use]
    pub fn static_shared(&self) -> u64 {
        self.program.shared.used
    }

    /// Instructions in its text.
    #[must_use]
    pub fn instructions(&self) -> usize {
        // The decoder adds one `exit` at the end.
        self.program.instrs.len() - 1
    }
}

impl Module {
    /// Reads PTX text.
    ///
    /// # Errors
    /// On text that is not PTX, and on every directive, instruction, modifier
    /// and operand that the simulator does not know: nothing is skipped.
    /// Floating `add`, `sub` and `mul` without a rounding mode are errors too,
    /// since an assembler may contract them.
    pub fn parse(text: &str) -> Result<Module, ParseError> {
        let parsed = syntax::parse(text)?;
        let lines: Vec<&str> = text.lines().collect();
        let mut programs = Vec::new();
        for entry in &parsed.entries {
            let program = crate::decode::entry(entry, &parsed.variables, &lines)?;
            let of_warpgroups = |i: &&Instr| {
                program.kinds[i.kind as usize].starts_with("wgmma.")
                    || program.kinds[i.kind as usize].starts_with("setmaxnreg.")
            };
            if parsed.target != "sm_90a"
                && let Some(Instr { line, .. }) = program.instrs.iter().find(of_warpgroups)
            {
                let text = lines.get(*line as usize - 1).copied().unwrap_or("");
                return Err(ParseError::new(*line, text, format!("{} does not have it, sm_90a has", parsed.target)));
            }
            programs.push((entry.name.clone(), program));
        }
        Ok(Module {
            lines: lines.into_iter().map(|l| l.trim().to_owned()).collect(),
            variables: parsed.variables,
            programs,
            files: parsed.files,
            places: parsed.places,
            version: parsed.version,
            target: parsed.target,
        })
    }

    /// Its kernels, in the order of the text.
    pub fn entries(&self) -> impl Iterator<Item = Entry<'_>> {
        self.programs.iter().map(|(name, program)| Entry { name, program })
    }

    /// The place in the source that a line of the PTX is for, `src/softmax.rs:12:5`, if `.loc` says it.
    #[must_use]
    pub fn source(&self, line: u32) -> Option<String> {
        let place = self.places.iter().rev().find(|place| place.ptx_line <= line)?;
        let (file, line, column) = place.at?;
        Some(format!("{}:{line}:{column}", self.files.get(&file)?))
    }

    /// The `.version` of the text, as in `8.0`.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.version
    }

    /// The `.target` of the text, as in `sm_80`.
    #[must_use]
    pub fn target(&self) -> &str {
        &self.target
    }
}
