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

fn log(line: &str) {
    let path = std::env::var_os("FAKE_NVTX_LOG").expect("FAKE_NVTX_LOG");
    let mut file: File = OpenOptions::new().append(true).create(true).open(path).expect("the log");
    writeln!(file, "{line}").expect("the log");
}

extern "C" fn push(name: *const c_char) -> c_int {
    // SAFETY: the program passes a text that ends with NUL.
    log(&format!("begin {}", unsafe { CStr::from_ptr(name) }.to_string_lossy()));
    0
}

extern "C" fn pop() -> c_int {
    log("end");
    0
}

/// Gives the program the functions for ranges.
///
/// # Safety
/// `tables` is the program's `NvtxGetExportTable`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn InitializeInjectionNvtx2(tables: extern "C" fn(u32) -> *const c_void) -> c_int {
    let callbacks = tables(1).cast::<Callbacks>();
    let (mut places, mut count): (Places, c_uint) = (std::ptr::null(), 0);
    // SAFETY: table 1 is `NvtxExportTableCallbacks`.
    let callbacks = unsafe { &*callbacks };
    assert_eq!(callbacks.size, size_of::<Callbacks>());
    assert_eq!((callbacks.functions)(2, &mut places, &mut count), 0, "no functions for CUDA's objects");
    assert_eq!((callbacks.functions)(1, &mut places, &mut count), 1, "the module CORE");
    assert_eq!(count, 16);
    for (id, function) in [(9, push as *mut c_void), (11, pop as *mut c_void)] {
        // SAFETY: the module has that many places, of which only the first is none.
        unsafe { **places.add(id) = function };
    }
    1
}
