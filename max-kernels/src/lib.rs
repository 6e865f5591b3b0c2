//! The built-in kernels: what the graph ops of `max` run.
//!
//! Every kernel is one function marked `#[kernel]`; none knows which machine it runs on. Tile sizes per target are data
//! in the attribute. A file holds one family, and a folder the families of one subject: elementwise ops, reductions, GEMM,
//! attention, indexing, sorting, images.
//!
//! Kernels register themselves when this crate is linked, and graphs find them by name.

mod elementwise;
mod fused_attention;
mod gemm;
mod indexing;
pub mod random;
mod reduction;
pub mod sampling;
mod sorting;
mod vision;

pub use elementwise::{activation, arithmetic, cast, compare, copy, math};
pub use fused_attention::{attention, paged_attention};
pub use gemm::{group_quantized, matmul, quantized, ragged};
pub use indexing::{gather, scatter};
pub use reduction::{norm, reduce, scan, softmax};
pub use sorting::{sort, top_k};
pub use vision::{conv, fold, resize};

/// Names an item of this crate, so that a program which uses no kernel by its Rust path still links all of them.
pub fn link() {}
