//! [`Backend`]: what a kind of device must be able to do, and [`Gpu`]: what only those do that work on their own while
//! the host goes on. A GPU API joins by implementing both and being found by [`super::device`]; no public type changes.

use super::launch_journal::Journal;
use super::{DriverError, TensorMapStats};
use smallvec::{SmallVec, smallvec};
use std::panic::RefUnwindSafe;
use std::ptr::NonNull;

/// The alignment of every block in bytes: a cache line, and the widest vector.
pub const ALIGNMENT: usize = 64;

/// A stream of a device, as its backend knows it; the default is the one that the device was made with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct StreamHandle(pub usize);

/// The operations on one device that the rest of the driver is written in.
///
/// Those with a stream are done in its order. What a backend reports may be the failure of work enqueued before.
pub(crate) trait Backend: Send + Sync + RefUnwindSafe {
    /// The API that programs the device: `cpu`, `cuda` or `hip`.
    fn api(&self) -> &'static str;

    /// The architecture of an accelerator, such as `sm_80`; `None` for the host.
    fn architecture_name(&self) -> Option<&str>;

    /// How many bytes of freed memory may be kept for reuse, where that is known.
    fn cache_limit(&self) -> Option<usize>;

    /// Waits for all work on the device and reports its errors.
    fn synchronize(&self) -> Result<(), DriverError>;

    /// New memory of `bytes` > 0 bytes, aligned to [`ALIGNMENT`], or `None` if there is not enough. Who asks for it uses the first `used`
    /// bytes; the rest is there for those who have it later.
    fn allocate(&self, bytes: usize, used: usize) -> Result<Option<NonNull<u8>>, DriverError>;

    /// Whether new memory of so many bytes is zero.
    fn is_zero_when_new(&self, _bytes: usize) -> bool {
        false
    }

    /// Gives memory back once work on the default stream does not use it any more.
    ///
    /// # Safety
    ///
    /// `memory` came from `allocate(bytes)` of this backend, and nothing but that work uses it any more.
    unsafe fn free(&self, memory: NonNull<u8>, bytes: usize);

    /// Sets `bytes` bytes to `value`.
    ///
    /// # Safety
    ///
    /// `memory` is valid for writes of `bytes` bytes on this device.
    unsafe fn fill(&self, memory: *mut u8, value: u8, bytes: usize, stream: StreamHandle) -> Result<(), DriverError>;

    /// Copies from the host to this device. Once this has returned, `host` is not read any more.
    ///
    /// # Safety
    ///
    /// `host` is valid for reads of `bytes` bytes on the host, `memory` for writes on this device; they do not overlap.
    unsafe fn upload(
        &self,
        host: *const u8,
        memory: *mut u8,
        bytes: usize,
        stream: StreamHandle,
    ) -> Result<(), DriverError>;

    /// Copies from this device to the host. Once this has returned, all of `host` is written.
    ///
    /// # Safety
    ///
    /// `memory` is valid for reads of `bytes` bytes on this device, `host` for writes on the host; they do not overlap.
    unsafe fn download(
        &self,
        memory: *const u8,
        host: *mut u8,
        bytes: usize,
        stream: StreamHandle,
    ) -> Result<(), DriverError>;

    /// Copies within this device.
    ///
    /// # Safety
    ///
    /// `from` is valid for reads and `to` for writes of `bytes` bytes on this device; they do not overlap.
    unsafe fn copy(&self, from: *const u8, to: *mut u8, bytes: usize, stream: StreamHandle) -> Result<(), DriverError>;

    /// What only a GPU does.
    fn gpu(&'static self) -> Option<&'static dyn Gpu> {
        None
    }
}

/// The GPU that code is written for, and what its driver accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TargetDesc {
    /// 80 for 8.0.
    pub compute_capability: u32,
    /// The newest version of the instruction set that the driver reads, 84 for PTX ISA 8.4.
    pub isa_version: u32,
    /// The most shared memory that a block may have, in bytes.
    pub shared_bytes: u32,
}

/// The oldest compute capability that a GPU is opened with: no code is written for those before it.
pub(crate) const MIN_COMPUTE_CAPABILITY: u32 = 80;

/// The code of one kernel, as a device takes it, and what a launch has to know of it.
#[derive(Clone, Debug)]
#[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "read by what loads it"))]
pub(crate) struct CodeObject<'a> {
    pub text: &'a str,
    /// The entry's name.
    pub entry: &'a str,
    /// Threads of a block.
    pub block_size: u32,
    /// How many blocks are on a multiprocessor at a time, if the kernel is made for that.
    pub resident: Option<u32>,
    /// Dynamic shared memory of a block, in bytes, without that for rows.
    pub shared_bytes: u32,
    /// The operands of the rows that a block keeps in shared memory if there is room.
    pub cached_rows: &'a [u32],
    /// Units of 8 bytes that each parameter has.
    pub words: Vec<usize>,
}

/// A kernel that is loaded on a GPU, for as long as the process runs.
#[derive(Clone, Debug)]
#[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "read by what launches it"))]
pub(crate) struct GpuFunction {
    /// The API's handle.
    pub handle: usize,
    /// Threads of a block.
    pub block_size: u32,
    /// Dynamic shared memory of a block, in bytes, without that for rows.
    pub shared_bytes: u32,
    /// The operands of the rows that a block keeps if there is room, and the bytes of shared memory that it can have for all.
    pub cached_rows: Vec<u32>,
    pub shared_limit: u32,
    /// Blocks that keep the device busy: more only wait.
    pub blocks: u32,
    /// Units of 8 bytes that each parameter has.
    pub words: Vec<usize>,
}

/// A tensor in the memory of a GPU, and the box of it that one copy takes, for the GPU's own copies. Axes begin with the
/// last one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct TensorMap {
    /// The address of the first element.
    pub address: u64,
    /// Bytes of an element.
    pub element_size: usize,
    pub dims: SmallVec<[u64; 5]>,
    /// Bytes from an element to the next along each axis but the first.
    pub strides: SmallVec<[u64; 5]>,
    /// Elements of the box.
    pub extents: SmallVec<[u32; 5]>,
    /// Bytes of the pattern in which 16 bytes change places in shared memory.
    pub swizzle: u32,
}

impl TensorMap {
    /// The map of a tensor of so many axes, with the dim and the stride (in elements) of each, in boxes of columns and
    /// rows; `None` if it does not lie as a GPU's own copies demand.
    pub fn new(
        ptr: *const u8,
        element_size: usize,
        (rank, axis): (usize, impl Fn(usize) -> (i64, i64)),
        [columns, rows]: [u32; 2],
        swizzle: u32,
    ) -> Option<TensorMap> {
        let mut map = TensorMap {
            address: ptr as u64,
            element_size,
            dims: SmallVec::new(),
            strides: SmallVec::new(),
            extents: smallvec![1; rank],
            swizzle,
        };
        for (i, (dim, stride)) in (0..rank).rev().map(axis).enumerate() {
            let bytes = u64::try_from(stride).ok()?.checked_mul(element_size as u64)?;
            let lies_well =
                if i == 0 { stride == 1 } else { stride > 0 && bytes.is_multiple_of(16) && bytes < 1 << 40 };
            if !lies_well || !(1..=1 << 30).contains(&dim) {
                return None;
            }
            map.dims.push(dim as u64);
            if i > 0 {
                map.strides.push(bytes);
            }
        }
        map.extents.iter_mut().zip([columns, rows]).for_each(|(extent, of_box)| *extent = of_box);
        (rank >= 2 && map.address.is_multiple_of(16)).then_some(map)
    }
}

/// A sequence of work that was captured, for as long as this is kept.
pub(crate) trait CapturedWork: Send + Sync {
    /// Enqueues the work.
    fn launch(&self, stream: StreamHandle) -> Result<(), DriverError>;
}

/// What only a GPU does: streams, kernels, captures, page-locked memory.
pub(crate) trait Gpu: Backend {
    /// What code has to be written for.
    fn target(&self) -> TargetDesc;

    /// The name of the product.
    fn product(&self) -> &str;

    /// Free and total memory in bytes.
    fn memory(&self) -> Result<(usize, usize), DriverError>;

    /// Whether kernels here can read the memory of another GPU of this API, the `id`-th one, from now on.
    fn can_access(&self, other: &dyn Gpu, id: u32) -> bool;

    /// A new stream.
    fn create_stream(&self) -> Result<StreamHandle, DriverError>;

    /// Ends a stream when its work is done.
    fn destroy_stream(&self, stream: StreamHandle);

    /// Waits for the work of a stream.
    fn synchronize_stream(&self, stream: StreamHandle) -> Result<(), DriverError>;

    /// An event behind the present work of a stream; it is for [`wait_event`](Gpu::wait_event) alone.
    fn record(&self, stream: StreamHandle) -> Result<usize, DriverError>;

    /// Makes a stream wait for an event of any device.
    fn wait_event(&self, stream: StreamHandle, event: usize) -> Result<(), DriverError>;

    /// Forgets an event.
    fn destroy_event(&self, event: usize);

    /// Page-locked memory of the host, of `bytes` > 0 bytes.
    fn allocate_pinned(&self, bytes: usize) -> Result<Option<NonNull<u8>>, DriverError>;

    /// Gives page-locked memory back.
    ///
    /// # Safety
    ///
    /// It came from [`allocate_pinned`](Gpu::allocate_pinned), and nothing uses it any more.
    unsafe fn free_pinned(&self, memory: NonNull<u8>);

    /// Copies from the memory of another GPU of this API to this one.
    ///
    /// # Safety
    ///
    /// `from` is valid for reads of `bytes` bytes on `source`, `to` for writes on this device.
    unsafe fn copy_from(
        &self,
        source: &dyn Gpu,
        from: *const u8,
        to: *mut u8,
        bytes: usize,
        stream: StreamHandle,
    ) -> Result<(), DriverError>;

    /// The API's handle of the device's context.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "asked of a device alone"))]
    fn context(&self) -> usize;

    /// What was launched on the default stream.
    fn journal(&self) -> &Journal;

    /// Loads a kernel, named for messages.
    fn load(&self, kernel: &str, code: &CodeObject<'_>) -> Result<GpuFunction, DriverError>;

    /// A tensor map as kernels take it; `None` if the GPU or its driver has none.
    fn tensor_map(&self, _: &TensorMap) -> Option<[u64; 16]> {
        None
    }

    /// Notes a launch of a kernel that takes tensor maps, and whether it has them.
    fn note_mapped(&self, _is_mapped: bool) {}

    /// What became of tensor maps.
    fn tensor_map_stats(&self) -> TensorMapStats {
        TensorMapStats::default()
    }

    /// Enqueues a kernel on a number of blocks > 0, and with so many bytes of shared memory each.
    ///
    /// # Safety
    ///
    /// `args` are the words of the parameters that the kernel's code object lists, and the memory that they lead to is as they say for as
    /// long as the kernel runs.
    unsafe fn launch(
        &self,
        function: &GpuFunction,
        size: (u32, u32),
        args: &mut [u64],
        stream: StreamHandle,
    ) -> Result<(), DriverError>;

    /// From now on, work that this thread adds to a stream is captured and not done.
    fn begin_capture(&self, stream: StreamHandle) -> Result<(), DriverError>;

    /// What was captured. The stream works again as before, also after an error.
    fn end_capture(&'static self, stream: StreamHandle) -> Result<Box<dyn CapturedWork>, DriverError>;
}

/// Makes the work of a stream from now on wait for the present work of another one.
pub(super) fn wait(
    (gpu, stream): (&dyn Gpu, StreamHandle),
    (other_gpu, other): (&dyn Gpu, StreamHandle),
) -> Result<(), DriverError> {
    let event = other_gpu.record(other)?;
    let waits = gpu.wait_event(stream, event);
    other_gpu.destroy_event(event);
    waits
}
