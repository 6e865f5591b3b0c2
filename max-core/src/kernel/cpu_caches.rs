//! The size of this machine's last-level cache, by which results are kept in it or written past it.

use std::path::Path;
use std::sync::OnceLock;

/// The bytes of the last-level cache of the first processor, where the system says. Asked once a process.
#[must_use]
pub fn last_level() -> Option<usize> {
    static BYTES: OnceLock<Option<usize>> = OnceLock::new();
    *BYTES.get_or_init(|| largest(Path::new("/sys/devices/system/cpu/cpu0/cache")))
}

/// The size of the cache of the highest level that a folder of Linux describes, each cache by a folder of its own
/// (Documentation/ABI/testing/sysfs-devices-system-cpu).
fn largest(folder: &Path) -> Option<usize> {
    let caches = std::fs::read_dir(folder).ok()?.flatten().filter_map(|cache| {
        let read = |name: &str| std::fs::read_to_string(cache.path().join(name)).ok();
        Some((read("level")?.trim().parse::<u32>().ok()?, size(read("size")?.trim())?))
    });
    caches.max().map(|(_, bytes)| bytes)
}

/// `32768K`
fn size(text: &str) -> Option<usize> {
    let kib: usize = text.strip_suffix('K')?.parse().ok()?;
    kib.checked_mul(1 << 10).filter(|bytes| *bytes > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_level_counts() -> std::io::Result<()> {
        let folder = tempfile::tempdir()?;
        for (name, level, size) in
            [("index0", "1\n", "32K\n"), ("index3", "3\n", "32768K\n"), ("index2", "2\n", "512K\n")]
        {
            let cache = folder.path().join(name);
            std::fs::create_dir(&cache)?;
            std::fs::write(cache.join("level"), level)?;
            std::fs::write(cache.join("size"), size)?;
        }
        std::fs::write(folder.path().join("uevent"), "")?;
        assert_eq!(largest(folder.path()), Some(32 << 20));
        assert_eq!(largest(&folder.path().join("nothing")), None);
        assert_eq!([size("0K"), size("many"), size("18446744073709551615K")], [None; 3]);
        Ok(())
    }
}
