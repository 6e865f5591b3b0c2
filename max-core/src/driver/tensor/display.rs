//! How tensors print: `Display` the values, `Debug` also dtype, shape and device. Large tensors are abbreviated.

use super::Tensor;
use crate::dispatch;
use crate::dtype::Element;
use std::fmt::{self, Write};

/// Tensors with more elements are abbreviated.
const SUMMARY_THRESHOLD: usize = 1000;
/// How many elements at each end of an axis remain in an abbreviated tensor.
const EDGE: usize = 3;

impl fmt::Display for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.require_host("print").is_err() {
            return write!(f, "<{} {:?} on {}>", self.dtype(), self.shape(), self.device());
        }
        if self.num_elements() == 0 {
            return write!(f, "<{} {:?}>", self.dtype(), self.shape());
        }
        let edge = if self.num_elements() > SUMMARY_THRESHOLD { EDGE } else { usize::MAX };
        let mut texts = Vec::new();
        collect(self, edge, &mut texts)?;
        let width = texts.iter().map(String::len).max().unwrap_or(0);
        write_axis(f, self.shape(), 0, edge, width, &mut texts.iter())
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor({} {:?} on {}", self.dtype(), self.shape(), self.device())?;
        if !self.is_contiguous() {
            write!(f, ", strides {:?}", self.strides())?;
        }
        write!(f, ")\n{self}")
    }
}

/// The positions of an axis that are shown; `None` is the gap.
fn shown(size: usize, edge: usize) -> impl Iterator<Item = Option<usize>> {
    let abbreviated = size > edge.saturating_mul(2);
    let head = if abbreviated { edge } else { size };
    let tail = if abbreviated { size - edge } else { size };
    (0..head).map(Some).chain(abbreviated.then_some(None)).chain((tail..size).map(Some))
}

/// The texts of the elements that are shown, in order.
fn collect(tensor: &Tensor, edge: usize, texts: &mut Vec<String>) -> fmt::Result {
    if tensor.rank() == 0 {
        let mut text = String::new();
        dispatch!(tensor.dtype(), T => {
            let value = tensor.item::<T>().map_err(|_| fmt::Error)?;
            match T::DTYPE {
                dtype if !dtype.is_float() => write!(text, "{value}")?,
                // The shortest digits that tell it from its neighbours of that precision.
                dtype if dtype.size_in_bytes() == 8 => write!(text, "{:?}", value.to_f64())?,
                _ => write!(text, "{:?}", value.to_f64() as f32)?,
            }
        });
        texts.push(text);
        return Ok(());
    }
    for index in shown(tensor.shape()[0], edge).flatten() {
        collect(&tensor.select(0, index as isize).map_err(|_| fmt::Error)?, edge, texts)?;
    }
    Ok(())
}

fn write_axis<'a>(
    f: &mut fmt::Formatter<'_>,
    shape: &[usize],
    depth: usize,
    edge: usize,
    width: usize,
    texts: &mut impl Iterator<Item = &'a String>,
) -> fmt::Result {
    let Some((&size, inner)) = shape.split_first() else {
        return write!(f, "{:>width$}", texts.next().map_or("", String::as_str));
    };
    f.write_char('[')?;
    for (place, index) in shown(size, edge).enumerate() {
        if place > 0 && inner.is_empty() {
            f.write_char(' ')?;
        } else if place > 0 {
            // A blank line more for each axis that lies between.
            (0..inner.len()).try_for_each(|_| f.write_char('\n'))?;
            write!(f, "{:1$}", "", depth + 1)?;
        }
        match index {
            Some(_) => write_axis(f, inner, depth + 1, edge, width, texts)?,
            None => f.write_str("...")?,
        }
    }
    f.write_char(']')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::Device;
    use crate::dtype::{DType, F8E4M3FNUZ, bf16};

    #[test]
    fn values_are_aligned_in_nested_brackets() {
        let x = Tensor::from_slice(&[1.0f32, -0.5, 1e-9, f32::NAN, f32::INFINITY, 100.0], [2, 3]).unwrap();
        assert_eq!(x.to_string(), "[[  1.0  -0.5  1e-9]\n [  NaN   inf 100.0]]");
        let cube = Tensor::arange(0, 8, 1).unwrap().reshape([2, 2, 2]).unwrap();
        assert_eq!(cube.to_string(), "[[[0 1]\n  [2 3]]\n\n [[4 5]\n  [6 7]]]");
        assert_eq!(Tensor::from_slice(&[true, false], [2]).unwrap().to_string(), "[ true false]");
        assert_eq!(Tensor::scalar(bf16::from_f32(0.5)).unwrap().to_string(), "0.5");
        assert_eq!(Tensor::scalar(F8E4M3FNUZ::NAN).unwrap().to_string(), "NaN");
        assert_eq!(Tensor::zeros(DType::I8, [0], &Device::cpu()).unwrap().to_string(), "<int8 [0]>");
        assert_eq!(Tensor::zeros(DType::I8, [2, 0], &Device::cpu()).unwrap().to_string(), "<int8 [2, 0]>");
    }

    #[test]
    fn large_tensors_are_abbreviated() {
        let x = Tensor::arange(0i64, 10_000, 1).unwrap();
        assert_eq!(x.to_string(), "[   0    1    2 ... 9997 9998 9999]");
        let broadcast = Tensor::scalar(1u8).unwrap().broadcast_to([1 << 20, 1 << 20]).unwrap();
        assert_eq!(broadcast.to_string().lines().count(), 7);
    }

    #[test]
    fn debug_has_the_layout() {
        let x = Tensor::arange(0u8, 4, 1).unwrap().reshape([2, 2]).unwrap().transpose(0, 1).unwrap();
        assert_eq!(format!("{x:?}"), "Tensor(uint8 [2, 2] on cpu:0, strides [1, 2])\n[[0 2]\n [1 3]]");
    }
}
