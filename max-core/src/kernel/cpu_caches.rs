//! How much of the last-level cache this machine's processors have, by which results are kept in it or written past it.

use std::path::Path;
use std::sync::OnceLock;

/// What a processor gets of a last-level cache, at most. Virtual machines are told the size of the whole cache, but not how many
/// processors of other machines have it, too: of 480 MiB, two kept 128 at most (docs/performance/row-kernels.md).
const BYTES_OF_PROCESSOR: usize = 64 << 20;

/// The bytes of the last-level cache of the first processor, as far as those that share it can have them, where the system says. Asked
/// once a process.
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
        let processors = read("shared_cpu_list").and_then(|list| processors(list.trim())).unwrap_or(usize::MAX);
        let bytes = size(read("size")?.trim())?.min(processors.saturating_mul(BYTES_OF_PROCESSOR));
        Some((read("level")?.trim().parse::<u32>().ok()?, bytes))
    });
    caches.max().map(|(_, bytes)| bytes)
}

/// How many processors are in `0-3,8`.
fn processors(list: &str) -> Option<usize> {
    let ranges = list.split(',').map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let count = last.parse::<usize>().ok()?.checked_sub(first.parse().ok()?)?.checked_add(1)?;
        Some(count)
    });
    ranges.sum()
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
        std::fs::write(folder.path().join("index3/size"), "491520K\n")?;
        assert_eq!(largest(folder.path()), Some(480 << 20));
        std::fs::write(folder.path().join("index3/shared_cpu_list"), "0-1\n")?;
        assert_eq!(largest(folder.path()), Some(128 << 20));
        assert_eq!(largest(&folder.path().join("nothing")), None);
        assert_eq!(["0-1", "7", "0-3,8,10-11"].map(processors), [Some(2), Some(1), Some(7)]);
        assert_eq!(["", "a", "3-1", "0-18446744073709551615"].map(processors), [None; 4]);
        assert_eq!([size("0K"), size("many"), size("18446744073709551615K")], [None; 3]);
        Ok(())
    }
}
