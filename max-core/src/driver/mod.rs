//! Devices, their memory, and [`Tensor`], an array in that memory.
//!
//! **Design.** A [`Device`] is a copyable pointer to something that lives as long as the process; a private trait lists what
//! a kind of device must do; the host and NVIDIA GPUs implement it. Device memory comes from a caching [`allocator`]. A [`Tensor`] is a dtype, a shape, strides and an offset over storage that its clones and views share by
//! reference count. Sharing is sound by one rule and needs no locks or run-time borrow state: *memory is
//! written only through a `&mut Tensor` whose storage no other handle shares*. So a `&[T]` from [`Tensor::as_slice`], which
//! borrows its handle, can never see a write, and a graph that mutates a buffer takes it as `&mut Tensor` and asks
//! [`Tensor::data_ptr_mut`] for the right to write (a few nanoseconds), which fails with
//! [`DriverError::StorageShared`] while a clone or a view exists. [`Tensor::make_unique`] is copy on write for those who want
//! it. Two invariants hold for every tensor, so that reading needs no checks of the data: its memory is initialized (fresh
//! memory is an [`UninitTensor`] until its writer vouches for it, so a failed run returns no stale bytes), and
//! each byte of a `bool` tensor is 0 or 1 (checked wherever foreign bytes become a tensor).
//!
//! ```
//! # extern crate max_core as max;
//! use max::driver::{Device, Tensor};
//! use max::dtype::DType;
//!
//! let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], [2, 3])?;
//! let column = x.select(1, -1)?;
//! assert_eq!(column.to_vec::<f32>()?, [3.0, 6.0]);
//!
//! let mut counter = Tensor::zeros(DType::I32, [3], &Device::cpu())?;
//! counter.as_mut_slice::<i32>()?[1] += 1;
//! assert_eq!(counter.to_string(), "[0 1 0]");
//! # Ok::<(), max::driver::DriverError>(())
//! ```

pub mod allocator;
pub(crate) mod backend;
#[cfg(feature = "cuda")]
mod cuda;
mod cuda_error;
mod device;
mod device_ref;
mod error;
mod host;
pub(crate) mod launch_journal;
mod slice;
mod tensor;
mod tensor_map_stats;

pub use allocator::AllocatorStats;
#[cfg(feature = "cuda")]
pub use cuda::replace_cuda_driver;
pub use cuda_error::CudaError;
pub use device::{
    Device, DeviceSpec, DeviceStream, accelerator_api, accelerator_architecture_name, accelerator_count, devices_exist,
    load_devices, scan_available_devices,
};
pub use device_ref::{DeviceKind, DeviceRef, ParseDeviceRefError};
pub use error::DriverError;
pub use launch_journal::{LaunchedOp, LaunchedOps};
pub use slice::SliceIndex;
pub(crate) use tensor::StridedCopy;
pub use tensor::{ElementIter, MapMode, Tensor, UninitTensor};
pub use tensor_map_stats::TensorMapStats;
