//! [`Host`]: the CPU and its memory, as a device.

use std::alloc::{self, Layout};
use std::ptr::{self, NonNull};

use super::DriverError;
use super::backend::{ALIGNMENT, Backend, StreamHandle};

/// The CPU and its memory.
pub(crate) struct Host;

/// The size of a huge page, on the systems and machines that have them.
const HUGE_PAGE: usize = 2 << 20;

/// On Unix, what takes more is a mapping of its own. Its pages are zero and no memory before they are touched, so that a large tensor of
/// zeros of which little is written costs little.
const MAX_ON_HEAP: usize = 256 << 10;

fn is_mapped(bytes: usize) -> bool {
    cfg!(unix) && bytes > MAX_ON_HEAP
}

fn layout(bytes: usize) -> Option<Layout> {
    Layout::from_size_align(bytes, if bytes >= HUGE_PAGE { HUGE_PAGE } else { ALIGNMENT }).ok()
}

/// New pages, aligned as a [`layout`] is.
#[cfg(unix)]
fn map(layout: Layout) -> Option<NonNull<u8>> {
    let (bytes, align) = (layout.size(), layout.align());
    // Of what is mapped, the part that is aligned remains.
    let room = if align > ALIGNMENT { bytes.checked_add(align)? } else { bytes };
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANON);
    // SAFETY: a mapping at an address of the system's choice, which is nobody else's.
    let start = unsafe { libc::mmap(ptr::null_mut(), room, protection, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        return None;
    }
    let start = start.cast::<u8>();
    let before = if align > ALIGNMENT { start.align_offset(align) } else { 0 };
    let memory = start.wrapping_add(before);
    for (part, bytes) in [(start, before), (memory.wrapping_add(bytes), room - bytes - before)] {
        if bytes > 0 {
            // SAFETY: a part of the mapping, in whole pages, that nothing refers to.
            unsafe { libc::munmap(part.cast(), bytes) };
        }
    }
    NonNull::new(memory)
}

#[cfg(not(unix))]
fn map(_layout: Layout) -> Option<NonNull<u8>> {
    None
}

/// Asks for huge pages, of which a large block needs 512 times fewer: fewer faults when it is new, and no misses of the
/// table of pages when rows far apart are walked. The system may refuse, which only costs time. What is left at the end of the
/// bytes that are used lies in small pages, or else all of a last huge page would be resident.
fn advise(memory: NonNull<u8>, used: usize) {
    let bytes = used - used % HUGE_PAGE;
    #[cfg(target_os = "linux")]
    if bytes > 0 {
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

    fn cache_limit(&self) -> Option<usize> {
        physical_memory().map(|bytes| bytes / 4)
    }

    fn synchronize(&self) -> Result<(), DriverError> {
        Ok(())
    }

    fn allocate(&self, bytes: usize, used: usize) -> Result<Option<NonNull<u8>>, DriverError> {
        let Some(layout) = layout(bytes).filter(|layout| layout.size() > 0) else { return Ok(None) };
        // SAFETY: the size is not zero.
        let memory = if is_mapped(bytes) { map(layout) } else { NonNull::new(unsafe { alloc::alloc(layout) }) };
        memory.into_iter().for_each(|memory| advise(memory, used));
        Ok(memory)
    }

    fn is_zero_when_new(&self, bytes: usize) -> bool {
        is_mapped(bytes)
    }

    unsafe fn free(&self, memory: NonNull<u8>, bytes: usize) {
        #[cfg(unix)]
        if is_mapped(bytes) {
            // SAFETY: by contract, this is a mapping of so many bytes.
            unsafe { libc::munmap(memory.as_ptr().cast(), bytes) };
            return;
        }
        if let Some(layout) = layout(bytes) {
            // SAFETY: by contract, `memory` was allocated with this layout.
            unsafe { alloc::dealloc(memory.as_ptr(), layout) }
        }
    }

    unsafe fn fill(&self, memory: *mut u8, value: u8, bytes: usize, _: StreamHandle) -> Result<(), DriverError> {
        // SAFETY: by contract.
        unsafe { ptr::write_bytes(memory, value, bytes) };
        Ok(())
    }

    unsafe fn upload(
        &self,
        host: *const u8,
        memory: *mut u8,
        bytes: usize,
        _: StreamHandle,
    ) -> Result<(), DriverError> {
        // SAFETY: by contract.
        unsafe { ptr::copy_nonoverlapping(host, memory, bytes) };
        Ok(())
    }

    unsafe fn download(
        &self,
        memory: *const u8,
        host: *mut u8,
        bytes: usize,
        _: StreamHandle,
    ) -> Result<(), DriverError> {
        // SAFETY: by contract.
        unsafe { ptr::copy_nonoverlapping(memory, host, bytes) };
        Ok(())
    }

    unsafe fn copy(&self, from: *const u8, to: *mut u8, bytes: usize, _: StreamHandle) -> Result<(), DriverError> {
        // SAFETY: by contract.
        unsafe { ptr::copy_nonoverlapping(from, to, bytes) };
        Ok(())
    }
}

/// The memory of the machine in bytes, where the system tells.
fn physical_memory() -> Option<usize> {
    let info = std::fs::read_to_string("/proc/meminfo").ok()?;
    let kilobytes = info.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    kilobytes.trim().strip_suffix(" kB")?.parse::<usize>().ok()?.checked_mul(1024)
}
