//! [`KvCacheConfig`]: how much memory keys and values of tokens get, and in which pages.

use crate::error::{PipelineError, Result};

/// The bytes of a GiB.
const GIB: f64 = (1u64 << 30) as f64;

/// The cache of keys and values, which all sequences of a pipeline share.
#[derive(Clone, PartialEq, Debug)]
pub struct KvCacheConfig {
    /// The tokens of a page.
    pub kv_cache_page_size: usize,
    /// Whether sequences that begin with the same tokens share pages. Models whose rotary embedding depends on the length of the
    /// sequence never do.
    pub enable_prefix_caching: bool,
    /// The most bytes that the cache takes. `None`: as many as [`max_batch_size`](crate::PipelineConfig::max_batch_size) of the
    /// longest sequences need, but not more than 8 GiB if one such sequence fits these. Memory is taken as it is used.
    pub cache_memory: Option<usize>,
    /// Whether pages of prefixes whose memory is wanted go to other memory of the host instead of being lost, and come back for a sequence
    /// that begins with their tokens. It takes `enable_prefix_caching`.
    pub enable_kvcache_swapping_to_host: bool,
    /// The most GiB that these pages take there.
    pub host_kvcache_swap_space_gb: Option<f64>,
}

impl KvCacheConfig {
    /// The most bytes of pages on the host; 0 where none go there.
    pub(crate) fn host_bytes(&self) -> Result<usize> {
        let fail = |argument, value, expected| Err(PipelineError::Argument { argument, value, expected });
        if !self.enable_kvcache_swapping_to_host {
            return Ok(0);
        }
        if !self.enable_prefix_caching {
            let expected = "false without `enable_prefix_caching`: nobody would find what is swapped";
            return fail("enable_kvcache_swapping_to_host", "true".into(), expected);
        }
        match self.host_kvcache_swap_space_gb {
            Some(space) if space > 0.0 && space.is_finite() => Ok((space * GIB) as usize),
            Some(space) => fail("host_kvcache_swap_space_gb", space.to_string(), "a number above 0"),
            None => {
                let expected = "a number above 0, since `enable_kvcache_swapping_to_host` is set";
                fail("host_kvcache_swap_space_gb", "none".into(), expected)
            }
        }
    }
}

impl Default for KvCacheConfig {
    fn default() -> Self {
        KvCacheConfig {
            kv_cache_page_size: 128,
            enable_prefix_caching: true,
            cache_memory: None,
            enable_kvcache_swapping_to_host: false,
            host_kvcache_swap_space_gb: None,
        }
    }
}
