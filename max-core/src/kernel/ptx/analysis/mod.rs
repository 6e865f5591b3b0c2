//! Analyses before a line of PTX is printed: layouts, shared memory, pipelines, hazards.

pub(super) mod barriers;
pub(super) mod layout;
pub(super) mod leader_loads;
pub(super) mod plan;
