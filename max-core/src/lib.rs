//! The core of `max`: element types, the driver, the kernel language, the graph, its compiler and its engine.
//!
//! Users depend on the facade crate `max`, which re-exports what stands here.

// Macro output and the kernel language itself name this crate `max`, wherever they are compiled.
extern crate self as max;

mod compiler;
pub mod driver;
pub mod dtype;
pub mod engine;
mod error;
pub mod graph;
pub mod kernel;

pub use error::{Error, ErrorKind, Result};
#[cfg_attr(doctest, doc = include_str!("../../max-macros/src/kernel.md"))]
pub use max_macros::kernel;
