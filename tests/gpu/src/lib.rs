//! Runs kernels of the library on the first NVIDIA GPU, through the driver alone.
//!
//! The tests of this crate build into one binary without any dependency on CUDA, which can be copied to a machine that
//! has a GPU and no Rust. Without a GPU they say so and pass.

use std::ffi::{CString, c_void};

use cudarc::driver::result::{self, device, launch_kernel, module};
use cudarc::driver::sys;
use max_core::dtype::DType;
use max_core::kernel::ir;
use max_core::kernel::ptx::{self, Slot, Target};
use max_core::kernel::table::{GridAxis, KernelDef, KernelKind};

/// A device with a current context.
pub struct Gpu {
    /// Its name.
    pub name: String,
    /// Its compute capability, 90 for 9.0.
    pub sm: u32,
    multiprocessors: u32,
}

/// Device memory, freed on drop.
pub struct Buffer {
    ptr: sys::CUdeviceptr,
    bytes: usize,
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: allocated by `Gpu::upload` and not freed before. A failure at exit is of no consequence.
        let _ = unsafe { result::free_sync(self.ptr) };
    }
}

/// A tensor of a launch: its memory, dims and strides.
pub struct Operand {
    /// The memory.
    pub buffer: Buffer,
    /// The dims.
    pub dims: Vec<i64>,
    /// The strides, in elements.
    pub strides: Vec<i64>,
}

/// A kernel loaded on the device.
pub struct Loaded {
    function: sys::CUfunction,
    module: ptx::Module,
    kind: KernelKind,
    grid: Vec<GridAxis>,
}

type Result<T> = std::result::Result<T, String>;

fn said<T>(what: &str, r: std::result::Result<T, result::DriverError>) -> Result<T> {
    r.map_err(|e| format!("{what}: {e:?}"))
}

impl Gpu {
    /// The first device; `Err` says why there is none.
    ///
    /// # Errors
    /// When there is no driver or no device.
    pub fn first() -> Result<Gpu> {
        // SAFETY: loading the driver runs its initializers, as any CUDA program does.
        if !unsafe { sys::is_culib_present() } {
            return Err("libcuda is not installed".into());
        }
        said("cuInit", result::init())?;
        if said("cuDeviceGetCount", device::get_count())? == 0 {
            return Err("the driver sees no device".into());
        }
        let dev = said("cuDeviceGet", device::get(0))?;
        let attribute = |a| {
            // SAFETY: `dev` is a device.
            said("cuDeviceGetAttribute", unsafe { device::get_attribute(dev, a) })
        };
        use sys::CUdevice_attribute::*;
        let major = attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        let multiprocessors = attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)? as u32;
        let name = said("cuDeviceGetName", device::get_name(dev))?;
        // SAFETY: `dev` is a device; the context stays for the life of the process.
        let context = said("cuDevicePrimaryCtxRetain", unsafe { result::primary_ctx::retain(dev) })?;
        // SAFETY: the context was retained above.
        said("cuCtxSetCurrent", unsafe { result::ctx::set_current(context) })?;
        Ok(Gpu { name, sm: (major * 10 + minor) as u32, multiprocessors })
    }

    /// Copies bytes to the device.
    ///
    /// # Errors
    /// When the device is out of memory.
    pub fn upload(&self, bytes: &[u8]) -> Result<Buffer> {
        // SAFETY: a plain allocation; never of 0 bytes.
        let ptr = said("cuMemAlloc", unsafe { result::malloc_sync(bytes.len().max(16)) })?;
        let buffer = Buffer { ptr, bytes: bytes.len() };
        // SAFETY: the destination has as many bytes.
        said("cuMemcpyHtoD", unsafe { result::memcpy_htod_sync(ptr, bytes) })?;
        Ok(buffer)
    }

    /// Copies bytes back.
    ///
    /// # Errors
    /// When a launch before it failed.
    pub fn download(&self, buffer: &Buffer) -> Result<Vec<u8>> {
        let mut bytes = vec![0; buffer.bytes];
        // SAFETY: the source has as many bytes.
        said("cuMemcpyDtoH", unsafe { result::memcpy_dtoh_sync(&mut bytes, buffer.ptr) })?;
        Ok(bytes)
    }

    /// Writes a kernel's PTX for these dtypes and loads it.
    ///
    /// # Errors
    /// When there is no PTX for it, or the driver refuses it.
    pub fn load(&self, def: &KernelDef, dtypes: &[DType]) -> Result<Loaded> {
        let kernel = ir::parse(&def.ir_text(dtypes, None)).map_err(|e| e.to_string())?;
        let target = Target { sm: self.sm.min(90), arch_specific: false };
        let module = ptx::write(&kernel, ptx::Options { target, annotate: false }).map_err(|e| e.to_string())?;
        let text = CString::new(module.text.as_str()).map_err(|e| e.to_string())?;
        // SAFETY: a zero-terminated PTX text.
        let loaded = said("cuModuleLoadData", unsafe { module::load_data(text.as_ptr().cast()) })?;
        let entry = CString::new(module.entry.as_str()).map_err(|e| e.to_string())?;
        // SAFETY: the module was loaded above.
        let function = said("cuModuleGetFunction", unsafe { module::get_function(loaded, entry) })?;
        if module.shared_bytes > 48 << 10 {
            let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: the function was found above.
            let set =
                unsafe { result::function::set_function_attribute(function, attribute, module.shared_bytes as i32) };
            said("cuFuncSetAttribute", set)?;
        }
        Ok(Loaded { function, module, kind: def.kind, grid: kernel.grid })
    }

    /// Runs a kernel; the call does not wait.
    ///
    /// # Errors
    /// When the driver refuses the launch.
    pub fn launch(&self, kernel: &Loaded, operands: &[Operand], params: &[u64]) -> Result<()> {
        let mut grid = [1i64; 3];
        for (extent, axis) in grid.iter_mut().zip(&kernel.grid) {
            *extent = match usize::try_from(axis.operand) {
                Err(_) => axis.size as i64,
                Ok(o) => (operands[o].dims[axis.dim as usize] as u64).div_ceil(axis.size.max(1)) as i64,
            };
        }
        let count: i64 = match kernel.kind {
            KernelKind::Elementwise => operands[0].dims.iter().product(),
            KernelKind::Program => grid.iter().product(),
        };
        if count == 0 {
            return Ok(());
        }
        let mut values: Vec<u64> = Vec::new();
        for slot in &kernel.module.params {
            values.push(match *slot {
                Slot::Pointer { operand } => operands[operand as usize].buffer.ptr,
                Slot::Dim { operand, axis } => operands[operand as usize].dims[axis as usize] as u64,
                Slot::Stride { operand, axis } => match kernel.kind {
                    KernelKind::Elementwise => 1,
                    KernelKind::Program => operands[operand as usize].strides[axis as usize] as u64,
                },
                Slot::Param { index } => params[index as usize],
                Slot::Count => count as u64,
                Slot::Grid { axis } => grid[axis as usize] as u64,
            });
        }
        let mut pointers: Vec<*mut c_void> = values.iter_mut().map(|v| std::ptr::from_mut(v).cast()).collect();
        let blocks = match kernel.kind {
            KernelKind::Elementwise => (count as u64).div_ceil(u64::from(kernel.module.block_size)),
            KernelKind::Program => count as u64,
        };
        let most = u64::from(self.multiprocessors) * 8;
        // SAFETY: the parameters are those that the module lists; the operands' memory is as large as their dims say.
        let launched = unsafe {
            launch_kernel(
                kernel.function,
                (blocks.min(most) as u32, 1, 1),
                (kernel.module.block_size, 1, 1),
                kernel.module.shared_bytes,
                std::ptr::null_mut(),
                &mut pointers,
            )
        };
        said("cuLaunchKernel", launched)
    }

    /// Waits for all launches.
    ///
    /// # Errors
    /// When one of them failed.
    pub fn synchronize(&self) -> Result<()> {
        said("cuCtxSynchronize", result::ctx::synchronize())
    }

    /// Copies between device buffers; the call does not wait.
    ///
    /// # Errors
    /// When the driver refuses the copy.
    pub fn copy(&self, to: &Buffer, from: &Buffer) -> Result<()> {
        // SAFETY: both have at least that many bytes.
        let copied =
            unsafe { result::memcpy_dtod_async(to.ptr, from.ptr, to.bytes.min(from.bytes), std::ptr::null_mut()) };
        said("cuMemcpyDtoD", copied)
    }
}
