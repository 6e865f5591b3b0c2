//! Copies of tensors: on their device, and from one device to another.

use super::{Layout, Tensor, UninitTensor};
use crate::driver::{Device, DeviceStream, DriverError};
use smallvec::SmallVec;

/// Copies elements of so many bytes between tensors of the same dims on one GPU: from strides to other strides.
///
/// # Safety
///
/// `from` is valid for reads and `to` for writes of the elements that dims and strides (in elements) describe, no element of
/// `to` is described twice, and none of `from` is among them.
type CopyStrided = unsafe fn(
    device: &Device,
    dims: &[i64],
    to: (*mut u8, &[i64]),
    from: (*const u8, &[i64]),
    element_size: usize,
    stream: &DeviceStream,
) -> Result<(), DriverError>;

/// How a GPU copies between strides: by a kernel, which is written above the driver, and registered when the program is
/// linked.
pub(crate) struct StridedCopy(pub CopyStrided);

inventory::collect!(StridedCopy);

impl Tensor {
    /// Copies all elements, in row-major order, to memory of the same device, on a stream of it. That waits for the tensor's
    /// stream, which waits for the copy, so that the tensor may be written or dropped then.
    ///
    /// # Safety
    ///
    /// `target` is valid for writes of `num_bytes` bytes, aligned for the dtype, and not part of this tensor's memory.
    unsafe fn copy_to(&self, target: *mut u8, stream: &DeviceStream) -> Result<(), DriverError> {
        stream.wait_for(&self.stream())?;
        // SAFETY: by contract.
        unsafe { self.copy_in_order(target, stream)? };
        self.stream().wait_for(stream)
    }

    /// # Safety
    ///
    /// As for [`copy_to`](Self::copy_to), of which this is the copy alone.
    unsafe fn copy_in_order(&self, target: *mut u8, stream: &DeviceStream) -> Result<(), DriverError> {
        let device = self.device();
        if self.is_host() {
            // SAFETY: by contract.
            unsafe { self.gather_to(target) };
            return Ok(());
        }
        if self.is_contiguous() {
            // SAFETY: by contract; a contiguous tensor has as many bytes.
            return unsafe { device.backend().copy(self.data_ptr(), target, self.num_bytes(), stream.handle()) };
        }
        let dims: SmallVec<[i64; 6]> = self.shape().iter().map(|&size| size as i64).collect();
        let own: SmallVec<[i64; 6]> = self.strides().iter().map(|&stride| stride as i64).collect();
        let dense: SmallVec<[i64; 6]> =
            Layout::contiguous(self.shape()).strides.iter().map(|&stride| stride as i64).collect();
        let Some(StridedCopy(copy)) = inventory::iter::<StridedCopy>().next() else {
            return Err(DriverError::NotAnAccelerator { op: "copy", device: device.into() });
        };
        // SAFETY: by contract; these are the elements of the tensor, and the same number of places.
        unsafe { copy(device, &dims, (target, &dense), (self.data_ptr(), &own), self.element_size(), stream) }
    }

    /// A contiguous tensor with the same elements in memory of its own, on the same device.
    ///
    /// # Errors
    ///
    /// [`DriverError::OutOfMemory`], [`DriverError::SizeOverflow`] (of a broadcast); when an accelerator fails.
    pub fn copy(&self) -> Result<Tensor, DriverError> {
        self.copy_on(&self.stream())
    }

    /// As [`copy`](Self::copy), made and used on a stream of the same device.
    pub(crate) fn copy_on(&self, stream: &DeviceStream) -> Result<Tensor, DriverError> {
        let mut copy = match self.is_host() {
            true => UninitTensor::for_op("copy", self.dtype, self.shape(), self.device())?,
            false => UninitTensor::on_stream("copy", self.dtype, self.shape(), stream)?,
        };
        // SAFETY: new memory for the same elements, all of which are written, with valid bools where they are bools.
        unsafe {
            self.copy_to(copy.as_mut_ptr(), stream)?;
            Ok(copy.assume_init())
        }
    }

    /// The same elements on `device`: a clone of this tensor if it is there, else a contiguous copy.
    ///
    /// A copy to the host is waited for, and so is everything that the tensor is computed from.
    ///
    /// ```
    /// # extern crate max_core as max;
    /// use max::driver::{Device, Tensor, scan_available_devices};
    ///
    /// let device = scan_available_devices()[0].load()?;
    /// let x = Tensor::from_slice(&[1.0f32, 2.0], [2])?.to(&device)?;
    /// assert_eq!(x.device(), &device);
    /// assert_eq!(x.to(&Device::cpu())?.to_vec::<f32>()?, [1.0, 2.0]);
    /// # Ok::<(), max::driver::DriverError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`DriverError::OutOfMemory`]; when an accelerator fails.
    pub fn to(&self, device: &Device) -> Result<Tensor, DriverError> {
        self.to_stream(&device.default_stream())
    }

    /// The same elements on the device of `stream`: a contiguous copy made and used on that stream, or, if the tensor is on
    /// that device, a clone of it, for which the stream waits.
    ///
    /// # Errors
    ///
    /// [`DriverError::OutOfMemory`]; when an accelerator fails.
    pub fn to_stream(&self, stream: &DeviceStream) -> Result<Tensor, DriverError> {
        if self.device() == stream.device() {
            stream.wait_for(&self.stream())?;
            return Ok(self.clone());
        }
        let mut copy = match stream.device().is_host() {
            true => UninitTensor::for_op("to", self.dtype, self.shape(), stream.device())?,
            false => UninitTensor::on_stream("to", self.dtype, self.shape(), stream)?,
        };
        // SAFETY: new memory of the same size on the device of the stream, all of which is written.
        unsafe {
            self.transfer_to(copy.as_mut_ptr(), stream)?;
            Ok(copy.assume_init())
        }
    }

    /// Copies all elements, in row-major order, to memory of another device, on the given stream of that one.
    ///
    /// # Safety
    ///
    /// `target` is valid for writes of `num_bytes` bytes on the device of `stream`, which is not this tensor's.
    unsafe fn transfer_to(&self, target: *mut u8, stream: &DeviceStream) -> Result<(), DriverError> {
        let source = self.contiguous()?;
        let (from, bytes, to) = (source.device(), source.num_bytes(), stream.device());
        // SAFETY: by contract; a contiguous tensor has as many bytes.
        unsafe {
            match (from.gpu(), to.gpu()) {
                (_, None) => from.backend().download(source.data_ptr(), target, bytes, source.stream().handle()),
                (None, Some(_)) => to.backend().upload(source.data_ptr(), target, bytes, stream.handle()),
                (Some(other), Some(gpu)) => {
                    stream.wait_for(&source.stream())?;
                    gpu.copy_from(other, source.data_ptr(), target, bytes, stream.handle())?;
                    // The source may be dropped now, and its memory reused.
                    source.stream().wait_for(stream)
                }
            }
        }
    }

    /// Overwrites the elements with those of `src`, which may have any strides and be on any device.
    ///
    /// # Errors
    ///
    /// [`DriverError::ShapeMismatch`], [`DriverError::DTypeMismatch`], and if this tensor cannot be written:
    /// [`DriverError::NotContiguous`], [`DriverError::StorageShared`], [`DriverError::ReadOnly`]; when an accelerator fails.
    pub fn inplace_copy_from(&mut self, src: &Tensor) -> Result<(), DriverError> {
        let op = "inplace_copy_from";
        if self.dtype != src.dtype {
            return Err(DriverError::DTypeMismatch { op, expected: self.dtype, actual: src.dtype });
        }
        if self.shape() != src.shape() {
            return Err(DriverError::ShapeMismatch { op, lhs: self.shape().to_vec(), rhs: src.shape().to_vec() });
        }
        self.require_contiguous(op)?;
        let target = self.writable(op)?;
        let stream = self.stream();
        // SAFETY: `target` is the memory of a contiguous tensor with the shape and dtype of `src`; as nobody shares it,
        // `src` lies elsewhere.
        unsafe {
            if self.device() != src.device() {
                return src.transfer_to(target, &stream);
            }
            src.copy_to(target, &stream)
        }
    }
}
