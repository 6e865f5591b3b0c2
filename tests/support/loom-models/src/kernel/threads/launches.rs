//! Launches of a thread and its team.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use loom::cell::Cell;
use loom::thread::JoinHandle;

use super::ranges::{FromBothEnds, InOrder};
use super::sync::{AtomicUsize, Ordering};
use super::team::Team;
use crate::kernel::model;

/// A thread's team, and the helpers that it has invited.
struct Caller {
    team: Arc<Team>,
    helpers: std::cell::RefCell<Vec<JoinHandle<()>>>,
}

impl Caller {
    fn new() -> Caller {
        Caller { team: Team::new(), helpers: Default::default() }
    }

    fn run(&self, helpers: usize, work: impl Fn() + Sync) {
        self.team.run(helpers, &work, |team| {
            let helper = loom::thread::spawn(move || _ = catch_unwind(AssertUnwindSafe(|| team.help())));
            self.helpers.borrow_mut().push(helper);
        });
    }

    /// All helpers leave when there is no more to do.
    fn end(self) {
        self.helpers.into_inner().into_iter().for_each(|helper| helper.join().unwrap());
    }
}

/// Units that must be done once each; whoever does one writes, and whoever reads it must know that it is done.
struct Units(Vec<Cell<usize>>);

// SAFETY: loom says so where two threads access a cell, and nothing orders them.
unsafe impl Sync for Units {}

impl Units {
    fn new(units: usize) -> Units {
        Units((0..units).map(|_| Cell::new(0)).collect())
    }

    fn work(&self, (first, behind): (usize, usize)) {
        self.0[first..behind].iter().for_each(|unit| unit.set(unit.get() + 1));
    }

    #[track_caller]
    fn are_done(&self, times: usize) {
        assert!(self.0.iter().all(|unit| unit.get() == times), "each unit is done {times} times");
    }
}

#[test]
fn each_unit_is_done_once_and_the_caller_sees_it() {
    model(3, || {
        let (caller, units) = (Caller::new(), Units::new(3));
        let ranges = InOrder::new(3, 1, 2);
        caller.run(1, || {
            while let Some(range) = ranges.take() {
                units.work(range);
            }
        });
        units.are_done(1);
        caller.end();
    });
}

#[test]
fn units_are_taken_from_both_ends() {
    model(3, || {
        let (caller, units) = (Caller::new(), Units::new(5));
        let ranges = FromBothEnds::new(5, 2);
        let here = loom::thread::current().id();
        caller.run(1, || {
            let is_caller = loom::thread::current().id() == here;
            while let Some(range) = ranges.take(is_caller) {
                units.work(range);
            }
        });
        units.are_done(1);
        caller.end();
    });
}

#[test]
fn two_helpers_share_a_launch() {
    model(2, || {
        let (caller, units) = (Caller::new(), Units::new(3));
        let ranges = InOrder::new(3, 1, 3);
        caller.run(2, || {
            while let Some(range) = ranges.take() {
                units.work(range);
            }
        });
        units.are_done(1);
        caller.end();
    });
}

#[test]
fn a_helper_leaves_or_stays_while_the_next_launch_begins() {
    model(2, || {
        let (caller, units) = (Caller::new(), Units::new(2));
        for launch in 1..=2 {
            // Of the caller's stack: what a helper touches after the launch is another launch's, or nothing.
            let ranges = InOrder::new(2, 1, 2);
            caller.run(1, || {
                while let Some(range) = ranges.take() {
                    units.work(range);
                }
            });
            units.are_done(launch);
        }
        caller.end();
    });
}

#[test]
fn fewer_helpers_work_than_are_around() {
    model(1, || {
        let caller = Caller::new();
        for most in [2, 1] {
            let (at_work, ranges) = (AtomicUsize::new(0), InOrder::new(2, 1, 2));
            caller.run(most, || {
                // The caller and its helpers.
                assert!(at_work.fetch_add(1, Ordering::Relaxed) <= most, "more helpers are at work than may be");
                while ranges.take().is_some() {}
                at_work.fetch_sub(1, Ordering::Relaxed);
            });
        }
        caller.end();
    });
}

#[test]
fn a_launch_ends_when_work_panics() {
    for panics_here in [true, false] {
        model(2, move || {
            let (caller, here) = (Caller::new(), loom::thread::current().id());
            let done = Units::new(1);
            let ranges = InOrder::new(2, 1, 2);
            let launch = catch_unwind(AssertUnwindSafe(|| {
                caller.run(1, || {
                    while let Some((first, _)) = ranges.take() {
                        if (loom::thread::current().id() == here) == panics_here {
                            std::panic::resume_unwind(Box::new("work panics"));
                        }
                        if first == 0 {
                            done.work((0, 1));
                        }
                    }
                });
            }));
            // Nobody is at work any more: what the launch borrowed may go.
            assert!(launch.is_ok() || panics_here);
            assert!(done.0[0].get() <= 1);
            // The team serves the next launch.
            let ranges = InOrder::new(1, 1, 2);
            let again = Units::new(1);
            caller.run(1, || {
                while let Some(range) = ranges.take() {
                    again.work(range);
                }
            });
            again.are_done(1);
            caller.end();
        });
    }
}
