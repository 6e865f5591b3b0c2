//! [`Backend`]: what a kind of device must be able to do. The host is the only one so far; a GPU API joins by implementing
//! this trait and being found by [`super::device`], and no public type changes.

use super::DriverError;
use super::allocator::ALIGNMENT;
use std::alloc::{self, Layout};
use std::ptr::{self, NonNull};

/// The operations on one device that the rest of the driver is written in.
pub(super) trait Backend: Send + Sync {
    /// The API that programs the device: `cpu`, `cuda` or `hip`.
    fn api(&self) -> &'static str;

    /// The architecture of an accelerator, such as `sm_80`; `None` for the host.
    fn architecture_name(&self) -> Option<&str>;

    /// Waits for all work on the device and reports its errors.
    fn synchronize(&self) -> Result<(), DriverError>;

    /// New memory of `bytes` > 0 bytes, aligned to [`ALIGNMENT`], or `None` if there is not enough.
    fn allocate(&self, bytes: usize) -> Option<NonNull<u8>>;

    /// Gives memory back.
    ///
    /// # Safety
    ///
    /// `memory` came from `allocate(bytes)` of this backend, and nothing uses it any more.
    unsafe fn free(&self, memory: NonNull<u8>, bytes: usize);

    /// Sets `bytes` bytes to `value`.
    ///
    /// # Safety
    ///
    /// `memory` is valid for writes of `bytes` bytes on this device.
    unsafe fn fill(&self, memory: *mut u8, value: u8, bytes: usize);

    /// Copies from the host to this device.
    ///
    /// # Safety
    ///
    /// `host` is valid for reads of `bytes` bytes on the host, `memory` for writes on this device; they do not overlap.
    unsafe fn upload(&self, host: *const u8, memory: *mut u8, bytes: usize);
}

/// The CPU and its memory.
pub(super) struct Host;

/// The size of a huge page, on the systems and machines that have them.
const HUGE_PAGE: usize = 2 << 20;

fn layout(bytes: usize) -> Option<Layout> {
    Layout::from_size_align(bytes, if bytes >= HUGE_PAGE { HUGE_PAGE } else { ALIGNMENT }).ok()
}

/// Asks for huge pages, of which a large block needs 512 times fewer: fewer faults when it is new, and no misses of the
/// table of pages when rows far apart are walked. The system may refuse, which only costs time.
fn advise(memory: NonNull<u8>, bytes: usize) {
    #[cfg(target_os = "linux")]
    if bytes >= HUGE_PAGE {
        // SAFETY: advice on memory that is ours and that nothing uses yet; it changes no contents.
        unsafe { libc::madvise(memory.as_ptr().cast(), bytes, libc::MADV_HUGEPAGE) };
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (memory, bytes);
}

impl Backend for Host {
    fn api(&self) -> &'static str {
        "cpu"
    }

    fn architecture_name(&self) -> Option<&str> {
        None
    }

    fn synchronize(&self) -> Result<(), DriverError> {
        Ok(())
    }

    fn allocate(&self, bytes: usize) -> Option<NonNull<u8>> {
        let layout = layout(bytes).filter(|layout| layout.size() > 0)?;
        // SAFETY: the size is not zero.
        let memory = NonNull::new(unsafe { alloc::alloc(layout) })?;
        advise(memory, bytes);
        Some(memory)
    }

    unsafe fn free(&self, memory: NonNull<u8>, bytes: usize) {
        if let Some(layout) = layout(bytes) {
            // SAFETY: by contract, `memory` was allocated with this layout.
            unsafe { alloc::dealloc(memory.as_ptr(), layout) }
        }
    }

    unsafe fn fill(&self, memory: *mut u8, value: u8, bytes: usize) {
        // SAFETY: by contract.
        unsafe { ptr::write_bytes(memory, value, bytes) }
    }

    unsafe fn upload(&self, host: *const u8, memory: *mut u8, bytes: usize) {
        // SAFETY: by contract.
        unsafe { ptr::copy_nonoverlapping(host, memory, bytes) }
    }
}
