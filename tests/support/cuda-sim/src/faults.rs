//! Faults that a test asks for, and the log of calls.

use std::collections::HashMap;
use std::fs::File;
use std::io::Write;

use cudarc::driver::sys::CUresult;

/// A code of the driver.
pub type Code = u32;
/// What a function of the driver did: nothing more, or a code that is not 0.
pub type Done<T = ()> = Result<T, Code>;

/// A code by its name in the driver's interface.
pub const fn code(result: CUresult) -> Code {
    result as Code
}

struct Rule {
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
    let first = first.trim_end_matches('+').parse().ok()?;
    Some(Rule { what: what.to_owned(), code: code.parse().ok()?, first, onwards })
}

impl Faults {
    pub fn from_environment() -> Faults {
        let text = std::env::var("FAKE_CUDA_FAIL").unwrap_or_default();
        let parse = |text: &str| rule(text).unwrap_or_else(|| panic!("FAKE_CUDA_FAIL: `{text}`"));
        let rules = text.split(',').filter(|text| !text.is_empty()).map(parse).collect();
        let log = std::env::var_os("FAKE_CUDA_LOG").map(|path| File::create(path).expect("the log"));
        Faults { rules, counts: HashMap::new(), log }
    }

    /// Counts a call, writes it to the log, and says whether it has to fail.
    pub fn enter(&mut self, what: &'static str) -> Done {
        let count = self.counts.entry(what).or_default();
        *count += 1;
        let hit = |rule: &&Rule| rule.what == what && (rule.first == *count || rule.onwards && *count >= rule.first);
        let outcome = self.rules.iter().find(hit).map_or(Ok(()), |rule| Err(rule.code));
        if let Some(log) = &mut self.log {
            let suffix = outcome.err().map_or(String::new(), |code| format!(" -> {code}"));
            writeln!(log, "{what}{suffix}").expect("the log");
        }
        outcome
    }

    /// Writes a line to the log.
    pub fn note(&mut self, line: &str) {
        if let Some(log) = &mut self.log {
            writeln!(log, "{line}").expect("the log");
        }
    }
}
