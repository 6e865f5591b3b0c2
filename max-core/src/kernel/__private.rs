//! What the output of `#[kernel]` names: the language, and the targets that kernels are compiled for. Nothing else does.

pub use super::cpu::{Across, Cpu, Portable, V2, V3, V4, run_elements, run_programs, run_rows};
pub use super::lang::*;
pub use super::record::{Record, record_kernel};
pub use super::reference::{Reference, run_reference};
