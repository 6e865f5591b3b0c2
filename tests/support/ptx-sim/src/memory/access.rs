//! Loads, stores, atomics and asynchronous copies of a warp.

use crate::exec::{Halt, Machine, operand, refused, split, trouble};
use crate::fault::{FaultKind, Nearest};
use crate::memory::shared::Who;
use crate::memory::{Place, is_aligned};
use crate::parse::syntax::Space;
use crate::program::{Address, Atom, Load, Reg, Store};
use crate::stats::NOWHERE;
use crate::warp::{PendingCopy, Row, Warp, lanes};

/// The addresses of a warp's access, by lane.
pub(crate) struct Addresses {
    pub space: [Space; 32],
    pub at: Row,
    /// Of each lane.
    bytes: u32,
    /// How many of the lanes access global memory.
    global: u64,
    /// What all lanes together access, if that is aligned and in one space.
    stretch: Option<Stretch>,
}

#[derive(Clone, Copy)]
struct Stretch {
    space: Space,
    start: u64,
    end: u64,
    /// Whether the lanes, from the first one on, access it side by side.
    side_by_side: bool,
}

/// What holds all that the lanes of a warp access, so that bounds and alignment are checked.
enum Whole {
    /// An allocation: the place of an address, which is no higher than those of the lanes.
    Global(Place, u64),
    /// A variable in shared memory.
    Shared,
    No,
}

impl Addresses {
    /// Those of lanes of `mask`, which access so many bytes each.
    fn new(space: Space, mut at: Row, mask: u32, bytes: u32) -> Addresses {
        let first = mask.trailing_zeros() as usize % 32;
        let (spaces, one_space) = if space == Space::Generic {
            let mut spaces = [space; 32];
            for lane in lanes(mask) {
                (spaces[lane], at[lane]) = split(space, at[lane]);
            }
            (spaces, lanes(mask).all(|lane| spaces[lane] == spaces[first]))
        } else {
            ([split(space, 0).0; 32], true)
        };
        let global = match one_space {
            true => u64::from(mask.count_ones()) * u64::from(spaces[first] == Space::Global),
            false => lanes(mask).filter(|lane| spaces[*lane] == Space::Global).count() as u64,
        };
        let (start, size) = (at[first], u64::from(bytes));
        let count = mask.trailing_ones();
        // Of any lane that is not next to the one before, some bit remains.
        let mut next = start;
        let apart = at[..count as usize].iter().fold(0, |apart, at| {
            let apart = apart | (at ^ next);
            next = next.wrapping_add(size);
            apart
        });
        let side_by_side = count == mask.count_ones() && apart == 0;
        let (low, high, bits) = if side_by_side {
            (start, start.wrapping_add(u64::from(count - 1) * size), start)
        } else {
            let wider = |(low, high, bits): (u64, u64, u64), at: u64| (low.min(at), high.max(at), bits | at);
            lanes(mask).fold((start, start, 0), |all, lane| wider(all, at[lane]))
        };
        let end = high.checked_add(size).filter(|_| low <= high && is_aligned(bits, bytes) && one_space);
        let stretch = end.map(|end| Stretch { space: spaces[first], start: low, end, side_by_side });
        Addresses { space: spaces, at, bytes, global, stretch }
    }

    /// Lanes of `mask` that follow each other and access memory side by side: the first one and how many.
    fn runs(&self, mask: u32) -> Runs<'_> {
        let side_by_side = self.stretch.is_some_and(|all| all.side_by_side);
        Runs { rest: mask, at: &self.at, bytes: self.bytes, side_by_side }
    }
}

struct Runs<'a> {
    rest: u32,
    at: &'a Row,
    bytes: u32,
    /// Whether all are known to be one run.
    side_by_side: bool,
}

impl Runs<'_> {
    /// How many of some addresses follow each other.
    fn together(&self, at: &[u64]) -> usize {
        let next = |i: usize| at[0].wrapping_add(i as u64 * u64::from(self.bytes));
        (1..at.len()).find(|i| at[*i] != next(*i)).unwrap_or(at.len())
    }
}

impl Iterator for Runs<'_> {
    type Item = (usize, usize);

    #[inline]
    fn next(&mut self) -> Option<(usize, usize)> {
        if self.rest == 0 {
            return None;
        }
        let first = self.rest.trailing_zeros() as usize;
        let most = (self.rest >> first).trailing_ones() as usize;
        let count = if self.side_by_side { most } else { self.together(&self.at[first..first + most]) };
        self.rest &= !(u32::MAX >> (32 - count) << first);
        Some((first, count))
    }
}

/// An element of 1, 2, 4 or 8 bytes. By its width, so that it is one load and no copy of so many bytes.
#[inline]
fn element(bytes: &[u8]) -> u64 {
    match *bytes {
        [a] => a.into(),
        [a, b] => u16::from_le_bytes([a, b]).into(),
        [a, b, c, d] => u32::from_le_bytes([a, b, c, d]).into(),
        _ => bytes.first_chunk().map_or(0, |all| u64::from_le_bytes(*all)),
    }
}

/// Writes the low bytes of a value, as many as there is room for.
#[inline]
fn put(bytes: &mut [u8], value: u64) {
    let all = value.to_le_bytes();
    match bytes.len() {
        1 => bytes[0] = all[0],
        2 => bytes.copy_from_slice(&all[..2]),
        4 => bytes.copy_from_slice(&all[..4]),
        _ => bytes.copy_from_slice(&all),
    }
}

/// The element of `SIZE` bytes at an offset in what each lane has, `N` bytes.
#[inline]
fn elements<const SIZE: usize, const N: usize>(row: &mut Row, all: &[[u8; N]; 32], offset: usize) {
    for (value, bytes) in row.iter_mut().zip(all) {
        *value = element(&bytes[offset..][..SIZE]);
    }
}

/// Puts the elements of `SIZE` bytes there.
#[inline]
fn put_elements<const SIZE: usize, const N: usize>(all: &mut [[u8; N]; 32], offset: usize, row: &Row) {
    for (bytes, value) in all.iter_mut().zip(row) {
        put(&mut bytes[offset..][..SIZE], *value);
    }
}

impl Machine<'_> {
    /// Resolves the addresses of `mask` and counts sectors and banks.
    pub fn addresses(&mut self, warp: &Warp, mask: u32, a: Address, bytes: u32, line: u32) -> Result<Addresses, Halt> {
        let mut at = *operand(self.program, warp, a.base, mask)?;
        at.iter_mut().for_each(|at| *at = at.wrapping_add(a.offset as u64));
        let out = Addresses::new(a.space, at, mask, bytes);
        if let Some(Stretch { space, start, side_by_side: true, .. }) = out.stretch {
            match space {
                Space::Global => self.stats.global_access_side_by_side(line, start, mask.count_ones(), bytes),
                Space::Shared => self.stats.shared_requests += 1,
                _ => {}
            }
            return Ok(out);
        }
        let (mut global, mut globals) = ([0u64; 32], 0);
        let mut shared = [NOWHERE; 32];
        for lane in lanes(mask) {
            match out.space[lane] {
                Space::Global => {
                    global[globals] = out.at[lane];
                    globals += 1;
                }
                Space::Shared => shared[lane] = out.at[lane],
                _ => {}
            }
        }
        if globals > 0 {
            self.stats.global_access(line, &global[..globals], bytes);
        }
        if shared.iter().any(|&at| at != NOWHERE) {
            self.stats.shared_access(line, &shared, bytes);
        }
        Ok(out)
    }

    pub fn who(warp: &Warp, lane: usize, strong: bool) -> Who {
        Who { thread: (warp.index * 32 + lane) as u32, pc: warp.pc, strong }
    }

    /// The place of a thread's local access.
    fn local_at(&self, warp: &Warp, lane: usize, address: u64, bytes: u32) -> Result<usize, Box<FaultKind>> {
        let space = Space::Local;
        match self.program.local.find(address, u64::from(bytes)) {
            None => {
                let nearest = Nearest::default();
                Err(Box::new(FaultKind::OutOfBounds { space, address, bytes, nearest }))
            }
            Some(_) if !is_aligned(address, bytes) => {
                let nearest = Nearest::default();
                Err(Box::new(FaultKind::Misaligned { space, address, bytes, nearest }))
            }
            Some(_) => Ok((warp.index * 32 + lane) * self.local_size + address as usize),
        }
    }

    /// The bytes that one lane loads.
    pub fn read(
        &mut self,
        warp: &Warp,
        lane: usize,
        space: Space,
        address: u64,
        bytes: u32,
        strong: bool,
    ) -> Result<&[u8], Halt> {
        let fault = |kind: Box<FaultKind>| trouble(*kind, lane as u32);
        match space {
            Space::Shared => {
                let who = Self::who(warp, lane, strong);
                self.shared.load(address, bytes, who).map_err(|r| refused(r, lane as u32))
            }
            Space::Local => {
                let at = self.local_at(warp, lane, address, bytes).map_err(fault)?;
                let range = at..at + bytes as usize;
                if !self.local_written[range.clone()].iter().all(|w| *w) {
                    let nearest = Nearest::default();
                    let kind = FaultKind::UninitialisedMemory { space, address, bytes, nearest };
                    return Err(trouble(kind, lane as u32));
                }
                Ok(&self.local[range])
            }
            Space::Param => {
                let inside = self.program.params.find(address, u64::from(bytes)).is_some();
                let nearest = Nearest::default();
                if !inside {
                    let kind = FaultKind::OutOfBounds { space, address, bytes, nearest };
                    return Err(trouble(kind, lane as u32));
                }
                if !is_aligned(address, bytes) {
                    let kind = FaultKind::Misaligned { space, address, bytes, nearest };
                    return Err(trouble(kind, lane as u32));
                }
                Ok(&self.params[address as usize..address as usize + bytes as usize])
            }
            _ => self.memory.load(address, bytes, strong).map_err(fault),
        }
    }

    /// The bytes that one lane stores into.
    fn write(
        &mut self,
        warp: &Warp,
        lane: usize,
        space: Space,
        address: u64,
        bytes: u32,
        strong: bool,
    ) -> Result<&mut [u8], Halt> {
        let fault = |kind: Box<FaultKind>| trouble(*kind, lane as u32);
        match space {
            Space::Shared => {
                let who = Self::who(warp, lane, strong);
                self.shared.store(address, bytes, who, false).map_err(|r| refused(r, lane as u32))
            }
            Space::Local => {
                let at = self.local_at(warp, lane, address, bytes).map_err(fault)?;
                let range = at..at + bytes as usize;
                self.local_written[range.clone()].fill(true);
                Ok(&mut self.local[range])
            }
            Space::Param => {
                let nearest = Nearest::default();
                Err(trouble(FaultKind::ReadOnly { address, nearest }, lane as u32))
            }
            _ => self.memory.store(address, bytes, strong).map_err(fault),
        }
    }

    fn whole(&self, addresses: &Addresses) -> Whole {
        match addresses.stretch {
            Some(Stretch { space: Space::Global, start, end, .. }) => {
                self.memory.inside(start, end - start).map_or(Whole::No, |place| Whole::Global(place, start))
            }
            Some(Stretch { space: Space::Shared, start, end, .. }) if self.shared.holds(start, end) => Whole::Shared,
            _ => Whole::No,
        }
    }

    /// What the lanes of `mask` load, `N` bytes each: by runs, and lane by lane where a run is not that simple, or some lane of
    /// it may not load.
    pub fn gather<const N: usize>(
        &mut self,
        warp: &Warp,
        mask: u32,
        from: &Addresses,
        strong: bool,
    ) -> Result<[[u8; N]; 32], Halt> {
        let (mut all, whole) = ([[0; N]; 32], self.whole(from));
        for (first, count) in from.runs(mask) {
            let (parts, at) = (&mut all[first..first + count], from.at[first]);
            let row = match &whole {
                Whole::Global(place, start) => self.memory.load_at(&place.offset(at - start), N * count, strong).ok(),
                Whole::Shared => self.shared.load_row(at, N as u32, count, Self::who(warp, first, strong)),
                Whole::No => None,
            };
            if let Some(row) = row {
                parts.as_flattened_mut().copy_from_slice(row);
                continue;
            }
            for (part, lane) in parts.iter_mut().zip(first..) {
                part.copy_from_slice(self.read(warp, lane, from.space[lane], from.at[lane], N as u32, strong)?);
            }
        }
        Ok(all)
    }

    /// Stores what the lanes of `mask` have, `N` bytes each, likewise.
    pub fn scatter<const N: usize>(
        &mut self,
        warp: &Warp,
        mask: u32,
        to: &Addresses,
        strong: bool,
        all: &[[u8; N]; 32],
    ) -> Result<(), Halt> {
        let whole = self.whole(to);
        for (first, count) in to.runs(mask) {
            let (parts, at) = (&all[first..first + count], to.at[first]);
            let row = match &whole {
                Whole::Global(place, start) => self.memory.store_at(&place.offset(at - start), N * count, strong).ok(),
                Whole::Shared => self.shared.store_row(at, N as u32, count, Self::who(warp, first, strong)),
                Whole::No => None,
            };
            if let Some(row) = row {
                row.copy_from_slice(parts.as_flattened());
                continue;
            }
            for (part, lane) in parts.iter().zip(first..) {
                self.write(warp, lane, to.space[lane], to.at[lane], N as u32, strong)?.copy_from_slice(part);
            }
        }
        Ok(())
    }

    pub fn load(&mut self, warp: &mut Warp, mask: u32, l: &Load, line: u32) -> Result<(), Halt> {
        let total = l.bytes * l.dst.len() as u32;
        let from = self.addresses(warp, mask, l.at, total, line)?;
        self.stats.global_load_bytes += from.global * u64::from(total);
        match total {
            1 => self.load_of::<1>(warp, mask, l, &from),
            2 => self.load_of::<2>(warp, mask, l, &from),
            4 => self.load_of::<4>(warp, mask, l, &from),
            8 => self.load_of::<8>(warp, mask, l, &from),
            16 => self.load_of::<16>(warp, mask, l, &from),
            _ => self.load_of::<32>(warp, mask, l, &from),
        }
    }

    fn load_of<const N: usize>(&mut self, warp: &mut Warp, mask: u32, l: &Load, from: &Addresses) -> Result<(), Halt> {
        let all = self.gather::<N>(warp, mask, from, l.strong)?;
        for (i, dst) in l.dst.iter().enumerate() {
            let offset = i * l.bytes as usize;
            match l.bytes {
                1 => elements::<1, N>(&mut self.result, &all, offset),
                2 => elements::<2, N>(&mut self.result, &all, offset),
                4 => elements::<4, N>(&mut self.result, &all, offset),
                _ => elements::<8, N>(&mut self.result, &all, offset),
            }
            if l.sign_shift != 0 {
                let extend = |v: u64| ((v << l.sign_shift) as i64 >> l.sign_shift) as u64 & l.mask;
                self.result.iter_mut().for_each(|v| *v = extend(*v));
            }
            warp.take(mask, *dst, &mut self.result);
        }
        Ok(())
    }

    pub fn store(&mut self, warp: &mut Warp, mask: u32, s: &Store, line: u32) -> Result<(), Halt> {
        for src in &s.src {
            self.need(warp, *src, mask)?;
        }
        let total = s.bytes * s.src.len() as u32;
        let to = self.addresses(warp, mask, s.at, total, line)?;
        self.stats.global_store_bytes += to.global * u64::from(total);
        match total {
            1 => self.store_of::<1>(warp, mask, s, &to),
            2 => self.store_of::<2>(warp, mask, s, &to),
            4 => self.store_of::<4>(warp, mask, s, &to),
            8 => self.store_of::<8>(warp, mask, s, &to),
            16 => self.store_of::<16>(warp, mask, s, &to),
            _ => self.store_of::<32>(warp, mask, s, &to),
        }
    }

    fn store_of<const N: usize>(&mut self, warp: &Warp, mask: u32, s: &Store, to: &Addresses) -> Result<(), Halt> {
        let mut all = [[0; N]; 32];
        for (i, src) in s.src.iter().enumerate() {
            let (offset, row) = (i * s.bytes as usize, &warp.rows[*src as usize]);
            match s.bytes {
                1 => put_elements::<1, N>(&mut all, offset, row),
                2 => put_elements::<2, N>(&mut all, offset, row),
                4 => put_elements::<4, N>(&mut all, offset, row),
                _ => put_elements::<8, N>(&mut all, offset, row),
            }
        }
        self.scatter::<N>(warp, mask, to, s.strong, &all)
    }

    pub fn atom(&mut self, warp: &mut Warp, mask: u32, a: &Atom, line: u32) -> Result<(), Halt> {
        for src in a.src.iter().chain(a.swap.iter()) {
            self.need(warp, *src, mask)?;
        }
        let total = a.bytes * a.src.len() as u32;
        let addresses = self.addresses(warp, mask, a.at, total, line)?;
        for lane in lanes(mask) {
            let (space, at) = (addresses.space[lane], addresses.at[lane]);
            let bytes = match space {
                Space::Shared => self
                    .shared
                    .store(at, total, Self::who(warp, lane, true), true)
                    .map_err(|r| refused(r, lane as u32))?,
                Space::Global => {
                    self.stats.global_load_bytes += u64::from(total);
                    self.stats.global_store_bytes += u64::from(total);
                    let fault = |kind: Box<FaultKind>| trouble(*kind, lane as u32);
                    // The load checks that there is a value to change.
                    self.memory.load(at, total, true).map_err(fault)?;
                    self.memory.store(at, total, true).map_err(fault)?
                }
                _ => {
                    let nearest = Nearest::default();
                    let kind = FaultKind::OutOfBounds { space, address: at, bytes: total, nearest };
                    return Err(trouble(kind, lane as u32));
                }
            };
            for (i, part) in bytes.chunks_exact_mut(a.bytes as usize).enumerate() {
                let old = element(part);
                let operand = warp.get(a.src[i], lane);
                let new = match a.swap {
                    Some(_) if old != operand => old,
                    Some(swap) => warp.get(swap, lane),
                    None => (a.f)(&a.mods, old, operand),
                };
                put(part, new);
                if let Some(dst) = a.dst.get(i) {
                    warp.set(*dst, lane, old);
                }
            }
        }
        Ok(())
    }

    /// Issues copies: global memory is read now, shared memory changes when
    /// they are waited for.
    pub fn copy_async(
        &mut self,
        warp: &mut Warp,
        mask: u32,
        [dst, src]: [Address; 2],
        bytes: u32,
        src_bytes: Option<Reg>,
        line: u32,
    ) -> Result<(), Halt> {
        if let Some(row) = src_bytes {
            self.need(warp, row, mask)?;
        }
        let to = self.addresses(warp, mask, dst, bytes, line)?;
        self.need(warp, src.base, mask)?;
        let checked = to.stretch.is_some_and(|all| self.shared.holds(all.start, all.end));
        if let Some(open) = warp.copies.last_mut() {
            open.reserve(mask.count_ones() as usize);
        }
        let (mut from, mut count) = ([0u64; 32], 0);
        for lane in lanes(mask) {
            let take = src_bytes.map_or(bytes, |row| (warp.get(row, lane) as u32).min(bytes));
            let address = warp.get(src.base, lane).wrapping_add(src.offset as u64);
            let mut copy = PendingCopy { lane: lane as u32, pc: warp.pc, address: to.at[lane], data: [0; 16], bytes };
            if take > 0 {
                from[count] = address;
                count += 1;
                let fault = |kind: Box<FaultKind>| trouble(*kind, lane as u32);
                self.stats.global_load_bytes += u64::from(take);
                if !is_aligned(address, bytes) {
                    self.memory.resolve(address, bytes).map_err(fault)?;
                }
                let whole = if take == bytes { self.memory.load(address, bytes, false).ok() } else { None };
                match whole {
                    Some(all) => copy.data[..bytes as usize].copy_from_slice(all),
                    // A source of an odd size is read byte by byte; and one that is not there, since the fault names the byte.
                    None => {
                        for i in 0..take {
                            let byte = self.memory.load(address + u64::from(i), 1, false).map_err(fault)?;
                            copy.data[i as usize] = byte[0];
                        }
                    }
                }
            }
            let who = Self::who(warp, lane, false);
            let begun = match checked {
                true => self.shared.copy_begins_inside(copy.address, bytes, who),
                false => self.shared.copy_begins(copy.address, bytes, who),
            };
            begun.map_err(|r| refused(r, lane as u32))?;
            if let Some(open) = warp.copies.last_mut() {
                open.push(copy);
            }
        }
        if count > 0 {
            self.stats.global_access(line, &from[..count], bytes);
        }
        Ok(())
    }

    /// Completes the copies of `mask` but for the last `pending` groups.
    /// `None` completes the open group too.
    pub fn copy_wait(&mut self, warp: &mut Warp, mask: u32, pending: Option<u32>) -> Result<(), Halt> {
        let closed = match pending {
            None => warp.copies.len(),
            Some(n) => (warp.copies.len() - 1).saturating_sub(n as usize),
        };
        for i in 0..closed {
            let (done, rest): (Vec<_>, Vec<_>) =
                std::mem::take(&mut warp.copies[i]).into_iter().partition(|c| mask >> c.lane & 1 == 1);
            warp.copies[i] = rest;
            for copy in done {
                let who = Who { thread: (warp.index * 32) as u32 + copy.lane, pc: copy.pc, strong: false };
                self.shared
                    .copy_done(copy.address, &copy.data[..copy.bytes as usize], who)
                    .map_err(|r| refused(r, copy.lane))?;
            }
        }
        // Empty groups at the front are over.
        while warp.copies.len() > 1 && warp.copies[0].is_empty() {
            warp.copies.remove(0);
        }
        Ok(())
    }
}
