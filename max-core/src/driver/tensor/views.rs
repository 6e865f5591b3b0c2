//! Views: tensors over the same memory with another shape, other strides or another dtype.

use super::Tensor;
use super::layout::{Layout, byte_count};
use crate::driver::{DriverError, SliceIndex};
use crate::dtype::DType;

impl Tensor {
    /// A view with another layout, whose first element is `offset` elements from that of this one.
    fn with_layout(&self, layout: Layout, offset: isize) -> Tensor {
        // Every offset that `Layout` gives stays within the storage, whose size fits an `isize`.
        let byte_offset = self.byte_offset.wrapping_add_signed(offset * self.element_size() as isize);
        Tensor { storage: self.storage.clone(), byte_offset, dtype: self.dtype, layout }
    }

    /// A view of the elements that `indices` pick, as numpy's `x[i, a:b:c, ..., None]` does: an index drops its axis, a
    /// range keeps it, an ellipsis stands for the axes not named, and axes after the last index are kept.
    ///
    /// ```
    /// # extern crate max_core as max;
    /// use max::driver::{SliceIndex, Tensor};
    ///
    /// let x = Tensor::arange(0, 24, 1)?.reshape([2, 3, 4])?;
    /// let y = x.slice(&[SliceIndex::Index(-1), SliceIndex::Ellipsis, SliceIndex::ALL.step_by(-2)])?;
    /// assert_eq!(y.shape(), [3, 2]);
    /// assert_eq!(y.to_vec::<i32>()?, [15, 13, 19, 17, 23, 21]);
    /// # Ok::<(), max::driver::DriverError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`DriverError::IndexOutOfRange`], [`DriverError::TooManyIndices`], [`DriverError::RepeatedEllipsis`],
    /// [`DriverError::ZeroStep`]. Ranges beyond an axis are no error, they are clamped.
    pub fn slice(&self, indices: &[SliceIndex]) -> Result<Tensor, DriverError> {
        let (layout, offset) = self.layout.slice(indices)?;
        Ok(self.with_layout(layout, offset))
    }

    /// A view of position `index` of `axis`, without that axis.
    ///
    /// # Errors
    ///
    /// [`DriverError::AxisOutOfRange`], [`DriverError::IndexOutOfRange`].
    pub fn select(&self, axis: isize, index: isize) -> Result<Tensor, DriverError> {
        let (layout, offset) = self.layout.select(axis, index)?;
        Ok(self.with_layout(layout, offset))
    }

    /// A view of the positions `start` to `start + length` (excluded) of `axis`.
    ///
    /// # Errors
    ///
    /// [`DriverError::AxisOutOfRange`], [`DriverError::IndexOutOfRange`].
    pub fn narrow(&self, axis: isize, start: usize, length: usize) -> Result<Tensor, DriverError> {
        let (layout, offset) = self.layout.narrow(axis, start, length)?;
        Ok(self.with_layout(layout, offset))
    }

    /// A view whose axis `i` is axis `axes[i]` of this tensor.
    ///
    /// # Errors
    ///
    /// [`DriverError::InvalidPermutation`] unless each axis occurs once, [`DriverError::AxisOutOfRange`].
    pub fn permute(&self, axes: &[isize]) -> Result<Tensor, DriverError> {
        Ok(self.with_layout(self.layout.permute(axes)?, 0))
    }

    /// A view with two axes exchanged.
    ///
    /// # Errors
    ///
    /// [`DriverError::AxisOutOfRange`].
    pub fn transpose(&self, axis_1: isize, axis_2: isize) -> Result<Tensor, DriverError> {
        Ok(self.with_layout(self.layout.transpose(axis_1, axis_2)?, 0))
    }

    /// A view with axes of size 1 repeated (by a stride of 0), and new axes in front, to make `shape`.
    ///
    /// # Errors
    ///
    /// [`DriverError::NotBroadcastable`], [`DriverError::SizeOverflow`].
    pub fn broadcast_to(&self, shape: impl AsRef<[usize]>) -> Result<Tensor, DriverError> {
        let shape = shape.as_ref();
        byte_count("broadcast_to", self.dtype, shape)?;
        Ok(self.with_layout(self.layout.broadcast_to(shape)?, 0))
    }

    /// A view of the same elements in row-major order under another shape.
    ///
    /// # Errors
    ///
    /// [`DriverError::ElementCount`] if the number of elements differs; [`DriverError::NotContiguous`] if the strides do not
    /// allow it without a copy: reshape what [`contiguous`](Tensor::contiguous) returns then.
    pub fn reshape(&self, shape: impl AsRef<[usize]>) -> Result<Tensor, DriverError> {
        let (op, shape) = ("reshape", shape.as_ref());
        let (expected, _) = byte_count(op, self.dtype, shape)?;
        let actual = self.num_elements();
        if expected != actual {
            return Err(DriverError::ElementCount { op, shape: shape.to_vec(), expected, actual });
        }
        match self.layout.reshape(shape) {
            Some(layout) => Ok(self.with_layout(layout, 0)),
            None => {
                let (shape, strides) = (self.shape().to_vec(), self.strides().to_vec());
                Err(DriverError::NotContiguous { op, shape, strides })
            }
        }
    }

    /// A view of the same bytes as elements of `dtype`. Without a shape, the last axis grows or shrinks by the ratio of the
    /// element sizes.
    ///
    /// ```
    /// # extern crate max_core as max;
    /// use max::driver::Tensor;
    /// use max::dtype::DType;
    ///
    /// let x = Tensor::from_slice(&[1.0f32, -2.0], [2])?;
    /// assert_eq!(x.view(DType::U32, None)?.to_vec::<u32>()?, [0x3f80_0000, 0xc000_0000]);
    /// assert_eq!(x.view(DType::U8, Some(&[2, 4]))?.shape(), [2, 4]);
    /// # Ok::<(), max::driver::DriverError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`DriverError::NotContiguous`]; [`DriverError::ViewSize`] or [`DriverError::ElementCount`] if the sizes do not fit;
    /// [`DriverError::Misaligned`]; [`DriverError::InvalidBool`] if `dtype` is `bool` and a byte is neither 0 nor 1.
    pub fn view(&self, dtype: DType, shape: Option<&[usize]>) -> Result<Tensor, DriverError> {
        let op = "view";
        self.require_contiguous(op)?;
        let (from, to) = (self.element_size(), dtype.size_in_bytes());
        let mut deduced = self.layout.shape.clone();
        let shape = match shape {
            Some(shape) => shape,
            None => {
                let error = || DriverError::ViewSize { op, shape: self.shape().to_vec(), from, dtype };
                match deduced.last_mut() {
                    Some(last) => {
                        let bytes =
                            last.checked_mul(from).filter(|bytes| bytes.is_multiple_of(to)).ok_or_else(error)?;
                        *last = bytes / to;
                    }
                    None if from == to => {}
                    None => return Err(error()),
                }
                &deduced
            }
        };
        let (expected, bytes) = byte_count(op, dtype, shape)?;
        if bytes != self.num_bytes() {
            let actual = self.num_bytes() / to;
            return Err(DriverError::ElementCount { op, shape: shape.to_vec(), expected, actual });
        }
        if bytes > 0 && !self.data_ptr().addr().is_multiple_of(dtype.align()) {
            return Err(DriverError::Misaligned { op, dtype });
        }
        let view = Tensor { dtype, layout: Layout::contiguous(shape), ..self.clone() };
        if dtype == DType::Bool && self.dtype != DType::Bool {
            view.require_valid_bools(op)?;
        }
        Ok(view)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counting(shape: &[usize]) -> Tensor {
        let count = shape.iter().product::<usize>() as i64;
        Tensor::arange(0, count, 1).unwrap().reshape(shape).unwrap()
    }

    #[test]
    fn slicing_errors_name_the_values() {
        let x = counting(&[2, 3]);
        let message = |indices: &[SliceIndex]| x.slice(indices).unwrap_err().to_string();
        assert_eq!(message(&[0.into(), 3.into()]), "slice: index 3 is out of range for axis 1 of size 3");
        assert_eq!(message(&[SliceIndex::ALL; 3]), "slice: 3 indices for a tensor of shape [2, 3]");
        assert_eq!(message(&[SliceIndex::ALL.step_by(0)]), "slice: the step of axis 0 is 0");
        let twice = x.slice(&[SliceIndex::Ellipsis, SliceIndex::Ellipsis]);
        assert!(matches!(twice, Err(DriverError::RepeatedEllipsis)));
        assert!(x.slice(&[isize::MIN.into()]).is_err());
        let extreme = SliceIndex::Range { start: Some(isize::MAX), stop: Some(isize::MIN), step: isize::MIN };
        assert_eq!(x.slice(&[extreme]).unwrap().to_vec::<i64>().unwrap(), [3, 4, 5]);
    }

    #[test]
    fn ranges_convert() {
        let x = counting(&[6]);
        let values = |index: SliceIndex| x.slice(&[index]).unwrap().to_vec::<i64>().unwrap();
        assert_eq!(values(SliceIndex::range(1, -1)), [1, 2, 3, 4]);
        assert_eq!(values((4..).into()), [4, 5]);
        assert_eq!(values((..2).into()), [0, 1]);
        assert_eq!(values((3..=5).into()), [3, 4, 5]);
        assert_eq!(values((..=1).into()), [0, 1]);
        assert_eq!(values((..=-1).into()), [0, 1, 2, 3, 4, 5]);
        assert_eq!(values((..).into()), [0, 1, 2, 3, 4, 5]);
        assert_eq!(values(SliceIndex::REVERSED), [5, 4, 3, 2, 1, 0]);
    }

    #[test]
    fn broadcasting() {
        let x = counting(&[2, 1]);
        let y = x.broadcast_to([3, 2, 2]).unwrap();
        assert_eq!(y.strides(), [0, 1, 0]);
        assert_eq!(y.to_vec::<i64>().unwrap(), [0, 0, 1, 1].repeat(3));
        for shape in [&[2][..], &[3, 1], &[2, 1, 3], &[]] {
            assert!(matches!(x.broadcast_to(shape), Err(DriverError::NotBroadcastable { .. })), "{shape:?}");
        }
        assert!(matches!(x.broadcast_to([1 << 40, 2, 1 << 40]), Err(DriverError::SizeOverflow { .. })));
        assert_eq!(x.broadcast_to([1 << 40, 0, 2, 1 << 40]).unwrap().num_elements(), 0);
    }

    #[test]
    fn permutations() {
        let x = counting(&[2, 3, 4]);
        assert_eq!(x.permute(&[2, 0, -2]).unwrap().shape(), [4, 2, 3]);
        assert!(matches!(x.permute(&[0, 0, 1]), Err(DriverError::InvalidPermutation { .. })));
        assert!(matches!(x.permute(&[0, 1]), Err(DriverError::InvalidPermutation { .. })));
        assert!(matches!(x.permute(&[0, 1, 3]), Err(DriverError::AxisOutOfRange { axis: 3, .. })));
    }

    #[test]
    fn reinterpreting() {
        let bytes = Tensor::from_slice(&[1u8, 0, 0, 0, 2, 0, 0, 0], [8]).unwrap();
        assert_eq!(bytes.view(DType::I32, None).unwrap().to_vec::<i32>().unwrap(), [1, 2]);
        assert_eq!(bytes.view(DType::I64, Some(&[])).unwrap().item::<i64>().unwrap(), 1 + (2 << 32));
        let part = bytes.narrow(0, 1, 4).unwrap();
        assert!(matches!(part.view(DType::I32, None), Err(DriverError::Misaligned { .. })));
        let odd = bytes.narrow(0, 0, 3).unwrap();
        assert!(matches!(odd.view(DType::I16, None), Err(DriverError::ViewSize { .. })));
        assert!(matches!(bytes.view(DType::I16, Some(&[3])), Err(DriverError::ElementCount { .. })));
        let reversed = bytes.slice(&[SliceIndex::REVERSED]).unwrap();
        assert!(matches!(reversed.view(DType::I8, None), Err(DriverError::NotContiguous { .. })));
        assert!(Tensor::scalar(1u8).unwrap().view(DType::F16, None).is_err());
        let empty = Tensor::from_vec(Vec::<u8>::new(), [0]).unwrap();
        assert_eq!(empty.view(DType::F64, None).unwrap().as_slice::<f64>().unwrap(), [0.0; 0]);
    }

    /// Sizes beside a 0 may multiply to more than fits.
    #[test]
    fn views_of_nothing_do_not_overflow() {
        let largest = isize::MAX as usize;
        let x = Tensor::from_vec(Vec::<f32>::new(), [0, largest, largest]).unwrap();
        assert!(x.is_contiguous());
        assert!(matches!(x.view(DType::U8, None), Err(DriverError::ViewSize { .. })));
        assert_eq!(x.select(1, -1).unwrap().shape(), [0, largest]);
        assert_eq!(x.narrow(2, largest - 1, 1).unwrap().shape(), [0, largest, 1]);
        let y = x.slice(&[SliceIndex::ALL, SliceIndex::REVERSED, 5.into()]).unwrap();
        assert_eq!(y.shape(), [0, largest]);
        assert_eq!(y.transpose(0, 1).unwrap().copy().unwrap().to_vec::<f32>().unwrap(), [0.0; 0]);
        assert_eq!(y.iter::<f32>().unwrap().next(), None);
        assert_eq!(y.reshape([7, 0]).unwrap().to_string(), format!("<{} [7, 0]>", y.dtype()));
        assert!(matches!(y.broadcast_to([usize::MAX, 0, largest]), Err(DriverError::SizeOverflow { .. })));
    }

    #[test]
    fn only_0_and_1_are_bools() {
        let bytes = Tensor::from_slice(&[1u8, 0, 0, 2], [4]).unwrap();
        let error = bytes.view(DType::Bool, None).unwrap_err().to_string();
        assert!(error.starts_with("view: byte 0x02 at element 3 is not a bool"), "{error}");
        let valid = bytes.narrow(0, 0, 2).unwrap().view(DType::Bool, None).unwrap();
        assert_eq!(valid.to_vec::<bool>().unwrap(), [true, false]);
    }
}
