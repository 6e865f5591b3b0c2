//! The graph that users build: typed values, ops with inferred shapes, and errors at the caller's line.
//!
//! A [`Graph`] is a list of nodes in single-assignment form: every op of [`ops`] adds one or a few, infers the types of
//! its results, and rejects what cannot work before anything runs. Sizes may be symbolic ([`Dim`]): they are bound and
//! checked when the model executes ([`ShapeMatcher`]).

mod bind;
mod builder;
mod convert;
mod dim;
mod error;
mod node;
mod operators;
pub mod ops;
mod polynomial;
mod promotion;
mod shape;
mod site;
#[cfg(test)]
mod tests;
mod text;
mod types;
mod value;
pub mod weights;

pub use bind::{BindError, DimExpr, ShapeMatcher, Symbols};
pub use builder::Graph;
pub use convert::{IntoTypes, IntoValues};
pub use dim::{AlgebraicDim, Bindings, Dim, DimError, SymbolicDim};
pub use error::{GraphError, GraphErrorKind};
pub use node::{Chain, GraphData, KernelCall, Node, NodeId, Op, ParamValue, Parameters, SliceAxis, ValueDef, ValueId};
pub use ops::slice::DimSlice;
pub use shape::Shape;
pub use types::{BufferType, TensorType, Type};
pub use value::{BufferValue, Operand, Scalar, TensorValue, Value};
pub use weights::Weight;
