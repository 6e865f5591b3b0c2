//! Of `max_core::kernel::threads`.

#[path = "../../../../../max-core/src/kernel/threads/ranges.rs"]
mod ranges;
pub(super) mod sync;
#[path = "../../../../../max-core/src/kernel/threads/team.rs"]
mod team;

mod launches;
