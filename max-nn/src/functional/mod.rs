//! The ops, by MAX's names, each defined once for eager tensors and for values of a graph.
//!
//! An op takes anything that is an [`Operand`]: [`Tensor`](crate::tensor::Tensor)s, values of a graph, tensors of the driver, and, where a tensor
//! beside it says the dtype, numbers. With a value of a graph among its operands, it is added to that graph, in which eager
//! tensors are constants; else its result is an eager tensor that is computed when it is read. Mistakes are errors at once,
//! in either world: they name the op, the caller's line, the operands' types and what to do.
//!
//! Where Rust reserves MAX's name, an underscore follows: [`mod_`], [`where_`]. MAX's overloaded `max(x, y)` and
//! `max(x, axis)` are [`maximum`] and [`max()`], likewise for the minimum.
//!
//! ```
//! # extern crate max_nn as max;
//! # max_kernels::link();
//! use max::{driver, driver::DeviceRef, dtype::DType, engine::InferenceSession, graph::{Graph, TensorType}};
//! use max::{functional as F, tensor::{Operand, Tensor}};
//!
//! fn scaled(x: impl Into<Operand>) -> max::Result<Tensor> {
//!     F::relu(F::mul(x, 2.0)?)
//! }
//!
//! let x = Tensor::constant([3.0f32, -4.0])?;
//! assert_eq!(scaled(&x)?.to_vec::<f32>()?, [6.0, 0.0]);
//!
//! let ty = TensorType::new(DType::F32, ("n",), DeviceRef::CPU);
//! let graph = Graph::build("scaled", [ty], |_, inputs| scaled(&inputs[0]))?;
//! let model = InferenceSession::new().load(&graph)?;
//! assert_eq!(model.execute(&driver::Tensor::full(1.5f32, [1])?)?[0].to_vec::<f32>()?, [3.0]);
//! # Ok::<(), max::Error>(())
//! ```

mod custom;
mod elementwise;
mod images;
mod indexing;
mod products;
mod rows;
mod sequence;
mod views;

pub use crate::tensor::{Operand, functional};
pub use custom::custom;
pub use elementwise::*;
pub use images::*;
pub use indexing::*;
pub use max_core::graph::ops::{
    AttentionOptions, ConvOptions, FoldOptions, GeluApproximation, InterpolationMode, Normalization, PadMode,
    PoolOptions,
};
pub use max_macros::functional;
pub use products::*;
pub use rows::*;
pub use sequence::*;
pub use views::*;
