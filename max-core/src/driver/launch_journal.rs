//! [`Journal`]: what a GPU was given to do since it was last waited for, so that the error of a lost one names it.
//!
//! A fault shows at some later call, so nobody can say which launch it was: it is one of those behind the last that the host
//! has waited for. A launch notes its op in a ring of the device, which costs two atomic operations and no memory.

#![cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "GPUs keep journals, and without CUDA there are none"))]

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::panic::Location;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// How many launches a device remembers.
const KEPT: usize = 64;
/// How many ops a message names.
const NAMED: usize = 8;

/// What a launch was for: an op of a graph, or a kernel that was launched by itself.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub struct LaunchedOp {
    /// The name of the op, or of the kernel.
    pub op: &'static str,
    /// The line that added the op to its graph.
    pub location: Option<&'static Location<'static>>,
}

impl fmt::Display for LaunchedOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`", self.op)?;
        self.location.map_or(Ok(()), |location| write!(f, " at {location}"))
    }
}

/// The ops of which one has lost a device: those launched on its default stream since that was last waited for, the oldest
/// first. They are empty if nothing was; then a copy failed, or work on another stream.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct LaunchedOps {
    /// Each once. Of more launches than are remembered, those of the last.
    pub ops: Vec<LaunchedOp>,
    /// How many launches were before those.
    pub earlier: u64,
}

impl LaunchedOps {
    /// The op that it was, where there is no other.
    pub fn only(&self) -> Option<LaunchedOp> {
        match (&self.ops[..], self.earlier) {
            ([op], 0) => Some(*op),
            _ => None,
        }
    }
}

impl fmt::Display for LaunchedOps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = &self.ops[..self.ops.len().min(NAMED)];
        for (i, op) in named.iter().enumerate() {
            write!(f, "{}{op}", if i == 0 { "" } else { ", " })?;
        }
        match self.ops.len() - named.len() {
            0 => {}
            others => write!(f, " and {others} more")?,
        }
        match self.earlier {
            0 => Ok(()),
            earlier => write!(f, ", or one of {earlier} launches before"),
        }
    }
}

/// The number of an op among all that this process has loaded for a GPU.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Site(u32);

/// Ops and their numbers. There are as many as the program has lines that add ops.
#[derive(Default)]
struct Sites {
    ops: Vec<LaunchedOp>,
    numbers: HashMap<LaunchedOp, u32>,
}

fn with_sites<R>(f: impl FnOnce(&mut Sites) -> R) -> R {
    static SITES: Mutex<Option<Sites>> = Mutex::new(None);
    f(SITES.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_default())
}

impl Site {
    pub fn of(op: &'static str, location: Option<&'static Location<'static>>) -> Site {
        let op = LaunchedOp { op, location };
        with_sites(|Sites { ops, numbers }| match numbers.entry(op) {
            Entry::Occupied(known) => Site(*known.get()),
            Entry::Vacant(new) => {
                ops.push(op);
                Site(*new.insert(ops.len() as u32 - 1))
            }
        })
    }
}

/// The last launches on a device's default stream.
pub(crate) struct Journal {
    sites: [AtomicU32; KEPT],
    /// How many there were.
    count: AtomicU64,
    /// How many of them were waited for.
    done: AtomicU64,
}

impl Journal {
    pub fn new() -> Journal {
        Journal { sites: [const { AtomicU32::new(0) }; KEPT], count: AtomicU64::new(0), done: AtomicU64::new(0) }
    }

    /// Notes a launch, before it is made.
    pub fn note(&self, site: Site) {
        let place = self.count.fetch_add(1, Ordering::Relaxed) as usize % KEPT;
        self.sites[place].store(site.0, Ordering::Relaxed);
    }

    /// How many launches there were.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Says that so many launches have been waited for, without a fault.
    pub fn wait(&self, count: u64) {
        self.done.fetch_max(count, Ordering::Relaxed);
    }

    /// What was launched and not waited for.
    pub fn pending(&self) -> LaunchedOps {
        let (count, done) = (self.count(), self.done.load(Ordering::Relaxed));
        let first = done.max(count.saturating_sub(KEPT as u64));
        let mut pending = LaunchedOps { ops: Vec::new(), earlier: first - done };
        with_sites(|Sites { ops, .. }| {
            for launch in first..count {
                let site = self.sites[launch as usize % KEPT].load(Ordering::Relaxed);
                let op = ops.get(site as usize).filter(|op| !pending.ops.contains(op));
                pending.ops.extend(op);
            }
        });
        pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_waited_for_is_remembered() {
        let journal = Journal::new();
        assert_eq!((journal.pending(), journal.pending().to_string()), (LaunchedOps::default(), String::new()));
        let location = Location::caller();
        let [add, relu] = [Site::of("add", Some(location)), Site::of("relu", None)];
        assert_eq!(Site::of("relu", None).0, relu.0);
        journal.note(add);
        let seen = journal.count();
        journal.note(relu);
        journal.note(add);
        assert_eq!(journal.pending().to_string(), format!("`add` at {location}, `relu`"));
        assert_eq!(journal.pending().only(), None);
        journal.wait(seen);
        assert_eq!(journal.pending().ops[0], LaunchedOp { op: "relu", location: None });
        journal.wait(seen + 1);
        assert_eq!(journal.pending().only(), Some(LaunchedOp { op: "add", location: Some(location) }));
        // Who waited for less is later.
        journal.wait(seen);
        assert_eq!(journal.pending().ops.len(), 1);
        journal.wait(journal.count());
        assert_eq!(journal.pending().ops, []);
    }

    #[test]
    fn messages_are_short() {
        let names = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"];
        let journal = Journal::new();
        (0..KEPT + 5).for_each(|_| journal.note(Site::of("z", None)));
        assert_eq!(
            (journal.pending().to_string(), journal.pending().only()),
            ("`z`, or one of 5 launches before".to_owned(), None)
        );
        names.iter().for_each(|name| journal.note(Site::of(name, None)));
        assert_eq!(journal.pending().ops.len(), 11);
        let text = journal.pending().to_string();
        assert_eq!(text, "`z`, `a`, `b`, `c`, `d`, `e`, `f`, `g` and 3 more, or one of 15 launches before");
    }
}
