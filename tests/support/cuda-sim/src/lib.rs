#![doc = include_str!("../README.md")]
#![allow(non_snake_case, reason = "the names are the driver's")]
#![allow(clippy::missing_safety_doc, reason = "the contracts are the driver's")]

mod device;
mod exports;
mod faults;
mod graph;
mod module;
mod nvtx;
mod settings;
mod state;
mod stream;

pub use exports::find;
pub use state::devices;
