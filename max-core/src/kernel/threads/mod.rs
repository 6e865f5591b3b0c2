//! Work partitioning over threads: dynamic scheduling by atomic counters.
//!
//! The calling thread works as well, and small work never leaves it. A slow thread takes fewer units; what a unit
//! computes does not depend on who computes it.
//!
//! Other threads are invited, not waited for: when the caller finds no more units, only those at work hold it up. So
//! waking a sleeping thread never delays a launch.

pub(super) mod cost;
pub(super) mod ranges;
pub(super) mod sync;
pub(super) mod team;
mod wake;

use std::cell::Cell;
use std::ptr::NonNull;
use std::sync::Arc;

use rayon_core::ThreadPool;

use self::ranges::{FromBothEnds, InOrder};
use self::team::Team;
use self::wake::Invitation;

thread_local! {
    /// The pool that this thread invites others from; without one, that in whose context it is.
    static POOL: Cell<Option<NonNull<ThreadPool>>> = const { Cell::new(None) };
    /// Who helped this thread last, unless they are at work.
    /// And the address of the pool that they are from, or 0.
    static CREW: Cell<Option<(usize, Arc<Team>)>> = const { Cell::new(None) };
}

/// Calls `f` here, with as many threads as `pool` has, of which others come from there.
///
/// To move to the pool would mean to wait for one of its threads to wake up, however little there is to do.
pub(crate) fn with_pool<R>(pool: &ThreadPool, f: impl FnOnce() -> R) -> R {
    /// Puts back what was there, even when `f` panics.
    struct Before(Option<NonNull<ThreadPool>>);
    impl Drop for Before {
        fn drop(&mut self) {
            POOL.set(self.0);
        }
    }
    let _before = Before(POOL.replace(Some(NonNull::from(pool))));
    f()
}

/// What several threads work with at the same time though its type does not say so: pointers to what they write.
#[derive(Clone, Copy)]
pub(crate) struct Shared<'a, T: ?Sized>(&'a T);
// SAFETY: see `Shared::new`.
unsafe impl<T: ?Sized> Sync for Shared<'_, T> {}
// SAFETY: as above.
unsafe impl<T: ?Sized> Send for Shared<'_, T> {}

impl<'a, T: ?Sized> Shared<'a, T> {
    /// # Safety
    /// What threads do with it at the same time must be sound: they only read it, and write disjoint elements of what it points at.
    #[inline(always)]
    pub unsafe fn new(value: &'a T) -> Self {
        Shared(value)
    }

    #[inline(always)]
    pub fn get(&self) -> &'a T {
        self.0
    }
}

/// The pool that others are invited from, if it is not that in whose context this thread is.
fn pool<'a>() -> Option<&'a ThreadPool> {
    // SAFETY: `with_pool`, which borrows the pool, is running on this thread, and what is returned is used at once.
    POOL.get().map(|pool| unsafe { pool.as_ref() })
}

/// The number of threads that kernels use: those of rayon's pool in whose context the caller is (`RAYON_NUM_THREADS`
/// for the global one), or of the session whose model is executing.
pub fn num_threads() -> usize {
    pool().map_or_else(rayon_core::current_num_threads, ThreadPool::current_num_threads)
}

/// Calls `f(first, last)` for ranges that together cover `0..units`, on several threads where there are at least two
/// ranges of `grain` units.
///
/// Where there is little to do, the caller begins at one end and its helpers at the other: launch after launch, a
/// thread finds most of what it has touched before in its own cache. Much goes from the first unit to the last.
pub(crate) fn parallel(units: usize, grain: usize, f: impl Fn(usize, usize) + Sync) {
    let Some(threads) = threads(units, grain) else { return f(0, units) };
    if units / grain.max(1) > threads * LITTLE {
        return parallel_in_order(units, grain, f);
    }
    let ranges = FromBothEnds::new(units, grain.div_ceil(PIECES).max(units.div_ceil(threads * RANGES)));
    let caller = std::thread::current().id();
    with_helpers(threads - 1, &|| {
        let is_caller = std::thread::current().id() == caller;
        while let Some((first, last)) = ranges.take(is_caller) {
            f(first, last);
        }
    });
}

/// As [`parallel`], for units that share tiles which whoever comes first packs: helpers take the units of a range one by one, the last one
/// first. Threads that go through tiles abreast wait for each other at each, and pack what another one packed before.
pub(crate) fn parallel_over_tiles(units: usize, grain: usize, f: impl Fn(usize, usize) + Sync) {
    let caller = std::thread::current().id();
    parallel(units, grain, |first, last| match std::thread::current().id() == caller {
        true => f(first, last),
        false => (first..last).rev().for_each(|unit| f(unit, unit + 1)),
    });
}

/// As [`parallel`], from the first unit to the last.
fn parallel_in_order(units: usize, grain: usize, f: impl Fn(usize, usize) + Sync) {
    let Some(threads) = threads(units, grain) else { return f(0, units) };
    let ranges = InOrder::new(units, grain, threads);
    with_helpers(threads - 1, &|| {
        while let Some((first, last)) = ranges.take() {
            f(first, last);
        }
    });
}

/// Ranges for each thread where there is little to do, which is so many grains for each thread, or less.
const RANGES: usize = 8;
/// What is worth another thread is taken in so many pieces, so that threads end at about the same time.
const PIECES: usize = 4;
const LITTLE: usize = 16;

/// The threads for so many units, if they are worth several.
fn threads(units: usize, grain: usize) -> Option<usize> {
    let tasks = units / grain.max(1);
    let threads = if tasks < 2 { 1 } else { num_threads().min(tasks) };
    (threads > 1).then_some(threads)
}

/// Calls `work` here, and at the same time on up to `helpers` other threads, if they come before it returns here.
fn with_helpers(helpers: usize, work: &(dyn Fn() + Sync)) {
    let pool = POOL.get().map_or(0, |pool| pool.as_ptr().addr());
    // A thread's team, unless it is at work below here, or is of another pool.
    let team = CREW.take().filter(|(of, _)| *of == pool).map_or_else(Team::new, |(_, team)| team);
    team.run(helpers, work, |team| {
        let invitation = Invitation::new();
        let help = move || {
            invitation.follow();
            team.help();
        };
        match self::pool() {
            Some(pool) => pool.spawn(help),
            None => rayon_core::spawn(help),
        }
    });
    CREW.set(Some((pool, team)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    fn pool(threads: usize) -> rayon_core::ThreadPool {
        rayon_core::ThreadPoolBuilder::new().num_threads(threads).build().unwrap()
    }

    #[test]
    fn every_unit_is_done_once_and_before_the_call_returns() {
        for threads in [1, 2, 7] {
            pool(threads).install(|| {
                for units in [0, 1, 2, 3, 64, 1000] {
                    for grain in [0, 1, 10, 5000] {
                        let done: Vec<AtomicUsize> = (0..units).map(|_| AtomicUsize::new(0)).collect();
                        parallel(units, grain, |first, last| {
                            if units == 64 {
                                // Long enough for the caller to sleep.
                                std::thread::sleep(Duration::from_micros(200));
                            }
                            done[first..last].iter().for_each(|unit| _ = unit.fetch_add(1, Ordering::Relaxed));
                        });
                        assert!(done.iter().all(|unit| unit.load(Ordering::Relaxed) == 1), "{threads} {units} {grain}");
                    }
                }
            });
        }
    }

    #[test]
    fn launches_may_be_nested_and_concurrent() {
        let total = AtomicUsize::new(0);
        let pool = pool(3);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    pool.install(|| {
                        parallel(50, 1, |first, last| {
                            parallel((last - first) * 100, 1, |first, last| {
                                total.fetch_add(last - first, Ordering::Relaxed);
                            });
                        });
                    });
                });
            }
        });
        assert_eq!(total.into_inner(), 4 * 50 * 100);
    }

    #[test]
    fn a_pool_is_asked_for_help_without_moving_there() {
        let pool = pool(3);
        let here = std::thread::current().id();
        with_pool(&pool, || {
            assert_eq!(num_threads(), 3);
            let helped = AtomicUsize::new(0);
            parallel(3, 1, |_, _| {
                if std::thread::current().id() == here {
                    // Until another thread has come.
                    while helped.load(Ordering::Acquire) == 0 {
                        std::thread::yield_now();
                    }
                } else {
                    assert!(pool.current_thread_index().is_some(), "a thread of the pool");
                    helped.fetch_add(1, Ordering::Release);
                }
            });
            assert!(helped.into_inner() > 0);
        });
        assert_eq!(num_threads(), rayon_core::current_num_threads());
    }

    #[test]
    fn busy_threads_are_not_waited_for() {
        let pool = pool(2);
        let (started, starts) = std::sync::mpsc::channel();
        let (release, released) = std::sync::mpsc::channel::<()>();
        pool.spawn(move || {
            started.send(()).unwrap();
            released.recv().unwrap();
        });
        starts.recv().unwrap();
        let done = AtomicUsize::new(0);
        // The only other thread does not come before `release` is sent to.
        pool.install(|| parallel(10, 1, |first, last| _ = done.fetch_add(last - first, Ordering::Relaxed)));
        assert_eq!(done.into_inner(), 10);
        release.send(()).unwrap();
    }
}
