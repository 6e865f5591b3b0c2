//! Buffer assignment: which buffers share memory, and where each one is in the arena.
//!
//! Buffers of known size are placed at load, the largest first, each at the lowest place that is free for as long as it
//! lives. Each device has an arena of its own. Buffers of symbolic size share *slots*: a buffer takes one whose last buffer is dead, best one of the same size,
//! and a slot is as large as the largest of its buffers when the model executes. All are aligned to 64 bytes.

pub(super) mod segment_tree;

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use smallvec::SmallVec;

use self::segment_tree::Occupied;
use super::schedule::{Arena, Buffer, BufferId, Home, Schedule};
use crate::driver::DeviceRef;
use crate::graph::Dim;
use crate::hash_map::{HashMap, HashSet};
use crate::kernel::abi::Access;
use crate::plan::aligned;
use crate::steps;

/// First and last step that touches a buffer.
#[derive(Clone, Copy)]
struct Life {
    first: usize,
    last: usize,
}

/// The lives of all buffers; `None` for those that no step touches. What is returned lives to the end.
fn lives(schedule: &Schedule) -> Vec<Option<Life>> {
    let mut lives: Vec<Option<Life>> = vec![None; schedule.buffers.len()];
    for (index, step) in schedule.steps.iter().enumerate() {
        for operand in &step.operands {
            let life = lives[operand.buffer.index()].get_or_insert(Life { first: index, last: index });
            life.last = index;
        }
    }
    for (life, buffer) in lives.iter_mut().zip(&schedule.buffers) {
        if let (Some(life), Home::Output(_)) = (life, buffer.home) {
            life.last = usize::MAX;
        }
    }
    lives
}

/// Lets the results of elementwise steps take over the memory of an operand that dies there.
///
/// That is sound because such a step reads each element before it writes the one at the same place; of a region, because
/// none of its kernels reads the operand after the one that writes the result.
pub(super) fn take_over(schedule: &mut Schedule) {
    let lives = lives(schedule);
    let mut renamed: Vec<BufferId> = (0..schedule.buffers.len() as u32).map(BufferId).collect();
    for (index, step) in schedule.steps.iter().enumerate().filter(|(_, step)| step.is_elementwise()) {
        let mut taken: Vec<BufferId> = Vec::new();
        for (i, result) in step.operands.iter().enumerate().filter(|(i, _)| step.access(*i) == Access::Out) {
            let target = &schedule.buffers[result.buffer.index()];
            let fits = |buffer: BufferId| {
                let source = &schedule.buffers[buffer.index()];
                let dies = lives[buffer.index()].is_some_and(|life| life.last == index);
                source.home == Home::Arena
                    && dies
                    && source.elements == target.elements
                    && source.dtype.size_in_bytes() == target.dtype.size_in_bytes()
                    && !taken.contains(&buffer)
            };
            let inputs = || step.operands.iter().enumerate().filter(|(j, _)| step.access(*j) == Access::In);
            // Every operand that lies in that buffer has to be read at the place that is written.
            let same_place = |buffer: BufferId| {
                let mut readers = step.operands.iter().filter(|operand| operand.buffer == buffer);
                readers.all(|operand| operand.view == result.view)
                    && inputs().all(|(j, operand)| operand.buffer != buffer || step.moment(j) <= step.moment(i))
            };
            let is_new = lives[result.buffer.index()].is_some_and(|life| life.first == index);
            if !(is_new && result.view.is_whole()) {
                continue;
            }
            if let Some((_, operand)) = inputs().find(|(_, o)| fits(o.buffer) && same_place(o.buffer)) {
                taken.push(operand.buffer);
                renamed[operand.buffer.index()] = result.buffer;
            }
        }
    }
    // A buffer is taken over at most once, by a buffer that is born later.
    for index in (0..renamed.len()).rev() {
        let mut target = renamed[index];
        while renamed[target.index()] != target {
            target = renamed[target.index()];
        }
        renamed[index] = target;
    }
    for operand in schedule.steps.iter_mut().flat_map(|step| &mut step.operands) {
        operand.buffer = renamed[operand.buffer.index()];
    }
}

/// Places what is still in [`Home::Arena`], in one arena for each device.
pub(super) fn place(schedule: &mut Schedule) {
    let lives = lives(schedule);
    // Buffers share memory with those of their stage alone.
    let mut devices: Vec<(DeviceRef, u32)> = Vec::new();
    for (buffer, life) in schedule.buffers.iter().zip(&lives) {
        let place = (buffer.device, schedule.stage(&buffer.elements));
        if buffer.home == Home::Arena && life.is_some() && !devices.contains(&place) {
            devices.push(place);
        }
    }
    for (device, stage) in devices {
        let arena = place_on(schedule, (device, stage), &lives);
        schedule.arenas.push(arena);
    }
}

fn place_on(schedule: &mut Schedule, (device, stage): (DeviceRef, u32), lives: &[Option<Life>]) -> Arena {
    let (mut bytes_used, mut occupied, mut slots) = (0, Occupied::new(schedule.steps.len()), Slots::default());
    let mut fixed: Vec<(i64, usize, Life)> = Vec::new();
    let mut symbolic: Vec<(Dim, usize, Life)> = Vec::new();
    let here = |buffer: &Buffer| {
        buffer.home == Home::Arena && buffer.device == device && schedule.stage(&buffer.elements) == stage
    };
    for (index, buffer) in schedule.buffers.iter().enumerate().filter(|(_, buffer)| here(buffer)) {
        let Some(life) = lives[index] else { continue };
        let bytes = &buffer.elements * buffer.dtype.size_in_bytes();
        match bytes.as_static().and_then(aligned) {
            Some(bytes) => fixed.push((bytes, index, life)),
            None => symbolic.push((bytes, index, life)),
        }
    }

    fixed.sort_by_key(|&(bytes, index, _)| (std::cmp::Reverse(bytes), index));
    for (bytes, index, life) in fixed {
        let start = occupied.lowest([life.first, life.last], bytes);
        let end = start.saturating_add(bytes);
        occupied.take([life.first, life.last], start, end);
        bytes_used = bytes_used.max(end);
        schedule.buffers[index].home = Home::At(start);
    }

    symbolic.sort_by_key(|&(_, index, life)| (life.first, index));
    for (bytes, index, life) in symbolic {
        schedule.buffers[index].home = Home::Slot(slots.take(bytes, life) as u32);
    }
    Arena { device, stage, bytes: bytes_used, slots: slots.sizes }
}

/// The slots of buffers of symbolic size, given out in the order of the buffers' first steps.
#[derive(Default)]
struct Slots {
    /// The sizes of the buffers that share each.
    sizes: Vec<SmallVec<[Dim; 2]>>,
    /// Those whose last buffer is dead.
    free: BTreeSet<usize>,
    /// The last step of the buffers in the others.
    taken: BinaryHeap<Reverse<(usize, usize)>>,
    /// By size, the slots with buffers of it: all that are free, and others until they are met.
    of_size: HashMap<Dim, BTreeSet<usize>>,
    /// The sizes of which a slot was met while it was taken.
    left_out: Vec<Vec<Dim>>,
    known: HashSet<(usize, Dim)>,
}

impl Slots {
    /// The first free slot with a buffer of this size, or the last free one, or a new one.
    fn take(&mut self, bytes: Dim, life: Life) -> usize {
        while let Some(&Reverse((last, slot))) = self.taken.peek()
            && last < life.first
        {
            self.taken.pop();
            self.free.insert(slot);
            for size in self.left_out[slot].drain(..) {
                steps::count(1);
                self.of_size.entry(size).or_default().insert(slot);
            }
        }
        let alike = self.of_size.entry(bytes.clone()).or_default();
        while let Some(slot) = alike.first().filter(|slot| !self.free.contains(slot)).copied() {
            steps::count(1);
            alike.remove(&slot);
            self.left_out[slot].push(bytes.clone());
        }
        let slot = alike.first().or_else(|| self.free.last()).copied().unwrap_or(self.sizes.len());
        if slot == self.sizes.len() {
            self.sizes.push(SmallVec::new());
            self.left_out.push(Vec::new());
        }
        self.free.remove(&slot);
        self.taken.push(Reverse((life.last, slot)));
        if self.known.insert((slot, bytes.clone())) {
            alike.insert(slot);
            self.sizes[slot].push(bytes);
        }
        slot
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// The same as looking at all slots for each buffer.
        #[test]
        fn a_buffer_takes_a_slot_of_its_size_if_one_is_free(
            buffers in prop::collection::vec((0usize..3, 0usize..8, 1i64..5), 1..40),
        ) {
            let (mut slots, mut first) = (Slots::default(), 0);
            let mut all: Vec<(usize, Vec<Dim>)> = Vec::new();
            for (later, length, size) in buffers {
                first += later;
                let (size, life) = (Dim::from("n") * size, Life { first, last: first + length });
                let mut free = (0..all.len()).filter(|slot| all[*slot].0 < first);
                let alike = free.clone().find(|slot| all[*slot].1.contains(&size));
                let expected = alike.or_else(|| free.next_back()).unwrap_or(all.len());
                if expected == all.len() {
                    all.push((0, Vec::new()));
                }
                all[expected].0 = life.last;
                if !all[expected].1.contains(&size) {
                    all[expected].1.push(size.clone());
                }
                prop_assert_eq!(slots.take(size, life), expected);
            }
            prop_assert_eq!(slots.sizes.iter().map(|sizes| sizes.to_vec()).collect::<Vec<_>>(),
                all.into_iter().map(|(_, sizes)| sizes).collect::<Vec<_>>());
        }
    }

    /// Of buffers that live for a while each, and of those that all live to the end.
    #[test]
    fn slots_take_steps_in_proportion_to_the_buffers() {
        let take = |buffers: usize, to_the_end: bool| {
            steps::of(|| {
                let mut slots = Slots::default();
                for first in 0..buffers {
                    let last = if to_the_end { buffers } else { first + 2 };
                    slots.take(Dim::from("n") * (1 + first % 5), Life { first, last });
                }
            })
        };
        for to_the_end in [false, true] {
            let [few, many] = [1000, 8000].map(|buffers| take(buffers, to_the_end));
            assert!(many <= few * 9, "{few} steps, then {many}");
        }
    }
}
