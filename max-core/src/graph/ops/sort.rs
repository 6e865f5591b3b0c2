//! Sorting: runs of elements by one kernel, then pairs of runs merged by another, launch after launch.

use smallvec::smallvec;

use super::permute;
use crate::dtype::DType;
use crate::graph::error::GraphErrorKind;
use crate::graph::node::{KernelCall, Op, Parameters};
use crate::graph::site::{Result, Site};
use crate::graph::types::Type;
use crate::graph::value::{Operand, TensorValue, Value};

/// Elements of the runs that are sorted at first.
const RUN: i64 = 64;

/// The positions that would sort a tensor along its first axis, as `int64`. Equal elements stay in order, and NaN counts
/// as larger than everything.
///
/// # Errors
/// When the operand is a scalar or `bool`, or its first axis symbolic: how often runs are merged depends on it.
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
    site.require("the operand", &x, "integers and floats", |dtype| dtype != DType::Bool)?;
    let axis = site.axis(&x, 0)?;
    let Some(size) = x.shape()[axis].as_static() else {
        let (what, dim) = ("the sorted dim", x.shape()[axis].clone());
        return site.fail(&[&x], GraphErrorKind::DimValue { what, dim, expected: "static" });
    };
    // Rows side by side: each launch takes what the last one wrote.
    let order: Vec<i64> = (1..x.rank() as i64).chain([0]).collect();
    let back: Vec<i64> = [x.rank() as i64 - 1].into_iter().chain(0..x.rank() as i64 - 1).collect();
    let rows = permute(&x, order)?;
    let parameters = || Parameters::new().with("descending", !ascending);
    let mut sorted = launch(&site, "sort_runs", &[&rows], parameters())?;
    let mut run = RUN;
    while run < size {
        sorted = launch(&site, "merge_runs", &[&sorted.0, &sorted.1], parameters().with("run", run))?;
        run = run.saturating_mul(2);
    }
    permute(sorted.1, back)
}

/// A kernel with rows of values and of positions as results.
fn launch(
    site: &Site,
    kernel: &'static str,
    operands: &[&TensorValue],
    parameters: Parameters,
) -> Result<(TensorValue, TensorValue)> {
    let [x, ..] = operands else { return site.fail(operands, GraphErrorKind::NoOperands) };
    let axis = site.axis(x, -1)?;
    let types = [x.ty.clone(), x.ty.with_dtype(DType::I64)];
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
