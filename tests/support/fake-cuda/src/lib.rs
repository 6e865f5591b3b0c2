//! The driver of [`cuda_sim`] as a dynamic library, which tests put in the place of `libcuda.so.1`.
//!
//! It is a crate of its own because cargo gives a dynamic library, and the Rust library beside it, one name for all
//! profiles: what programs link must not be overwritten by another build.

pub use cuda_sim::*;
