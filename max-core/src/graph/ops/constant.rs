//! Constants: numbers, slices, nested arrays and driver tensors as tensors of any dtype.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::dispatch;
use crate::driver::{Device, DeviceRef, DriverError, Tensor};
use crate::dtype::{DType, Element, F8E4M3, F8E4M3FNUZ, F8E5M2, F8E5M2FNUZ, bf16, f16};
use crate::graph::Graph;
use crate::graph::error::GraphErrorKind;
use crate::graph::node::Op;
use crate::graph::site::{Result, Site};
use crate::graph::types::{TensorType, Type};
use crate::graph::value::{Scalar, TensorValue};
use crate::graph::weights::{self, Weight};

/// What [`constant`] takes: a number (rank 0), a slice or `Vec` (rank 1), nested arrays (up to rank 3), or a
/// [`Tensor`] of the host, which is not copied if it has the dtype asked for.
#[derive(Debug)]
pub struct ConstantData(std::result::Result<Tensor, DriverError>);

/// An element as a number, and back if the type can hold it.
trait Number: Element {
    fn to_scalar(self) -> Scalar;

    /// Floats are rounded to the nearest; an integer has to be exact.
    fn from_scalar(value: Scalar) -> Option<Self>;
}

macro_rules! integers {
    ($($ty:ty)*) => {$(
        impl Number for $ty {
            fn to_scalar(self) -> Scalar {
                self.into()
            }

            fn from_scalar(value: Scalar) -> Option<Self> {
                match value {
                    Scalar::Int(value) => value.try_into().ok(),
                    Scalar::Bool(value) => Some(value.into()),
                    Scalar::Float(_) => None,
                }
            }
        }
    )*};
}
integers!(i8 i16 i32 i64 u8 u16 u32 u64);

macro_rules! floats {
    ($($ty:ty: $largest:expr;)*) => {$(
        impl Number for $ty {
            fn to_scalar(self) -> Scalar {
                Scalar::Float(Element::to_f64(self))
            }

            fn from_scalar(value: Scalar) -> Option<Self> {
                let number = match value {
                    Scalar::Float(value) => value,
                    Scalar::Int(value) => value as f64,
                    Scalar::Bool(value) => u8::from(value).into(),
                };
                let element = <$ty as Element>::from_f64(number);
                let back = Element::to_f64(element);
                let largest: Option<f64> = $largest;
                let fits = match value {
                    Scalar::Int(value) => back == number && number as i128 == value,
                    _ if !number.is_finite() => back == number || (back.is_nan() && number.is_nan()),
                    _ => largest.map_or(back.is_finite(), |largest| number.abs() <= largest),
                };
                fits.then_some(element)
            }
        }
    )*};
}
// The largest value of a format whose conversion may saturate instead of giving an infinity.
floats! {
    f16: None;
    bf16: None;
    f32: None;
    f64: None;
    F8E4M3: Some(448.0);
    F8E4M3FNUZ: Some(240.0);
    F8E5M2: Some(57344.0);
    F8E5M2FNUZ: Some(57344.0);
}

impl Number for bool {
    fn to_scalar(self) -> Scalar {
        Scalar::Bool(self)
    }

    fn from_scalar(value: Scalar) -> Option<Self> {
        match value {
            Scalar::Bool(value) => Some(value),
            Scalar::Int(_) | Scalar::Float(_) => None,
        }
    }
}

/// The elements of a host tensor as numbers, in row-major order.
fn numbers(tensor: &Tensor) -> std::result::Result<Box<dyn Iterator<Item = Scalar> + '_>, DriverError> {
    dispatch!(tensor.dtype(), T => Ok(Box::new(tensor.iter::<T>()?.map(Number::to_scalar))))
}

/// The tensor in another dtype.
fn convert(tensor: Tensor, dtype: DType) -> std::result::Result<Tensor, GraphErrorKind> {
    if tensor.dtype() == dtype {
        return Ok(tensor.contiguous()?);
    }
    let numbers = numbers(&tensor)?;
    dispatch!(dtype, T => {
        let mut elements = Vec::<T>::with_capacity(tensor.num_elements());
        for value in numbers {
            let unrepresentable = || GraphErrorKind::Unrepresentable { value: value.to_string(), dtype };
            elements.push(Number::from_scalar(value).ok_or_else(unrepresentable)?);
        }
        Ok(Tensor::from_vec(elements, tensor.shape())?)
    })
}

impl From<DriverError> for GraphErrorKind {
    fn from(source: DriverError) -> Self {
        GraphErrorKind::Driver { source: Arc::new(source) }
    }
}

impl Site {
    /// A number as a constant beside `like`.
    pub(in crate::graph) fn scalar(&self, like: &TensorValue, value: Scalar, dtype: DType) -> Result<TensorValue> {
        let tensor = dispatch!(dtype, T => match <T as Number>::from_scalar(value) {
            Some(element) => Tensor::scalar(element).map_err(GraphErrorKind::from),
            None => Err(GraphErrorKind::Unrepresentable { value: value.to_string(), dtype }),
        });
        match tensor {
            Ok(tensor) => {
                let ty = TensorType::new(dtype, (), like.device());
                Ok(self.push(&like.graph, Op::Constant(tensor), SmallVec::new(), ty))
            }
            Err(kind) => self.fail(&[like], kind),
        }
    }
}

/// Up to eight elements of a constant.
pub(in crate::graph) fn summary(tensor: &Tensor) -> String {
    let Ok(mut numbers) = numbers(tensor) else { return "?".to_owned() };
    if tensor.rank() == 0 {
        return numbers.next().map_or_else(String::new, |value| value.to_string());
    }
    let shown: Vec<String> = numbers.by_ref().take(8).map(|value| value.to_string()).collect();
    let more = if numbers.next().is_some() { ", ..." } else { "" };
    format!("[{}{more}]", shown.join(", "))
}

impl From<Tensor> for ConstantData {
    fn from(tensor: Tensor) -> Self {
        // Constants are brought to where they are used when the graph is loaded.
        ConstantData(tensor.to(&Device::cpu()))
    }
}

impl From<&Tensor> for ConstantData {
    fn from(tensor: &Tensor) -> Self {
        ConstantData(tensor.to(&Device::cpu()))
    }
}

impl<T: Element> From<T> for ConstantData {
    fn from(value: T) -> Self {
        ConstantData(Tensor::scalar(value))
    }
}

impl<T: Element> From<&[T]> for ConstantData {
    fn from(values: &[T]) -> Self {
        ConstantData(Tensor::from_slice(values, [values.len()]))
    }
}

impl<T: Element> From<&Vec<T>> for ConstantData {
    fn from(values: &Vec<T>) -> Self {
        values.as_slice().into()
    }
}

impl<T: Element> From<Vec<T>> for ConstantData {
    fn from(values: Vec<T>) -> Self {
        let count = values.len();
        ConstantData(Tensor::from_vec(values, [count]))
    }
}

impl<T: Element, const A: usize> From<[T; A]> for ConstantData {
    fn from(values: [T; A]) -> Self {
        ConstantData(Tensor::from_slice(&values, [A]))
    }
}

impl<T: Element, const A: usize, const B: usize> From<[[T; B]; A]> for ConstantData {
    fn from(values: [[T; B]; A]) -> Self {
        ConstantData(Tensor::from_slice(values.as_flattened(), [A, B]))
    }
}

impl<T: Element, const A: usize, const B: usize, const C: usize> From<[[[T; C]; B]; A]> for ConstantData {
    fn from(values: [[[T; C]; B]; A]) -> Self {
        ConstantData(Tensor::from_slice(values.as_flattened().as_flattened(), [A, B, C]))
    }
}

/// A constant tensor, in any dtype. See [`ConstantData`] for what can be one.
///
/// Floats are rounded to the dtype; an integer has to be exact.
///
/// # Errors
/// When the dtype cannot hold a value: out of range, a float in an integer dtype, or an integer that a float dtype
/// would round. When a tensor is not on the host, and when there is no memory.
///
/// ```
/// # use max_core::{driver::DeviceRef, dtype::DType, graph::{Graph, ops}};
/// let graph = Graph::new("constants", ());
/// let x = ops::constant(&graph, [[1.0, 2.0], [3.0, 4.0]], DType::BF16, DeviceRef::CPU)?;
/// assert_eq!(x.ty().to_string(), "bfloat16[2, 2]");
/// assert!(ops::constant(&graph, 300, DType::U8, DeviceRef::CPU).is_err());
/// # Ok::<(), max_core::graph::GraphError>(())
/// ```
#[track_caller]
pub fn constant(graph: &Graph, value: impl Into<ConstantData>, dtype: DType, device: DeviceRef) -> Result<TensorValue> {
    let site = Site::new("constant");
    let converted = value.into().0.map_err(GraphErrorKind::from).and_then(|tensor| convert(tensor, dtype));
    match converted {
        Ok(tensor) => {
            let ty = TensorType::new(dtype, tensor.shape(), device);
            Ok(site.push(graph.reference(), Op::Constant(tensor), SmallVec::new(), ty))
        }
        Err(kind) => Err(site.error(graph.reference(), None::<Type>, kind)),
    }
}

/// A constant whose value is found by name when the graph is loaded: [`Graph::add_weight`] under MAX's other name.
///
/// # Errors
/// Those of [`Graph::add_weight`].
#[track_caller]
pub fn constant_external(graph: &Graph, name: impl Into<Arc<str>>, ty: TensorType) -> Result<TensorValue> {
    weights::add(graph, Site::new("constant_external"), &Weight { name: name.into(), ty })
}
