//! The row cache: a materialized row, in scratch memory of the thread and in compute precision.
//!
//! It exists for rows that are expensive to compute and are read more than once, such as the exponentials of a softmax.

use crate::kernel::cpu::columns::store_strips;
use crate::kernel::cpu::isa::{BLOCK, Level, TAIL, load_part};
use crate::kernel::cpu::lanes::values;
use crate::kernel::cpu::rows::split_reduction::{self, LONG_ROW, apart, leaves_idle, splits, whole_blocks};
use crate::kernel::cpu::transpose::prefetch_far;
use crate::kernel::cpu::{At, Cpu, scratch};
use crate::kernel::lang::{Any, Lanes, Sealed, Val};

/// The largest row, in bytes, whose successor is prefetched while it is computed: both stay in L2.
const PREFETCH_ROW_BYTES: i64 = 512 << 10;

/// A materialized row.
#[derive(Clone, Copy)]
pub(in crate::kernel::cpu) struct CachedRow<T: Any> {
    /// Room for `n` items, and a block.
    ptr: *mut T::Compute,
    n: i64,
}
impl<T: Any> Sealed for CachedRow<T> {}

impl<T: Any> CachedRow<T> {
    /// Room for a row of `n` items. Without memory for it the row is empty, and the launch an error.
    #[inline(always)]
    pub(in crate::kernel::cpu) fn new(n: i64) -> Self {
        let items = if n < 0 { 0 } else { n as usize };
        let bytes = items.saturating_add(BLOCK).saturating_mul(size_of::<T::Compute>());
        match scratch::allocate(bytes) {
            Some(ptr) => CachedRow { ptr: ptr.cast(), n },
            None => {
                scratch::report_out_of_memory(bytes);
                CachedRow { ptr: std::ptr::null_mut(), n: 0 }
            }
        }
    }

    /// Writes all items.
    #[inline(always)]
    pub(in crate::kernel::cpu) fn write<L: Level, A: Lanes<Cpu<L>, Item = Val<Cpu<L>, T>>>(self, lanes: A) {
        let n = self.n;
        // While this row is computed the next one is fetched, so that neither memory nor arithmetic waits for the
        // other.
        let behind = if n.saturating_mul(A::BYTES as i64) <= PREFETCH_ROW_BYTES { lanes.behind() } else { 0 };
        let plain = lanes.plain(0, n);
        let mut lo = store_strips::<L, T, A>(
            lanes,
            n,
            plain,
            #[inline(always)]
            |at, v| self.store(at, v),
        );
        if const { splits::<L, A>() } && plain && n >= LONG_ROW && leaves_idle() {
            lo = whole_blocks(n);
            split_reduction::materialize::<L, T, A>(self, apart(lanes), lo);
        }
        Cpu::<L>::blocks_of::<A>(
            lo,
            n,
            Cpu::<L>::whole(lo, n, plain),
            #[inline(always)]
            |at| {
                self.store(at, &values::<L, T, A, BLOCK>(lanes, at));
                if behind != 0 {
                    let next = behind.wrapping_add(at.i as usize * A::BYTES);
                    prefetch_far(std::ptr::without_provenance(next), BLOCK * A::BYTES);
                }
            },
            #[inline(always)]
            |at| self.store(at, &values::<L, T, A, BLOCK>(lanes, at)),
            #[inline(always)]
            |at| self.store(at, &values::<L, T, A, TAIL>(lanes, at)),
        );
    }

    /// Writes the block at `at`; past the end there is room for the lanes that are none.
    #[inline(always)]
    pub(in crate::kernel::cpu) fn store<const N: usize>(self, at: At, block: &[T::Compute; N]) {
        // SAFETY: `at.i` is below `n`, and the room is for a block more; it is aligned, and the program's own until it
        // ends.
        unsafe { self.ptr.offset(at.i as isize).cast::<[T::Compute; N]>().write_unaligned(*block) };
    }
}

impl<L: Level, T: Any> Lanes<Cpu<L>> for CachedRow<T> {
    type Item = Val<Cpu<L>, T>;
    type Block<const N: usize> = [T::Compute; N];
    #[inline(always)]
    fn len(self) -> Val<Cpu<L>, i64> {
        Val(self.n)
    }
    #[inline(always)]
    fn plain(self, lo: i64, hi: i64) -> bool {
        lo >= 0 && hi <= self.n
    }
    #[inline(always)]
    fn block<const N: usize>(self, at: At) -> [T::Compute; N] {
        let left = self.n - at.i;
        // SAFETY: blocks begin at 0 or later. Lanes are read only where they are inside of the row, which was written.
        unsafe {
            let p = self.ptr.offset(at.i as isize);
            if at.is_whole::<N>() && (at.is_plain::<N>() || left >= N as i64) {
                return p.cast::<[T::Compute; N]>().read_unaligned();
            }
            let w = if left < at.w as i64 { left } else { at.w as i64 };
            load_part::<L, T::Compute, N>(p, if w < 0 { 0 } else { w as usize })
        }
    }
    #[inline(always)]
    fn known(self, i: Val<Cpu<L>, i64>) -> Val<Cpu<L>, T> {
        // SAFETY: `plain` has said that the item is inside; it was written.
        Val(unsafe { *self.ptr.offset(i.0 as isize) })
    }
    #[inline(always)]
    fn lane<const N: usize>(&self, b: &[T::Compute; N], j: usize) -> Val<Cpu<L>, T> {
        Val(b[j])
    }
}
