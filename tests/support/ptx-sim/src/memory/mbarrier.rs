//! `mbarrier`, and the bulk copies of tensors that arrive at one.
//!
//! A copy reads global memory when it is issued, and is done as late as it
//! may: when a thread waits for its barrier in vain. Until then nothing may
//! touch its target, and it is written by a thread of its own, so that only
//! those who have waited for the barrier, or come after them, may read it.

use std::collections::HashMap;

use crate::exec::{Halt, Machine, refused, split, trouble};
use crate::fault::FaultKind;
use crate::memory::shared::Known;
use crate::memory::tensormap::{self, TensorMap};
use crate::parse::syntax::Space;
use crate::program::{Address, Pred, Reg};
use crate::warp::{State, Warp, lanes};

/// The most arrivals, and the most bytes, that a phase can expect.
const MOST: i64 = (1 << 20) - 1;

#[derive(Clone, Debug)]
pub(crate) enum MbarrierKind {
    Init {
        count: Reg,
    },
    Inval,
    /// Arrives `count` times, after it has said how many bytes more are to come.
    Arrive {
        state: Option<Reg>,
        count: Reg,
        bytes: Option<Reg>,
    },
    Expect {
        bytes: Reg,
    },
    /// Whether a phase is over, of that parity or with that state.
    Wait {
        p: Pred,
        phase: Reg,
        parity: bool,
    },
}

#[derive(Clone, Debug)]
pub(crate) struct MbarrierOp {
    pub at: Address,
    pub kind: MbarrierKind,
}

/// `cp.async.bulk.tensor` from global to shared memory.
#[derive(Clone, Debug)]
pub(crate) struct CopyTensor {
    pub dst: Address,
    pub map: Address,
    pub coordinates: Box<[Reg]>,
    pub barrier: Address,
}

/// A barrier in shared memory.
struct Mbarrier {
    expected: i64,
    /// Arrivals and bytes that the present phase waits for.
    arrivals: i64,
    bytes: i64,
    phase: u64,
    /// What all that have arrived know, and what those knew on whom the last phase waited.
    joined: Known,
    last: Known,
}

/// A copy under way.
struct Copy {
    barrier: u64,
    /// Units of 16 bytes.
    units: Vec<(u64, [u8; 16])>,
}

/// The barriers of a block, and what is on its way to them.
#[derive(Default)]
pub(crate) struct Mbarriers {
    by_address: HashMap<u64, Mbarrier>,
    copies: Vec<Copy>,
    /// How often something has changed that a thread may wait for.
    pub changes: u64,
}

impl Mbarriers {
    /// Whether copies are under way.
    pub fn copying(&self) -> bool {
        !self.copies.is_empty()
    }
}

impl Mbarrier {
    /// Ends the phase if nothing is missing.
    fn settle(&mut self) {
        if self.arrivals == 0 && self.bytes == 0 {
            self.phase += 1;
            self.arrivals = self.expected;
            self.last = self.joined;
        }
    }
}

impl Machine<'_> {
    /// The address that a lane names in shared memory.
    fn shared_at(&self, warp: &Warp, lane: usize, at: Address) -> Result<u64, Halt> {
        self.need(warp, at.base, 1 << lane)?;
        let (space, address) = split(at.space, warp.get(at.base, lane).wrapping_add(at.offset as u64));
        let reason = "it is not in shared memory".to_owned();
        if space == Space::Shared {
            Ok(address)
        } else {
            Err(trouble(FaultKind::BadMbarrier { address, reason }, lane as u32))
        }
    }

    /// Runs an instruction of a barrier. False: the warp is to wait until something changes.
    pub fn mbarrier(&mut self, warp: &mut Warp, mask: u32, op: &MbarrierOp) -> Result<bool, Halt> {
        let mut over = 0;
        for lane in lanes(mask) {
            let address = self.shared_at(warp, lane, op.at)?;
            let bad = |reason: &str| trouble(FaultKind::BadMbarrier { address, reason: reason.into() }, lane as u32);
            let who = Self::who(warp, lane, false);
            if let MbarrierKind::Init { count } = op.kind {
                self.need(warp, count, 1 << lane)?;
                let expected = warp.get(count, lane) as i64;
                if !(1..=MOST).contains(&expected) {
                    return Err(bad("it expects 1 to 2^20 - 1 arrivals"));
                }
                self.shared.mbarrier_init(address, who).map_err(|r| refused(r, lane as u32))?;
                let (joined, last) = (Known::default(), Known::default());
                let barrier = Mbarrier { expected, arrivals: expected, bytes: 0, phase: 0, joined, last };
                self.mbarriers.by_address.insert(address, barrier);
                self.mbarriers.changes += 1;
                continue;
            }
            self.shared.mbarrier_at(address, who).map_err(|r| refused(r, lane as u32))?;
            if let MbarrierKind::Wait { p: _, phase, parity } = op.kind {
                self.need(warp, phase, 1 << lane)?;
                let phase = warp.get(phase, lane);
                if self.waits(address, phase, parity) {
                    continue;
                }
                over |= 1 << lane;
                let last = self.mbarriers.by_address.get(&address).map(|barrier| barrier.last);
                last.iter().for_each(|last| self.shared.leave(warp.index, last));
                continue;
            }
            let value = |row: Reg| -> Result<i64, Halt> {
                self.need(warp, row, 1 << lane)?;
                Ok(warp.get(row, lane) as u32 as i64)
            };
            let (count, bytes) = match op.kind {
                MbarrierKind::Arrive { count, bytes, .. } => (value(count)?, bytes.map_or(Ok(0), value)?),
                MbarrierKind::Expect { bytes } => (0, value(bytes)?),
                MbarrierKind::Init { .. } | MbarrierKind::Inval | MbarrierKind::Wait { .. } => (0, 0),
            };
            let Some(barrier) = self.mbarriers.by_address.get_mut(&address) else { return Err(bad("there is none")) };
            self.mbarriers.changes += 1;
            barrier.bytes += bytes;
            match op.kind {
                MbarrierKind::Inval => {
                    self.mbarriers.by_address.remove(&address);
                    self.shared.mbarrier_inval(address, who).map_err(|r| refused(r, lane as u32))?;
                }
                MbarrierKind::Arrive { state, .. } => {
                    if count == 0 || count > barrier.arrivals {
                        return Err(bad("there are more arrivals than it expects in a phase"));
                    }
                    if let Some(state) = state {
                        warp.set(state, lane, barrier.phase);
                    }
                    barrier.arrivals -= count;
                    self.shared.arrive(warp.index, &mut barrier.joined);
                    barrier.settle();
                }
                MbarrierKind::Init { .. } | MbarrierKind::Expect { .. } | MbarrierKind::Wait { .. } => {}
            }
            if self.mbarriers.by_address.get(&address).is_some_and(|barrier| barrier.bytes.abs() > MOST) {
                return Err(bad("more than 2^20 - 1 bytes are on their way"));
            }
        }
        let MbarrierKind::Wait { p, .. } = op.kind else { return Ok(true) };
        if over == mask || warp.polled != Some(self.mbarriers.changes) {
            warp.set_pred(p, mask, over);
            warp.polled = (over != mask).then_some(self.mbarriers.changes);
            return Ok(true);
        }
        // Nothing has changed since the last try.
        warp.state = State::Polling(self.mbarriers.changes);
        Ok(false)
    }

    /// Whether a phase is not over, even when all copies have arrived that it waits for.
    fn waits(&mut self, address: u64, phase: u64, parity: bool) -> bool {
        loop {
            let Some(barrier) = self.mbarriers.by_address.get_mut(&address) else { return false };
            let present = if parity { barrier.phase & 1 } else { barrier.phase };
            if present != phase {
                return false;
            }
            let Some(next) = self.mbarriers.copies.iter().position(|copy| copy.barrier == address) else { return true };
            let copy = self.mbarriers.copies.remove(next);
            self.shared.bulk_ends(&copy.units, &mut barrier.joined);
            barrier.bytes -= 16 * copy.units.len() as i64;
            barrier.settle();
            self.mbarriers.changes += 1;
        }
    }

    /// Issues a copy of a box of a tensor, in each lane of `mask`.
    pub fn copy_tensor(&mut self, warp: &Warp, mask: u32, op: &CopyTensor) -> Result<(), Halt> {
        for lane in lanes(mask) {
            let (to, barrier) = (self.shared_at(warp, lane, op.dst)?, self.shared_at(warp, lane, op.barrier)?);
            let who = Self::who(warp, lane, false);
            self.shared.mbarrier_at(barrier, who).map_err(|r| refused(r, lane as u32))?;
            let bad = |reason: &str| trouble(FaultKind::BadTensorCopy { reason: reason.into() }, lane as u32);
            self.need(warp, op.map.base, 1 << lane)?;
            let (space, at) = split(op.map.space, warp.get(op.map.base, lane).wrapping_add(op.map.offset as u64));
            let in_params = space == Space::Param && at.is_multiple_of(64);
            let bytes = self.params.get(at as usize..at as usize + tensormap::BYTES).filter(|_| in_params);
            let map = bytes.and_then(TensorMap::decode);
            let map = map.ok_or_else(|| bad("there is no tensor map at a multiple of 64 in the parameters"))?;
            if map.dims.len() != op.coordinates.len() {
                return Err(bad("the tensor map has another number of axes"));
            }
            if !to.is_multiple_of(128) {
                return Err(bad("its target is no multiple of 128"));
            }
            let mut origin = Vec::with_capacity(op.coordinates.len());
            for &coordinate in &op.coordinates {
                self.need(warp, coordinate, 1 << lane)?;
                origin.push(i64::from(warp.get(coordinate, lane) as u32 as i32));
            }
            let units = self.box_of(&map, &origin, to).map_err(|kind| trouble(*kind, lane as u32))?;
            for (address, _) in &units {
                self.shared.bulk_begins(*address, who).map_err(|r| refused(r, lane as u32))?;
            }
            self.mbarriers.copies.push(Copy { barrier, units });
            self.mbarriers.changes += 1;
        }
        Ok(())
    }

    /// The units of a box, with where they go. Elements outside of the tensor are 0.
    fn box_of(&mut self, map: &TensorMap, origin: &[i64], to: u64) -> Result<Vec<(u64, [u8; 16])>, Box<FaultKind>> {
        let (element, extents) = (map.element as usize, &map.extents);
        let per_unit = 16 / element;
        let mut units = Vec::new();
        for i in 0..map.bytes() / 16 {
            // The box's elements in the order of its axes.
            let mut rest = i * per_unit as u64;
            let mut at: Vec<i64> = Vec::with_capacity(origin.len());
            for (o, &extent) in origin.iter().zip(extents) {
                at.push(o + (rest % u64::from(extent)) as i64);
                rest /= u64::from(extent);
            }
            let mut unit = [0; 16];
            for e in 0..per_unit {
                if let Some(address) = map.at(&at) {
                    let bytes = self.memory.load(address, map.element, false)?;
                    unit[e * element..(e + 1) * element].copy_from_slice(bytes);
                    self.stats.global_load_bytes += u64::from(map.element);
                }
                at[0] += 1;
            }
            let address = to + 16 * i;
            let bits = u64::from(map.swizzle / 16).saturating_sub(1);
            units.push((address ^ (address >> 7 & bits) << 4, unit));
        }
        Ok(units)
    }
}
