//! [`CustomEncoding`]: an encoding of one's own.

use std::fmt;
use std::hash::{Hash, Hasher};

use super::BlockParameters;

/// How the elements of a weight are quantized, by somebody else than this library: sizes of blocks, and kernels by name.
///
/// A layer with a `quantization_encoding` takes it as it takes those of this library: see the example `own_quantization`. A name is
/// that of one encoding.
///
/// ```
/// use max_core::graph::quantization::{BlockParameters, CustomEncoding, QuantizationEncoding};
///
/// static BYTES: CustomEncoding = CustomEncoding {
///     name: "bytes",
///     block_parameters: BlockParameters { elements_per_block: 1, block_size: 1 },
///     dequantize_kernel: "dequantize_bytes",
///     qmatmul_kernel: "qmatmul_bytes",
///     quantize: |elements| elements.iter().map(|x| *x as u8).collect(),
///     dequantize: |blocks| blocks.iter().map(|x| f32::from(*x)).collect(),
/// };
/// let encoding = QuantizationEncoding::Custom(&BYTES);
/// assert_eq!(encoding.dequantize(&encoding.quantize(&[1.0, 7.0])), [1.0, 7.0]);
/// ```
#[derive(Clone, Copy)]
pub struct CustomEncoding {
    /// Its name, which tells it from others.
    pub name: &'static str,
    /// How many elements a block has, and in how many bytes.
    pub block_parameters: BlockParameters,
    /// The kernel of the elements: `(y: Out<f32, 2>, blocks: In<u8, 2>)`.
    pub dequantize_kernel: &'static str,
    /// The kernel of products, `y[n, m]` of rows `n` of blocks and rows `m` of `x`:
    /// `(y: Out<f32, 2>, blocks: In<u8, 2>, x: In<f32, 2>)`.
    pub qmatmul_kernel: &'static str,
    /// The blocks of elements.
    pub quantize: fn(&[f32]) -> Vec<u8>,
    /// The elements of blocks.
    pub dequantize: fn(&[u8]) -> Vec<f32>,
}

impl PartialEq for CustomEncoding {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for CustomEncoding {}

impl Hash for CustomEncoding {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

impl fmt::Debug for CustomEncoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}
