//! Sorting: runs of elements by one kernel, then pairs of runs merged by another, launch after launch; and the first elements
//! in order.
//!
//! A GPU runs a program on one of its many processors. There, long rows are divided: the first elements are those of the first
//! ones of each part.

use super::dims::{bind, unnamed};
use super::movement::slice::{DimSlice, slice_tensor};
use super::movement::views::reshape_at;
use super::permute;
use super::rows::widened;
use crate::driver::DeviceRef;
use crate::dtype::DType;
use crate::graph::builder::site::{Result, Site};
use crate::graph::error::GraphErrorKind;
use crate::graph::node::Op;
use crate::graph::parameters::{KernelCall, Parameters};
use crate::graph::symbolic::dim::Dim;
use crate::graph::symbolic::shape::Shape;
use crate::graph::types::{TensorType, Type};
use crate::graph::value::{Operand, Scalar, TensorValue, Value};

/// Elements of the runs that are sorted at first.
const RUN: i64 = 512;
/// So many elements are found faster one after the other than all at once on a GPU, and where a row's size is not known.
const FEW: usize = 16;
/// The longest row that is looked through for each element on a GPU.
const SHORT: i64 = 1024;
/// Elements that `select_k` counts together.
const CHUNK: i64 = 64;
/// The most elements of a part of a row on a GPU, and how many times as many as are taken of it.
const PART: i64 = 4096;
const PART_OF_TAKEN: i64 = 4;

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
    let wide = widened(x.dtype());
    let x = site.cast(x, wide)?;
    site.axis(&x, 0)?;
    // Rows side by side: each launch takes what the last one wrote.
    let order: Vec<i64> = (1..x.rank() as i64).chain([0]).collect();
    let back: Vec<i64> = [x.rank() as i64 - 1].into_iter().chain(0..x.rank() as i64 - 1).collect();
    let rows = permute(&x, order)?;
    permute(sort_rows(&site, &rows, !ascending)?.1, back)
}

/// Rows in order, and where their elements were.
#[track_caller]
pub(super) fn sort_rows(site: &Site, rows: &TensorValue, descending: bool) -> Result<(TensorValue, TensorValue)> {
    let size = &rows.shape()[site.axis(rows, -1)?];
    match size.as_static() {
        Some(size) => sort_static_rows(site, rows, size, descending),
        None => sort_symbolic_rows(site, rows, size, descending),
    }
}

/// That of rows whose size is known at execution, with a loop that merges as often as such a row needs.
#[track_caller]
fn sort_symbolic_rows(
    site: &Site,
    rows: &TensorValue,
    size: &Dim,
    descending: bool,
) -> Result<(TensorValue, TensorValue)> {
    let parameters = || Parameters::new().with("descending", descending);
    let (values, positions) = sort_runs(site, rows, None, &rows.ty, descending)?;
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
    match <[TensorValue; 3]>::try_from(sorted) {
        Ok([_, values, positions]) => Ok((values, positions)),
        Err(_) => site.fail(&[rows], GraphErrorKind::NoOperands),
    }
}

/// That of rows of `size` elements.
fn sort_static_rows(
    site: &Site,
    rows: &TensorValue,
    size: i64,
    descending: bool,
) -> Result<(TensorValue, TensorValue)> {
    let parameters = || Parameters::new().with("descending", descending);
    let mut sorted = sort_runs(site, rows, None, &rows.ty, descending)?;
    let mut run = RUN;
    while run < size {
        let parameters = parameters().with("run", run);
        sorted = launch(site, "merge_runs", rows.rank() - 1, &[&sorted.0, &sorted.1], &rows.ty, parameters)?;
        run = run.saturating_mul(2);
    }
    Ok(sorted)
}

/// Runs in order, and where their elements were, or what `at` has in place of these; of rows of one run the first ones, as many as `taken`
/// has.
#[track_caller]
fn sort_runs(
    site: &Site,
    rows: &TensorValue,
    at: Option<&TensorValue>,
    taken: &TensorType,
    descending: bool,
) -> Result<(TensorValue, TensorValue)> {
    let last = rows.rank() - 1;
    let by = Parameters::new().with("descending", descending);
    let ranks = site.kernel_on_axis("rank_runs", &[rows], Some(last), rows.ty.with_dtype(DType::I32), by)?;
    let given = Parameters::new().with("at", at.is_some());
    let at = match at {
        Some(at) => at.clone(),
        None => site.absent(rows, DType::I64, rows.rank())?,
    };
    launch(site, "sort_runs", last, &[rows, &ranks, &at], taken, given)
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
    let dtype = x.dtype();
    let (values, positions) = select_widened(site, largest, &site.cast(x, widened(dtype))?, k, axis)?;
    Ok((site.cast(values, dtype)?, positions))
}

#[track_caller]
fn select_widened(
    site: &Site,
    largest: bool,
    x: &TensorValue,
    k: usize,
    axis: usize,
) -> Result<(TensorValue, TensorValue)> {
    let (size, count) = (&x.shape()[axis], Dim::from(k));
    let taken = |x: &TensorValue, axis: usize| {
        let mut ty = x.ty.clone();
        ty.shape[axis] = count.clone();
        ty
    };
    // On a CPU a thread takes a row, however long.
    let is_long = x.device().is_gpu() && size.as_static().is_none_or(|size| size > 2 * PART);
    let way = match size.as_static().filter(|_| !x.device().is_gpu()) {
        Some(size) => Way::fastest(size, k as i64),
        _ if k <= FEW && !is_long => Way::Picks,
        _ if size.as_static().is_some_and(|size| size <= RUN) => Way::Ranks,
        _ => Way::Selection,
    };
    if way == Way::Picks {
        return pick(site, x, axis, &taken(x, axis), largest);
    }
    // To find one after the other would take as long as their number says: they are found together, and then sorted.
    let last = x.rank() - 1;
    let mut order: Vec<i64> = (0..x.rank() as i64).collect();
    order.swap(axis, last);
    let rows = permute(x, order.clone())?;
    let of_rows = taken(&rows, last);
    let back = |(values, positions)| Ok((permute(values, order.clone())?, permute(positions, order.clone())?));
    // Nearly all of them, or as many runs: to sort all costs less than to find which, and then to sort these.
    let last_run = |n: i64| (n - 1) / RUN;
    let are_most = |size: i64| k as i64 > size - size / 8 || last_run(k as i64) == last_run(size);
    match size.as_static() {
        _ if way == Way::Ranks => return back(sort_runs(site, &rows, None, &of_rows, largest)?),
        Some(size) if size > RUN && are_most(size) => {
            let (values, positions) = sort_static_rows(site, &rows, size, largest)?;
            let first = |x| slice_tensor(x, [DimSlice::Ellipsis, DimSlice::from(0..k as i64)]);
            return back((first(values)?, first(positions)?));
        }
        _ => {}
    }
    let (values, positions) = match is_long {
        true => select_of_parts(site, &rows, k as i64, largest)?,
        false => select_rows(site, &rows, of_rows.clone(), largest)?,
    };
    let (values, places) = if is_long && k <= FEW {
        // Those of all parts are left.
        pick(site, &values, last, &of_rows, largest)?
    } else if k as i64 <= RUN {
        return back(sort_runs(site, &values, Some(&positions), &of_rows, largest)?);
    } else {
        sort_rows(site, &values, largest)?
    };
    let positions = at_places(site, &positions, &places)?;
    back((values, positions))
}

/// How long it takes to find one element more in a row of so many, looked through each time. In nanoseconds of one core of a CPU, as
/// all estimates: their terms are the slopes of measurements (docs/performance/selection.md), and only their ratios count.
fn pick_of_row(size: i64) -> f64 {
    65.0 + 0.235 * size as f64
}

/// How long it takes to find `k` elements by the best ones of chunks.
fn picks_of_chunks(size: i64, k: i64) -> f64 {
    let n = size as f64;
    60.0 + 0.42 * n + k as f64 * (235.0 + 0.29 * n / CHUNK as f64)
}

/// How the first elements of a row are found.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    /// One after the other.
    Picks,
    /// All elements of one run are ranked.
    Ranks,
    /// Together, and then ranked.
    Selection,
}

impl Way {
    /// That which takes the least time for `k` of `size` elements on a CPU.
    fn fastest(size: i64, k: i64) -> Way {
        let (n, taken) = (size as f64, k as f64);
        // A block of 64 is compared with all of a run.
        let rank = |n: f64| (n / 64.0).ceil() * (220.0 + 1.5 * n);
        let picks = (taken * pick_of_row(size)).min(picks_of_chunks(size, k));
        let ranks = if size <= RUN { rank(n) + n } else { f64::INFINITY };
        // With two chunks for each element that is taken, few elements are before the bound.
        let selection = match size / CHUNK >= 2 * k {
            true => 3000.0 + 0.55 * n + 370.0 * taken,
            false => 1000.0 + 4.2 * n + 4.0 * taken + rank(taken.min(RUN as f64)),
        };
        if picks <= ranks.min(selection) {
            Way::Picks
        } else if ranks <= selection {
            Way::Ranks
        } else {
            Way::Selection
        }
    }
}

/// Which elements come first, for kernels that take the largest where nothing is said.
fn by(largest: bool) -> Parameters {
    if largest { Parameters::new() } else { Parameters::new().with("largest", false) }
}

/// The elements of rows whose places others name.
#[track_caller]
fn at_places(site: &Site, rows: &TensorValue, places: &TensorValue) -> Result<TensorValue> {
    let ty = rows.ty.with_shape(places.shape().clone());
    site.kernel_on_axis("gather_elements", &[rows, places], Some(places.rank() - 1), ty, Parameters::new())
}

/// The first elements of rows one after the other, as many as `taken` has.
#[track_caller]
fn pick(
    site: &Site,
    x: &TensorValue,
    axis: usize,
    taken: &TensorType,
    largest: bool,
) -> Result<(TensorValue, TensorValue)> {
    let (size, k) = (&x.shape()[axis], taken.shape[axis].as_static().unwrap_or(1));
    let is_single = match size.as_static() {
        Some(size) if x.device().is_gpu() => size <= SHORT,
        Some(size) => pick_of_row(size) * k as f64 <= picks_of_chunks(size, k),
        None => false,
    };
    let mut best = taken.clone();
    best.shape[axis] = if is_single { Dim::from(1) } else { (size.clone() + (CHUNK - 1)) / CHUNK };
    let types = [taken.clone(), taken.with_dtype(DType::I64), best];
    let [values, positions, _] = call(site, "top_k", Some(axis), &[x], types, by(largest))?;
    Ok((values, positions))
}

/// The elements among which `select_k` looks for the last one, of rows with `size` elements or fewer: all of a row with fewer chunks
/// than `k`, else one of each chunk, or the chunks of `k` elements.
fn candidates(size: &Dim, k: i64) -> Dim {
    let (chunks, all) = ((size.clone() + (CHUNK - 1)) / CHUNK, k.saturating_mul(CHUNK));
    match (size.as_static(), chunks.as_static()) {
        (Some(size), _) if size <= all => Dim::from(size),
        (Some(_), Some(chunks)) => Dim::from(chunks.max(all)),
        _ => chunks + all,
    }
}

/// The first elements of rows in the order of their positions, as many as `taken` has.
#[track_caller]
fn select_rows(
    site: &Site,
    rows: &TensorValue,
    taken: TensorType,
    largest: bool,
) -> Result<(TensorValue, TensorValue)> {
    let last = rows.rank() - 1;
    let (size, k) = (&rows.shape()[last], taken.shape[last].as_static().unwrap_or(1));
    let of = |columns: Dim| {
        let mut ty = taken.clone();
        ty.shape[last] = columns;
        ty
    };
    let chunks = (size.clone() + (CHUNK - 1)) / CHUNK;
    let types =
        [taken.clone(), taken.with_dtype(DType::I64), of(chunks).with_dtype(DType::I64), of(candidates(size, k))];
    let [values, positions, ..] = call(site, "select_k", Some(last), &[rows], types, by(largest))?;
    Ok((values, positions))
}

/// The first `k` elements of rows in the order of their positions: of each part of a row as many, and of these the first ones.
/// Where these are few, all of them are left, for `top_k`.
#[track_caller]
fn select_of_parts(site: &Site, rows: &TensorValue, k: i64, largest: bool) -> Result<(TensorValue, TensorValue)> {
    let last = rows.rank() - 1;
    let (of_rows, size) = (Shape::from(&rows.shape()[..last]), rows.shape()[last].clone());
    // Parts have half as many elements at least, which are more than are taken, unless it is the only one.
    let most = PART.max(k.saturating_mul(PART_OF_TAKEN));
    let parts = (size.clone() + (most - 1)) / most;
    let count = of_rows.num_elements();
    let flat = reshape_at(site, rows, Shape::from([count.clone(), size]))?;
    let of_parts = |columns: Dim| flat.ty.with_shape(Shape::from([count.clone() * &parts, columns]));
    let (taken, ends) = (of_parts(Dim::from(k)), of_parts(Dim::from(most / CHUNK + 1)));
    let candidates = of_parts(candidates(&Dim::from(most), k));
    let types = [taken.clone(), taken.with_dtype(DType::I64), ends.with_dtype(DType::I64), candidates];
    let parameters = by(largest).with("parts", &parts);
    let [values, positions, ..] = call(site, "select_k", None, &[&flat], types, parameters)?;
    let mut shape = rows.shape().clone();
    shape[last] = parts * k;
    let (values, positions) = (reshape_at(site, &values, shape.clone())?, reshape_at(site, &positions, shape.clone())?);
    if k <= FEW as i64 {
        return Ok((values, positions));
    }
    shape[last] = Dim::from(k);
    let (values, places) = select_rows(site, &values, rows.ty.with_shape(shape), largest)?;
    Ok((values, at_places(site, &positions, &places)?))
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
    let types = [values.clone(), values.with_dtype(DType::I64)];
    let [values, positions] = call(site, kernel, Some(axis), operands, types, parameters)?;
    Ok((values, positions))
}

/// A kernel with several results.
fn call<const N: usize>(
    site: &Site,
    kernel: &'static str,
    axis: Option<usize>,
    operands: &[&TensorValue],
    types: [TensorType; N],
    parameters: Parameters,
) -> Result<[TensorValue; N]> {
    let [x, ..] = operands else { return site.fail(operands, GraphErrorKind::NoOperands) };
    let parameters = site.verify_built_in(kernel, operands, &types.each_ref(), parameters)?;
    let call = KernelCall { name: kernel.into(), axis, parameters };
    let ids = operands.iter().map(|value| value.id).collect();
    let types = types.into_iter().map(Type::Tensor).collect();
    let results = site.push_values(&x.graph, Op::Kernel(call), ids, types, x.device(), false);
    let tensor = |value: Value| if let Value::Tensor(value) = value { Some(value) } else { None };
    let results: Vec<TensorValue> = results.into_iter().filter_map(tensor).collect();
    results.try_into().or_else(|_| site.fail(operands, GraphErrorKind::NoOperands))
}
