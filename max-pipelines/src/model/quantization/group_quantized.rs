//! Weights of folders that are quantized in groups, GPTQ and 8-bit floats, as numbers and as blocks.

use max_core::driver::{DriverError, Tensor};
use max_core::dtype::{DType, Element, F8E4M3, F8E5M2, f16};
use max_core::graph::quantization::QuantizationEncoding;

/// Blocks, their shape, and how they are read.
type Packed = (Vec<u8>, [usize; 2], QuantizationEncoding);

/// Floats of 8 bits, with a scale for each block of so many rows and columns.
pub(super) struct Float8 {
    pub(super) tensor: Tensor,
    /// Rows and columns.
    pub(super) sizes: [usize; 2],
    /// By blocks of rows, then of columns.
    pub(super) scales: Vec<f32>,
    /// The rows and columns of a block.
    pub(super) block: [usize; 2],
}

impl Float8 {
    fn scale(&self, row: usize, column: usize) -> f32 {
        let ([_, columns], [high, wide]) = (self.sizes, self.block);
        self.scales.get(row / high * columns.div_ceil(wide) + column / wide).copied().unwrap_or_default()
    }

    /// The numbers.
    pub(super) fn values(&self) -> Result<Vec<f32>, DriverError> {
        let mut values = match self.tensor.dtype() {
            DType::F8E5M2 => floats::<F8E5M2>(&self.tensor)?,
            _ => floats::<F8E4M3>(&self.tensor)?,
        };
        let ([_, columns], [_, wide]) = (self.sizes, self.block);
        for (row, values) in values.chunks_mut(columns.max(1)).enumerate() {
            for (block, values) in values.chunks_mut(wide).enumerate() {
                let scale = self.scale(row, block * wide);
                values.iter_mut().for_each(|value| *value *= scale);
            }
        }
        Ok(values)
    }

    /// The blocks of the rows, if the blocks of scales are whole ones.
    pub(super) fn packed(&self) -> Option<Packed> {
        let ([rows, columns], [_, wide]) = (self.sizes, self.block);
        let whole = |size: usize| columns.is_multiple_of(size) && (wide >= columns || wide.is_multiple_of(size));
        let encoding = match self.tensor.dtype() {
            DType::F8E4M3FN if whole(128) => QuantizationEncoding::Float8E4M3FN128,
            DType::F8E4M3FN if whole(32) => QuantizationEncoding::Float8E4M3FN32,
            _ => return None,
        };
        let size = encoding.elements_per_block();
        let bytes = self.tensor.contiguous().ok()?.view(DType::U8, None).ok()?.to_vec::<u8>().ok()?;
        let mut blocks = Vec::with_capacity(rows * columns / size * encoding.block_size());
        for (i, floats) in bytes.chunks_exact(size).enumerate() {
            let (row, column) = (i * size / columns, i * size % columns);
            blocks.extend_from_slice(&self.scale(row, column).to_le_bytes());
            blocks.extend_from_slice(floats);
        }
        Some((blocks, [rows, columns / size * encoding.block_size()], encoding))
    }
}

fn floats<T: Element>(tensor: &Tensor) -> Result<Vec<f32>, DriverError> {
    Ok(tensor.iter::<T>()?.map(|value| value.to_f64() as f32).collect())
}

/// Integers in words of 32 bits as AutoGPTQ lays them out, with scales and zeros for groups of columns (Frantar et al.: GPTQ, 2022).
pub(super) struct Gptq {
    pub(super) bits: u32,
    /// What is added to each zero.
    pub(super) zero_offset: u32,
    /// Rows and columns of the weight.
    pub(super) sizes: [usize; 2],
    /// `[columns / integers of a word, rows]`.
    pub(super) words: Vec<u32>,
    /// `[groups, rows / integers of a word]`.
    pub(super) zeros: Vec<u32>,
    /// `[groups, rows]`.
    pub(super) scales: Vec<f32>,
    /// The group of each column, which exists.
    pub(super) group_of: Vec<usize>,
}

impl Gptq {
    fn per_word(&self) -> usize {
        (32 / self.bits) as usize
    }

    /// Integer `i` of a word.
    fn integer(&self, word: Option<&u32>, i: usize) -> u32 {
        word.copied().unwrap_or_default() >> (self.bits * i as u32) & (u32::MAX >> (32 - self.bits))
    }

    fn quantized(&self, row: usize, column: usize) -> u32 {
        let per_word = self.per_word();
        self.integer(self.words.get(column / per_word * self.sizes[0] + row), column % per_word)
    }

    /// What a value of 0 is in a group.
    fn zero(&self, group: usize, row: usize) -> u32 {
        let per_word = self.per_word();
        let word = self.zeros.get(group * self.sizes[0].div_ceil(per_word) + row / per_word);
        self.integer(word, row % per_word) + self.zero_offset
    }

    fn scale(&self, group: usize, row: usize) -> f32 {
        self.scales.get(group * self.sizes[0] + row).copied().unwrap_or_default()
    }

    /// The numbers.
    pub(super) fn values(&self) -> Vec<f32> {
        let [rows, columns] = self.sizes;
        let mut values = vec![0.0f32; rows * columns];
        for (row, values) in values.chunks_mut(columns.max(1)).enumerate() {
            for ((column, value), group) in values.iter_mut().enumerate().zip(&self.group_of) {
                let quantized = self.quantized(row, column) as f32 - self.zero(*group, row) as f32;
                *value = self.scale(*group, row) * quantized;
            }
        }
        values
    }

    /// The blocks of the rows, columns in their [order](by_group): of integers of 4 bits with scales of half precision, whose groups
    /// are all whole blocks.
    pub(super) fn packed(&self) -> Option<Packed> {
        let ([rows, columns], order) = (self.sizes, by_group(&self.group_of));
        let whole = |size: usize| {
            let same =
                |block: &[usize]| block.iter().all(|column| self.group_of.get(*column) == self.group_of.get(block[0]));
            columns > 0 && columns.is_multiple_of(size) && order.chunks(size).all(same)
        };
        let encoding = match () {
            () if self.bits != 4 => return None,
            () if whole(128) => QuantizationEncoding::Gptq128,
            () if whole(64) => QuantizationEncoding::Gptq64,
            () if whole(32) => QuantizationEncoding::Gptq32,
            () => return None,
        };
        if self.scales.iter().any(|scale| f16::from_f32(*scale).to_f32() != *scale) {
            return None;
        }
        let (size, bytes) = (encoding.elements_per_block(), encoding.block_size());
        let mut blocks = vec![0u8; rows * columns / size * bytes];
        for (i, block) in blocks.chunks_exact_mut(bytes).enumerate() {
            let (row, first) = (i / (columns / size), i % (columns / size) * size);
            let group = self.group_of[order[first]];
            let integer = |j: usize| self.quantized(row, order[first + j]) as u8;
            let scale = f16::from_f32(self.scale(group, row));
            encoding.gptq_block(scale, self.zero(group, row) as u8, integer, block);
        }
        Some((blocks, [rows, columns / size * bytes], encoding))
    }
}

/// The columns, those of a group behind each other, by the group of each.
pub(super) fn by_group(group_of: &[usize]) -> Vec<usize> {
    let mut columns: Vec<usize> = (0..group_of.len()).collect();
    columns.sort_by_key(|column| group_of[*column]);
    columns
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_have_the_numbers() {
        let [rows, columns] = [8, 128];
        for (size, order, encoding) in [
            (128, false, QuantizationEncoding::Gptq128),
            (64, true, QuantizationEncoding::Gptq64),
            (32, true, QuantizationEncoding::Gptq32),
        ] {
            let groups = columns / size;
            let gptq = Gptq {
                bits: 4,
                zero_offset: 1,
                sizes: [rows, columns],
                words: (0..columns / 8 * rows).map(|i| (i as u32 + 1).wrapping_mul(0x9e37_79b9)).collect(),
                zeros: (0..groups * rows / 8).map(|i| (i as u32 + 5).wrapping_mul(0x85eb_ca6b)).collect(),
                scales: (0..groups * rows).map(|i| 0.25 + i as f32 / 64.0).collect(),
                group_of: (0..columns).map(|i| if order { i * 37 % columns / size } else { i / size }).collect(),
            };
            let (blocks, shape, its) = gptq.packed().unwrap();
            assert_eq!((its, blocks.len()), (encoding, shape[0] * shape[1]));
            let (found, expected) = (its.dequantize(&blocks), gptq.values());
            let order = by_group(&gptq.group_of);
            for (at, value) in found.iter().enumerate() {
                assert_eq!(*value, expected[at / columns * columns + order[at % columns]], "{its} {at}");
            }
            // Scales that are no halves, and groups that are no blocks, stay numbers.
            assert!(Gptq { scales: vec![0.1; groups * rows], ..clone(&gptq) }.packed().is_none());
            let odd = (0..columns).map(|i| usize::from(i >= 17)).collect();
            assert!(groups < 2 || Gptq { group_of: odd, ..clone(&gptq) }.packed().is_none());
        }
    }

    fn clone(gptq: &Gptq) -> Gptq {
        Gptq {
            words: gptq.words.clone(),
            zeros: gptq.zeros.clone(),
            scales: gptq.scales.clone(),
            group_of: gptq.group_of.clone(),
            ..*gptq
        }
    }

    #[test]
    fn small_floats_stay_as_they_are() {
        for (columns, block, encoding) in [
            (256, [8, 256], QuantizationEncoding::Float8E4M3FN128),
            (256, [4, 128], QuantizationEncoding::Float8E4M3FN128),
            (96, [1, 96], QuantizationEncoding::Float8E4M3FN32),
        ] {
            let rows = 8;
            let floats: Vec<F8E4M3> =
                (0..rows * columns).map(|i| <F8E4M3 as Element>::from_f64((i % 97) as f64 - 48.0)).collect();
            let count = usize::div_ceil(rows, block[0]) * usize::div_ceil(columns, block[1]);
            let floats = Float8 {
                tensor: Tensor::from_vec(floats, [rows, columns]).unwrap(),
                sizes: [rows, columns],
                scales: (0..count).map(|i| 0.01 * (i + 1) as f32).collect(),
                block,
            };
            let (blocks, shape, its) = floats.packed().unwrap();
            assert_eq!((its, blocks.len()), (encoding, shape[0] * shape[1]));
            assert_eq!(its.dequantize(&blocks), floats.values().unwrap());
            let odd = Float8 { block: [8, 20], scales: vec![1.0; 16], tensor: floats.tensor.clone(), ..floats };
            assert!(odd.packed().is_none());
        }
    }
}
