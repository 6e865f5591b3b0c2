//! Reading and writing buffers. Both are side effects: on one device they happen in the order in which they were added.

use smallvec::{SmallVec, smallvec};

use super::movement::slice::{DimSlice, Part};
use super::movement::views::reshape_at;
use crate::graph::builder::site::{Result, Site};
use crate::graph::error::GraphErrorKind;
use crate::graph::node::Op;
use crate::graph::types::{TensorType, Type};
use crate::graph::value::{BufferValue, Operand, TensorValue, Value};

/// The buffer's contents at this point, as a tensor.
///
/// # Errors
/// None today; a `Result` as of every op.
#[track_caller]
pub fn buffer_load(buffer: &BufferValue) -> Result<TensorValue> {
    let site = Site::new("buffer_load");
    let ty = buffer.ty.as_tensor();
    let results = smallvec![Type::Tensor(ty.clone())];
    let mut values = site.push_values(&buffer.graph, Op::BufferLoad, smallvec![buffer.id], results, ty.device, true);
    match values.pop() {
        Some(Value::Tensor(value)) => Ok(value),
        _ => Err(site.error(&buffer.graph, [&buffer.ty], GraphErrorKind::NoOperands)),
    }
}

/// Overwrites the buffer's contents with the tensor's.
///
/// # Errors
/// When dtype, shape or device differ, and for a tensor of another graph.
#[track_caller]
pub fn buffer_store(destination: &BufferValue, source: impl Into<Operand>) -> Result<()> {
    let site = Site::new("buffer_store");
    let source = source_of(&site, destination, source, destination.ty.as_tensor())?;
    push(&site, destination, &source, Op::BufferStore);
    Ok(())
}

/// Overwrites a part of the buffer's contents with the tensor's: `indices` take it as those of
/// [`slice_tensor`](super::slice_tensor) take a part of a tensor, and the rest stays as it is.
///
/// # Errors
/// Those of the indices; when dtype, shape or device of the tensor are not the part's, and for a tensor of another graph.
///
/// ```
/// # use max_core::{driver::DeviceRef, dtype::DType, graph::{BufferType, Dim, DimSlice, Graph, TensorType, Type, ops}};
/// // Keys of `new` tokens go behind those of `past` ones.
/// let cache = BufferType::new(DType::F32, (4096, 64), DeviceRef::CPU);
/// let [past, new] = ["past", "new"].map(|n| TensorType::new(DType::F32, (n, 64), DeviceRef::CPU));
/// let graph = Graph::new("g", [Type::Buffer(cache), past.into(), new.into()]);
/// let inputs = graph.inputs();
/// let (past, new) = (Dim::from("past"), Dim::from("new"));
/// ops::buffer_store_slice(inputs[0].buffer()?, &inputs[2], [DimSlice::range(past.clone(), past + new)])?;
/// # Ok::<(), max_core::graph::GraphError>(())
/// ```
#[track_caller]
pub fn buffer_store_slice<I: Into<DimSlice>>(
    destination: &BufferValue,
    source: impl Into<Operand>,
    indices: impl IntoIterator<Item = I>,
) -> Result<()> {
    let site = Site::new("buffer_store_slice");
    let ty = destination.ty.as_tensor();
    let part = Part::new(&site, &destination.graph, &ty.shape, indices);
    let Part { axes, taken, shape } = part.map_err(|kind| site.error(&destination.graph, [&destination.ty], kind))?;
    let source = source_of(&site, destination, source, &ty.with_shape(shape.into()))?;
    let source = reshape_at(&site, &source, taken.into())?;
    push(&site, destination, &source, Op::BufferStoreSlice(axes));
    Ok(())
}

/// The tensor that is to be stored, which has to be of that type.
fn source_of(
    site: &Site,
    destination: &BufferValue,
    source: impl Into<Operand>,
    expected: &TensorType,
) -> Result<TensorValue> {
    let source = site.tensor("the source", source)?;
    let types = || [Type::Buffer(destination.ty.clone()), Type::Tensor(source.ty.clone())];
    if !destination.graph.same(&source.graph) {
        let other = source.graph.name().clone();
        return Err(site.error(&destination.graph, types(), GraphErrorKind::OtherGraph { other }));
    }
    if source.ty != *expected {
        let (actual, expected) = (Box::new(source.ty.clone().into()), Box::new(expected.clone().into()));
        let kind = GraphErrorKind::TypeMismatch { what: "the source", actual, expected };
        return Err(site.error(&destination.graph, types(), kind));
    }
    Ok(source)
}

fn push(site: &Site, destination: &BufferValue, source: &TensorValue, op: Op) {
    let operands = smallvec![destination.id, source.id];
    site.push_values(&destination.graph, op, operands, SmallVec::new(), destination.ty.as_tensor().device, true);
}

impl BufferValue {
    /// See [`buffer_load`].
    ///
    /// # Errors
    /// As [`buffer_load`].
    #[track_caller]
    pub fn load(&self) -> Result<TensorValue> {
        buffer_load(self)
    }

    /// See [`buffer_store`].
    ///
    /// # Errors
    /// As [`buffer_store`].
    #[track_caller]
    pub fn store(&self, source: impl Into<Operand>) -> Result<()> {
        buffer_store(self, source)
    }

    /// See [`buffer_store_slice`].
    ///
    /// # Errors
    /// As [`buffer_store_slice`].
    #[track_caller]
    pub fn store_slice<I: Into<DimSlice>>(
        &self,
        source: impl Into<Operand>,
        indices: impl IntoIterator<Item = I>,
    ) -> Result<()> {
        buffer_store_slice(self, source, indices)
    }
}
