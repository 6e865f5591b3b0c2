//! Elements of constants as numbers of any dtype.

use super::Scalar;
use crate::dispatch;
use crate::driver::{DriverError, Tensor};
use crate::dtype::{DType, Element, F8E4M3, F8E4M3FNUZ, F8E5M2, F8E5M2FNUZ, bf16, f16};

/// An element as a number, and back if the type can hold it.
pub(in crate::graph) trait Number: Element {
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
pub(in crate::graph) fn numbers(tensor: &Tensor) -> Result<Box<dyn Iterator<Item = Scalar> + '_>, DriverError> {
    dispatch!(tensor.dtype(), T => Ok(Box::new(tensor.iter::<T>()?.map(Number::to_scalar))))
}

/// The tensor of these numbers; `None` if the dtype does not hold them, or the shape has another number of elements.
pub(in crate::graph) fn tensor_of(numbers: &[Scalar], dtype: DType, shape: &[usize]) -> Option<Tensor> {
    dispatch!(dtype, T => {
        let elements: Option<Vec<T>> = numbers.iter().map(|number| <T as Number>::from_scalar(*number)).collect();
        Tensor::from_vec(elements?, shape).ok()
    })
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
