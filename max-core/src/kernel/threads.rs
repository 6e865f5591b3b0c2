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
    /// Who helped this thread last, unless they are at work.
    static CREW: Cell<Option<Arc<Crew>>> = const { Cell::new(None) };
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
///
/// Where there is little to do, the caller begins at one end and its helpers at the other: launch after launch, a thread finds
/// most of what it has touched before in its own cache. Much goes [in order](parallel_in_order).
pub(crate) fn parallel(units: usize, grain: usize, f: impl Fn(usize, usize) + Sync) {
    let Some(threads) = threads(units, grain) else { return f(0, units) };
    if units / grain.max(1) > threads * LITTLE {
        return parallel_in_order(units, grain, f);
    }
    let size = grain.max(units.div_ceil(threads * RANGES));
    let (taken, front, back) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(units));
    let caller = std::thread::current().id();
    with_helpers(threads - 1, &|| {
        let is_caller = std::thread::current().id() == caller;
        loop {
            let before = taken.fetch_add(size, Ordering::Relaxed);
            if before >= units {
                return;
            }
            // What is taken from both ends together is never more than there is.
            let size = size.min(units - before);
            let first = match is_caller {
                true => front.fetch_add(size, Ordering::Relaxed),
                false => back.fetch_sub(size, Ordering::Relaxed) - size,
            };
            f(first, first + size);
        }
    });
}

/// As [`parallel`], from the first unit to the last: for units of which those beside each other share what they read.
pub(crate) fn parallel_in_order(units: usize, grain: usize, f: impl Fn(usize, usize) + Sync) {
    let Some(threads) = threads(units, grain) else { return f(0, units) };
    // Long ranges first, and short ones last, to even out the end.
    let next = AtomicUsize::new(0);
    let range = |first: usize| grain.max((units - first).div_ceil(threads * 2)).min(units - first);
    with_helpers(threads - 1, &|| {
        let take = |first: usize| (first < units).then(|| first + range(first));
        while let Ok(first) = next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take) {
            f(first, first + range(first));
        }
    });
}

/// Ranges for each thread where there is little to do, which is so many grains for each thread, or less.
const RANGES: usize = 8;
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
    // A thread's crew, unless it is at work below here, or is of another pool.
    let crew = CREW.take().filter(|crew| crew.pool == pool).unwrap_or_else(|| Crew::new(pool));
    crew.run(helpers, work);
    CREW.set(Some(crew));
}

/// The threads that help a thread. They stay for a moment after they have helped: to wake a thread that sleeps takes as
/// long as many a launch, and one launch follows the other.
struct Crew {
    /// The number of the launch times [`LAUNCH`], [`HELPER`] for each helper at work, and [`OPEN`] while more may come.
    state: AtomicUsize,
    /// What there is to do, for as long as a launch is open or has helpers at work.
    work: Cell<*const (dyn Fn() + Sync)>,
    /// Helpers that are at work, stay, or were invited and have not come yet.
    around: AtomicUsize,
    /// The most helpers that may be at work.
    most: AtomicUsize,
    caller: Thread,
    /// The address of the pool that helpers come from, or 0.
    pool: usize,
}

// SAFETY: the work may be called from any thread; it is changed only while no launch is open and no helper at work.
unsafe impl Send for Crew {}
// SAFETY: as above.
unsafe impl Sync for Crew {}

const OPEN: usize = 1;
const HELPER: usize = 2;
const LAUNCH: usize = 1 << 20;
/// Looks at the state before the caller sleeps: about 20 µs, longer than most helpers take for their last range.
const LOOKS: usize = 500;
/// Looks at the state before a helper leaves: about as long as it takes to wake one.
const STAYS: usize = 1500;

impl Crew {
    fn new(pool: usize) -> Arc<Self> {
        let work: *const (dyn Fn() + Sync) = &|| {};
        Arc::new(Crew {
            state: AtomicUsize::new(0),
            work: Cell::new(work),
            around: AtomicUsize::new(0),
            most: AtomicUsize::new(0),
            caller: std::thread::current(),
            pool,
        })
    }

    /// Calls `work` here and on helpers.
    fn run(self: &Arc<Self>, helpers: usize, work: &(dyn Fn() + Sync)) {
        let work: *const (dyn Fn() + Sync + '_) = work;
        // SAFETY: only the lifetime is changed; nothing uses the pointer once this has returned.
        self.work.set(unsafe { std::mem::transmute::<*const (dyn Fn() + Sync + '_), *const (dyn Fn() + Sync)>(work) });
        self.most.store(helpers, Ordering::Relaxed);
        let launch = (self.state.load(Ordering::Relaxed) / LAUNCH).wrapping_add(1).wrapping_mul(LAUNCH);
        // Either a helper that leaves sees this launch, or it is seen here that it has left.
        self.state.store(launch + OPEN, Ordering::SeqCst);
        let closing = Closing(self);
        for _ in self.around.load(Ordering::SeqCst)..helpers {
            self.around.fetch_add(1, Ordering::Relaxed);
            let crew = Arc::clone(self);
            match pool() {
                Some(pool) => pool.spawn(move || crew.help()),
                None => rayon::spawn(move || crew.help()),
            }
        }
        self.work();
        drop(closing);
    }

    /// Does work, on the caller's thread or as a helper.
    fn work(&self) {
        // SAFETY: `run` returns only once the launch is closed and no helper at work, and until then the work is there.
        unsafe { (*self.work.get())() }
    }

    /// Helps with one launch after the other, until there is none for a while.
    fn help(&self) {
        let around = Around(self);
        let (mut looks, mut last) = (0, None);
        loop {
            let state = self.state.load(Ordering::SeqCst);
            let most = self.most.load(Ordering::Relaxed);
            let is_new = state & OPEN != 0 && last != Some(state / LAUNCH) && state % LAUNCH / HELPER < most;
            if is_new && self.enter(state) {
                let inside = Inside(self);
                self.work();
                drop(inside);
                (looks, last) = (0, Some(state / LAUNCH));
            } else if looks < STAYS && self.around.load(Ordering::Relaxed) <= most {
                looks += 1;
                std::hint::spin_loop();
            } else {
                self.around.fetch_sub(1, Ordering::SeqCst);
                let now = self.state.load(Ordering::SeqCst);
                let is_needed = self.around.load(Ordering::SeqCst) < self.most.load(Ordering::Relaxed);
                if now & OPEN == 0 || last == Some(now / LAUNCH) || !is_needed {
                    std::mem::forget(around);
                    return;
                }
                self.around.fetch_add(1, Ordering::SeqCst);
                looks = 0;
            }
        }
    }

    fn enter(&self, state: usize) -> bool {
        self.state.compare_exchange(state, state + HELPER, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }
}

/// A helper that is around, until it leaves, even when the work panics.
struct Around<'a>(&'a Crew);

impl Drop for Around<'_> {
    fn drop(&mut self) {
        self.0.around.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A helper at work, until it has done it, even when the work panics.
struct Inside<'a>(&'a Crew);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        let was = self.0.state.fetch_sub(HELPER, Ordering::Release);
        if was % LAUNCH == HELPER {
            self.0.caller.unpark();
        }
    }
}

/// Closes a launch when dropped, and waits until no helper is at work.
struct Closing<'a>(&'a Crew);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        let state = &self.0.state;
        let mut looks = 0;
        let mut now = state.fetch_and(!OPEN, Ordering::Acquire) & !OPEN;
        while !now.is_multiple_of(LAUNCH) {
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
