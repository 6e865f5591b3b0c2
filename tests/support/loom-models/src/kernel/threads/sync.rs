//! What stands in the place of `max_core::kernel::threads::sync`.

pub(in crate::kernel) use loom::cell::Cell;
pub(in crate::kernel) use loom::hint::spin_loop;
pub(in crate::kernel) use loom::sync::atomic::{AtomicU16, AtomicUsize, Ordering};
pub(in crate::kernel) use loom::thread::{Thread, current, park};

/// Once is enough to try both what happens while a thread looks and what happens when it does so no more.
pub(in crate::kernel) const fn looks(_: usize) -> usize {
    1
}

/// As [`looks`].
pub(in crate::kernel) fn stays() -> usize {
    1
}

/// What a thread does that has looked, let others go on, and looked again in vain. Two such could take turns without end, while
/// the thread that they wait for never goes on: no scheduler is so unfair. To look in vain has no effect, so what follows
/// differs in nothing from what follows a shorter wait, and that is tried anyway.
pub(in crate::kernel) fn yield_now() {
    loom::skip_branch();
    loom::thread::yield_now();
}
