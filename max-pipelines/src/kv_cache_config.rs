//! [`KvCacheConfig`]: how much memory keys and values of tokens get, and in which pages.

/// The cache of keys and values, which all sequences of a pipeline share.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KvCacheConfig {
    /// The tokens of a page.
    pub kv_cache_page_size: usize,
    /// Whether sequences that begin with the same tokens share pages. Models whose rotary embedding depends on the length of the
    /// sequence never do.
    pub enable_prefix_caching: bool,
    /// The most bytes that the cache takes. `None`: as many as [`max_batch_size`](crate::PipelineConfig::max_batch_size) of the
    /// longest sequences need, but not more than 8 GiB if one such sequence fits these. Memory is taken as it is used.
    pub cache_memory: Option<usize>,
}

impl Default for KvCacheConfig {
    fn default() -> Self {
        KvCacheConfig { kv_cache_page_size: 128, enable_prefix_caching: true, cache_memory: None }
    }
}
