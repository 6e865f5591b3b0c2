//! What is checked of the inputs of an execution, and where they lie.

use super::frame::Pointers;
use crate::driver::Tensor;
use crate::engine::inputs::Input;
use crate::graph::BindError;
use crate::graph::ops::kernel_facts::Indices;
use crate::kernel::TensorArg;
use crate::plan::error::{EngineError, MemoryOf};
use crate::plan::{Plan, PlannedStep};

impl Plan {
    #[inline]
    pub(super) fn check_inputs(&self, inputs: &[Input<'_>]) -> Result<(), EngineError> {
        if inputs.len() != self.inputs.len() {
            let (model, signature) = (self.name.clone(), self.signature.clone());
            return Err(EngineError::InputCount {
                model,
                expected: self.inputs.len(),
                actual: inputs.len(),
                signature,
            });
        }
        for (index, ((input, spec), device)) in inputs.iter().zip(&self.inputs).zip(&self.devices).enumerate() {
            let tensor = input.tensor();
            let wrong_device = tensor.device() != device;
            if wrong_device || tensor.dtype() != spec.dtype() {
                let (input, actual) = (self.input(index), Box::new(tensor.into()));
                return Err(match wrong_device {
                    true => EngineError::InputDevice { input, actual },
                    false => EngineError::InputDType { input, actual },
                });
            }
            if spec.is_buffer() && matches!(input, Input::Tensor(_)) {
                return Err(EngineError::InputNotMutable { input: self.input(index) });
            }
        }
        Ok(())
    }

    /// Checks the inputs' shapes and binds the symbols.
    #[inline]
    pub(super) fn bind(&self, inputs: &[Input<'_>], bound: &mut [i64]) -> Result<(), EngineError> {
        let shapes = inputs.iter().map(|input| input.tensor().shape());
        self.sizes.matcher.bind(shapes, bound).map_err(|source| self.bind_error(inputs, source))
    }

    #[cold]
    fn bind_error(&self, inputs: &[Input<'_>], source: BindError) -> EngineError {
        match source {
            BindError::Rank { input: index, .. }
            | BindError::Static { input: index, .. }
            | BindError::Symbol { input: index, .. }
            | BindError::Expression { input: index, .. }
            | BindError::Dim { input: index, .. } => {
                let (input, actual) = (self.input(index), Box::new(inputs[index].tensor().into()));
                EngineError::InputShape { input, actual, source: source.into() }
            }
            BindError::Count { expected, actual } => {
                let (model, signature) = (self.name.clone(), self.signature.clone());
                EngineError::InputCount { model, expected, actual, signature }
            }
        }
    }

    /// Where the inputs lie. Tensors that are not contiguous are copied, and the copies added to `copies`.
    #[inline]
    pub(super) fn input_pointers(
        &self,
        call: &'static str,
        inputs: &mut [Input<'_>],
        copies: &mut Vec<Tensor>,
    ) -> Result<Pointers, EngineError> {
        let mut pointers = Pointers::new();
        for (index, input) in inputs.iter_mut().enumerate() {
            if let Some(buffer) = self.buffer(index, input)? {
                pointers.push(buffer);
                continue;
            }
            let mut tensor = input.tensor();
            if !tensor.is_contiguous() {
                copies.push(self.copy_of_input(call, index, tensor)?);
                tensor = &copies[copies.len() - 1];
            }
            pointers.push(tensor.data_ptr().cast_mut());
        }
        Ok(pointers)
    }

    /// Where an input lies that the plan changes: such a one has to be contiguous and writable.
    #[inline]
    fn buffer(&self, index: usize, input: &mut Input<'_>) -> Result<Option<*mut u8>, EngineError> {
        let Input::Buffer(buffer) = input else { return Ok(None) };
        if !self.inputs[index].is_buffer() {
            return Ok(None);
        }
        if !buffer.is_contiguous() {
            let actual = Box::new((&**buffer).into());
            return Err(EngineError::InputNotContiguous { input: self.input(index), actual });
        }
        let pointer = buffer.data_ptr_mut();
        pointer.map(Some).map_err(|source| EngineError::InputBuffer { input: self.input(index), source })
    }

    /// Checks the inputs that the plan changes.
    pub(super) fn check_buffers(&self, inputs: &mut [Input<'_>]) -> Result<(), EngineError> {
        inputs.iter_mut().enumerate().try_for_each(|(index, input)| self.buffer(index, input).map(drop))
    }

    /// That no index of a step is outside of its axis.
    ///
    /// # Safety
    /// The arguments are those of the step's kernel, on the host, and its indices can be read.
    #[cold]
    pub(super) unsafe fn check_indices(
        &self,
        step: &PlannedStep,
        Indices { operand, of: (of, axis) }: Indices,
        tensors: &[TensorArg<'_>],
    ) -> Result<(), EngineError> {
        let (Some(tensor), Some(limit)) = (tensors.get(operand), tensors.get(of).and_then(|of| of.dims.get(axis)))
        else {
            return Ok(());
        };
        let size = self.args[step.args.clone()][operand].element_size as usize;
        let count = tensor.dims.iter().product::<i64>();
        for flat in 0..count {
            let (mut rest, mut offset) = (flat, 0_isize);
            for (dim, stride) in tensor.dims.iter().zip(tensor.strides).rev() {
                offset += (rest % dim * stride) as isize;
                rest /= dim;
            }
            let at = tensor.ptr.wrapping_offset(offset * size as isize);
            // SAFETY: by the contract above: an element of the indices, of one of two dtypes.
            let index = unsafe {
                match size {
                    4 => i64::from(at.cast::<i32>().read_unaligned()),
                    _ => at.cast::<i64>().read_unaligned(),
                }
            };
            if index < -limit || index >= *limit {
                let mut position = vec![0; tensor.dims.len()];
                let mut rest = flat;
                for (place, dim) in position.iter_mut().zip(tensor.dims).rev() {
                    *place = rest % dim;
                    rest /= dim;
                }
                return Err(EngineError::Index { op: self.op_of(step), index, position, limit: *limit });
            }
        }
        Ok(())
    }

    /// A copy of an input, in row-major order: on the stream that the steps run on.
    #[cold]
    pub(super) fn copy_of_input(
        &self,
        call: &'static str,
        index: usize,
        tensor: &Tensor,
    ) -> Result<Tensor, EngineError> {
        tensor.copy_on(&tensor.device().default_stream()).map_err(|source| {
            let of = Some(MemoryOf::InputCopy(self.input(index)));
            self.driver_error(call, tensor.device(), of, source)
        })
    }
}
