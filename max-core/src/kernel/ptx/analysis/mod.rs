//! Analyses of the tile IR, before any code is lowered: layouts, shared memory, pipelines, hazards.

mod fma_layout;
pub(super) mod hazards;
pub(super) mod layout;
pub(super) mod leader_loads;
pub(super) mod plan;
pub(super) mod sliced_k;
mod transposed_loads;
