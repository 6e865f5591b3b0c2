//! [`Tensor`]: an array of one dtype in the memory of a device. Its creation, its views, access to its data, its layout and
//! storage and so on are in the files beside this one.

#[cfg(feature = "ndarray")]
mod arrays;
mod create;
mod data;
mod display;
mod layout;
mod mmap;
mod storage;
mod transfer;
#[cfg(test)]
mod view_model;
mod views;

pub use create::UninitTensor;
pub use data::ElementIter;
pub use mmap::MapMode;
pub(crate) use transfer::StridedCopy;

use self::layout::Layout;
use self::storage::Storage;
use super::{Device, DeviceStream, DriverError};
use crate::dtype::{DType, Element};
use std::sync::Arc;

/// An array of elements of one dtype in the memory of a device.
///
/// A clone and a view share the memory of the tensor they come from; nothing is copied. Memory that is shared cannot be
/// written: see the [module](super) for the rule and its reasons. Axes and indices that are signed count from the end
/// if negative, as in numpy.
///
/// ```
/// # extern crate max_core as max;
/// use max::driver::{SliceIndex, Tensor};
///
/// let x = Tensor::arange(0, 12, 1)?.reshape([3, 4])?;
/// let part = x.slice(&[SliceIndex::REVERSED, (1..3).into()])?;
/// assert_eq!(part.shape(), [3, 2]);
/// assert_eq!(part.strides(), [-4, 1]);
/// assert_eq!(part.to_vec::<i32>()?, [9, 10, 5, 6, 1, 2]);
/// # Ok::<(), max::driver::DriverError>(())
/// ```
#[derive(Clone)]
pub struct Tensor {
    storage: Arc<Storage>,
    /// Where the element with all indices 0 begins.
    byte_offset: usize,
    dtype: DType,
    layout: Layout,
}

impl Tensor {
    /// A contiguous tensor at the start of `storage`, which must be large enough, aligned for the dtype, initialized if the
    /// tensor is read, and hold only 0 and 1 if the dtype is `bool`.
    fn over(storage: Storage, dtype: DType, shape: &[usize]) -> Tensor {
        Tensor { storage: Arc::new(storage), byte_offset: 0, dtype, layout: Layout::contiguous(shape) }
    }

    /// The dtype of the elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The size of each axis.
    pub fn shape(&self) -> &[usize] {
        &self.layout.shape
    }

    /// The distance in memory between neighbours along each axis, in elements.
    pub fn strides(&self) -> &[isize] {
        &self.layout.strides
    }

    /// The number of axes.
    pub fn rank(&self) -> usize {
        self.layout.rank()
    }

    /// The number of elements; 1 for rank 0.
    pub fn num_elements(&self) -> usize {
        self.layout.num_elements()
    }

    /// The size of one element in bytes.
    pub fn element_size(&self) -> usize {
        self.dtype.size_in_bytes()
    }

    /// The size of all elements in bytes.
    pub fn num_bytes(&self) -> usize {
        self.num_elements() * self.element_size()
    }

    /// The device whose memory holds the tensor.
    pub fn device(&self) -> &Device {
        self.storage.device()
    }

    /// The stream that the tensor is bound to: the default stream of its device, unless it was made for another one.
    pub fn stream(&self) -> DeviceStream {
        self.storage.stream()
    }

    /// Whether the tensor is in the host's memory.
    pub fn is_host(&self) -> bool {
        self.device().is_host()
    }

    /// Whether the memory is page-locked, which only memory for an accelerator's transfers is; see
    /// [`Tensor::zeros_pinned`].
    pub fn pinned(&self) -> bool {
        self.storage.is_pinned()
    }

    /// Whether the elements lie in row-major order without gaps, as buffers of a graph must. A tensor with negative
    /// strides is not contiguous; one without elements is.
    pub fn is_contiguous(&self) -> bool {
        self.layout.is_contiguous()
    }

    /// Whether another handle, a clone or a view, shares the memory of this one, so that it cannot be written.
    pub fn is_shared(&self) -> bool {
        Arc::strong_count(&self.storage) > 1
    }

    /// Gives the memory of a contiguous tensor over a read-only map back to the system; who reads it again, reads the file again.
    pub(crate) fn release_pages(&self) {
        if self.is_contiguous() {
            self.storage.release_pages(self.byte_offset, self.num_bytes());
        }
    }

    /// Whether its memory is that of a file that is only read.
    pub(crate) fn is_mapped(&self) -> bool {
        self.storage.is_mapped()
    }

    /// The first byte of the element with all indices 0. Valid for reads of [`num_bytes`](Tensor::num_bytes) bytes if the
    /// tensor is contiguous, as long as this handle is borrowed; on another device it is an address of that device.
    #[doc(hidden)]
    pub fn data_ptr(&self) -> *const u8 {
        // Wrapping, since the memory of another device is nothing that Rust knows of.
        self.storage.as_ptr().wrapping_add(self.byte_offset)
    }

    /// As [`data_ptr`](Tensor::data_ptr), for reads and writes as long as this handle is mutably borrowed. What is written
    /// to a `bool` tensor must be 0 or 1.
    ///
    /// # Errors
    ///
    /// [`DriverError::StorageShared`] while another handle exists, [`DriverError::ReadOnly`] for static data and read-only maps.
    #[doc(hidden)]
    pub fn data_ptr_mut(&mut self) -> Result<*mut u8, DriverError> {
        self.writable("data_ptr_mut")
    }

    fn writable(&mut self, op: &'static str) -> Result<*mut u8, DriverError> {
        let offset = self.byte_offset;
        match Arc::get_mut(&mut self.storage) {
            Some(storage) if storage.is_writable() => Ok(storage.as_ptr().wrapping_add(offset)),
            Some(_) => Err(DriverError::ReadOnly { op }),
            None => Err(DriverError::StorageShared { op, handles: Arc::strong_count(&self.storage) }),
        }
    }

    fn require_host(&self, op: &'static str) -> Result<(), DriverError> {
        if self.is_host() { Ok(()) } else { Err(DriverError::NotOnHost { op, device: self.device().into() }) }
    }

    fn require_dtype<T: Element>(&self, op: &'static str) -> Result<(), DriverError> {
        if self.dtype == T::DTYPE {
            Ok(())
        } else {
            Err(DriverError::DTypeMismatch { op, expected: T::DTYPE, actual: self.dtype })
        }
    }

    fn require_contiguous(&self, op: &'static str) -> Result<(), DriverError> {
        if self.is_contiguous() {
            Ok(())
        } else {
            let (shape, strides) = (self.shape().to_vec(), self.strides().to_vec());
            Err(DriverError::NotContiguous { op, shape, strides })
        }
    }
}
