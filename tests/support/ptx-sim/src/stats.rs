//! What a run has counted.

use std::collections::BTreeMap;

/// Counts of one run of a kernel.
///
/// "Thread instructions" count each active lane; "requests" count a warp's
/// access once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Thread instructions executed.
    pub instructions: u64,
    /// Warp instructions executed.
    pub warp_instructions: u64,
    /// Thread instructions by opcode with modifiers, as written in the PTX.
    pub by_kind: BTreeMap<String, u64>,
    /// Bytes loaded from global memory, by all threads.
    pub global_load_bytes: u64,
    /// Bytes stored to global memory, by all threads.
    pub global_store_bytes: u64,
    /// Warp accesses to global memory.
    pub global_requests: u64,
    /// 32-byte sectors that these touched, each access for itself.
    pub global_sectors: u64,
    /// Sectors beyond those that the same distinct bytes need when they lie
    /// together: 0 means perfectly coalesced.
    pub excess_sectors: u64,
    /// `excess_sectors` by PTX line, lines without any left out.
    pub excess_sectors_by_line: BTreeMap<u32, u64>,
    /// Warp accesses to shared memory.
    pub shared_requests: u64,
    /// Extra passes over the banks, beyond the fewest that the width of the
    /// access needs: 0 means no bank conflicts.
    pub bank_conflicts: u64,
    /// `bank_conflicts` by PTX line, lines without any left out.
    pub bank_conflicts_by_line: BTreeMap<u32, u64>,
    /// Barriers of a block that were passed, counted once a block.
    pub barriers: u64,
    /// Branches at which the lanes of a warp parted.
    pub divergent_branches: u64,
    /// What the kernel printed by `vprintf`.
    pub printed: String,
}

impl Stats {
    /// Thread instructions whose opcode is `opcode`, or starts with `opcode`
    /// and a dot: `count("ld.global")` counts `ld.global.v4.f32` too.
    ///
    /// ```
    /// let mut stats = ptx_sim::Stats::default();
    /// stats.by_kind.insert("ld.global.f32".into(), 64);
    /// assert_eq!(stats.count("ld.global"), 64);
    /// assert_eq!(stats.count("ld.glob"), 0);
    /// ```
    #[must_use]
    pub fn count(&self, opcode: &str) -> u64 {
        let prefix = format!("{opcode}.");
        self.by_kind.iter().filter(|(kind, _)| *kind == opcode || kind.starts_with(&prefix)).map(|(_, n)| n).sum()
    }

    pub(crate) fn global_access(&mut self, line: u32, addresses: &[u64], bytes: u32) {
        self.count_sectors(line, sectors(addresses, bytes));
    }

    /// As [`global_access`](Stats::global_access), of so many lanes that access so many bytes each, side by side.
    pub(crate) fn global_access_side_by_side(&mut self, line: u32, start: u64, lanes: u32, bytes: u32) {
        let all = u64::from(lanes) * u64::from(bytes);
        self.count_sectors(line, ((start + all).div_ceil(32) - start / 32, all.div_ceil(32)));
    }

    fn count_sectors(&mut self, line: u32, (touched, needed): (u64, u64)) {
        self.global_requests += 1;
        self.global_sectors += touched;
        if touched > needed {
            self.excess_sectors += touched - needed;
            *self.excess_sectors_by_line.entry(line).or_default() += touched - needed;
        }
    }

    pub(crate) fn shared_access(&mut self, line: u32, addresses: &[u64], bytes: u32) {
        self.shared_requests += 1;
        let conflicts = bank_conflicts(addresses, bytes);
        if conflicts > 0 {
            self.bank_conflicts += conflicts;
            *self.bank_conflicts_by_line.entry(line).or_default() += conflicts;
        }
    }
}

/// The sectors of 32 bytes that an access touches, and the fewest that its
/// distinct bytes could lie in.
fn sectors(addresses: &[u64], bytes: u32) -> (u64, u64) {
    let mut list = [0u64; 32];
    let list = &mut list[..addresses.len()];
    list.copy_from_slice(addresses);
    if !list.is_sorted() {
        list.sort_unstable();
    }
    let (mut touched, mut distinct) = (0, 0);
    let (mut last_address, mut next_sector) = (None, 0);
    for &address in list.iter() {
        if last_address == Some(address) {
            continue;
        }
        last_address = Some(address);
        distinct += u64::from(bytes);
        let first = (address / 32).max(next_sector);
        let end = (address + u64::from(bytes)).div_ceil(32);
        touched += end.saturating_sub(first);
        next_sector = next_sector.max(end);
    }
    (touched, distinct.div_ceil(32))
}

/// The address of a lane that takes no part.
pub(crate) const NOWHERE: u64 = u64::MAX;

/// 32 banks of 4 bytes. Accesses of 8 bytes go in two halves of a warp, of 16
/// bytes in four quarters; lanes that read one word share it.
fn bank_conflicts(addresses: &[u64], bytes: u32) -> u64 {
    let words = u64::from(bytes.div_ceil(4));
    let per_pass = (32 / words.max(1)) as usize;
    let mut extra = 0;
    // The word of each bank that one has been accessed of.
    let mut first = [0; 32];
    for part in addresses.chunks(per_pass.max(1)) {
        let (mut busy, mut clash) = (0u32, false);
        for &address in part.iter().filter(|&&address| address != NOWHERE) {
            for word in address / 4..address / 4 + words {
                let bank = word as usize % 32;
                clash |= busy >> bank & 1 == 1 && first[bank] != word;
                busy |= 1 << bank;
                first[bank] = word;
            }
        }
        if clash {
            extra += passes(part, words) - 1;
        }
    }
    extra
}

/// The most different words of one bank, of accesses to 32 words or fewer.
fn passes(addresses: &[u64], words: u64) -> u64 {
    let (mut all, mut count) = ([0; 32], 0);
    for word in addresses.iter().filter(|&&a| a != NOWHERE).flat_map(|a| a / 4..a / 4 + words) {
        all[count] = word;
        count += 1;
    }
    all[..count].sort_unstable();
    let mut load = [0u64; 32];
    for same in all[..count].chunk_by(|a, b| a == b) {
        load[same[0] as usize % 32] += 1;
    }
    load.into_iter().max().unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strided(stride: u64) -> Vec<u64> {
        (0..32).map(|i| 1024 + i * stride).collect()
    }

    #[test]
    fn sectors_of_strided_accesses() {
        assert_eq!(sectors(&strided(4), 4), (4, 4));
        assert_eq!(sectors(&strided(16), 16), (16, 16));
        assert_eq!(sectors(&strided(128), 4), (32, 4));
        assert_eq!(sectors(&strided(0), 4), (1, 1));
        // Shifted by half a sector: one more.
        let shifted: Vec<u64> = strided(4).iter().map(|a| a + 16).collect();
        assert_eq!(sectors(&shifted, 4), (5, 4));
    }

    #[test]
    fn side_by_side_is_counted_as_by_addresses() {
        for (start, bytes) in [(1024, 4), (1040, 4), (1008, 16), (1030, 2), (1001, 1), (1056, 32)] {
            let addresses: Vec<u64> = (0..32).map(|i| start + i * u64::from(bytes)).collect();
            for lanes in [1, 7, 31, 32] {
                let (mut one, mut other) = (Stats::default(), Stats::default());
                one.global_access(5, &addresses[..lanes], bytes);
                other.global_access_side_by_side(5, start, lanes as u32, bytes);
                assert_eq!(one, other);
                assert_eq!(bank_conflicts(&addresses[..lanes], bytes), 0);
            }
        }
    }

    #[test]
    fn conflicts_of_strided_accesses() {
        assert_eq!(bank_conflicts(&strided(4), 4), 0);
        assert_eq!(bank_conflicts(&strided(8), 4), 1);
        assert_eq!(bank_conflicts(&strided(128), 4), 31);
        assert_eq!(bank_conflicts(&strided(132), 4), 0);
        assert_eq!(bank_conflicts(&strided(0), 4), 0);
        assert_eq!(bank_conflicts(&strided(2), 2), 0);
        assert_eq!(bank_conflicts(&strided(8), 8), 0);
        assert_eq!(bank_conflicts(&strided(16), 16), 0);
        // Each quarter of a warp reads one bank group: 8 lanes, 7 extra passes.
        assert_eq!(bank_conflicts(&strided(128), 16), 4 * 7);
        // Lanes that take no part have their place: six of each eight read a row, the next six meet its banks.
        let six: Vec<u64> = (0..32).map(|i| if i % 8 < 6 { i / 8 * 112 + i % 8 * 16 } else { NOWHERE }).collect();
        assert_eq!(bank_conflicts(&six, 16), 0);
        assert_eq!(bank_conflicts(&[0, NOWHERE, 128, NOWHERE], 4), 1);
    }
}
