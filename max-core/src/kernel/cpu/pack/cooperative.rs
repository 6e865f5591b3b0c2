//! Cooperative packing: the protocol by which threads claim chunks of one packed tile and wait for each other's.
//!
//! It exists so that each chunk is packed exactly once. Models of it in `tests/support/loom-models` try all
//! interleavings.

use crate::kernel::threads::sync::{AtomicU16, Ordering, looks, spin_loop, yield_now};

/// The most chunks of a tile. Its state counts those that are packed, and from `CLAIMED` on those that someone took on.
pub(in crate::kernel) const MAX_CHUNKS: usize = 8;
const CLAIMED: u16 = 16;
/// What a state has when it is marked.
const MARK: u16 = 1 << 15;

/// The state of a tile of so many chunks; it begins with 0.
#[derive(Clone, Copy)]
pub(in crate::kernel) struct Claims<'a> {
    state: &'a AtomicU16,
    chunks: u16,
}

impl<'a> Claims<'a> {
    /// Of 1 to [`MAX_CHUNKS`] chunks.
    #[inline(always)]
    pub(in crate::kernel) fn new(state: &'a AtomicU16, chunks: usize) -> Self {
        Claims { state, chunks: chunks as u16 }
    }

    /// A chunk that nobody has claimed, for the caller to pack. `None` where all are claimed: if the caller waits, only
    /// once all are packed, as the caller then sees. Whoever waits must have nothing claimed that is not done.
    #[inline(always)]
    pub(in crate::kernel) fn claim(self, waits: bool) -> Option<usize> {
        if self.state.load(Ordering::Acquire) & !MARK == self.all() {
            return None;
        }
        self.claim_of_state(waits)
    }

    /// A chunk that the caller has claimed is packed.
    #[inline(always)]
    pub(in crate::kernel) fn done(self) {
        self.state.fetch_add(1, Ordering::Release);
    }

    /// Marks the tile, before a chunk that the caller has claimed is done.
    #[inline(always)]
    pub(in crate::kernel) fn mark(self) {
        self.state.fetch_or(MARK, Ordering::Relaxed);
    }

    /// Whether someone has marked a tile all of whose chunks are done.
    #[inline(always)]
    pub(in crate::kernel) fn is_marked(self) -> bool {
        self.state.load(Ordering::Relaxed) & MARK != 0
    }

    /// The state once all chunks are claimed and done.
    #[inline(always)]
    fn all(self) -> u16 {
        self.chunks * (CLAIMED + 1)
    }

    #[inline(never)]
    fn claim_of_state(self, waits: bool) -> Option<usize> {
        let mut rounds = 0;
        loop {
            let now = self.state.load(Ordering::Acquire);
            let counts = now & !MARK;
            if counts == self.all() {
                return None;
            }
            if counts / CLAIMED < self.chunks {
                let taken = self.state.compare_exchange(now, now + CLAIMED, Ordering::Acquire, Ordering::Relaxed);
                if taken.is_ok() {
                    return Some((counts / CLAIMED).into());
                }
            } else if !waits {
                return None;
            } else if rounds < looks(1000) {
                // Whoever packs waits for nobody.
                rounds += 1;
                spin_loop();
            } else {
                yield_now();
            }
        }
    }
}
