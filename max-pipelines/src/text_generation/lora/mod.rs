//! Adapters of low rank that sequences of one batch choose from, and requests about them.

pub(super) mod lora_manager;
pub(super) mod lora_request;
