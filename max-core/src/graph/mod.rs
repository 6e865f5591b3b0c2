//! The graph that users build: typed values, ops with inferred shapes, and errors at the caller's line.

mod dim;
mod polynomial;

pub use dim::{AlgebraicDim, Bindings, Dim, DimError, SymbolicDim};
