//! The graph that users build: typed values, ops with inferred shapes, and errors at the caller's line.
//!
//! A [`Graph`] is a list of nodes in single-assignment form: every op of [`ops`] adds one or a few, infers the types of
//! its results, and rejects what cannot work before anything runs. Sizes may be symbolic ([`Dim`]): they are bound and
//! checked when the model executes ([`ShapeMatcher`]).

mod builder;
mod error;
mod node;
mod operators;
pub mod ops;
mod parameters;
mod promotion;
pub mod quantization;
mod serialization;
mod signature;
mod substitute;
pub(crate) mod symbolic;
#[cfg(test)]
mod tests;
mod types;
mod value;
pub mod weights;

pub use builder::Graph;
pub(crate) use builder::optional_operands::placeholder;
pub use builder::site::at;
pub use error::{GraphError, GraphErrorKind};
pub use node::{Chain, GraphData, Node, NodeId, Op, SliceAxes, SliceAxis, ValueDef, ValueId, Window};
pub use ops::movement::slice::DimSlice;
pub(crate) use substitute::Substitution;
pub use symbolic::bind::{BindError, DimExpr, ShapeMatcher, Symbols};
pub use symbolic::dim::{AlgebraicDim, Bindings, Dim, DimError, SymbolicDim};
pub use value::convert::{IntoTypes, IntoValues};

pub use parameters::{KernelCall, ParamValue, Parameters};
pub use symbolic::shape::Shape;
pub use types::{BufferType, TensorType, Type};
pub use value::{BufferValue, Operand, Scalar, TensorValue, Value};
pub use weights::Weight;
