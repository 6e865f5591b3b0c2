//! [`Forward`]: modules of one tensor in and one out; and compiling a module to a model.

use std::sync::Arc;

use max_core::dtype::DType;
use max_core::engine::Model;
use max_core::graph::{Graph, GraphError, IntoTypes, TensorType, Type};

use super::{Module, hooks};
use crate::Result;
use crate::functional as f;
use crate::tensor::{Tensor, Tensors, session};

/// A module that computes one tensor from one: what [`Sequential`](crate::nn::Sequential) is made of.
pub trait Forward: Module {
    /// The output for an input, eager or of a graph.
    ///
    /// # Errors
    /// When dtype, shape or device of the input do not fit.
    fn forward(&self, x: &Tensor) -> Result<Tensor>;

    /// [`forward`](Self::forward), of which hooks hear: see [`add_layer_hook`](super::add_layer_hook).
    ///
    /// # Errors
    /// As [`forward`](Self::forward).
    fn call(&self, x: &Tensor) -> Result<Tensor>
    where
        Self: Sized,
    {
        hooks::run(self, x, self.forward(x)?)
    }

    /// [`forward`](Self::forward) of `x` rounded to `dtype`, the one that parameters have. A layer that decides by numbers, as the router of a
    /// mixture of experts, reads `x` before it is rounded; what it gives back may have the dtype of `x`, too.
    ///
    /// # Errors
    /// As [`forward`](Self::forward).
    fn forward_rounded(&self, x: &Tensor, dtype: DType) -> Result<Tensor> {
        self.forward(&f::cast(x, dtype)?)
    }

    /// Puts parameters in the form in which they are computed with, once they are set: experts behind each other. Most layers have nothing
    /// to do.
    ///
    /// # Errors
    /// When there is no memory for it; then the layer is as it was.
    fn prepare(&mut self) -> Result<()> {
        Ok(())
    }

    /// A model that computes this: nothing is staged when it executes. Its parameters are constants, packed once.
    ///
    /// ```
    /// # extern crate max_nn as max;
    /// # max_kernels::link();
    /// use max::{driver, dtype::DType, driver::DeviceRef, graph::TensorType};
    /// use max::nn::{Forward, Linear};
    ///
    /// let layer = Linear::new(3, 2)?;
    /// let model = layer.compile(&TensorType::new(DType::F32, ("batch", 3), DeviceRef::CPU))?;
    /// let x = driver::Tensor::full(0.5f32, [4, 3])?;
    /// let eager = layer.forward(&(&x).into())?.to_vec::<f32>()?;
    /// assert_eq!(model.execute(&x)?[0].to_vec::<f32>()?, eager);
    /// # Ok::<(), max::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`forward`](Self::forward), of an input of that type.
    #[track_caller]
    fn compile(&self, input: &TensorType) -> Result<Model>
    where
        Self: Sized,
    {
        compile(self.type_name(), input, |inputs| match inputs {
            [x] => self.call(x),
            _ => Err(GraphError::argument("compile", "inputs", inputs.len(), "one tensor")),
        })
    }
}

impl<M: Forward + ?Sized> Forward for Box<M> {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        (**self).forward(x)
    }

    fn forward_rounded(&self, x: &Tensor, dtype: DType) -> Result<Tensor> {
        (**self).forward_rounded(x, dtype)
    }

    fn prepare(&mut self) -> Result<()> {
        (**self).prepare()
    }
}

/// A model of what `forward` computes of inputs of these types: a module of several inputs, or several modules.
///
/// ```
/// # extern crate max_nn as max;
/// # max_kernels::link();
/// use max::{dtype::DType, driver::{self, DeviceRef}, graph::TensorType, nn};
///
/// let ty = TensorType::new(DType::F32, ("n",), DeviceRef::CPU);
/// let model = nn::compile("scaled", [&ty, &ty], |x| Ok(&x[0] * &x[1] + 1.0))?;
/// let x = driver::Tensor::full(3.0f32, [2])?;
/// assert_eq!(model.execute([&x, &x])?[0].to_vec::<f32>()?, [10.0, 10.0]);
/// # Ok::<(), max::Error>(())
/// ```
///
/// # Errors
/// Those of `forward`; when an output is not computed from the inputs; when the graph cannot be loaded.
#[track_caller]
pub fn compile<T: Tensors>(
    name: &str,
    input_types: impl IntoTypes,
    forward: impl FnOnce(&[Tensor]) -> Result<T>,
) -> Result<Model> {
    let types = input_types.into_types();
    let devices: Vec<_> = types.iter().map(Type::device).collect();
    let graph = Graph::new(name, types);
    let outputs = forward(&Tensor::of_inputs(graph.inputs())?)?;
    graph.output(Tensor::to_outputs(&outputs))?;
    session(&devices)?.load(&graph).map_err(|error| GraphError::value("compile", Arc::new(error)))
}
