//! The caching allocator of a device.
//!
//! Memory is handed out in [`Block`]s, aligned to [`ALIGNMENT`] bytes and rounded up to a size class: multiples of 64 bytes
//! up to 1 KiB, then eight classes for each doubling (at most 12.5% more than asked for). A dropped block goes to the free
//! list of its class and the next request of that class gets it back, page tables included, so that a graph that runs
//! again and again neither calls the system nor faults pages.
//!
//! - **Pages.** Blocks of 2 MiB and more are aligned to that size and, on Linux, asked to lie in huge pages
//!   (`madvise`), also where those are not the system's default. On Unix, those of more than 256 KiB are mappings of their own, whose
//!   pages are zero, and take memory when they are touched first.
//! - **Threads.** Blocks up to 256 KiB are cached in eight shards, picked by thread; larger ones in one shared pool. Each
//!   pool is a mutex around plain vectors, held for a few instructions and never while memory is cleared or returned.
//! - **Limit.** The cache of the host holds at most a quarter of the machine's memory (1 GiB where that is unknown), that of
//!   a GPU as much as the GPU has; see [`Device::set_cache_limit`](super::Device::set_cache_limit). Beyond it, cached blocks of other classes are
//!   returned to the system first.
//! - **No memory.** When the system refuses, the whole cache is released and the request repeated once; then it is a
//!   [`DriverError::OutOfMemory`].
//! - **Poison.** With the environment variable `MAX_POISON=1`, each block is filled with `0xff` bytes (NaN in every float
//!   type) before it is handed out, so that reading memory that nobody wrote shows.
//!
//! - **GPUs.** A block is given back when the host drops it, while work that uses it may still be queued. That is sound
//!   because blocks are reused in the order of one stream, the device's default one; whoever uses a block on another
//!   stream makes the default one wait for it before the block is dropped.
//!
//! Blocks are raw memory with unspecified contents; `driver::Tensor` is the safe way to use it.

pub use super::backend::ALIGNMENT;
use super::backend::{Backend, StreamHandle};
use super::{DeviceRef, DriverError};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The largest block that is cached by thread.
const SMALL: usize = 256 << 10;
const SHARDS: usize = 8;
/// A shard keeps at most this many bytes, whatever the limit of the whole cache.
const SHARD_LIMIT: usize = 16 << 20;
const DEFAULT_LIMIT: usize = 1 << 30;

/// What a device's allocator has done so far. Sizes are in bytes and include the rounding to size classes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct AllocatorStats {
    /// Bytes in blocks that are handed out now.
    pub bytes_in_use: usize,
    /// Bytes kept for reuse.
    pub bytes_cached: usize,
    /// The most memory that the allocator has had from the system at a time, in use or kept.
    pub peak_bytes_reserved: usize,
    /// Blocks handed out; requests for 0 bytes are not counted.
    pub allocations: u64,
    /// Of those, how many came from the cache.
    pub cache_hits: u64,
}

/// Memory of a device; it goes back to the allocator's cache when dropped.
#[derive(Debug)]
pub struct Block {
    memory: NonNull<u8>,
    class: SizeClass,
    /// Whether it was zero when it was handed out.
    began_zero: bool,
    allocator: &'static Allocator,
}

// SAFETY: a block is the only owner of its memory, and the allocator may be used from any thread.
unsafe impl Send for Block {}
// SAFETY: as above; a shared block only gives out its address.
unsafe impl Sync for Block {}

impl Block {
    /// The address of the memory; for a size of 0, an aligned address that must not be read.
    pub fn as_ptr(&self) -> *mut u8 {
        self.memory.as_ptr()
    }

    /// Whether all of it was zero when it was handed out.
    pub(super) fn began_zero(&self) -> bool {
        self.began_zero
    }

    /// The usable size in bytes: what was asked for, rounded up to the size class.
    pub fn size(&self) -> usize {
        self.class.size
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if self.class.size > 0 {
            self.allocator.recycle(self.memory, self.class);
        }
    }
}

/// A size class: its number, and the size of its blocks (0 for empty blocks, which have no memory).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SizeClass {
    index: usize,
    size: usize,
}

impl SizeClass {
    const EMPTY: SizeClass = SizeClass { index: 0, size: 0 };

    /// The class of `bytes`; `None` if no allocation can be that large.
    fn of(bytes: usize) -> Option<SizeClass> {
        if bytes == 0 {
            return Some(SizeClass::EMPTY);
        }
        if bytes > isize::MAX as usize / 2 {
            return None;
        }
        let last = (bytes - 1) / ALIGNMENT;
        if last < 16 {
            return Some(SizeClass { index: last, size: (last + 1) * ALIGNMENT });
        }
        // Eight classes for each power of two: the leading bit of `last` and the three after it name the class.
        let exponent = last.ilog2() as usize;
        let shift = exponent - 3;
        let leading = last >> shift;
        Some(SizeClass { index: 16 + (exponent - 4) * 8 + (leading - 8), size: ((leading + 1) << shift) * ALIGNMENT })
    }

    /// The class with this index; the inverse of [`SizeClass::of`].
    fn at(index: usize) -> SizeClass {
        let size = match index.checked_sub(16) {
            None => (index + 1) * ALIGNMENT,
            Some(rest) => ((rest % 8 + 9) << (rest / 8 + 1)) * ALIGNMENT,
        };
        SizeClass { index, size }
    }
}

/// The free lists of some size classes.
#[derive(Debug, Default)]
struct Pool {
    /// By class index; grown on first use.
    free: Vec<Vec<NonNull<u8>>>,
    bytes: usize,
    limit: usize,
    /// Bytes handed out less bytes taken back. A block may come back to another shard than it left, so that only the sum over
    /// all pools means something.
    in_use: isize,
    allocations: u64,
    hits: u64,
    /// The class that eviction looks at next.
    cursor: usize,
}

// SAFETY: the pool owns the memory in its free lists.
unsafe impl Send for Pool {}

impl Pool {
    fn take(&mut self, class: SizeClass) -> Option<NonNull<u8>> {
        self.allocations += 1;
        self.in_use += class.size as isize;
        let memory = self.free.get_mut(class.index)?.pop()?;
        self.hits += 1;
        self.bytes -= class.size;
        Some(memory)
    }

    /// Keeps a block. What had to leave for it is pushed to `evicted`, the block itself if it cannot be kept.
    fn keep(&mut self, memory: NonNull<u8>, class: SizeClass, evicted: &mut Vec<(NonNull<u8>, SizeClass)>) {
        self.in_use -= class.size as isize;
        if class.size > self.limit {
            return evicted.push((memory, class));
        }
        if self.bytes + class.size > self.limit {
            self.shrink(self.limit - class.size, class.index, evicted);
        }
        if self.free.len() <= class.index {
            self.free.resize_with(class.index + 1, Vec::new);
        }
        self.free[class.index].push(memory);
        self.bytes += class.size;
    }

    /// Evicts blocks, those of class `spare` last, until at most `target` bytes are kept.
    fn shrink(&mut self, target: usize, spare: usize, evicted: &mut Vec<(NonNull<u8>, SizeClass)>) {
        for _ in 0..self.free.len() {
            if self.bytes <= target {
                return;
            }
            self.cursor = (self.cursor + 1) % self.free.len();
            if self.cursor != spare {
                self.shrink_class(self.cursor, target, evicted);
            }
        }
        self.shrink_class(spare, target, evicted);
    }

    fn shrink_class(&mut self, index: usize, target: usize, evicted: &mut Vec<(NonNull<u8>, SizeClass)>) {
        let class = SizeClass::at(index);
        while self.bytes > target
            && let Some(memory) = self.free.get_mut(index).and_then(Vec::pop)
        {
            self.bytes -= class.size;
            evicted.push((memory, class));
        }
    }
}

/// The caching allocator of one device; see the [module](self).
pub(super) struct Allocator {
    backend: &'static dyn Backend,
    device: DeviceRef,
    poison: bool,
    reserved: AtomicUsize,
    peak_reserved: AtomicUsize,
    /// The shards of small blocks, then the pool of large ones.
    pools: [Line<Mutex<Pool>>; SHARDS + 1],
}

/// Keeps its content on cache lines of its own.
#[derive(Default)]
#[repr(align(128))]
struct Line<T>(T);

impl std::fmt::Debug for Allocator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Allocator").field("device", &self.device).finish_non_exhaustive()
    }
}

impl Allocator {
    pub(super) fn new(backend: &'static dyn Backend, device: DeviceRef, poison: bool) -> Allocator {
        let allocator = Allocator {
            backend,
            device,
            poison,
            reserved: AtomicUsize::new(0),
            peak_reserved: AtomicUsize::new(0),
            pools: Default::default(),
        };
        allocator.set_limit(backend.cache_limit().unwrap_or(DEFAULT_LIMIT));
        allocator
    }

    /// A block of at least `bytes` bytes with unspecified contents.
    pub(super) fn allocate(&'static self, bytes: usize) -> Result<Block, DriverError> {
        let class = SizeClass::of(bytes).ok_or_else(|| self.out_of_memory(bytes))?;
        if class.size == 0 {
            return Ok(Block { memory: dangling(), class, began_zero: true, allocator: self });
        }
        let pool = self.pool_of(class);
        let cached = self.lock(pool).take(class);
        let memory = match cached {
            Some(memory) => memory,
            None => {
                let memory = self.allocate_from_system(class.size, bytes);
                if !matches!(memory, Ok(Some(_))) {
                    self.lock(pool).in_use -= class.size as isize;
                }
                memory?.ok_or_else(|| self.out_of_memory(bytes))?
            }
        };
        let began_zero = cached.is_none() && !self.poison && self.backend.is_zero_when_new(class.size);
        let block = Block { memory, class, began_zero, allocator: self };
        if self.poison {
            // SAFETY: the block is ours and has that size.
            unsafe { self.backend.fill(memory.as_ptr(), 0xff, class.size, StreamHandle::default())? };
        }
        Ok(block)
    }

    #[cold]
    fn allocate_from_system(&self, bytes: usize, used: usize) -> Result<Option<NonNull<u8>>, DriverError> {
        let memory = match self.backend.allocate(bytes, used)? {
            None => {
                self.release();
                self.backend.allocate(bytes, used)?
            }
            memory => memory,
        };
        if memory.is_none() {
            return Ok(None);
        }
        let reserved = self.reserved.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.peak_reserved.fetch_max(reserved, Ordering::Relaxed);
        Ok(memory)
    }

    #[cold]
    fn out_of_memory(&self, requested: usize) -> DriverError {
        let in_use = self.stats().bytes_in_use;
        DriverError::OutOfMemory { device: self.device, requested, in_use }
    }

    fn recycle(&self, memory: NonNull<u8>, class: SizeClass) {
        let mut evicted = Vec::new();
        self.lock(self.pool_of(class)).keep(memory, class, &mut evicted);
        self.free(evicted);
    }

    fn free(&self, blocks: Vec<(NonNull<u8>, SizeClass)>) {
        for (memory, class) in blocks {
            self.reserved.fetch_sub(class.size, Ordering::Relaxed);
            // SAFETY: the block was allocated with the size of its class and has just left the cache.
            unsafe { self.backend.free(memory, class.size) };
        }
    }

    /// Returns all cached memory to the system.
    pub(super) fn release(&self) {
        for pool in 0..self.pools.len() {
            let mut evicted = Vec::new();
            self.lock(pool).shrink(0, 0, &mut evicted);
            self.free(evicted);
        }
    }

    /// Sets how many bytes the cache may hold; what is above is returned to the system.
    pub(super) fn set_limit(&self, bytes: usize) {
        let shard = SHARD_LIMIT.min(bytes / (2 * SHARDS));
        for pool in 0..self.pools.len() {
            let mut evicted = Vec::new();
            let mut state = self.lock(pool);
            state.limit = if pool < SHARDS { shard } else { bytes - SHARDS * shard };
            let limit = state.limit;
            state.shrink(limit, 0, &mut evicted);
            drop(state);
            self.free(evicted);
        }
    }

    pub(super) fn stats(&self) -> AllocatorStats {
        let mut stats = AllocatorStats {
            peak_bytes_reserved: self.peak_reserved.load(Ordering::Relaxed),
            ..AllocatorStats::default()
        };
        let mut in_use = 0;
        for pool in 0..self.pools.len() {
            let pool = self.lock(pool);
            in_use += pool.in_use;
            stats.bytes_cached += pool.bytes;
            stats.allocations += pool.allocations;
            stats.cache_hits += pool.hits;
        }
        // The pools are read one after the other, so blocks on their way between threads may be missed.
        stats.bytes_in_use = in_use.try_into().unwrap_or(0);
        stats
    }

    fn pool_of(&self, class: SizeClass) -> usize {
        if class.size <= SMALL { shard_of_this_thread() } else { SHARDS }
    }

    fn lock(&self, pool: usize) -> MutexGuard<'_, Pool> {
        // A panic cannot leave a pool half changed: only vectors that grow could panic in it.
        self.pools[pool].0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The address of empty blocks.
fn dangling() -> NonNull<u8> {
    NonNull::<Line<u8>>::dangling().cast()
}

fn shard_of_this_thread() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static SHARD: usize = NEXT.fetch_add(1, Ordering::Relaxed) % SHARDS);
    SHARD.with(|shard| *shard)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::host::Host;

    fn allocator(poison: bool) -> &'static Allocator {
        Box::leak(Box::new(Allocator::new(&Host, DeviceRef::CPU, poison)))
    }

    #[test]
    fn classes_cover_sizes_with_little_waste() {
        let mut sizes = (1..3000).collect::<Vec<_>>();
        for exponent in 10..62 {
            sizes.extend([(1usize << exponent) - 1, 1 << exponent, (1 << exponent) + 1, 3 << (exponent - 1)]);
        }
        for bytes in sizes {
            let class = SizeClass::of(bytes).unwrap();
            assert!(class.size >= bytes && class.size.is_multiple_of(ALIGNMENT), "{bytes} {class:?}");
            assert!(class.size - bytes < ALIGNMENT.max(bytes / 8), "{bytes} {class:?}");
            assert_eq!(SizeClass::at(class.index), class);
            assert_eq!(SizeClass::of(class.size), Some(class));
            assert_eq!(SizeClass::of(class.size + 1).unwrap().index, class.index + 1);
        }
        assert_eq!(SizeClass::of(usize::MAX), None);
    }

    #[test]
    fn blocks_are_reused_and_counted() {
        let allocator = allocator(false);
        let first = allocator.allocate(1000).unwrap();
        let address = first.as_ptr();
        assert_eq!((first.size(), address as usize % ALIGNMENT), (1024, 0));
        drop(first);
        assert_eq!(allocator.stats().bytes_cached, 1024);
        let second = allocator.allocate(1024).unwrap();
        assert_eq!(second.as_ptr(), address);
        let third = allocator.allocate(1).unwrap();
        assert_ne!(third.as_ptr(), address);
        let stats = allocator.stats();
        let expected = AllocatorStats {
            bytes_in_use: 1088,
            bytes_cached: 0,
            peak_bytes_reserved: 1088,
            allocations: 3,
            cache_hits: 1,
        };
        assert_eq!(stats, expected);
        drop((second, third));
        assert_eq!(allocator.stats().bytes_in_use, 0);
        allocator.release();
        assert_eq!(allocator.stats().bytes_cached, 0);
    }

    #[test]
    fn large_blocks_are_zero_when_they_are_new() {
        let allocator = allocator(false);
        for bytes in [300 << 10, 2 << 20, (5 << 20) + 1] {
            let block = allocator.allocate(bytes).unwrap();
            let (start, size) = (block.as_ptr(), block.size());
            assert_eq!(block.began_zero(), cfg!(unix), "{bytes}");
            assert_eq!(start as usize % if bytes >= 2 << 20 { 2 << 20 } else { ALIGNMENT }, 0);
            // SAFETY: the block has so many bytes, which are all written before they are read if they did not begin as zero.
            let all = unsafe {
                if !block.began_zero() {
                    start.write_bytes(0, size);
                }
                std::slice::from_raw_parts_mut(start, size)
            };
            assert!(all.iter().all(|byte| *byte == 0));
            all.fill(1);
            drop(block);
            let again = allocator.allocate(bytes).unwrap();
            assert_eq!((again.as_ptr(), again.began_zero()), (start, false));
        }
        assert!(!self::allocator(true).allocate(1 << 20).unwrap().began_zero());
    }

    #[test]
    fn empty_and_impossible_requests() {
        let allocator = allocator(true);
        let empty = allocator.allocate(0).unwrap();
        assert_eq!((empty.size(), empty.as_ptr() as usize % ALIGNMENT), (0, 0));
        drop(empty);
        for bytes in [usize::MAX, isize::MAX as usize, 1 << 60] {
            match allocator.allocate(bytes) {
                Err(DriverError::OutOfMemory { requested, .. }) => assert_eq!(requested, bytes),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(allocator.stats().bytes_in_use, 0);
    }

    #[test]
    fn the_limit_evicts_other_classes_first() {
        let allocator = allocator(false);
        let mebibyte = 1 << 20;
        // Shards get 1 MiB each, the large pool 8 MiB.
        allocator.set_limit(16 * mebibyte);
        let blocks = (0..8).map(|_| allocator.allocate(mebibyte).unwrap()).collect::<Vec<_>>();
        let large = allocator.allocate(4 * mebibyte).unwrap();
        let huge = allocator.allocate(9 * mebibyte).unwrap();
        drop(blocks);
        assert_eq!(allocator.stats().bytes_cached, 8 * mebibyte);
        drop(huge);
        assert_eq!(allocator.stats().bytes_cached, 8 * mebibyte);
        let address = large.as_ptr();
        drop(large);
        assert_eq!(allocator.stats().bytes_cached, 8 * mebibyte);
        assert_eq!(allocator.allocate(4 * mebibyte).unwrap().as_ptr(), address);
        allocator.set_limit(0);
        assert_eq!(allocator.stats().bytes_cached, 0);
    }

    #[test]
    fn poison_fills_recycled_memory() {
        let allocator = allocator(true);
        for _ in 0..2 {
            let block = allocator.allocate(100).unwrap();
            for i in 0..block.size() {
                // SAFETY: poisoned memory is initialized, and in bounds.
                unsafe {
                    assert_eq!(*block.as_ptr().add(i), 0xff);
                    *block.as_ptr().add(i) = 0;
                }
            }
        }
    }

    #[test]
    fn threads_share_one_allocator() {
        let allocator = allocator(false);
        std::thread::scope(|scope| {
            for thread in 0..4u8 {
                scope.spawn(move || {
                    let mut held = Vec::new();
                    for round in 0..2000usize {
                        let block = allocator.allocate(1 + round * 37 % 5000).unwrap();
                        // SAFETY: the first and last byte of the block.
                        unsafe {
                            *block.as_ptr() = thread;
                            *block.as_ptr().add(block.size() - 1) = thread;
                        }
                        held.push(block);
                        if held.len() == 16 {
                            for block in held.drain(..) {
                                // SAFETY: both bytes were written above.
                                let ends = unsafe { [*block.as_ptr(), *block.as_ptr().add(block.size() - 1)] };
                                // A block of one byte has one end; either way the values are ours.
                                assert_eq!(ends, [thread; 2]);
                            }
                        }
                    }
                });
            }
        });
        assert_eq!(allocator.stats().bytes_in_use, 0);
        assert_eq!(allocator.stats().allocations, 8000);
    }
}
