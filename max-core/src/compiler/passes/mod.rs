//! The passes: over nodes of the graph before it is lowered, and over steps of the schedule after.

pub(super) mod composites;
pub(super) mod cse;
pub(super) mod dce;
pub(super) mod elementwise_fusion;
pub(super) mod epilogue_fusion;
pub(crate) mod flatten;
pub(super) mod fold;
pub(super) mod fusion;
pub(super) mod hoist;
pub(super) mod merge_matmul;
pub(super) mod rewrite;
