//! DLPack both ways: tensors of NumPy, PyTorch and others without a copy, through C or a capsule of Python's.
//!
//! [`from_dlpack`] takes over a managed tensor; [`to_dlpack`] hands one out. The structures are those of DLPack 1.0, whose
//! versioned form says whether memory may be written.

use std::ffi::c_void;
use std::ptr::{self, NonNull};

use max_core::driver::{self, Device, DeviceRef};
use max_core::dtype::DType;
use max_core::graph::GraphError;

use crate::Result;
use crate::tensor::{Tensor, device};

/// The version of the structures below: 1.0.
const VERSION: DLPackVersion = DLPackVersion { major: 1, minor: 0 };
/// The flag of memory that must not be written.
const READ_ONLY: u64 = 1;

/// A version of DLPack; another major one has another layout.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct DLPackVersion {
    /// Changes the layout.
    pub major: u32,
    /// Adds device types and dtypes.
    pub minor: u32,
}

/// Where memory is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct DLDevice {
    /// 1 for the host, 2 for CUDA, 3 for the host's page-locked memory.
    pub device_type: i32,
    /// The number among the devices of that type.
    pub device_id: i32,
}

/// A dtype: its kind, its bits, and how many make a vector.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct DLDataType {
    /// 0 for signed integers, 1 for unsigned ones, 2 for floats, 4 for `bfloat16`, 6 for `bool`.
    pub code: u8,
    /// The bits of an element.
    pub bits: u8,
    /// 1: vectors are not taken.
    pub lanes: u16,
}

/// A tensor that somebody owns.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct DLTensor {
    /// The memory; the first element is `byte_offset` bytes behind it.
    pub data: *mut c_void,
    /// Where it is.
    pub device: DLDevice,
    /// The number of axes.
    pub ndim: i32,
    /// The dtype.
    pub dtype: DLDataType,
    /// The size of each axis.
    pub shape: *mut i64,
    /// The stride of each axis in elements; null for row-major order.
    pub strides: *mut i64,
    /// Where the first element is.
    pub byte_offset: u64,
}

/// A tensor with the function that frees it.
#[derive(Debug)]
#[repr(C)]
pub struct DLManagedTensorVersioned {
    /// The version of this structure.
    pub version: DLPackVersion,
    /// What the owner needs.
    pub manager_ctx: *mut c_void,
    /// Frees it, itself included; null where nothing is to be done.
    pub deleter: Option<unsafe extern "C" fn(*mut DLManagedTensorVersioned)>,
    /// Bit 0: the memory must not be written. Bit 1: it is a copy.
    pub flags: u64,
    /// The tensor.
    pub dl_tensor: DLTensor,
}

/// The dtypes that DLPack has a code for.
const DTYPES: [(DType, u8); 13] = [
    (DType::I8, 0),
    (DType::I16, 0),
    (DType::I32, 0),
    (DType::I64, 0),
    (DType::U8, 1),
    (DType::U16, 1),
    (DType::U32, 1),
    (DType::U64, 1),
    (DType::F16, 2),
    (DType::F32, 2),
    (DType::F64, 2),
    (DType::BF16, 4),
    (DType::Bool, 6),
];

/// A managed tensor that is freed when it is dropped.
struct Owned(NonNull<DLManagedTensorVersioned>);

// SAFETY: DLPack says that a managed tensor may be freed on any thread; its memory is read through the driver's rules alone.
unsafe impl Send for Owned {}
// SAFETY: as above: nothing is changed through it.
unsafe impl Sync for Owned {}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: the owner's promise to `from_dlpack`; this is the one time that it is freed.
        unsafe {
            if let Some(deleter) = self.0.as_ref().deleter {
                deleter(self.0.as_ptr());
            }
        }
    }
}

/// Takes over a tensor of another framework, without a copy: its deleter runs with the last handle, on whatever thread that is.
///
/// The memory must lie in row-major order or have positive strides; the result is never written, since other owners may read it:
/// what changes in place copies first.
///
/// # Safety
///
/// `managed` is null or points to a managed tensor of its version, which nobody else frees. As long as it is not freed, shape and strides
/// are arrays of `ndim` numbers, or null; the elements that they reach are initialized, lie on the device that is named, of a `bool` are
/// 0 or 1, and are not written.
///
/// # Errors
/// When `managed`, the shape or, of a tensor with elements, the memory is null; for another major version, a device that this machine
/// does not have, a dtype without a counterpart, vectors; for a negative or too large size, a negative stride, memory that is not aligned for the
/// dtype. The deleter has run then.
#[track_caller]
pub unsafe fn from_dlpack(managed: *mut DLManagedTensorVersioned) -> Result<Tensor> {
    let refuse = |argument, value: String, expected: &'static str| {
        Err(GraphError::argument("from_dlpack", argument, value, expected))
    };
    let Some(managed) = NonNull::new(managed) else {
        return refuse("managed", "null".to_owned(), "a managed tensor");
    };
    // SAFETY: by contract; the version is the first field in every version.
    let version = unsafe { managed.cast::<DLPackVersion>().read() };
    if version.major != VERSION.major {
        // What frees it lies elsewhere in another version.
        return refuse("version", format!("{}.{}", version.major, version.minor), "1.x: ask for that version");
    }
    let owner = Owned(managed);
    // SAFETY: by contract.
    let tensor = unsafe { managed.as_ref() }.dl_tensor;
    let of = match tensor.device {
        DLDevice { device_type: 1 | 3, .. } => DeviceRef::CPU,
        DLDevice { device_type: 2, device_id } => match u32::try_from(device_id) {
            Ok(id) => DeviceRef::gpu(id),
            Err(_) => return refuse("device_id", device_id.to_string(), "not negative"),
        },
        DLDevice { device_type, .. } => {
            return refuse("device_type", device_type.to_string(), "1 (the host), 2 (CUDA) or 3 (page-locked)");
        }
    };
    let DLDataType { code, bits, lanes } = tensor.dtype;
    let known = |(dtype, known): &(DType, u8)| *known == code && dtype.size_in_bytes() * 8 == usize::from(bits);
    let dtype = match DTYPES.iter().find(|entry| known(entry)) {
        Some((dtype, _)) if lanes == 1 => *dtype,
        Some(_) | None => {
            return refuse("dtype", format!("code {code}, {bits} bits, {lanes} lanes"), "a dtype of max, of one lane");
        }
    };
    let Ok(rank) = usize::try_from(tensor.ndim) else {
        return refuse("ndim", tensor.ndim.to_string(), "not negative");
    };
    if rank > 0 && tensor.shape.is_null() {
        return refuse("shape", "null".to_owned(), "an array of sizes");
    }
    let list = |numbers: *const i64| match rank {
        0 => &[][..],
        // SAFETY: by contract, and not null, as is checked before each use.
        rank => unsafe { std::slice::from_raw_parts(numbers, rank) },
    };
    let Ok(shape) = list(tensor.shape).iter().map(|size| usize::try_from(*size)).collect::<Result<Vec<_>, _>>() else {
        return refuse("shape", format!("{:?}", list(tensor.shape)), "sizes that are not negative");
    };
    let is_empty = shape.contains(&0);
    let strides: Vec<isize> = if tensor.strides.is_null() {
        let mut stride = 1isize;
        let mut strides: Vec<isize> = shape
            .iter()
            .rev()
            .map(|size| {
                let this = stride;
                stride = stride.saturating_mul(isize::try_from(*size).unwrap_or(isize::MAX).max(1));
                this
            })
            .collect();
        strides.reverse();
        strides
    } else {
        let strides = list(tensor.strides);
        let whole: Option<Vec<isize>> =
            strides.iter().map(|stride| isize::try_from(*stride).ok().filter(|stride| *stride >= 0)).collect();
        match whole {
            Some(strides) => strides,
            None => {
                return refuse(
                    "strides",
                    format!("{strides:?}"),
                    "strides that are not negative: copy the tensor first",
                );
            }
        }
    };
    let size = dtype.size_in_bytes();
    // The last element that shape and strides reach has to have an address.
    let last = shape
        .iter()
        .zip(&strides)
        .try_fold(0usize, |at, (size, stride)| at.checked_add(size.saturating_sub(1).checked_mul(*stride as usize)?));
    let reach =
        last.and_then(|last| last.checked_add(1)?.checked_mul(size)).filter(|bytes| *bytes <= isize::MAX as usize);
    let Some(_) = reach else {
        return refuse("shape", format!("{shape:?} with strides {strides:?}"), "elements within 2^63 bytes");
    };
    let memory = (tensor.data as *mut u8).wrapping_add(tensor.byte_offset as usize);
    let memory = match NonNull::new(memory) {
        Some(memory) if !tensor.data.is_null() => memory,
        _ if is_empty => NonNull::dangling(),
        _ => return refuse("data", "null".to_owned(), "the address of the elements"),
    };
    if !is_empty && !(memory.as_ptr() as usize).is_multiple_of(size) {
        return refuse("data", format!("{memory:?}"), "aligned for the dtype: copy the tensor first");
    }
    let on: Device = device(of)?;
    // SAFETY: by contract, and what could be wrong with it is checked above. Of a tensor without elements nothing is read.
    let tensor =
        unsafe { driver::Tensor::from_foreign(memory, dtype, (&shape, &strides), &on, Box::new(owner), false) };
    Ok(tensor?.into())
}

/// What a handed out tensor keeps.
struct Lent {
    managed: DLManagedTensorVersioned,
    _tensor: driver::Tensor,
    _shape: Vec<i64>,
    _strides: Vec<i64>,
}

unsafe extern "C" fn delete(managed: *mut DLManagedTensorVersioned) {
    if managed.is_null() {
        return;
    }
    // SAFETY: made by `to_dlpack`, whose users free it once.
    drop(unsafe { Box::from_raw((*managed).manager_ctx.cast::<Lent>()) });
}

/// A tensor for another framework, without a copy: it is computed, if it has no value yet, and its memory lives until the deleter of
/// what is returned runs. The memory is marked as not to be written, since it may be shared.
///
/// Who takes it calls its deleter once, as `from_dlpack` does, and what a capsule of Python's does for those who do not.
///
/// ```
/// # extern crate max_nn as max;
/// # max_kernels::link();
/// use max::{dlpack, tensor::Tensor};
///
/// let x = Tensor::arange(0, 6, 1)?.reshape([2, 3])?;
/// // SAFETY: just made, and taken once.
/// let y = unsafe { dlpack::from_dlpack(dlpack::to_dlpack(&x)?) }?;
/// assert_eq!(y.to_string(), x.to_string());
/// # Ok::<(), max::Error>(())
/// ```
///
/// # Errors
/// When it cannot be computed, or is a value of a graph; when DLPack has no such dtype.
#[track_caller]
pub fn to_dlpack(tensor: &Tensor) -> Result<*mut DLManagedTensorVersioned> {
    let value = tensor.driver_tensor()?;
    let Some((dtype, code)) = DTYPES.iter().find(|(dtype, _)| *dtype == value.dtype()) else {
        return Err(GraphError::argument(
            "to_dlpack",
            "dtype",
            value.dtype(),
            "one that DLPack has: cast it with `cast`",
        ));
    };
    let value = if value.strides().iter().any(|stride| *stride < 0) { value.contiguous()? } else { value };
    let of = DeviceRef::from(value.device());
    let shape: Vec<i64> = value.shape().iter().map(|size| *size as i64).collect();
    let strides: Vec<i64> = value.strides().iter().map(|stride| *stride as i64).collect();
    let dl_tensor = DLTensor {
        data: value.data_ptr().cast_mut().cast(),
        device: DLDevice { device_type: if of.is_cpu() { 1 } else { 2 }, device_id: of.id as i32 },
        ndim: shape.len() as i32,
        dtype: DLDataType { code: *code, bits: dtype.size_in_bytes() as u8 * 8, lanes: 1 },
        shape: shape.as_ptr().cast_mut(),
        strides: strides.as_ptr().cast_mut(),
        byte_offset: 0,
    };
    let managed = DLManagedTensorVersioned {
        version: VERSION,
        manager_ctx: ptr::null_mut(),
        deleter: Some(delete),
        flags: READ_ONLY,
        dl_tensor,
    };
    let lent = Box::into_raw(Box::new(Lent { managed, _tensor: value, _shape: shape, _strides: strides }));
    // SAFETY: just made; the vectors do not move with the box.
    unsafe {
        (*lent).managed.manager_ctx = lent.cast();
        Ok(&raw mut (*lent).managed)
    }
}
