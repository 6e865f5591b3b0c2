//! Which of a kernel's compiled forms this machine runs.

use std::sync::OnceLock;

use super::library::KernelError;
use super::table::Level;

/// The form of kernels that runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Form {
    /// The scalar, bounds-checked form.
    Reference,
    /// Compiled for a level, or the best lower one that a kernel has.
    Compiled(Level),
}

impl Level {
    /// Its name, as in `MAX_CPU_LEVEL`.
    pub const fn name(self) -> &'static str {
        match self {
            Level::Portable => "portable",
            Level::V2 => "v2",
            Level::V3 => "v3",
            Level::V4 => "v4",
        }
    }

    /// The levels that this machine can run, lowest first.
    pub fn available() -> &'static [Level] {
        static AVAILABLE: OnceLock<Vec<Level>> = OnceLock::new();
        AVAILABLE.get_or_init(detect)
    }
}

#[cfg(target_arch = "x86_64")]
fn detect() -> Vec<Level> {
    macro_rules! all {
        ($($feature:tt)*) => { $(is_x86_feature_detected!($feature))&&* };
    }
    let mut levels = vec![Level::Portable];
    if all!("sse3" "ssse3" "sse4.1" "sse4.2" "popcnt") {
        levels.push(Level::V2);
        if all!("avx" "avx2" "fma" "bmi1" "bmi2" "f16c" "lzcnt" "movbe") {
            levels.push(Level::V3);
            if all!("avx512f" "avx512bw" "avx512cd" "avx512dq" "avx512vl") {
                levels.push(Level::V4);
            }
        }
    }
    levels
}

#[cfg(not(target_arch = "x86_64"))]
fn detect() -> Vec<Level> {
    vec![Level::Portable]
}

/// The form in use: the machine's highest level, or what the environment variable `MAX_CPU_LEVEL` says
/// (`v2`, `v3`, `v4`, `portable`, or `reference` for the scalar form). Read once a process.
///
/// # Errors
/// When the variable names no form, or a level that the machine lacks.
pub fn form() -> Result<Form, KernelError> {
    static FORM: OnceLock<Result<Form, KernelError>> = OnceLock::new();
    FORM.get_or_init(|| {
        let best = Level::available().last().copied().unwrap_or(Level::Portable);
        let Ok(value) = std::env::var("MAX_CPU_LEVEL") else { return Ok(Form::Compiled(best)) };
        if value == "reference" {
            return Ok(Form::Reference);
        }
        let known = Level::available().iter().find(|level| level.name() == value);
        known.map(|level| Form::Compiled(*level)).ok_or(KernelError::Environment {
            variable: "MAX_CPU_LEVEL",
            value,
            allowed: "the levels that this machine has (see `max info`), or `reference`",
        })
    })
    .clone()
}

/// Whether AMX multiplies `bf16` tiles on this machine and the operating system lets this process use it, which is
/// asked once.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub(super) fn amx() -> bool {
    static AMX: OnceLock<bool> = OnceLock::new();
    // CPUID leaf 7: EDX bit 22 is AMX-BF16, bit 24 AMX-TILE.
    const BITS: u32 = 1 << 22 | 1 << 24;
    // `arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)` of Linux 5.16.
    const REQUEST: u64 = 0x1023;
    const TILE_DATA: u64 = 18;
    *AMX.get_or_init(|| {
        #[allow(unused_unsafe, reason = "newer compilers declare it safe")]
        // SAFETY: the instruction has no effect; processors with AVX-512, which alone ask, have the leaf.
        let features = unsafe { std::arch::x86_64::__cpuid_count(7, 0) };
        let there = features.edx & BITS == BITS;
        let mut result: i64 = 158;
        if there {
            // SAFETY: the call changes nothing but what this process may use.
            unsafe {
                std::arch::asm!(
                    "syscall", inout("rax") result, in("rdi") REQUEST, in("rsi") TILE_DATA, out("rcx") _, out("r11") _,
                    options(nostack)
                );
            }
        }
        there && result == 0
    })
}

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
pub(super) fn amx() -> bool {
    false
}
