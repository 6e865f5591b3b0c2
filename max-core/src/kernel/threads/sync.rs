//! What threads share and wait by, for the protocols of [`team`](super::team), [`ranges`](super::ranges) and packing.
//!
//! Models of these, in `tests/support/loom-models`, put what loom offers in the place of this file.

pub(in crate::kernel) use std::cell::Cell;
pub(in crate::kernel) use std::hint::spin_loop;
pub(in crate::kernel) use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};
pub(in crate::kernel) use std::thread::{Thread, current, park, yield_now};

pub(in crate::kernel) use super::wake::stays;

/// How often to look before waiting otherwise: in a model, as often as makes a difference.
pub(in crate::kernel) const fn looks(n: usize) -> usize {
    n
}
