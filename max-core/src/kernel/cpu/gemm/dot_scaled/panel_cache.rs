//! The panel cache: a packed [`Panel`] that a thread reuses for the next programs of the same launch.
//!
//! It exists because programs of few columns differ in their rows: packing the columns for each takes as long as multiplying some rows.

use std::cell::Cell;

use super::Left;
use super::interleaved_int8::Panel;
use crate::kernel::cpu::pack::Source;
use crate::kernel::cpu::scratch::{OwnedScratch, current_launch};

/// A packed panel and its memory.
pub(super) struct CachedPanel {
    panel: Panel,
    _room: OwnedScratch,
    key: Key,
}

thread_local! {
    static KEPT: Cell<Option<CachedPanel>> = const { Cell::new(None) };
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

impl CachedPanel {
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
        if let Some(kept) = KEPT.take().filter(|kept| kept.key == key) {
            return Some(kept);
        }
        let room = OwnedScratch::for_columns(Panel::bytes(left, scale_count))?;
        // SAFETY: by the contract above; there is room.
        let panel = unsafe { Panel::new(left, room.at(0), (integers, scales), scale_count) };
        Some(CachedPanel { panel, _room: room, key })
    }

    pub fn panel(&self) -> &Panel {
        &self.panel
    }

    /// Keeps it for the next program, if there is a launch that it may be of.
    pub fn keep(self) {
        if self.key.launch > 0 {
            KEPT.set(Some(self));
        }
    }
}
