//! Packing the next tile of a right operand while products of the present one are computed.
//!
//! What packing waits for is memory, and a product hardly uses that. So whoever multiplies by a packed tile claims a part of the
//! tile that the next products will need, and copies a few of its rows at a time between steps of its own. What nobody has
//! claimed by the time that it is needed is packed then.

use std::ops::Range;

use super::pack::{Shared, prefetch};

/// The tile that will be packed next: whole panels of an operand whose rows lie side by side.
#[derive(Clone, Copy)]
pub(super) struct Coming<P> {
    pub tile: Shared,
    /// The first element, and from a row to the next.
    pub from: *const P,
    pub step: isize,
    /// How many panels, and from one to the next.
    pub panels: usize,
    pub panel: usize,
}

/// A part of that tile which is being packed.
pub(super) struct Ahead<'a, P> {
    coming: Option<&'a Coming<P>>,
    from: *const P,
    to: *mut P,
    /// The panel of the next copy, and how many copies are left.
    at: usize,
    left: usize,
}

/// Rows ahead of the copied one that are asked for.
const ROWS: isize = 2;

impl<'a, P: Copy> Ahead<'a, P> {
    /// Nothing is claimed yet.
    #[inline(always)]
    pub(super) fn new(coming: Option<&'a Coming<P>>) -> Self {
        Ahead { coming, from: std::ptr::null(), to: std::ptr::null_mut(), at: 0, left: 0 }
    }

    /// Claims a part if there is none at hand.
    #[inline(always)]
    pub(super) fn begin(&mut self, width: usize) {
        if self.left == 0
            && let Some(coming) = self.coming
        {
            match coming.tile.claim(false) {
                Some(steps) => self.take(coming, steps, width),
                None => self.coming = None,
            }
        }
    }

    #[inline(never)]
    fn take(&mut self, coming: &Coming<P>, steps: Range<usize>, width: usize) {
        self.from = coming.from.wrapping_offset(steps.start as isize * coming.step);
        self.to = coming.tile.room().cast::<P>().wrapping_add(steps.start * width);
        (self.at, self.left) = (0, steps.len() * coming.panels);
    }

    /// Copies a row of a panel of the part, if one is at hand.
    ///
    /// # Safety
    /// Panels must be `W` wide.
    #[inline(always)]
    pub(super) unsafe fn copy<const W: usize>(&mut self) {
        let Some(coming) = self.coming else { return };
        if self.left == 0 {
            return;
        }
        prefetch(self.from.wrapping_offset(ROWS * coming.step), size_of::<[P; W]>());
        // SAFETY: whole panels are copied, by the contract of what is coming.
        unsafe { self.to.cast::<[P; W]>().write_unaligned(self.from.cast::<[P; W]>().read_unaligned()) };
        self.at += 1;
        self.from = self.from.wrapping_add(W);
        self.to = self.to.wrapping_add(coming.panel);
        if self.at == coming.panels {
            self.at = 0;
            self.from = self.from.wrapping_offset(coming.step).wrapping_sub(coming.panels * W);
            self.to = self.to.wrapping_add(W).wrapping_sub(coming.panels * coming.panel);
        }
        self.left -= 1;
        if self.left == 0 {
            coming.tile.done();
        }
    }

    /// Copies what is left of the part at hand: others wait for it.
    ///
    /// # Safety
    /// As for [`copy`](Self::copy).
    #[inline(always)]
    pub(super) unsafe fn end<const W: usize>(mut self) {
        while self.left > 0 {
            // SAFETY: by the contract above.
            unsafe { self.copy::<W>() };
        }
    }
}
