#![doc = include_str!("../README.md")]

mod decode;
mod exec;
mod fault;
mod memory;
mod module;
mod ops;
mod parse;
mod program;
mod run;
mod stats;
mod types;
mod warp;

pub use fault::{Fault, FaultKind, Nearest};
pub use memory::tensormap::TensorMap;
pub use memory::{DevicePtr, Memory, Traffic};
pub use module::{Entry, Module, Param};
pub use parse::error::ParseError;
pub use parse::syntax::Space;
pub use run::{Arg, Launch, WarpOrder, run};
pub use stats::Stats;
