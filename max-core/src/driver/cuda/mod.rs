//! NVIDIA GPUs, through the CUDA driver alone: no toolkit is needed to build or to run.
//!
//! A [`CudaDevice`] keeps the primary context of a GPU for as long as the process runs, so that nothing has to be taken
//! down in any order at exit. It has one stream of its own, on which everything happens that names no other; memory is
//! reused in the order of that stream. A fault in a kernel destroys a context: from then on every call is
//! [`DriverError::DeviceLost`], and whatever is dropped is left to the driver.
//!
//! `MAX_GPU_SYNC=1` waits behind every launch, so that a fault is reported by the launch that caused it.

mod api;
mod device;
mod gpu;
mod module;
mod stream;

pub use api::replace_cuda_driver;
pub(super) use device::count;
pub(super) use gpu::open;
