//! [`TensorType`], [`BufferType`] and [`Type`]: what a graph knows of a value before it runs.

use std::fmt;

use super::symbolic::shape::Shape;
use crate::driver::{DeviceRef, Tensor};
use crate::dtype::DType;

/// The type of a tensor: its element type, its shape and the device that holds it.
///
/// ```
/// use max_core::{driver::DeviceRef, dtype::DType, graph::TensorType};
///
/// let ty = TensorType::new(DType::F32, ("batch", 10), DeviceRef::CPU);
/// assert_eq!(ty.to_string(), "float32[batch, 10]");
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct TensorType {
    /// The type of the elements.
    pub dtype: DType,
    /// The dims.
    pub shape: Shape,
    /// Where the tensor is.
    pub device: DeviceRef,
}

impl TensorType {
    /// A tensor type. The shape is an array, a slice, a `Vec` or a tuple of dims; `()` is a scalar.
    pub fn new(dtype: DType, shape: impl Into<Shape>, device: DeviceRef) -> Self {
        TensorType { dtype, shape: shape.into(), device }
    }

    /// The number of axes.
    pub fn rank(&self) -> usize {
        self.shape.rank()
    }

    /// The type of a buffer that holds such a tensor.
    pub fn as_buffer(&self) -> BufferType {
        BufferType(self.clone())
    }

    pub(super) fn with_dtype(&self, dtype: DType) -> Self {
        TensorType { dtype, shape: self.shape.clone(), device: self.device }
    }

    pub(super) fn with_shape(&self, shape: Shape) -> Self {
        TensorType { dtype: self.dtype, shape, device: self.device }
    }
}

impl From<&Tensor> for TensorType {
    /// The type of what a tensor holds, on its device: of a graph's input that takes such tensors.
    ///
    /// ```
    /// use max_core::{driver::Tensor, graph::TensorType};
    ///
    /// let tensor = Tensor::from_slice(&[1.0f32; 6], [2, 3])?;
    /// assert_eq!(TensorType::from(&tensor).to_string(), "float32[2, 3]");
    /// # Ok::<(), max_core::driver::DriverError>(())
    /// ```
    fn from(tensor: &Tensor) -> Self {
        TensorType::new(tensor.dtype(), tensor.shape(), tensor.device().into())
    }
}

impl fmt::Display for TensorType {
    /// `float32[batch, 10]`; a device other than `cpu:0` follows.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.dtype, self.shape)?;
        if self.device == DeviceRef::CPU { Ok(()) } else { write!(f, " on {}", self.device) }
    }
}

/// The type of a buffer: a tensor that ops may change in place.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct BufferType(TensorType);

impl BufferType {
    /// The buffer of that type.
    pub(super) fn from_tensor(ty: TensorType) -> Self {
        BufferType(ty)
    }

    /// A buffer type. See [`TensorType::new`].
    pub fn new(dtype: DType, shape: impl Into<Shape>, device: DeviceRef) -> Self {
        BufferType(TensorType::new(dtype, shape, device))
    }

    /// The type of the elements.
    pub fn dtype(&self) -> DType {
        self.0.dtype
    }

    /// The dims.
    pub fn shape(&self) -> &Shape {
        &self.0.shape
    }

    /// Where the buffer is.
    pub fn device(&self) -> DeviceRef {
        self.0.device
    }

    /// The type of a tensor with the buffer's contents.
    pub fn as_tensor(&self) -> &TensorType {
        &self.0
    }
}

impl fmt::Display for BufferType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "buffer {}", self.0)
    }
}

/// The type of any value of a graph.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Type {
    /// An immutable tensor.
    Tensor(TensorType),
    /// A tensor that may be changed in place.
    Buffer(BufferType),
}

impl Type {
    /// The tensor type, or of a buffer that of its contents.
    pub fn as_tensor(&self) -> &TensorType {
        match self {
            Type::Tensor(ty) => ty,
            Type::Buffer(ty) => ty.as_tensor(),
        }
    }

    /// Whether this is a buffer.
    pub fn is_buffer(&self) -> bool {
        matches!(self, Type::Buffer(_))
    }

    /// The type of the elements.
    pub fn dtype(&self) -> DType {
        self.as_tensor().dtype
    }

    /// The dims.
    pub fn shape(&self) -> &Shape {
        &self.as_tensor().shape
    }

    /// Where the value is.
    pub fn device(&self) -> DeviceRef {
        self.as_tensor().device
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Type::Tensor(ty) => ty.fmt(f),
            Type::Buffer(ty) => ty.fmt(f),
        }
    }
}

impl From<TensorType> for Type {
    fn from(ty: TensorType) -> Self {
        Type::Tensor(ty)
    }
}

impl From<BufferType> for Type {
    fn from(ty: BufferType) -> Self {
        Type::Buffer(ty)
    }
}

impl From<&TensorType> for Type {
    fn from(ty: &TensorType) -> Self {
        Type::Tensor(ty.clone())
    }
}

impl From<&BufferType> for Type {
    fn from(ty: &BufferType) -> Self {
        Type::Buffer(ty.clone())
    }
}

impl From<&Type> for Type {
    fn from(ty: &Type) -> Self {
        ty.clone()
    }
}

/// Items of a message, or of the text form, with commas between them.
pub(super) fn list<T: fmt::Display>(items: &[T]) -> String {
    items.iter().map(T::to_string).collect::<Vec<_>>().join(", ")
}
