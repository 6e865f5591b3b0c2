//! Matrix products. Whatever the ranks, the graph holds a product of matrices (`matmul`, rank 2) or of equally many of
//! them (`batch_matmul`, rank 3), between reshapes that cost nothing.

use super::views::reshape_at;
use crate::dtype::DType;
use crate::graph::dim::Dim;
use crate::graph::error::GraphErrorKind;
use crate::graph::node::Parameters;
use crate::graph::shape::Shape;
use crate::graph::site::{Result, Site};
use crate::graph::value::{Operand, TensorValue};

/// The matrix product over the last two axes; the axes before them are broadcast.
///
/// A vector on the left counts as one row, on the right as one column, and that axis is absent from the result.
///
/// # Errors
/// When an operand is a scalar or `bool`, when the inner dims are not equal, when the outer axes do not broadcast, and
/// as [`add`](super::add) for dtypes, devices and graphs.
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
        site.require(what, value, "integers and floats", |dtype| dtype != DType::Bool)?;
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

    let product = if b_batch.iter().all(|dim| *dim == 1) {
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
/// As [`mul`](super::mul) for dtypes, devices and graphs.
#[track_caller]
pub fn outer(lhs: impl Into<Operand>, rhs: impl Into<Operand>) -> Result<TensorValue> {
    let site = Site::new("outer");
    let (lhs, rhs) = (site.tensor("the left side", lhs)?, site.tensor("the right side", rhs)?);
    let column = reshape_at(&site, &lhs, [lhs.shape().num_elements(), Dim::Static(1)].into())?;
    let row = reshape_at(&site, &rhs, [Dim::Static(1), rhs.shape().num_elements()].into())?;
    super::mul(column, row)
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
