//! Faults that a test asks for, and the log of calls.

use std::collections::HashMap;
use std::ffi::CString;
use std::fs::File;
use std::io::Write;

use cudarc::driver::sys::CUresult;

use crate::exports::find;

/// A code of the driver.
pub type Code = u32;
/// What a function of the driver did: nothing more, or a code that is not 0.
pub type Done<T = ()> = Result<T, Code>;

/// What rules call a barrier of the PTX that is loaded.
const BARRIER: &str = "barrier";

/// A code by its name in the driver's interface.
pub const fn code(result: CUresult) -> Code {
    result as Code
}

/// The calls of a function that fail, and how.
pub struct Rule {
    what: String,
    code: Code,
    first: u64,
    onwards: bool,
}

/// Rules of `FAKE_CUDA_FAIL`, the number of calls so far, and the log.
pub struct Faults {
    rules: Vec<Rule>,
    counts: HashMap<&'static str, u64>,
    log: Option<File>,
}

fn rule(text: &str) -> Option<Rule> {
    let (what, rest) = text.split_once('=')?;
    let (code, first) = rest.split_once('@')?;
    let onwards = first.ends_with('+');
    let first = first.trim_end_matches('+').parse().ok().filter(|first| *first > 0)?;
    Some(Rule { what: what.to_owned(), code: code.parse().ok()?, first, onwards })
}

impl Faults {
    /// The rules of a text, or what is wrong with one.
    pub fn rules(text: &str) -> Result<Vec<Rule>, String> {
        let parse = |text: &str| {
            let rule = rule(text).ok_or_else(|| format!("`{text}` is not FUNCTION=CODE@CALL"))?;
            let known = ["kernel", "ptx", BARRIER].contains(&&*rule.what)
                || CString::new(&*rule.what).is_ok_and(|name| find(&name).is_some());
            match (known, rule.code) {
                (false, _) => Err(format!("the driver has no `{}`", rule.what)),
                (true, 0) => Err("0 is no failure".to_owned()),
                (true, _) => Ok(rule),
            }
        };
        text.split(',').filter(|text| !text.is_empty()).map(parse).collect()
    }

    pub fn new(rules: Vec<Rule>, log: Option<File>) -> Faults {
        Faults { rules, counts: HashMap::new(), log }
    }

    /// Counts a call, writes it to the log, and says whether it has to fail.
    pub fn enter(&mut self, what: &'static str) -> Done {
        let count = self.counts.entry(what).or_default();
        *count += 1;
        let hit = |rule: &&Rule| rule.what == what && (rule.first == *count || rule.onwards && *count >= rule.first);
        let outcome = self.rules.iter().find(hit).map_or(Ok(()), |rule| Err(rule.code));
        let suffix = outcome.err().map_or(String::new(), |code| format!(" -> {code}"));
        self.note(&format!("{what}{suffix}"));
        outcome
    }

    /// PTX as it is loaded: without the barriers for which there is a rule, each a call.
    pub fn without_barriers(&mut self, text: &str) -> String {
        let mut kept = |line: &&str| !line.contains("bar.sync") || self.enter(BARRIER).is_ok();
        // Lines keep their numbers.
        text.lines()
            .map(|line| if kept(&line) { line } else { "" })
            .fold(String::new(), |text, line| text + line + "\n")
    }

    /// Writes a line to the log. One that cannot be written any more, on a full disk, stops no program.
    pub fn note(&mut self, line: &str) {
        if let Some(log) = &mut self.log {
            _ = writeln!(log, "{line}");
        }
    }
}
