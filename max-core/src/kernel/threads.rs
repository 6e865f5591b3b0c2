//! How work is spread over threads.
//!
//! The calling thread works as well, and small work never leaves it. Units are handed out by a counter, so that a slow
//! thread takes fewer; what a unit computes does not depend on who computes it.

use std::sync::atomic::{AtomicUsize, Ordering};

/// The number of threads that kernels use: those of rayon's pool in whose context the caller is (`RAYON_NUM_THREADS`
/// for the global one).
pub fn num_threads() -> usize {
    rayon::current_num_threads()
}

/// Calls `f(first, last)` for ranges that together cover `0..units`, on several threads where there are at least two
/// ranges of `grain` units.
pub(crate) fn parallel(units: usize, grain: usize, f: impl Fn(usize, usize) + Sync) {
    let threads = num_threads();
    let tasks = threads.min(units / grain.max(1));
    if tasks < 2 {
        return f(0, units);
    }
    // Several ranges a thread, to even out differences between them.
    let chunk = grain.max(units.div_ceil(tasks * 4));
    let next = AtomicUsize::new(0);
    let work = || {
        loop {
            let first = next.fetch_add(chunk, Ordering::Relaxed);
            if first >= units {
                break;
            }
            f(first, units.min(first + chunk));
        }
    };
    rayon::in_place_scope(|scope| {
        for _ in 1..tasks {
            scope.spawn(|_| work());
        }
        work();
    });
}
