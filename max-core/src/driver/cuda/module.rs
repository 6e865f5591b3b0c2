//! Kernels: loading their code, which is PTX, and launching them.

use std::ffi::{CString, c_int, c_void};

use smallvec::SmallVec;

use super::api::Code;
use super::device::{CudaDevice, cuda};
use super::sys::{CUfunction, CUfunction_attribute, CUjit_option, CUmodule};
use crate::driver::backend::{CodeObject, Gpu, GpuFunction, StreamHandle};
use crate::driver::{CudaError, DriverError};

/// Room for what the driver's compiler says.
const LOG_BYTES: usize = 8 << 10;
/// Lines of PTX that are shown on each side of one that the log names.
const SHOWN_LINES: usize = 3;
/// Shared memory that every block may have without asking.
const SHARED_BYTES: u32 = 48 << 10;
/// Blocks for each multiprocessor: enough that the next one is there when one ends.
const BLOCKS_PER_MULTIPROCESSOR: u32 = 8;

/// The version of PTX, 78 for 7.8, that a driver for this version of CUDA knows.
pub(super) fn ptx_version(cuda: c_int) -> u32 {
    let (major, minor) = (cuda as u32 / 1000, cuda as u32 % 1000 / 10);
    match major {
        ..=11 => 70 + minor,
        // 12.6 came without a new one.
        12 => 80 + minor - u32::from(minor >= 6),
        _ => major * 10 - 40 + minor,
    }
}

/// Unloads a module unless its function is kept.
struct Loading<'a>(&'a CudaDevice, CUmodule);

impl Drop for Loading<'_> {
    fn drop(&mut self) {
        // SAFETY (of the call): the module was loaded and nothing of it is in use. A failure leaves it loaded.
        let _ = cuda!(self.0, "unload kernel", cuModuleUnload(self.1));
    }
}

impl CudaDevice {
    pub(super) fn load_code(&self, kernel: &str, code: &CodeObject<'_>) -> Result<GpuFunction, DriverError> {
        // Neither the PTX nor a name has a 0 in it.
        let text = CString::new(code.text).unwrap_or_default();
        let entry = CString::new(code.entry).unwrap_or_default();
        let (mut log, mut said) = (vec![0u8; LOG_BYTES], vec![0u8; LOG_BYTES]);
        let mut options = vec![
            (CUjit_option::CU_JIT_ERROR_LOG_BUFFER, log.as_mut_ptr().cast::<c_void>()),
            (CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, LOG_BYTES as *mut c_void),
        ];
        if self.shows_jit_log {
            options.extend([
                (CUjit_option::CU_JIT_INFO_LOG_BUFFER, said.as_mut_ptr().cast()),
                (CUjit_option::CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES, LOG_BYTES as *mut c_void),
                (CUjit_option::CU_JIT_LOG_VERBOSE, std::ptr::without_provenance_mut(1)),
            ]);
        }
        let (mut options, mut values): (Vec<_>, Vec<_>) = options.into_iter().unzip();
        let (mut loaded, mut refused) = (std::ptr::null_mut(), None);
        self.call("load kernel", "cuModuleLoadDataEx", |api| {
            let (count, options, values) = (options.len() as u32, options.as_mut_ptr(), values.as_mut_ptr());
            // SAFETY: a text that ends in 0, and as many options as values; behind each buffer stands its size.
            let status =
                unsafe { (api.cuModuleLoadDataEx)(&raw mut loaded, text.as_ptr().cast(), count, options, values) };
            refused = is_refusal(status).then_some(status);
            status
        })
        .map_err(|error| match (error, refused) {
            (DriverError::Cuda { op, device, source }, Some(status)) => {
                let name = match *source {
                    CudaError::Call { name, .. } => name,
                    other => other.to_string(),
                };
                let log = text_of(&log);
                let excerpt = excerpt(code.text, &log);
                let source = CudaError::Ptx { kernel: kernel.to_owned(), code: status, name, log, excerpt };
                DriverError::Cuda { op, device, source: source.into() }
            }
            (error, _) => error,
        })?;
        let loading = Loading(self, loaded);
        if self.shows_jit_log {
            eprintln!("kernel `{kernel}` on {}: {}", self.name, text_of(&said).trim());
        }
        let mut function = std::ptr::null_mut();
        // SAFETY (of the call): the module was just loaded, and the name ends in 0.
        cuda!(self, "load kernel", cuModuleGetFunction(&raw mut function, loaded, entry.as_ptr()))?;
        let mut own = 0;
        // SAFETY (of the call): it writes one integer.
        cuda!(
            self,
            "load kernel",
            cuFuncGetAttribute(&raw mut own, CUfunction_attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, function)
        )?;
        // With its own shared memory, 48 KiB may already be too much. The limit is set once, before any launch.
        let caches_rows = !code.cached_rows.is_empty();
        let shared_limit = if caches_rows { self.shared_bytes.saturating_sub(own as u32) } else { code.shared_bytes };
        if caches_rows || code.shared_bytes + own as u32 >= SHARED_BYTES {
            let attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            let bytes = shared_limit as c_int;
            // SAFETY (of the call): it changes a number of the function.
            cuda!(self, "load kernel", cuFuncSetAttribute(function, attribute, bytes))?;
        }
        // Kernels are kept for as long as the process runs.
        std::mem::forget(loading);
        Ok(GpuFunction {
            handle: function as usize,
            block_size: code.block_size,
            shared_bytes: code.shared_bytes,
            cached_rows: code.cached_rows.to_vec(),
            shared_limit,
            blocks: self.multiprocessors * code.resident.unwrap_or(BLOCKS_PER_MULTIPROCESSOR),
            words: code.words.clone(),
        })
    }

    /// # Safety
    /// As for [`Gpu::launch`].
    pub(super) unsafe fn launch_function(
        &self,
        function: &GpuFunction,
        (blocks, shared): (u32, u32),
        args: &mut [u64],
        stream: StreamHandle,
    ) -> Result<(), DriverError> {
        let mut pointers = parameters(&function.words, args).map_err(|source| self.error("launch", source))?;
        let kernel = function.handle as CUfunction;
        let (threads, none) = (function.block_size, std::ptr::null_mut());
        let (stream_handle, params) = (self.raw(stream), pointers.as_mut_ptr());
        // SAFETY (of the call): the function is loaded for good, and the parameters are those of its module, by contract.
        cuda!(
            self,
            "launch",
            cuLaunchKernel(kernel, blocks, 1, 1, threads, 1, 1, shared, stream_handle, params, none)
        )?;
        // (What is captured is not done yet.)
        if self.wait_for_launches && stream == StreamHandle::default() {
            self.synchronize_stream(stream)
        } else {
            Ok(())
        }
    }
}

/// Where each parameter lies, given the number of its words. The driver reads as many as the kernel declares, whatever it is
/// given: `args` have to be that many.
fn parameters(words: &[usize], args: &mut [u64]) -> Result<SmallVec<[*mut c_void; 48]>, CudaError> {
    let (mut pointers, expected, actual) = (SmallVec::new(), words.iter().sum(), args.len());
    let mut rest = args;
    if expected == actual {
        for &words in words {
            let (param, behind) = rest.split_at_mut(words);
            pointers.push(param.as_mut_ptr().cast());
            rest = behind;
        }
        return Ok(pointers);
    }
    Err(CudaError::Arguments { expected, actual })
}

/// A buffer that the driver's compiler wrote a text to.
fn text_of(buffer: &[u8]) -> String {
    String::from_utf8_lossy(buffer.split(|byte| *byte == 0).next().unwrap_or_default()).into_owned()
}

/// Whether the driver did not accept the code, as opposed to having no memory for it.
fn is_refusal(code: Code) -> bool {
    matches!(code, 200 | 209 | 218 | 221..=223 | 300)
}

/// The lines of the PTX around those that the log names.
fn excerpt(text: &str, log: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let named = log.split("line ").skip(1).filter_map(|rest| {
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        digits.parse::<usize>().ok().filter(|line| (1..=lines.len()).contains(line))
    });
    let mut shown = String::new();
    for line in named.take(3) {
        if let Some(place) = source_line(&lines[..line]) {
            shown.push_str(&format!("\nwritten for {place}:"));
        }
        let first = line.saturating_sub(SHOWN_LINES).max(1);
        for number in first..=(line + SHOWN_LINES).min(lines.len()) {
            let mark = if number == line { '>' } else { ' ' };
            shown.push_str(&format!("\n{mark} {number:5} | {}", lines[number - 1]));
        }
    }
    shown
}

/// The place in a kernel's source that the last of these lines of PTX is for, where the PTX says it.
fn source_line(lines: &[&str]) -> Option<String> {
    let mut loc = lines.iter().rev().find_map(|line| line.trim_start().strip_prefix(".loc "))?.split_whitespace();
    let (file, line, column) = (loc.next()?, loc.next()?, loc.next()?);
    let mut named = lines.iter().filter_map(|line| line.strip_prefix(".file ")?.split_once(' '));
    let (_, name) = named.find(|(index, _)| *index == file)?;
    Some(format!("{}:{line}:{column}", name.trim_matches('"')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_of_ptx_that_a_driver_knows() {
        assert_eq!((ptx_version(11080), ptx_version(12050), ptx_version(12060), ptx_version(12080)), (78, 85, 85, 87));
        assert_eq!((ptx_version(13000), ptx_version(13020)), (90, 92));
        assert_eq!((ptx_version(11040), ptx_version(12000)), (74, 80));
    }

    #[test]
    fn a_launch_with_another_number_of_arguments_is_refused() {
        let of = |words: &[usize], args: usize| {
            let mut args: Vec<u64> = (0..args as u64).collect();
            let first = args.as_ptr() as usize;
            let places = |at: &*mut c_void| (*at as usize - first) / 8;
            parameters(words, &mut args).map(|pointers| pointers.iter().map(places).collect::<Vec<_>>())
        };
        assert_eq!(of(&[1, 16, 1], 18), Ok(vec![0, 1, 17]));
        assert_eq!(of(&[], 0), Ok(vec![]));
        for actual in [0, 17, 19] {
            assert_eq!(of(&[1, 16, 1], actual), Err(CudaError::Arguments { expected: 18, actual }));
        }
    }

    #[test]
    fn the_lines_that_the_log_names_are_shown() {
        let text: String = (1..=20).map(|i| format!("line{i}\n")).collect();
        let shown = excerpt(&text, "ptxas application ptx input, line 2; error : x\nline 999; line 20; y");
        assert!(shown.starts_with("\n      1 | line1\n>     2 | line2\n      3 | line3"), "{shown}");
        assert!(shown.ends_with("     19 | line19\n>    20 | line20"), "{shown}");
        assert_eq!(excerpt(&text, "no place"), "");
    }

    #[test]
    fn the_source_line_is_named_where_it_is_known() {
        let text =
            ".file 1 \"src/a.rs\"\n.file 2 \"src/b.rs\"\n{\nld;\n  .loc 2 7 9 // b.rs:7\nadd;\n\n\n\n.loc 1 3 1\n";
        let shown = excerpt(text, "line 6");
        assert!(shown.starts_with("\nwritten for src/b.rs:7:9:\n      3 | {"), "{shown}");
        assert!(shown.contains(">     6 | add;"), "{shown}");
        // Before the first of them nothing is known.
        assert!(excerpt(text, "line 4").starts_with("\n      1 | .file"));
    }
}
