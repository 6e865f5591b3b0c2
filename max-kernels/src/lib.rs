//! The built-in kernels: what the graph ops of `max` run.
//!
//! Every kernel is one function marked `#[kernel]`; none knows which machine it runs on. Tile sizes per target are data
//! in the attribute. A file holds one family: elementwise ops, reductions, norms, GEMM, attention, convolutions, sorting.
//!
//! Kernels register themselves when this crate is linked, and graphs find them by name.

pub mod activation;
pub mod arithmetic;
pub mod attention;
pub mod cast;
pub mod compare;
pub mod conv;
pub mod copy;
pub mod fold;
pub mod gather;
pub mod group_quantized;
pub mod math;
pub mod matmul;
pub mod norm;
pub mod paged_attention;
pub mod quantized;
pub mod ragged;
pub mod random;
pub mod reduce;
pub mod resize;
pub mod sampling;
pub mod scan;
pub mod scatter;
pub mod softmax;
pub mod sort;
pub mod top_k;

/// Names an item of this crate, so that a program which uses no kernel by its Rust path still links all of them.
pub fn link() {}
