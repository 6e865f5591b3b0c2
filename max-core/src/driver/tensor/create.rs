//! Making tensors: from values, from memory that exists, and as memory to be filled.

use super::Tensor;
use super::layout::{Layout, byte_count};
use super::storage::Storage;
use crate::driver::{Device, DeviceStream, DriverError};
use crate::dtype::{DType, Element};
use std::any::Any;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

/// A new, contiguous tensor whose memory has not been written. It becomes a [`Tensor`] when its writer vouches for it.
pub struct UninitTensor {
    tensor: Tensor,
    bytes: usize,
    /// Whether every byte is 0 so far.
    is_zero: bool,
}

impl fmt::Debug for UninitTensor {
    /// Prints what the tensor will be, not its memory.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UninitTensor({} {:?} on {})", self.tensor.dtype(), self.tensor.shape(), self.tensor.device())
    }
}

impl UninitTensor {
    /// Memory for a tensor; contents unspecified.
    ///
    /// # Errors
    ///
    /// [`DriverError::OutOfMemory`], [`DriverError::SizeOverflow`].
    pub fn new(dtype: DType, shape: &[usize], device: &Device) -> Result<UninitTensor, DriverError> {
        UninitTensor::for_op("new tensor", dtype, shape, device)
    }

    fn over(storage: Storage, dtype: DType, shape: &[usize], bytes: usize) -> UninitTensor {
        let is_zero = storage.began_zero();
        UninitTensor { tensor: Tensor::over(storage, dtype, shape), bytes, is_zero }
    }

    pub(super) fn for_op(
        op: &'static str,
        dtype: DType,
        shape: &[usize],
        device: &Device,
    ) -> Result<UninitTensor, DriverError> {
        let (_, bytes) = byte_count(op, dtype, shape)?;
        let storage = Storage::allocate(bytes, device)?;
        Ok(UninitTensor::over(storage, dtype, shape, bytes))
    }

    /// As [`new`](UninitTensor::new), on a stream of an accelerator.
    pub(super) fn on_stream(
        op: &'static str,
        dtype: DType,
        shape: &[usize],
        stream: &DeviceStream,
    ) -> Result<UninitTensor, DriverError> {
        let (_, bytes) = byte_count(op, dtype, shape)?;
        let mut storage = Storage::allocate(bytes, stream.device())?;
        storage.bind(stream)?;
        Ok(UninitTensor::over(storage, dtype, shape, bytes))
    }

    /// A host tensor in page-locked memory, for fast transfers from and to `device`; contents unspecified. On a machine
    /// where `device` is the host, plain memory.
    ///
    /// # Errors
    ///
    /// [`DriverError::OutOfMemory`], [`DriverError::SizeOverflow`].
    pub fn pinned(dtype: DType, shape: &[usize], device: &Device) -> Result<UninitTensor, DriverError> {
        let (_, bytes) = byte_count("new tensor", dtype, shape)?;
        let storage = Storage::pinned(bytes, device)?;
        Ok(UninitTensor::over(storage, dtype, shape, bytes))
    }

    /// The first byte, aligned to 64 bytes; valid for writes of [`num_bytes`](UninitTensor::num_bytes) bytes. On another device
    /// than the host it is an address of that device.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.is_zero = false;
        self.tensor.storage.as_ptr()
    }

    /// The size in bytes.
    pub fn num_bytes(&self) -> usize {
        self.bytes
    }

    /// The finished tensor.
    ///
    /// # Safety
    ///
    /// Every byte has been written and, if the dtype is `bool`, is 0 or 1.
    pub unsafe fn assume_init(self) -> Tensor {
        self.tensor
    }

    /// The finished tensor, with every byte 0, which is the value 0 of every dtype.
    ///
    /// # Errors
    ///
    /// When an accelerator fails.
    pub fn zeroed(mut self) -> Result<Tensor, DriverError> {
        if !self.is_zero {
            let (memory, stream) = (self.as_mut_ptr(), self.tensor.stream());
            // SAFETY: the memory is ours and has that size.
            unsafe { self.tensor.device().backend().fill(memory, 0, self.bytes, stream.handle())? };
        }
        // SAFETY: all of it is zero, which is a valid bool.
        Ok(unsafe { self.assume_init() })
    }
}

fn check_count<T: Element>(op: &'static str, actual: usize, shape: &[usize]) -> Result<(), DriverError> {
    let (expected, _) = byte_count(op, T::DTYPE, shape)?;
    if expected == actual {
        Ok(())
    } else {
        Err(DriverError::ElementCount { op, shape: shape.to_vec(), expected, actual })
    }
}

impl Tensor {
    /// A tensor of zeros.
    ///
    /// # Errors
    ///
    /// [`DriverError::OutOfMemory`], [`DriverError::SizeOverflow`].
    pub fn zeros(dtype: DType, shape: impl AsRef<[usize]>, device: &Device) -> Result<Tensor, DriverError> {
        UninitTensor::for_op("zeros", dtype, shape.as_ref(), device)?.zeroed()
    }

    /// A host tensor of zeros in page-locked memory, which an accelerator reads and writes faster.
    ///
    /// ```
    /// # extern crate max_core as max;
    /// use max::driver::{Device, Tensor, scan_available_devices};
    /// use max::dtype::DType;
    ///
    /// let device = scan_available_devices()[0].load()?;
    /// let staging = Tensor::zeros_pinned(DType::F32, [1024], &device)?;
    /// assert!(staging.is_host() && staging.pinned() == !device.is_host());
    /// # Ok::<(), max::driver::DriverError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`DriverError::OutOfMemory`], [`DriverError::SizeOverflow`].
    pub fn zeros_pinned(dtype: DType, shape: impl AsRef<[usize]>, device: &Device) -> Result<Tensor, DriverError> {
        UninitTensor::pinned(dtype, shape.as_ref(), device)?.zeroed()
    }

    /// A host tensor with a copy of `data`, in row-major order.
    ///
    /// # Errors
    ///
    /// [`DriverError::ElementCount`] if the shape does not have `data.len()` elements; [`DriverError::OutOfMemory`].
    pub fn from_slice<T: Element>(data: &[T], shape: impl AsRef<[usize]>) -> Result<Tensor, DriverError> {
        let shape = shape.as_ref();
        check_count::<T>("from_slice", data.len(), shape)?;
        let mut tensor = UninitTensor::for_op("from_slice", T::DTYPE, shape, &Device::cpu())?;
        // SAFETY: new memory of the size of `data`, all of which is written with valid elements.
        unsafe {
            let memory = tensor.as_mut_ptr().cast::<T>();
            memory.copy_from_nonoverlapping(data.as_ptr(), data.len());
            Ok(tensor.assume_init())
        }
    }

    /// A host tensor that takes over the memory of `data`, without a copy; in row-major order.
    ///
    /// The memory is aligned as the vector was, which is enough for everything; [`from_slice`](Tensor::from_slice) and
    /// [`copy`](Tensor::copy) give 64 bytes. [`into_vec`](Tensor::into_vec) is the way back.
    ///
    /// # Errors
    ///
    /// [`DriverError::ElementCount`] if the shape does not have `data.len()` elements.
    pub fn from_vec<T: Element>(data: Vec<T>, shape: impl AsRef<[usize]>) -> Result<Tensor, DriverError> {
        let shape = shape.as_ref();
        check_count::<T>("from_vec", data.len(), shape)?;
        Ok(Tensor::over(Storage::from_vec(data), T::DTYPE, shape))
    }

    /// A read-only host tensor over static data, without a copy; in row-major order.
    ///
    /// # Errors
    ///
    /// [`DriverError::ElementCount`] if the shape does not have `data.len()` elements.
    pub fn from_static<T: Element>(data: &'static [T], shape: impl AsRef<[usize]>) -> Result<Tensor, DriverError> {
        let shape = shape.as_ref();
        check_count::<T>("from_static", data.len(), shape)?;
        Ok(Tensor::over(Storage::from_static(data), T::DTYPE, shape))
    }

    /// A tensor over memory of somebody else's, without a copy: it lives as long as `owner`, which is dropped with the last
    /// handle, on whatever thread that is. Without `writable` nothing is written to it.
    ///
    /// # Safety
    ///
    /// `memory` is in the memory of `device`, and aligned for the dtype. As long as `owner` lives, every element that shape
    /// and strides (in elements, none negative) reach is initialized, of a `bool` 0 or 1; nobody writes to it, and with
    /// `writable`, nobody else reads it.
    ///
    /// # Errors
    ///
    /// [`DriverError::SizeOverflow`]; [`DriverError::NotContiguous`] when there are not as many strides as axes, or one is
    /// negative.
    pub unsafe fn from_foreign(
        memory: NonNull<u8>,
        dtype: DType,
        (shape, strides): (&[usize], &[isize]),
        device: &Device,
        owner: Box<dyn Any + Send + Sync>,
        writable: bool,
    ) -> Result<Tensor, DriverError> {
        byte_count("from_foreign", dtype, shape)?;
        if shape.len() != strides.len() || strides.iter().any(|&stride| stride < 0) {
            let (shape, strides) = (shape.to_vec(), strides.to_vec());
            return Err(DriverError::NotContiguous { op: "from_foreign", shape, strides });
        }
        let storage = Storage::from_foreign(memory, device, owner, writable);
        let layout = Layout { shape: shape.into(), strides: strides.into() };
        Ok(Tensor { storage: Arc::new(storage), byte_offset: 0, dtype, layout })
    }

    /// A host tensor of rank 0.
    ///
    /// # Errors
    ///
    /// [`DriverError::OutOfMemory`].
    pub fn scalar<T: Element>(value: T) -> Result<Tensor, DriverError> {
        Tensor::from_slice(&[value], [])
    }

    /// A host tensor whose element number `i`, in row-major order, is `value(i)`.
    fn from_fn<T: Element>(
        op: &'static str,
        shape: &[usize],
        value: impl Fn(usize) -> T,
    ) -> Result<Tensor, DriverError> {
        let mut tensor = UninitTensor::for_op(op, T::DTYPE, shape, &Device::cpu())?;
        let memory = tensor.as_mut_ptr().cast::<T>();
        let count = tensor.num_bytes() / size_of::<T>();
        // SAFETY: new memory for `count` elements, aligned to 64 bytes, all of which are written.
        unsafe {
            (0..count).for_each(|i| memory.add(i).write(value(i)));
            Ok(tensor.assume_init())
        }
    }

    /// A host tensor with `value` everywhere.
    ///
    /// # Errors
    ///
    /// [`DriverError::OutOfMemory`], [`DriverError::SizeOverflow`].
    pub fn full<T: Element>(value: T, shape: impl AsRef<[usize]>) -> Result<Tensor, DriverError> {
        Tensor::from_fn("full", shape.as_ref(), |_| value)
    }

    /// The values `start`, `start + step`, … before `stop`, on the host: exact for integers, else computed in `f64`.
    ///
    /// # Errors
    ///
    /// [`DriverError::InvalidStep`] if the step is 0 or a bound is not a number; [`DriverError::OutOfMemory`],
    /// [`DriverError::SizeOverflow`].
    pub fn arange<T: Element>(start: T, stop: T, step: T) -> Result<Tensor, DriverError> {
        if let (Some(first), Some(stop), Some(step @ (1.. | ..=-1))) = (wide(start), wide(stop), wide(step)) {
            // Rounded up; neither the difference nor the step is close to the limits of 128 bits.
            let count = ((stop - first + step - step.signum()) / step).max(0);
            let shape = [usize::try_from(count).unwrap_or(usize::MAX)];
            let value = |i: usize| first + i as i128 * step;
            return match T::DTYPE {
                DType::U64 => Tensor::from_fn("arange", &shape, |i| value(i) as u64),
                _ => Tensor::from_fn("arange", &shape, |i| value(i) as i64),
            };
        }
        let (start, stop, step) = (start.to_f64(), stop.to_f64(), step.to_f64());
        let count = ((stop - start) / step).ceil().max(0.0);
        if step == 0.0 || (stop - start).is_nan() || step.is_nan() {
            return Err(DriverError::InvalidStep { start, stop, step });
        }
        // The cast saturates, and a saturated count is then too large a size.
        Tensor::from_fn("arange", &[count as usize], |i| T::from_f64(start + i as f64 * step))
    }
}

/// The value of an integer that `f64` may not hold.
fn wide<T: Element>(value: T) -> Option<i128> {
    let value: &dyn Any = &value;
    let signed = value.downcast_ref::<i64>().map(|v| i128::from(*v));
    signed.or_else(|| value.downcast_ref::<u64>().map(|v| i128::from(*v)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dispatch;
    use crate::dtype::f16;

    #[test]
    fn zeros_of_every_dtype() {
        for dtype in DType::ALL {
            for shape in [vec![], vec![0], vec![3, 5], vec![2, 0, 4]] {
                // The memory of the zeros is then recycled from a tensor of ones.
                dispatch!(dtype, T => drop(Tensor::full(<T as Element>::ONE, &shape).unwrap()));
                let tensor = Tensor::zeros(dtype, &shape, &Device::cpu()).unwrap();
                assert_eq!((tensor.dtype(), tensor.shape()), (dtype, &shape[..]));
                assert_eq!(tensor.data_ptr() as usize % 64, 0);
                dispatch!(dtype, T => {
                    assert!(tensor.to_vec::<T>().unwrap().iter().all(|&x| x == T::ZERO));
                });
            }
        }
    }

    #[test]
    fn counts_are_checked() {
        let error = Tensor::from_slice(&[1, 2, 3], [2, 2]).unwrap_err().to_string();
        assert_eq!(error, "from_slice: 3 elements do not fill shape [2, 2], which has 4");
        assert!(matches!(
            Tensor::from_vec(vec![0u8; 2], []),
            Err(DriverError::ElementCount { expected: 1, actual: 2, .. })
        ));
        assert!(Tensor::from_vec(Vec::<f32>::new(), [0, usize::MAX, 7]).is_err());
        assert!(Tensor::from_static(&[1u8], [2]).is_err());
    }

    #[test]
    fn impossible_sizes_are_errors() {
        let host = Device::cpu();
        for shape in [[usize::MAX, 2], [1 << 40, 1 << 40], [isize::MAX as usize, 1]] {
            let result = Tensor::zeros(DType::F32, shape, &host);
            assert!(matches!(result, Err(DriverError::SizeOverflow { .. })), "{shape:?}");
        }
        assert!(matches!(Tensor::zeros(DType::U8, [1 << 61], &host), Err(DriverError::OutOfMemory { .. })));
        assert!(Tensor::arange(0.0, 1e300, 1.0).is_err());
    }

    #[test]
    fn vectors_are_taken_over_and_given_back() {
        let data = vec![1.5f32, 2.5];
        let address = data.as_ptr();
        let tensor = Tensor::from_vec(data, [2, 1]).unwrap();
        assert_eq!(tensor.data_ptr(), address.cast());
        let data = tensor.into_vec::<f32>().unwrap();
        assert_eq!((data.as_ptr(), &data[..]), (address, &[1.5, 2.5][..]));
    }

    #[test]
    fn arange_counts_like_numpy() {
        let ints = |start: i64, stop, step| Tensor::arange(start, stop, step).map(|t| t.to_vec::<i64>().unwrap());
        assert_eq!(ints(0, 5, 2).unwrap(), [0, 2, 4]);
        assert_eq!(ints(5, 0, -2).unwrap(), [5, 3, 1]);
        assert_eq!(ints(5, 0, 2).unwrap(), [0; 0]);
        assert!(matches!(ints(0, 5, 0), Err(DriverError::InvalidStep { .. })));
        assert!(Tensor::arange(0.0, f64::NAN, 1.0).is_err());
        let beyond = (1i64 << 53) + 1;
        assert_eq!(ints(beyond, beyond + 3, 1).unwrap(), [beyond, beyond + 1, beyond + 2]);
        assert_eq!(ints(i64::MAX - 2, i64::MAX, 1).unwrap(), [i64::MAX - 2, i64::MAX - 1]);
        assert_eq!(ints(i64::MAX, i64::MIN, i64::MIN).unwrap(), [i64::MAX, -1]);
        assert_eq!(ints(0, -5, -2).unwrap(), [0, -2, -4]);
        assert_eq!(Tensor::arange(u64::MAX - 1, u64::MAX, 1).unwrap().to_vec::<u64>().unwrap(), [u64::MAX - 1]);
        assert!(matches!(ints(i64::MIN, i64::MAX, 1), Err(DriverError::SizeOverflow { .. })));
        assert_eq!(Tensor::arange(f16::ZERO, f16::ONE, f16::from_f32(0.25)).unwrap().shape(), [4]);
    }
}
