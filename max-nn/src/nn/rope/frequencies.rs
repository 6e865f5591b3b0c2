//! [`RotaryFrequencies`]: a rotary embedding without a table, whose angles are computed for the positions of a step.

use max_core::driver;
use max_core::dtype::DType;
use max_core::graph::{Dim, DimSlice, GraphError, Shape, ops};

use super::{LongRoPEScalingParams, inverse_frequencies};
use crate::Result;
use crate::functional as f;
use crate::tensor::Tensor;

/// The frequencies of a rotary embedding. Unlike a [`RotaryEmbedding`](super::RotaryEmbedding), it has no table: a model of
/// 100 000 positions computes the angles of those that it is given, once for all of its layers, and frequencies may depend on
/// how long the sequence is when the model is executed.
///
/// ```
/// # extern crate max_nn as max;
/// # max_kernels::link();
/// use max::nn::rope::RotaryFrequencies;
/// use max::tensor::Tensor;
///
/// let rope = RotaryFrequencies::new(4, 10000.0)?;
/// let angles = rope.angles(&Tensor::constant([0i64, 1])?, 2)?;
/// // [positions, heads, head size]; position 0 is not rotated.
/// let y = angles.apply(&Tensor::ones([2, 1, 4])?)?.to_vec::<f32>()?;
/// assert_eq!(y[..4], [1.0; 4]);
/// assert!((y[4] - (1f32.cos() - 1f32.sin())).abs() < 1e-6);
/// # Ok::<(), max::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct RotaryFrequencies {
    inv_freq: Vec<f64>,
    growth: Growth,
    magnitude: f64,
    interleaved: bool,
    /// The pairs that each of several positions of a token rotates; empty where it has one.
    sections: Vec<usize>,
}

/// What changes with the length of the sequence.
#[derive(Clone, Debug, PartialEq)]
enum Growth {
    None,
    /// Other frequencies for sequences that are longer than this.
    Other(usize, Vec<f64>),
    /// A base that grows for sequences that are longer than this (dynamic NTK).
    Base {
        theta: f64,
        factor: f64,
        original: usize,
    },
}

impl RotaryFrequencies {
    /// For heads of which `size` elements are rotated; pairs lie half of that apart.
    ///
    /// # Errors
    /// When `size` is odd or 0.
    #[track_caller]
    pub fn new(size: usize, theta: f64) -> Result<RotaryFrequencies> {
        Ok(RotaryFrequencies::of(inverse_frequencies(size, theta)?))
    }

    /// Of frequencies that are known, one for each pair.
    pub fn of(inv_freq: Vec<f64>) -> RotaryFrequencies {
        RotaryFrequencies { inv_freq, growth: Growth::None, magnitude: 1.0, interleaved: false, sections: Vec::new() }
    }

    /// LongRoPE as transformers has it: the short factors as long as the sequence has the original length, the long ones for all
    /// positions of a longer one.
    ///
    /// # Errors
    /// When `size` is odd or 0, or there is not one factor for each pair.
    #[track_caller]
    pub fn long(size: usize, theta: f64, scaling: &LongRoPEScalingParams) -> Result<RotaryFrequencies> {
        let base = RotaryFrequencies::new(size, theta)?;
        let (short, long) = (base.clone().divided(&scaling.short_factor)?, base.divided(&scaling.long_factor)?);
        let growth = Growth::Other(scaling.original_max_position, long.inv_freq);
        Ok(RotaryFrequencies { growth, magnitude: scaling.magnitude(), ..short })
    }

    /// Dynamic NTK scaling: for a sequence longer than `original`, the base grows with its length.
    ///
    /// # Errors
    /// When `size` is odd or 0.
    #[track_caller]
    pub fn dynamic(size: usize, theta: f64, factor: f64, original: usize) -> Result<RotaryFrequencies> {
        Ok(RotaryFrequencies {
            growth: Growth::Base { theta, factor, original },
            ..RotaryFrequencies::new(size, theta)?
        })
    }

    /// This, with all frequencies divided by `factor`: positions are interpolated.
    #[must_use]
    pub fn linear(mut self, factor: f64) -> RotaryFrequencies {
        self.inv_freq.iter_mut().for_each(|freq| *freq /= factor);
        self
    }

    /// This, with each frequency divided by a factor of its own.
    ///
    /// # Errors
    /// When there is not one factor for each pair, or one is 0.
    #[track_caller]
    pub fn divided(mut self, factors: &[f64]) -> Result<RotaryFrequencies> {
        if factors.len() != self.inv_freq.len() || factors.contains(&0.0) {
            let expected = format!("{} numbers, none 0: one for each pair", self.inv_freq.len());
            return Err(GraphError::argument("rotary_embedding", "factors", format!("{factors:?}"), expected));
        }
        self.inv_freq.iter_mut().zip(factors).for_each(|(freq, factor)| *freq /= factor);
        Ok(self)
    }

    /// This, with cosines and sines multiplied by `magnitude`.
    #[must_use]
    pub fn magnitude(self, magnitude: f64) -> RotaryFrequencies {
        RotaryFrequencies { magnitude, ..self }
    }

    /// This, with pairs of neighbours, or of elements half of the rotated part apart.
    #[must_use]
    pub fn interleaved(self, interleaved: bool) -> RotaryFrequencies {
        RotaryFrequencies { interleaved, ..self }
    }

    /// This, of tokens with several positions each, such as time, height and width of a part of an image (multimodal RoPE: Wang et al.:
    /// Qwen2-VL, 2024): the first position rotates the first of so many pairs, and so on. Then `positions` are `[sections, n]`.
    ///
    /// ```
    /// # extern crate max_nn as max;
    /// # max_kernels::link();
    /// use max::nn::rope::RotaryFrequencies;
    /// use max::tensor::Tensor;
    ///
    /// let rope = RotaryFrequencies::new(8, 100.0)?.mrope_section(&[1, 3])?;
    /// let angles = rope.angles(&Tensor::constant([[2i64], [0]])?, 1)?;
    /// // The first pair is rotated by the first position, the others by none.
    /// let cosines = angles.tables()[0].to_vec::<f32>()?;
    /// assert!((cosines[0] - 2f32.cos()).abs() < 1e-6);
    /// assert_eq!(cosines[1..], [1.0; 3]);
    /// # Ok::<(), max::Error>(())
    /// ```
    ///
    /// # Errors
    /// When the sections do not have all pairs together, or one has none.
    #[track_caller]
    pub fn mrope_section(self, sections: &[usize]) -> Result<RotaryFrequencies> {
        let all = sections.iter().try_fold(0_usize, |all, section| all.checked_add(*section));
        if sections.contains(&0) || all != Some(self.inv_freq.len()) {
            let expected = format!("sizes above 0, {} pairs together", self.inv_freq.len());
            return Err(GraphError::argument("rotary_embedding", "mrope_section", format!("{sections:?}"), expected));
        }
        Ok(RotaryFrequencies { sections: sections.to_vec(), ..self })
    }

    /// Whether the frequencies are others for longer sequences.
    pub fn depends_on_length(&self) -> bool {
        self.growth != Growth::None
    }

    /// The length beyond which all positions have other frequencies, so that keys of a cache are to be computed again.
    pub fn switches_beyond(&self) -> Option<usize> {
        match &self.growth {
            Growth::Other(length, _) => Some(*length),
            Growth::None | Growth::Base { .. } => None,
        }
    }

    /// The cosines and sines of `positions`, integers `[n]`, or `[sections, n]` with [sections](Self::mrope_section), in a sequence of `length` tokens.
    ///
    /// # Errors
    /// When `positions` has another rank, or `length` a name that its graph does not know.
    #[track_caller]
    pub fn angles(&self, positions: &Tensor, length: impl Into<Dim>) -> Result<RotaryAngles> {
        let (length, half) = (length.into(), self.inv_freq.len());
        let inv_freq = match (&self.growth, length.as_static(), positions.graph_value()) {
            (Growth::None, ..) => row(&self.inv_freq)?,
            (Growth::Other(original, long), Some(length), _) => {
                row(if length > *original as i64 { long } else { &self.inv_freq })?
            }
            (Growth::Base { theta, factor, original }, Some(length), _) => {
                let grown = grown(*factor, length as f64 / *original as f64).max(1.0);
                row(&inverse_frequencies(2 * half, theta * grown.powf(power(half)))?)?
            }
            (_, None, Some(value)) => {
                let length = Tensor::from(ops::shape_to_tensor(&value.graph(), [length])?).to(positions.device())?;
                self.of_lengths(&length)?
            }
            // Eager tensors have sizes.
            (_, None, None) => return Err(GraphError::argument("rotary_embedding", "length", length, "a number")),
        };
        self.angles_of(positions, inv_freq)
    }

    /// The cosines and sines of `positions` in sequences of several lengths: `lengths` has that of each token's, integers `[n]`.
    ///
    /// # Errors
    /// When `positions` or `lengths` has another rank.
    #[track_caller]
    pub fn ragged_angles(&self, positions: &Tensor, lengths: &Tensor) -> Result<RotaryAngles> {
        if lengths.rank() != 1 {
            return Err(GraphError::argument("rotary_embedding", "lengths", lengths.ty(), "of the rank of [n]"));
        }
        self.angles_of(positions, self.of_lengths(&f::unsqueeze(lengths, 1)?)?)
    }

    /// The frequencies of sequences: a row for each of `lengths`, `[n, 1]` or `[1]`.
    fn of_lengths(&self, lengths: &Tensor) -> Result<Tensor> {
        let half = self.inv_freq.len();
        match &self.growth {
            Growth::None => row(&self.inv_freq),
            Growth::Other(original, long) => {
                f::where_(f::greater(lengths, *original as i64)?, row(long)?, row(&self.inv_freq)?)
            }
            Growth::Base { theta, factor, original } => {
                let ratio = f::cast(lengths, DType::F32)? * (1.0 / *original as f64);
                let grown = f::maximum(ratio * *factor - (*factor - 1.0), 1.0)?;
                let octaves = f::log(grown)? * power(half) + theta.ln();
                let exponents: Vec<f64> = (0..half).map(|i| -(i as f64) / half as f64).collect();
                f::exp(f::mul(row(&exponents)?, octaves)?)
            }
        }
    }

    #[track_caller]
    fn angles_of(&self, positions: &Tensor, inv_freq: Tensor) -> Result<RotaryAngles> {
        let column = |positions: &Tensor| f::unsqueeze(f::cast(positions, DType::F32)?, 1);
        let angle = match (&*self.sections, positions.shape().dims()) {
            ([], [_]) => f::mul(column(positions)?, inv_freq)?,
            (sections @ [_, ..], [rows, _]) if rows.as_static() == Some(sections.len() as i64) => {
                let (mut parts, mut end) = (Vec::with_capacity(sections.len()), 0);
                for (row, size) in (0i64..).zip(sections) {
                    let pairs = DimSlice::range(end, end + *size as i64);
                    end += *size as i64;
                    let of_section = f::slice_tensor(positions, [DimSlice::from(row)])?;
                    parts.push(f::mul(column(&of_section)?, f::slice_tensor(&inv_freq, (DimSlice::Ellipsis, pairs))?)?);
                }
                f::concat(parts, 1)?
            }
            (sections, _) => {
                let expected = match sections.len() {
                    0 => "[n]".to_owned(),
                    count => format!("[{count}, n], a row for each of `mrope_section`"),
                };
                return Err(GraphError::argument("rotary_embedding", "positions", positions.ty(), expected));
            }
        };
        let (cos, sin) = (f::cos(&angle)? * self.magnitude, f::sin(&angle)? * self.magnitude);
        let tables = [cos.clone(), sin.clone()];
        // [n, 1, 2, half] of two halves, [n, 1, half, 2] of neighbours: the sine of each pair with both signs.
        let axis = if self.interleaved { -1 } else { 1 };
        let sin = f::unsqueeze(f::stack([f::negate(&sin)?, sin], axis)?, 1)?;
        let cos = f::unsqueeze(f::unsqueeze(cos, axis)?, 1)?;
        Ok(RotaryAngles { tables, cos, sin, interleaved: self.interleaved, half: self.inv_freq.len() })
    }
}

/// Frequencies as a row, rounded as elsewhere: at large positions the rounding shows.
fn row(freqs: &[f64]) -> Result<Tensor> {
    let freqs: Vec<f32> = freqs.iter().map(|freq| *freq as f32).collect();
    let pairs = freqs.len();
    Tensor::constant(driver::Tensor::from_vec(freqs, [1, pairs])?)
}

fn grown(factor: f64, ratio: f64) -> f64 {
    factor * ratio - (factor - 1.0)
}

/// The power of the growth that keeps the turn of the slowest pair; heads of two elements have one pair, which no base changes.
fn power(half: usize) -> f64 {
    if half > 1 { half as f64 / (half as f64 - 1.0) } else { 1.0 }
}

/// Cosines and sines of the positions of a step: see [`RotaryFrequencies`].
#[derive(Clone)]
pub struct RotaryAngles {
    tables: [Tensor; 2],
    cos: Tensor,
    sin: Tensor,
    interleaved: bool,
    half: usize,
}

impl RotaryAngles {
    /// Cosines and sines, each `[positions, pairs]`, in `float32`.
    pub fn tables(&self) -> [&Tensor; 2] {
        [&self.tables[0], &self.tables[1]]
    }

    /// Whether pairs are neighbours; else they lie half of the rotated part apart.
    pub fn interleaved(&self) -> bool {
        self.interleaved
    }

    /// The pairs of a head that are rotated.
    pub fn pairs(&self) -> usize {
        self.half
    }

    /// `x`, `[positions, heads, head size]`, rotated; elements of a head behind the rotated part stay. Half types are rotated in
    /// `float32`.
    ///
    /// # Errors
    /// When `x` has another rank or number of positions, or heads are shorter than what is rotated.
    #[track_caller]
    pub fn apply(&self, x: &Tensor) -> Result<Tensor> {
        let (half, rotated) = (self.half as i64, 2 * self.half as i64);
        let size = match x.shape().dims() {
            [_, _, size] => size.as_static().filter(|size| *size >= rotated),
            _ => None,
        };
        let Some(size) = size else {
            let expected = format!("[positions, heads, head size], with heads of {rotated} elements or more");
            return Err(GraphError::argument("rotary_embedding", "x", x.ty(), expected));
        };
        let part = |start: i64, stop: i64| f::slice_tensor(x, (DimSlice::Ellipsis, DimSlice::range(start, stop)));
        let head = if size == rotated { x.clone() } else { part(0, rotated)? };
        let pairs = if self.interleaved { [half, 2] } else { [2, half] };
        let dims = head.shape().dims()[..2].iter().cloned().chain(pairs.map(Dim::from)).collect::<Shape>();
        let paired = f::cast(f::reshape(&head, dims)?, DType::F32)?;
        let flip = DimSlice::from(..).step_by(-1);
        let other = match self.interleaved {
            true => f::slice_tensor(&paired, (DimSlice::Ellipsis, flip))?,
            false => f::slice_tensor(&paired, (DimSlice::Ellipsis, flip, DimSlice::from(..)))?,
        };
        let turned = f::add(f::mul(paired, &self.cos)?, f::mul(other, &self.sin)?)?;
        let turned = f::cast(f::reshape(turned, head.shape())?, x.dtype())?;
        if size == rotated { Ok(turned) } else { f::concat([turned, part(rotated, size)?], -1) }
    }
}
