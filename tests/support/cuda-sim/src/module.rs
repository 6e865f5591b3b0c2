//! Modules of PTX and their functions.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::sync::Arc;

use cudarc::driver::sys::CUresult;

use crate::faults::{Code, code};

/// A loaded module.
pub struct Module {
    pub device: usize,
    pub parsed: ptx_sim::Module,
}

/// A kernel of a module.
#[derive(Clone)]
pub struct Function {
    pub module: Arc<Module>,
    pub entry: String,
    /// Sizes of its parameters in bytes.
    pub params: Vec<usize>,
    pub static_shared: u64,
    /// The most dynamic shared memory that a launch may ask for.
    pub max_dynamic_shared: u64,
}

/// Writes PTX to a folder, under a name of its contents, so that no two processes write one file in two ways.
pub fn keep(folder: &Path, text: &str) -> std::io::Result<()> {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    std::fs::write(folder.join(format!("{:016x}.ptx", hasher.finish())), text)
}

/// The version of PTX that a driver of this version of CUDA knows, 78 for 7.8.
fn ptx_version(cuda: i32) -> u32 {
    let (major, minor) = ((cuda / 1000) as u32, (cuda % 1000 / 10) as u32);
    match (major, minor) {
        (..=10, _) => 65,
        (11, _) => 70 + minor,
        (12, ..=5) => 80 + minor,
        (12, _) => 79 + minor,
        _ => 90 + minor,
    }
}

fn number(text: &str) -> u32 {
    text.chars().filter(char::is_ascii_digit).collect::<String>().parse().unwrap_or(0)
}

/// Reads PTX as the driver would, with a message in its style for what it refuses.
pub fn parse(text: &str, cuda: i32, sm: u32) -> Result<ptx_sim::Module, (Code, String)> {
    let known = ptx_version(cuda);
    let head = |name: &str| {
        let line = text.lines().find(|line| line.trim_start().starts_with(name));
        line.and_then(|line| line.split_whitespace().nth(1)).unwrap_or_default().to_owned()
    };
    let (version, target) = (head(".version"), head(".target"));
    if number(&version) > known {
        let log = format!(
            "ptxas application ptx input, line 1; fatal   : Unsupported .version {version}; current version is '{}.{}'",
            known / 10,
            known % 10
        );
        return Err((code(CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION), log));
    }
    if number(&target) > sm || target.ends_with('a') && number(&target) != sm {
        return Err((code(CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU), String::new()));
    }
    ptx_sim::Module::parse(text).map_err(|error| {
        let log = format!("ptxas application ptx input, line {}; error   : {}", error.line, error.message);
        (code(CUresult::CUDA_ERROR_INVALID_PTX), log)
    })
}
