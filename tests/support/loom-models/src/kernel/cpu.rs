//! Of `max_core::kernel::cpu`.

#[path = "../../../../../max-core/src/kernel/cpu/pack/cooperative.rs"]
mod cooperative;
mod pack;
