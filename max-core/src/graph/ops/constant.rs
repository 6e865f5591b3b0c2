//! Constants: numbers, slices and nested arrays as tensors of any dtype.

use std::fmt;
use std::sync::Arc;

use crate::driver::DeviceRef;
use crate::dtype::{DType, Element, bf16, f16};
use crate::graph::Graph;
use crate::graph::error::GraphErrorKind;
use crate::graph::shape::Shape;
use crate::graph::site::{Result, Site};
use crate::graph::value::{Scalar, TensorValue};

/// A tensor known when the graph is built: a dtype, sizes, and the elements in row-major order.
#[derive(Clone, PartialEq)]
pub struct Constant {
    dtype: DType,
    dims: Vec<usize>,
    bytes: Arc<[u8]>,
}

impl Constant {
    /// The type of the elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The sizes.
    pub fn dims(&self) -> &[usize] {
        &self.dims
    }

    /// The elements in row-major order, in the machine's byte order.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(crate) fn shape(&self) -> Shape {
        self.dims.as_slice().into()
    }

    /// A tensor of rank 0, if the dtype can hold the number.
    pub(crate) fn scalar(value: Scalar, dtype: DType) -> Option<Self> {
        let mut bytes = Vec::with_capacity(8);
        encode(value, dtype, &mut bytes)?;
        Some(Constant { dtype, dims: vec![], bytes: bytes.into() })
    }

    /// The elements as numbers.
    fn numbers(&self) -> impl Iterator<Item = Scalar> + '_ {
        self.bytes.chunks_exact(self.dtype.size_in_bytes()).map(|bytes| decode(self.dtype, bytes))
    }

    /// The same numbers in another dtype; the first one that it cannot hold.
    fn convert(self, dtype: DType) -> std::result::Result<Self, Scalar> {
        if dtype == self.dtype {
            return Ok(self);
        }
        let mut bytes = Vec::with_capacity(self.bytes.len());
        for value in self.numbers() {
            encode(value, dtype, &mut bytes).ok_or(value)?;
        }
        Ok(Constant { dtype, dims: self.dims, bytes: bytes.into() })
    }
}

impl fmt::Display for Constant {
    /// Up to eight elements.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let (true, Some(value)) = (self.dims.is_empty(), self.numbers().next()) {
            return value.fmt(f);
        }
        let shown: Vec<String> = self.numbers().take(8).map(|value| value.to_string()).collect();
        let more = if self.numbers().nth(8).is_some() { ", ..." } else { "" };
        write!(f, "[{}{more}]", shown.join(", "))
    }
}

impl fmt::Debug for Constant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{:?} {self}", self.dtype, self.dims)
    }
}

/// Appends the number as an element, rounded to the nearest if it is a float; `None` if the dtype cannot hold it.
fn encode(value: Scalar, dtype: DType, out: &mut Vec<u8>) -> Option<()> {
    macro_rules! integer {
        ($ty:ty) => {
            match value {
                Scalar::Int(value) => out.extend(<$ty>::try_from(value).ok()?.to_ne_bytes()),
                Scalar::Bool(value) => out.extend(<$ty>::from(value).to_ne_bytes()),
                Scalar::Float(_) => return None,
            }
        };
    }
    match dtype {
        DType::Bool => match value {
            Scalar::Bool(value) => out.push(value.into()),
            Scalar::Int(_) | Scalar::Float(_) => return None,
        },
        DType::I8 => integer!(i8),
        DType::I16 => integer!(i16),
        DType::I32 => integer!(i32),
        DType::I64 => integer!(i64),
        DType::U8 => integer!(u8),
        DType::U16 => integer!(u16),
        DType::U32 => integer!(u32),
        DType::U64 => integer!(u64),
        DType::F16
        | DType::BF16
        | DType::F32
        | DType::F64
        | DType::F8E4M3FN
        | DType::F8E4M3FNUZ
        | DType::F8E5M2
        | DType::F8E5M2FNUZ => {
            let number = match value {
                Scalar::Float(value) => value,
                Scalar::Int(value) => value as f64,
                Scalar::Bool(value) => f64::from(u8::from(value)),
            };
            crate::dispatch!(dtype, T => {
                let element = <T as Element>::from_f64(number);
                let back = element.to_f64();
                let fits = match value {
                    // An integer means exactly this integer; a float is rounded.
                    Scalar::Int(value) => back == number && number as i128 == value,
                    _ if number.is_finite() => number.abs() <= max_finite(dtype) || (!dtype.is_float8() && back.is_finite()),
                    _ => back == number || (back.is_nan() && number.is_nan()),
                };
                if !fits {
                    return None;
                }
                out.extend_from_slice(element_bytes(&element));
            });
        }
    }
    Some(())
}

/// The largest value of a format whose conversion may saturate.
fn max_finite(dtype: DType) -> f64 {
    match dtype {
        DType::F8E4M3FN => 448.0,
        DType::F8E4M3FNUZ => 240.0,
        DType::F8E5M2 | DType::F8E5M2FNUZ => 57344.0,
        _ => 0.0,
    }
}

fn decode(dtype: DType, bytes: &[u8]) -> Scalar {
    macro_rules! read {
        ($ty:ty) => {{
            let mut array = [0; size_of::<$ty>()];
            array.copy_from_slice(bytes);
            <$ty>::from_ne_bytes(array)
        }};
    }
    match dtype {
        DType::Bool => Scalar::Bool(bytes[0] != 0),
        DType::I8 => read!(i8).into(),
        DType::I16 => read!(i16).into(),
        DType::I32 => read!(i32).into(),
        DType::I64 => read!(i64).into(),
        DType::U8 => read!(u8).into(),
        DType::U16 => read!(u16).into(),
        DType::U32 => read!(u32).into(),
        DType::U64 => read!(u64).into(),
        DType::F16 => f16::from_bits(read!(u16)).into(),
        DType::BF16 => bf16::from_bits(read!(u16)).into(),
        DType::F32 => read!(f32).into(),
        DType::F64 => read!(f64).into(),
        DType::F8E4M3FN => crate::dtype::F8E4M3::from_bits(bytes[0]).to_f64().into(),
        DType::F8E5M2 => crate::dtype::F8E5M2::from_bits(bytes[0]).to_f64().into(),
        DType::F8E4M3FNUZ => Element::to_f64(crate::dtype::F8E4M3FNUZ::from_bits(bytes[0])).into(),
        DType::F8E5M2FNUZ => Element::to_f64(crate::dtype::F8E5M2FNUZ::from_bits(bytes[0])).into(),
    }
}

fn element_bytes<T: Element>(element: &T) -> &[u8] {
    slice_bytes(std::slice::from_ref(element))
}

fn slice_bytes<T: Element>(elements: &[T]) -> &[u8] {
    // SAFETY: an `Element` has no padding, so all its bytes are initialized; the length is that of the slice.
    unsafe { std::slice::from_raw_parts(elements.as_ptr().cast(), size_of_val(elements)) }
}

fn from_elements<T: Element>(elements: &[T], dims: Vec<usize>) -> Constant {
    Constant { dtype: T::DTYPE, dims, bytes: slice_bytes(elements).into() }
}

impl<T: Element> From<T> for Constant {
    fn from(value: T) -> Self {
        from_elements(&[value], vec![])
    }
}

impl<T: Element> From<&[T]> for Constant {
    fn from(values: &[T]) -> Self {
        from_elements(values, vec![values.len()])
    }
}

impl<T: Element> From<Vec<T>> for Constant {
    fn from(values: Vec<T>) -> Self {
        values.as_slice().into()
    }
}

impl<T: Element, const A: usize> From<[T; A]> for Constant {
    fn from(values: [T; A]) -> Self {
        from_elements(&values, vec![A])
    }
}

impl<T: Element, const A: usize, const B: usize> From<[[T; B]; A]> for Constant {
    fn from(values: [[T; B]; A]) -> Self {
        from_elements(values.as_flattened(), vec![A, B])
    }
}

impl<T: Element, const A: usize, const B: usize, const C: usize> From<[[[T; C]; B]; A]> for Constant {
    fn from(values: [[[T; C]; B]; A]) -> Self {
        from_elements(values.as_flattened().as_flattened(), vec![A, B, C])
    }
}

/// A constant tensor: a number (rank 0), a slice or `Vec` (rank 1), or nested arrays (up to rank 3), in any dtype.
///
/// Floats are rounded to the dtype; an integer has to be exact.
///
/// # Errors
/// When the dtype cannot hold a value: out of range, a float in an integer dtype, or an integer that a float dtype
/// would round.
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
pub fn constant(graph: &Graph, value: impl Into<Constant>, dtype: DType, device: DeviceRef) -> Result<TensorValue> {
    constant_at(&Site::new("constant"), graph, value.into(), None, dtype, device)
}

/// As [`constant`], in row-major order with the given sizes.
///
/// # Errors
/// As [`constant`], and when the shape is not static or has another number of elements than the data.
#[track_caller]
pub fn constant_with_shape(
    graph: &Graph,
    values: impl Into<Constant>,
    shape: impl Into<Shape>,
    dtype: DType,
    device: DeviceRef,
) -> Result<TensorValue> {
    constant_at(&Site::new("constant"), graph, values.into(), Some(shape.into()), dtype, device)
}

fn constant_at(
    site: &Site,
    graph: &Graph,
    value: Constant,
    shape: Option<Shape>,
    dtype: DType,
    device: DeviceRef,
) -> Result<TensorValue> {
    let fail = |kind| Err(site.error(graph.reference(), None::<crate::graph::Type>, kind));
    let mut value = match value.convert(dtype) {
        Ok(value) => value,
        Err(value) => {
            return fail(GraphErrorKind::Unrepresentable { value: value.to_string(), dtype });
        }
    };
    if let Some(shape) = shape {
        let actual: usize = value.dims.iter().product();
        let dims: Option<Vec<usize>> =
            shape.iter().map(|dim| dim.as_static().and_then(|size| usize::try_from(size).ok())).collect();
        match dims {
            Some(dims) if shape.num_elements() == actual => value.dims = dims,
            _ => {
                return fail(GraphErrorKind::ConstantLength { shape: Box::new(shape), actual });
            }
        }
    }
    Ok(site.constant(graph.reference(), value, device))
}
