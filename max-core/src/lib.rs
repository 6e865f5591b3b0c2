//! The core of `max`: everything between a `#[kernel]` function and a model that runs.
//!
//! - [`dtype`]: element types.
//! - [`driver`]: devices, streams, the caching allocator, and tensors.
//! - [`mod@kernel`]: the kernel language and its targets (native code, a reference form, a tile IR), the PTX back end, the
//!   kernel library, and launches.
//! - [`graph`]: graphs of ops over typed values with symbolic dims, and weights.
//! - `plan`: what the compiler writes and the engine executes.
//! - `compiler`: the passes from a graph to a plan, elementwise, prologue and epilogue fusion among them.
//! - [`engine`]: sessions that load graphs, and models that execute plans.
//!
//! Users depend on the facade crate `max`, which re-exports this one. The repository's `ARCHITECTURE.md` has a line on
//! each module.

// Macro output and the kernel language itself name this crate `max`, wherever they are compiled.
extern crate self as max;

mod compiler;
pub mod driver;
pub mod dtype;
pub mod engine;
mod error;
pub mod graph;
mod hash_map;
pub mod kernel;
mod plan;
mod steps;

pub use error::{Error, ErrorKind, Result};
#[cfg_attr(doctest, doc = include_str!("../../max-macros/src/kernel.md"))]
pub use max_macros::kernel;
