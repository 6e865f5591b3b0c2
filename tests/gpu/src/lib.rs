//! The first NVIDIA GPU, for tests that compare it with the CPU and measure it, through the same driver as programs use.
//!
//! The tests of this crate build into binaries without any dependency on CUDA, which can be copied to a machine that has a
//! GPU and no Rust: `cargo test --release -p gpu-tests --no-run` says where they are. Without a GPU they say so and pass,
//! or fail with `MAX_REQUIRE_GPU=1`.

use std::io::Write;
use std::sync::Once;

use max::driver::{Device, DriverError, Tensor};
use max::kernel::{BoundKernel, GpuError, GpuKernel, TensorArg};

/// The GPU, or a line that says, once a process, why nothing is tested.
///
/// # Panics
/// Where there is none and `MAX_REQUIRE_GPU=1` asks for one.
pub fn gpu() -> Option<Device> {
    max_kernels::link();
    match Device::accelerator(0) {
        Ok(device) => {
            let of = |name: Result<&str, DriverError>| name.unwrap_or("?").to_owned();
            println!("on {} ({})", of(device.product_name()), of(device.architecture_name()));
            Some(device)
        }
        Err(error) if std::env::var_os("MAX_REQUIRE_GPU").is_some_and(|value| value == "1") => {
            panic!("MAX_REQUIRE_GPU=1, but nothing can be run on a GPU: {error}")
        }
        Err(error) => {
            static SAID: Once = Once::new();
            // By `eprintln`, the harness would keep it to itself.
            SAID.call_once(|| _ = writeln!(std::io::stderr(), "SKIPPED, nothing was run on a GPU: {error}"));
            None
        }
    }
}

/// A tensor of a launch: its memory as bytes, its dims and strides.
pub struct Operand {
    /// The memory, on the device.
    pub memory: Tensor,
    /// The byte where the element at index 0 starts.
    pub start: usize,
    /// The dims.
    pub dims: Vec<i64>,
    /// The strides, in elements.
    pub strides: Vec<i64>,
}

impl Operand {
    /// A dense operand with these bytes.
    ///
    /// # Errors
    /// When the device is out of memory.
    pub fn new(device: &Device, bytes: &[u8], dims: &[i64]) -> Result<Operand, DriverError> {
        Operand::within(device, bytes, 0, dims, &strides(dims))
    }

    /// An operand in a buffer of these bytes, of which the element at index 0 starts at `start`.
    ///
    /// # Errors
    /// When the device is out of memory.
    pub fn within(
        device: &Device,
        bytes: &[u8],
        start: usize,
        dims: &[i64],
        strides: &[i64],
    ) -> Result<Operand, DriverError> {
        let memory = Tensor::from_slice(bytes, [bytes.len()])?.to(device)?;
        Ok(Operand { memory, start, dims: dims.to_vec(), strides: strides.to_vec() })
    }

    /// All bytes of its buffer, once all launches before are done.
    ///
    /// # Errors
    /// When a launch before it failed.
    pub fn bytes(&self) -> Result<Vec<u8>, DriverError> {
        self.memory.to(&Device::cpu())?.to_vec()
    }
}

/// The strides of a dense tensor.
pub fn strides(dims: &[i64]) -> Vec<i64> {
    let mut strides = vec![1; dims.len()];
    for d in (0..dims.len().saturating_sub(1)).rev() {
        strides[d] = strides[d + 1] * dims[d + 1];
    }
    strides
}

/// Loads a kernel for operands of up to that rank.
///
/// # Errors
/// When there is no PTX for it, or the driver refuses it.
pub fn load(device: &Device, kernel: &BoundKernel, rank: usize) -> Result<GpuKernel, GpuError> {
    kernel.on_gpu(device, rank)
}

/// Runs a kernel; the call does not wait.
///
/// # Errors
/// When the driver refuses the launch.
pub fn launch(device: &Device, kernel: &GpuKernel, operands: &[Operand]) -> Result<(), DriverError> {
    let args: Vec<TensorArg<'_>> = operands
        .iter()
        .map(|o| TensorArg {
            ptr: o.memory.data_ptr().wrapping_add(o.start).cast_mut(),
            dims: &o.dims,
            strides: &o.strides,
        })
        .collect();
    // SAFETY: the operands' memory is as large as their dims say, and the callers of this crate pass those of the kernel.
    unsafe { kernel.launch(&args, &device.default_stream()) }
}
