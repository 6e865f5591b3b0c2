//! What the processor says of itself, and what the system lets programs use of it.

use std::fmt;

/// The state of AMX, the tile matrix unit of some x86-64 processors.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "only x86-64 has it"))]
pub enum Amx {
    /// The processor does not have it.
    Absent,
    /// The processor has it.
    Present {
        /// The kinds of products that it computes.
        products: Vec<&'static str>,
        /// Whether this process may use it.
        permission: Permission,
    },
}

/// Whether a process may use AMX: its large registers must be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    not(all(target_arch = "x86_64", target_os = "linux")),
    expect(dead_code, reason = "only Linux on x86-64 says")
)]
pub enum Permission {
    /// The process has it.
    Granted,
    /// The process does not have it yet; the system gives it to whoever asks.
    OnRequest,
    /// The system does not offer it.
    Refused,
    /// The system does not say.
    Unknown,
}

impl fmt::Display for Amx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Amx::Present { products, permission } = self else { return f.write_str("the processor does not have it") };
        let permission = match permission {
            Permission::Granted => "this process may use it",
            Permission::OnRequest => "the system permits it on request; not requested yet",
            Permission::Refused => "the system does not permit it",
            Permission::Unknown => "whether the system permits it is unknown",
        };
        write!(f, "products of {}; {permission}", products.join(", "))
    }
}

/// The processor's name.
#[cfg(target_arch = "x86_64")]
pub fn name() -> Option<String> {
    if cpuid(0x8000_0000, 0)[0] < 0x8000_0004 {
        return None;
    }
    let bytes: Vec<u8> = (0x8000_0002..=0x8000_0004)
        .flat_map(|leaf| cpuid(leaf, 0))
        .flat_map(u32::to_le_bytes)
        .take_while(|byte| *byte != 0)
        .collect();
    let words: Vec<String> = String::from_utf8_lossy(&bytes).split_whitespace().map(str::to_owned).collect();
    (!words.is_empty()).then(|| words.join(" "))
}

/// The processor's name.
#[cfg(not(target_arch = "x86_64"))]
pub fn name() -> Option<String> {
    None
}

/// The state of AMX.
#[cfg(target_arch = "x86_64")]
pub fn amx() -> Amx {
    if cpuid(0, 0)[0] < 7 {
        return Amx::Absent;
    }
    let [subleaves, _, _, features] = cpuid(7, 0);
    let has = |bit: u32| features >> bit & 1 == 1;
    if !has(24) {
        return Amx::Absent;
    }
    let mut products = Vec::new();
    if has(25) {
        products.push("i8");
    }
    if has(22) {
        products.push("bf16");
    }
    if subleaves >= 1 && cpuid(7, 1)[0] >> 21 & 1 == 1 {
        products.push("f16");
    }
    Amx::Present { products, permission: permission() }
}

/// The state of AMX.
#[cfg(not(target_arch = "x86_64"))]
pub fn amx() -> Amx {
    Amx::Absent
}

/// How the system chooses the processors' clock, where it says.
pub fn governor() -> Option<String> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").ok()?;
    Some(text.trim().to_owned())
}

/// `[eax, ebx, ecx, edx]` of a leaf.
#[cfg(target_arch = "x86_64")]
fn cpuid(leaf: u32, subleaf: u32) -> [u32; 4] {
    #[allow(unused_unsafe, reason = "newer compilers declare it safe")]
    // SAFETY: every x86-64 processor has the instruction; it has no effect.
    let r = unsafe { std::arch::x86_64::__cpuid_count(leaf, subleaf) };
    [r.eax, r.ebx, r.ecx, r.edx]
}

/// Bit of the tiles' data among the processor's extended states.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
const XTILE_DATA: u32 = 18;

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn permission() -> Permission {
    const ARCH_GET_XCOMP_SUPP: i32 = 0x1021;
    const ARCH_GET_XCOMP_PERM: i32 = 0x1022;
    let asks = |code: i32| -> Option<bool> {
        let mut states: u64 = 0;
        // SAFETY: with these codes the call writes one `u64` to the pointer, or fails.
        let result = unsafe { libc::syscall(libc::SYS_arch_prctl, code, &raw mut states) };
        (result == 0).then_some(states >> XTILE_DATA & 1 == 1)
    };
    match (asks(ARCH_GET_XCOMP_PERM), asks(ARCH_GET_XCOMP_SUPP)) {
        (Some(true), _) => Permission::Granted,
        (_, Some(true)) => Permission::OnRequest,
        (None, None) => Permission::Unknown,
        _ => Permission::Refused,
    }
}

#[cfg(all(target_arch = "x86_64", not(target_os = "linux")))]
fn permission() -> Permission {
    Permission::Unknown
}

/// Asks the system to let this process use AMX; says whether it may.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub fn request_amx() -> bool {
    const ARCH_REQ_XCOMP_PERM: i32 = 0x1023;
    match amx() {
        Amx::Absent => false,
        Amx::Present { .. } => {
            // SAFETY: the call takes a number and changes only what this process may use.
            unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XTILE_DATA) == 0 }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amx_says_what_it_is_and_whether_it_may_be_used() {
        let amx = Amx::Present { products: vec!["i8", "bf16"], permission: Permission::OnRequest };
        assert_eq!(amx.to_string(), "products of i8, bf16; the system permits it on request; not requested yet");
        assert_eq!(Amx::Absent.to_string(), "the processor does not have it");
    }

    #[test]
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    fn a_request_that_is_granted_shows() {
        let may = request_amx();
        let granted = matches!(super::amx(), Amx::Present { permission: Permission::Granted, .. });
        assert_eq!(may, granted);
    }
}
