//! The ops that graphs are built of, by MAX's names.
//!
//! An op takes values of one graph, infers the type of its result, and adds a node. Tensors are taken as
//! [`TensorValue`](super::TensorValue), [`Value`](super::Value), reference to either, or, where a tensor beside it says
//! the dtype, a number. Every op returns a `Result`; the error names the op, the caller's line, the operands' types and
//! what to do.
//!
//! Where Rust reserves MAX's name, an underscore follows: [`mod_`], [`where_`]. MAX's overloaded `max(x, y)` and
//! `max(x, axis)` are [`maximum`] and [`max()`], likewise for the minimum.

mod attention;
mod buffer;
mod constant;
mod conv;
mod custom;
mod elementwise;
mod fourier;
mod indexing;
mod matmul;
mod pad;
mod pool;
pub mod random;
mod repeat;
mod resize;
mod rows;
mod scatter;
mod sequence;
pub(super) mod signature;
pub(super) mod slice;
mod sort;
mod views;

pub use attention::{AttentionOptions, attention, attention_masked};
pub use buffer::{buffer_load, buffer_store, buffer_store_slice};
pub(super) use constant::summary;
pub use constant::{ConstantData, constant, constant_external};
pub use conv::{ConvOptions, conv2d, conv2d_transpose, conv3d};
pub use custom::{custom, inplace_custom};
pub use elementwise::*;
pub use fourier::{Normalization, irfft};
pub use indexing::{gather, gather_nd};
pub use matmul::{matmul, matmul_static_scaled_float8, outer};
pub use pad::{PadMode, pad};
pub use pool::{PoolOptions, avg_pool2d, max_pool2d};
pub use repeat::{as_interleaved_complex, repeat_interleave, tile};
pub use resize::{FoldOptions, InterpolationMode, fold, resize};
pub use rows::*;
pub use scatter::{masked_scatter, scatter, scatter_add, scatter_max, scatter_min, scatter_mul, scatter_nd};
pub use sequence::{band_part, hann_window, range};
pub use signature::{KernelSignature, Mismatch, SignatureError};
pub use slice::slice_tensor;
pub use sort::{argsort, bottom_k, top_k};
pub use views::{
    broadcast_to, chunk, concat, flatten, permute, rebind, reshape, shape_to_tensor, split, squeeze, stack,
    transfer_to, transpose, unsqueeze,
};
