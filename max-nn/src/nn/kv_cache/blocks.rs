//! [`BlockPool`]: blocks, which of them are in use, and which hold tokens that a sequence may begin with.

use std::collections::{BTreeMap, HashMap};

/// What a block of a prefix holds: its tokens, behind those of the block that has this serial number. Serial numbers are never
/// used again, so that equal keys are equal prefixes, and not only equal hashes.
type Key = (u64, Box<[u32]>);

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
/// until its memory is wanted for something else, the one that was given back first before others.
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
}

impl BlockPool {
    pub(super) fn new(total: usize) -> BlockPool {
        BlockPool { total, ..BlockPool::default() }
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
                self.forget(block);
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

    /// The block that holds `tokens` behind the block with the serial number `parent`, and its own number.
    pub(super) fn find(&self, parent: u64, tokens: &[u32]) -> Option<(u32, u64)> {
        let block = *self.prefixes.get(&(parent, tokens.into()))?;
        let (_, serial) = self.blocks.get(block as usize)?.key.as_ref()?;
        Some((block, *serial))
    }

    /// Lets a block that is in use be found by its tokens; gives its serial number.
    pub(super) fn register(&mut self, block: u32, parent: u64, tokens: &[u32]) -> u64 {
        self.forget(block);
        self.serials += 1;
        let key: Key = (parent, tokens.into());
        self.prefixes.insert(key.clone(), block);
        if let Some(entry) = self.blocks.get_mut(block as usize) {
            entry.key = Some((key, self.serials));
        }
        self.serials
    }

    /// Its contents are no prefix any more.
    pub(super) fn forget(&mut self, block: u32) {
        let Some(entry) = self.blocks.get_mut(block as usize) else { return };
        if let Some((key, _)) = entry.key.take() {
            self.prefixes.remove(&key);
        }
    }

    /// Forgets all prefixes that no sequence uses.
    pub(super) fn clear(&mut self) {
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
    }
}
