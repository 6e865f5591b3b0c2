//! [`PagedKvCacheManager`]: which blocks of a cache belong to which sequence.

use std::collections::HashMap;

use super::KvCacheParams;
use super::blocks::{BlockPool, Place, ROOT};

/// Names a sequence.
pub type RequestId = u64;

/// Why a sequence could not get what it asked for. Nothing was changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KvCacheError {
    /// There is a sequence of that name.
    #[error("kv cache: there is a sequence {0} already: release it first")]
    Claimed(RequestId),
    /// There is no sequence of that name.
    #[error("kv cache: there is no sequence {0}: claim it first")]
    Unknown(RequestId),
    /// Other sequences have the blocks: some of them have to end first.
    #[error(
        "kv cache: sequence {request} needs {needed} more blocks, and {available} are free: release a sequence first"
    )]
    Full {
        /// The sequence.
        request: RequestId,
        /// The blocks that it needs beside those that it has.
        needed: usize,
        /// The blocks that no sequence has.
        available: usize,
    },
    /// The whole cache is smaller.
    #[error(
        "kv cache: a sequence of {needed} blocks of {page_size} tokens does not fit a cache of {total}: give the cache more \
         memory, or shorten the sequence"
    )]
    TooLong {
        /// The blocks of the sequence.
        needed: usize,
        /// The blocks of the cache.
        total: usize,
        /// The tokens of a block.
        page_size: usize,
    },
}

/// Contents of a block that have to be moved before the next step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlockTransfer {
    /// The block is shared, and its sequence is about to write to it.
    Copy {
        /// Where they are.
        from: u32,
        /// Where they go.
        to: u32,
    },
    /// The block's memory is wanted for something else.
    ToHost {
        /// Where they are.
        block: u32,
        /// Where they go.
        host: u32,
    },
    /// A sequence begins with them.
    FromHost {
        /// Where they are.
        host: u32,
        /// Where they go.
        block: u32,
    },
}

/// What a manager has done so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct KvCacheMetrics {
    /// The tokens of sequences that asked for a prefix.
    pub prefix_queried_tokens: u64,
    /// Those of them whose keys and values were there.
    pub prefix_hit_tokens: u64,
    /// The blocks of prefixes that gave way to other contents.
    pub evicted_blocks: u64,
    /// The blocks that were copied because they were shared.
    pub copied_blocks: u64,
    /// The blocks of prefixes that went to the host instead of being lost.
    pub swapped_out_blocks: u64,
    /// Those that came back because a sequence began with them.
    pub swapped_in_blocks: u64,
    /// Those that gave way to others there, and are lost.
    pub host_evicted_blocks: u64,
}

#[derive(Clone, Default)]
struct Sequence {
    /// The serial number of what is before its first block.
    root: u64,
    blocks: Vec<u32>,
    /// The tokens whose keys and values are there.
    length: usize,
    /// The serial numbers of the blocks that are full, as far as they are known prefixes.
    serials: Vec<u64>,
}

/// Which blocks of a cache belong to which sequence. A block holds keys and values of `page_size` tokens, of all layers.
///
/// Sequences that begin with the same tokens share the blocks of these, also with sequences that are gone: a full block is found
/// by its tokens and those before it, until its memory is wanted and nobody uses it, the least recently used first. Blocks are
/// never shared for writing: what is written to a shared block goes to a copy.
///
/// With [places on the host](Self::host_blocks), a block that gives way goes there, and comes back when a sequence begins with it.
///
/// ```
/// # extern crate max_nn as max;
/// use max::nn::kv_cache::PagedKvCacheManager;
///
/// let mut manager = PagedKvCacheManager::new(8, 4, true);
/// let prompt = [1, 2, 3, 4, 5, 6];
/// manager.claim(0)?;
/// assert_eq!(manager.reuse(0, &prompt)?, 0);
/// assert!(manager.reserve(0, prompt.len())?.is_empty());
/// manager.step(0, &prompt)?;
/// // A second sequence has the first block, and computes what is behind it.
/// manager.claim(1)?;
/// assert_eq!(manager.reuse(1, &[1, 2, 3, 4, 9])?, 4);
/// assert_eq!(manager.blocks(1).unwrap(), &manager.blocks(0).unwrap()[..1]);
/// manager.release(0)?;
/// manager.release(1)?;
/// assert_eq!(manager.free_blocks(), 8);
/// # Ok::<(), max::nn::kv_cache::KvCacheError>(())
/// ```
#[derive(Clone)]
pub struct PagedKvCacheManager {
    page_size: usize,
    prefix_caching: bool,
    pool: BlockPool,
    sequences: HashMap<RequestId, Sequence>,
    metrics: KvCacheMetrics,
}

impl PagedKvCacheManager {
    /// Of a cache of so many blocks, of `page_size` tokens each (at least one).
    pub fn new(total_blocks: usize, page_size: usize, prefix_caching: bool) -> PagedKvCacheManager {
        PagedKvCacheManager {
            page_size: page_size.max(1),
            prefix_caching,
            pool: BlockPool::new(total_blocks.min(u32::MAX as usize), 0),
            sequences: HashMap::new(),
            metrics: KvCacheMetrics::default(),
        }
    }

    /// This cache, still empty, with so many places on the host for blocks that give way; without prefix caching none do.
    #[must_use]
    pub fn host_blocks(self, host_blocks: usize) -> PagedKvCacheManager {
        let total = self.pool.total();
        PagedKvCacheManager { pool: BlockPool::new(total, host_blocks.min(u32::MAX as usize)), ..self }
    }

    /// The bytes of a block in all layers.
    pub fn bytes_per_block(layers: &[KvCacheParams]) -> usize {
        layers.iter().map(KvCacheParams::bytes_per_page).sum()
    }

    /// The bytes of a cache for `max_batch_size` sequences of `max_seq_len` tokens, in whole blocks, and no more than are
    /// available.
    pub fn estimated_memory_size(
        layers: &[KvCacheParams],
        max_batch_size: usize,
        max_seq_len: usize,
        available_cache_memory: usize,
    ) -> usize {
        let page_size = layers.iter().map(|layer| layer.page_size).max().unwrap_or(1).max(1);
        let block = PagedKvCacheManager::bytes_per_block(layers).max(1);
        let wanted = max_batch_size.saturating_mul(max_seq_len.div_ceil(page_size));
        wanted.min(available_cache_memory / block).saturating_mul(block)
    }

    /// How many sequences of `max_seq_len` tokens the memory holds; at least one.
    pub fn infer_optimal_batch_size(
        layers: &[KvCacheParams],
        max_seq_len: usize,
        available_cache_memory: usize,
    ) -> usize {
        let one = PagedKvCacheManager::estimated_memory_size(layers, 1, max_seq_len, usize::MAX).max(1);
        (available_cache_memory / one).max(1)
    }

    /// The tokens of a block.
    pub fn page_size(&self) -> usize {
        self.page_size
    }

    /// The blocks of the cache.
    pub fn total_blocks(&self) -> usize {
        self.pool.total()
    }

    /// The blocks that no sequence has.
    pub fn free_blocks(&self) -> usize {
        self.pool.available()
    }

    /// The blocks that were ever in use: the first ones, which have to have memory.
    pub fn touched_blocks(&self) -> usize {
        self.pool.touched()
    }

    /// The places on the host, and how many of them have contents.
    pub fn host_usage(&self) -> (usize, usize) {
        (self.pool.host.total(), self.pool.host.len())
    }

    /// The places on the host that were ever in use: the first ones, which have to have memory.
    pub fn touched_host_blocks(&self) -> usize {
        self.pool.host.touched()
    }

    /// What was done so far.
    pub fn metrics(&self) -> KvCacheMetrics {
        let (evicted_blocks, host_evicted_blocks) = (self.pool.evicted, self.pool.host.evicted);
        KvCacheMetrics { evicted_blocks, host_evicted_blocks, ..self.metrics }
    }

    /// Whether there is such a sequence.
    pub fn contains(&self, request: RequestId) -> bool {
        self.sequences.contains_key(&request)
    }

    /// The blocks of a sequence, in order.
    pub fn blocks(&self, request: RequestId) -> Option<&[u32]> {
        Some(&self.sequences.get(&request)?.blocks)
    }

    /// The tokens of a sequence whose keys and values are in the cache.
    pub fn length(&self, request: RequestId) -> Option<usize> {
        Some(self.sequences.get(&request)?.length)
    }

    /// Begins a sequence without tokens.
    ///
    /// # Errors
    /// When there is one of that name.
    pub fn claim(&mut self, request: RequestId) -> Result<(), KvCacheError> {
        self.claim_apart(request, 0)
    }

    /// As [`claim`](Self::claim), of a sequence that shares prefixes with those of the same `group` alone: one whose keys and values are
    /// others, as those with an adapter are. The group of [`claim`](Self::claim) is 0.
    ///
    /// # Errors
    /// As [`claim`](Self::claim).
    pub fn claim_apart(&mut self, request: RequestId, group: u64) -> Result<(), KvCacheError> {
        if self.contains(request) {
            return Err(KvCacheError::Claimed(request));
        }
        // Serial numbers of blocks count from below.
        let root = if group == 0 { ROOT } else { u64::MAX - group };
        self.sequences.insert(request, Sequence { root, ..Sequence::default() });
        Ok(())
    }

    /// Gives a sequence without tokens the blocks that hold what `tokens` begin with; not the last token, whose logits are wanted.
    /// Says how many tokens it has now. Blocks may have to come from the host first: see [`take_transfers`](Self::take_transfers).
    ///
    /// # Errors
    /// When there is no such sequence.
    pub fn reuse(&mut self, request: RequestId, tokens: &[u32]) -> Result<usize, KvCacheError> {
        let sequence = self.sequences.get_mut(&request).ok_or(KvCacheError::Unknown(request))?;
        if !sequence.blocks.is_empty() || !self.prefix_caching {
            return Ok(sequence.length);
        }
        let (mut parent, mut found) = (sequence.root, Vec::new());
        for part in tokens.get(..tokens.len().saturating_sub(1)).unwrap_or_default().chunks_exact(self.page_size) {
            let Some((place, serial)) = self.pool.find(parent, part) else { break };
            // Before others come from the host, which must not take the place of these.
            if let Place::Block(block) = place {
                self.pool.share(block);
            }
            found.push((place, parent, part, serial));
            parent = serial;
        }
        let mut found = found.into_iter();
        for (place, parent, part, serial) in found.by_ref() {
            let block = match place {
                Place::Block(block) => Some(block),
                Place::Host => self.pool.restore(parent, part),
            };
            let Some(block) = block else { break };
            sequence.blocks.push(block);
            sequence.serials.push(serial);
        }
        for (place, ..) in found {
            if let Place::Block(block) = place {
                self.pool.give_back(block);
            }
        }
        sequence.length = sequence.blocks.len() * self.page_size;
        self.metrics.prefix_queried_tokens += tokens.len() as u64;
        self.metrics.prefix_hit_tokens += sequence.length as u64;
        Ok(sequence.length)
    }

    /// What is to be moved, in order, before anything else is written: since it was last asked, here or by [`reserve`](Self::reserve).
    pub fn take_transfers(&mut self) -> Vec<BlockTransfer> {
        let transfers = std::mem::take(&mut self.pool.transfers);
        for transfer in &transfers {
            match transfer {
                BlockTransfer::Copy { .. } => self.metrics.copied_blocks += 1,
                BlockTransfer::ToHost { .. } => self.metrics.swapped_out_blocks += 1,
                BlockTransfer::FromHost { .. } => self.metrics.swapped_in_blocks += 1,
            }
        }
        transfers
    }

    /// Lets nobody find what transfers that failed should have moved. Sequences whose blocks are among them have to be
    /// [truncated](Self::truncate).
    pub fn discard(&mut self, transfers: &[BlockTransfer]) {
        self.pool.discard(transfers);
    }

    /// Gives a sequence blocks for `length` tokens, those that it has included. What it says is to be moved, in order, before anything
    /// else is written.
    ///
    /// # Errors
    /// When there is no such sequence; when there are not as many blocks.
    pub fn reserve(&mut self, request: RequestId, length: usize) -> Result<Vec<BlockTransfer>, KvCacheError> {
        let sequence = self.sequences.get_mut(&request).ok_or(KvCacheError::Unknown(request))?;
        let wanted = length.div_ceil(self.page_size);
        if wanted > self.pool.total() {
            let (total, page_size) = (self.pool.total(), self.page_size);
            return Err(KvCacheError::TooLong { needed: wanted, total, page_size });
        }
        // The block that is written to next, if it has tokens already and is another's as well.
        let first = sequence.length / self.page_size;
        let written = sequence.blocks.get(first).copied().filter(|_| length > sequence.length);
        let shared = written.filter(|block| self.pool.references(*block) > 1);
        let needed = wanted.saturating_sub(sequence.blocks.len()) + usize::from(shared.is_some());
        let available = self.pool.available();
        if needed > available {
            return Err(KvCacheError::Full { request, needed, available });
        }
        match (written, shared) {
            (_, Some(from)) => {
                if let (Some(to), Some(place)) = (self.pool.take(), sequence.blocks.get_mut(first)) {
                    *place = to;
                    self.pool.give_back(from);
                    self.pool.transfers.push(BlockTransfer::Copy { from, to });
                }
            }
            // Its own: what is behind its tokens is no longer what others may look for.
            (Some(block), None) => drop(self.pool.forget(block)),
            (None, None) => {}
        }
        while sequence.blocks.len() < wanted
            && let Some(block) = self.pool.take()
        {
            sequence.blocks.push(block);
        }
        Ok(self.take_transfers())
    }

    /// Says that keys and values of `tokens`, all of the sequence's so far, are in the cache: full blocks of them can be shared.
    ///
    /// # Errors
    /// When there is no such sequence, or it has no blocks for as many tokens.
    pub fn step(&mut self, request: RequestId, tokens: &[u32]) -> Result<(), KvCacheError> {
        let sequence = self.sequences.get_mut(&request).ok_or(KvCacheError::Unknown(request))?;
        let needed = tokens.len().div_ceil(self.page_size);
        if needed > sequence.blocks.len() {
            let (needed, available) = (needed - sequence.blocks.len(), self.pool.available());
            return Err(KvCacheError::Full { request, needed, available });
        }
        sequence.length = tokens.len();
        if !self.prefix_caching {
            return Ok(());
        }
        for (i, part) in tokens.chunks_exact(self.page_size).enumerate().skip(sequence.serials.len()) {
            let parent = sequence.serials.last().copied().unwrap_or(sequence.root);
            let Some(own) = sequence.blocks.get_mut(i) else { break };
            let serial = match self.pool.find(parent, part) {
                // Somebody else was first: one block serves both.
                Some((Place::Block(block), serial)) => {
                    self.pool.share(block);
                    self.pool.give_back(std::mem::replace(own, block));
                    serial
                }
                Some((Place::Host, _)) | None => self.pool.register(*own, parent, part),
            };
            sequence.serials.push(serial);
        }
        Ok(())
    }

    /// Lets a sequence have its first `length` tokens only, and gives back the blocks of the rest.
    ///
    /// # Errors
    /// When there is no such sequence.
    pub fn truncate(&mut self, request: RequestId, length: usize) -> Result<(), KvCacheError> {
        let sequence = self.sequences.get_mut(&request).ok_or(KvCacheError::Unknown(request))?;
        sequence.length = sequence.length.min(length);
        sequence.serials.truncate(sequence.length / self.page_size);
        let kept = sequence.length.div_ceil(self.page_size).min(sequence.blocks.len());
        // The last first: it is the least likely to be a prefix of others.
        for block in sequence.blocks.split_off(kept).into_iter().rev() {
            self.pool.give_back(block);
        }
        Ok(())
    }

    /// A sequence with the tokens of another. They share all blocks until one of them writes.
    ///
    /// # Errors
    /// When there is no such sequence, or there is one of the new name.
    pub fn fork(&mut self, request: RequestId, copy: RequestId) -> Result<(), KvCacheError> {
        if self.contains(copy) {
            return Err(KvCacheError::Claimed(copy));
        }
        let mut sequence = self.sequences.get(&request).ok_or(KvCacheError::Unknown(request))?.clone();
        sequence.blocks.truncate(sequence.length.div_ceil(self.page_size));
        sequence.blocks.iter().for_each(|block| self.pool.share(*block));
        self.sequences.insert(copy, sequence);
        Ok(())
    }

    /// Ends a sequence.
    ///
    /// # Errors
    /// When there is no such sequence.
    pub fn release(&mut self, request: RequestId) -> Result<(), KvCacheError> {
        self.truncate(request, 0)?;
        self.sequences.remove(&request);
        Ok(())
    }

    /// The table of the blocks of sequences, `[sequences, columns]`, as long as the longest; behind the blocks of a sequence stand
    /// numbers that no block has.
    ///
    /// # Errors
    /// When there is no such sequence.
    pub fn lookup_table(&self, requests: &[RequestId]) -> Result<(Vec<u32>, usize), KvCacheError> {
        let blocks = |request: &RequestId| self.blocks(*request).ok_or(KvCacheError::Unknown(*request));
        let rows = requests.iter().map(blocks).collect::<Result<Vec<_>, _>>()?;
        let columns = rows.iter().map(|row| row.len()).max().unwrap_or(0);
        let padded =
            |row: &&[u32]| row.iter().copied().chain(std::iter::repeat(u32::MAX)).take(columns).collect::<Vec<_>>();
        Ok((rows.iter().flat_map(padded).collect(), columns))
    }

    /// Forgets the prefixes that no sequence has.
    pub fn clear_prefix_cache(&mut self) {
        self.pool.clear();
    }

    /// Lets nobody find what a sequence has in the cache.
    ///
    /// # Errors
    /// When there is no such sequence.
    pub fn forget(&mut self, request: RequestId) -> Result<(), KvCacheError> {
        let sequence = self.sequences.get(&request).ok_or(KvCacheError::Unknown(request))?;
        sequence.blocks.iter().for_each(|block| drop(self.pool.forget(*block)));
        Ok(())
    }
}

#[cfg(test)]
mod tests;
