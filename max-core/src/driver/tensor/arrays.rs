//! Conversions between tensors and `ndarray` arrays, without a copy where the memory allows it.

use super::Tensor;
use crate::driver::DriverError;
use crate::dtype::Element;
use ndarray::{Array, ArrayD, ArrayView, ArrayViewD, Axis, Dimension, IxDyn, ShapeBuilder};

impl<T: Element, D: Dimension> TryFrom<Array<T, D>> for Tensor {
    type Error = DriverError;

    /// Takes over the array's memory if its elements are all of it, in row-major order; else they are copied.
    fn try_from(array: Array<T, D>) -> Result<Tensor, DriverError> {
        let shape = array.shape().to_vec();
        if !array.is_standard_layout() {
            return Tensor::try_from(array.view());
        }
        let count = array.len();
        match array.into_raw_vec_and_offset() {
            (data, Some(0) | None) if data.len() == count => Tensor::from_vec(data, shape),
            (data, offset) => Tensor::from_slice(&data[offset.unwrap_or(0)..][..count], shape),
        }
    }
}

impl<T: Element, D: Dimension> TryFrom<ArrayView<'_, T, D>> for Tensor {
    type Error = DriverError;

    /// Copies the elements.
    fn try_from(array: ArrayView<'_, T, D>) -> Result<Tensor, DriverError> {
        match array.as_slice() {
            Some(data) => Tensor::from_slice(data, array.shape()),
            None => Tensor::from_vec(array.iter().copied().collect(), array.shape()),
        }
    }
}

impl<T: Element> TryFrom<Tensor> for ArrayD<T> {
    type Error = DriverError;

    /// Takes over the tensor's memory where [`Tensor::into_vec`] can, else copies the elements.
    fn try_from(tensor: Tensor) -> Result<ArrayD<T>, DriverError> {
        let shape = tensor.shape().to_vec();
        array_of(tensor.into_vec()?, shape)
    }
}

impl<T: Element> TryFrom<&Tensor> for ArrayD<T> {
    type Error = DriverError;

    /// Copies the elements.
    fn try_from(tensor: &Tensor) -> Result<ArrayD<T>, DriverError> {
        array_of(tensor.to_vec()?, tensor.shape().to_vec())
    }
}

fn array_of<T: Element>(values: Vec<T>, shape: Vec<usize>) -> Result<ArrayD<T>, DriverError> {
    ArrayD::from_shape_vec(IxDyn(&shape), values)
        // `ndarray` refuses shapes whose sizes overflow even if one of them is 0.
        .map_err(|_| DriverError::SizeOverflow { op: "to ndarray", dtype: T::DTYPE, shape })
}

impl Tensor {
    /// The elements as an `ndarray` view, without a copy, whatever the strides.
    ///
    /// ```
    /// # extern crate max_core as max;
    /// use max::driver::Tensor;
    ///
    /// let x = Tensor::arange(0, 6, 1)?.reshape([2, 3])?;
    /// let transposed = x.transpose(0, 1)?;
    /// assert_eq!(transposed.as_ndarray::<i32>()?[[2, 1]], 5);
    /// # Ok::<(), max::driver::DriverError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`DriverError::DTypeMismatch`], [`DriverError::NotOnHost`], [`DriverError::SizeOverflow`].
    pub fn as_ndarray<T: Element>(&self) -> Result<ArrayViewD<'_, T>, DriverError> {
        let op = "as_ndarray";
        self.require_dtype::<T>(op)?;
        self.require_host(op)?;
        let shape = IxDyn(self.shape());
        let overflow = |_| DriverError::SizeOverflow { op, dtype: T::DTYPE, shape: self.shape().to_vec() };
        if self.num_elements() == 0 {
            return ArrayView::from_shape(shape, &[]).map_err(overflow);
        }
        // `ndarray` takes strides that are not negative; axes that run backwards are turned around before and after.
        let backwards = || self.strides().iter().enumerate().filter(|&(_, &stride)| stride < 0).map(|(axis, _)| axis);
        let lowest: isize = backwards().map(|axis| (self.shape()[axis] - 1) as isize * self.strides()[axis]).sum();
        let strides = self.strides().iter().map(|stride| stride.unsigned_abs()).collect::<Vec<_>>();
        // SAFETY: the elements of the tensor, named by the same strides from the lowest address; they are initialized,
        // aligned and valid, and cannot be written while `self` is borrowed.
        let mut view = unsafe {
            ArrayView::from_shape_ptr(shape.strides(IxDyn(&strides)), self.data_ptr().cast::<T>().offset(lowest))
        };
        backwards().for_each(|axis| view.invert_axis(Axis(axis)));
        Ok(view)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::SliceIndex;
    use ndarray::{arr2, s};

    #[test]
    fn arrays_move_in_and_out_without_a_copy() {
        let array = arr2(&[[1.0f32, 2.0], [3.0, 4.0]]);
        let address = array.as_ptr();
        let tensor = Tensor::try_from(array.clone()).unwrap();
        assert_eq!((tensor.shape(), tensor.to_vec::<f32>().unwrap()), (&[2, 2][..], vec![1.0, 2.0, 3.0, 4.0]));
        let tensor = Tensor::try_from(array).unwrap();
        assert_eq!(tensor.data_ptr(), address.cast());
        let array = ArrayD::<f32>::try_from(tensor).unwrap();
        assert_eq!((array.as_ptr(), array.shape()), (address, &[2, 2][..]));
    }

    #[test]
    fn strided_arrays_are_copied() {
        let array = arr2(&[[1, 2, 3], [4, 5, 6]]);
        let tensor = Tensor::try_from(array.view().reversed_axes()).unwrap();
        assert_eq!(tensor.to_vec::<i32>().unwrap(), [1, 4, 2, 5, 3, 6]);
        let tail = array.slice_move(s![1.., ..]);
        assert_eq!(Tensor::try_from(tail).unwrap().to_vec::<i32>().unwrap(), [4, 5, 6]);
    }

    #[test]
    fn strided_tensors_are_viewed() {
        let x = Tensor::arange(0i64, 24, 1).unwrap().reshape([2, 3, 4]).unwrap();
        for indices in [
            vec![],
            vec![SliceIndex::REVERSED, SliceIndex::ALL, SliceIndex::ALL.step_by(-2)],
            vec![SliceIndex::ALL, (0..0).into()],
            vec![0.into(), 1.into(), 2.into()],
            vec![SliceIndex::NewAxis],
        ] {
            let x = x.slice(&indices).unwrap();
            let view = x.as_ndarray::<i64>().unwrap();
            assert_eq!(view.shape(), x.shape());
            assert_eq!(view.iter().copied().collect::<Vec<_>>(), x.to_vec::<i64>().unwrap());
            assert_eq!(ArrayD::<i64>::try_from(&x).unwrap(), view);
        }
        let broadcast = x.select(2, 0).unwrap().broadcast_to([5, 2, 3]).unwrap();
        assert_eq!(broadcast.as_ndarray::<i64>().unwrap()[[4, 1, 2]], 20);
        assert!(x.as_ndarray::<f32>().is_err());
    }
}
