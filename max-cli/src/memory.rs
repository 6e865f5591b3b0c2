//! Memory of this machine and of this process, where the system tells.

/// The bytes that programs can have without swapping.
pub fn free() -> Option<u64> {
    bytes("/proc/meminfo", "MemAvailable:")
}

/// The bytes that this process has in memory now.
pub fn resident() -> Option<u64> {
    bytes("/proc/self/status", "VmRSS:")
}

/// The most bytes that this process had in memory.
pub fn peak() -> Option<u64> {
    bytes("/proc/self/status", "VmHWM:")
}

fn bytes(file: &str, key: &str) -> Option<u64> {
    let text = std::fs::read_to_string(file).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}
