//! [`KvCacheParams`]: what a layer keeps of each token, and in which pages.

use std::fmt;

use max_core::driver::DeviceRef;
use max_core::dtype::DType;
use max_core::graph::BufferType;

/// How caches are laid out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum KvCacheStrategy {
    /// As the model has it, which is in pages.
    ModelDefault,
    /// In pages that a table lists for each sequence.
    #[default]
    Paged,
}

impl fmt::Display for KvCacheStrategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            KvCacheStrategy::ModelDefault => "model_default",
            KvCacheStrategy::Paged => "paged",
        })
    }
}

/// What a layer keeps of each token, and how.
///
/// ```
/// # extern crate max_nn as max;
/// use max::dtype::DType;
/// use max::nn::kv_cache::KvCacheParams;
///
/// let params = KvCacheParams::new(DType::BF16, 8, 64);
/// assert_eq!(params.page_size, 128);
/// assert_eq!(params.bytes_per_token(), 2 * 8 * 64 * 2);
/// assert_eq!(params.bytes_per_page(), 128 * params.bytes_per_token());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KvCacheParams {
    /// The dtype of keys and values.
    pub dtype: DType,
    /// The heads of keys and values.
    pub n_kv_heads: usize,
    /// The elements of a head.
    pub head_dim: usize,
    /// The tokens of a page.
    pub page_size: usize,
    /// Whether sequences that begin with the same tokens share pages.
    pub enable_prefix_caching: bool,
    /// How caches are laid out.
    pub cache_strategy: KvCacheStrategy,
    /// Whether keys are latents that values come of (multi-head latent attention), so that values take no memory.
    pub is_mla: bool,
}

impl KvCacheParams {
    /// With pages of 128 tokens, which sequences share.
    pub fn new(dtype: DType, n_kv_heads: usize, head_dim: usize) -> KvCacheParams {
        KvCacheParams {
            dtype,
            n_kv_heads,
            head_dim,
            page_size: 128,
            enable_prefix_caching: true,
            cache_strategy: KvCacheStrategy::Paged,
            is_mla: false,
        }
    }

    /// The bytes that a token takes in a layer.
    pub fn bytes_per_token(&self) -> usize {
        self.head_dims().iter().sum::<usize>() * self.n_kv_heads * self.dtype.size_in_bytes()
    }

    /// The bytes that a page takes in a layer.
    pub fn bytes_per_page(&self) -> usize {
        self.page_size * self.bytes_per_token()
    }

    /// The shapes of a layer's keys and values: `[pages, key heads, page size, head size]`.
    pub fn cache_shapes(&self, pages: usize) -> [[usize; 4]; 2] {
        self.head_dims().map(|size| [pages, self.n_kv_heads, self.page_size, size])
    }

    /// The types of the buffers of a layer's keys and values, with `pages` as the name of the number of pages.
    pub fn buffer_types(&self, device: DeviceRef) -> [BufferType; 2] {
        self.head_dims()
            .map(|size| BufferType::new(self.dtype, ("pages", self.n_kv_heads, self.page_size, size), device))
    }

    /// The elements of a head's keys, and of its values.
    fn head_dims(&self) -> [usize; 2] {
        [self.head_dim, if self.is_mla { 0 } else { self.head_dim }]
    }
}
