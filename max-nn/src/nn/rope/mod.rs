//! Rotary position embeddings: pairs of a head's elements are rotated by angles that grow with the position (Su et al.:
//! RoFormer, 2021), and the ways to stretch them to longer sequences.
//!
//! Each kind makes a table of cosines and sines when it is made, in `f64`, kept as `float32`; applying it is the same for all.

mod deepseek_yarn;
mod dynamic;
mod frequencies;
mod llama3;
mod long;
mod yarn;

pub use deepseek_yarn::{DeepseekYarnRopeScalingParams, DeepseekYarnRotaryEmbedding};
pub use dynamic::DynamicRotaryEmbedding;
pub use frequencies::{RotaryAngles, RotaryFrequencies};
pub use llama3::{Llama3RopeScalingParams, Llama3RotaryEmbedding};
pub use long::{LongRoPERotaryEmbedding, LongRoPEScalingParams};
pub use yarn::{YarnRotaryEmbedding, YarnScalingParams};

use max_core::driver;
use max_core::dtype::DType;
use max_core::graph::{Dim, DimSlice, GraphError};

use crate::Result;
use crate::functional as f;
use crate::nn::Module;
use crate::tensor::Tensor;

/// Rotates pairs of a head's elements: at position p the pair i by the angle `p · theta^(-2 i / head_dim)`.
///
/// ```
/// # extern crate max_nn as max;
/// # max_kernels::link();
/// use max::nn::RotaryEmbedding;
/// use max::tensor::Tensor;
///
/// let rope = RotaryEmbedding::new(4, 10000.0, 16)?;
/// // [batch, positions, heads, head_dim]; position 0 is not rotated.
/// let x = Tensor::ones([1, 2, 1, 4])?;
/// let y = rope.apply(&x, 0)?.to_vec::<f32>()?;
/// assert_eq!(y[..4], [1.0; 4]);
/// assert!((y[4] - (1f32.cos() - 1f32.sin())).abs() < 1e-6);
/// # Ok::<(), max::Error>(())
/// ```
#[derive(Clone, Module)]
pub struct RotaryEmbedding {
    /// Cosines and sines, `[positions, head_dim / 2, 2]`.
    #[module(skip)]
    freqs_cis: Tensor,
    /// The elements of a head.
    pub head_dim: usize,
    /// The longest sequence.
    pub max_seq_len: usize,
    /// Whether pairs are neighbours, or lie half a head apart, as in the models of transformers.
    pub interleaved: bool,
    /// What scores of attention are multiplied by.
    scale: f64,
}

impl RotaryEmbedding {
    /// For heads of `head_dim` elements, with pairs of neighbours.
    ///
    /// # Errors
    /// When `head_dim` is odd or 0; when there is no memory for the table.
    #[track_caller]
    pub fn new(head_dim: usize, theta: f64, max_seq_len: usize) -> Result<RotaryEmbedding> {
        let inv_freq = inverse_frequencies(head_dim, theta)?;
        RotaryEmbedding::with_table(head_dim, max_seq_len, 1.0, |position, i| position as f64 * inv_freq[i])
    }

    /// With angles by position and pair; cosines and sines are multiplied by `magnitude`.
    #[track_caller]
    fn with_table(
        head_dim: usize,
        max_seq_len: usize,
        magnitude: f64,
        angle: impl Fn(usize, usize) -> f64,
    ) -> Result<RotaryEmbedding> {
        let (positions, pairs) = (2 * max_seq_len, head_dim / 2);
        let mut table = Vec::with_capacity(positions * pairs * 2);
        for position in 0..positions {
            for i in 0..pairs {
                let (sin, cos) = angle(position, i).sin_cos();
                table.extend([(cos * magnitude) as f32, (sin * magnitude) as f32]);
            }
        }
        let freqs_cis = Tensor::constant(driver::Tensor::from_vec(table, [positions, pairs, 2])?)?;
        let scale = 1.0 / (head_dim as f64).sqrt();
        Ok(RotaryEmbedding { freqs_cis, head_dim, max_seq_len, interleaved: true, scale })
    }

    /// This embedding, with pairs of neighbours, or of elements half a head apart.
    #[must_use]
    pub fn interleaved(self, interleaved: bool) -> RotaryEmbedding {
        RotaryEmbedding { interleaved, ..self }
    }

    /// Cosines and sines: `[2 max_seq_len, head_dim / 2, 2]`, `float32`.
    pub fn freqs_cis(&self) -> &Tensor {
        &self.freqs_cis
    }

    /// What scores of attention are multiplied by: `1 / sqrt(head_dim)`, or what is asked for.
    pub fn compute_scale(&self, user_scale: Option<f64>) -> f64 {
        user_scale.unwrap_or(self.scale)
    }

    /// `x`, `[batch, positions, heads, head_dim]`, rotated from position `start` on. Half types are rotated in `float32`.
    ///
    /// # Errors
    /// When `x` has another rank or head size; when it reaches beyond the table.
    #[track_caller]
    pub fn apply(&self, x: &Tensor, start: impl Into<Dim>) -> Result<Tensor> {
        let start = start.into();
        let [_, length, _, size] = x.shape().dims() else {
            let expected = "of the rank of [batch, positions, heads, head_dim]";
            return Err(GraphError::argument("rotary_embedding", "x", x.ty(), expected));
        };
        if *size != self.head_dim {
            let expected = format!("a tensor whose last dim is head_dim, {}", self.head_dim);
            return Err(GraphError::argument("rotary_embedding", "x", x.ty(), expected));
        }
        let stop = start.clone() + length;
        if let (Some(begin), Some(end)) = (start.as_static(), stop.as_static())
            && (begin < 0 || end > 2 * self.max_seq_len as i64)
        {
            let expected = format!("within the table's {} positions", 2 * self.max_seq_len);
            return Err(GraphError::argument("rotary_embedding", "positions", format!("{begin}..{end}"), expected));
        }
        // Named dims are those of x's graph.
        let table = match x.graph_value() {
            Some(value) => self.freqs_cis.in_graph(&value.graph())?.into(),
            None => self.freqs_cis.clone(),
        };
        let rows = f::slice_tensor(table, [DimSlice::range(start, stop)])?;
        let part =
            |i: i64| f::unsqueeze(f::slice_tensor(&rows, (DimSlice::Ellipsis, DimSlice::Index(Dim::Static(i))))?, 1);
        let (cos, sin) = (part(0)?, part(1)?);
        let half = self.head_dim as i64 / 2;
        let wide = f::cast(x, DType::F32)?;
        let (a, b) = if self.interleaved {
            let pairs = pairs(&wide, half)?;
            let part = |i: i64| f::slice_tensor(&pairs, (DimSlice::Ellipsis, DimSlice::Index(Dim::Static(i))));
            (part(0)?, part(1)?)
        } else {
            let part =
                |start: i64, stop: i64| f::slice_tensor(&wide, (DimSlice::Ellipsis, DimSlice::range(start, stop)));
            (part(0, half)?, part(half, 2 * half)?)
        };
        let real = f::sub(f::mul(&a, &cos)?, f::mul(&b, &sin)?)?;
        let imaginary = f::add(f::mul(&a, &sin)?, f::mul(&b, &cos)?)?;
        let rotated = if self.interleaved {
            f::reshape(f::stack([real, imaginary], -1)?, x.shape())?
        } else {
            f::concat([real, imaginary], -1)?
        };
        f::cast(rotated, x.dtype())
    }
}

/// `[.., head_dim]` as `[.., head_dim / 2, 2]`.
fn pairs(x: &Tensor, half: i64) -> Result<Tensor> {
    let dims = &x.shape().dims()[..x.rank() - 1];
    f::reshape(x, dims.iter().cloned().chain([Dim::Static(half), Dim::Static(2)]).collect::<max_core::graph::Shape>())
}

/// `theta^(-2 i / head_dim)` of each pair.
#[track_caller]
fn inverse_frequencies(head_dim: usize, theta: f64) -> Result<Vec<f64>> {
    if head_dim == 0 || !head_dim.is_multiple_of(2) {
        return Err(GraphError::argument("rotary_embedding", "head_dim", head_dim, "even, and not 0"));
    }
    Ok((0..head_dim / 2).map(|i| theta.powf(-2.0 * i as f64 / head_dim as f64)).collect())
}

/// The pair that turns `rotations` times within `positions` positions.
fn correction_dim(rotations: f64, head_dim: usize, theta: f64, positions: usize) -> f64 {
    head_dim as f64 * (positions as f64 / (rotations * 2.0 * std::f64::consts::PI)).ln() / (2.0 * theta.ln())
}

/// What YaRN multiplies cosines and sines by, `0.1 · mscale · ln(factor) + 1`; 1 for a factor of 1 or less. DeepSeek's models divide two of
/// them, and multiply the scale of attention by the square of one.
pub fn yarn_magnitude(factor: f64, mscale: f64) -> f64 {
    if factor <= 1.0 { 1.0 } else { 0.1 * mscale * factor.ln() + 1.0 }
}

/// YaRN's frequencies: those that turn often stay, those that turn slowly are divided by `factor`, with a ramp between
/// (Peng et al.: YaRN, 2023).
#[track_caller]
fn yarn_frequencies(
    (head_dim, theta): (usize, f64),
    factor: f64,
    (beta_fast, beta_slow): (f64, f64),
    original_max_position: usize,
    truncate: bool,
) -> Result<Vec<f64>> {
    let inv_freq = inverse_frequencies(head_dim, theta)?;
    let dim = |rotations| correction_dim(rotations, head_dim, theta, original_max_position);
    let (mut low, mut high) = (dim(beta_fast), dim(beta_slow));
    if truncate {
        (low, high) = (low.floor(), high.ceil());
    }
    let (low, mut high) = (low.max(0.0), high.min(head_dim as f64 - 1.0));
    if low == high {
        high += 0.001;
    }
    let mixed = inv_freq.iter().enumerate().map(|(i, freq)| {
        let ramp = ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
        freq / factor * ramp + freq * (1.0 - ramp)
    });
    Ok(mixed.collect())
}

macro_rules! rope_kind {
    ($name:ident) => {
        impl std::ops::Deref for $name {
            type Target = crate::nn::RotaryEmbedding;

            /// The embedding with this kind's table.
            fn deref(&self) -> &crate::nn::RotaryEmbedding {
                &self.rope
            }
        }
    };
}
use rope_kind;
