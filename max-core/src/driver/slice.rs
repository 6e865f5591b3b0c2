//! [`SliceIndex`]: one index of a slice, as in numpy.

use std::ops::{Range, RangeFrom, RangeFull, RangeInclusive, RangeTo, RangeToInclusive};

/// One index of [`Tensor::slice`](super::Tensor::slice): what to take of an axis.
///
/// Integers and ranges convert into it. Negative numbers count from the end, as in numpy; so `..-1` is all but the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SliceIndex {
    /// One position; the axis is dropped.
    Index(isize),
    /// The positions from `start` (included) to `stop` (excluded), by `step`. Bounds beyond the axis are clamped to it.
    Range {
        /// The first position; `None` for the first of the axis in the direction of `step`.
        start: Option<isize>,
        /// The position to stop before; `None` for taking all that remain.
        stop: Option<isize>,
        /// The distance of positions; negative to go backwards, not 0.
        step: isize,
    },
    /// All axes that no other index takes. At most one.
    Ellipsis,
    /// A new axis of size 1.
    NewAxis,
}

impl SliceIndex {
    /// The whole axis.
    pub const ALL: SliceIndex = SliceIndex::Range { start: None, stop: None, step: 1 };
    /// The whole axis, backwards.
    pub const REVERSED: SliceIndex = SliceIndex::Range { start: None, stop: None, step: -1 };

    /// Every `step`-th position of a range; anything else is left as it is.
    ///
    /// ```
    /// # extern crate max_core as max;
    /// use max::driver::SliceIndex;
    ///
    /// let every_second = SliceIndex::from(1..).step_by(2);
    /// assert_eq!(every_second, SliceIndex::Range { start: Some(1), stop: None, step: 2 });
    /// ```
    #[must_use]
    pub fn step_by(self, step: isize) -> SliceIndex {
        match self {
            SliceIndex::Range { start, stop, .. } => SliceIndex::Range { start, stop, step },
            SliceIndex::Index(_) | SliceIndex::Ellipsis | SliceIndex::NewAxis => self,
        }
    }

    pub(super) fn takes_axis(self) -> bool {
        matches!(self, SliceIndex::Index(_) | SliceIndex::Range { .. })
    }

    /// The positions from `start` (included) to `stop` (excluded); `None` stands for an end of the axis.
    ///
    /// For bounds of different signs: as a Rust range, `1..-1` looks reversed, and clippy denies it.
    ///
    /// ```
    /// # extern crate max_core as max;
    /// use max::driver::SliceIndex;
    ///
    /// let all_but_the_ends = SliceIndex::range(1, -1);
    /// let last_two = SliceIndex::range(-2, None);
    /// assert_eq!(last_two, SliceIndex::from(-2..));
    /// # assert_eq!(all_but_the_ends, SliceIndex::Range { start: Some(1), stop: Some(-1), step: 1 });
    /// ```
    pub fn range(start: impl Into<Option<isize>>, stop: impl Into<Option<isize>>) -> SliceIndex {
        SliceIndex::Range { start: start.into(), stop: stop.into(), step: 1 }
    }

    /// The stop of a range that includes `last`: −1 includes the last position, so there is no stop.
    fn after(last: isize) -> Option<isize> {
        last.checked_add(1).filter(|&stop| stop != 0)
    }
}

impl From<isize> for SliceIndex {
    fn from(index: isize) -> SliceIndex {
        SliceIndex::Index(index)
    }
}

impl From<Range<isize>> for SliceIndex {
    fn from(range: Range<isize>) -> SliceIndex {
        SliceIndex::range(Some(range.start), Some(range.end))
    }
}

impl From<RangeFrom<isize>> for SliceIndex {
    fn from(range: RangeFrom<isize>) -> SliceIndex {
        SliceIndex::range(Some(range.start), None)
    }
}

impl From<RangeTo<isize>> for SliceIndex {
    fn from(range: RangeTo<isize>) -> SliceIndex {
        SliceIndex::range(None, Some(range.end))
    }
}

impl From<RangeInclusive<isize>> for SliceIndex {
    fn from(range: RangeInclusive<isize>) -> SliceIndex {
        SliceIndex::range(Some(*range.start()), SliceIndex::after(*range.end()))
    }
}

impl From<RangeToInclusive<isize>> for SliceIndex {
    fn from(range: RangeToInclusive<isize>) -> SliceIndex {
        SliceIndex::range(None, SliceIndex::after(range.end))
    }
}

impl From<RangeFull> for SliceIndex {
    fn from(_: RangeFull) -> SliceIndex {
        SliceIndex::ALL
    }
}
