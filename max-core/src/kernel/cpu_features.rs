//! Which of a kernel's compiled forms this machine runs.

use std::sync::OnceLock;

use super::abi::Level;
use super::error::KernelError;

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

/// The matrix unit of a CPU, for `bf16` and 8-bit integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MatrixUnit {
    /// AMX, the tile unit.
    Amx,
    /// AVX-512's dot GEMMs: `vdpbf16ps`, `vpdpbusd`.
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "no other machine has them"))]
    Vnni,
}

/// The matrix units of this machine that this process may use.
#[derive(Clone, Copy, Debug)]
pub(super) struct MatrixUnits {
    /// For `bf16`.
    pub bf16: Option<MatrixUnit>,
    /// For integers of 8 bits.
    pub int8: Option<MatrixUnit>,
}

/// The matrix units of this machine, found once.
#[inline(never)]
pub(super) fn matrix_units() -> MatrixUnits {
    static MATRIX_UNITS: OnceLock<MatrixUnits> = OnceLock::new();
    *MATRIX_UNITS.get_or_init(find_matrix_units)
}

#[cfg(target_arch = "x86_64")]
fn find_matrix_units() -> MatrixUnits {
    if !Level::available().contains(&Level::V4) {
        return MatrixUnits { bf16: None, int8: None };
    }
    let [amx_bf16, amx_int8] = amx();
    let unit = |amx: bool, vectors: bool| match (amx, vectors) {
        (true, _) => Some(MatrixUnit::Amx),
        (false, true) => Some(MatrixUnit::Vnni),
        (false, false) => None,
    };
    MatrixUnits {
        bf16: unit(amx_bf16, is_x86_feature_detected!("avx512bf16")),
        int8: unit(amx_int8, is_x86_feature_detected!("avx512vnni")),
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn find_matrix_units() -> MatrixUnits {
    MatrixUnits { bf16: None, int8: None }
}

/// Whether AMX multiplies `bf16`, and integers of 8 bits, and the operating system lets this process use it.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn amx() -> [bool; 2] {
    // CPUID leaf 7: EDX bit 22 is AMX-BF16, bit 24 AMX-TILE, bit 25 AMX-INT8.
    const BF16: u32 = 1 << 22;
    const TILE: u32 = 1 << 24;
    const INT8: u32 = 1 << 25;
    // `arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)` of Linux 5.16.
    const REQUEST: u64 = 0x1023;
    const TILE_DATA: u64 = 18;
    #[allow(unused_unsafe, reason = "newer compilers declare it safe")]
    // SAFETY: the instruction has no effect; processors with AVX-512, which alone are asked, have the leaf.
    let features = unsafe { std::arch::x86_64::__cpuid_count(7, 0) }.edx;
    if features & TILE == 0 {
        return [false; 2];
    }
    // SAFETY: the call changes nothing but what this process may use.
    let granted = unsafe { libc::syscall(libc::SYS_arch_prctl, REQUEST, TILE_DATA) } == 0;
    [BF16, INT8].map(|bit| granted && features & bit != 0)
}

#[cfg(all(target_arch = "x86_64", not(target_os = "linux")))]
fn amx() -> [bool; 2] {
    [false; 2]
}
