//! The memory of one block, with a race detector.
//!
//! Time is counted in epochs of a warp: a barrier, or `bar.warp.sync`, ends
//! one. Each warp knows of every other warp the last epoch that lies before
//! its own present (a vector clock). For each granule, the narrowest width
//! that the kernel accesses, the memory holds the last write and up to two
//! concurrent readers; an access is a race if such an entry is of another
//! thread, not ordered before it by the clocks, and one of both writes.
//! Atomics and volatile, relaxed, acquire and release accesses do not race
//! with each other. They do not order other accesses here: only barriers do.

use crate::fault::{FaultKind, Nearest};
use crate::memory::is_aligned;
use crate::parse::syntax::Space;
use crate::program::{Layout, Range};

/// The warps that a block may have.
pub(crate) const MAX_WARPS: usize = 32;

/// The thread that writes what bulk copies bring, in a warp of its own.
const COPIER: u32 = 32 * MAX_WARPS as u32;
/// The warps and that of the copier.
const CLOCKS: usize = MAX_WARPS + 1;

/// What a warp knows of all warps, or what those at a barrier bring along.
#[derive(Clone, Copy)]
pub(crate) struct Known {
    /// The last epoch that lies before the present.
    epochs: [u32; CLOCKS],
    /// How many proxy fences lie before it.
    fences: [u32; CLOCKS],
}

impl Default for Known {
    fn default() -> Self {
        Known { epochs: [0; CLOCKS], fences: [0; CLOCKS] }
    }
}

impl Known {
    fn join(&mut self, other: &Known) {
        self.epochs.iter_mut().zip(other.epochs).for_each(|(a, b)| *a = (*a).max(b));
        self.fences.iter_mut().zip(other.fences).for_each(|(a, b)| *a = (*a).max(b));
    }
}

/// Who accesses: an entry is `epoch << 32 | pc << 12 | strong << 11 | thread`.
#[derive(Clone, Copy)]
pub(crate) struct Who {
    pub thread: u32,
    pub pc: u32,
    pub strong: bool,
}

fn entry(epoch: u32, who: Who) -> u64 {
    u64::from(epoch) << 32 | u64::from(who.pc) << 12 | u64::from(who.strong) << 11 | u64::from(who.thread)
}

fn epoch_of(entry: u64) -> u32 {
    (entry >> 32) as u32
}

fn thread_of(entry: u64) -> u32 {
    entry as u32 & 2047
}

fn strong_of(entry: u64) -> bool {
    entry >> 11 & 1 == 1
}

/// An earlier access that conflicts: its thread, instruction, and whether it
/// wrote.
pub(crate) struct Conflict {
    pub thread: u32,
    pub pc: u32,
    pub wrote: bool,
    pub address: u64,
}

/// Why an access to shared memory is not allowed.
pub(crate) enum Refused {
    Fault(Box<FaultKind>),
    Race(Conflict),
}

/// The present of each warp, and what it knows.
struct Clocks {
    /// The first epoch of this block.
    base: u32,
    epoch: [u32; CLOCKS],
    known: Box<[Known; CLOCKS]>,
}

impl Clocks {
    /// What an access leaves behind.
    #[inline]
    fn entry(&self, who: Who) -> u64 {
        entry(self.epoch[(who.thread / 32) as usize], who)
    }

    fn recent(&self, who: Who) -> Recent<'_> {
        Recent { clocks: self, warp: (who.thread / 32) as usize, last: (0, false) }
    }

    /// Whether an earlier access is over, as far as all threads of a warp can know.
    #[inline]
    fn over(&self, earlier: u64, warp: usize) -> bool {
        let epoch = epoch_of(earlier);
        let theirs = (thread_of(earlier) / 32) as usize;
        epoch < self.base
            || if warp == theirs { epoch < self.epoch[warp] } else { epoch <= self.known[warp].epochs[theirs] }
    }

    /// Whether an earlier access is over, as far as this thread can know.
    #[inline]
    fn ordered(&self, earlier: u64, who: Who) -> bool {
        thread_of(earlier) == who.thread || self.over(earlier, (who.thread / 32) as usize)
    }

    /// Whether an access races with an earlier one, if one of both writes.
    #[inline]
    fn races(&self, earlier: u64, who: Who) -> bool {
        !self.ordered(earlier, who) && (!who.strong || !strong_of(earlier))
    }
}

/// [`Clocks`] for a warp and one entry after another, most of which differ from the one before in the lane alone.
struct Recent<'a> {
    clocks: &'a Clocks,
    warp: usize,
    /// The last entry, as that of its highest lane, or 0, and whether it is over for the warp.
    last: (u64, bool),
}

impl Recent<'_> {
    #[inline]
    fn ordered(&mut self, earlier: u64, who: Who) -> bool {
        if earlier | 31 != self.last.0 {
            self.last = (earlier | 31, self.clocks.over(earlier, self.warp));
        }
        self.last.1 || thread_of(earlier) == who.thread
    }

    #[inline]
    fn races(&mut self, earlier: u64, who: Who) -> bool {
        !self.ordered(earlier, who) && (!who.strong || !strong_of(earlier))
    }
}

pub(crate) struct Shared {
    data: Vec<u8>,
    pub layout: Layout,
    /// log2 of the granule.
    shift: u32,
    writes: Vec<u64>,
    reads: Vec<[u64; 2]>,
    /// Granules that an asynchronous copy is still to write.
    pending: Vec<u8>,
    pub pending_copies: u32,
    clocks: Clocks,
    /// Of each granule, which proxy fence of its writer makes the write known
    /// to the asynchronous proxy. Empty if nothing is read by that.
    fence_needed: Vec<u32>,
    /// How many products under way read a granule.
    reading: Vec<u16>,
    /// Where each `mbarrier` is.
    barriers: Vec<u64>,
}

impl Shared {
    pub fn new(layout: Layout, granule: u32, async_proxy: bool) -> Self {
        let bytes = layout.end() as usize;
        let shift = granule.trailing_zeros();
        let granules = (bytes >> shift) + 16;
        Shared {
            data: vec![0; bytes],
            layout,
            shift,
            writes: vec![0; granules],
            reads: vec![[0; 2]; granules],
            pending: Vec::new(),
            pending_copies: 0,
            clocks: Clocks { base: 1, epoch: [1; CLOCKS], known: Box::new([Known::default(); CLOCKS]) },
            fence_needed: vec![0; if async_proxy { granules } else { 0 }],
            reading: vec![0; if async_proxy { granules } else { 0 }],
            barriers: Vec::new(),
        }
    }

    /// Forgets all contents: a new block begins.
    pub fn reset(&mut self) {
        self.clocks.base = self.clocks.epoch.iter().max().unwrap_or(&0) + 1;
        self.clocks.epoch = [self.clocks.base; CLOCKS];
        self.barriers.clear();
        self.pending_copies = 0;
        self.pending.fill(0);
        self.reading.fill(0);
    }

    /// All lanes of a warp have synchronised.
    pub fn warp_barrier(&mut self, warp: usize) {
        self.clocks.epoch[warp] += 1;
    }

    /// What a warp that arrives at a barrier brings along.
    pub fn arrive(&mut self, warp: usize, joined: &mut Known) {
        self.clocks.known[warp].epochs[warp] = self.clocks.epoch[warp];
        joined.join(&self.clocks.known[warp]);
        self.clocks.epoch[warp] += 1;
    }

    /// A warp leaves a barrier with what all have brought.
    pub fn leave(&mut self, warp: usize, joined: &Known) {
        self.clocks.known[warp].join(joined);
    }

    /// A warp has executed a proxy fence.
    pub fn proxy_fence(&mut self, warp: usize) {
        self.clocks.known[warp].fences[warp] += 1;
    }

    pub fn nearest(&self, address: u64) -> Nearest {
        let before = self.layout.ranges.iter().filter(|r| r.start <= address);
        match before.max_by_key(|r| r.start).or(self.layout.ranges.first()) {
            Some(Range { name, start, end }) => {
                Nearest { name: Some(name.clone()), offset: address as i64 - *start as i64, bytes: end - start }
            }
            None => Nearest::default(),
        }
    }

    fn check(&self, address: u64, bytes: u32) -> Result<(), Refused> {
        let space = Space::Shared;
        if self.layout.find(address, u64::from(bytes)).is_none() {
            let nearest = self.nearest(address);
            let kind = FaultKind::OutOfBounds { space, address, bytes, nearest };
            return Err(Refused::Fault(Box::new(kind)));
        }
        if !is_aligned(address, bytes) {
            let nearest = self.nearest(address);
            let kind = FaultKind::Misaligned { space, address, bytes, nearest };
            return Err(Refused::Fault(Box::new(kind)));
        }
        if self.barriers.iter().any(|b| address < b + 8 && *b < address + u64::from(bytes)) {
            let reason = "it is accessed as memory, or made again".to_owned();
            return Err(Refused::Fault(Box::new(FaultKind::BadMbarrier { address, reason })));
        }
        Ok(())
    }

    fn race(&self, earlier: u64, wrote: bool, granule: usize) -> Refused {
        Refused::Race(Conflict {
            thread: thread_of(earlier),
            pc: (earlier >> 12) as u32 & 0xf_ffff,
            wrote,
            address: (granule as u64) << self.shift,
        })
    }

    fn granules(&self, address: u64, bytes: u32) -> std::ops::Range<usize> {
        let first = (address >> self.shift) as usize;
        first..first + ((bytes as usize) >> self.shift).max(1)
    }

    /// Whether all bytes from one address to another are of one variable, and none of an `mbarrier`: then aligned accesses
    /// between them need no further checks but of races and the like.
    #[inline]
    pub fn holds(&self, start: u64, end: u64) -> bool {
        self.layout.find(start, end - start).is_some() && !self.barriers.iter().any(|b| start < b + 8 && *b < end)
    }

    /// The bytes to load.
    #[inline]
    pub fn load(&mut self, address: u64, bytes: u32, who: Who) -> Result<&[u8], Refused> {
        self.check(address, bytes)?;
        let me = self.clocks.entry(who);
        for g in self.granules(address, bytes) {
            let write = self.writes[g];
            if epoch_of(write) < self.clocks.base {
                let nearest = self.nearest(address);
                let space = Space::Shared;
                let kind = FaultKind::UninitialisedMemory { space, address, bytes, nearest };
                return Err(Refused::Fault(Box::new(kind)));
            }
            if self.pending_copies > 0 && self.pending[g] != 0 {
                let nearest = self.nearest(address);
                return Err(Refused::Fault(Box::new(FaultKind::PendingCopy { address, nearest })));
            }
            if self.clocks.races(write, who) {
                return Err(self.race(write, true, g));
            }
            let [first, second] = self.reads[g];
            if self.clocks.ordered(first, who) {
                self.reads[g][0] = me;
            } else if self.clocks.ordered(second, who) {
                self.reads[g][1] = me;
            }
        }
        Ok(&self.data[address as usize..address as usize + bytes as usize])
    }

    /// What a warp loads whose lanes, from that of `who` on, load so many bytes each, side by side, where it is known that
    /// the bytes can be accessed. `None` if that is not as simple, or not allowed in some lane: lane by lane will tell.
    pub fn load_row(&mut self, address: u64, bytes: u32, lanes: usize, who: Who) -> Option<&[u8]> {
        let per_lane = bytes.checked_shr(self.shift).filter(|&n| n > 0)?.trailing_zeros();
        let granules = self.granules(address, bytes * lanes as u32);
        if self.pending_copies > 0 && self.pending[granules.clone()].iter().any(|&n| n != 0) {
            return None;
        }
        let (me, base) = (self.clocks.entry(who), self.clocks.base);
        let recent = || self.clocks.recent(who);
        let (mut writes, mut first, mut second) = (recent(), recent(), recent());
        let entries = self.writes[granules.clone()].iter().zip(&mut self.reads[granules]);
        for (i, (&write, read)) in entries.enumerate() {
            let lane = (i >> per_lane) as u32;
            let (me, who) = (me + u64::from(lane), Who { thread: who.thread + lane, ..who });
            if epoch_of(write) < base || writes.races(write, who) {
                return None;
            }
            if first.ordered(read[0], who) {
                read[0] = me;
            } else if second.ordered(read[1], who) {
                read[1] = me;
            }
        }
        Some(&self.data[address as usize..][..bytes as usize * lanes])
    }

    /// As [`load_row`](Shared::load_row), for bytes to store into.
    pub fn store_row(&mut self, address: u64, bytes: u32, lanes: usize, who: Who) -> Option<&mut [u8]> {
        let per_lane = bytes.checked_shr(self.shift).filter(|&n| n > 0)?.trailing_zeros();
        // What the asynchronous proxy reads is looked at by granules.
        if !self.reading.is_empty() {
            return None;
        }
        let granules = self.granules(address, bytes * lanes as u32);
        let me = self.clocks.entry(who);
        let recent = || self.clocks.recent(who);
        let (mut writes, mut first, mut second) = (recent(), recent(), recent());
        let entries = self.writes[granules.clone()].iter_mut().zip(&mut self.reads[granules]);
        for (i, (write, read)) in entries.enumerate() {
            let lane = (i >> per_lane) as u32;
            let (me, who) = (me + u64::from(lane), Who { thread: who.thread + lane, ..who });
            if writes.races(*write, who) || first.races(read[0], who) || second.races(read[1], who) {
                return None;
            }
            *write = me;
            *read = [0; 2];
        }
        Some(&mut self.data[address as usize..][..bytes as usize * lanes])
    }

    /// The bytes to store into, or to change atomically.
    #[inline]
    pub fn store(&mut self, address: u64, bytes: u32, who: Who, atomic: bool) -> Result<&mut [u8], Refused> {
        self.check(address, bytes)?;
        self.store_inside(address, bytes, who, atomic)
    }

    /// As [`store`](Shared::store), where it is known that the bytes can be accessed.
    fn store_inside(&mut self, address: u64, bytes: u32, who: Who, atomic: bool) -> Result<&mut [u8], Refused> {
        let me = self.clocks.entry(who);
        for g in self.granules(address, bytes) {
            if self.reading.get(g).is_some_and(|&n| n > 0) {
                let nearest = self.nearest(address);
                return Err(Refused::Fault(Box::new(FaultKind::PendingRead { address, nearest })));
            }
            let write = self.writes[g];
            if atomic && epoch_of(write) < self.clocks.base {
                let nearest = self.nearest(address);
                let space = Space::Shared;
                let kind = FaultKind::UninitialisedMemory { space, address, bytes, nearest };
                return Err(Refused::Fault(Box::new(kind)));
            }
            if self.clocks.races(write, who) {
                return Err(self.race(write, true, g));
            }
            for read in self.reads[g] {
                if self.clocks.races(read, who) {
                    return Err(self.race(read, false, g));
                }
            }
            if !self.reading.is_empty() {
                let warp = (who.thread / 32) as usize;
                self.fence_needed[g] = self.clocks.known[warp].fences[warp] + 1;
            }
            self.writes[g] = me;
            self.reads[g] = [0; 2];
        }
        Ok(&mut self.data[address as usize..address as usize + bytes as usize])
    }

    /// Makes 8 bytes an `mbarrier`.
    pub fn mbarrier_init(&mut self, address: u64, who: Who) -> Result<(), Refused> {
        self.store(address, 8, who, false)?;
        self.barriers.push(address);
        Ok(())
    }

    /// Demands that there is an `mbarrier`, which this thread knows to have been made.
    pub fn mbarrier_at(&self, address: u64, who: Who) -> Result<(), Refused> {
        if !self.barriers.contains(&address) {
            let reason = "there is none".to_owned();
            return Err(Refused::Fault(Box::new(FaultKind::BadMbarrier { address, reason })));
        }
        match self.granules(address, 8).find(|&g| self.clocks.races(self.writes[g], who)) {
            Some(g) => Err(self.race(self.writes[g], true, g)),
            None => Ok(()),
        }
    }

    /// Makes an `mbarrier` plain memory.
    pub fn mbarrier_inval(&mut self, address: u64, who: Who) -> Result<(), Refused> {
        self.barriers.retain(|&b| b != address);
        self.store(address, 8, who, false).map(|_| ())
    }

    /// Marks 16 bytes as the target of a bulk copy.
    pub fn bulk_begins(&mut self, address: u64, who: Who) -> Result<(), Refused> {
        let mine = (who.thread / 32) as usize;
        self.check(address, 16)?;
        for g in self.granules(address, 16) {
            let writer = (thread_of(self.writes[g]) / 32) as usize;
            let written = epoch_of(self.writes[g]) >= self.clocks.base;
            let nearest = self.nearest(address);
            if self.pending.get(g).is_some_and(|&n| n > 0) {
                return Err(Refused::Fault(Box::new(FaultKind::PendingCopy { address, nearest })));
            }
            if written
                && self.clocks.ordered(self.writes[g], who)
                && self.clocks.known[mine].fences[writer] < self.fence_needed[g]
            {
                return Err(Refused::Fault(Box::new(FaultKind::ProxyFence { address, nearest })));
            }
        }
        self.copy_begins(address, 16, who)
    }

    /// A bulk copy has arrived at a barrier.
    pub fn bulk_ends(&mut self, units: &[(u64, [u8; 16])], joined: &mut Known) {
        let copier = CLOCKS - 1;
        let me = entry(self.clocks.epoch[copier], Who { thread: COPIER, pc: 0, strong: false });
        for (address, unit) in units {
            self.data[*address as usize..*address as usize + 16].copy_from_slice(unit);
            for g in self.granules(*address, 16) {
                self.writes[g] = me;
                self.reads[g] = [0; 2];
                self.fence_needed[g] = 0;
                self.pending[g] = self.pending[g].saturating_sub(1);
            }
            self.pending_copies -= 1;
        }
        joined.epochs[copier] = self.clocks.epoch[copier];
        self.clocks.epoch[copier] += 1;
    }

    /// The 16 bytes that a product reads.
    pub fn product_reads(&mut self, address: u64, who: Who) -> Result<[u8; 16], Refused> {
        let mut unit = [0; 16];
        unit.copy_from_slice(self.load(address, 16, who)?);
        let mine = (who.thread / 32) as usize;
        for g in self.granules(address, 16) {
            let writer = (thread_of(self.writes[g]) / 32) as usize;
            if self.clocks.known[mine].fences[writer] < self.fence_needed[g] {
                let nearest = self.nearest(address);
                return Err(Refused::Fault(Box::new(FaultKind::ProxyFence { address, nearest })));
            }
        }
        Ok(unit)
    }

    /// From here on 16 bytes may not be written.
    pub fn product_begins(&mut self, address: u64) {
        for g in self.granules(address, 16) {
            self.reading[g] += 1;
        }
    }

    /// They may again, by those who know that this thread has waited.
    pub fn product_ends(&mut self, address: u64, who: Who) {
        let me = self.clocks.entry(who);
        for g in self.granules(address, 16) {
            self.reading[g] -= 1;
            let at = usize::from(!self.clocks.ordered(self.reads[g][0], who));
            if at == 0 || self.clocks.ordered(self.reads[g][1], who) {
                self.reads[g][at] = me;
            }
        }
    }

    /// Marks the target of an asynchronous copy: written from now on, but not
    /// to be read before [`Shared::copy_done`].
    pub fn copy_begins(&mut self, address: u64, bytes: u32, who: Who) -> Result<(), Refused> {
        self.check(address, bytes)?;
        self.copy_begins_inside(address, bytes, who)
    }

    /// As [`copy_begins`](Shared::copy_begins), where it is known that the bytes can be accessed.
    pub fn copy_begins_inside(&mut self, address: u64, bytes: u32, who: Who) -> Result<(), Refused> {
        if self.pending.is_empty() {
            self.pending = vec![0; self.writes.len()];
        }
        self.store_inside(address, bytes, who, false)?;
        for g in self.granules(address, bytes) {
            self.pending[g] = self.pending[g].saturating_add(1);
        }
        self.pending_copies += 1;
        Ok(())
    }

    pub fn copy_done(&mut self, address: u64, data: &[u8], who: Who) -> Result<(), Refused> {
        let bytes = data.len() as u32;
        self.store(address, bytes, who, false)?.copy_from_slice(data);
        for g in self.granules(address, bytes) {
            self.pending[g] = self.pending[g].saturating_sub(1);
        }
        self.pending_copies -= 1;
        Ok(())
    }
}
