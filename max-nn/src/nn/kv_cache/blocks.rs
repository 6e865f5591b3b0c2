//! [`BlockPool`]: blocks, which of them are in use, and which hold tokens that a sequence may begin with.

use std::collections::{BTreeMap, HashMap};

use super::BlockTransfer;
use super::host_blocks::HostBlocks;

/// What a block of a prefix holds: its tokens, behind those of the block that has this serial number. Serial numbers are never
/// used again, so that equal keys are equal prefixes, and not only equal hashes.
pub(super) type Key = (u64, Box<[u32]>);

/// The serial number of what is before the first block.
pub(super) const ROOT: u64 = 0;

#[derive(Clone, Default)]
struct Block {
    references: u32,
    /// Where the prefix map has it, and its serial number.
    key: Option<(Key, u64)>,
    /// When it was last given back.
    tick: u64,
}

/// A fixed number of blocks. Each is fresh, referenced by sequences, or free; a free one that holds a known prefix is found by it
/// until its memory is wanted for something else, the one that was given back first before others. Its contents go to the host then,
/// as far as there is place, and are found there.
#[derive(Clone, Default)]
pub(super) struct BlockPool {
    /// Those that were ever in use.
    blocks: Vec<Block>,
    total: usize,
    /// Free ones that hold nothing.
    free: Vec<u32>,
    prefixes: HashMap<Key, u32>,
    /// Free ones that hold a known prefix, by when they were given back.
    unreferenced: BTreeMap<u64, u32>,
    ticks: u64,
    serials: u64,
    pub(super) evicted: u64,
    pub(super) host: HostBlocks,
    /// What is to be moved before anything is written.
    pub(super) transfers: Vec<BlockTransfer>,
}

/// Where a prefix is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place {
    Block(u32),
    Host,
}

impl BlockPool {
    /// Of so many blocks, and so many places on the host.
    pub(super) fn new(total: usize, host: usize) -> BlockPool {
        BlockPool { total, host: HostBlocks::new(host), ..BlockPool::default() }
    }

    pub(super) fn total(&self) -> usize {
        self.total
    }

    /// The blocks that were ever in use: the memory that there has to be.
    pub(super) fn touched(&self) -> usize {
        self.blocks.len()
    }

    /// How many can be taken.
    pub(super) fn available(&self) -> usize {
        self.total - self.blocks.len() + self.free.len() + self.unreferenced.len()
    }

    pub(super) fn references(&self, block: u32) -> u32 {
        self.blocks.get(block as usize).map_or(0, |block| block.references)
    }

    /// A block for new contents, with one reference.
    pub(super) fn take(&mut self) -> Option<u32> {
        let block = match self.free.pop() {
            Some(block) => block,
            None if self.blocks.len() < self.total => {
                self.blocks.push(Block::default());
                u32::try_from(self.blocks.len() - 1).ok()?
            }
            None => {
                let (_, block) = self.unreferenced.pop_first()?;
                self.evicted += 1;
                if let Some((key, serial)) = self.forget(block)
                    && let Some(host) = self.host.insert(key, serial)
                {
                    self.transfers.push(BlockTransfer::ToHost { block, host });
                }
                block
            }
        };
        self.blocks.get_mut(block as usize)?.references = 1;
        Some(block)
    }

    /// One more reference.
    pub(super) fn share(&mut self, block: u32) {
        let Some(entry) = self.blocks.get_mut(block as usize) else { return };
        if entry.references == 0 {
            self.unreferenced.remove(&entry.tick);
        }
        entry.references += 1;
    }

    /// One reference less.
    pub(super) fn give_back(&mut self, block: u32) {
        let Some(entry) = self.blocks.get_mut(block as usize) else { return };
        entry.references = entry.references.saturating_sub(1);
        if entry.references > 0 {
            return;
        }
        if entry.key.is_some() {
            self.ticks += 1;
            entry.tick = self.ticks;
            self.unreferenced.insert(self.ticks, block);
        } else {
            self.free.push(block);
        }
    }

    /// Where `tokens` behind the block with the serial number `parent` are, and their own number.
    pub(super) fn find(&self, parent: u64, tokens: &[u32]) -> Option<(Place, u64)> {
        let key = (parent, tokens.into());
        match self.prefixes.get(&key) {
            Some(block) => {
                let (_, serial) = self.blocks.get(*block as usize)?.key.as_ref()?;
                Some((Place::Block(*block), *serial))
            }
            None => Some((Place::Host, self.host.find(&key)?)),
        }
    }

    /// Lets a block that is in use be found by its tokens; gives its serial number, which is the one that they have on the host if they
    /// are there.
    pub(super) fn register(&mut self, block: u32, parent: u64, tokens: &[u32]) -> u64 {
        self.forget(block);
        let key: Key = (parent, tokens.into());
        let serial = match self.host.take(&key) {
            Some(taken) => {
                self.host.free(taken.slot);
                taken.serial
            }
            None => {
                self.serials += 1;
                self.serials
            }
        };
        self.hold(block, key, serial);
        serial
    }

    /// A block, with one reference, to which the contents of a prefix come back from the host.
    pub(super) fn restore(&mut self, parent: u64, tokens: &[u32]) -> Option<u32> {
        let key: Key = (parent, tokens.into());
        // Taken first: what gives way for it needs a place on the host, which must not be this one.
        let taken = self.host.take(&key)?;
        match self.take() {
            Some(block) => {
                self.transfers.push(BlockTransfer::FromHost { host: taken.slot, block });
                self.host.free(taken.slot);
                self.hold(block, key, taken.serial);
                Some(block)
            }
            None => {
                self.host.place(key, taken);
                None
            }
        }
    }

    fn hold(&mut self, block: u32, key: Key, serial: u64) {
        self.prefixes.insert(key.clone(), block);
        if let Some(entry) = self.blocks.get_mut(block as usize) {
            entry.key = Some((key, serial));
        }
    }

    /// Its contents are no prefix any more: which one it was.
    pub(super) fn forget(&mut self, block: u32) -> Option<(Key, u64)> {
        let (key, serial) = self.blocks.get_mut(block as usize)?.key.take()?;
        self.prefixes.remove(&key);
        Some((key, serial))
    }

    /// Lets nobody find what transfers that failed should have moved.
    pub(super) fn discard(&mut self, transfers: &[BlockTransfer]) {
        for transfer in transfers {
            match *transfer {
                BlockTransfer::Copy { to, .. } => drop(self.forget(to)),
                BlockTransfer::FromHost { block, .. } => drop(self.forget(block)),
                BlockTransfer::ToHost { host, .. } => self.host.forget(host),
            }
        }
    }

    /// Forgets all prefixes that no sequence uses.
    pub(super) fn clear(&mut self) {
        self.host.clear();
        while let Some((_, block)) = self.unreferenced.pop_first() {
            self.forget(block);
            self.free.push(block);
        }
    }

    /// Whether each block is in one state, and every prefix is found at the block that holds it.
    #[cfg(test)]
    pub(super) fn check(&self) {
        assert!(self.blocks.len() <= self.total);
        let mut states = vec![0; self.blocks.len()];
        self.free.iter().chain(self.unreferenced.values()).for_each(|block| states[*block as usize] += 1);
        for (i, (block, free)) in self.blocks.iter().zip(states).enumerate() {
            assert_eq!(free, usize::from(block.references == 0), "block {i} with {} references", block.references);
            if let Some((key, _)) = &block.key {
                assert_eq!(self.prefixes.get(key), Some(&(i as u32)));
            }
            let unreferenced = block.references == 0 && block.key.is_some();
            assert_eq!(self.unreferenced.get(&block.tick) == Some(&(i as u32)), unreferenced);
        }
        assert!(self.prefixes.values().all(|block| self.blocks[*block as usize].key.is_some()));
        self.host.check();
        assert!(self.host.keys().all(|key| !self.prefixes.contains_key(key)));
    }
}
