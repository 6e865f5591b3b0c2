//! The protocol by which a thread and its helpers share a launch.
//!
//! Its models in `tests/support/loom-models` try all orders in which its threads can go on.

use std::sync::Arc;

use super::sync::{AtomicUsize, Cell, Ordering, Thread, current, looks, park, spin_loop, stays};

/// The threads that help a thread. They stay for a moment after they have helped: to wake a thread that sleeps takes as
/// long as many a launch, and one launch follows the other.
pub(in crate::kernel) struct Team {
    /// The number of the launch times [`LAUNCH`], [`HELPER`] for each helper at work, and [`OPEN`] while more may come.
    state: AtomicUsize,
    /// What there is to do, for as long as a launch is open or has helpers at work.
    work: Cell<*const (dyn Fn() + Sync)>,
    /// Helpers that are at work, stay, or were invited and have not come yet.
    around: AtomicUsize,
    /// The most helpers that may be at work.
    most: AtomicUsize,
    caller: Thread,
}

// SAFETY: the work may be called from any thread; it is changed only while no launch is open and no helper at work.
unsafe impl Send for Team {}
// SAFETY: as above.
unsafe impl Sync for Team {}

const OPEN: usize = 1;
const HELPER: usize = 2;
const LAUNCH: usize = 1 << 20;
/// Looks at the state before the caller sleeps: about 20 µs, longer than most helpers take for their last range.
const LOOKS: usize = looks(500);

impl Team {
    pub(in crate::kernel) fn new() -> Arc<Self> {
        let work: *const (dyn Fn() + Sync) = &|| {};
        Arc::new(Team {
            state: AtomicUsize::new(0),
            work: Cell::new(work),
            around: AtomicUsize::new(0),
            most: AtomicUsize::new(0),
            caller: current(),
        })
    }

    /// Calls `work` here and on helpers. Each that is not around gets an invitation, to call [`help`](Self::help) on another thread.
    pub(in crate::kernel) fn run(
        self: &Arc<Self>,
        helpers: usize,
        work: &(dyn Fn() + Sync),
        invite: impl Fn(Arc<Self>),
    ) {
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
            invite(Arc::clone(self));
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
    pub(in crate::kernel) fn help(&self) {
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
            } else if looks < stays() && self.around.load(Ordering::Relaxed) <= most {
                looks += 1;
                spin_loop();
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
struct Around<'a>(&'a Team);

impl Drop for Around<'_> {
    fn drop(&mut self) {
        self.0.around.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A helper at work, until it has done it, even when the work panics.
struct Inside<'a>(&'a Team);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        let was = self.0.state.fetch_sub(HELPER, Ordering::Release);
        if was % LAUNCH == HELPER {
            self.0.caller.unpark();
        }
    }
}

/// Closes a launch when dropped, and waits until no helper is at work.
struct Closing<'a>(&'a Team);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        let state = &self.0.state;
        let mut looks = 0;
        let mut now = state.fetch_and(!OPEN, Ordering::Acquire) & !OPEN;
        while !now.is_multiple_of(LAUNCH) {
            if looks < LOOKS {
                looks += 1;
                spin_loop();
            } else {
                park();
            }
            now = state.load(Ordering::Acquire);
        }
    }
}
