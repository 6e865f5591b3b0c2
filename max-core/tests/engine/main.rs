//! The engine, through its public interface: graphs over this crate's own kernels, loaded and executed.

extern crate max_core as max;

mod allocations;
mod buffers;
mod errors;
mod execute;
mod fusion;
mod kernels;
mod sessions;
mod slices;
mod views;
mod weights;
