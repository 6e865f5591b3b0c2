//! [`CudaError`]: what the CUDA driver says, or why there is none.

/// What went wrong in the CUDA driver, or why there is none.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CudaError {
    /// This program was built without the feature `cuda`.
    #[error("this program was built without the feature `cuda` of `max`")]
    NotBuilt,
    /// Another driver was to take its place, too late.
    #[error("the driver is in use; put another in its place before anything asks for accelerators")]
    InUse,
    /// The driver's library is not there.
    #[error("the NVIDIA driver is not installed: none of {names:?} can be loaded ({reason})")]
    Library {
        /// The names that were tried.
        names: &'static [&'static str],
        /// What the system says of the first.
        reason: String,
    },
    /// The driver's library lacks a function.
    #[error("the NVIDIA driver has no `{function}`; update the driver")]
    Symbol {
        /// The function.
        function: &'static str,
    },
    /// The driver is too old.
    #[error(
        "the NVIDIA driver supports CUDA {}.{}, but CUDA {}.{} is the oldest that serves; update the driver",
        found / 1000, found % 1000 / 10, oldest / 1000, oldest % 1000 / 10
    )]
    Version {
        /// Its version: 1000 times the major plus 10 times the minor number.
        found: i32,
        /// The oldest that serves.
        oldest: i32,
    },
    /// The GPU is too old.
    #[error("the GPU is sm_{sm}, and kernels are written for sm_{oldest} and later")]
    Architecture {
        /// Its compute capability, 75 for 7.5.
        sm: u32,
        /// The oldest that kernels are written for.
        oldest: u32,
    },
    /// A function failed.
    #[error("{function} failed with {name} ({code}){}{text}", if text.is_empty() { "" } else { ": " })]
    Call {
        /// The function.
        function: &'static str,
        /// The driver's code.
        code: i32,
        /// The code's name.
        name: String,
        /// What the driver says of it.
        text: String,
    },
    /// A process that was forked uses a GPU of the one that it was forked from.
    #[error(
        "{function} failed with {name} ({code}), because this process was forked after the GPU was opened; open GPUs in the \
         process that uses them, or start it anew"
    )]
    Forked {
        /// The function.
        function: &'static str,
        /// The driver's code.
        code: i32,
        /// The code's name.
        name: String,
    },
    /// A kernel was given too few words of parameters, or too many.
    #[error("the kernel takes {expected} words of parameters, got {actual}")]
    Arguments {
        /// How many it declares.
        expected: usize,
        /// How many were given.
        actual: usize,
    },
    /// The driver does not accept the PTX of a kernel.
    #[error("the PTX of kernel `{kernel}` is not accepted: {name} ({code})\n{log}{excerpt}")]
    Ptx {
        /// The kernel.
        kernel: String,
        /// The driver's code.
        code: i32,
        /// The code's name.
        name: String,
        /// The log of the driver's compiler.
        log: String,
        /// The lines of the PTX around those that the log names.
        excerpt: String,
    },
}

impl CudaError {
    /// The error as it is for a process, of a device that a process opened: the driver's contexts are of no use to a child
    /// that was forked from it.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "asked of a device alone"))]
    pub(super) fn explained(self, opened_in: u32, here: u32) -> CudaError {
        match self {
            CudaError::Call { function, code: code @ (3 | 201), name, .. } if opened_in != here => {
                CudaError::Forked { function, code, name }
            }
            other => other,
        }
    }

    /// Whether the device's context is lost: every later call fails as well.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "asked of a device alone"))]
    pub(super) fn is_sticky(&self) -> bool {
        // Uncorrectable memory errors, faults of kernels (an illegal address, a time-out, an assertion, a hardware or
        // launch failure, …), a destroyed context, and `unknown`.
        matches!(self, CudaError::Call { code: 214 | 220 | 226 | 700 | 702 | 709 | 710 | 714..=719 | 721 | 999, .. })
    }

    #[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "asked of a device alone"))]
    pub(super) fn is_out_of_memory(&self) -> bool {
        matches!(self, CudaError::Call { code: 2, .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forked_process_is_told_so() {
        let call = |code| CudaError::Call { function: "cuMemAlloc_v2", code, name: "NAME".into(), text: String::new() };
        assert_eq!(call(3).explained(1, 1), call(3));
        assert_eq!(call(700).explained(1, 2), call(700));
        let text = call(3).explained(1, 2).to_string();
        assert!(
            text.starts_with("cuMemAlloc_v2 failed with NAME (3), because this process was forked after"),
            "{text}"
        );
    }
}
