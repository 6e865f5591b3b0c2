//! Ops that move elements, or only change how they are seen: slices, pads, views, gathers and scatters.

pub(super) mod indexing;
pub(super) mod pad;
pub(super) mod repeat;
pub(super) mod scatter;
pub(crate) mod slice;
pub(super) mod views;
