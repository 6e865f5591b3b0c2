//! [`PagedKvCacheValues`]: a paged cache in a graph; [`PagedKvCacheInputs`]: what it is for one step.

use max_core::driver::{Device, DeviceRef, DriverError, Tensor as DriverTensor};
use max_core::dtype::DType;
use max_core::graph::{BufferValue, GraphError, TensorType, TensorValue, Type, Value};

use super::KvCacheParams;
use crate::Result;
use crate::tensor::Tensor;

/// The inputs before the buffers.
const TENSORS: usize = 5;

/// A ragged batch over a paged cache, in a graph: the new tokens of all sequences lie behind each other, and a table says where
/// keys and values of each sequence are.
#[derive(Clone)]
pub struct PagedKvCacheValues {
    /// The keys and values of each layer, `[pages, key heads, page size, head size]`.
    pub blocks: Vec<[BufferValue; 2]>,
    /// Where the new tokens of each sequence begin, and where those of the last one end: `uint32`, `[sequences + 1]`.
    pub input_row_offsets: TensorValue,
    /// The tokens of each sequence before the new ones: `uint32`, `[sequences]`.
    pub cache_lengths: TensorValue,
    /// The pages of each sequence: `uint32`, `[sequences, pages]`.
    pub lookup_table: TensorValue,
    /// The length of each new token's sequence, with all new tokens: `int64`, `[new tokens]`.
    pub token_lengths: TensorValue,
    /// The most new tokens of a sequence, as its first dim: `uint8`, `[tokens, 0]`.
    pub max_new_tokens: TensorValue,
}

impl PagedKvCacheValues {
    /// The types of the inputs that [`new`](Self::new) takes: tensors, and two buffers for each layer.
    pub fn input_types(layers: &[KvCacheParams], device: DeviceRef) -> Vec<Type> {
        let mut types: Vec<Type> = vec![
            TensorType::new(DType::U32, ("offsets",), device).into(),
            TensorType::new(DType::U32, ("sequences",), device).into(),
            TensorType::new(DType::U32, ("sequences", "table_pages"), device).into(),
            TensorType::new(DType::I64, ("tokens",), device).into(),
            TensorType::new(DType::U8, ("max_new_tokens", 0), device).into(),
        ];
        types.extend(layers.iter().flat_map(|layer| layer.buffer_types(device).map(Type::from)));
        types
    }

    /// Of inputs of a graph.
    ///
    /// # Errors
    /// When they are not those that [`input_types`](Self::input_types) lists.
    #[track_caller]
    pub fn new(inputs: &[Value]) -> Result<PagedKvCacheValues> {
        let expected = "five tensors, and two buffers for each layer";
        let ([offsets, lengths, table, of_tokens, longest, buffers @ ..], true) = (inputs, inputs.len() % 2 == 1)
        else {
            return Err(GraphError::argument("kv_cache", "inputs", inputs.len(), expected));
        };
        let mut blocks = Vec::with_capacity(buffers.len() / 2);
        for pair in buffers.chunks_exact(2) {
            blocks.push([pair[0].buffer()?.clone(), pair[1].buffer()?.clone()]);
        }
        Ok(PagedKvCacheValues {
            blocks,
            input_row_offsets: offsets.tensor()?.clone(),
            cache_lengths: lengths.tensor()?.clone(),
            lookup_table: table.tensor()?.clone(),
            token_lengths: of_tokens.tensor()?.clone(),
            max_new_tokens: longest.tensor()?.clone(),
        })
    }

    /// Keys and values of a layer.
    ///
    /// # Errors
    /// When there is no such layer.
    #[track_caller]
    pub fn layer(&self, layer: usize) -> Result<&[BufferValue; 2]> {
        match self.blocks.get(layer) {
            Some(blocks) => Ok(blocks),
            None => {
                let expected = format!("less than {}", self.blocks.len());
                Err(GraphError::argument("kv_cache", "layer", layer, expected))
            }
        }
    }

    /// The dtype of a layer's keys and values, which may be another than activations have.
    ///
    /// # Errors
    /// When there is no such layer.
    #[track_caller]
    pub fn dtype(&self, layer: usize) -> Result<DType> {
        Ok(self.layer(layer)?[0].dtype())
    }

    /// The length of each new token's sequence.
    pub fn lengths_of_tokens(&self) -> Tensor {
        (&self.token_lengths).into()
    }
}

/// The tensors of a step, in the order in which a graph takes them before the buffers.
#[derive(Clone)]
pub struct PagedKvCacheInputs {
    tensors: [DriverTensor; TENSORS],
}

impl PagedKvCacheInputs {
    /// Of sequences of `new` tokens behind `cached` ones, whose pages are the rows of a table of `columns` pages.
    ///
    /// # Errors
    /// When the table does not have as many rows as there are sequences, or a number exceeds 32 bits.
    pub fn new(
        sequences: &[(usize, usize)],
        table: Vec<u32>,
        columns: usize,
    ) -> Result<PagedKvCacheInputs, DriverError> {
        let mut total = 0;
        let mut offsets = vec![0];
        for (_, new) in sequences {
            total += new;
            offsets.push(index(total));
        }
        let lengths: Vec<u32> = sequences.iter().map(|(cached, _)| index(*cached)).collect();
        let of_tokens = sequences.iter().flat_map(|(cached, new)| std::iter::repeat_n((cached + new) as i64, *new));
        let longest = sequences.iter().map(|(_, new)| *new).max().unwrap_or(0);
        let (count, columns) = (sequences.len(), columns);
        Ok(PagedKvCacheInputs {
            tensors: [
                DriverTensor::from_vec(offsets, [count + 1])?,
                DriverTensor::from_vec(lengths, [count])?,
                DriverTensor::from_vec(table, [count, columns])?,
                DriverTensor::from_vec(of_tokens.collect(), [total])?,
                DriverTensor::zeros(DType::U8, [longest, 0], &Device::cpu())?,
            ],
        })
    }

    /// The tensors, in order.
    pub fn tensors(&self) -> &[DriverTensor] {
        &self.tensors
    }
}

/// A number that a kernel takes; one that does not fit is behind all pages, where nothing is read or written.
fn index(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
