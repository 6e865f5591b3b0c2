//! Ops along an axis: reductions, softmax, norms, scans and selections.
//!
//! Their kernels work on rows; the node says along which axis (see [`KernelCall::axis`](crate::graph::KernelCall)). A
//! reduced axis stays, with size 1. Negative axes count from the end.

use std::ops::Range;

use crate::dtype::DType;
use crate::graph::DimSlice;
use crate::graph::builder::site::{Result, Site};
use crate::graph::error::{GraphErrorKind, STATIC};
use crate::graph::parameters::Parameters;
use crate::graph::symbolic::dim::Dim;
use crate::graph::symbolic::shape::Shape;
use crate::graph::value::{Operand, Scalar, TensorValue};

/// One row of the table of reductions.
struct Reduction {
    name: &'static str,
    kernel: &'static str,
    /// The parameter of the kernel that is set for it.
    flag: Option<&'static str>,
    /// The dtype of the result; `None` for the operand's.
    result: Option<DType>,
    /// Whether an empty axis has a value.
    has_identity: bool,
    /// Whether the results of parts, reduced again, are the result.
    splits: bool,
}

/// Elements that are worth a part of their own.
const PART: i64 = 1 << 16;
/// Parts that keep every thread of a large machine busy.
const PARTS: i64 = 64;
/// Columns that one program reduces together.
const COLUMNS: i64 = 256;

/// The elements before an axis, along it and behind it, where all are known.
fn extents(shape: &Shape, axis: usize) -> Option<[i64; 3]> {
    let known = |dims: &[Dim]| dims.iter().try_fold(1_i64, |all, dim| all.checked_mul(dim.as_static()?));
    Some([known(&shape[..axis])?, shape[axis].as_static()?, known(&shape[axis + 1..])?])
}

/// How an axis is reduced in two steps: by the shape alone, so that results do not depend on the machine.
#[derive(Clone, Copy)]
enum Division {
    /// So many equal parts, each by programs of its own.
    Parts(i64),
    /// So many neighbouring rows as one row of more columns.
    SideBySide(i64),
}

/// Into how many equal parts an axis is divided that would else be reduced by few programs.
fn parts(shape: &Shape, axis: usize) -> Option<Division> {
    let [outer, size, inner] = extents(shape, axis)?;
    let programs = outer.checked_mul(if inner == 1 { 1 } else { inner.div_euclid(COLUMNS) + 1 })?;
    let elements = size.checked_mul(inner.min(COLUMNS))?;
    let most = (PARTS / programs.max(1)).min(elements / PART);
    let even = (2..=most).rev().find(|parts| size % parts == 0);
    // What remains of one matrix is reduced with the results; of several it would have to be copied.
    let count = if outer == 1 && most > 1 { even.filter(|parts| *parts > most / 2).or(Some(most)) } else { even };
    count.map(Division::Parts)
}

/// Columns that fill the vectors of a CPU, or the threads of a GPU.
const WIDE: i64 = 1024;
/// A vector of them.
const VECTOR: i64 = 64;
/// Rows that are reduced for one that is reduced again.
const SAVED: i64 = 8;

/// How many neighbouring rows of few columns are reduced side by side before their results are reduced.
fn rows_side_by_side(shape: &Shape, axis: usize) -> Option<Division> {
    let [outer, size, inner] = extents(shape, axis)?;
    // Whole vectors are as good as more of them.
    let is_narrow = inner > 1 && inner < COLUMNS && inner % VECTOR != 0;
    // So many rows end with a vector.
    let unit = VECTOR >> Ord::min(inner.trailing_zeros(), VECTOR.trailing_zeros());
    let wide = if size.checked_mul(inner)? >= PART { WIDE } else { COLUMNS };
    let rows = Ord::max(wide / inner.max(1) / unit, 1) * unit;
    // What remains, as in `parts`.
    (is_narrow && size / SAVED >= rows && (outer == 1 || size % rows == 0)).then_some(Division::SideBySide(rows))
}

/// Some of an axis.
fn part(x: &TensorValue, axis: usize, range: Range<i64>) -> Result<TensorValue> {
    let all = (0..axis).map(|_| DimSlice::from(..));
    super::slice_tensor(x, all.chain([DimSlice::from(range)]))
}

/// Reduces an axis in two steps.
fn reduce_divided(
    site: &Site,
    row: &Reduction,
    x: &TensorValue,
    axis: usize,
    division: Division,
) -> Result<TensorValue> {
    let size = x.shape()[axis].as_static().unwrap_or(0);
    let (count, dims, first) = match division {
        Division::Parts(parts) => (parts, [parts, size / parts], axis + 1),
        Division::SideBySide(rows) => (rows, [size / rows, rows], axis),
    };
    let rest = size % count;
    let mut whole = x.clone();
    if rest > 0 {
        whole = part(x, axis, 0..size - rest)?;
    }
    let mut shape = x.shape().dims().to_vec();
    shape.splice(axis..=axis, dims.map(Dim::Static));
    let partial = reduce_axis(site, row, &super::reshape(whole, shape.clone())?, first)?;
    shape.remove(first);
    let mut partial = super::reshape(partial, shape)?;
    if rest > 0 {
        partial = super::concat([partial, part(x, axis, size - rest..size)?], axis as i64)?;
    }
    reduce_axis(site, row, &partial, axis)
}

/// The dtype in which elements along an axis are compared and added: small integers are `int32`, and `uint32` is `int64`, whose kernels
/// are then all that there are. What is cast back wraps as sums of the narrower dtype would.
pub(super) fn widened(dtype: DType) -> DType {
    match dtype {
        DType::Bool | DType::I8 | DType::U8 | DType::I16 | DType::U16 => DType::I32,
        DType::U32 => DType::I64,
        _ => dtype,
    }
}

fn reduce(site: &Site, row: &Reduction, x: impl Into<Operand>, axis: i64) -> Result<TensorValue> {
    let x = site.tensor("the operand", x)?;
    site.require("the operand", &x, "integers and floats", |dtype| dtype != DType::Bool)?;
    let axis = site.axis(&x, axis)?;
    if !row.has_identity && x.shape()[axis] == 0 {
        let (what, dim) = ("the reduced dim", Dim::Static(0));
        return site.fail(&[&x], GraphErrorKind::DimValue { what, dim, expected: "at least 1" });
    }
    let dtype = row.result.unwrap_or(x.dtype());
    if x.shape()[axis] == 1 {
        // Each element is the result of its own, and is at 0. (A sum is 0 and the element, which is not -0.)
        match row.kernel {
            "argmax" => return site.broadcast(site.scalar(&x, Scalar::Int(0), dtype)?, x.shape()),
            "prod" | "reduce_max" | "reduce_min" => return Ok(x),
            _ => {}
        }
    }
    let wide = widened(x.dtype());
    let reduced = reduce_widened(site, row, site.cast(x, wide)?, axis)?;
    site.cast(reduced, dtype)
}

fn reduce_widened(site: &Site, row: &Reduction, x: TensorValue, axis: usize) -> Result<TensorValue> {
    let division = rows_side_by_side(x.shape(), axis).or_else(|| parts(x.shape(), axis));
    let Some(division) = division.filter(|_| row.splits) else { return reduce_axis(site, row, &x, axis) };
    // Sums and products of parts of half types would be rounded: they are of `f32`, to which the reduction reads its operand.
    let (dtype, rounds) = (x.dtype(), x.dtype().is_half() && !matches!(row.kernel, "reduce_max" | "reduce_min"));
    let whole = if rounds { site.cast(x, DType::F32)? } else { x };
    let result = reduce_divided(site, row, &whole, axis, division)?;
    if rounds { site.cast(result, dtype) } else { Ok(result) }
}

fn reduce_axis(site: &Site, row: &Reduction, x: &TensorValue, axis: usize) -> Result<TensorValue> {
    let mut ty = x.ty.with_dtype(row.result.unwrap_or(x.dtype()));
    ty.shape[axis] = Dim::Static(1);
    let parameters = row.flag.into_iter().fold(Parameters::new(), |all, flag| all.with(flag, true));
    site.kernel_on_axis(row.kernel, &[x], Some(axis), ty, parameters)
}

macro_rules! reductions {
    ($($(#[doc = $doc:literal])+ $name:ident: $kernel:literal, $flag:expr, $result:expr, $identity:literal, $splits:literal;)+) => {
        $(
            $(#[doc = $doc])+
            /// The axis stays, with size 1.
            ///
            /// # Errors
            /// When the axis is out of range, when the operand is `bool`, or when the axis is empty and the op has no
            /// value for that.
            #[track_caller]
            pub fn $name(x: impl Into<Operand>, axis: i64) -> Result<TensorValue> {
                const ROW: Reduction = Reduction {
                    name: stringify!($name),
                    kernel: $kernel,
                    flag: $flag,
                    result: $result,
                    has_identity: $identity,
                    splits: $splits,
                };
                reduce(&Site::new(ROW.name), &ROW, x, axis)
            }
        )+

        impl TensorValue {$(
            $(#[doc = $doc])+
            ///
            /// # Errors
            #[doc = concat!("As [`ops::", stringify!($name), "`](crate::graph::ops::", stringify!($name), ").")]
            #[track_caller]
            pub fn $name(&self, axis: i64) -> Result<TensorValue> {
                $name(self, axis)
            }
        )+}
    };
}
reductions! {
    /// The position of the largest element along an axis, the first of several, as `int64`.
    argmax: "argmax", None, Some(DType::I64), false, false;
    /// The position of the smallest element along an axis, the first of several, as `int64`.
    argmin: "argmax", Some("smallest"), Some(DType::I64), false, false;
    /// The largest element along an axis.
    max: "reduce_max", None, None, false, true;
    /// The mean along an axis. Of integers it is rounded towards 0.
    mean: "mean", None, None, false, false;
    /// The smallest element along an axis.
    min: "reduce_min", None, None, false, true;
    /// The product along an axis; 1 of none.
    prod: "prod", None, None, true, true;
    /// The sum along an axis; 0 of none.
    sum: "sum", None, None, true, true;
}

impl TensorValue {
    /// The variance along an axis: the mean of the squared differences from the mean.
    ///
    /// # Errors
    /// As [`mean`], and for a dtype other than a float.
    #[track_caller]
    pub fn var(&self, axis: i64) -> Result<TensorValue> {
        const ROW: Reduction =
            Reduction { name: "var", kernel: "var", flag: None, result: None, has_identity: false, splits: false };
        let site = Site::new(ROW.name);
        site.require("the operand", self, "floats", DType::is_float)?;
        reduce(&site, &ROW, self, axis)
    }

    /// The standard deviation along an axis: the square root of [`var`](TensorValue::var).
    ///
    /// # Errors
    /// As [`var`](TensorValue::var).
    #[track_caller]
    pub fn stdev(&self, axis: i64) -> Result<TensorValue> {
        super::sqrt(self.var(axis)?)
    }
}

/// A row kernel whose result has the operand's type.
fn map_rows(
    site: &Site,
    x: TensorValue,
    axis: i64,
    kernel: &'static str,
    parameters: Parameters,
) -> Result<TensorValue> {
    let axis = site.axis(&x, axis)?;
    let ty = x.ty.clone();
    site.kernel_on_axis(kernel, &[&x], Some(axis), ty, parameters)
}

fn float_operand(site: &Site, x: impl Into<Operand>) -> Result<TensorValue> {
    let x = site.tensor("the operand", x)?;
    site.require("the operand", &x, "floats", DType::is_float)?;
    Ok(x)
}

/// exp(x) / sum(exp(x)) along an axis.
///
/// # Errors
/// When the axis is out of range or the operand is not a float tensor.
#[track_caller]
pub fn softmax(x: impl Into<Operand>, axis: i64) -> Result<TensorValue> {
    let site = Site::new("softmax");
    map_rows(&site, float_operand(&site, x)?, axis, "softmax", Parameters::new())
}

/// x - log(sum(exp(x))) along an axis.
///
/// # Errors
/// As [`softmax`].
#[track_caller]
pub fn logsoftmax(x: impl Into<Operand>, axis: i64) -> Result<TensorValue> {
    let site = Site::new("logsoftmax");
    map_rows(&site, float_operand(&site, x)?, axis, "logsoftmax", Parameters::new())
}

/// The sums of the elements up to each one along an axis: without that one if `exclusive`, from the end if `reverse`.
///
/// # Errors
/// When the axis is out of range or the operand is `bool`.
#[track_caller]
pub fn cumsum(x: impl Into<Operand>, axis: i64, exclusive: bool, reverse: bool) -> Result<TensorValue> {
    let site = Site::new("cumsum");
    let x = site.tensor("the operand", x)?;
    site.require("the operand", &x, "integers and floats", |dtype| dtype != DType::Bool)?;
    let parameters = Parameters::new().with("exclusive", exclusive).with("reverse", reverse);
    let dtype = x.dtype();
    let sums = map_rows(&site, site.cast(x, widened(dtype))?, axis, "cumsum", parameters)?;
    site.cast(sums, dtype)
}

/// Normalizes along the last axis: (x - mean) / sqrt(variance + epsilon) · gamma + beta.
///
/// The result has the input's dtype. Weights of a wider one, such as `float32` beside `bfloat16`, are not rounded first: all is
/// computed in the wider dtype, and the result is rounded once.
///
/// # Errors
/// When `gamma` or `beta` is not a vector of the last dim's size, when `epsilon` is not above 0, when the dtype is no
/// float, and as [`add`](super::add) for dtypes, devices and graphs.
#[track_caller]
pub fn layer_norm(
    input: impl Into<Operand>,
    gamma: impl Into<Operand>,
    beta: impl Into<Operand>,
    epsilon: f64,
) -> Result<TensorValue> {
    normalize(&Site::new("layer_norm"), "layer_norm", [input.into(), gamma.into(), beta.into()], epsilon)
}

/// Normalizes along the last axis without a mean: x / sqrt(mean(x²) + epsilon) · weight. Dtypes as in [`layer_norm`].
///
/// # Errors
/// As [`layer_norm`].
#[track_caller]
pub fn rms_norm(input: impl Into<Operand>, weight: impl Into<Operand>, epsilon: f64) -> Result<TensorValue> {
    normalize(&Site::new("rms_norm"), "rms_norm", [input.into(), weight.into()], epsilon)
}

fn normalize<const N: usize>(
    site: &Site,
    kernel: &'static str,
    operands: [Operand; N],
    epsilon: f64,
) -> Result<TensorValue> {
    let dtype = input_dtype(site, operands.first())?;
    let operands = site.promote(operands)?;
    let all: [&TensorValue; N] = operands.each_ref();
    let [x, ..] = all.as_slice() else {
        return site.fail(&[], GraphErrorKind::NoOperands);
    };
    let axis = site.axis(x, -1)?;
    weights(site, &all, "the input's last dim and the weight's", &x.shape()[axis])?;
    if epsilon.is_nan() || epsilon <= 0.0 {
        return site.argument(&all, "epsilon", epsilon, "above 0");
    }
    let parameters = Parameters::new().with("epsilon", epsilon);
    let y = site.kernel_on_axis(kernel, &all, Some(axis), x.ty.clone(), parameters)?;
    site.cast(y, dtype)
}

/// The dtype of what is normalized, which is that of the result.
fn input_dtype(site: &Site, input: Option<&Operand>) -> Result<DType> {
    let Some(input) = input else { return site.fail(&[], GraphErrorKind::NoOperands) };
    let x = site.tensor("the input", input)?;
    site.require("the input", &x, "floats", DType::is_float)?;
    Ok(x.dtype())
}

/// Normalizes the channels of `[batch, channels, ..]` in groups: (x - mean) / sqrt(variance + epsilon) · gamma + beta,
/// with mean and variance of a group of neighbouring channels of one image. Dtypes as in [`layer_norm`].
///
/// # Errors
/// When the input has fewer than 2 axes; when the channels are symbolic, or `num_groups` does not divide them; when `gamma`
/// or `beta` is not a vector of the channels, when `epsilon` is not above 0, when the dtype is no float, and as
/// [`add`](super::add) for dtypes, devices and graphs.
#[track_caller]
pub fn group_norm(
    input: impl Into<Operand>,
    gamma: impl Into<Operand>,
    beta: impl Into<Operand>,
    num_groups: i64,
    epsilon: f64,
) -> Result<TensorValue> {
    let site = Site::new("group_norm");
    let operands = [input.into(), gamma.into(), beta.into()];
    let dtype = input_dtype(&site, operands.first())?;
    let operands = site.promote(operands)?;
    let [x, gamma, beta] = &operands;
    let all = [x, gamma, beta];
    let [batch, channels, inner @ ..] = x.shape().dims() else {
        let kind = GraphErrorKind::Rank { what: "the input", rank: x.rank(), expected: "at least 2 axes".into() };
        return site.fail(&all, kind);
    };
    weights(&site, &all, "the input's channels and the weight's", channels)?;
    let Some(count) = channels.as_static() else {
        let (what, dim) = ("the number of channels", channels.clone());
        return site.fail(&all, GraphErrorKind::DimValue { what, dim, expected: STATIC });
    };
    if num_groups < 1 || count % num_groups != 0 {
        return site.argument(&all, "num_groups", num_groups, format!("a divisor of the {count} channels"));
    }
    if epsilon.is_nan() || epsilon <= 0.0 {
        return site.argument(&all, "epsilon", epsilon, "above 0");
    }
    let each = inner.iter().fold(Dim::Static(count / num_groups), |all, dim| all * dim);
    let rows = super::movement::views::reshape_at(&site, x, Shape::from([batch * num_groups, each]))?;
    let parameters = Parameters::new().with("groups", num_groups).with("epsilon", epsilon);
    let y = site.kernel("group_norm", &[&rows, gamma, beta], rows.ty.clone(), parameters)?;
    super::movement::views::reshape_at(&site, &site.cast(y, dtype)?, x.shape().clone())
}

/// Checks that all but the first are vectors of that size.
fn weights(site: &Site, all: &[&TensorValue], what: &'static str, size: &Dim) -> Result<()> {
    for weight in &all[1..] {
        let [own] = weight.shape().dims() else {
            let kind = GraphErrorKind::Rank { what: "a weight", rank: weight.rank(), expected: "1 axis".into() };
            return site.fail(all, kind);
        };
        if own != size {
            return site.fail(all, GraphErrorKind::DimMismatch { what, lhs: size.clone(), rhs: own.clone() });
        }
    }
    Ok(())
}
