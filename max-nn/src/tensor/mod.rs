//! [`Tensor`]: an array that computes as you write, or a value of a graph.
//!
//! An op on tensors returns at once: it checks shapes, dtypes and devices, and its result is *unrealized* until somebody
//! reads it. Then it and all that it needs compile and run as one graph, which is found again by its structure. So
//! elementwise ops fuse across statements, and what nobody reads is never computed. Results that other handles still hold
//! are computed along with it, so that nothing is computed twice. Outside of a region of
//! [`functional`](crate::functional::functional()), ops are computed once 32 of them depend on each other.
//!
//! ```
//! # extern crate max_nn as max;
//! # max_kernels::link();
//! use max::{functional as F, tensor::Tensor};
//!
//! let x = Tensor::constant([1.0f32, -2.0, 3.0, -4.0, 5.0])?;
//! let y = F::relu(&x)? * 2.0;
//! assert!(!y.is_realized());
//! assert_eq!(y.to_string(), "[ 2.  0.  6.  0. 10.] float32[5] on cpu:0");
//! assert!(y.is_realized());
//! # Ok::<(), max::Error>(())
//! ```
//!
//! A tensor may as well stand for a value of a [`Graph`](max_core::graph::Graph): then ops on it add to that graph, and
//! eager tensors beside it are constants there. So one function serves both worlds.
//!
//! Tensors are values: a clone never sees a change of another. What changes in place copies first where memory is shared.

mod create;
mod display;
mod in_place;
mod index;
mod lazy;
mod methods;
mod operators;

pub use create::{Data, Item, Like};
pub use index::Indices;
pub use lazy::call::driver_tensor_type;
pub use lazy::context::{Tensors, default_device, default_dtype, defaults, functional, realize_all};

pub(crate) use lazy::context::{device, session};
pub(crate) use lazy::stage::{apply, apply_view};

use std::panic::Location;

use max_core::driver::{self, DeviceRef};
use max_core::dtype::{DType, Element};
use max_core::graph::{BufferValue, Dim, GraphError, IntoValues, Scalar, Shape, TensorType, TensorValue, Value};

use self::lazy::call::Eager;
use self::lazy::realize::realize;
use crate::Result;

/// An array that computes as you write, or a value of a graph. See the [module](self).
#[derive(Clone)]
pub struct Tensor(Repr);

#[derive(Clone)]
enum Repr {
    Eager(Eager),
    /// Behind a pointer, so that eager tensors are small.
    Graph(Box<TensorValue>),
}

/// What ops take as a tensor: a [`Tensor`], a value of a graph, a tensor of the driver, or a number, which takes the dtype
/// of a tensor beside it.
#[derive(Clone)]
#[non_exhaustive]
pub enum Operand {
    /// A tensor.
    Tensor(Tensor),
    /// A number.
    Scalar(Scalar),
    /// A buffer of a graph: accepted here so that the op can say what to do about it.
    Buffer(Box<BufferValue>),
}

impl Tensor {
    #[track_caller]
    fn of_driver(tensor: driver::Tensor) -> Tensor {
        Tensor(Repr::Eager(Eager::of_driver(tensor, Location::caller())))
    }

    /// Dtype, shape and device.
    pub fn ty(&self) -> &TensorType {
        match &self.0 {
            Repr::Eager(tensor) => tensor.ty(),
            Repr::Graph(value) => value.ty(),
        }
    }

    /// The dtype of the elements.
    pub fn dtype(&self) -> DType {
        self.ty().dtype
    }

    /// The dims; static ones, unless it is a value of a graph.
    pub fn shape(&self) -> &Shape {
        &self.ty().shape
    }

    /// The number of axes.
    pub fn rank(&self) -> usize {
        self.ty().rank()
    }

    /// Where it is.
    pub fn device(&self) -> DeviceRef {
        self.ty().device
    }

    /// The product of all dims.
    pub fn num_elements(&self) -> Dim {
        self.shape().num_elements()
    }

    /// Whether it has memory: it was read before, or made from values.
    pub fn is_realized(&self) -> bool {
        match &self.0 {
            Repr::Eager(tensor) => matches!(tensor.value(), Some(Ok(_))),
            Repr::Graph(_) => false,
        }
    }

    /// The value of the graph that it stands for, if it does.
    pub fn graph_value(&self) -> Option<&TensorValue> {
        match &self.0 {
            Repr::Eager(_) => None,
            Repr::Graph(value) => Some(value),
        }
    }

    /// Computes it, if it has no value yet.
    ///
    /// # Errors
    /// When it stands for a value of a graph; when it cannot be computed: the first error, each time.
    #[track_caller]
    pub fn realize(&self) -> Result<()> {
        self.value_at("realize").map(|_| ())
    }

    /// The memory with its value, which is computed first where it has none. It is shared, so it cannot be written.
    ///
    /// # Errors
    /// As [`realize`](Self::realize).
    #[track_caller]
    pub fn driver_tensor(&self) -> Result<driver::Tensor> {
        self.value_at("driver_tensor").cloned()
    }

    #[track_caller]
    fn value_at(&self, op: &'static str) -> Result<&driver::Tensor> {
        let tensor = match &self.0 {
            Repr::Eager(tensor) => tensor,
            Repr::Graph(value) => {
                let expected = "an eager tensor: a value of a graph has elements only when the model executes";
                return Err(GraphError::argument(op, "self", format!("a graph's {}", value.ty()), expected));
            }
        };
        if tensor.value().is_none() {
            realize(&[tensor])?;
        }
        match tensor.value() {
            Some(value) => value.map_err(Clone::clone),
            None => Err(GraphError::argument(op, "self", "unrealized", "a tensor with a value")),
        }
    }

    /// The only element.
    ///
    /// # Errors
    /// When it has another number of elements, or another dtype; as [`realize`](Self::realize).
    #[track_caller]
    pub fn item<T: Element>(&self) -> Result<T> {
        let value = self.host_value("item")?;
        if value.num_elements() != 1 {
            let expected = "a tensor of one element: index it, or use `to_vec`";
            return Err(GraphError::argument("item", "self", self.ty(), expected));
        }
        Ok(value.reshape([])?.item()?)
    }

    /// The elements, in row-major order.
    ///
    /// # Errors
    /// When it has another dtype; as [`realize`](Self::realize).
    #[track_caller]
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        let value = self.host_value("to_vec")?;
        if value.dtype() != T::DTYPE {
            let expected = format!("of dtype {}: cast it with `cast`", T::DTYPE);
            return Err(GraphError::argument("to_vec", "self", self.ty(), expected));
        }
        Ok(value.to_vec()?)
    }

    /// The value on the host.
    #[track_caller]
    fn host_value(&self, op: &'static str) -> Result<driver::Tensor> {
        Ok(self.value_at(op)?.to(&driver::Device::cpu())?)
    }
}

impl From<driver::Tensor> for Tensor {
    /// A tensor with this memory.
    #[track_caller]
    fn from(tensor: driver::Tensor) -> Tensor {
        Tensor::of_driver(tensor)
    }
}

impl From<&driver::Tensor> for Tensor {
    #[track_caller]
    fn from(tensor: &driver::Tensor) -> Tensor {
        Tensor::of_driver(tensor.clone())
    }
}

impl From<TensorValue> for Tensor {
    /// A tensor that stands for a value of a graph.
    fn from(value: TensorValue) -> Tensor {
        Tensor(Repr::Graph(Box::new(value)))
    }
}

impl From<&TensorValue> for Tensor {
    fn from(value: &TensorValue) -> Tensor {
        value.clone().into()
    }
}

impl From<&Tensor> for Tensor {
    fn from(tensor: &Tensor) -> Tensor {
        tensor.clone()
    }
}

impl From<Tensor> for Value {
    /// The value of the graph. Of an eager tensor, one that stands for that mistake: setting it as an output is an error.
    #[track_caller]
    fn from(tensor: Tensor) -> Value {
        Value::Tensor(match tensor.0 {
            Repr::Graph(value) => *value,
            Repr::Eager(tensor) => {
                let expected = "a value of the graph: compute it from the graph's inputs";
                TensorValue::of_error(GraphError::argument(
                    "output",
                    "value",
                    format!("an eager {}", tensor.ty()),
                    expected,
                ))
            }
        })
    }
}

impl From<&Tensor> for Value {
    #[track_caller]
    fn from(tensor: &Tensor) -> Value {
        tensor.clone().into()
    }
}

impl IntoValues for Tensor {
    #[track_caller]
    fn into_values(self) -> Vec<Value> {
        vec![self.into()]
    }
}

macro_rules! operand_from_tensor {
    ($($ty:ty)*) => {$(
        impl From<$ty> for Operand {
            #[track_caller]
            fn from(value: $ty) -> Operand {
                Operand::Tensor(value.into())
            }
        }
    )*};
}
operand_from_tensor!(Tensor &Tensor TensorValue &TensorValue driver::Tensor &driver::Tensor);

impl From<Value> for Operand {
    fn from(value: Value) -> Operand {
        Operand::from(&value)
    }
}

impl From<&Value> for Operand {
    fn from(value: &Value) -> Operand {
        match value.tensor() {
            Ok(value) => value.into(),
            Err(error) => match value.buffer() {
                Ok(buffer) => Operand::Buffer(Box::new(buffer.clone())),
                Err(_) => TensorValue::of_error(error).into(),
            },
        }
    }
}

impl From<&Operand> for Operand {
    fn from(operand: &Operand) -> Operand {
        operand.clone()
    }
}

macro_rules! operand_from_number {
    ($($ty:ty)*) => {$(
        impl From<$ty> for Operand {
            fn from(value: $ty) -> Operand {
                Operand::Scalar(value.into())
            }
        }
    )*};
}
operand_from_number!(bool i8 i16 i32 i64 u8 u16 u32 u64 usize f32 f64 max_core::dtype::f16 max_core::dtype::bf16 Scalar);
