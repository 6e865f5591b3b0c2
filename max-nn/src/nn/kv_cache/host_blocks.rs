//! [`HostBlocks`]: contents of blocks that gave way, on the host.

use std::collections::{BTreeMap, HashMap};

use super::blocks::Key;

/// Contents of one block.
#[derive(Clone)]
struct Kept {
    slot: u32,
    serial: u64,
    /// When they came.
    tick: u64,
}

/// A fixed number of places for blocks of prefixes, which are found by their tokens; the ones that came first give way.
#[derive(Clone, Default)]
pub(super) struct HostBlocks {
    total: usize,
    /// The places that were ever in use.
    touched: usize,
    free: Vec<u32>,
    kept: HashMap<Key, Kept>,
    order: BTreeMap<u64, Key>,
    ticks: u64,
    pub(super) evicted: u64,
}

impl HostBlocks {
    pub(super) fn new(total: usize) -> HostBlocks {
        HostBlocks { total, ..HostBlocks::default() }
    }

    pub(super) fn total(&self) -> usize {
        self.total
    }

    pub(super) fn touched(&self) -> usize {
        self.touched
    }

    pub(super) fn len(&self) -> usize {
        self.kept.len()
    }

    /// The serial number of a prefix.
    pub(super) fn find(&self, key: &Key) -> Option<u64> {
        Some(self.kept.get(key)?.serial)
    }

    /// A place for the contents of a prefix; none, where the host has none at all.
    pub(super) fn insert(&mut self, key: Key, serial: u64) -> Option<u32> {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None if self.touched < self.total => {
                self.touched += 1;
                u32::try_from(self.touched - 1).ok()?
            }
            None => {
                let (_, oldest) = self.order.pop_first()?;
                self.evicted += 1;
                self.kept.remove(&oldest)?.slot
            }
        };
        self.place(key, Taken { slot, serial });
        Some(slot)
    }

    /// Puts back what was taken.
    pub(super) fn place(&mut self, key: Key, Taken { slot, serial }: Taken) {
        self.ticks += 1;
        self.order.insert(self.ticks, key.clone());
        self.kept.insert(key, Kept { slot, serial, tick: self.ticks });
    }

    /// Takes the contents of a prefix out; its place stays theirs until it is [freed](Self::free).
    pub(super) fn take(&mut self, key: &Key) -> Option<Taken> {
        let Kept { slot, serial, tick } = self.kept.remove(key)?;
        self.order.remove(&tick);
        Some(Taken { slot, serial })
    }

    /// Gives a place back.
    pub(super) fn free(&mut self, slot: u32) {
        self.free.push(slot);
    }

    /// Forgets what is in a place.
    pub(super) fn forget(&mut self, slot: u32) {
        let found = self.kept.iter().find(|(_, kept)| kept.slot == slot).map(|(key, _)| key.clone());
        if let Some(taken) = found.and_then(|key| self.take(&key)) {
            self.free(taken.slot);
        }
    }

    /// Forgets all contents.
    pub(super) fn clear(&mut self) {
        self.free.extend(self.kept.drain().map(|(_, kept)| kept.slot));
        self.order.clear();
    }

    /// Whether each place is in one state.
    #[cfg(test)]
    pub(super) fn check(&self) {
        assert!(self.touched <= self.total && self.order.len() == self.kept.len());
        let mut places: Vec<u32> = self.free.iter().copied().chain(self.kept.values().map(|kept| kept.slot)).collect();
        places.sort_unstable();
        assert_eq!(places, (0..self.touched as u32).collect::<Vec<_>>());
        assert!(self.kept.iter().all(|(key, kept)| self.order.get(&kept.tick) == Some(key)));
    }

    #[cfg(test)]
    pub(super) fn keys(&self) -> impl Iterator<Item = &Key> {
        self.kept.keys()
    }
}

/// Contents that were taken out.
pub(super) struct Taken {
    pub(super) slot: u32,
    pub(super) serial: u64,
}
