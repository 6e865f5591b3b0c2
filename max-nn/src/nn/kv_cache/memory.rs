//! [`PagedKvCacheMemory`]: the memory of a cache's blocks.

use max_core::dispatch;
use max_core::driver::{Device, DriverError, Tensor};

use super::{BlockCopy, KvCacheParams};

/// Keys and values of all layers, on the host: two tensors `[blocks, key heads, page size, head size]` for each. It grows as
/// blocks come into use, so that a large cache takes memory for what it holds only.
pub struct PagedKvCacheMemory {
    layers: Vec<KvCacheParams>,
    tensors: Vec<Tensor>,
    blocks: usize,
}

impl PagedKvCacheMemory {
    /// Of layers, with no block yet.
    ///
    /// # Errors
    /// When there is no memory for it.
    pub fn new(layers: &[KvCacheParams]) -> Result<PagedKvCacheMemory, DriverError> {
        let mut memory = PagedKvCacheMemory { layers: layers.to_vec(), tensors: Vec::new(), blocks: 0 };
        // A graph's dims are at least 1.
        memory.grow(1, 1)?;
        Ok(memory)
    }

    /// The blocks that have memory.
    pub fn blocks(&self) -> usize {
        self.blocks
    }

    /// The bytes that they take.
    pub fn num_bytes(&self) -> usize {
        self.blocks * self.layers.iter().map(KvCacheParams::bytes_per_page).sum::<usize>()
    }

    /// Keys and values of the first layer, of the second, and so on: what a graph changes.
    pub fn tensors_mut(&mut self) -> &mut [Tensor] {
        &mut self.tensors
    }

    /// Makes memory for the first `blocks` of a cache of `total`: for twice as many as before, so that contents are not moved for
    /// every block.
    ///
    /// # Errors
    /// When there is no memory for it; contents are as they were.
    pub fn grow(&mut self, blocks: usize, total: usize) -> Result<(), DriverError> {
        if blocks <= self.blocks {
            return Ok(());
        }
        let blocks = blocks.max(2 * self.blocks).min(total.max(blocks));
        let mut tensors = Vec::with_capacity(2 * self.layers.len());
        for (i, layer) in self.layers.iter().flat_map(|layer| [layer, layer]).enumerate() {
            let mut tensor = Tensor::zeros(layer.dtype, layer.cache_shape(blocks), &Device::cpu())?;
            if let Some(old) = self.tensors.get(i) {
                dispatch!(layer.dtype, T => {
                    let (from, to) = (old.as_slice::<T>()?, tensor.as_mut_slice::<T>()?);
                    to.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
                });
            }
            tensors.push(tensor);
        }
        (self.tensors, self.blocks) = (tensors, blocks);
        Ok(())
    }

    /// Copies the contents of blocks; those that have no memory are left out.
    ///
    /// # Errors
    /// When a tensor is in use.
    pub fn copy(&mut self, copies: &[BlockCopy]) -> Result<(), DriverError> {
        if copies.is_empty() {
            return Ok(());
        }
        let blocks = self.blocks;
        for (tensor, layer) in self.tensors.iter_mut().zip(self.layers.iter().flat_map(|layer| [layer, layer])) {
            let size = elements(layer);
            dispatch!(layer.dtype, T => {
                let all = tensor.as_mut_slice::<T>()?;
                for copy in copies.iter().filter(|copy| (copy.from.max(copy.to) as usize) < blocks) {
                    let (from, to) = (copy.from as usize * size, copy.to as usize * size);
                    all.copy_within(from..from + size, to);
                }
            });
        }
        Ok(())
    }
}

/// The elements of a block's keys.
fn elements(layer: &KvCacheParams) -> usize {
    layer.page_size * layer.n_kv_heads * layer.head_dim
}
