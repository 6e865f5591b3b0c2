//! Matrix products, those with quantized weights too, and attention.

use max_core::graph::ops::{self, AttentionOptions};
use max_core::graph::quantization::QuantizationEncoding;

use crate::Result;
use crate::tensor::{Operand, Tensor, apply};

/// The matrix product of the last two axes; those before are broadcast. Vectors are rows on the left, columns on the right.
///
/// # Errors
/// When the inner dims differ, and as [`add`](super::add) for dtypes, devices and the other axes.
#[track_caller]
pub fn matmul(lhs: impl Into<Operand>, rhs: impl Into<Operand>) -> Result<Tensor> {
    apply("matmul", &mut [lhs.into(), rhs.into()], (), |x, ()| ops::matmul(&x[0], &x[1]))
}

/// The products of each element of one vector with each of another.
///
/// # Errors
/// When an operand is no vector, and as [`add`](super::add) for dtypes and devices.
#[track_caller]
pub fn outer(lhs: impl Into<Operand>, rhs: impl Into<Operand>) -> Result<Tensor> {
    apply("outer", &mut [lhs.into(), rhs.into()], (), |x, ()| ops::outer(&x[0], &x[1]))
}

/// `softmax(query · keyᵀ * scale) · value` of each head: see [`ops::attention`].
///
/// # Errors
/// As [`ops::attention`].
#[track_caller]
pub fn attention(
    query: impl Into<Operand>,
    key: impl Into<Operand>,
    value: impl Into<Operand>,
    options: AttentionOptions,
) -> Result<Tensor> {
    apply("attention", &mut [query.into(), key.into(), value.into()], options, |x, options| {
        ops::attention(&x[0], &x[1], &x[2], *options)
    })
}

/// [`attention`] with a mask that is added to the scaled scores: see [`ops::attention_masked`].
///
/// # Errors
/// As [`ops::attention_masked`].
#[track_caller]
pub fn attention_masked(
    query: impl Into<Operand>,
    key: impl Into<Operand>,
    value: impl Into<Operand>,
    mask: impl Into<Operand>,
    options: AttentionOptions,
) -> Result<Tensor> {
    apply("attention_masked", &mut [query.into(), key.into(), value.into(), mask.into()], options, |x, options| {
        ops::attention_masked(&x[0], &x[1], &x[2], &x[3], *options)
    })
}

/// The elements of a tensor of quantized blocks: see [`ops::dequantize`].
///
/// # Errors
/// As [`ops::dequantize`].
#[track_caller]
pub fn dequantize(encoding: QuantizationEncoding, quantized: impl Into<Operand>) -> Result<Tensor> {
    apply("dequantize", &mut [quantized.into()], encoding, |x, encoding| ops::dequantize(*encoding, &x[0]))
}

/// `lhs · rhsᵀ` with the rows of `rhs` in quantized blocks: see [`ops::qmatmul`].
///
/// # Errors
/// As [`ops::qmatmul`].
#[track_caller]
pub fn qmatmul(encoding: QuantizationEncoding, lhs: impl Into<Operand>, rhs: impl Into<Operand>) -> Result<Tensor> {
    apply("qmatmul", &mut [lhs.into(), rhs.into()], encoding, |x, encoding| {
        ops::qmatmul(*encoding, None, &x[0], [&x[1]])
    })
}

impl Tensor {
    /// See [`matmul`].
    ///
    /// # Errors
    /// As [`matmul`].
    #[track_caller]
    pub fn matmul(&self, rhs: impl Into<Operand>) -> Result<Tensor> {
        matmul(self, rhs)
    }
}
