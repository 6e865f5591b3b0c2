//! Sorting: runs of elements by one kernel, then pairs of runs merged by another, launch after launch; and the first elements
//! in order.

use smallvec::smallvec;

use super::dims::{bind, unnamed};
use super::movement::slice::{DimSlice, slice_tensor};
use super::permute;
use crate::driver::DeviceRef;
use crate::dtype::DType;
use crate::graph::error::GraphErrorKind;
use crate::graph::node::Op;
use crate::graph::parameters::{KernelCall, Parameters};
use crate::graph::site::{Result, Site};
use crate::graph::symbolic::dim::Dim;
use crate::graph::types::{TensorType, Type};
use crate::graph::value::{Operand, Scalar, TensorValue, Value};

/// Elements of the runs that are sorted at first.
const RUN: i64 = 64;
/// So many elements are found faster one after the other than all at once.
const FEW: usize = 16;

/// The positions that would sort a tensor along its first axis, as `int64`. Equal elements stay in order, NaN counts as larger
/// than everything, and `true` as larger than `false`.
///
/// # Errors
/// When the operand is a scalar.
///
/// ```
/// # use max_core::{driver::DeviceRef, dtype::DType, graph::{Graph, TensorType, ops}};
/// let graph = Graph::new("g", [TensorType::new(DType::F32, (1000, "n"), DeviceRef::CPU)]);
/// let order = ops::argsort(&graph.inputs()[0], true)?;
/// assert_eq!(order.ty().to_string(), "int64[1000, n]");
/// # Ok::<(), max_core::graph::GraphError>(())
/// ```
#[track_caller]
pub fn argsort(x: impl Into<Operand>, ascending: bool) -> Result<TensorValue> {
    let site = Site::new("argsort");
    let x = site.tensor("the operand", x)?;
    let x = if x.dtype() == DType::Bool { site.cast(x, DType::U8)? } else { x };
    let axis = site.axis(&x, 0)?;
    let size = x.shape()[axis].clone();
    // Rows side by side: each launch takes what the last one wrote.
    let order: Vec<i64> = (1..x.rank() as i64).chain([0]).collect();
    let back: Vec<i64> = [x.rank() as i64 - 1].into_iter().chain(0..x.rank() as i64 - 1).collect();
    let rows = permute(&x, order)?;
    let positions = match size.as_static() {
        Some(size) => sort_rows(&site, &rows, size, !ascending)?.1,
        None => sort_long_rows(&site, &rows, &size, !ascending)?,
    };
    permute(positions, back)
}

/// Where the elements of rows were before these were in order: as [`sort_rows`], with a loop that merges as often as a row
/// needs whose size is known at execution.
#[track_caller]
fn sort_long_rows(site: &Site, rows: &TensorValue, size: &Dim, descending: bool) -> Result<TensorValue> {
    let parameters = || Parameters::new().with("descending", descending);
    let (values, positions) = launch(site, "sort_runs", rows.rank() - 1, &[rows], &rows.ty, parameters())?;
    let run = super::transfer_to(site.scalar(rows, Scalar::Int(RUN.into()), DType::I64)?, DeviceRef::CPU)?;
    let sorted = super::while_loop(
        (run, values, positions),
        |carried| super::greater(size, &carried[0]),
        |carried| {
            let run = unnamed(&rows.graph);
            bind(site, &carried[0], [run.clone()].into())?;
            let (values, positions) = (&carried[1], &carried[2]);
            let parameters = parameters().with("run", &run);
            let merged = launch(site, "merge_runs", rows.rank() - 1, &[values, positions], &rows.ty, parameters)?;
            Ok((super::mul(&carried[0], 2)?, merged.0, merged.1))
        },
    )?;
    match sorted.get(2) {
        Some(positions) => Ok(positions.clone()),
        None => site.fail(&[rows], GraphErrorKind::NoOperands),
    }
}

/// Rows of `size` elements in order, and where they were.
fn sort_rows(site: &Site, rows: &TensorValue, size: i64, descending: bool) -> Result<(TensorValue, TensorValue)> {
    let parameters = || Parameters::new().with("descending", descending);
    let mut sorted = launch(site, "sort_runs", rows.rank() - 1, &[rows], &rows.ty, parameters())?;
    let mut run = RUN;
    while run < size {
        let parameters = parameters().with("run", run);
        sorted = launch(site, "merge_runs", rows.rank() - 1, &[&sorted.0, &sorted.1], &rows.ty, parameters)?;
        run = run.saturating_mul(2);
    }
    Ok(sorted)
}

/// The `k` largest elements along an axis, largest first, and their positions as `int64`. Of equal elements the first comes
/// first, and NaN counts as larger than everything. Where a symbolic axis turns out to be shorter than `k`, the positions past
/// its elements are its size, and what stands there is no element.
///
/// # Errors
/// When the axis is out of range, when the operand is `bool`, and when `k` is 0 or larger than the axis.
#[track_caller]
pub fn top_k(x: impl Into<Operand>, k: usize, axis: i64) -> Result<(TensorValue, TensorValue)> {
    select(&Site::new("top_k"), true, x, k, axis)
}

/// The `k` smallest elements along an axis, smallest first, and their positions as `int64`.
///
/// # Errors
/// As [`top_k`].
#[track_caller]
pub fn bottom_k(x: impl Into<Operand>, k: usize, axis: i64) -> Result<(TensorValue, TensorValue)> {
    select(&Site::new("bottom_k"), false, x, k, axis)
}

#[track_caller]
fn select(
    site: &Site,
    largest: bool,
    x: impl Into<Operand>,
    k: usize,
    axis: i64,
) -> Result<(TensorValue, TensorValue)> {
    let x = site.tensor("the operand", x)?;
    site.require("the operand", &x, "integers and floats", |dtype| dtype != DType::Bool)?;
    let axis = site.axis(&x, axis)?;
    let (size, count) = (&x.shape()[axis], Dim::from(k));
    let too_many = size.as_static().zip(count.as_static()).is_some_and(|(size, count)| count > size);
    if k == 0 || too_many {
        return site.argument(&[&x], "k", k, format!("1 to the axis's size, {size}"));
    }
    // Which is what the kernels take where nothing is said.
    let parameters = if largest { Parameters::new() } else { Parameters::new().with("largest", false) };
    let taken = |x: &TensorValue, axis: usize| {
        let mut ty = x.ty.clone();
        ty.shape[axis] = count.clone();
        ty
    };
    if k <= FEW {
        return launch(site, "top_k", axis, &[&x], &taken(&x, axis), parameters);
    }
    // To find one after the other would take as long as their number says: they are found together, and then sorted.
    let last = x.rank() - 1;
    let mut order: Vec<i64> = (0..x.rank() as i64).collect();
    order.swap(axis, last);
    let rows = permute(&x, order.clone())?;
    if let Some(size) = size.as_static().filter(|size| k as i64 > size / 2) {
        // Most of them: to sort all costs less than to find which, and then to sort these.
        let (values, positions) = sort_rows(site, &rows, size, largest)?;
        let first = |x| slice_tensor(x, [DimSlice::Ellipsis, DimSlice::from(0..k as i64)]);
        return Ok((permute(first(values)?, order.clone())?, permute(first(positions)?, order)?));
    }
    let (values, positions) = launch(site, "select_k", last, &[&rows], &taken(&rows, last), parameters)?;
    let (values, places) = sort_rows(site, &values, k as i64, largest)?;
    let ty = positions.ty.clone();
    let positions =
        site.kernel_on_axis("gather_elements", &[&positions, &places], Some(last), ty, Parameters::new())?;
    Ok((permute(values, order.clone())?, permute(positions, order)?))
}

/// A kernel with rows of values and of positions as results.
fn launch(
    site: &Site,
    kernel: &'static str,
    axis: usize,
    operands: &[&TensorValue],
    values: &TensorType,
    parameters: Parameters,
) -> Result<(TensorValue, TensorValue)> {
    let [x, ..] = operands else { return site.fail(operands, GraphErrorKind::NoOperands) };
    let types = [values.clone(), values.with_dtype(DType::I64)];
    let parameters = site.verify_built_in(kernel, operands, &[&types[0], &types[1]], parameters)?;
    let call = KernelCall { name: kernel.into(), axis: Some(axis), parameters };
    let ids = operands.iter().map(|value| value.id).collect();
    let [values, positions] = types.map(Type::Tensor);
    let results = site.push_values(&x.graph, Op::Kernel(call), ids, smallvec![values, positions], x.device(), false);
    match <[Value; 2]>::try_from(results) {
        Ok([Value::Tensor(values), Value::Tensor(positions)]) => Ok((values, positions)),
        _ => site.fail(operands, GraphErrorKind::NoOperands),
    }
}
