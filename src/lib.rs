//! MAX for Rust: a graph compiler and runtime for AI models whose kernels are Rust functions, written once.
//!
//! A kernel is a function marked [`#[kernel]`](macro@kernel). rustc compiles it ahead of time to vector code for the
//! CPU. The same function records a tile IR, from which CUDA PTX is written. Kernels register themselves under the name
//! of their op, and graphs find them there. Built-in ops are made no differently from yours.
//!
//! The graph compiler fuses elementwise kernels: with each other, and as prologue or epilogue of other kernels. `dot`
//! of tiles is GEMM: over packed panels on CPUs (AVX2, AVX-512, AMX), on tensor cores on GPUs (`mma.sync`, `wgmma`).
//!
//! ```
//! use max::prelude::*;
//!
//! let x = TensorType::new(DType::F32, (5,), DeviceRef::CPU);
//! let graph = Graph::build("relu_graph", [x], |_, inputs| ops::relu(&inputs[0]))?;
//! let model = InferenceSession::new().load(&graph)?;
//!
//! let x = Tensor::from_slice(&[1.0f32, -2.0, 3.0, -4.0, 5.0], [5])?;
//! let outputs = model.execute(&x)?;
//! assert_eq!(outputs[0].to_vec::<f32>()?, [1.0, 0.0, 3.0, 0.0, 5.0]);
//! # Ok::<(), max::Error>(())
//! ```
//!
//! Where to go from here:
//!
//! - [`mod@kernel`] to write kernels, and the guide in `docs/guide`;
//! - [`graph`] to build models of them;
//! - [`engine`] to load and execute models;
//! - [`driver`] for tensors and devices;
//! - [`tensor`], [`functional`] and [`nn`] for tensors that compute as you write, and for layers.
//!
//! # Features
#![doc = document_features::document_features!()]

#[cfg(feature = "simulator")]
pub mod simulator;

pub use max_core::{Error, ErrorKind, Result, dispatch, driver, dtype, engine, extension, graph, kernel};
pub use max_kernels as kernels;
pub use max_nn::{dlpack, functional, nn, random, tensor};
#[cfg(feature = "pipelines")]
pub use max_pipelines as pipelines;

/// What authors of kernels and of graphs need, in one `use`.
///
/// `Result` is not here, so that the standard one stays what it is: write `max::Result`.
pub mod prelude {
    pub use max_core::driver::{Device, DeviceRef, SliceIndex, Tensor};
    pub use max_core::dtype::DType;
    pub use max_core::engine::{InferenceSession, Model};
    pub use max_core::graph::{
        BufferType, BufferValue, Dim, DimSlice, Graph, Parameters, Shape, TensorType, TensorValue, Value, ops,
    };
    pub use max_core::kernel::prelude::*;
    pub use max_core::kernel::{Kernel, KernelLibrary};
}

/// The README's example, which is compiled and run by the tests.
#[doc = include_str!("../README.md")]
#[cfg(doctest)]
struct Readme;
