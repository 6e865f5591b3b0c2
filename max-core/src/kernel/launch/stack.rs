//! Thread stacks for programs whose tiles are larger than what a thread has for them.
//!
//! Tiles are arrays in the frame of a compiled form, so that small ones stay in registers. Frames of large ones would
//! overflow the stack of the calling thread, and cannot be reported from there. Such kernels run on threads of their
//! own, whose stacks the system commits page by page.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use rayon_core::{ThreadPool, ThreadPoolBuilder};

use super::super::abi::{Instance, KernelDef, KernelKind};
use super::super::error::KernelError;
use super::super::record::stack_tiles;
use super::super::threads::num_threads;

/// The bytes of tiles that a program may hold.
pub(in crate::kernel) const MOST_TILES: u64 = 256 << 20;

/// How often a frame may have room for a tile: for what it is, for what it is made of, and for each time it is handed
/// on, where nothing is optimized. So it is about four times what was seen.
const COPIES: u64 = 16;
/// What a stack has beside tiles.
const REST: u64 = 4 << 20;

/// The bytes of the tiles that a program of a compiled form holds; 0 where any stack has room for them.
///
/// # Errors
/// If there are more than [`MOST_TILES`]; of an elementwise kernel, which runs beside others, more than any stack has room for.
pub(in crate::kernel) fn tile_bytes(
    def: &KernelDef,
    instance: &'static Instance,
    record: impl FnOnce() -> u64,
) -> Result<u64, KernelError> {
    static KNOWN: Mutex<Option<HashMap<usize, u64>>> = Mutex::new(None);
    let key = std::ptr::from_ref(instance).addr();
    let known = || KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let found = known().get_or_insert_default().get(&key).copied();
    // Without the lock: who loads other kernels does not wait for what this one records.
    let bytes = found.unwrap_or_else(record);
    known().get_or_insert_default().insert(key, bytes);
    let limit = match def.kind {
        KernelKind::Program => MOST_TILES,
        KernelKind::Elementwise => stack_tiles(def),
    };
    match bytes > limit {
        true => Err(KernelError::Tiles { kernel: def.name.as_str(), bytes, limit }),
        false => Ok(bytes),
    }
}

/// As many threads as kernels use here, with stacks for so many bytes of tiles.
///
/// # Errors
/// If the system does not give them.
pub(in crate::kernel) fn threads_for(kernel: &'static str, tiles: u64) -> Result<Arc<ThreadPool>, KernelError> {
    /// By how many threads they have: their stacks, and the threads.
    type Pools = HashMap<usize, (usize, Arc<ThreadPool>)>;
    static POOLS: Mutex<Option<Pools>> = Mutex::new(None);
    let bytes = usize::try_from(tiles.saturating_mul(COPIES).saturating_add(REST)).unwrap_or(usize::MAX);
    let threads = num_threads();
    let mut pools = POOLS.lock().unwrap_or_else(PoisonError::into_inner);
    let pools = pools.get_or_insert_default();
    if let Some((_, pool)) = pools.get(&threads).filter(|(stack, _)| *stack >= bytes) {
        return Ok(pool.clone());
    }
    let builder = ThreadPoolBuilder::new().num_threads(threads).stack_size(bytes);
    let named = builder.thread_name(|i| format!("max-tiles-{i}"));
    let pool = Arc::new(named.build().map_err(|_| KernelError::Memory { kernel, bytes })?);
    pools.insert(threads, (bytes, pool.clone()));
    Ok(pool)
}
