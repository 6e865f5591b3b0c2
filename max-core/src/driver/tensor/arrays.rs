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
