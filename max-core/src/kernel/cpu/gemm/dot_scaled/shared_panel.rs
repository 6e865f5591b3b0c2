//! [`SharedPanel`]: a [`Panel`] that a thread keeps for the next program of the same launch, which most often has the same columns: programs
//! of one panel differ in rows, and to prepare it takes as long as to multiply some of them.

use std::cell::Cell;

use super::Left;
use super::interleaved_int8::Panel;
use crate::kernel::cpu::pack::Source;
use crate::kernel::cpu::scratch::{OwnedScratch, current_launch};

/// A panel and its memory.
pub(super) struct SharedPanel {
    panel: Panel,
    _room: OwnedScratch,
    key: Key,
}

thread_local! {
    static KEPT: Cell<Option<SharedPanel>> = const { Cell::new(None) };
}

/// What a panel is made from, in a launch.
#[derive(PartialEq, Eq)]
struct Key {
    launch: u64,
    integers: Place,
    scales: Place,
    /// Steps, groups and scales of a column, and what stands for 0.
    sizes: [usize; 4],
    has_offsets: bool,
}

/// Where an operand lies.
#[derive(PartialEq, Eq)]
struct Place {
    address: usize,
    strides: [i64; 2],
    extents: [usize; 2],
}

impl<E> From<&Source<E>> for Place {
    fn from(source: &Source<E>) -> Self {
        Place { address: source.ptr.addr(), strides: source.strides, extents: source.extents }
    }
}

impl SharedPanel {
    /// That of these integers and scales, of which a column has so many; `None`, and a report, if there is no memory.
    ///
    /// # Safety
    /// As for [`Panel::new`].
    pub unsafe fn new(
        left: &Left,
        (integers, scales): (&Source<u8>, &Source<f32>),
        scale_count: usize,
    ) -> Option<Self> {
        let key = Key {
            launch: current_launch(),
            integers: integers.into(),
            scales: scales.into(),
            sizes: [left.steps, left.groups, scale_count, left.zero.into()],
            has_offsets: !left.offsets.is_null(),
        };
        // Operands do not change in a launch, but may be others in the next one, at the same place.
        if let Some(kept) = KEPT.take().filter(|kept| kept.key == key && key.launch > 0) {
            return Some(kept);
        }
        let room = OwnedScratch::for_columns(Panel::bytes(left, scale_count))?;
        // SAFETY: by the contract above; there is room.
        let panel = unsafe { Panel::new(left, room.at(0), (integers, scales), scale_count) };
        Some(SharedPanel { panel, _room: room, key })
    }

    pub fn panel(&self) -> &Panel {
        &self.panel
    }

    /// Keeps it for the next program.
    pub fn keep(self) {
        if self.key.launch > 0 {
            KEPT.set(Some(self));
        }
    }
}
