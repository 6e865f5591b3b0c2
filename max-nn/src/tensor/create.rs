//! Making tensors: from values, and of one value or a sequence.

use max_core::driver;
use max_core::dtype::{DType, Element};
use max_core::graph::weights::WeightsRegistry;
use max_core::graph::{GraphError, Scalar, Shape, TensorType};

use super::Tensor;
use super::lazy::context;
use crate::Result;
use crate::functional as f;

/// What [`Tensor::constant`] takes: a number, a slice, a `Vec`, nested arrays of any rank, a tensor of the driver, or, with the
/// feature `ndarray`, an array.
pub trait Data {
    /// The tensor.
    ///
    /// # Errors
    /// When there is no memory for it.
    fn into_tensor(self) -> Result<driver::Tensor>;
}

impl Data for driver::Tensor {
    fn into_tensor(self) -> Result<driver::Tensor> {
        Ok(self)
    }
}

impl Data for &driver::Tensor {
    fn into_tensor(self) -> Result<driver::Tensor> {
        Ok(self.clone())
    }
}

macro_rules! data_of_numbers {
    ($($ty:ty)*) => {$(
        impl Data for $ty {
            fn into_tensor(self) -> Result<driver::Tensor> {
                Ok(driver::Tensor::scalar(self)?)
            }
        }
    )*};
}
data_of_numbers!(bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 max_core::dtype::f16 max_core::dtype::bf16);

impl<T: Element> Data for Vec<T> {
    fn into_tensor(self) -> Result<driver::Tensor> {
        let count = self.len();
        Ok(driver::Tensor::from_vec(self, [count])?)
    }
}

/// Numbers, or arrays of them: the elements of an array.
pub trait Item: Copy {
    /// What is counted.
    type Element: Element;

    /// The sizes of the axes within one item.
    fn sizes() -> Vec<usize>;

    /// All numbers of some items, in order.
    fn flat(items: &[Self]) -> &[Self::Element];
}

macro_rules! items {
    ($($ty:ty)*) => {$(
        impl Item for $ty {
            type Element = $ty;

            fn sizes() -> Vec<usize> {
                Vec::new()
            }

            fn flat(items: &[$ty]) -> &[$ty] {
                items
            }
        }
    )*};
}
items!(bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 max_core::dtype::f16 max_core::dtype::bf16);

impl<I: Item, const N: usize> Item for [I; N] {
    type Element = I::Element;

    fn sizes() -> Vec<usize> {
        [N].into_iter().chain(I::sizes()).collect()
    }

    fn flat(items: &[[I; N]]) -> &[I::Element] {
        I::flat(items.as_flattened())
    }
}

impl<I: Item> Data for &[I] {
    fn into_tensor(self) -> Result<driver::Tensor> {
        let shape: Vec<usize> = [self.len()].into_iter().chain(I::sizes()).collect();
        Ok(driver::Tensor::from_slice(I::flat(self), shape)?)
    }
}

impl<I: Item, const N: usize> Data for [I; N] {
    fn into_tensor(self) -> Result<driver::Tensor> {
        self.as_slice().into_tensor()
    }
}

impl<I: Item, const N: usize> Data for &[I; N] {
    fn into_tensor(self) -> Result<driver::Tensor> {
        self.as_slice().into_tensor()
    }
}

impl<I: Item> Data for &Vec<I> {
    fn into_tensor(self) -> Result<driver::Tensor> {
        self.as_slice().into_tensor()
    }
}

#[cfg(feature = "ndarray")]
impl<T: Element, D: ndarray::Dimension> Data for ndarray::Array<T, D> {
    fn into_tensor(self) -> Result<driver::Tensor> {
        Ok(self.try_into()?)
    }
}

#[cfg(feature = "ndarray")]
impl<T: Element, D: ndarray::Dimension> Data for ndarray::ArrayView<'_, T, D> {
    fn into_tensor(self) -> Result<driver::Tensor> {
        Ok(self.try_into()?)
    }
}

/// What tells dtype, shape and device of a new tensor: a [`TensorType`], or another tensor.
pub trait Like {
    /// Dtype, shape and device.
    fn tensor_type(&self) -> &TensorType;
}

impl Like for TensorType {
    fn tensor_type(&self) -> &TensorType {
        self
    }
}

impl Like for Tensor {
    fn tensor_type(&self) -> &TensorType {
        self.ty()
    }
}

impl<L: Like + ?Sized> Like for &L {
    fn tensor_type(&self) -> &TensorType {
        (**self).tensor_type()
    }
}

impl Tensor {
    /// A tensor with these values, of their dtype: see [`Data`]. It is on the default device.
    ///
    /// ```
    /// # extern crate max_nn as max;
    /// # max_kernels::link();
    /// # use max::tensor::Tensor;
    /// let x = Tensor::constant([[1.0f32, 2.0], [3.0, 4.0]])?;
    /// assert_eq!(x.to_string(), "[[1. 2.]\n [3. 4.]] float32[2, 2] on cpu:0");
    /// assert_eq!(Tensor::constant(7i64)?.item::<i64>()?, 7);
    /// # Ok::<(), max::Error>(())
    /// ```
    ///
    /// # Errors
    /// When there is no memory for it.
    #[track_caller]
    pub fn constant(data: impl Data) -> Result<Tensor> {
        let (_, device) = context::defaults(None, None);
        Ok(data.into_tensor()?.to(&context::device(device)?)?.into())
    }

    /// A tensor with a copy of `data`, in row-major order, on the default device.
    ///
    /// # Errors
    /// When the shape has another number of elements; when there is no memory for it.
    #[track_caller]
    pub fn from_slice<T: Element>(data: &[T], shape: impl AsRef<[usize]>) -> Result<Tensor> {
        Tensor::constant(driver::Tensor::from_slice(data, shape)?)
    }

    /// The weight of that name, on the default device.
    ///
    /// # Errors
    /// When there is none of that name, or it cannot be read.
    #[track_caller]
    pub fn from_weights(weights: &dyn WeightsRegistry, name: &str) -> Result<Tensor> {
        match weights.weight(name)? {
            Some(tensor) => Tensor::constant(tensor),
            None => {
                let names = weights.weight_names();
                Err(GraphError::argument("from_weights", "name", format!("`{name}`"), format!("one of {names:?}")))
            }
        }
    }

    /// A tensor with `value` everywhere, of the default dtype, on the default device.
    ///
    /// # Errors
    /// When the dtype cannot hold the value; when a dim is symbolic or negative; when there is no memory for it.
    #[track_caller]
    pub fn full(shape: impl Into<Shape>, value: impl Into<Scalar>) -> Result<Tensor> {
        let (dtype, device) = context::defaults(None, None);
        Tensor::full_like(TensorType::new(dtype, shape, device), value)
    }

    /// A tensor with `value` everywhere, of the dtype, the shape and on the device of `like`.
    ///
    /// # Errors
    /// As [`full`](Self::full).
    #[track_caller]
    pub fn full_like(like: impl Like, value: impl Into<Scalar>) -> Result<Tensor> {
        let TensorType { dtype, shape, device } = like.tensor_type();
        let sizes = shape.iter().map(|dim| dim.as_static().and_then(|size| usize::try_from(size).ok()));
        let Some(sizes) = sizes.collect::<Option<Vec<usize>>>() else {
            let expected = "static: an eager tensor has sizes, not names";
            return Err(GraphError::argument("full", "shape", shape, expected));
        };
        let value = value.into();
        let scalar = value.to_tensor(*dtype);
        let scalar =
            scalar.map_err(|_| GraphError::argument("full", "value", value, format!("one that {dtype} holds")))?;
        let full = scalar.broadcast_to(&sizes)?.contiguous()?;
        Ok(full.to(&context::device(*device)?)?.into())
    }

    /// A tensor of ones, of the default dtype, on the default device.
    ///
    /// # Errors
    /// As [`full`](Self::full).
    #[track_caller]
    pub fn ones(shape: impl Into<Shape>) -> Result<Tensor> {
        Tensor::full(shape, Scalar::Int(1))
    }

    /// A tensor of ones, of the dtype, the shape and on the device of `like`.
    ///
    /// # Errors
    /// As [`full`](Self::full).
    #[track_caller]
    pub fn ones_like(like: impl Like) -> Result<Tensor> {
        let one = if like.tensor_type().dtype == DType::Bool { Scalar::Bool(true) } else { Scalar::Int(1) };
        Tensor::full_like(like, one)
    }

    /// A tensor of zeros, of the default dtype, on the default device.
    ///
    /// # Errors
    /// As [`full`](Self::full).
    #[track_caller]
    pub fn zeros(shape: impl Into<Shape>) -> Result<Tensor> {
        Tensor::full(shape, Scalar::Int(0))
    }

    /// A tensor of zeros, of the dtype, the shape and on the device of `like`.
    ///
    /// # Errors
    /// As [`full`](Self::full).
    #[track_caller]
    pub fn zeros_like(like: impl Like) -> Result<Tensor> {
        let zero = if like.tensor_type().dtype == DType::Bool { Scalar::Bool(false) } else { Scalar::Int(0) };
        Tensor::full_like(like, zero)
    }

    /// The numbers `start`, `start + step`, … before `stop`, of the default dtype, on the default device.
    ///
    /// # Errors
    /// As [`range`](f::range).
    #[track_caller]
    pub fn arange(start: impl Into<Scalar>, stop: impl Into<Scalar>, step: impl Into<Scalar>) -> Result<Tensor> {
        let (dtype, device) = context::defaults(None, None);
        f::range(start, stop, step, dtype, device)
    }
}
