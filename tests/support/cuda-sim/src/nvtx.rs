//! The profiler's side of NVTX 3: what is named in `NVTX_INJECTION64_PATH`. Each range that begins and ends is a line in
//! the file `FAKE_NVTX_LOG`.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::fs::{File, OpenOptions};
use std::io::Write;

type Places = *const *mut *mut c_void;

#[repr(C)]
struct Callbacks {
    size: usize,
    functions: extern "C" fn(c_uint, *mut Places, *mut c_uint) -> c_int,
}

/// The log, opened for each line: a program may take it away between two.
fn log() -> std::io::Result<File> {
    let path = std::env::var_os("FAKE_NVTX_LOG").ok_or(std::io::ErrorKind::NotFound)?;
    OpenOptions::new().append(true).create(true).open(path)
}

/// Writes a line; one that cannot be written stops no program.
fn note(line: &str) {
    _ = log().and_then(|mut log| writeln!(log, "{line}"));
}

extern "C" fn push(name: *const c_char) -> c_int {
    // SAFETY: the program passes a text that ends with NUL.
    note(&format!("begin {}", unsafe { CStr::from_ptr(name) }.to_string_lossy()));
    0
}

extern "C" fn pop() -> c_int {
    note("end");
    0
}

/// Gives the program the functions for ranges, if there is a file to write them to, and the program's table is as it should.
///
/// # Safety
/// `tables` is the program's `NvtxGetExportTable`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn InitializeInjectionNvtx2(tables: extern "C" fn(u32) -> *const c_void) -> c_int {
    // SAFETY: table 1 is `NvtxExportTableCallbacks`, or null.
    let callbacks = unsafe { tables(1).cast::<Callbacks>().as_ref() };
    let Some(callbacks) = callbacks.filter(|callbacks| callbacks.size == size_of::<Callbacks>()) else { return 0 };
    let (mut places, mut count): (Places, c_uint) = (std::ptr::null(), 0);
    // The module for CUDA's objects has no functions; CORE has 16.
    let other = (callbacks.functions)(2, &mut places, &mut count);
    let core = (callbacks.functions)(1, &mut places, &mut count);
    if (other, core, count) != (0, 1, 16) || log().is_err() {
        return 0;
    }
    for (id, function) in [(9, push as *mut c_void), (11, pop as *mut c_void)] {
        // SAFETY: the module has that many places, of which only the first is none.
        unsafe { **places.add(id) = function };
    }
    1
}
