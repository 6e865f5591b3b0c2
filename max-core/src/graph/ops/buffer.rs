//! Reading and writing buffers. Both are side effects: on one device they happen in the order in which they were added.

use smallvec::{SmallVec, smallvec};

use crate::graph::error::GraphErrorKind;
use crate::graph::node::Op;
use crate::graph::site::{Result, Site};
use crate::graph::types::Type;
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
    let source = site.tensor("the source", source)?;
    let types = || [Type::Buffer(destination.ty.clone()), Type::Tensor(source.ty.clone())];
    if !destination.graph.same(&source.graph) {
        let other = source.graph.name().clone();
        return Err(site.error(&destination.graph, types(), GraphErrorKind::OtherGraph { other }));
    }
    let ty = destination.ty.as_tensor();
    if source.ty != *ty {
        let (actual, expected) = (Box::new(source.ty.clone().into()), Box::new(ty.clone().into()));
        let kind = GraphErrorKind::TypeMismatch { what: "the source", actual, expected };
        return Err(site.error(&destination.graph, types(), kind));
    }
    let operands = smallvec![destination.id, source.id];
    site.push_values(&destination.graph, Op::BufferStore, operands, SmallVec::new(), ty.device, true);
    Ok(())
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
}
