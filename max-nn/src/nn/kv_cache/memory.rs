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

    /// Makes memory for the first `blocks` of a cache of `total`: for a quarter more than before, so that contents of many blocks are not
    /// copied for each one, and little memory is reserved ahead. The old buffers go back to the system: the cache never shrinks.
    ///
    /// # Errors
    /// When there is no memory for it; contents are as they were.
    pub fn grow(&mut self, blocks: usize, total: usize) -> Result<(), DriverError> {
        if blocks <= self.blocks {
            return Ok(());
        }
        let blocks = blocks.max(self.blocks + self.blocks / 4).min(total.max(blocks));
        // While both are there, the allocator need not keep what steps have used: it comes again with the next one. A new cache takes
        // from it.
        let replaces = self.blocks > 0;
        if replaces {
            Device::cpu().release_cached_memory();
        }
        let mut tensors = Vec::with_capacity(2 * self.layers.len());
        let shapes = self.layers.iter().flat_map(|layer| layer.cache_shapes(blocks).map(|shape| (layer.dtype, shape)));
        for (i, (dtype, shape)) in shapes.enumerate() {
            let mut tensor = Tensor::zeros(dtype, shape, &Device::cpu())?;
            if let Some(old) = self.tensors.get(i) {
                dispatch!(dtype, T => {
                    let (from, to) = (old.as_slice::<T>()?, tensor.as_mut_slice::<T>()?);
                    to.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
                });
            }
            tensors.push(tensor);
        }
        (self.tensors, self.blocks) = (tensors, blocks);
        if replaces {
            Device::cpu().release_cached_memory();
        }
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
        for tensor in &mut self.tensors {
            let size = tensor.shape().iter().skip(1).product::<usize>();
            dispatch!(tensor.dtype(), T => {
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

#[cfg(test)]
mod tests {
    use max_core::dtype::DType;

    use super::*;

    #[test]
    fn grows_by_a_quarter_and_keeps_what_is_there() {
        let layer = KvCacheParams { page_size: 4, ..KvCacheParams::new(DType::F32, 1, 2) };
        let mut memory = PagedKvCacheMemory::new(&[layer]).unwrap();
        for (i, tensor) in memory.tensors_mut().iter_mut().enumerate() {
            tensor.as_mut_slice::<f32>().unwrap().fill(1.0 + i as f32);
        }
        let mut grown = Vec::new();
        for (blocks, total) in [(8, 100), (5, 100), (9, 100), (11, 11), (50, 100)] {
            memory.grow(blocks, total).unwrap();
            grown.push(memory.blocks());
        }
        assert_eq!(grown, [8, 8, 10, 11, 50]);
        for (i, tensor) in memory.tensors_mut().iter().enumerate() {
            let values = tensor.as_slice::<f32>().unwrap();
            let (first, rest) = values.split_at(values.len() / 50);
            assert!(first.iter().all(|x| *x == 1.0 + i as f32) && rest.iter().all(|x| *x == 0.0));
        }
    }
}
