//! The ops that graphs are built of, by MAX's names.
//!
//! An op takes values of one graph, infers the type of its result, and adds a node. Tensors are taken as
//! [`TensorValue`](super::TensorValue), [`Value`](super::Value), reference to either, or, where a tensor beside it says
//! the dtype, a number. Every op returns a `Result`; the error names the op, the caller's line, the operands' types and
//! what to do.
//!
//! Where Rust reserves MAX's name, an underscore follows: [`mod_`], [`where_`]. MAX's overloaded `max(x, y)` and
//! `max(x, axis)` are [`maximum`] and [`max()`], likewise for the minimum.

mod buffer;
mod control_flow;
mod creation;
mod custom;
mod dims;
mod distributed;
mod dynamic;
mod elementwise;
pub(crate) mod kernel_facts;
mod linalg;
pub(crate) mod movement;
mod rows;
mod sort;
mod vision;

pub use super::signature::{KernelSignature, Mismatch, SignatureError};
pub use buffer::{buffer_load, buffer_store, buffer_store_slice};
pub use control_flow::call::call;
pub use control_flow::control::{cond, fence, print, while_loop};
pub use creation::constant::{ConstantData, constant, constant_external};
pub use creation::random;
pub use creation::sequence::{band_part, hann_window, range};
pub use custom::{custom, inplace_custom};
pub use dims::to_dims;
pub use distributed::collective::{Signals, allgather, allreduce, distribute_value, reduce_scatter};
pub use dynamic::{broadcast_to_tensor, nonzero, pad_tensor, range_tensor, repeat_interleave_tensor};
pub use elementwise::*;
pub use linalg::attention::{AttentionOptions, attention, attention_masked};
pub use linalg::float8::{
    cast_saturating, dynamic_scaled_matmul, quantize_dynamic_scaled_float8, quantize_static_scaled_float8,
};
pub use linalg::fourier::{Normalization, irfft};
pub use linalg::matmul::{matmul, matmul_static_scaled_float8, outer};
pub use linalg::quantized::{dequantize, qmatmul};
pub use movement::indexing::{gather, gather_nd};
pub use movement::pad::{PadMode, pad};
pub use movement::repeat::{as_interleaved_complex, repeat_interleave, tile};
pub use movement::scatter::{masked_scatter, scatter, scatter_add, scatter_max, scatter_min, scatter_mul, scatter_nd};
pub use movement::slice::slice_tensor;
pub use movement::views::{
    broadcast_to, chunk, concat, flatten, permute, rebind, reshape, shape_to_tensor, split, squeeze, stack,
    transfer_to, transpose, unsqueeze,
};
pub use rows::*;
pub use sort::{argsort, bottom_k, top_k};
pub use vision::conv::{ConvOptions, conv2d, conv2d_transpose, conv3d};
pub use vision::layout::{ConvInputLayout, FilterLayout};
pub use vision::pool::{PoolOptions, avg_pool2d, max_pool2d};
pub use vision::resize::{FoldOptions, InterpolationMode, fold, resize};
