//! [`Converted`]: ggml's blocks that there are no kernels for, as blocks that there are, or as floats.
//!
//! The layouts are those of `ggml-common.h`. Nothing is rounded: blocks become others of the same numbers, and floats are what
//! llama.cpp computes of them.

use half::f16;

use crate::dtype::DType;
use crate::graph::quantization::QuantizationEncoding::{self, Q6_K, Q8_0};

/// A type of blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(non_camel_case_types)]
pub(in crate::graph::weights) enum Converted {
    Q4_1,
    Q5_0,
    Q5_1,
    Q2_K,
    Q3_K,
    IQ4_NL,
    IQ4_XS,
}

/// What the four bits of IQ4 stand for.
const IQ4: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

impl Converted {
    /// Elements of a block.
    pub fn elements(self) -> usize {
        match self {
            Converted::Q4_1 | Converted::Q5_0 | Converted::Q5_1 | Converted::IQ4_NL => 32,
            Converted::Q2_K | Converted::Q3_K | Converted::IQ4_XS => 256,
        }
    }

    /// Bytes of a block in the file.
    pub fn block_size(self) -> usize {
        match self {
            Converted::Q4_1 => 20,
            Converted::Q5_0 => 22,
            Converted::Q5_1 => 24,
            Converted::Q2_K => 84,
            Converted::Q3_K => 110,
            Converted::IQ4_NL => 18,
            Converted::IQ4_XS => 136,
        }
    }

    /// The blocks that it becomes, of as many elements; `None` for `float32`.
    pub fn encoding(self) -> Option<QuantizationEncoding> {
        match self {
            // A scale of half precision, and integers of fewer bits.
            Converted::Q5_0 | Converted::IQ4_NL => Some(Q8_0),
            // Scales of 6 bits in place of 8, and integers of 3 in place of 6.
            Converted::Q3_K => Some(Q6_K),
            Converted::Q4_1 | Converted::Q5_1 | Converted::Q2_K | Converted::IQ4_XS => None,
        }
    }

    /// The dtype that it has then.
    pub fn dtype(self) -> DType {
        if self.encoding().is_some() { DType::U8 } else { DType::F32 }
    }

    /// The bytes that a block becomes.
    pub fn converted_size(self) -> usize {
        self.encoding().map_or(self.elements() * size_of::<f32>(), |encoding| encoding.block_size())
    }

    /// Blocks of a file as what they become: of each, as many bytes as [`converted_size`](Self::converted_size) says.
    pub fn convert(self, blocks: &[u8], out: &mut [u8]) {
        for (block, out) in blocks.chunks_exact(self.block_size()).zip(out.chunks_exact_mut(self.converted_size())) {
            match self {
                Converted::Q5_0 => {
                    let bits = u32::from_le_bytes([block[2], block[3], block[4], block[5]]);
                    out[..2].copy_from_slice(&block[..2]);
                    for (i, out) in out[2..].iter_mut().enumerate() {
                        *out = (nibble(&block[6..], i) | ((bits >> i & 1) as u8) << 4).wrapping_sub(16);
                    }
                }
                Converted::IQ4_NL => {
                    out[..2].copy_from_slice(&block[..2]);
                    for (i, out) in out[2..].iter_mut().enumerate() {
                        *out = IQ4[usize::from(nibble(&block[2..], i))] as u8;
                    }
                }
                Converted::Q3_K => q3_k(block, out),
                _ => {
                    let mut values = [0.0; 256];
                    let values = &mut values[..self.elements()];
                    self.values(block, values);
                    for (value, out) in values.iter().zip(out.chunks_exact_mut(size_of::<f32>())) {
                        out.copy_from_slice(&value.to_ne_bytes());
                    }
                }
            }
        }
    }

    /// The elements of a block that becomes floats.
    fn values(self, block: &[u8], out: &mut [f32]) {
        let half = |at: usize| f32::from(f16::from_le_bytes([block[at], block[at + 1]]));
        match self {
            Converted::Q4_1 => {
                let (scale, least) = (half(0), half(2));
                for (i, out) in out.iter_mut().enumerate() {
                    *out = f32::from(nibble(&block[4..], i)) * scale + least;
                }
            }
            Converted::Q5_1 => {
                let (scale, least) = (half(0), half(2));
                let bits = u32::from_le_bytes([block[4], block[5], block[6], block[7]]);
                for (i, out) in out.iter_mut().enumerate() {
                    let value = nibble(&block[8..], i) | ((bits >> i & 1) as u8) << 4;
                    *out = f32::from(value) * scale + least;
                }
            }
            Converted::Q2_K => {
                let (scale, least) = (half(80), half(82));
                for (i, out) in out.iter_mut().enumerate() {
                    let of = block[i / 16];
                    let two = block[16 + i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
                    *out = scale * f32::from(of & 15) * f32::from(two) - least * f32::from(of >> 4);
                }
            }
            Converted::IQ4_XS => {
                let (scale, high) = (half(0), u16::from_le_bytes([block[2], block[3]]));
                for (i, out) in out.iter_mut().enumerate() {
                    let group = i / 32;
                    let of = (block[4 + group / 2] >> (group % 2 * 4) & 15) | ((high >> (2 * group) & 3) as u8) << 4;
                    let value = IQ4[usize::from(nibble(&block[8 + group * 16..], i % 32))];
                    *out = scale * (f32::from(of) - 32.0) * f32::from(value);
                }
            }
            Converted::Q5_0 | Converted::Q3_K | Converted::IQ4_NL => {}
        }
    }
}

/// Element `i` of 32 in 16 bytes: the low halves of all bytes come before the high ones.
fn nibble(bytes: &[u8], i: usize) -> u8 {
    bytes[i % 16] >> (i / 16 * 4) & 15
}

/// A block of Q3_K as one of Q6_K: the same scales and integers, in other places.
fn q3_k(block: &[u8], out: &mut [u8]) {
    let (high, low, scales) = (&block[..32], &block[32..96], &block[96..108]);
    out.fill(0);
    for i in 0..256 {
        let two = low[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
        let third = high[i % 32] >> (i / 32) & 1;
        // From -4 on, which is 28 of 6 bits.
        let value = 28 + two + (third << 2);
        let (part, quarter, lane) = (i / 128, i % 128 / 32, i % 32);
        out[part * 64 + quarter % 2 * 32 + lane] |= (value & 15) << (quarter / 2 * 4);
        out[128 + part * 32 + lane] |= (value >> 4) << (quarter * 2);
    }
    for i in 0..16 {
        let four = if i < 8 { scales[i] & 15 } else { scales[i - 8] >> 4 };
        let two = scales[8 + i % 4] >> (i / 4 * 2) & 3;
        out[192 + i] = (four | two << 4).wrapping_sub(32);
    }
    out[208..210].copy_from_slice(&block[108..110]);
}
