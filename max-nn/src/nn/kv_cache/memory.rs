//! [`PagedKvCacheMemory`]: the memory of a cache's blocks, and of those that went to the host.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use max_core::driver::{Device, DeviceRef, Tensor};
use max_core::dtype::DType;
use max_core::engine::{InferenceSession, Input, Model};
use max_core::graph::{BufferType, Dim, DimSlice, Graph, Shape, TensorType, Type, ops};
use max_core::{Error, dispatch};

use super::{BlockTransfer, KvCacheParams};

/// Keys and values of all layers: two tensors `[blocks, key heads, page size, head size]` for each, on a device, and two on the host for
/// blocks that give way. It grows as blocks come into use, so that a large cache takes memory for what it holds only.
pub struct PagedKvCacheMemory {
    layers: Vec<KvCacheParams>,
    device: Device,
    own: Blocks,
    host: Blocks,
    /// What stores blocks on a device, by their types.
    stores: HashMap<(DType, Vec<usize>), Model>,
}

/// Tensors of blocks.
#[derive(Default)]
struct Blocks {
    tensors: Vec<Tensor>,
    count: usize,
}

impl PagedKvCacheMemory {
    /// Of layers, on the host, with no block yet.
    ///
    /// # Errors
    /// When there is no memory for it.
    pub fn new(layers: &[KvCacheParams]) -> Result<PagedKvCacheMemory, Error> {
        PagedKvCacheMemory::on(layers, &Device::cpu())
    }

    /// Of layers, on a device, with no block yet.
    ///
    /// # Errors
    /// When there is no memory for it, or the device fails.
    #[track_caller]
    pub fn on(layers: &[KvCacheParams], device: &Device) -> Result<PagedKvCacheMemory, Error> {
        let (own, host) = (Blocks::default(), Blocks::default());
        let (layers, device) = (layers.to_vec(), *device);
        let mut memory = PagedKvCacheMemory { layers, device, own, host, stores: HashMap::new() };
        // A graph's dims are at least 1.
        memory.grow(1, 1)?;
        Ok(memory)
    }

    /// The blocks that have memory.
    pub fn blocks(&self) -> usize {
        self.own.count
    }

    /// The blocks that have memory on the host because others took theirs.
    pub fn host_blocks(&self) -> usize {
        self.host.count
    }

    /// The bytes that all of them take.
    pub fn num_bytes(&self) -> usize {
        (self.own.count + self.host.count) * self.layers.iter().map(KvCacheParams::bytes_per_page).sum::<usize>()
    }

    /// Keys and values of the first layer, of the second, and so on: what a graph changes.
    pub fn tensors_mut(&mut self) -> &mut [Tensor] {
        &mut self.own.tensors
    }

    /// Makes memory for the first `blocks` of a cache of `total`: for a quarter more than before, so that contents of many blocks are not
    /// copied for each one, and little memory is reserved ahead. The old buffers go back to the system: the cache never shrinks.
    ///
    /// # Errors
    /// When there is no memory for it; contents are as they were.
    #[track_caller]
    pub fn grow(&mut self, blocks: usize, total: usize) -> Result<(), Error> {
        self.grow_side(Side::Own, blocks, total)
    }

    /// The same of places on the host, in memory from which the device copies fast.
    ///
    /// # Errors
    /// As [`grow`](Self::grow).
    #[track_caller]
    pub fn grow_host(&mut self, blocks: usize, total: usize) -> Result<(), Error> {
        self.grow_side(Side::Host, blocks, total)
    }

    #[track_caller]
    fn grow_side(&mut self, side: Side, blocks: usize, total: usize) -> Result<(), Error> {
        let (old, memory) = match side {
            Side::Own => (&self.own, self.device),
            Side::Host => (&self.host, Device::cpu()),
        };
        if blocks <= old.count {
            return Ok(());
        }
        let count = blocks.max(old.count + old.count / 4).min(total.max(blocks));
        // While both are there, the allocator need not keep what steps have used: it comes again with the next one. A new cache takes
        // from it.
        let replaces = old.count > 0;
        if replaces {
            memory.release_cached_memory();
        }
        let mut tensors = Vec::with_capacity(2 * self.layers.len());
        let shapes = self.layers.iter().flat_map(|layer| layer.cache_shapes(count).map(|shape| (layer.dtype, shape)));
        for (i, (dtype, shape)) in shapes.enumerate() {
            let mut tensor = match side {
                Side::Own => Tensor::zeros(dtype, shape, &self.device)?,
                Side::Host => Tensor::zeros_pinned(dtype, shape, &self.device)?,
            };
            if let Some(old) = old.tensors.get(i) {
                store(&mut self.stores, &mut tensor, 0, old)?;
            }
            tensors.push(tensor);
        }
        let grown = Blocks { tensors, count };
        match side {
            Side::Own => self.own = grown,
            Side::Host => self.host = grown,
        }
        if replaces {
            memory.release_cached_memory();
        }
        Ok(())
    }

    /// Moves contents of blocks, in order; what has no memory on either side is left out.
    ///
    /// # Errors
    /// When a tensor is in use, or the device fails.
    #[track_caller]
    pub fn transfer(&mut self, transfers: &[BlockTransfer]) -> Result<(), Error> {
        let (own, host) = (self.own.count, self.host.count);
        let is_there = |block: u32, count: usize| (block as usize) < count;
        for transfer in transfers {
            match *transfer {
                BlockTransfer::Copy { from, to } if is_there(from.max(to), own) => {
                    for tensor in &mut self.own.tensors {
                        let block = tensor.narrow(0, from as usize, 1)?.copy()?;
                        store(&mut self.stores, tensor, to as usize, &block)?;
                    }
                }
                BlockTransfer::ToHost { block, host: place } if is_there(block, own) && is_there(place, host) => {
                    for (from, to) in self.own.tensors.iter().zip(&mut self.host.tensors) {
                        let block = from.narrow(0, block as usize, 1)?.to(&Device::cpu())?;
                        store(&mut self.stores, to, place as usize, &block)?;
                    }
                }
                BlockTransfer::FromHost { host: place, block } if is_there(block, own) && is_there(place, host) => {
                    for (from, to) in self.host.tensors.iter().zip(&mut self.own.tensors) {
                        let place = from.narrow(0, place as usize, 1)?.to(&self.device)?;
                        store(&mut self.stores, to, block as usize, &place)?;
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// The blocks on the device, or those that gave way.
#[derive(Clone, Copy)]
enum Side {
    Own,
    Host,
}

/// Overwrites the blocks of a tensor from `at` on with those of another of its device.
#[track_caller]
fn store(
    stores: &mut HashMap<(DType, Vec<usize>), Model>,
    tensor: &mut Tensor,
    at: usize,
    blocks: &Tensor,
) -> Result<(), Error> {
    let (dtype, block) = (tensor.dtype(), tensor.shape().get(1..).unwrap_or_default().to_vec());
    let size = block.iter().product::<usize>();
    if size == 0 {
        return Ok(());
    }
    if tensor.is_host() {
        dispatch!(dtype, T => {
            let from = blocks.as_slice::<T>()?;
            if let Some(to) = tensor.as_mut_slice::<T>()?.get_mut(at * size..at * size + from.len()) {
                to.copy_from_slice(from);
            }
        });
        return Ok(());
    }
    let model = match stores.entry((dtype, block)) {
        Entry::Occupied(entry) => entry.into_mut(),
        Entry::Vacant(entry) => {
            let model = store_model(dtype, &entry.key().1, tensor.device())?;
            entry.insert(model)
        }
    };
    // The place is the size of an operand, which the host knows.
    let place = Tensor::zeros(DType::U8, [at, 0], &Device::cpu())?;
    model.execute([Input::from(tensor), Input::from(blocks), Input::from(&place)])?;
    Ok(())
}

/// What stores blocks on a device: the tensor, the blocks, and `[first, 0]`.
fn store_model(dtype: DType, block: &[usize], on: &Device) -> Result<Model, Error> {
    let device = DeviceRef::from(on);
    let shape = |count: &str| -> Shape {
        std::iter::once(Dim::from(count)).chain(block.iter().map(|size| Dim::from(*size))).collect()
    };
    let types: [Type; 3] = [
        BufferType::new(dtype, shape("blocks"), device).into(),
        TensorType::new(dtype, shape("stored"), device).into(),
        TensorType::new(DType::U8, ("first", 0), DeviceRef::CPU).into(),
    ];
    let graph = Graph::new("store_blocks", types);
    let inputs = graph.inputs();
    let (first, stored) = (Dim::from("first"), Dim::from("stored"));
    ops::buffer_store_slice(inputs[0].buffer()?, &inputs[1], [DimSlice::range(first.clone(), first + stored)])?;
    graph.output(())?;
    Ok(InferenceSession::with_devices([*on]).load(&graph)?)
}

#[cfg(test)]
mod tests {
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

    #[test]
    fn contents_go_to_the_host_and_come_back() {
        let layer = KvCacheParams { page_size: 2, ..KvCacheParams::new(DType::F32, 2, 3) };
        let layers = [layer, KvCacheParams { is_mla: true, ..layer }];
        let mut memory = PagedKvCacheMemory::new(&layers).unwrap();
        memory.grow(3, 3).unwrap();
        for tensor in memory.tensors_mut() {
            let values = tensor.as_mut_slice::<f32>().unwrap();
            values.iter_mut().enumerate().for_each(|(i, x)| *x = 10.0 + (i / 12) as f32);
        }
        // The value of each block, in tensors of keys and values; latents have no values.
        let found = |memory: &mut PagedKvCacheMemory| -> Vec<Vec<f32>> {
            let of_tensor = |tensor: &mut Tensor| -> Vec<f32> {
                let blocks = tensor.as_slice::<f32>().unwrap().chunks(12);
                blocks.inspect(|block| assert_eq!(block, &[block[0]; 12])).map(|block| block[0]).collect()
            };
            memory.tensors_mut().iter_mut().map(of_tensor).collect()
        };
        // There is no memory on the host yet: left out.
        memory.transfer(&[BlockTransfer::ToHost { block: 1, host: 0 }]).unwrap();
        memory.grow_host(2, 5).unwrap();
        let transfers = [
            BlockTransfer::ToHost { block: 1, host: 1 },
            BlockTransfer::Copy { from: 0, to: 1 },
            BlockTransfer::ToHost { block: 2, host: 0 },
            BlockTransfer::FromHost { host: 1, block: 2 },
        ];
        memory.transfer(&transfers).unwrap();
        memory.grow_host(4, 5).unwrap();
        assert_eq!((memory.host_blocks(), memory.num_bytes()), (4, 7 * 3 * 12 * 4));
        let expected = vec![10.0, 10.0, 11.0];
        assert_eq!(found(&mut memory), [expected.clone(), expected.clone(), expected, vec![]]);
        memory.transfer(&[BlockTransfer::FromHost { host: 0, block: 0 }]).unwrap();
        assert_eq!(found(&mut memory)[2], [12.0, 10.0, 11.0]);
    }
}
