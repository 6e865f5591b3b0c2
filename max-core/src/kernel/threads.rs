//! How work is spread over threads.
//!
//! The calling thread works as well, and small work never leaves it. Units are handed out by a counter, so that a slow
//! thread takes fewer; what a unit computes does not depend on who computes it.
//!
//! Other threads are invited, not waited for: when the caller finds no more units, only those that are at work hold it up.
//! So a launch is never slower by the time that a sleeping or busy thread takes to come.

use std::cell::Cell;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::Thread;

use rayon::ThreadPool;

thread_local! {
    /// The pool that this thread invites others from; without one, that in whose context it is.
    static POOL: Cell<Option<NonNull<ThreadPool>>> = const { Cell::new(None) };
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

/// The pool that others are invited from, if it is not that in whose context this thread is.
fn pool<'a>() -> Option<&'a ThreadPool> {
    // SAFETY: `with_pool`, which borrows the pool, is running on this thread, and what is returned is used at once.
    POOL.get().map(|pool| unsafe { pool.as_ref() })
}

/// The number of threads that kernels use: those of rayon's pool in whose context the caller is (`RAYON_NUM_THREADS`
/// for the global one), or of the session whose model is executing.
pub fn num_threads() -> usize {
    pool().map_or_else(rayon::current_num_threads, ThreadPool::current_num_threads)
}

/// Calls `f(first, last)` for ranges that together cover `0..units`, on several threads where there are at least two
/// ranges of `grain` units.
pub(crate) fn parallel(units: usize, grain: usize, f: impl Fn(usize, usize) + Sync) {
    let tasks = units / grain.max(1);
    if tasks < 2 {
        return f(0, units);
    }
    let threads = num_threads().min(tasks);
    if threads < 2 {
        return f(0, units);
    }
    // Long ranges first, for units beside each other share what they read; short ones last, to even out the end.
    let next = AtomicUsize::new(0);
    let range = |first: usize| grain.max((units - first).div_ceil(threads * 2)).min(units - first);
    with_helpers(threads - 1, &|| {
        let take = |first: usize| (first < units).then(|| first + range(first));
        while let Ok(first) = next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take) {
            f(first, first + range(first));
        }
    });
}

/// Calls `work` here, and at the same time on up to `helpers` other threads, if they come before it returns here.
fn with_helpers(helpers: usize, work: &(dyn Fn() + Sync)) {
    let work: *const (dyn Fn() + Sync + '_) = work;
    // SAFETY: only the lifetime is changed; nothing uses the pointer once this has returned.
    let work: *const (dyn Fn() + Sync) = unsafe { std::mem::transmute(work) };
    let gate = Arc::new(Gate { state: AtomicUsize::new(0), work, caller: std::thread::current() });
    let closing = Closing(&gate);
    for _ in 0..helpers {
        let gate = Arc::clone(&gate);
        match pool() {
            Some(pool) => pool.spawn(move || gate.help()),
            None => rayon::spawn(move || gate.help()),
        }
    }
    gate.work();
    drop(closing);
}

/// Where helpers come in, until it closes.
struct Gate {
    /// [`HELPER`] for each helper inside, and [`CLOSED`].
    state: AtomicUsize,
    /// What there is to do, for as long as the gate is not both closed and empty.
    work: *const (dyn Fn() + Sync),
    caller: Thread,
}

// SAFETY: the work may be called from any thread, and the pointer is used only as `work` says.
unsafe impl Send for Gate {}
// SAFETY: as above.
unsafe impl Sync for Gate {}

const CLOSED: usize = 1;
const HELPER: usize = 2;
/// Looks at the gate before the caller sleeps: about 20 µs, longer than most helpers take for their last range.
const LOOKS: usize = 500;

impl Gate {
    /// Does work, on the caller's thread or inside the gate.
    fn work(&self) {
        // SAFETY: `with_helpers` returns only once the gate is closed and empty, and until then the work is there.
        unsafe { (*self.work)() }
    }

    fn help(&self) {
        /// Leaves, even when the work panics.
        struct Inside<'a>(&'a Gate);
        impl Drop for Inside<'_> {
            fn drop(&mut self) {
                if self.0.state.fetch_sub(HELPER, Ordering::Release) == CLOSED + HELPER {
                    self.0.caller.unpark();
                }
            }
        }
        let was = self.state.fetch_add(HELPER, Ordering::Acquire);
        let _inside = Inside(self);
        if was & CLOSED == 0 {
            self.work();
        }
    }
}

/// Closes the gate when dropped, and waits until it is empty.
struct Closing<'a>(&'a Gate);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        let state = &self.0.state;
        let mut looks = 0;
        let mut now = state.fetch_or(CLOSED, Ordering::Acquire) | CLOSED;
        while now != CLOSED {
            if looks < LOOKS {
                looks += 1;
                std::hint::spin_loop();
            } else {
                std::thread::park();
            }
            now = state.load(Ordering::Acquire);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn pool(threads: usize) -> rayon::ThreadPool {
        rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap()
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
        assert_eq!(num_threads(), rayon::current_num_threads());
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
