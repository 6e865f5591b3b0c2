//! The inverse Fourier transform to real numbers, as a product with a matrix of cosines and sines: `n` operations for each
//! number, at the speed of products. A long one is two, of the factors of its length: `n = n1 · n2`.

use smallvec::SmallVec;

use super::dims::numbers;
use super::matmul::matmul;
use super::movement::pad::{PadMode, pad_axis};
use super::movement::slice::narrow;
use super::movement::views::reshape_at;
use super::permute;
use crate::driver::Tensor;
use crate::dtype::DType;
use crate::graph::error::GraphErrorKind;
use crate::graph::node::Op;
use crate::graph::site::{Result, Site};
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

/// The longest transform by one matrix of constants, which has 32 MB.
const LONGEST: usize = 4096;

/// The inverse of the Fourier transform of `n` real numbers, from the first `n / 2 + 1` of its complex numbers along an
/// axis; there may be more, which are left out, or fewer, and then the rest is 0. Of an operand that is complex, each
/// number is a pair on a last axis, which `axis` does not count; else its numbers are real. Without `n`, it is twice the
/// size of the axis, minus 2.
///
/// # Errors
/// When the axis is out of range; when `n` is 0; when the last axis of a complex operand does not have 2 elements; when the dtype is
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
    if let Some(factors) = (n > LONGEST).then(|| factors(n)).flatten() {
        return transpose_to(in_two(&site, x, last, factors, normalization, input_is_complex)?, at);
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
    let matrix = match n {
        ..=LONGEST => matrix(&site, &x, n, normalization, input_is_complex)?,
        // Of a length without factors, the matrix is computed when the model is loaded.
        _ => computed_matrix(&site, &x, [&count.into(), &n.into()], normalization, input_is_complex)?,
    };
    transpose_to(matmul(&x, matrix)?, at)
}

/// Two factors of a length, neither above [`LONGEST`], as near to each other as there are.
fn factors(n: usize) -> Option<[usize; 2]> {
    // Not below what leaves the other factor too large, so that few are tried however long the transform is.
    let first = (n.div_ceil(LONGEST).max(2)..=n.isqrt().min(LONGEST)).rev().find(|first| n.is_multiple_of(*first))?;
    Some([first, n / first])
}

/// The transform of length `n1 · n2` as `n2` of length `n1`, rotated, and `n1` of length `n2`
/// ([Cooley and Tukey](https://doi.org/10.1090/S0025-5718-1965-0178586-1)): number `n2 · k1 + k2` goes to `j1 + n1 · j2`.
#[track_caller]
fn in_two(
    site: &Site,
    x: TensorValue,
    last: usize,
    [n1, n2]: [usize; 2],
    normalization: Normalization,
    complex: bool,
) -> Result<TensorValue> {
    let n = n1 * n2;
    let count = n as i64 / 2 + 1;
    let size = x.shape()[last].as_static().unwrap_or(count);
    let x = if size > count { narrow(site, &x, last, Dim::Static(0), Dim::Static(count))? } else { x };
    let x = if complex { x } else { super::unsqueeze(x, -1)? };
    // Pairs, of which there are as many as the transform is long: the others are the conjugates, of which the real part is the same.
    let x = if complex { x } else { pad_axis(site, x, last + 1, [0, 1], PadMode::Constant(0.0.into()))? };
    let weight: Vec<f64> = (0..count as usize).map(|k| if k == 0 || 2 * k == n { 1.0 } else { 2.0 }).collect();
    let given = size.min(count);
    let weights = constant(site, &x, weight[..given as usize].to_vec(), &[given as usize, 1])?;
    let x = super::mul(x, weights)?;
    let x = pad_axis(site, x, last, [0, n as i64 - given], PadMode::Constant(0.0.into()))?;
    let lead: Vec<Dim> = x.shape()[..last].to_vec();
    let shaped = |x: &TensorValue, tail: &[usize]| {
        reshape_at(site, x, lead.iter().cloned().chain(tail.iter().map(|size| Dim::from(*size))).collect())
    };
    let order = |tail: &[usize]| -> Vec<i64> {
        (0..last).chain(tail.iter().map(|axis| last + axis)).map(|i| i as i64).collect()
    };
    // [k1, k2, 2] to [k2, k1, 2], times the rotations of the first factor.
    let x = permute(shaped(&x, &[n1, n2, 2])?, order(&[1, 0, 2]))?;
    let y = matmul(shaped(&x, &[n2, 2 * n1])?, rotations(site, &x, n1, true)?)?;
    let y = shaped(&y, &[n2, n1, 2])?;
    // Number (k2, j1) turns by j1 · k2 of n parts.
    let turns =
        (0..n2).flat_map(|k2| (0..n1).map(move |j1| 2.0 * std::f64::consts::PI * (k2 * j1 % n) as f64 / n as f64));
    let [cos, sin]: [Vec<f64>; 2] = [turns.clone().map(f64::cos).collect(), turns.map(f64::sin).collect()];
    let (cos, sin) = (constant(site, &y, cos, &[n2, n1, 1])?, constant(site, &y, sin, &[n2, n1, 1])?);
    let axis = y.rank() - 1;
    let real = narrow(site, &y, axis, Dim::Static(0), Dim::Static(1))?;
    let imaginary = narrow(site, &y, axis, Dim::Static(1), Dim::Static(1))?;
    let turned = super::concat(
        [
            super::sub(super::mul(&real, &cos)?, super::mul(&imaginary, &sin)?)?,
            super::add(super::mul(&real, &sin)?, super::mul(&imaginary, &cos)?)?,
        ],
        -1,
    )?;
    // [k2, j1, 2] to [j1, k2, 2], times those of the second, of which the real part is left: [j1, j2].
    let turned = permute(turned, order(&[1, 0, 2]))?;
    let y = matmul(shaped(&turned, &[n1, 2 * n2])?, rotations(site, &turned, n2, false)?)?;
    let y = shaped(&permute(y, order(&[1, 0]))?, &[n])?;
    match normalization {
        Normalization::Backward => super::div(y, n as f64),
        Normalization::Ortho => super::div(y, (n as f64).sqrt()),
        Normalization::Forward => Ok(y),
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
    let turns = site.cast(super::mod_(super::mul(&k, j)?, n)?, DType::F64)?;
    let angle = super::div(super::mul(turns, 2.0 * std::f64::consts::PI)?, n)?;
    // The others are the conjugates of these, except of the first, and of that in the middle.
    let twice = super::mul(&k, 2)?;
    let is_alone = super::logical_or(super::equal(&k, 0)?, super::equal(&twice, n)?)?;
    let inside = site.cast(super::greater_equal(n, &twice)?, DType::F64)?;
    let alone = site.cast(is_alone, DType::F64)?;
    let of = site.dim(&x.graph, n, (DType::F64, x.device()))?;
    let inside = match normalization {
        Normalization::Backward => super::div(inside, of)?,
        Normalization::Ortho => super::div(inside, super::sqrt(of)?)?,
        Normalization::Forward => inside,
    };
    let real = super::mul(super::cos(&angle)?, super::mul(&inside, super::sub(2.0, &alone)?)?)?;
    let all = match complex {
        false => real,
        true => {
            let once = super::mul(super::sub(1.0, &alone)?, -2.0)?;
            let imaginary = super::mul(super::sin(&angle)?, super::mul(&inside, once)?)?;
            let pairs = super::stack([real, imaginary], 1)?;
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
