#![doc = include_str!("../README.md")]

mod access;
mod blocks;
mod decode;
mod descriptor;
mod error;
mod exec;
mod fault;
mod lex;
mod mbarrier;
mod memory;
mod mma;
mod module;
mod ops;
mod print;
mod program;
mod registers;
mod run;
mod shared;
mod softfloat;
mod stats;
mod syntax;
mod tensormap;
mod types;
mod warp;
mod warpgroup;
mod warpwide;

pub use error::ParseError;
pub use fault::{Fault, FaultKind, Nearest};
pub use memory::{DevicePtr, Memory, Traffic};
pub use module::{Entry, Module, Param};
pub use run::{Arg, Launch, run};
pub use stats::Stats;
pub use syntax::Space;
pub use tensormap::TensorMap;
