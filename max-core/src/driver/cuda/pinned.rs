//! Page-locked memory: which there is, and a device's buffers of it.

use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};

use crate::driver::backend::StreamHandle;

/// The page-locked memory that there is, by address, with its bytes.
static PINNED: Mutex<BTreeMap<usize, usize>> = Mutex::new(BTreeMap::new());

/// Notes page-locked memory, which is copied from where it is.
pub(super) fn note_pinned(memory: NonNull<u8>, bytes: usize) {
    PINNED.lock().unwrap_or_else(PoisonError::into_inner).insert(memory.as_ptr() as usize, bytes);
}

/// Notes that memory is none any more.
pub(super) fn forget_pinned(memory: NonNull<u8>) {
    PINNED.lock().unwrap_or_else(PoisonError::into_inner).remove(&(memory.as_ptr() as usize));
}

/// Whether memory of the host is page-locked.
pub(super) fn is_pinned(host: *const u8) -> bool {
    let pinned = PINNED.lock().unwrap_or_else(PoisonError::into_inner);
    let before = pinned.range(..=host as usize).next_back();
    before.is_some_and(|(first, bytes)| host as usize - first < *bytes)
}

/// A page-locked buffer, and the stream that copies from it.
pub(super) struct Buffer {
    pub memory: NonNull<u8>,
    pub stream: StreamHandle,
}

// SAFETY: the memory is the device's, for as long as the process runs, and whoever has the buffer alone touches it.
unsafe impl Send for Buffer {}
