//! [`TensorSpec`]: what a model says of its inputs and outputs.

use std::fmt;
use std::sync::Arc;

use crate::driver::DeviceRef;
use crate::dtype::DType;
use crate::graph::{Shape, Type};

/// The name and type of an input or output of a model.
///
/// ```
/// # extern crate max_core as max;
/// use max::{driver::DeviceRef, dtype::DType, engine::InferenceSession, graph::{Graph, TensorType}};
///
/// let ty = TensorType::new(DType::F32, ("batch", 4), DeviceRef::CPU);
/// let graph = Graph::build("flip", [ty], |_, inputs| inputs[0].tensor()?.t())?;
/// let model = InferenceSession::new().load(&graph)?;
/// let input = &model.input_metadata()[0];
/// assert_eq!((input.name(), input.dtype()), ("input0", DType::F32));
/// assert_eq!(input.shape().to_string(), "[batch, 4]");
/// assert_eq!(model.output_metadata()[0].to_string(), "output0: float32[4, batch]");
/// # Ok::<(), max::Error>(())
/// ```
#[derive(Clone, PartialEq, Debug)]
pub struct TensorSpec {
    pub(crate) name: Arc<str>,
    pub(crate) ty: Type,
}

impl TensorSpec {
    /// The name: that of [`name_inputs`](crate::graph::Graph::name_inputs), or `input0`, `input1`, … and `output0`, `output1`, ….
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The type of the elements.
    pub fn dtype(&self) -> DType {
        self.ty.dtype()
    }

    /// The sizes; those that are only known when the model executes are symbolic.
    pub fn shape(&self) -> &Shape {
        self.ty.shape()
    }

    /// Where the tensor is.
    pub fn device(&self) -> DeviceRef {
        self.ty.device()
    }

    /// Whether the model changes the tensor in place, so that it is passed as `&mut`.
    pub fn is_buffer(&self) -> bool {
        self.ty.is_buffer()
    }

    /// The whole type.
    pub fn ty(&self) -> &Type {
        &self.ty
    }
}

impl fmt::Display for TensorSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name, self.ty)
    }
}

/// `name(input0: type, …) -> (output0: type, …)`.
pub(crate) fn signature(name: &str, inputs: &[TensorSpec], outputs: &[TensorSpec]) -> String {
    let list = |specs: &[TensorSpec]| specs.iter().map(TensorSpec::to_string).collect::<Vec<_>>().join(", ");
    format!("{name}({}) -> ({})", list(inputs), list(outputs))
}
