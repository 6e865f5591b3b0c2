//! Loads, stores, atomics and asynchronous copies of a warp.

use crate::exec::{Halt, Machine, refused, split, trouble};
use crate::fault::{FaultKind, Nearest};
use crate::memory::is_aligned;
use crate::memory::shared::Who;
use crate::parse::syntax::Space;
use crate::program::{Address, Atom, Load, Reg, Store};
use crate::stats::NOWHERE;
use crate::warp::{PendingCopy, Warp, lanes};

/// The addresses of a warp's access, by lane.
pub(crate) struct Addresses {
    pub space: [Space; 32],
    pub at: [u64; 32],
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

impl Machine<'_> {
    /// Resolves the addresses of `mask` and counts sectors and banks.
    pub fn addresses(&mut self, warp: &Warp, mask: u32, a: Address, bytes: u32, line: u32) -> Result<Addresses, Halt> {
        self.need(warp, a.base, mask)?;
        let mut out = Addresses { space: [a.space; 32], at: [0; 32] };
        let (mut global, mut globals) = ([0u64; 32], 0);
        let mut shared = [NOWHERE; 32];
        for lane in lanes(mask) {
            let raw = warp.get(a.base, lane).wrapping_add(a.offset as u64);
            let (space, at) = split(a.space, raw);
            out.space[lane] = space;
            out.at[lane] = at;
            match space {
                Space::Global => {
                    global[globals] = at;
                    globals += 1;
                }
                Space::Shared => shared[lane] = at,
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

    pub fn load(&mut self, warp: &mut Warp, mask: u32, l: &Load, line: u32) -> Result<(), Halt> {
        let (size, total) = (l.bytes as usize, l.bytes * l.dst.len() as u32);
        let addresses = self.addresses(warp, mask, l.at, total, line)?;
        for lane in lanes(mask) {
            let (space, at) = (addresses.space[lane], addresses.at[lane]);
            if space == Space::Global {
                self.stats.global_load_bytes += u64::from(total);
            }
            let bytes = self.read(warp, lane, space, at, total, l.strong)?;
            for (i, dst) in l.dst.iter().enumerate() {
                let value = element(&bytes[i * size..][..size]);
                let signed = ((value << l.sign_shift) as i64 >> l.sign_shift) as u64 & l.mask;
                warp.rows[*dst as usize][lane] = if l.sign_shift == 0 { value } else { signed };
            }
        }
        for dst in &l.dst {
            warp.written[*dst as usize] |= mask;
        }
        Ok(())
    }

    pub fn store(&mut self, warp: &mut Warp, mask: u32, s: &Store, line: u32) -> Result<(), Halt> {
        for src in &s.src {
            self.need(warp, *src, mask)?;
        }
        let (size, total) = (s.bytes as usize, s.bytes * s.src.len() as u32);
        let addresses = self.addresses(warp, mask, s.at, total, line)?;
        for lane in lanes(mask) {
            let (space, at) = (addresses.space[lane], addresses.at[lane]);
            if space == Space::Global {
                self.stats.global_store_bytes += u64::from(total);
            }
            let bytes = self.write(warp, lane, space, at, total, s.strong)?;
            for (i, src) in s.src.iter().enumerate() {
                put(&mut bytes[i * size..][..size], warp.get(*src, lane));
            }
        }
        Ok(())
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
            self.shared.copy_begins(copy.address, bytes, who).map_err(|r| refused(r, lane as u32))?;
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
