//! Eager tensors, functional ops, random numbers and neural network modules: the other way to write a model.
//!
//! - [`tensor`]: [`Tensor`](tensor::Tensor), which computes when it is read, and stages graphs for that.
//! - [`functional`]: the ops, one definition each for eager tensors and for values of a graph.
//! - [`random`]: random tensors.
//! - [`nn`]: modules with named parameters, and layers.
//! - [`dlpack`]: tensors of other frameworks, without a copy.
//!
//! Users depend on the facade crate `max`, which re-exports this one.

// What the macros write names this crate `max`, wherever it is compiled.
extern crate self as max;

pub mod dlpack;
pub mod functional;
mod module;
pub mod nn;
pub mod random;
pub mod tensor;

pub use max_core::{Error, driver, dtype, engine, graph};

/// A result with the error of an op: it names the op, the caller's line, the operands and what to do.
pub type Result<T, E = max_core::graph::GraphError> = std::result::Result<T, E>;
