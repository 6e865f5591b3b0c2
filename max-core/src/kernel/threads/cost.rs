//! What work costs, as its own runs show: how much of it is worth another thread follows from that.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use super::super::tuning::GRAIN_NS;

/// What a unit of some work took. Clones learn from each other.
#[derive(Clone, Default)]
pub(crate) struct Cost(Arc<Known>);

#[derive(Default)]
struct Known {
    /// Nanoseconds of a unit, as the bits of an `f32`; 0 if none was measured.
    unit: AtomicU32,
    /// The runs so far.
    runs: AtomicU32,
}

/// After the first runs, one of so many is measured: to look at the clock takes as long as a part of a short one.
const MEASURED: u32 = 16;

/// Runs by which something is known: the first ones find caches cold.
const FEWEST: u32 = 4;

/// A run moves what is known by one part of so many, if it took longer, and else by one of `FASTER`: it was interrupted less.
const RUNS: f32 = 8.0;
const FASTER: f32 = 2.0;
/// What takes so many times as long was interrupted: it counts as that. What was known to take so many times as long, was when caches
/// were cold.
const FAR: f32 = 4.0;

impl Cost {
    /// Nanoseconds of a unit, 0 if none was measured.
    fn unit(&self) -> f32 {
        f32::from_bits(self.0.unit.load(Ordering::Relaxed))
    }

    /// The units that are worth another thread; `unknown` until one was measured.
    pub fn grain(&self, unknown: usize) -> usize {
        let units = match self.unit() {
            ns if ns > 0.0 => (GRAIN_NS.get() as f32 / ns) as usize,
            _ => unknown,
        };
        units.max(1)
    }

    /// Whether so many units take as long as so many grains; `None` while little is known.
    pub fn has(&self, units: usize, grains: usize) -> Option<bool> {
        let (ns, runs) = (self.unit(), self.0.runs.load(Ordering::Relaxed));
        (ns > 0.0 && runs >= FEWEST).then(|| ns * units as f32 >= (GRAIN_NS.get() * grains) as f32)
    }

    /// Runs `work` of so many units, and notes what it took, unless enough is known.
    pub fn measure(&self, units: usize, work: impl FnOnce()) {
        // Several threads may count as one.
        let runs = self.0.runs.load(Ordering::Relaxed);
        self.0.runs.store(runs.wrapping_add(1), Ordering::Relaxed);
        if runs >= MEASURED && !runs.is_multiple_of(MEASURED) {
            return work();
        }
        let start = Instant::now();
        work();
        self.note(units, start.elapsed().as_nanos() as f32);
    }

    fn note(&self, units: usize, ns: f32) {
        let (known, unit) = (self.unit(), ns / units.max(1) as f32);
        let is_near = known > 0.0 && unit > known / FAR;
        let parts = if unit < known { FASTER } else { RUNS };
        let learned = if is_near { known + (unit.min(known * FAR) - known) / parts } else { unit };
        self.0.unit.store(learned.to_bits(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grain_is_of_some_time() {
        let cost = Cost::default();
        assert_eq!((cost.grain(1000), cost.grain(0)), (1000, 1));
        let ns = GRAIN_NS.get() as f32;
        cost.note(10, 10.0 * ns / 50.0);
        assert_eq!((cost.grain(1000), cost.grain(20)), (50, 50));
        // One slow run is no reason to divide finely, many are.
        cost.clone().note(1, 100.0 * ns);
        assert!((30..50).contains(&cost.grain(1000)), "{}", cost.grain(1000));
        (0..100).for_each(|_| cost.note(1, 2.0 * ns));
        assert_eq!(cost.grain(1000), 1);
        // Of many units it is known whether they have so many grains, after some runs.
        assert_eq!(cost.has(8, 16), None);
        (0..4).for_each(|_| cost.measure(1, || ()));
        cost.0.unit.store((2.0 * ns).to_bits(), Ordering::Relaxed);
        assert_eq!((cost.has(8, 16), cost.has(7, 16)), (Some(true), Some(false)));
        // The first ones were so.
        cost.note(1, ns / 50.0);
        assert_eq!(cost.grain(1000), 50);
    }
}
