//! Matrix products: of floats and integers, of weights in blocks of small integers, and of groups of rows with matrices of their
//! own.

pub mod group_quantized;
pub mod matmul;
pub mod quantized;
pub mod ragged;
