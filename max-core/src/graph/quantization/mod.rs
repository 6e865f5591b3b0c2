//! [`QuantizationEncoding`]: weights in blocks of small integers with shared scales.
//!
//! The layouts of the blocks that GGUF files have are those of [ggml](https://github.com/ggml-org/ggml), by which such files are
//! written. Weights of GPTQ and of 8-bit floats are put in blocks when they are loaded.

mod custom;
mod groups;
mod quantize;

pub use custom::CustomEncoding;

use std::fmt;
use std::str::FromStr;

use crate::dtype::f16;

/// How many elements a block has, and in how many bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct BlockParameters {
    /// Elements of a block.
    pub elements_per_block: usize,
    /// Bytes of a block.
    pub block_size: usize,
}

impl BlockParameters {
    /// No size is 0: others are divided by them.
    const fn at_least_one(self) -> BlockParameters {
        let BlockParameters { elements_per_block, block_size } = self;
        BlockParameters {
            elements_per_block: if elements_per_block == 0 { 1 } else { elements_per_block },
            block_size: if block_size == 0 { 1 } else { block_size },
        }
    }
}

macro_rules! encodings {
    ($($(#[$doc:meta])+ $variant:ident $name:literal: $elements:literal in $bytes:literal, $decode:path;)+) => {
        /// How the elements of a weight are quantized.
        ///
        /// A quantized weight is a tensor of bytes: a row of `n` elements takes `n / elements_per_block * block_size`.
        ///
        /// ```
        /// use max_core::graph::quantization::QuantizationEncoding;
        ///
        /// let encoding: QuantizationEncoding = "q4_k".parse()?;
        /// assert_eq!((encoding.elements_per_block(), encoding.block_size()), (256, 144));
        /// assert_eq!(encoding.to_string(), "q4_k");
        /// # Ok::<(), max_core::graph::quantization::UnknownEncoding>(())
        /// ```
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[non_exhaustive]
        #[allow(non_camel_case_types, reason = "the field writes these names so")]
        pub enum QuantizationEncoding {
            $($(#[$doc])+ $variant,)+
            /// An encoding of one's own, with its kernels.
            Custom(&'static CustomEncoding),
        }

        impl QuantizationEncoding {
            /// All of this library's.
            pub const ALL: &'static [QuantizationEncoding] = &[$(QuantizationEncoding::$variant),+];

            /// The name in lower case, `q4_k`.
            pub const fn name(self) -> &'static str {
                match self {
                    $(QuantizationEncoding::$variant => $name,)+
                    QuantizationEncoding::Custom(custom) => custom.name,
                }
            }

            /// How many elements a block has, and in how many bytes.
            pub const fn block_parameters(self) -> BlockParameters {
                match self {
                    $(QuantizationEncoding::$variant => {
                        BlockParameters { elements_per_block: $elements, block_size: $bytes }
                    })+
                    QuantizationEncoding::Custom(custom) => custom.block_parameters.at_least_one(),
                }
            }

            /// The elements of these blocks, each rounded once to `f32` after every multiplication, as llama.cpp does. What
            /// follows the last whole block is left out.
            pub fn dequantize(self, blocks: &[u8]) -> Vec<f32> {
                let mut out = Vec::with_capacity(blocks.len() / self.block_size() * self.elements_per_block());
                match self {
                    $(QuantizationEncoding::$variant => blocks.as_chunks::<$bytes>().0.iter().for_each(|block| {
                        let mut elements = [0.0; $elements];
                        $decode(block, &mut elements);
                        out.extend_from_slice(&elements);
                    }),)+
                    QuantizationEncoding::Custom(custom) => out = (custom.dequantize)(blocks),
                }
                out
            }
        }
    };
}

encodings! {
    /// 32 elements of 4 bits with a scale.
    Q4_0 "q4_0": 32 in 18, q4_0;
    /// 32 elements of 8 bits with a scale.
    Q8_0 "q8_0": 32 in 34, q8_0;
    /// 256 elements of 4 bits; groups of 32 with a scale and a minimum of 6 bits each.
    Q4_K "q4_k": 256 in 144, q4_k;
    /// 256 elements of 5 bits; groups of 32 with a scale and a minimum of 6 bits each.
    Q5_K "q5_k": 256 in 176, q5_k;
    /// 256 elements of 6 bits; groups of 16 with a scale of 8 bits each.
    Q6_K "q6_k": 256 in 210, q6_k;
    /// Groups of 32 elements of 4 bits with a scale and an integer that is 0, as GPTQ makes them.
    Gptq32 "gptq_32": 32 in 20, groups::gptq;
    /// Groups of 64, as [`Gptq32`](Self::Gptq32).
    Gptq64 "gptq_64": 64 in 36, groups::gptq;
    /// Groups of 128, as [`Gptq32`](Self::Gptq32).
    Gptq128 "gptq_128": 128 in 68, groups::gptq;
    /// Groups of 32 floats of 8 bits, `float8_e4m3fn`, with a scale.
    Float8E4M3FN32 "float8_e4m3fn_32": 32 in 36, groups::float8;
    /// Groups of 128, as [`Float8E4M3FN32`](Self::Float8E4M3FN32).
    Float8E4M3FN128 "float8_e4m3fn_128": 128 in 132, groups::float8;
}

impl QuantizationEncoding {
    /// Bytes of a block.
    pub const fn block_size(self) -> usize {
        self.block_parameters().block_size
    }

    /// Elements of a block.
    pub const fn elements_per_block(self) -> usize {
        self.block_parameters().elements_per_block
    }

    /// Writes the block of a group of GPTQ: integers of 4 bits, by their places, which are multiplied by `scale` when `zero` is
    /// subtracted. A block of another size is filled as far as it goes.
    ///
    /// ```
    /// use max_core::{dtype::f16, graph::quantization::QuantizationEncoding::Gptq32};
    ///
    /// let mut block = [0; 20];
    /// Gptq32.gptq_block(f16::from_f32(0.5), 8, |i| if i == 3 { 9 } else { 8 }, &mut block);
    /// let elements = Gptq32.dequantize(&block);
    /// assert_eq!((elements[3], elements[4]), (0.5, 0.0));
    /// ```
    pub fn gptq_block(self, scale: f16, zero: u8, integers: impl Fn(usize) -> u8, block: &mut [u8]) {
        groups::gptq_block(scale, zero, integers, block);
    }

    /// Whether GGUF files have it.
    pub const fn is_gguf(self) -> bool {
        use QuantizationEncoding::{Q4_0, Q4_K, Q5_K, Q6_K, Q8_0};
        matches!(self, Q4_0 | Q8_0 | Q4_K | Q5_K | Q6_K)
    }
}

/// How a model's weights are quantized whose blocks have no layout of their own, as the `quantization_config` of a folder's `config.json`
/// says.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct QuantizationConfig {
    /// The method, such as `gptq`.
    pub quant_method: String,
    /// The bits of an element.
    pub bits: usize,
    /// How many elements share a scale.
    pub group_size: usize,
    /// Whether groups are of inputs in the order of their activations.
    pub desc_act: bool,
    /// Whether there are no zero points.
    pub sym: bool,
}

impl fmt::Display for QuantizationConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} bits in groups of {}", self.quant_method, self.bits, self.group_size)
    }
}

impl fmt::Display for QuantizationEncoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that is none of an encoding's.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("there is no quantization encoding `{0}`; there are {known}", known = known())]
pub struct UnknownEncoding(String);

/// The names of all encodings.
fn known() -> String {
    QuantizationEncoding::ALL.iter().map(|encoding| encoding.name()).collect::<Vec<_>>().join(", ")
}

impl FromStr for QuantizationEncoding {
    type Err = UnknownEncoding;

    fn from_str(name: &str) -> Result<Self, UnknownEncoding> {
        let found = QuantizationEncoding::ALL.iter().find(|encoding| encoding.name().eq_ignore_ascii_case(name));
        found.copied().ok_or_else(|| UnknownEncoding(name.to_owned()))
    }
}

fn half(low: u8, high: u8) -> f32 {
    f16::from_le_bytes([low, high]).to_f32()
}

fn q4_0(block: &[u8; 18], out: &mut [f32; 32]) {
    let [low, high, quants @ ..] = block;
    let scale = half(*low, *high);
    let (first, second) = out.split_at_mut(16);
    for ((quant, first), second) in quants.iter().zip(first).zip(second) {
        *first = f32::from((quant & 15) as i8 - 8) * scale;
        *second = f32::from((quant >> 4) as i8 - 8) * scale;
    }
}

fn q8_0(block: &[u8; 34], out: &mut [f32; 32]) {
    let [low, high, quants @ ..] = block;
    let scale = half(*low, *high);
    for (quant, out) in quants.iter().zip(out) {
        *out = f32::from(*quant as i8) * scale;
    }
}

/// Scale and minimum of group `j` of 8: 6 bits each, in 12 bytes.
fn group(packed: &[u8; 12], j: usize) -> (f32, f32) {
    let (scale, minimum) = if j < 4 {
        (packed[j] & 63, packed[j + 4] & 63)
    } else {
        let (scale, minimum) = (packed[j + 4] & 15, packed[j + 4] >> 4);
        (scale | packed[j - 4] >> 6 << 4, minimum | packed[j] >> 6 << 4)
    };
    (scale.into(), minimum.into())
}

/// The blocks of Q4_K and Q5_K: `quant` gives the integer of element `l` of group `j`.
fn with_minima(scales: &[u8; 16], out: &mut [f32; 256], quant: impl Fn(usize, usize) -> u8) {
    let [a, b, c, d, packed @ ..] = scales;
    let (scale, minimum) = (half(*a, *b), half(*c, *d));
    for (j, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (of_group, least) = group(packed, j);
        let (of_group, least) = (scale * of_group, minimum * least);
        for (l, out) in out.iter_mut().enumerate() {
            *out = of_group * f32::from(quant(j, l)) - least;
        }
    }
}

/// Element `l` of group `j`, where two groups of 32 share bytes.
fn nibble(quants: &[u8], j: usize, l: usize) -> u8 {
    quants[j / 2 * 32 + l] >> (j % 2 * 4) & 15
}

fn q4_k(block: &[u8; 144], out: &mut [f32; 256]) {
    let Some((scales, quants)) = block.split_first_chunk::<16>() else { return };
    with_minima(scales, out, |j, l| nibble(quants, j, l));
}

fn q5_k(block: &[u8; 176], out: &mut [f32; 256]) {
    let Some((scales, rest)) = block.split_first_chunk::<16>() else { return };
    let (high, quants) = rest.split_at(32);
    with_minima(scales, out, |j, l| nibble(quants, j, l) | (high[l] >> j & 1) << 4);
}

fn q6_k(block: &[u8; 210], out: &mut [f32; 256]) {
    let (low, rest) = block.split_at(128);
    let (high, rest) = rest.split_at(64);
    let (scales, scale) = rest.split_at(16);
    let scale = half(scale[0], scale[1]);
    for (i, out) in out.iter_mut().enumerate() {
        // Halves of 128 elements, each of four runs of 32: two runs share bytes of the low bits, all four those of the high ones.
        let (part, run, l) = (i / 128, i % 128 / 32, i % 32);
        let low = low[part * 64 + run % 2 * 32 + l] >> (run / 2 * 4) & 15;
        let high = high[part * 32 + l] >> (run * 2) & 3;
        let of_group = f32::from(scales[i / 16] as i8);
        *out = scale * of_group * f32::from((low | high << 4) as i8 - 32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for encoding in QuantizationEncoding::ALL {
            assert_eq!(encoding.name().to_uppercase().parse(), Ok(*encoding));
        }
        let error = "q3".parse::<QuantizationEncoding>().unwrap_err().to_string();
        assert!(error.starts_with("there is no quantization encoding `q3`; there are q4_0, q8_0, q4_k,"), "{error}");
    }

    #[test]
    fn blocks_are_dequantized() {
        let scale = f16::from_f32(0.5).to_le_bytes();
        let mut block = vec![0x98; 18];
        block[..2].copy_from_slice(&scale);
        let floats = QuantizationEncoding::Q4_0.dequantize(&block);
        assert_eq!((floats.len(), floats[0], floats[16]), (32, 0.0, 0.5));
        let mut block = vec![0xff; 34];
        block[..2].copy_from_slice(&scale);
        assert_eq!(QuantizationEncoding::Q8_0.dequantize(&block), [-0.5; 32]);
        // What is left of a block is none.
        assert_eq!(QuantizationEncoding::Q8_0.dequantize(&block[..33]), [0.0f32; 0]);
    }

    #[test]
    fn minima_are_subtracted() {
        // Groups 0 to 3 have scale j + 1 and minimum 2 j, in 6 bits; of groups 4 to 7 the upper two bits lie above those.
        let mut block = vec![0; 144];
        block[..2].copy_from_slice(&f16::from_f32(1.0).to_le_bytes());
        block[2..4].copy_from_slice(&f16::from_f32(0.25).to_le_bytes());
        for j in 0..4u8 {
            block[4 + usize::from(j)] = (j + 1) | 0x40;
            block[8 + usize::from(j)] = (2 * j) | 0x80;
            block[12 + usize::from(j)] = 0x30 | (j + 5);
        }
        block[16..].fill(0x21);
        let floats = QuantizationEncoding::Q4_K.dequantize(&block);
        for j in 0..4 {
            assert_eq!(floats[32 * j], (j + 1) as f32 * [1.0, 2.0][j % 2] - 0.25 * (2 * j) as f32, "group {j}");
            // Scale (j + 5) | 1 << 4, minimum 3 | 2 << 4.
            let of_group = ((j + 5) | 16) as f32;
            assert_eq!(floats[32 * (j + 4)], of_group * [1.0, 2.0][j % 2] - 0.25 * 35.0, "group {}", j + 4);
        }
        // A fifth bit, where the first byte of the high bits has it: group 1 alone.
        let mut five = [&block[..16], &[0; 32], &block[16..]].concat();
        five[16] = 0b10;
        let with_bit = QuantizationEncoding::Q5_K.dequantize(&five);
        assert_eq!(with_bit[32] - floats[32], 16.0 * 2.0);
        assert_eq!(with_bit[33], floats[33]);
    }

    #[test]
    fn six_bits_are_put_together() {
        let mut block = vec![0; 210];
        block[208..].copy_from_slice(&f16::from_f32(1.0).to_le_bytes());
        block[192..208].fill(1);
        block[192 + 9] = (-2i8) as u8;
        let plain = QuantizationEncoding::Q6_K.dequantize(&block);
        assert_eq!((plain[0], plain[144]), (-32.0, 64.0));
        // The byte of elements 32 and 96, and the high bits of 0, 32, 64 and 96.
        block[32] = 0xa5;
        block[128] = 0b11_10_01_00;
        let floats = QuantizationEncoding::Q6_K.dequantize(&block);
        let expected = [-32.0, (5 + 16 - 32) as f32, (32 - 32) as f32, (10 + 48 - 32) as f32];
        assert_eq!([floats[0], floats[32], floats[64], floats[96]], expected);
    }
}
