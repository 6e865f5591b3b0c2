//! Which of a kernel's compiled forms this machine runs.

use std::sync::OnceLock;

use super::abi::Level;
use super::error::KernelError;

/// Whether this process may use all of these features.
#[cfg(target_arch = "x86_64")]
macro_rules! has {
    ($($feature:tt)*) => { $(glibc::has($feature).unwrap_or_else(|| is_x86_feature_detected!($feature)))&&* };
}

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
    let mut levels = vec![Level::Portable];
    if has!("sse3" "ssse3" "sse4.1" "sse4.2" "popcnt") {
        levels.push(Level::V2);
        if has!("avx" "avx2" "fma" "bmi1" "bmi2" "f16c" "lzcnt" "movbe") {
            levels.push(Level::V3);
            if has!("avx512f" "avx512bw" "avx512cd" "avx512dq" "avx512vl") {
                levels.push(Level::V4);
            }
        }
    }
    levels
}

/// What glibc found out when it loaded the program. A virtual machine's `cpuid` takes 5 us, and the standard library asks it eight
/// times, which is more than a small graph's load.
#[cfg(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu"))]
mod glibc {
    use std::sync::OnceLock;

    /// Leaves by their numbers in `<sys/platform/x86.h>`: 1, 7, 0x80000001, and 7 with subleaf 1.
    const LEAVES: [u32; 4] = [0, 1, 2, 6];

    /// EAX, EBX, ECX and EDX of a leaf.
    type Registers = [u32; 4];

    /// `struct cpuid_feature`: what the processor has, and of that what the system lets a process use.
    #[repr(C)]
    struct Leaf {
        present: Registers,
        active: Registers,
    }

    /// What is active, by [`LEAVES`]; `None` before glibc 2.33.
    fn active() -> Option<&'static [Registers; 4]> {
        static ACTIVE: OnceLock<Option<[Registers; 4]>> = OnceLock::new();
        ACTIVE.get_or_init(find).as_ref()
    }

    fn find() -> Option<[Registers; 4]> {
        type Get = extern "C" fn(u32) -> *const Leaf;
        // SAFETY: the name is a C string; nothing is loaded.
        let get = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__x86_get_cpuid_feature_leaf".as_ptr()) };
        if get.is_null() {
            return None;
        }
        // SAFETY: this is the type that glibc's header declares, in all versions that have the function.
        let get = unsafe { std::mem::transmute::<*mut libc::c_void, Get>(get) };
        let mut all = [Registers::default(); 4];
        for (registers, leaf) in all.iter_mut().zip(LEAVES) {
            // SAFETY: null, or constant data of glibc's.
            *registers = unsafe { get(leaf).as_ref() }?.active;
        }
        Some(all)
    }

    /// Whether a feature is active; `None` if glibc does not say.
    pub fn has(feature: &str) -> Option<bool> {
        let [eax, ebx, ecx] = [0, 1, 2];
        // Leaf, register and bit, as in Intel's manual, volume 2A, CPUID.
        let (leaf, register, bit) = match feature {
            "sse3" => (0, ecx, 0),
            "ssse3" => (0, ecx, 9),
            "fma" => (0, ecx, 12),
            "sse4.1" => (0, ecx, 19),
            "sse4.2" => (0, ecx, 20),
            "movbe" => (0, ecx, 22),
            "popcnt" => (0, ecx, 23),
            "avx" => (0, ecx, 28),
            "f16c" => (0, ecx, 29),
            "bmi1" => (1, ebx, 3),
            "avx2" => (1, ebx, 5),
            "bmi2" => (1, ebx, 8),
            "avx512f" => (1, ebx, 16),
            "avx512dq" => (1, ebx, 17),
            "avx512cd" => (1, ebx, 28),
            "avx512bw" => (1, ebx, 30),
            "avx512vl" => (1, ebx, 31),
            "avx512vnni" => (1, ecx, 11),
            "lzcnt" => (2, ecx, 5),
            "avx512bf16" => (3, eax, 5),
            _ => return None,
        };
        Some(active()?[leaf][register] >> bit & 1 == 1)
    }

    #[cfg(test)]
    mod tests {
        #[test]
        fn glibc_and_the_standard_library_agree() {
            macro_rules! compare {
                ($($feature:tt)*) => { $(
                    let found = super::has($feature);
                    assert!(found.is_none_or(|found| found == is_x86_feature_detected!($feature)), "{}", $feature);
                )* };
            }
            compare!("sse3" "ssse3" "fma" "sse4.1" "sse4.2" "movbe" "popcnt" "avx" "f16c" "bmi1" "avx2" "bmi2" "avx512f");
            compare!("avx512dq" "avx512cd" "avx512bw" "avx512vl" "avx512vnni" "lzcnt" "avx512bf16");
            assert_eq!(super::has("a feature of no machine"), None);
        }
    }
}

/// Nobody else knows.
#[cfg(all(target_arch = "x86_64", not(all(target_os = "linux", target_env = "gnu"))))]
mod glibc {
    pub fn has(_feature: &str) -> Option<bool> {
        None
    }
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

impl MatrixUnit {
    /// The rows that are multiplied together: of fewer, all of those are computed.
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "no other machine has them"))]
    pub(super) const fn row_group(self) -> usize {
        match self {
            MatrixUnit::Amx => 32,
            MatrixUnit::Vnni => 8,
        }
    }
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
    // `f32` vectors multiply what is widened while it is packed.
    let bf16 = has!("avx512bf16") && !vdpbf16ps_is_slow();
    MatrixUnits { bf16: unit(amx_bf16, bf16), int8: unit(amx_int8, has!("avx512vnni")) }
}

/// Whether `vdpbf16ps`, of 32 products, takes longer than the two `vfmadd231ps` of as many: on processors of Intel it starts every
/// second cycle, and they start two a cycle (87 against 178 GFLOP/s on a Xeon of the fifth generation, `max info`); on AMD's it is
/// twice as fast as they are.
#[cfg(target_arch = "x86_64")]
fn vdpbf16ps_is_slow() -> bool {
    let vendor = cpuid(0);
    [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes).as_flattened() == b"GenuineIntel"
}

/// A leaf of CPUID, and the first of its subleaves.
#[cfg(target_arch = "x86_64")]
fn cpuid(leaf: u32) -> std::arch::x86_64::CpuidResult {
    #[allow(unused_unsafe, reason = "newer compilers declare it safe")]
    // SAFETY: every processor of x86-64 has the instruction, which has no effect; leaves that it lacks say nothing of use.
    unsafe {
        std::arch::x86_64::__cpuid_count(leaf, 0)
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
    // Processors with AVX-512, which alone are asked, have the leaf.
    let features = cpuid(7).edx;
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
