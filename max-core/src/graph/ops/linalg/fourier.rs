//! The inverse Fourier transform to real numbers, as a product with a matrix of cosines and sines: `n` operations for each
//! number, at the speed of products. A long one is made of short ones, of the factors of its length or of another length.

use smallvec::SmallVec;

use super::matmul::matmul;
use crate::driver::Tensor;
use crate::dtype::DType;
use crate::graph::builder::site::{Result, Site};
use crate::graph::error::GraphErrorKind;
use crate::graph::node::Op;
use crate::graph::ops;
use crate::graph::ops::dims::numbers;
use crate::graph::ops::movement::pad::{PadMode, pad_axis};
use crate::graph::ops::movement::slice::narrow;
use crate::graph::ops::movement::views::reshape_at;
use crate::graph::ops::permute;
use crate::graph::symbolic::dim::Dim;
use crate::graph::symbolic::shape::Shape;
use crate::graph::types::TensorType;
use crate::graph::value::{Operand, TensorValue};

/// What a transform is divided by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Normalization {
    /// Its length.
    #[default]
    Backward,
    /// The square root of its length.
    Ortho,
    /// Nothing.
    Forward,
}

/// The longest transform by one matrix of constants, which has 32 MB: from real parts to real parts, one product is faster than
/// those of factors.
const LONGEST: usize = 4096;
/// The longest transform, whose rotations have a quarter of a gigabyte.
const MAX_LENGTH: usize = 1 << 24;

/// The inverse of the Fourier transform of `n` real numbers, from the first `n / 2 + 1` of its complex numbers along an
/// axis; there may be more, which are left out, or fewer, and then the rest is 0. Of an operand that is complex, each
/// number is a pair on a last axis, which `axis` does not count; else its numbers are real. Without `n`, it is twice the
/// size of the axis, minus 2.
///
/// # Errors
/// When the axis is out of range; when `n` is 0, or over 2^24 where the size of the axis is static; when the last axis of a complex operand does not have 2 elements; when the dtype is
/// neither `float32` nor `float64`.
///
/// ```
/// # use max_core::{driver::DeviceRef, dtype::DType, graph::{Graph, TensorType, ops, ops::Normalization}};
/// let graph = Graph::new("g", [TensorType::new(DType::F32, ("batch", 9, 2), DeviceRef::CPU)]);
/// let y = ops::irfft(&graph.inputs()[0], None, -1, Normalization::Backward, true)?;
/// assert_eq!(y.shape().to_string(), "[batch, 16]");
/// # Ok::<(), max_core::graph::GraphError>(())
/// ```
#[track_caller]
pub fn irfft(
    input: impl Into<Operand>,
    n: Option<usize>,
    axis: i64,
    normalization: Normalization,
    input_is_complex: bool,
) -> Result<TensorValue> {
    let site = Site::new("irfft");
    let x = site.tensor("the operand", input)?;
    site.require("the operand", &x, "float32 and float64", |dtype| matches!(dtype, DType::F32 | DType::F64))?;
    let pair = if input_is_complex { Some(site.axis(&x, -1)?) } else { None };
    if let Some(dim) = pair.map(|last| &x.shape()[last]).filter(|dim| **dim != 2) {
        let (what, dim) = ("the last dim of complex numbers", dim.clone());
        return site.fail(&[&x], GraphErrorKind::DimValue { what, dim, expected: "2" });
    }
    // The transformed axis last, and after it the pairs, if there are any.
    let rank = x.rank() - usize::from(input_is_complex);
    let at = usize::try_from(if axis < 0 { axis + rank as i64 } else { axis }).ok().filter(|at| *at < rank);
    let Some(at) = at else { return site.fail(&[&x], GraphErrorKind::Axis { axis, rank }) };
    let order = (0..rank).filter(|other| *other != at).chain([at]).chain(pair);
    let mut x = permute(&x, order.map(|axis| axis as i64).collect::<Vec<_>>())?;
    let last = rank - 1;
    let Some(size) = x.shape()[last].as_static() else {
        let size = x.shape()[last].clone();
        let n = n.map_or_else(|| &size * 2 - 2, Dim::from);
        if n.as_static().is_some_and(|n| n < 1) {
            return site.argument(&[&x], "n", n, "at least 1");
        }
        let rows = if input_is_complex { &size * 2 } else { size.clone() };
        let mut dims = x.shape()[..last].to_vec();
        dims.push(rows);
        let flat = reshape_at(&site, &x, dims.into())?;
        let matrix = computed_matrix(&site, &x, [&size, &n], normalization, input_is_complex)?;
        return transpose_to(matmul(&flat, matrix)?, at);
    };
    let n = n.unwrap_or_else(|| (2 * size as usize).saturating_sub(2));
    if n < 1 || i64::try_from(n).is_err() {
        return site.argument(&[&x], "n", n, "at least 1");
    }
    if n > MAX_LENGTH {
        return site.argument(&[&x], "n", n, format!("at most {MAX_LENGTH}"));
    }
    if n > LONGEST {
        return transpose_to(long(&site, x, last, n, normalization, input_is_complex)?, at);
    }
    let count = n as i64 / 2 + 1;
    if size > count {
        x = narrow(&site, &x, last, Dim::Static(0), Dim::Static(count))?;
    } else if size < count {
        x = pad_axis(&site, x, last, [0, count - size], PadMode::Constant(0.0.into()))?;
    }
    if let Some(pair) = pair {
        let mut dims = x.shape()[..last].to_vec();
        dims.push(&x.shape()[last] * &x.shape()[pair]);
        x = reshape_at(&site, &x, dims.into())?;
    }
    let matrix = matrix(&site, &x, n, normalization, input_is_complex)?;
    transpose_to(matmul(&x, matrix)?, at)
}

/// The transform of a length for which one matrix is too large: of pairs of all `n` numbers, of which the second half is 0 here
/// and the others, whose conjugates are missing, count twice; the real part is the same.
#[track_caller]
fn long(
    site: &Site,
    x: TensorValue,
    last: usize,
    n: usize,
    normalization: Normalization,
    complex: bool,
) -> Result<TensorValue> {
    let count = n as i64 / 2 + 1;
    let size = x.shape()[last].as_static().unwrap_or(count);
    let x = if size > count { narrow(site, &x, last, Dim::Static(0), Dim::Static(count))? } else { x };
    let x = if complex { x } else { ops::unsqueeze(x, -1)? };
    let x = if complex { x } else { pad_axis(site, x, last + 1, [0, 1], PadMode::Constant(0.0.into()))? };
    let given = size.min(count);
    let weight: Vec<f64> = (0..given as usize).map(|k| if k == 0 || 2 * k == n { 1.0 } else { 2.0 }).collect();
    let x = ops::mul(&x, constant(site, &x, weight, &[given as usize, 1])?)?;
    let x = pad_axis(site, x, last, [0, n as i64 - given], PadMode::Constant(0.0.into()))?;
    let y = Transform { site, last }.of(x, n, false)?;
    let y = reshape_at(site, &y, y.shape()[..last + 1].into())?;
    match normalization {
        Normalization::Backward => ops::div(y, n as f64),
        Normalization::Ortho => ops::div(y, (n as f64).sqrt()),
        Normalization::Forward => Ok(y),
    }
}

/// A transform is one product with a matrix up to this length, which then has a megabyte, and longer ones are made of others.
const ONE_PRODUCT: usize = 256;

/// Two factors of a length, as near to each other as there are.
fn factors(n: usize) -> Option<[usize; 2]> {
    let first = (2..=n.isqrt()).rev().find(|first| n.is_multiple_of(*first))?;
    Some([first, n / first])
}

/// Whether a length is made of factors that are short enough.
fn is_smooth(mut n: usize) -> bool {
    for factor in 2..=ONE_PRODUCT {
        while n.is_multiple_of(factor) {
            n /= factor;
        }
    }
    n == 1
}

/// Transforms of complex numbers, pairs on the axis after `last`, with the sign of the inverse, and divided by nothing.
struct Transform<'a> {
    site: &'a Site,
    last: usize,
}

impl Transform<'_> {
    /// Of `[.., n, 2]`: as many pairs, or of each the real part, `[.., n, 1]`.
    #[track_caller]
    fn of(&self, x: TensorValue, n: usize, pairs: bool) -> Result<TensorValue> {
        match factors(n) {
            _ if n <= ONE_PRODUCT => {
                let rows = self.shaped(&x, &[2 * n])?;
                let y = matmul(rows, rotations(self.site, &x, n, pairs)?)?;
                self.shaped(&y, &[n, if pairs { 2 } else { 1 }])
            }
            Some(factors) if is_smooth(n) => self.in_two(x, factors, pairs),
            _ => self.by_convolution(x, n, pairs),
        }
    }

    /// The transform of length `n1 · n2` as `n2` of length `n1`, rotated, and `n1` of length `n2`
    /// ([Cooley and Tukey](https://doi.org/10.1090/S0025-5718-1965-0178586-1)): number `n2 · k1 + k2` goes to `j1 + n1 · j2`.
    #[track_caller]
    fn in_two(&self, x: TensorValue, [n1, n2]: [usize; 2], pairs: bool) -> Result<TensorValue> {
        let n = n1 * n2;
        let inner = Transform { last: self.last + 1, ..*self };
        // [k1, k2, 2] to [k2, k1, 2].
        let x = permute(self.shaped(&x, &[n1, n2, 2])?, self.order(&[1, 0, 2]))?;
        let y = inner.of(x, n1, true)?;
        // Number (k2, j1) turns by j1 · k2 of n parts.
        let turn = |(k2, j1): (usize, usize)| (k2 * j1 % n) as f64 / n as f64;
        let turns: Vec<f64> = (0..n2).flat_map(|k2| (0..n1).map(move |j1| turn((k2, j1)))).collect();
        let y = self.turned(y, &turns, &[n2, n1])?;
        // [k2, j1, 2] to [j1, k2, 2], to [j1, j2, 2], which is the transposed result.
        let y = inner.of(permute(y, self.order(&[1, 0, 2]))?, n2, pairs)?;
        let y = permute(y, self.order(&[1, 0, 2]))?;
        self.shaped(&y, &[n, if pairs { 2 } else { 1 }])
    }

    /// The transform of a length with a large prime factor, as a convolution with a chirp
    /// ([Bluestein](https://doi.org/10.1109/TAU.1970.1162132)): `2 j k = j² + k² - (j - k)²`, and a convolution is transforms of
    /// another length.
    #[track_caller]
    fn by_convolution(&self, x: TensorValue, n: usize, pairs: bool) -> Result<TensorValue> {
        let (site, length) = (self.site, (2 * n - 1).next_power_of_two());
        // Squares modulo 2 n: half a turn for n of them.
        let square = |k: usize| (k as u128 * k as u128 % (2 * n) as u128) as f64 / (2 * n) as f64;
        let chirp: Vec<f64> = (0..n).map(square).collect();
        let x = self.turned(x, &chirp, &[n])?;
        let x = pad_axis(site, x, self.last, [0, (length - n) as i64], PadMode::Constant(0.0.into()))?;
        // The chirp backwards, on both sides of 0, which depends on nothing that is not known at load.
        let mut around = vec![0.0; 2 * length];
        for (k, turn) in chirp.iter().enumerate() {
            let (sin, cos) = (-2.0 * std::f64::consts::PI * turn).sin_cos();
            for place in [k, (length - k) % length] {
                (around[2 * place], around[2 * place + 1]) = (cos, sin);
            }
        }
        let other = constant(site, &x, around, &[length, 2])?;
        let other = Transform { last: 0, ..*self }.of(other, length, true)?;
        let product = self.product(&self.of(x, length, true)?, &other)?;
        // Back again: the conjugate of the transform of the conjugate.
        let y = self.conjugate(self.of(self.conjugate(product)?, length, true)?)?;
        let y = narrow(site, &y, self.last, Dim::Static(0), Dim::Static(n as i64))?;
        let y = ops::div(self.turned(y, &chirp, &[n])?, length as f64)?;
        if pairs { Ok(y) } else { narrow(site, &y, self.last + 1, Dim::Static(0), Dim::Static(1)) }
    }

    /// Pairs, turned by parts of a whole turn; both have the shape `tail`.
    #[track_caller]
    fn turned(&self, x: TensorValue, turns: &[f64], tail: &[usize]) -> Result<TensorValue> {
        let angles = turns.iter().map(|turn| 2.0 * std::f64::consts::PI * turn);
        let pairs = angles.flat_map(|angle| [angle.cos(), angle.sin()]).collect();
        let shape: Vec<usize> = tail.iter().copied().chain([2]).collect();
        self.product(&x, &constant(self.site, &x, pairs, &shape)?)
    }

    /// The products of pairs.
    #[track_caller]
    fn product(&self, x: &TensorValue, y: &TensorValue) -> Result<TensorValue> {
        let part = |of: &TensorValue, at: i64| narrow(self.site, of, of.rank() - 1, Dim::Static(at), Dim::Static(1));
        let [(a, b), (c, d)] = [(part(x, 0)?, part(x, 1)?), (part(y, 0)?, part(y, 1)?)];
        let real = ops::sub(ops::mul(&a, &c)?, ops::mul(&b, &d)?)?;
        ops::concat([real, ops::add(ops::mul(&a, &d)?, ops::mul(&b, &c)?)?], -1)
    }

    #[track_caller]
    fn conjugate(&self, x: TensorValue) -> Result<TensorValue> {
        let signs = constant(self.site, &x, vec![1.0, -1.0], &[2])?;
        ops::mul(x, signs)
    }

    /// The axes before the transformed one, and these.
    fn shaped(&self, x: &TensorValue, tail: &[usize]) -> Result<TensorValue> {
        let lead = x.shape()[..self.last].iter().cloned();
        reshape_at(self.site, x, lead.chain(tail.iter().map(|size| Dim::from(*size))).collect())
    }

    /// The axes before the transformed one as they are, those from it on in another order.
    fn order(&self, tail: &[usize]) -> Vec<i64> {
        (0..self.last).chain(tail.iter().map(|axis| self.last + axis)).map(|axis| axis as i64).collect()
    }
}

/// The matrix by which pairs of `n` numbers are multiplied: to pairs of their transform, or to the real parts of it.
fn rotations(site: &Site, x: &TensorValue, n: usize, pairs: bool) -> Result<TensorValue> {
    let angle = |k: usize, j: usize| 2.0 * std::f64::consts::PI * (k * j % n) as f64 / n as f64;
    let mut values = Vec::with_capacity(2 * n * n * if pairs { 2 } else { 1 });
    for k in 0..n {
        for j in 0..n {
            values.push(angle(k, j).cos());
            values.extend(pairs.then(|| angle(k, j).sin()));
        }
        for j in 0..n {
            values.push(-angle(k, j).sin());
            values.extend(pairs.then(|| angle(k, j).cos()));
        }
    }
    constant(site, x, values, &[2 * n, if pairs { 2 * n } else { n }])
}

/// Numbers of the operand's dtype, where it is.
fn constant(site: &Site, x: &TensorValue, values: Vec<f64>, shape: &[usize]) -> Result<TensorValue> {
    let tensor = match x.dtype() {
        DType::F64 => Tensor::from_vec(values, shape),
        _ => Tensor::from_vec(values.into_iter().map(|v| v as f32).collect::<Vec<f32>>(), shape),
    };
    let tensor = tensor.or_else(|error| site.fail(&[x], error.into()))?;
    let ty = TensorType::new(x.dtype(), shape.iter().map(|size| Dim::from(*size)).collect::<Shape>(), x.device());
    Ok(site.push(&x.graph, Op::Constant(tensor), SmallVec::new(), ty))
}

/// The rows of `y = x · matrix`: of each complex number its real part's, and after that its imaginary part's.
fn matrix(site: &Site, x: &TensorValue, n: usize, normalization: Normalization, complex: bool) -> Result<TensorValue> {
    let scale = match normalization {
        Normalization::Backward => 1.0 / n as f64,
        Normalization::Ortho => 1.0 / (n as f64).sqrt(),
        Normalization::Forward => 1.0,
    };
    let mut values = Vec::new();
    for k in 0..n / 2 + 1 {
        // The others are the conjugates of these, except of the first, and of that in the middle.
        let scale = if k == 0 || 2 * k == n { scale } else { 2.0 * scale };
        let angle = |j: usize| 2.0 * std::f64::consts::PI * (k * j % n) as f64 / n as f64;
        values.extend((0..n).map(|j| scale * angle(j).cos()));
        if complex {
            // What is no multiple of a real wave is not there.
            let scale = if k == 0 || 2 * k == n { 0.0 } else { scale };
            values.extend((0..n).map(|j| -scale * angle(j).sin()));
        }
    }
    let rows = values.len() / n;
    constant(site, x, values, &[rows, n])
}

/// As [`matrix`], of sizes that are known at execution: a row for each of `size` numbers, of which those without a place in
/// the transform are 0.
#[track_caller]
fn computed_matrix(
    site: &Site,
    x: &TensorValue,
    [size, n]: [&Dim; 2],
    normalization: Normalization,
    complex: bool,
) -> Result<TensorValue> {
    let column = |count: &Dim, shape: [Dim; 2]| {
        reshape_at(site, &numbers(site, &x.graph, count, x.device())?, Shape::from(shape))
    };
    let k = column(size, [size.clone(), Dim::Static(1)])?;
    let j = column(n, [Dim::Static(1), n.clone()])?;
    let turns = site.cast(ops::mod_(ops::mul(&k, j)?, n)?, DType::F64)?;
    let angle = ops::div(ops::mul(turns, 2.0 * std::f64::consts::PI)?, n)?;
    // The others are the conjugates of these, except of the first, and of that in the middle.
    let twice = ops::mul(&k, 2)?;
    let is_alone = ops::logical_or(ops::equal(&k, 0)?, ops::equal(&twice, n)?)?;
    let inside = site.cast(ops::greater_equal(n, &twice)?, DType::F64)?;
    let alone = site.cast(is_alone, DType::F64)?;
    let of = site.dim(&x.graph, n, (DType::F64, x.device()))?;
    let inside = match normalization {
        Normalization::Backward => ops::div(inside, of)?,
        Normalization::Ortho => ops::div(inside, ops::sqrt(of)?)?,
        Normalization::Forward => inside,
    };
    let real = ops::mul(ops::cos(&angle)?, ops::mul(&inside, ops::sub(2.0, &alone)?)?)?;
    let all = match complex {
        false => real,
        true => {
            let once = ops::mul(ops::sub(1.0, &alone)?, -2.0)?;
            let imaginary = ops::mul(ops::sin(&angle)?, ops::mul(&inside, once)?)?;
            let pairs = ops::stack([real, imaginary], 1)?;
            reshape_at(site, &pairs, Shape::from([size * 2, n.clone()]))?
        }
    };
    site.cast(all, x.dtype())
}

/// The last axis moved to `at`.
fn transpose_to(y: TensorValue, at: usize) -> Result<TensorValue> {
    let last = y.rank() - 1;
    let order: Vec<i64> = (0..at as i64).chain([last as i64]).chain(at as i64..last as i64).collect();
    permute(y, order)
}
