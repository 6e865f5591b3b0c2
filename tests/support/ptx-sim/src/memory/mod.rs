//! Device memory: allocations with bounds, and which of their bytes have been
//! written.

pub(crate) mod access;
pub(crate) mod blocks;
pub(crate) mod descriptor;
pub(crate) mod mbarrier;
pub(crate) mod shared;
pub(crate) mod tensormap;

use crate::fault::{FaultKind, Nearest};
use crate::memory::blocks::{Blocks, Seen};
use crate::parse::syntax::Space;

/// The address of device memory, as a kernel argument.
///
/// Each allocation has an address range of its own, far from every other, and
/// starts at a multiple of 256 (and of no more), as a device allocator gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DevicePtr(pub u64);

impl DevicePtr {
    /// The address `bytes` further on.
    ///
    /// ```
    /// let mut memory = ptx_sim::Memory::new();
    /// let p = memory.alloc_from(&[1, 2, 3, 4]);
    /// assert_eq!(p.offset(2).0, p.0 + 2);
    /// ```
    #[must_use]
    pub fn offset(self, bytes: u64) -> DevicePtr {
        DevicePtr(self.0.wrapping_add(bytes))
    }
}

/// Whether an access of so many bytes, a power of two, is aligned.
#[inline]
pub(crate) fn is_aligned(address: u64, bytes: u32) -> bool {
    debug_assert!(bytes.is_power_of_two());
    address & u64::from(bytes - 1) == 0
}

const REGION: u32 = 36;
const START: u64 = 256;

/// What a kernel has read from and written to an allocation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes loaded, counted once for each thread that loads them.
    pub loaded: u64,
    /// Bytes stored, likewise.
    pub stored: u64,
}

#[derive(Clone, Debug)]
struct Allocation {
    data: Vec<u8>,
    /// One bit a byte, until every byte is written.
    written: Option<Vec<u64>>,
    name: Option<String>,
    read_only: bool,
    freed: bool,
    traffic: Traffic,
    /// Which blocks of the launch have accessed each piece.
    seen: Seen,
}

/// The global memory of the device.
///
/// ```
/// let mut memory = ptx_sim::Memory::new();
/// let p = memory.alloc_from(&[1, 2, 3, 4]);
/// assert_eq!(memory.bytes(p), &[1, 2, 3, 4]);
/// let q = memory.alloc(8);
/// assert_eq!(memory.unwritten(q), Some(0));
/// ```
#[derive(Clone, Debug, Default)]
pub struct Memory {
    allocations: Vec<Allocation>,
    blocks: Blocks,
}

/// The place of an access: an allocation and a byte range in it.
pub(crate) struct Place {
    pub allocation: usize,
    pub start: usize,
}

impl Place {
    /// The place so many bytes further on.
    #[inline]
    pub fn offset(&self, bytes: u64) -> Place {
        Place { allocation: self.allocation, start: self.start + bytes as usize }
    }

    fn address(&self) -> u64 {
        ((self.allocation as u64 + 1) << REGION) + START + self.start as u64
    }

    /// Which bits of which words say that the bytes are written.
    #[inline]
    fn written_bits(&self, bytes: usize) -> impl Iterator<Item = (usize, u64)> + use<> {
        let (start, end) = (self.start, self.start + bytes);
        (start / 64..end.div_ceil(64)).map(move |word| {
            let from = u64::MAX << start.saturating_sub(64 * word);
            let to = u64::MAX >> (64 * (word + 1)).saturating_sub(end);
            (word, from & to)
        })
    }
}

impl Memory {
    /// Memory with no allocation.
    #[must_use]
    pub fn new() -> Self {
        Memory::default()
    }

    fn push(&mut self, data: Vec<u8>, written: bool) -> DevicePtr {
        let bits = vec![0; data.len().div_ceil(64)];
        self.allocations.push(Allocation {
            written: if written || data.is_empty() { None } else { Some(bits) },
            data,
            name: None,
            read_only: false,
            freed: false,
            traffic: Traffic::default(),
            seen: Seen::default(),
        });
        DevicePtr(((self.allocations.len() as u64) << REGION) + START)
    }

    /// Allocates `bytes` bytes that count as uninitialised.
    pub fn alloc(&mut self, bytes: usize) -> DevicePtr {
        self.push(vec![0xcd; bytes], false)
    }

    /// Allocates a copy of `data`.
    pub fn alloc_from(&mut self, data: &[u8]) -> DevicePtr {
        self.push(data.to_vec(), true)
    }

    /// Allocates a copy of `data` that a kernel may not write.
    pub fn alloc_read_only(&mut self, data: &[u8]) -> DevicePtr {
        let ptr = self.push(data.to_vec(), true);
        if let Some(last) = self.allocations.last_mut() {
            last.read_only = true;
        }
        ptr
    }

    pub(crate) fn name_last(&mut self, name: &str) {
        if let Some(last) = self.allocations.last_mut() {
            last.name = Some(name.to_owned());
        }
    }

    /// Frees the allocation at `ptr`; later accesses to it are faults.
    ///
    /// # Panics
    /// If `ptr` is not the start of an allocation.
    #[track_caller]
    pub fn free(&mut self, ptr: DevicePtr) {
        let allocation = self.at_mut(ptr);
        allocation.freed = true;
        allocation.data = Vec::new();
    }

    #[track_caller]
    fn index(&self, ptr: DevicePtr) -> usize {
        let index = (ptr.0 >> REGION).wrapping_sub(1) as usize;
        assert!(
            index < self.allocations.len() && ptr.0 & ((1 << REGION) - 1) == START,
            "{ptr:?} is not the start of an allocation"
        );
        index
    }

    #[track_caller]
    fn at(&self, ptr: DevicePtr) -> &Allocation {
        &self.allocations[self.index(ptr)]
    }

    #[track_caller]
    fn at_mut(&mut self, ptr: DevicePtr) -> &mut Allocation {
        let index = self.index(ptr);
        &mut self.allocations[index]
    }

    /// The bytes of an allocation, whether written or not.
    ///
    /// # Panics
    /// If `ptr` is not the start of an allocation.
    #[must_use]
    #[track_caller]
    pub fn bytes(&self, ptr: DevicePtr) -> &[u8] {
        &self.at(ptr).data
    }

    /// The offset of the first byte that nothing has written.
    ///
    /// # Panics
    /// If `ptr` is not the start of an allocation.
    #[must_use]
    #[track_caller]
    pub fn unwritten(&self, ptr: DevicePtr) -> Option<usize> {
        let allocation = self.at(ptr);
        let bits = allocation.written.as_ref()?;
        (0..allocation.data.len()).find(|i| bits[i / 64] >> (i % 64) & 1 == 0)
    }

    /// What the kernels so far have loaded and stored in an allocation.
    ///
    /// # Panics
    /// If `ptr` is not the start of an allocation.
    #[must_use]
    #[track_caller]
    pub fn traffic(&self, ptr: DevicePtr) -> Traffic {
        self.at(ptr).traffic
    }

    /// The size of the allocation that starts at `ptr` and is not freed, if there is one.
    #[must_use]
    pub fn live(&self, ptr: DevicePtr) -> Option<usize> {
        let allocation = self.allocations.get((ptr.0 >> REGION).wrapping_sub(1) as usize)?;
        (ptr.0 & ((1 << REGION) - 1) == START && !allocation.freed).then_some(allocation.data.len())
    }

    /// Checks the bounds of a transfer.
    fn stretch(&self, ptr: DevicePtr, bytes: usize) -> Result<(usize, std::ops::Range<usize>), FaultKind> {
        let index = (ptr.0 >> REGION).wrapping_sub(1) as usize;
        let start = (ptr.0 & ((1 << REGION) - 1)).wrapping_sub(START) as usize;
        match self.allocations.get(index) {
            Some(a) if start <= a.data.len() && bytes <= a.data.len() - start => Ok((index, start..start + bytes)),
            _ => {
                let (space, nearest) = (Space::Global, self.nearest(ptr.0));
                Err(FaultKind::OutOfBounds { space, address: ptr.0, bytes: bytes as u32, nearest })
            }
        }
    }

    /// Writes bytes from the host, anywhere inside an allocation.
    ///
    /// # Errors
    /// When they do not lie inside one allocation that is not freed.
    pub fn write(&mut self, ptr: DevicePtr, data: &[u8]) -> Result<(), FaultKind> {
        let (index, range) = self.stretch(ptr, data.len())?;
        let a = &mut self.allocations[index];
        if let Some(bits) = &mut a.written {
            range.clone().for_each(|i| bits[i / 64] |= 1 << (i % 64));
        }
        a.data[range].copy_from_slice(data);
        Ok(())
    }

    /// Reads bytes to the host, from anywhere inside an allocation.
    ///
    /// # Errors
    /// When they do not lie inside one allocation that is not freed, or one of them was never written.
    pub fn read(&self, ptr: DevicePtr, bytes: usize) -> Result<&[u8], FaultKind> {
        let (index, range) = self.stretch(ptr, bytes)?;
        let a = &self.allocations[index];
        if let Some(bits) = &a.written
            && let Some(i) = range.clone().find(|i| bits[i / 64] >> (i % 64) & 1 == 0)
        {
            let address = ptr.0 + (i - range.start) as u64;
            let (space, nearest) = (Space::Global, self.nearest(address));
            return Err(FaultKind::UninitialisedMemory { space, address, bytes: 1, nearest });
        }
        Ok(&a.data[range])
    }

    fn nearest(&self, address: u64) -> Nearest {
        let index = (address >> REGION).wrapping_sub(1) as usize;
        match self.allocations.get(index) {
            Some(a) => Nearest {
                name: Some(match (&a.name, a.freed) {
                    (Some(name), _) => name.clone(),
                    (None, false) => format!("allocation {index}"),
                    (None, true) => format!("freed allocation {index}"),
                }),
                offset: (address & ((1 << REGION) - 1)) as i64 - START as i64,
                bytes: a.data.len() as u64,
            },
            None => Nearest::default(),
        }
    }

    /// A launch begins, or, with the default, has ended.
    pub(crate) fn launch(&mut self, blocks: Blocks) {
        self.blocks = blocks;
        self.allocations.iter_mut().for_each(|a| a.seen = Seen::default());
    }

    /// The next block of the launch begins.
    pub(crate) fn next_block(&mut self) {
        self.blocks.next();
    }

    /// Notes an access inside an allocation; a race with another block is a fault.
    #[inline]
    fn note(&mut self, place: &Place, bytes: usize, writes: bool, strong: bool) -> Result<(), Box<FaultKind>> {
        let a = &mut self.allocations[place.allocation];
        if self.blocks.running == 0 || a.read_only {
            return Ok(());
        }
        let shift = self.blocks.shift;
        let pieces = place.start >> shift..((place.start + bytes - 1) >> shift) + 1;
        let count = (a.data.len() >> shift) + 1;
        let Some(earlier) = self.blocks.note(&mut a.seen, count, pieces, writes, strong) else { return Ok(()) };
        let address = place.address();
        let (other, other_wrote, nearest) = (earlier.block, earlier.wrote, self.nearest(address));
        Err(Box::new(FaultKind::RaceOfBlocks { address, other, other_wrote, nearest }))
    }

    /// The place of so many bytes, if they are inside one allocation.
    #[inline]
    pub(crate) fn inside(&self, address: u64, bytes: u64) -> Option<Place> {
        let allocation = (address >> REGION).wrapping_sub(1) as usize;
        let start = (address & ((1 << REGION) - 1)).wrapping_sub(START) as usize;
        let size = self.allocations.get(allocation)?.data.len();
        (start < size && bytes as usize <= size - start).then_some(Place { allocation, start })
    }

    /// Checks bounds and alignment.
    #[inline]
    pub(crate) fn resolve(&self, address: u64, bytes: u32) -> Result<Place, Box<FaultKind>> {
        let space = Space::Global;
        let Some(place) = self.inside(address, u64::from(bytes)) else {
            let nearest = self.nearest(address);
            return Err(Box::new(FaultKind::OutOfBounds { space, address, bytes, nearest }));
        };
        if !is_aligned(address, bytes) {
            let nearest = self.nearest(address);
            return Err(Box::new(FaultKind::Misaligned { space, address, bytes, nearest }));
        }
        Ok(place)
    }

    /// The bytes to load; `strong`: what does so at the same time does not race.
    #[inline]
    pub(crate) fn load(&mut self, address: u64, bytes: u32, strong: bool) -> Result<&[u8], Box<FaultKind>> {
        let place = self.resolve(address, bytes)?;
        self.load_at(&place, bytes as usize, strong)
    }

    /// As [`load`](Memory::load), where bounds and alignment are checked; also of all lanes of a warp at once, where these
    /// load side by side. Unless all may, nothing has changed then.
    #[inline]
    pub(crate) fn load_at(&mut self, place: &Place, bytes: usize, strong: bool) -> Result<&[u8], Box<FaultKind>> {
        if let Some(bits) = &self.allocations[place.allocation].written
            && place.written_bits(bytes).any(|(word, mask)| bits[word] & mask != mask)
        {
            let address = place.address();
            let (space, bytes, nearest) = (Space::Global, bytes as u32, self.nearest(address));
            return Err(Box::new(FaultKind::UninitialisedMemory { space, address, bytes, nearest }));
        }
        self.note(place, bytes, false, strong)?;
        let a = &mut self.allocations[place.allocation];
        a.traffic.loaded += bytes as u64;
        Ok(&a.data[place.start..][..bytes])
    }

    /// The bytes to store into; they count as written.
    #[inline]
    pub(crate) fn store(&mut self, address: u64, bytes: u32, strong: bool) -> Result<&mut [u8], Box<FaultKind>> {
        let place = self.resolve(address, bytes)?;
        self.store_at(&place, bytes as usize, strong)
    }

    /// As [`store`](Memory::store), where bounds and alignment are checked; also of all lanes of a warp at once, where these
    /// store side by side. Unless all may, nothing has changed then.
    #[inline]
    pub(crate) fn store_at(&mut self, place: &Place, bytes: usize, strong: bool) -> Result<&mut [u8], Box<FaultKind>> {
        if self.allocations[place.allocation].read_only {
            let address = place.address();
            return Err(Box::new(FaultKind::ReadOnly { address, nearest: self.nearest(address) }));
        }
        self.note(place, bytes, true, strong)?;
        let a = &mut self.allocations[place.allocation];
        if let Some(bits) = &mut a.written {
            place.written_bits(bytes).for_each(|(word, mask)| bits[word] |= mask);
        }
        a.traffic.stored += bytes as u64;
        Ok(&mut a.data[place.start..][..bytes])
    }
}
