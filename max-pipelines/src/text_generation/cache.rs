//! [`SharedCache`]: the cache of keys and values that all sequences of a pipeline share.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use max::nn::kv_cache::{KvCacheError, KvCacheParams, PagedKvCacheManager, PagedKvCacheMemory, RequestId};

use crate::error::{PipelineError, Result};
use crate::kv_cache_config::KvCacheConfig;

/// The most bytes of a cache for which nothing is configured.
const DEFAULT_MEMORY: usize = 8 << 30;

/// Which pages are whose, and the pages.
pub(super) struct Cache {
    pub(super) manager: PagedKvCacheManager,
    pub(super) memory: PagedKvCacheMemory,
    next: RequestId,
}

impl Cache {
    /// Makes room for `length` tokens of a sequence; `false` if others have the pages.
    pub(super) fn reserve(&mut self, lease: &CacheLease, length: usize) -> Result<bool> {
        let copies = match self.manager.reserve(lease.id, length) {
            Ok(copies) => copies,
            Err(KvCacheError::Full { .. }) => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        let (touched, total) = (self.manager.touched_blocks(), self.manager.total_blocks());
        if let Err(error) = self.memory.grow(touched, total).and_then(|()| self.memory.copy(&copies)) {
            // Some of its pages may not have what they should.
            self.manager.truncate(lease.id, 0)?;
            return Err(error.into());
        }
        Ok(true)
    }
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
        let manager = PagedKvCacheManager::new(blocks, page_size, prefix_caching);
        let memory = PagedKvCacheMemory::new(layers)?;
        Ok(SharedCache(Arc::new(Mutex::new(Cache { manager, memory, next: 0 }))))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Cache> {
        // What a step that failed left behind belongs to its sequences, which end with it.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A sequence without tokens. It shares prefixes with sequences of the same `adapter`, 0 for none.
    pub(super) fn claim(&self, adapter: u64) -> Result<CacheLease> {
        let mut cache = self.lock();
        let id = cache.next;
        cache.next += 1;
        cache.manager.claim_apart(id, adapter)?;
        Ok(CacheLease { id, cache: self.clone() })
    }
}

/// A sequence in a cache. Its pages are given back when it is dropped.
pub(super) struct CacheLease {
    pub(super) id: RequestId,
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
        // There is such a sequence: nobody else releases it.
        let _ = self.cache.lock().manager.release(self.id);
    }
}
