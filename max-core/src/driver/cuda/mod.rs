//! NVIDIA GPUs, through the CUDA driver alone: no toolkit is needed to build or to run.
//!
//! A [`CudaDevice`] keeps the primary context of a GPU for as long as the process runs, so that nothing has to be taken
//! down in any order at exit. It has one stream of its own, on which everything happens that names no other; memory is
//! reused in the order of that stream. A fault in a kernel destroys a context: from then on every call is
//! [`DriverError::DeviceLost`], and whatever is dropped is left to the driver.
//!
//! A call makes the context current and puts back what was current before, so that other users of CUDA on the same thread
//! keep their device.
//!
//! `MAX_GPU_SYNC=1` waits behind every launch, so that a fault is reported by the launch that caused it.
//! `MAX_GPU_JIT_LOG=1` shows what the driver's compiler says of each kernel: registers, spills, serialized `wgmma`s.

mod api;
mod device;
mod gpu;
mod map_counts;
mod module;
mod pinned;
mod stream;
mod sys;
mod tensor_map;
mod upload;

pub use api::replace_cuda_driver;
pub(super) use device::count;
pub(super) use gpu::open;
