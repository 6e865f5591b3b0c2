//! Linear algebra: matrix products of floats, of 8-bit floats with scales and of quantized weights, and what is made of
//! products: attention and Fourier transforms.

pub(super) mod attention;
pub(super) mod float8;
pub(super) mod fourier;
pub(super) mod matmul;
pub(super) mod quantized;
