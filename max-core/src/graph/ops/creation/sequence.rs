//! Sequences of numbers, known when the graph is built, and what they select.

use smallvec::SmallVec;

use super::constant::constant;
use crate::driver::DeviceRef;
use crate::dtype::DType;
use crate::graph::Graph;
use crate::graph::builder::site::{Result, Site};
use crate::graph::error::GraphErrorKind;
use crate::graph::ops;
use crate::graph::ops::dims::numbers;
use crate::graph::ops::movement::views::reshape_at;
use crate::graph::ops::{greater_equal, logical_and, logical_not, where_};
use crate::graph::symbolic::dim::Dim;
use crate::graph::types::Type;
use crate::graph::value::{Operand, Scalar, TensorValue};

/// The most elements of a sequence: it lies in the graph.
const LONGEST: i128 = 1 << 28;

/// The numbers from `start` to `stop`, without that, by steps of `step`: numbers, or dims, whose sizes are known when the
/// graph is executed (`range(&graph, past, seen, 1, …)`). [`range_tensor`](crate::graph::ops::range_tensor) takes tensors.
///
/// # Errors
/// When `step` is 0 or leads away from `stop`; when a number is no number or the dtype does not hold it; beside a dim, when a
/// number is no integer, or `step` a dim. That `stop` does not lie before `start` is checked, of dims, at execution.
///
/// ```
/// # use max_core::{driver::DeviceRef, dtype::DType, graph::{Graph, ops}};
/// let graph = Graph::new("g", ());
/// let x = ops::range(&graph, 5, -5, -3, DType::I32, DeviceRef::CPU)?;
/// assert_eq!(x.ty().to_string(), "int32[4]");
/// # Ok::<(), max_core::graph::GraphError>(())
/// ```
#[track_caller]
pub fn range(
    graph: &Graph,
    start: impl Into<Operand>,
    stop: impl Into<Operand>,
    step: impl Into<Operand>,
    dtype: DType,
    device: DeviceRef,
) -> Result<TensorValue> {
    let site = Site::new("range");
    let fail = |argument, value: String, expected: &'static str| {
        let kind = GraphErrorKind::Argument { argument, value, expected: expected.into() };
        Err(site.error(graph.reference(), None::<Type>, kind))
    };
    let given = [start.into(), stop.into(), step.into()];
    let ends = match given {
        [Operand::Scalar(start), Operand::Scalar(stop), Operand::Scalar(step)] => (start, stop, step),
        _ => return range_of_dims(&site, graph, &given, dtype, device),
    };
    if let (Scalar::Int(start), Scalar::Int(stop), Scalar::Int(step)) = ends {
        let span = stop.saturating_sub(start);
        if step == 0 || span != 0 && (span < 0) != (step < 0) {
            return fail("step", step.to_string(), "a number other than 0 that leads from start to stop");
        }
        let count = span / step + i128::from(span % step != 0);
        let [first, last] = [start, stop].map(i64::try_from);
        let (Ok(first), Ok(_), true) = (first, last, count <= LONGEST) else {
            return fail("stop", stop.to_string(), "nearer to start");
        };
        let values: Vec<i64> = (0..count as i64).map(|i| first + i * step as i64).collect();
        return constant(graph, values, dtype, device);
    }
    let float = |scalar: Scalar| match scalar {
        Scalar::Int(value) => value as f64,
        Scalar::Float(value) => value,
        Scalar::Bool(value) => f64::from(u8::from(value)),
    };
    let (start, stop, step) = (float(ends.0), float(ends.1), float(ends.2));
    let count = ((stop - start) / step).ceil();
    if !(0.0..=LONGEST as f64).contains(&count) {
        return fail("step", step.to_string(), "a number other than 0 that leads from start to stop");
    }
    let values: Vec<f64> = (0..count as i64).map(|i| start + i as f64 * step).collect();
    constant(graph, values, dtype, device)
}

/// As [`range`], where an end is a dim.
#[track_caller]
fn range_of_dims(
    site: &Site,
    graph: &Graph,
    given: &[Operand; 3],
    dtype: DType,
    device: DeviceRef,
) -> Result<TensorValue> {
    let reference = graph.reference();
    let fail = |argument, value: &Operand, expected: &'static str| {
        let kind = GraphErrorKind::Argument { argument, value: format!("{value:?}"), expected: expected.into() };
        Err(site.error(reference, None::<Type>, kind))
    };
    let mut dims: SmallVec<[Dim; 3]> = SmallVec::new();
    for (argument, value) in ["start", "stop", "step"].into_iter().zip(given) {
        dims.push(match value {
            Operand::Dim(dim) => dim.clone(),
            Operand::Scalar(Scalar::Int(number)) if i64::try_from(*number).is_ok() => Dim::Static(*number as i64),
            Operand::Scalar(_) => return fail(argument, value, "an integer, or no end that is a dim"),
            _ => return fail(argument, value, "a number or a dim; `range_tensor` takes tensors"),
        });
    }
    let [start, stop, step] = &dims[..] else { return fail("step", &given[2], "three ends") };
    let Some(step) = step.as_static().filter(|step| step.checked_abs().is_some_and(|length| length > 0)) else {
        return fail("step", &given[2], "a number other than 0");
    };
    let span = if step > 0 { stop - start } else { start - stop };
    let count = (span + (step.abs() - 1)) / step.abs();
    let numbers = numbers(site, reference, &count, device)?;
    let steps = if step == 1 { numbers } else { ops::mul(&numbers, step)? };
    let values = if *start == 0 { steps } else { ops::add(&steps, start)? };
    site.cast(values, dtype)
}

/// The Hann window `(1 - cos(2 π n / (N - 1))) / 2` of `N = window_length` numbers; a `periodic` one is the first of
/// `N + 1`.
///
/// # Errors
/// When the dtype is no float.
#[track_caller]
pub fn hann_window(
    graph: &Graph,
    window_length: usize,
    device: DeviceRef,
    periodic: bool,
    dtype: DType,
) -> Result<TensorValue> {
    let site = Site::new("hann_window");
    if !dtype.is_float() {
        let kind = GraphErrorKind::UnsupportedDType { what: "the window", dtype, allowed: "floats" };
        return Err(site.error(graph.reference(), None::<Type>, kind));
    }
    let steps = if periodic { window_length } else { window_length.saturating_sub(1) } as f64;
    let at = |n: usize| match window_length {
        1 => 1.0,
        _ => (1.0 - (2.0 * std::f64::consts::PI * n as f64 / steps).cos()) / 2.0,
    };
    let values: Vec<f64> = (0..window_length).map(at).collect();
    constant(graph, values, dtype, device)
}

/// Matrices with 0 outside of a band around the diagonal: `num_lower` diagonals below it and `num_upper` above, `None`
/// for all. With `exclude`, with 0 inside the band.
///
/// # Errors
/// When the operand has fewer than two axes; when a number of diagonals is below 0, or larger than a static dim.
#[track_caller]
pub fn band_part(
    x: impl Into<Operand>,
    num_lower: Option<i64>,
    num_upper: Option<i64>,
    exclude: bool,
) -> Result<TensorValue> {
    let site = Site::new("band_part");
    let x = site.tensor("the operand", x)?;
    let rank = x.rank();
    if rank < 2 {
        let kind = GraphErrorKind::Rank { what: "the operand", rank, expected: "2 axes or more".into() };
        return site.fail(&[&x], kind);
    }
    for (argument, count, axis) in [("num_lower", num_lower, rank - 2), ("num_upper", num_upper, rank - 1)] {
        let size = &x.shape()[axis];
        if let Some(count) = count
            && (count < 0 || size.as_static().is_some_and(|size| count > size))
        {
            return site.argument(&[&x], argument, count, format!("`None`, or from 0 to the dim, {size}"));
        }
    }
    let numbers = |axis: usize, shape: fn(Dim) -> [Dim; 2]| {
        let dim = x.shape()[axis].clone();
        let vector = self::numbers(&site, &x.graph, &dim, x.device())?;
        reshape_at(&site, &vector, shape(dim).into())
    };
    let rows = numbers(rank - 2, |size| [size, Dim::Static(1)])?;
    let columns = numbers(rank - 1, |size| [Dim::Static(1), size])?;
    let lower = num_lower.map(|count| greater_equal(ops::add(&columns, count)?, &rows)).transpose()?;
    let upper = num_upper.map(|count| greater_equal(ops::add(&rows, count)?, &columns)).transpose()?;
    let band = match (lower, upper) {
        (Some(lower), Some(upper)) => logical_and(lower, upper)?,
        (Some(one), None) | (None, Some(one)) => one,
        (None, None) => site.scalar(&x, Scalar::Bool(true), DType::Bool)?,
    };
    let keep = if exclude { logical_not(band)? } else { band };
    let zero = if x.dtype() == DType::Bool { Scalar::Bool(false) } else { Scalar::Int(0) };
    where_(keep, &x, site.scalar(&x, zero, x.dtype())?)
}
