//! Dynamic scheduling: how threads take ranges of a launch's units from atomic counters, each unit once.

use super::sync::{AtomicUsize, Ordering};

/// Ranges of one size, which the caller takes from the front, and its helpers from the back.
pub(in crate::kernel) struct FromBothEnds {
    taken: AtomicUsize,
    front: AtomicUsize,
    back: AtomicUsize,
    units: usize,
    size: usize,
}

impl FromBothEnds {
    pub(in crate::kernel) fn new(units: usize, size: usize) -> Self {
        let (taken, front, back) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(units));
        FromBothEnds { taken, front, back, units, size }
    }

    /// The next range, as its first unit and that behind its last.
    pub(in crate::kernel) fn take(&self, is_caller: bool) -> Option<(usize, usize)> {
        let before = self.taken.fetch_add(self.size, Ordering::Relaxed);
        if before >= self.units {
            return None;
        }
        // What is taken from both ends together is never more than there is.
        let size = self.size.min(self.units - before);
        let first = match is_caller {
            true => self.front.fetch_add(size, Ordering::Relaxed),
            false => self.back.fetch_sub(size, Ordering::Relaxed) - size,
        };
        Some((first, first + size))
    }
}

/// Ranges from the first unit to the last: long ones first, and short ones last, to even out the end.
pub(in crate::kernel) struct InOrder {
    next: AtomicUsize,
    units: usize,
    grain: usize,
    threads: usize,
}

impl InOrder {
    pub(in crate::kernel) fn new(units: usize, grain: usize, threads: usize) -> Self {
        InOrder { next: AtomicUsize::new(0), units, grain, threads }
    }

    /// The next range, as its first unit and that behind its last.
    pub(in crate::kernel) fn take(&self) -> Option<(usize, usize)> {
        let behind = |first: usize| {
            let left = self.units - first;
            first + self.grain.max(left.div_ceil(self.threads * 2)).min(left)
        };
        let take = |first: usize| (first < self.units).then(|| behind(first));
        let first = self.next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).ok()?;
        Some((first, behind(first)))
    }
}
