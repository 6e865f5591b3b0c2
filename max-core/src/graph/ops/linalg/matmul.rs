//! Matrix products. Whatever the ranks, the graph holds a product of matrices (`matmul`, rank 2) or of equally many of
//! them (`batch_matmul`, rank 3), between reshapes that cost nothing.

use crate::dtype::DType;
use crate::graph::builder::site::{Result, Site};
use crate::graph::error::GraphErrorKind;
use crate::graph::ops;
use crate::graph::ops::movement::views::reshape_at;
use crate::graph::parameters::Parameters;
use crate::graph::symbolic::dim::Dim;
use crate::graph::symbolic::shape::Shape;
use crate::graph::value::{Operand, TensorValue};

/// The matrix product over the last two axes; the axes before them are broadcast.
///
/// A vector on the left counts as one row, on the right as one column, and that axis is absent from the result.
///
/// Products of integers have the operands' dtype and wrap around. Of matrices of 8-bit integers, the kernel `matmul_integer`, by
/// [`custom`](crate::graph::ops::custom), gives the sums as `int32`.
///
/// # Errors
/// When an operand is a scalar or of `bool`, when the inner dims are not equal, when the outer axes do not broadcast, and
/// as [`add`](crate::graph::ops::add) for dtypes, devices and graphs.
///
/// ```
/// # use max_core::{driver::DeviceRef, dtype::DType, graph::{Graph, TensorType, ops}};
/// let x = TensorType::new(DType::F32, ("batch", "heads", 16, 64), DeviceRef::CPU);
/// let w = TensorType::new(DType::F32, (64, 32), DeviceRef::CPU);
/// let graph = Graph::new("g", [x, w]);
/// let y = ops::matmul(&graph.inputs()[0], &graph.inputs()[1])?;
/// assert_eq!(y.shape().to_string(), "[batch, heads, 16, 32]");
/// # Ok::<(), max_core::graph::GraphError>(())
/// ```
#[track_caller]
pub fn matmul(lhs: impl Into<Operand>, rhs: impl Into<Operand>) -> Result<TensorValue> {
    let site = Site::new("matmul");
    let [lhs, rhs] = site.promote([lhs.into(), rhs.into()])?;
    for (what, value) in [("the left side", &lhs), ("the right side", &rhs)] {
        site.require(what, value, "numbers", |dtype| dtype.is_float() || dtype.is_integral())?;
        if value.rank() == 0 {
            let expected = "at least 1 axis; multiply by a number with `*`".into();
            return site.fail(&[&lhs, &rhs], GraphErrorKind::Rank { what, rank: 0, expected });
        }
    }
    let (lhs_vector, rhs_vector) = (lhs.rank() == 1, rhs.rank() == 1);
    let a = if lhs_vector {
        reshape_at(&site, &lhs, [Dim::Static(1), lhs.shape()[0].clone()].into())?
    } else {
        lhs.clone()
    };
    let b = if rhs_vector {
        reshape_at(&site, &rhs, [rhs.shape()[0].clone(), Dim::Static(1)].into())?
    } else {
        rhs.clone()
    };
    let (a_batch, [m, k]) = split_matrix(a.shape());
    let (b_batch, [b_k, n]) = split_matrix(b.shape());
    if k != b_k {
        let what = "the left side's last dim and the right side's second last dim";
        return site.fail(&[&lhs, &rhs], GraphErrorKind::DimMismatch { what, lhs: k, rhs: b_k });
    }
    let Some(batch) = a_batch.broadcast(&b_batch) else {
        let kind = GraphErrorKind::Broadcast { lhs: Box::new(a_batch), rhs: Box::new(b_batch) };
        return site.fail(&[&lhs, &rhs], kind);
    };

    let product = if lhs.dtype().is_integral() {
        integers(&site, (&a, &a_batch), (&b, &b_batch), &batch)?
    } else if b_batch.iter().all(|dim| *dim == 1) {
        // All rows of the left side meet the same matrix.
        let rows = a_batch.num_elements() * &m;
        let a = reshape_at(&site, &a, [rows.clone(), k.clone()].into())?;
        let b = reshape_at(&site, &b, [k, n.clone()].into())?;
        let ty = a.ty.with_shape([rows, n.clone()].into());
        site.kernel("matmul", &[&a, &b], ty, Parameters::new())?
    } else {
        let count = batch.num_elements();
        let stacked = |x: &TensorValue, rows: &Dim, columns: &Dim| {
            let x = site.broadcast(x.clone(), &join(&batch, [rows, columns]))?;
            reshape_at(&site, &x, [&count, rows, columns].into())
        };
        let (a, b) = (stacked(&a, &m, &k)?, stacked(&b, &k, &n)?);
        let ty = a.ty.with_shape([&count, &m, &n].into());
        site.kernel("batch_matmul", &[&a, &b], ty, Parameters::new())?
    };
    let matrix = [(!lhs_vector).then_some(m), (!rhs_vector).then_some(n)];
    reshape_at(&site, &product, batch.iter().cloned().chain(matrix.into_iter().flatten()).collect())
}

/// The product of integers, which wraps around: of two matrices of bytes by their kernel, whose sums keep their low bits, of others
/// as the sum of what elementwise products give, which one kernel reads.
fn integers(
    site: &Site,
    (a, a_batch): (&TensorValue, &Shape),
    (b, b_batch): (&TensorValue, &Shape),
    batch: &Shape,
) -> Result<TensorValue> {
    let (_, [m, k]) = split_matrix(a.shape());
    let (_, [_, n]) = split_matrix(b.shape());
    if matches!(a.dtype(), DType::I8 | DType::U8) && b_batch.iter().all(|dim| *dim == 1) {
        let rows = a_batch.num_elements() * &m;
        let x = reshape_at(site, a, [rows.clone(), k.clone()].into())?;
        let y = reshape_at(site, b, [k, n.clone()].into())?;
        let ty = x.ty.with_shape([rows, n].into()).with_dtype(DType::I32);
        return site.cast(site.kernel("matmul_integer", &[&x, &y], ty, Parameters::new())?, a.dtype());
    }
    let one = Dim::Static(1);
    let cube = |dims: [&Dim; 3], of: &Shape| -> Shape { of.iter().chain(dims).cloned().collect() };
    let x = reshape_at(site, a, cube([&m, &k, &one], a_batch))?;
    let y = reshape_at(site, b, cube([&one, &k, &n], b_batch))?;
    let axis = batch.rank() as i64 + 1;
    ops::sum(ops::mul(x, y)?, axis)
}

/// The axes before the last two, and the last two.
fn split_matrix(shape: &Shape) -> (Shape, [Dim; 2]) {
    match shape.dims() {
        [batch @ .., rows, columns] => (batch.into(), [rows.clone(), columns.clone()]),
        // Not reached: vectors have become matrices.
        _ => (Shape::default(), [Dim::Static(1), Dim::Static(1)]),
    }
}

fn join(batch: &Shape, matrix: [&Dim; 2]) -> Shape {
    batch.iter().chain(matrix).collect()
}

/// The outer product: both sides flattened to vectors, every element of one times every element of the other.
///
/// # Errors
/// As [`mul`](crate::graph::ops::mul) for dtypes, devices and graphs.
#[track_caller]
pub fn outer(lhs: impl Into<Operand>, rhs: impl Into<Operand>) -> Result<TensorValue> {
    let site = Site::new("outer");
    let (lhs, rhs) = (site.tensor("the left side", lhs)?, site.tensor("the right side", rhs)?);
    let column = reshape_at(&site, &lhs, [lhs.shape().num_elements(), Dim::Static(1)].into())?;
    let row = reshape_at(&site, &rhs, [Dim::Static(1), rhs.shape().num_elements()].into())?;
    ops::mul(column, row)
}

/// `input · weightᵀ * input_scale * weight_scale`, as `bfloat16`: the product of matrices of 8-bit floats that were quantized
/// with one scale each.
///
/// `input` is `[m, k]` and `weight` `[n, k]`, both `float8_e4m3fn` or both `float8_e5m2`; the scales, `float32` of shape `[]` or
/// `[1]`, are what elements were divided by. Products are added in `float32`.
///
/// # Errors
/// When the matrices have another rank, inner dims that are not equal, or other dtypes; when a scale has another type; when
/// operands are of different graphs or on different devices.
///
/// ```
/// # use max_core::{driver::DeviceRef, dtype::DType, graph::{Graph, TensorType, ops}};
/// let ty = |dtype, dims: [i64; 2]| TensorType::new(dtype, dims, DeviceRef::CPU);
/// let scale = TensorType::new(DType::F32, (), DeviceRef::CPU);
/// let types = [ty(DType::F8E4M3FN, [16, 64]), ty(DType::F8E4M3FN, [32, 64]), scale.clone(), scale];
/// let graph = Graph::new("g", types);
/// let [x, w, x_scale, w_scale] = [0, 1, 2, 3].map(|i| &graph.inputs()[i]);
/// let y = ops::matmul_static_scaled_float8(x, w, x_scale, w_scale)?;
/// assert_eq!(y.ty().to_string(), "bfloat16[16, 32]");
/// # Ok::<(), max_core::graph::GraphError>(())
/// ```
#[track_caller]
pub fn matmul_static_scaled_float8(
    input: impl Into<Operand>,
    weight: impl Into<Operand>,
    input_scale: impl Into<Operand>,
    weight_scale: impl Into<Operand>,
) -> Result<TensorValue> {
    let site = Site::new("matmul_static_scaled_float8");
    let (input, weight) = (site.tensor("`input`", input)?, site.tensor("`weight`", weight)?);
    let scales = [site.tensor("`input_scale`", input_scale)?, site.tensor("`weight_scale`", weight_scale)?];
    site.together(&[&input, &weight, &scales[0], &scales[1]])?;
    let float8 = |dtype: DType| matches!(dtype, DType::F8E4M3FN | DType::F8E5M2);
    site.require("`input`", &input, "float8_e4m3fn and float8_e5m2", float8)?;
    if weight.dtype() != input.dtype() {
        let e4m3 = input.dtype() == DType::F8E4M3FN;
        let allowed = if e4m3 { "float8_e4m3fn, as `input` has" } else { "float8_e5m2, as `input` has" };
        let kind = GraphErrorKind::UnsupportedDType { what: "`weight`", dtype: weight.dtype(), allowed };
        return site.fail(&[&input, &weight], kind);
    }
    for (what, value) in [("`input`", &input), ("`weight`", &weight)] {
        if value.rank() != 2 {
            return site.fail(&[value], GraphErrorKind::Rank { what, rank: value.rank(), expected: "2 axes".into() });
        }
    }
    let [lhs, rhs] = [&input, &weight].map(|value| value.shape()[1].clone());
    if lhs != rhs {
        let what = "the last dims of `input` and `weight`";
        return site.fail(&[&input, &weight], GraphErrorKind::DimMismatch { what, lhs, rhs });
    }
    let one = |what: &'static str, argument: &'static str, value: &TensorValue| {
        site.require(what, value, "float32", |dtype| dtype == DType::F32)?;
        if value.rank() > 1 || value.shape().iter().any(|dim| *dim != 1) {
            let expected = "[] or [1]";
            return site.argument(&[value], argument, value.shape(), expected);
        }
        reshape_at(&site, value, [Dim::Static(1)].into())
    };
    let input_scale = one("`input_scale`", "input_scale", &scales[0])?;
    let weight_scale = one("`weight_scale`", "weight_scale", &scales[1])?;
    let shape = [input.shape()[0].clone(), weight.shape()[0].clone()];
    let ty = input.ty.with_shape(shape.into()).with_dtype(DType::BF16);
    let operands = [&input, &weight, &input_scale, &weight_scale];
    site.kernel("matmul_static_scaled_float8", &operands, ty, Parameters::new())
}

impl TensorValue {
    /// See [`matmul`].
    ///
    /// # Errors
    /// As [`matmul`].
    #[track_caller]
    pub fn matmul(&self, rhs: impl Into<Operand>) -> Result<TensorValue> {
        matmul(self, rhs)
    }
}
