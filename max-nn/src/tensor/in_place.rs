//! Changes in place: the tensor's memory is written where nobody else has it, and copied first where somebody has.

use std::sync::Arc;

use max_core::driver;
use max_core::engine::Input;
use max_core::graph::{self, BufferType, Graph, GraphError, TensorType, Type};
use std::panic::Location;

use super::lazy::call::driver_tensor_type;
use super::lazy::context;
use super::{Indices, Operand, Repr, Tensor};
use crate::Result;
use crate::functional as f;

impl Tensor {
    /// Overwrites a part of the tensor: `x.store_slice((.., 0), &y)`. `source` is broadcast to the part.
    ///
    /// The memory is written in place, unless somebody else has it: another handle, a tensor that is not computed yet, a view.
    /// Those keep the old values, and the memory is copied first.
    ///
    /// ```
    /// # extern crate max_nn as max;
    /// # max_kernels::link();
    /// # use max::tensor::Tensor;
    /// let mut cache = Tensor::zeros([2, 3])?;
    /// cache.store_slice((.., 1), &Tensor::constant([5.0f32, 6.0])?)?;
    /// assert_eq!(cache.to_vec::<f32>()?, [0.0, 5.0, 0.0, 0.0, 6.0, 0.0]);
    /// # Ok::<(), max::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of the indices; when the source has another dtype or device, or does not broadcast to the part; when either
    /// cannot be computed, or is a value of a graph.
    #[track_caller]
    pub fn store_slice(&mut self, indices: impl Indices, source: impl Into<Operand>) -> Result<()> {
        let location = Location::caller();
        let indices = indices.indices();
        let part = f::slice_tensor(&*self, indices.clone())?;
        let source = match source.into() {
            Operand::Scalar(value) => Tensor::full_like(TensorType::new(self.dtype(), (), self.device()), value)?,
            Operand::Tensor(tensor) => tensor,
            Operand::Buffer(_) => {
                return Err(GraphError::argument("store_slice", "source", "a graph's buffer", "a tensor"));
            }
        };
        let source = f::broadcast_to(&source, part.shape())?.driver_tensor()?;
        drop(part);
        let types: [Type; 2] =
            [BufferType::new(self.dtype(), self.shape(), self.device()).into(), driver_tensor_type(&source).into()];
        graph::at(location, || {
            let graph = Graph::new("store_slice", types);
            let [buffer, part] = graph.inputs() else { return Ok(()) };
            graph::ops::buffer_store_slice(buffer.buffer()?, part, indices)
                .map_err(|error| error.outside_of_graph())?;
            graph.output(())?;
            let failed = |error| GraphError::value("store_slice", Arc::new(error));
            let model = context::session(&[self.device()])?.load(&graph).map_err(failed)?;
            let memory = self.memory_mut()?;
            model.execute((memory, &source)).map(drop).map_err(failed)
        })
    }

    /// Overwrites all elements: as [`store_slice`](Self::store_slice) of the whole.
    ///
    /// # Errors
    /// As [`store_slice`](Self::store_slice).
    #[track_caller]
    pub fn store(&mut self, source: impl Into<Operand>) -> Result<()> {
        self.store_slice((max_core::driver::SliceIndex::Ellipsis,), source)
    }

    /// Runs the kernel that is registered under `name` on the tensors, which it changes in place, as
    /// [`ops::inplace_custom`](graph::ops::inplace_custom) does in a graph. Tensors of a shared memory are copied first.
    ///
    /// # Errors
    /// As [`ops::inplace_custom`](graph::ops::inplace_custom); when a tensor cannot be computed.
    #[track_caller]
    pub fn inplace_custom(
        name: &str,
        buffers: &mut [&mut Tensor],
        values: &[&Tensor],
        parameters: impl Into<graph::Parameters>,
    ) -> Result<()> {
        let location = Location::caller();
        let values = values.iter().map(|value| value.driver_tensor()).collect::<Result<Vec<driver::Tensor>>>()?;
        let mut types: Vec<Type> = buffers.iter().map(|buffer| buffer.ty().as_buffer().into()).collect();
        types.extend(values.iter().map(|value| Type::from(driver_tensor_type(value))));
        let devices: Vec<_> = types.iter().map(Type::device).collect();
        graph::at(location, || {
            let graph = Graph::new("inplace_custom", types);
            let device = devices.first().copied().unwrap_or(max_core::driver::DeviceRef::CPU);
            graph::ops::inplace_custom(name, device, graph.inputs(), (), parameters)
                .map_err(|error| error.outside_of_graph())?;
            graph.output(())?;
            let failed = |error| GraphError::value("inplace_custom", Arc::new(error));
            let model = context::session(&devices)?.load(&graph).map_err(failed)?;
            let memory = buffers.iter_mut().map(|buffer| buffer.memory_mut()).collect::<Result<Vec<_>>>()?;
            let inputs = memory.into_iter().map(Input::from).chain(values.iter().map(Input::from));
            model.execute(inputs.collect::<Vec<_>>()).map(drop).map_err(failed)
        })
    }

    /// The memory with its value, which nobody else has.
    #[track_caller]
    fn memory_mut(&mut self) -> Result<&mut driver::Tensor> {
        let value = self.driver_tensor()?;
        let is_own = match &mut self.0 {
            Repr::Eager(tensor) => {
                // The handle just taken is one of two.
                drop(value);
                Arc::get_mut(&mut tensor.call)
                    .and_then(|call| call.realized_mut(tensor.output))
                    .is_some_and(|memory| memory.data_ptr_mut().is_ok() && memory.is_contiguous())
            }
            Repr::Graph(_) => false,
        };
        if !is_own {
            *self = self.driver_tensor()?.copy()?.into();
        }
        let memory = match &mut self.0 {
            Repr::Eager(tensor) => Arc::get_mut(&mut tensor.call).and_then(|call| call.realized_mut(tensor.output)),
            Repr::Graph(_) => None,
        };
        memory.ok_or_else(|| GraphError::argument("store", "self", "shared memory", "a tensor of its own"))
    }
}
