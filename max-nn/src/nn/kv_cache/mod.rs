//! Keys and values of the tokens that sequences have so far, in pages of a cache that all sequences share (Kwon et al.:
//! PagedAttention, 2023).
//!
//! [`PagedKvCacheManager`] says which pages belong to which sequence, and which of them are shared: it is bookkeeping, and knows
//! no memory. [`PagedKvCacheMemory`] is the memory, on a device and on the host for what gives way. [`PagedKvCacheValues`] is what layers of a graph see of both.

mod blocks;
mod host_blocks;
mod manager;
mod memory;
mod params;
mod values;

pub use manager::{BlockTransfer, KvCacheError, KvCacheMetrics, PagedKvCacheManager, RequestId};
pub use memory::PagedKvCacheMemory;
pub use params::{KvCacheParams, KvCacheStrategy};
pub use values::{PagedKvCacheInputs, PagedKvCacheValues};
