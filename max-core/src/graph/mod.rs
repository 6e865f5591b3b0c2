//! The graph that users build: typed values, ops with inferred shapes, and errors at the caller's line.

mod bind;
mod dim;
mod polynomial;
mod shape;

pub use bind::{BindError, DimExpr, ShapeMatcher, Symbols};
pub use dim::{AlgebraicDim, Bindings, Dim, DimError, SymbolicDim};
pub use shape::Shape;
