//! Software pipelining of packing: double buffering of packed panels of B.
//!
//! It exists because packing is bound by memory bandwidth, which a GEMM hardly uses.
//!
//! A thread that multiplies by one packed tile claims a chunk of the tile that the next GEMMs need, and copies a few of
//! its rows between its own K steps. Chunks that are unclaimed when the tile is needed are packed then.

use std::ops::Range;

use super::{SharedTile, prefetch};

/// The tile that will be packed next: whole panels of an operand whose rows lie side by side.
#[derive(Clone, Copy)]
pub(in crate::kernel::cpu) struct NextTile<P> {
    pub tile: SharedTile,
    /// The first element, and from a row to the next.
    pub from: *const P,
    pub step: isize,
    /// How many panels, and from one to the next.
    pub panels: usize,
    pub panel: usize,
}

/// The chunk of that tile that this thread packs.
pub(in crate::kernel::cpu) struct PackPipeline<'a, P> {
    next_tile: Option<&'a NextTile<P>>,
    from: *const P,
    to: *mut P,
    /// The panel of the next copy, and how many copies are left.
    at: usize,
    remaining: usize,
}

/// The prefetch distance, in rows.
const PREFETCH_ROWS: isize = 2;

impl<'a, P: Copy> PackPipeline<'a, P> {
    /// Nothing is claimed yet.
    #[inline(always)]
    pub(in crate::kernel::cpu) fn new(next_tile: Option<&'a NextTile<P>>) -> Self {
        PackPipeline { next_tile, from: std::ptr::null(), to: std::ptr::null_mut(), at: 0, remaining: 0 }
    }

    /// Claims a chunk if none is at hand.
    #[inline(always)]
    pub(in crate::kernel::cpu) fn claim(&mut self, width: usize) {
        if self.remaining == 0
            && let Some(next_tile) = self.next_tile
        {
            match next_tile.tile.claim(false) {
                Some(steps) => self.start(next_tile, steps, width),
                None => self.next_tile = None,
            }
        }
    }

    #[inline(never)]
    fn start(&mut self, next_tile: &NextTile<P>, steps: Range<usize>, width: usize) {
        self.from = next_tile.from.wrapping_offset(steps.start as isize * next_tile.step);
        self.to = next_tile.tile.room().cast::<P>().wrapping_add(steps.start * width);
        (self.at, self.remaining) = (0, steps.len() * next_tile.panels);
    }

    /// Copies one row of a panel of the chunk, if one is at hand.
    ///
    /// # Safety
    /// Panels must be `W` wide.
    #[inline(always)]
    pub(in crate::kernel::cpu) unsafe fn copy_row<const W: usize>(&mut self) {
        let Some(next_tile) = self.next_tile else { return };
        if self.remaining == 0 {
            return;
        }
        prefetch(self.from.wrapping_offset(PREFETCH_ROWS * next_tile.step), size_of::<[P; W]>());
        // SAFETY: whole panels are copied, by the contract of `NextTile`.
        unsafe { self.to.cast::<[P; W]>().write_unaligned(self.from.cast::<[P; W]>().read_unaligned()) };
        self.at += 1;
        self.from = self.from.wrapping_add(W);
        self.to = self.to.wrapping_add(next_tile.panel);
        if self.at == next_tile.panels {
            self.at = 0;
            self.from = self.from.wrapping_offset(next_tile.step).wrapping_sub(next_tile.panels * W);
            self.to = self.to.wrapping_add(W).wrapping_sub(next_tile.panels * next_tile.panel);
        }
        self.remaining -= 1;
        if self.remaining == 0 {
            next_tile.tile.done();
        }
    }

    /// Drains the chunk at hand: other threads wait for it.
    ///
    /// # Safety
    /// As for [`copy_row`](Self::copy_row).
    #[inline(always)]
    pub(in crate::kernel::cpu) unsafe fn drain<const W: usize>(mut self) {
        while self.remaining > 0 {
            // SAFETY: by the contract above.
            unsafe { self.copy_row::<W>() };
        }
    }
}
