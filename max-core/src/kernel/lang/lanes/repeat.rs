//! Repetition: each element of a vector for several neighbouring lanes, such as a channel's weight for all its pixels.

use super::Lanes;
use crate::kernel::lang::target::Target;
use crate::kernel::lang::tensors::{In, Index};
use crate::kernel::lang::value::Val;
use crate::kernel::lang::value::scalar::Any;

/// Each element several times; made by [`In::repeat`].
pub struct Repeat<M: Target, T: Any> {
    x: In<M, T, 1>,
    times: Val<M, i64>,
}

impl<M: Target, T: Any> Clone for Repeat<M, T> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}
impl<M: Target, T: Any> Copy for Repeat<M, T> {}

impl<M: Target, T: Any> In<M, T, 1> {
    /// Each element `times` times (once, if that is less than 1), next to each other.
    #[inline(always)]
    #[track_caller]
    pub fn repeat(self, times: impl Index<M>) -> Repeat<M, T> {
        Repeat { x: self, times: times.index().max(Val(M::int::<i64>(1))) }
    }
}

impl<M: Target, T: Any> Lanes<M> for Repeat<M, T> {
    type Item = Val<M, T>;
    type Block<const N: usize> = M::Block<T, N>;

    #[inline(always)]
    #[track_caller]
    fn len(self) -> Val<M, i64> {
        self.x.len() * self.times
    }
    #[inline(always)]
    fn plain(self, _: i64, _: i64) -> bool {
        true
    }
    #[inline(always)]
    #[track_caller]
    fn block<const N: usize>(self, at: M::At) -> M::Block<T, N> {
        M::repeated(self.x.0, self.times.0, at)
    }
    #[inline(always)]
    fn lane<const N: usize>(&self, b: &M::Block<T, N>, j: usize) -> Val<M, T> {
        Val(M::block_lane(b, j))
    }
}
