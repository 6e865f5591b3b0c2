//! [`SharedCache`]: the cache of keys and values that all sequences of a pipeline share.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use max::nn::kv_cache::{
    BlockTransfer, KvCacheError, KvCacheParams, PagedKvCacheManager, PagedKvCacheMemory, RequestId,
};

use crate::error::{PipelineError, Result};
use crate::kv_cache_config::KvCacheConfig;

/// The most bytes of a cache for which nothing is configured.
const DEFAULT_MEMORY: usize = 8 << 30;

/// Which pages are whose, and the pages.
pub(super) struct Cache {
    pub(super) manager: PagedKvCacheManager,
    pub(super) memory: PagedKvCacheMemory,
    next: RequestId,
    /// The pages that all sequences have at their end, as far as that is known.
    expected: usize,
}

impl Cache {
    /// Gives a sequence without tokens what the cache, or the host, has of the beginning of `tokens`. How many tokens these are.
    pub(super) fn reuse(&mut self, lease: &CacheLease, tokens: &[u32]) -> Result<usize> {
        self.manager.reuse(lease.id, tokens)?;
        let transfers = self.manager.take_transfers();
        self.transfer(lease, &transfers)?;
        Ok(self.manager.length(lease.id).unwrap_or(0))
    }

    /// Makes room for `length` tokens of a sequence; `false` if others have the pages.
    pub(super) fn reserve(&mut self, lease: &CacheLease, length: usize) -> Result<bool> {
        let transfers = match self.manager.reserve(lease.id, length) {
            Ok(transfers) => transfers,
            Err(KvCacheError::Full { .. }) => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        self.transfer(lease, &transfers)?;
        Ok(true)
    }

    /// Moves contents of pages for a sequence, which has no tokens if that fails. Where the host has no memory for pages that should go
    /// there, they are not found again, and nothing else fails.
    fn transfer(&mut self, lease: &CacheLease, transfers: &[BlockTransfer]) -> Result<()> {
        let (touched, total) = (self.manager.touched_blocks(), self.manager.total_blocks());
        // What grows is copied: if it has to, then to what sequences come to. Where there is no memory for that, there may be enough for now.
        let mut grown = Ok(());
        if touched > self.memory.blocks() {
            let in_use = total - self.manager.free_blocks();
            let ahead = (touched + self.expected.saturating_sub(in_use)).min(total);
            grown = self.memory.grow(ahead, total).or_else(|_| self.memory.grow(touched, total));
        }
        let host_blocks = transfers.iter().filter_map(place_on_host).max().map_or(0, |place| place as usize + 1);
        if let Err(error) = self.memory.grow_host(host_blocks, self.manager.host_usage().0) {
            match without_place(transfers, self.memory.host_blocks()) {
                Some(lost) => self.manager.discard(&lost),
                None => grown = grown.and(Err(error)),
            }
        }
        if let Err(error) = grown.and_then(|()| self.memory.transfer(transfers)) {
            // Some pages may not have what they should.
            self.manager.discard(transfers);
            self.manager.truncate(lease.id, 0)?;
            return Err(error.into());
        }
        Ok(())
    }
}

/// The page of the host that a transfer is to or from.
fn place_on_host(transfer: &BlockTransfer) -> Option<u32> {
    match *transfer {
        BlockTransfer::Copy { .. } => None,
        BlockTransfer::ToHost { host, .. } | BlockTransfer::FromHost { host, .. } => Some(host),
    }
}

/// The transfers to the host that have no place there, of so many; `None` if a page has to come from such a place, and is missing.
fn without_place(transfers: &[BlockTransfer], host_blocks: usize) -> Option<Vec<BlockTransfer>> {
    let lacks_place = |transfer: &&BlockTransfer| place_on_host(transfer).is_some_and(|at| at as usize >= host_blocks);
    let lacking: Vec<BlockTransfer> = transfers.iter().filter(lacks_place).copied().collect();
    lacking.iter().all(|transfer| matches!(transfer, BlockTransfer::ToHost { .. })).then_some(lacking)
}

/// A cache, and whoever has sequences in it.
#[derive(Clone)]
pub(super) struct SharedCache(Arc<Mutex<Cache>>);

impl SharedCache {
    /// For sequences of up to `max_length` tokens.
    pub(super) fn new(
        layers: &[KvCacheParams],
        config: &KvCacheConfig,
        max_batch_size: usize,
        max_length: usize,
    ) -> Result<SharedCache> {
        let block = PagedKvCacheManager::bytes_per_block(layers).max(1);
        let page_size = config.kv_cache_page_size;
        let memory = config.cache_memory.unwrap_or_else(|| {
            DEFAULT_MEMORY.max(PagedKvCacheManager::estimated_memory_size(layers, 1, max_length, usize::MAX))
        });
        let bytes = PagedKvCacheManager::estimated_memory_size(layers, max_batch_size, max_length, memory);
        let blocks = if layers.is_empty() { max_batch_size * max_length.div_ceil(page_size) } else { bytes / block };
        if blocks == 0 {
            let (argument, value) = ("cache_memory", memory.to_string());
            return Err(PipelineError::Argument { argument, value, expected: "enough bytes for one page" });
        }
        let prefix_caching = layers.iter().all(|layer| layer.enable_prefix_caching);
        let host_blocks = match config.host_bytes()? {
            0 => 0,
            bytes if bytes < block => {
                let value = format!("{:?}", config.host_kvcache_swap_space_gb.unwrap_or_default());
                let (argument, expected) = ("host_kvcache_swap_space_gb", "enough for one page");
                return Err(PipelineError::Argument { argument, value, expected });
            }
            // Of models whose tokens depend on those behind them nothing is found again.
            _ if !prefix_caching => 0,
            bytes => bytes / block,
        };
        let manager = PagedKvCacheManager::new(blocks, page_size, prefix_caching).host_blocks(host_blocks);
        let memory = PagedKvCacheMemory::new(layers)?;
        Ok(SharedCache(Arc::new(Mutex::new(Cache { manager, memory, next: 0, expected: 0 }))))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Cache> {
        // What a step that failed left behind belongs to its sequences, which end with it.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A sequence without tokens, of which there will be `expected`. It shares prefixes with sequences of the same `adapter`, 0 for none.
    pub(super) fn claim(&self, adapter: u64, expected: usize) -> Result<CacheLease> {
        let mut cache = self.lock();
        let (id, expected) = (cache.next, expected.div_ceil(cache.manager.page_size()));
        cache.next += 1;
        cache.manager.claim_apart(id, adapter)?;
        cache.expected += expected;
        Ok(CacheLease { id, expected, cache: self.clone() })
    }
}

/// A sequence in a cache. Its pages are given back when it is dropped.
pub(super) struct CacheLease {
    pub(super) id: RequestId,
    /// Its share of the pages that are [expected](Cache::expected).
    expected: usize,
    cache: SharedCache,
}

impl CacheLease {
    /// Gives the pages back, and lets nobody find what was written to them.
    pub(super) fn discard(self) {
        // There is such a sequence: nobody else releases it.
        let _ = self.cache.lock().manager.forget(self.id);
    }
}

impl Drop for CacheLease {
    fn drop(&mut self) {
        let mut cache = self.cache.lock();
        cache.expected -= self.expected;
        // There is such a sequence: nobody else releases it.
        let _ = cache.manager.release(self.id);
    }
}

#[cfg(test)]
mod tests {
    use max::dtype::DType;

    use super::*;

    #[test]
    fn memory_grows_to_what_sequences_come_to() {
        let layer = KvCacheParams { page_size: 4, ..KvCacheParams::new(DType::F32, 1, 2) };
        let config = KvCacheConfig { kv_cache_page_size: 4, ..KvCacheConfig::default() };
        let cache = SharedCache::new(&[layer], &config, 3, 100).unwrap();
        let (first, second) = (cache.claim(0, 17).unwrap(), cache.claim(0, 9).unwrap());
        assert_eq!(cache.lock().memory.blocks(), 1);
        for (lease, length) in [(&first, 5), (&second, 9), (&first, 17)] {
            assert!(cache.lock().reserve(lease, length).unwrap());
            assert_eq!(cache.lock().memory.blocks(), 8);
        }
        // More than was expected.
        assert!(cache.lock().reserve(&second, 13).unwrap());
        assert_eq!(cache.lock().memory.blocks(), 10);
        drop(first);
        drop(second);
        assert_eq!(cache.lock().expected, 0);
    }

    #[test]
    fn pages_without_a_place_on_the_host_are_lost_unless_they_are_needed() {
        let to = |host| BlockTransfer::ToHost { block: 0, host };
        let from = |host| BlockTransfer::FromHost { host, block: 1 };
        let copy = BlockTransfer::Copy { from: 1, to: 2 };
        assert_eq!(without_place(&[to(0), to(2), copy, from(1)], 2), Some(vec![to(2)]));
        assert_eq!(without_place(&[to(0), copy], 1), Some(vec![]));
        assert_eq!(without_place(&[to(2), from(2)], 2), None);
    }
}
