//! The CUDA driver and the engine on a GPU, over a driver that runs PTX in the simulator.

#![cfg(all(target_os = "linux", feature = "cuda"))]

extern crate max_core as max;

#[macro_use]
#[path = "../../../tests/support/fake_gpu.rs"]
mod fake_gpu;

mod captures;
mod devices;
mod engine;
mod forms;
mod kernels;
mod missing;
mod ops;
mod tensors;
