//! How long it takes to wake a thread of the pool, and how long a helper therefore stays when there is nothing to do.
//!
//! Whoever stays as long as waking takes never loses more than twice what the best choice would have (the ski rental problem). On a
//! machine with an idle core that is 50 µs; where the system puts a woken thread behind the one that woke it, it is a millisecond.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// A look takes about so many nanoseconds, the pause of an Intel processor.
const LOOK_NANOSECONDS: usize = 40;
/// The least and the most looks before a helper leaves: 60 µs, and a millisecond.
const STAYS: [usize; 2] = [1500, 25_000];

/// What is known of waking.
struct Wakes {
    /// The looks that it takes.
    looks: AtomicUsize,
    /// Invitations that no thread has followed yet.
    pending: AtomicUsize,
}

static WAKES: Wakes = Wakes::new();

impl Wakes {
    const fn new() -> Self {
        Wakes { looks: AtomicUsize::new(STAYS[0]), pending: AtomicUsize::new(0) }
    }

    /// A thread has come so long after it was invited. Longer waits count at once, shorter ones by and by.
    fn note(&self, waited: Duration) {
        let looks = waited.as_nanos() as usize / LOOK_NANOSECONDS;
        let before = self.looks.load(Ordering::Relaxed);
        let after = looks.max(before - before.saturating_sub(looks) / 8);
        self.looks.store(after.clamp(STAYS[0], STAYS[1]), Ordering::Relaxed);
    }

    fn stays(&self) -> usize {
        match self.pending.load(Ordering::Relaxed) {
            0 => self.looks.load(Ordering::Relaxed),
            _ => STAYS[0],
        }
    }
}

/// An invitation of a thread, until it comes.
pub(super) struct Invitation(Instant);

impl Invitation {
    pub(super) fn new() -> Self {
        WAKES.pending.fetch_add(1, Ordering::Relaxed);
        Invitation(Instant::now())
    }

    /// The thread has come.
    pub(super) fn follow(self) {
        WAKES.note(self.0.elapsed());
    }
}

impl Drop for Invitation {
    fn drop(&mut self) {
        WAKES.pending.fetch_sub(1, Ordering::Relaxed);
    }
}

/// So many looks a helper stays: not long if others wait for a thread.
pub(in crate::kernel) fn stays() -> usize {
    WAKES.stays()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn helpers_stay_as_long_as_waking_takes_if_nobody_waits() {
        let wakes = Wakes::new();
        wakes.note(Duration::from_micros(1));
        assert_eq!(wakes.stays(), STAYS[0]);
        wakes.note(Duration::from_micros(400));
        assert_eq!(wakes.stays(), 10_000);
        wakes.note(Duration::from_micros(80));
        assert_eq!(wakes.stays(), 9000);
        wakes.note(Duration::from_secs(1));
        assert_eq!(wakes.stays(), STAYS[1]);
        wakes.pending.fetch_add(1, Ordering::Relaxed);
        assert_eq!(wakes.stays(), STAYS[0]);
    }
}
