//! [`KvCacheParams`] and [`KvCacheValues`]: keys and values of the tokens that a sequence has so far.

use max_core::driver::DeviceRef;
use max_core::dtype::DType;
use max_core::graph::{BufferType, BufferValue, Dim, DimSlice, GraphError, Value, ops};

use crate::Result;
use crate::tensor::Tensor;

/// What a layer keeps of each token.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KvCacheParams {
    /// The dtype of keys and values.
    pub dtype: DType,
    /// The heads of keys and values.
    pub n_kv_heads: usize,
    /// The elements of a head.
    pub head_dim: usize,
}

impl KvCacheParams {
    /// The bytes that a token takes in a layer.
    pub fn bytes_per_token(&self) -> usize {
        2 * self.n_kv_heads * self.head_dim * self.dtype.size_in_bytes()
    }

    /// The type of the buffer of a layer's keys, or values: `[key heads, room, head size]`, with room for so many tokens.
    pub fn buffer_type(&self, room: impl Into<Dim>, device: DeviceRef) -> BufferType {
        BufferType::new(self.dtype, [self.n_kv_heads.into(), room.into(), Dim::from(self.head_dim)], device)
    }
}

/// A sequence in a graph: the buffers of all layers, how many tokens they hold when it is executed, and how many are new.
#[derive(Clone)]
pub struct KvCacheValues {
    layers: Vec<[BufferValue; 2]>,
    /// The tokens before those of this step.
    pub past: Dim,
    /// The tokens of this step; there may be none.
    pub new: Dim,
}

impl KvCacheValues {
    /// Of inputs of a graph: keys and values of the first layer, of the second, and so on.
    ///
    /// # Errors
    /// When an input is no buffer, or their number is odd.
    #[track_caller]
    pub fn new(buffers: &[Value], past: impl Into<Dim>, new: impl Into<Dim>) -> Result<KvCacheValues> {
        let (pairs, rest) = buffers.as_chunks::<2>();
        if !rest.is_empty() {
            return Err(GraphError::argument("kv_cache", "buffers", buffers.len(), "two for each layer"));
        }
        let layers = pairs.iter().map(|[keys, values]| Ok([keys.buffer()?.clone(), values.buffer()?.clone()]));
        Ok(KvCacheValues { layers: layers.collect::<Result<_>>()?, past: past.into(), new: new.into() })
    }

    /// Writes keys and values of new tokens, `[key heads, new, head size]`, behind those of a layer, and gives all of them.
    ///
    /// # Errors
    /// When there is no such layer, or the types differ.
    #[track_caller]
    pub fn extend(&self, layer: usize, keys: &Tensor, values: &Tensor) -> Result<[Tensor; 2]> {
        let Some(buffers) = self.layers.get(layer) else {
            return Err(GraphError::argument("kv_cache", "layer", layer, format!("less than {}", self.layers.len())));
        };
        let extended = |buffer: &BufferValue, new: &Tensor| {
            let Some(value) = new.graph_value() else {
                return Err(GraphError::argument(
                    "kv_cache",
                    "keys",
                    "an eager tensor",
                    "a value of the buffers' graph",
                ));
            };
            let end = self.past.clone() + &self.new;
            let place = [DimSlice::from(..), DimSlice::range(self.past.clone(), end.clone())];
            ops::buffer_store_slice(buffer, value, place)?;
            Ok(ops::slice_tensor(buffer.load()?, [DimSlice::from(..), DimSlice::from(..end)])?.into())
        };
        Ok([extended(&buffers[0], keys)?, extended(&buffers[1], values)?])
    }
}
