//! The memory plan: which buffers share memory, and where each one is in the arena.
//!
//! Buffers of known size are placed at load, the largest first, each at the lowest place that is free for as long as it
//! lives. Each device has an arena of its own. Buffers of symbolic size share *slots*: a buffer takes one whose last buffer is dead, best one of the same size,
//! and a slot is as large as the largest of its buffers when the model executes. All are aligned to 64 bytes.

use smallvec::smallvec;

use super::draft::{Arena, Buffer, BufferId, Draft, Home};
use crate::driver::DeviceRef;
use crate::driver::allocator::ALIGNMENT;
use crate::graph::Dim;
use crate::kernel::table::Access;

/// First and last step that touches a buffer.
#[derive(Clone, Copy)]
struct Life {
    first: usize,
    last: usize,
}

impl Life {
    fn overlaps(self, other: Life) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

/// The lives of all buffers; `None` for those that no step touches. What is returned lives to the end.
fn lives(draft: &Draft) -> Vec<Option<Life>> {
    let mut lives: Vec<Option<Life>> = vec![None; draft.buffers.len()];
    for (index, step) in draft.steps.iter().enumerate() {
        for operand in &step.operands {
            let life = lives[operand.buffer.index()].get_or_insert(Life { first: index, last: index });
            life.last = index;
        }
    }
    for (life, buffer) in lives.iter_mut().zip(&draft.buffers) {
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
pub(super) fn take_over(draft: &mut Draft) {
    let lives = lives(draft);
    let mut renamed: Vec<BufferId> = (0..draft.buffers.len() as u32).map(BufferId).collect();
    for (index, step) in draft.steps.iter().enumerate().filter(|(_, step)| step.is_elementwise()) {
        let mut taken: Vec<BufferId> = Vec::new();
        for (i, result) in step.operands.iter().enumerate().filter(|(i, _)| step.access(*i) == Access::Out) {
            let target = &draft.buffers[result.buffer.index()];
            let fits = |buffer: BufferId| {
                let source = &draft.buffers[buffer.index()];
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
    for operand in draft.steps.iter_mut().flat_map(|step| &mut step.operands) {
        operand.buffer = renamed[operand.buffer.index()];
    }
}

/// The size rounded up to whole alignment units, unless that overflows.
pub(crate) fn aligned(bytes: i64) -> Option<i64> {
    let mask = ALIGNMENT as i64 - 1;
    bytes.checked_add(mask).map(|bytes| bytes & !mask)
}

/// Places what is still in [`Home::Arena`], in one arena for each device.
pub(super) fn place(draft: &mut Draft) {
    let lives = lives(draft);
    let mut devices: Vec<DeviceRef> = Vec::new();
    for (buffer, life) in draft.buffers.iter().zip(&lives) {
        if buffer.home == Home::Arena && life.is_some() && !devices.contains(&buffer.device) {
            devices.push(buffer.device);
        }
    }
    for device in devices {
        let arena = place_on(draft, device, &lives);
        draft.arenas.push(arena);
    }
}

fn place_on(draft: &mut Draft, device: DeviceRef, lives: &[Option<Life>]) -> Arena {
    let mut arena = Arena { device, bytes: 0, slots: Vec::new() };
    let mut fixed: Vec<(i64, usize, Life)> = Vec::new();
    let mut symbolic: Vec<(Dim, usize, Life)> = Vec::new();
    let here = |buffer: &Buffer| buffer.home == Home::Arena && buffer.device == device;
    for (index, buffer) in draft.buffers.iter().enumerate().filter(|(_, buffer)| here(buffer)) {
        let Some(life) = lives[index] else { continue };
        let bytes = &buffer.elements * buffer.dtype.size_in_bytes();
        match bytes.as_static().and_then(aligned) {
            Some(bytes) => fixed.push((bytes, index, life)),
            None => symbolic.push((bytes, index, life)),
        }
    }

    fixed.sort_by_key(|&(bytes, index, _)| (std::cmp::Reverse(bytes), index));
    let mut placed: Vec<(i64, i64, Life)> = Vec::new();
    for (bytes, index, life) in fixed {
        // The lowest gap among those that live at the same time.
        let mut start = 0i64;
        for &(from, to, other) in &placed {
            if other.overlaps(life) && from < start.saturating_add(bytes) && start < to {
                start = to;
            }
        }
        let end = start.saturating_add(bytes);
        let at = placed.partition_point(|&(from, ..)| from < start);
        placed.insert(at, (start, end, life));
        arena.bytes = arena.bytes.max(end);
        draft.buffers[index].home = Home::At(start);
    }

    symbolic.sort_by_key(|&(_, index, life)| (life.first, index));
    let mut last_lives: Vec<Life> = Vec::new();
    for (bytes, index, life) in symbolic {
        let mut free = (0..arena.slots.len()).filter(|&slot| last_lives[slot].last < life.first);
        let slot = match free.clone().find(|&slot| arena.slots[slot].contains(&bytes)).or_else(|| free.next_back()) {
            Some(slot) => {
                last_lives[slot] = life;
                if !arena.slots[slot].contains(&bytes) {
                    arena.slots[slot].push(bytes);
                }
                slot
            }
            None => {
                last_lives.push(life);
                arena.slots.push(smallvec![bytes]);
                arena.slots.len() - 1
            }
        };
        draft.buffers[index].home = Home::Slot(slot as u32);
    }
    arena
}
