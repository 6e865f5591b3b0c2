//! GPUs that are simulated, for tests on a machine without one. With the feature `simulator`.
//!
//! A model on such a device goes the whole way: its kernels become PTX for the device's architecture, which is loaded,
//! launched and executed, an instruction at a time, by a program that stands where the driver would. It is slow, some
//! ten million instructions a second, and strict: an access outside of memory or not aligned, memory that is read and was
//! never written, a race on shared memory and a barrier that not all threads reach are faults, which hardware would not
//! report. A fault is printed, and loses the device as it would on a GPU.
//!
//! ```
//! use max::prelude::*;
//!
//! let x = Tensor::from_slice(&[-1.0f32, 0.0, 2.0], [3])?;
//! for gpu in max::simulator::gpus()? {
//!     let ty = TensorType::new(DType::F32, (3,), (&gpu).into());
//!     let graph = Graph::build("relu", [ty], |_, inputs| ops::relu(&inputs[0]))?;
//!     let model = InferenceSession::with_devices([gpu]).load(&graph)?;
//!     let outputs = model.execute(&x.to(&gpu)?)?;
//!     assert_eq!(outputs[0].to(&Device::cpu())?.to_vec::<f32>()?, [0.0, 0.0, 2.0]);
//! }
//! # Ok::<(), max::Error>(())
//! ```
//!
//! The environment variables of `tests/support/cuda-sim` apply: `FAKE_CUDA_LOG=FILE` names the bytes that each kernel
//! read and wrote and in how many accesses, `FAKE_CUDA_PTX=FOLDER` keeps the PTX that was loaded.

use std::sync::OnceLock;

use max_core::driver::{CudaError, Device, DriverError, replace_cuda_driver};

/// The devices, by compute capability.
const CAPABILITIES: [u32; 3] = [80, 90, 100];

/// A simulated GPU of each architecture that kernels are written for: sm_80, sm_90a and sm_100, each with 1 GiB of memory.
///
/// From the first call on, these are the accelerators of this process, `gpu:0` to `gpu:2`, whatever the machine has.
///
/// # Errors
///
/// [`DriverError::NoAccelerator`] if something has asked for the machine's own accelerators before, or if a variable of the
/// environment has no sense, which its source then names.
pub fn gpus() -> Result<[Device; 3], DriverError> {
    static STARTED: OnceLock<Result<(), CudaError>> = OnceLock::new();
    let started = STARTED.get_or_init(|| {
        cuda_sim::devices(&CAPABILITIES);
        // SAFETY: each function is checked against the driver's interface where it is defined, and does what it promises.
        unsafe { replace_cuda_driver(cuda_sim::find) }
    });
    if let Err(reason) = started {
        return Err(DriverError::NoAccelerator { id: 0, count: 0, source: Some(Box::new(reason.clone())) });
    }
    Ok([Device::accelerator(0)?, Device::accelerator(1)?, Device::accelerator(2)?])
}
