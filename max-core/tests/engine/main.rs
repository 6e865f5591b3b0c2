//! The engine, through its public interface: graphs over this crate's own kernels, loaded and executed.

extern crate max_core as max;

mod allocations;
mod buffers;
mod control;
mod dynamic;
mod errors;
mod execute;
mod files;
mod fusion;
mod kernels;
mod large;
mod merging;
mod random;
mod sessions;
mod slices;
mod spans;
mod symbolic;
mod views;
mod weights;
