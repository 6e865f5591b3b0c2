//! Lazily staged tensors: ops wait as nodes of a graph until a result is read, and what is read becomes one region, whose
//! model is found again by its key.

mod attributes;
pub(super) mod call;
pub(super) mod context;
mod models;
pub(super) mod realize;
mod region;
pub(super) mod stage;
