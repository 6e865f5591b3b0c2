//! Access to the elements: typed slices, vectors, iterators, and copies.

use super::Tensor;
use super::layout::{Layout, Sizes};
use crate::driver::DriverError;
use crate::dtype::{DType, Element};
use std::marker::PhantomData;
use std::sync::Arc;

/// The edge of the square that [`gather`] copies at a time where the innermost axis is strided, in elements: a square of
/// either side's cache lines stays in L1.
const TILE: usize = 32;

/// Writes the elements that `layout` names from `source` to `target`, in row-major order without gaps.
///
/// # Safety
///
/// `source` is valid for reads at every offset of `layout`, `target` for writes of as many elements; both are aligned for
/// `W`, and they do not overlap.
unsafe fn gather<W: Copy>(source: *const W, layout: &Layout, mut target: *mut W) {
    if layout.num_elements() == 0 {
        return;
    }
    let mut outer = layout.merged();
    let (columns, column_stride) = outer.pop_axis();
    let (rows, row_stride) = outer.pop_axis();
    let mut index = Sizes::from_elem(0, outer.rank());
    let mut offset = 0;
    loop {
        // SAFETY: by contract; rows, columns and the outer axes together are the elements of the layout, each once.
        unsafe {
            let plane = source.offset(offset);
            if column_stride == 1 {
                for row in 0..rows {
                    let run = plane.offset(row as isize * row_stride);
                    target.add(row * columns).copy_from_nonoverlapping(run, columns);
                }
            } else {
                for row_0 in (0..rows).step_by(TILE) {
                    for column_0 in (0..columns).step_by(TILE) {
                        for row in row_0..rows.min(row_0 + TILE) {
                            let run = plane.offset(row as isize * row_stride);
                            for column in column_0..columns.min(column_0 + TILE) {
                                let value = run.offset(column as isize * column_stride).read();
                                target.add(row * columns + column).write(value);
                            }
                        }
                    }
                }
            }
            target = target.add(rows * columns);
        }
        if !outer.advance(&mut index, &mut offset) {
            return;
        }
    }
}

impl Tensor {
    /// Writes all elements to `target` in row-major order.
    ///
    /// # Safety
    ///
    /// The tensor is on the host; `target` is valid for writes of `num_bytes` bytes, aligned for the dtype, and not part of
    /// this tensor's memory.
    pub(super) unsafe fn gather_to(&self, target: *mut u8) {
        let source = self.data_ptr();
        // SAFETY: tensors are aligned for their dtype, whose alignment is its size; the rest is by contract.
        unsafe {
            match self.element_size() {
                1 => gather(source, &self.layout, target),
                2 => gather(source.cast::<u16>(), &self.layout, target.cast::<u16>()),
                4 => gather(source.cast::<u32>(), &self.layout, target.cast::<u32>()),
                _ => gather(source.cast::<u64>(), &self.layout, target.cast::<u64>()),
            }
        }
    }

    /// The elements as a slice, in row-major order.
    ///
    /// # Errors
    ///
    /// [`DriverError::DTypeMismatch`], [`DriverError::NotContiguous`], [`DriverError::NotOnHost`].
    pub fn as_slice<T: Element>(&self) -> Result<&[T], DriverError> {
        self.require_dtype::<T>("as_slice")?;
        self.require_host("as_slice")?;
        self.require_contiguous("as_slice")?;
        match self.num_elements() {
            // Empty memory need not be aligned.
            0 => Ok(&[]),
            // SAFETY: the elements are initialized, aligned and valid, as in every tensor; while `self` is borrowed its
            // storage is shared with it, so no `&mut Tensor` can write to it.
            count => Ok(unsafe { std::slice::from_raw_parts(self.data_ptr().cast::<T>(), count) }),
        }
    }

    /// The elements as a slice to write to, in row-major order.
    ///
    /// # Errors
    ///
    /// [`DriverError::StorageShared`] while a clone or a view exists, [`DriverError::ReadOnly`] for static data and read-only
    /// maps ([`make_unique`](Tensor::make_unique) helps in both cases); [`DriverError::DTypeMismatch`],
    /// [`DriverError::NotContiguous`], [`DriverError::NotOnHost`].
    pub fn as_mut_slice<T: Element>(&mut self) -> Result<&mut [T], DriverError> {
        self.require_dtype::<T>("as_mut_slice")?;
        self.require_host("as_mut_slice")?;
        self.require_contiguous("as_mut_slice")?;
        let memory = self.writable("as_mut_slice")?;
        match self.num_elements() {
            0 => Ok(&mut []),
            // SAFETY: as in `as_slice`; the storage is writable and this is its only handle, mutably borrowed.
            count => Ok(unsafe { std::slice::from_raw_parts_mut(memory.cast::<T>(), count) }),
        }
    }

    /// The elements in row-major order, whatever the strides.
    ///
    /// # Errors
    ///
    /// [`DriverError::DTypeMismatch`], [`DriverError::NotOnHost`]; [`DriverError::OutOfMemory`] if the vector does not fit.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>, DriverError> {
        self.require_dtype::<T>("to_vec")?;
        self.require_host("to_vec")?;
        let mut values = Vec::<T>::new();
        let count = self.num_elements();
        values.try_reserve_exact(count).map_err(|_| DriverError::OutOfMemory {
            device: self.device().into(),
            requested: self.num_bytes(),
            in_use: self.device().stats().bytes_in_use,
        })?;
        // SAFETY: the vector has room for all elements, and they are written before the length is set.
        unsafe {
            self.gather_to(values.as_mut_ptr().cast());
            values.set_len(count);
        }
        Ok(values)
    }

    /// The elements in row-major order as a vector; without a copy if the tensor was made by
    /// [`from_vec`](Tensor::from_vec), is still the whole of it, and shares it with nobody.
    ///
    /// # Errors
    ///
    /// Those of [`to_vec`](Tensor::to_vec).
    pub fn into_vec<T: Element>(self) -> Result<Vec<T>, DriverError> {
        self.require_dtype::<T>("into_vec")?;
        if self.byte_offset != 0 || !self.is_contiguous() {
            return self.to_vec();
        }
        let Tensor { storage, dtype, layout, .. } = self;
        let count = layout.num_elements();
        let storage = match Arc::try_unwrap(storage).map(|storage| storage.into_vec::<T>(count)) {
            Ok(Ok(values)) => return Ok(values),
            Ok(Err(storage)) => Arc::new(storage),
            Err(shared) => shared,
        };
        Tensor { storage, byte_offset: 0, dtype, layout }.to_vec()
    }

    /// The elements in row-major order, whatever the strides.
    ///
    /// # Errors
    ///
    /// [`DriverError::DTypeMismatch`], [`DriverError::NotOnHost`].
    pub fn iter<T: Element>(&self) -> Result<ElementIter<'_, T>, DriverError> {
        self.require_dtype::<T>("iter")?;
        self.require_host("iter")?;
        let remaining = self.num_elements();
        let layout = if remaining == 0 { Layout::contiguous(&[0]) } else { self.layout.merged() };
        let index = Sizes::from_elem(0, layout.rank());
        Ok(ElementIter { first: self.data_ptr().cast(), offset: 0, index, layout, remaining, tensor: PhantomData })
    }

    /// The value of a tensor of rank 0.
    ///
    /// # Errors
    ///
    /// [`DriverError::RankMismatch`] for any other rank; [`DriverError::DTypeMismatch`], [`DriverError::NotOnHost`].
    pub fn item<T: Element>(&self) -> Result<T, DriverError> {
        if self.rank() != 0 {
            return Err(DriverError::RankMismatch { op: "item", expected: 0, shape: self.shape().to_vec() });
        }
        self.require_dtype::<T>("item")?;
        self.require_host("item")?;
        // SAFETY: the tensor has one element, initialized, aligned and valid, as in every tensor.
        Ok(unsafe { self.data_ptr().cast::<T>().read() })
    }

    /// A contiguous tensor with the same elements: a clone of this one if it is contiguous, else a copy.
    ///
    /// # Errors
    ///
    /// Those of [`copy`](Tensor::copy).
    pub fn contiguous(&self) -> Result<Tensor, DriverError> {
        if self.is_contiguous() { Ok(self.clone()) } else { self.copy() }
    }

    /// Makes this the only handle to writable memory: if the memory is shared or read-only, the elements are copied to new
    /// memory, contiguously, and the other handles keep the old.
    ///
    /// # Errors
    ///
    /// Those of [`copy`](Tensor::copy).
    pub fn make_unique(&mut self) -> Result<(), DriverError> {
        if self.writable("make_unique").is_err() {
            *self = self.copy()?;
        }
        Ok(())
    }

    pub(super) fn require_valid_bools(&self, op: &'static str) -> Result<(), DriverError> {
        self.require_host(op)?;
        let bytes = Tensor { dtype: DType::U8, ..self.clone() };
        match bytes.as_slice::<u8>()?.iter().enumerate().find(|&(_, &value)| value > 1) {
            Some((index, &value)) => Err(DriverError::InvalidBool { op, index, value }),
            None => Ok(()),
        }
    }
}

/// The elements of a tensor in row-major order; see [`Tensor::iter`].
#[derive(Clone, Debug)]
pub struct ElementIter<'a, T> {
    first: *const T,
    offset: isize,
    index: Sizes,
    layout: Layout,
    remaining: usize,
    tensor: PhantomData<&'a [T]>,
}

impl<T: Element> Iterator for ElementIter<'_, T> {
    type Item = T;

    #[inline]
    fn next(&mut self) -> Option<T> {
        self.remaining = self.remaining.checked_sub(1)?;
        // SAFETY: the offset of an element of the tensor, which is borrowed; as in `as_slice`.
        let value = unsafe { self.first.offset(self.offset).read() };
        self.layout.advance(&mut self.index, &mut self.offset);
        Some(value)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.remaining, Some(self.remaining))
    }
}

impl<T: Element> ExactSizeIterator for ElementIter<'_, T> {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::Device;
    use crate::driver::SliceIndex;

    static STATIC: [f32; 3] = [1.0, 2.0, 3.0];

    #[test]
    fn writing_needs_the_only_handle() {
        let mut x = Tensor::zeros(DType::I32, [4], &Device::cpu()).unwrap();
        x.as_mut_slice::<i32>().unwrap()[2] = 7;
        let view = x.narrow(0, 2, 1).unwrap();
        assert!(x.is_shared());
        assert!(matches!(x.as_mut_slice::<i32>(), Err(DriverError::StorageShared { handles: 2, .. })));
        assert!(x.data_ptr_mut().is_err());
        x.make_unique().unwrap();
        x.as_mut_slice::<i32>().unwrap()[2] = 8;
        assert_eq!(view.item_of_one::<i32>(), 7);
        drop(view);
        let address = x.data_ptr();
        x.make_unique().unwrap();
        assert_eq!(x.data_ptr(), address);
        assert_eq!(x.to_vec::<i32>().unwrap(), [0, 0, 8, 0]);
    }

    impl Tensor {
        fn item_of_one<T: Element>(&self) -> T {
            self.reshape([]).unwrap().item().unwrap()
        }
    }

    #[test]
    fn static_data_is_read_only_and_not_copied() {
        let mut x = Tensor::from_static(&STATIC, [3]).unwrap();
        assert_eq!(x.data_ptr(), STATIC.as_ptr().cast());
        assert!(matches!(x.as_mut_slice::<f32>(), Err(DriverError::ReadOnly { .. })));
        x.make_unique().unwrap();
        x.as_mut_slice::<f32>().unwrap()[0] = 5.0;
        assert_eq!((x.to_vec::<f32>().unwrap(), STATIC[0]), (vec![5.0, 2.0, 3.0], 1.0));
    }

    #[test]
    fn typed_access_is_checked() {
        let x = Tensor::arange(0i16, 6, 1).unwrap().reshape([2, 3]).unwrap();
        let error = x.as_slice::<f32>().unwrap_err().to_string();
        assert!(error.contains("the tensor is int16, but float32 was asked for"), "{error}");
        assert!(matches!(x.item::<i16>(), Err(DriverError::RankMismatch { expected: 0, .. })));
        let transposed = x.transpose(0, 1).unwrap();
        assert!(matches!(transposed.as_slice::<i16>(), Err(DriverError::NotContiguous { .. })));
        assert_eq!(transposed.to_vec::<i16>().unwrap(), [0, 3, 1, 4, 2, 5]);
        assert_eq!(transposed.iter::<i16>().unwrap().len(), 6);
        assert_eq!(Tensor::scalar(2.5f64).unwrap().item::<f64>().unwrap(), 2.5);
        assert!(Tensor::scalar(2.5f64).unwrap().item::<f32>().is_err());
    }

    #[test]
    fn copies_are_deep_and_contiguous() {
        let x = Tensor::arange(0u8, 6, 1).unwrap().reshape([2, 3]).unwrap();
        let view = x.slice(&[SliceIndex::REVERSED, SliceIndex::ALL.step_by(2)]).unwrap();
        let copy = view.copy().unwrap();
        assert!(copy.is_contiguous() && !copy.is_shared());
        assert_eq!(copy.as_slice::<u8>().unwrap(), [3, 5, 0, 2]);
        assert_eq!(x.contiguous().unwrap().data_ptr(), x.data_ptr());
        assert_eq!(x.to(&Device::cpu()).unwrap().data_ptr(), x.data_ptr());
    }

    /// Sizes around the tile of the copy, in both directions.
    #[test]
    fn transposed_copies_are_whole() {
        for (rows, columns) in [(1, 100), (31, 33), (32, 64), (65, 32), (100, 1)] {
            let count = rows * columns;
            let x = Tensor::arange(0, 2 * count as i32, 1).unwrap().reshape([2, rows, columns]).unwrap();
            let copy = x.transpose(1, 2).unwrap().copy().unwrap();
            for (place, &value) in copy.as_slice::<i32>().unwrap().iter().enumerate() {
                let (plane, rest) = (place / count, place % count);
                let expected = plane * count + rest % rows * columns + rest / rows;
                assert_eq!(value, expected as i32, "{rows} {columns}");
            }
        }
    }

    #[test]
    fn tensors_cross_threads() {
        fn check<T: Send + Sync>() {}
        check::<Tensor>();
        let x = Tensor::from_vec(vec![1u8, 2], [2]).unwrap();
        let y = x.clone();
        let sum = std::thread::spawn(move || y.iter::<u8>().unwrap().sum::<u8>()).join().unwrap();
        assert_eq!(sum, 3);
        assert!(!x.is_shared());
    }

    #[test]
    fn inplace_copies() {
        let x = Tensor::arange(0.0f32, 6.0, 1.0).unwrap().reshape([2, 3]).unwrap();
        let mut y = Tensor::zeros(DType::F32, [3, 2], &Device::cpu()).unwrap();
        y.inplace_copy_from(&x.transpose(0, 1).unwrap()).unwrap();
        assert_eq!(y.as_slice::<f32>().unwrap(), [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]);
        assert!(matches!(y.inplace_copy_from(&x), Err(DriverError::ShapeMismatch { .. })));
        let ints = Tensor::zeros(DType::I32, [3, 2], &Device::cpu()).unwrap();
        assert!(matches!(y.inplace_copy_from(&ints), Err(DriverError::DTypeMismatch { .. })));
        let view = y.clone();
        assert!(matches!(y.inplace_copy_from(&view), Err(DriverError::StorageShared { .. })));
    }

    #[test]
    fn into_vec_copies_what_is_not_a_whole_vector() {
        let x = Tensor::from_vec(vec![1u32, 2, 3, 4], [2, 2]).unwrap();
        assert_eq!(x.clone().into_vec::<u32>().unwrap(), [1, 2, 3, 4]);
        assert_eq!(x.select(0, 1).unwrap().into_vec::<u32>().unwrap(), [3, 4]);
        // The only handle, but to a part of the vector.
        let start = x.narrow(0, 0, 1).unwrap();
        drop(x);
        assert_eq!(start.into_vec::<u32>().unwrap(), [1, 2]);
        assert_eq!(Tensor::from_slice(&[5i8], []).unwrap().into_vec::<i8>().unwrap(), [5]);
        let bits = Tensor::from_vec(vec![1.0f32], [1]).unwrap().view(DType::U32, None).unwrap();
        assert_eq!(bits.into_vec::<u32>().unwrap(), [0x3f80_0000]);
    }
}
