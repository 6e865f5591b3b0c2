//! Split reductions: a long row is taken in parts, by several threads where a launch has fewer programs than there are.
//!
//! Into which parts follows from the length alone, and they are combined in order: nothing depends on the number of threads.

use std::cell::Cell;
use std::mem::MaybeUninit;

use super::CachedRow;
use crate::kernel::cpu::isa::{BLOCK, Level, with_features};
use crate::kernel::cpu::lanes;
use crate::kernel::cpu::transpose::fence;
use crate::kernel::cpu::{At, Cpu, CpuTensor};
use crate::kernel::lang::{Any, LaneItem, Lanes, Remainder, Val};
use crate::kernel::threads::{Shared, parallel};

/// The fewest elements of a part: as many take longer than to wake a thread.
const PART: i64 = 32 << 10;
/// The most parts of a row.
const MOST: usize = 64;
/// Rows of so many elements are taken in parts.
pub(in crate::kernel) const LONG_ROW: i64 = 2 * PART;

/// Whether rows of such lanes are taken in parts: of what is much code, as few copies are compiled as there can be.
pub(in crate::kernel::cpu) const fn splits<L: Level, A: Lanes<Cpu<L>>>() -> bool {
    matches!(A::REMAINDER, Remainder::Masked)
}

thread_local! {
    /// Whether threads are idle while a program runs on this one.
    static LEAVES_IDLE: Cell<bool> = const { Cell::new(false) };
}

/// Runs programs, of which there are fewer than threads.
pub(in crate::kernel) fn with_idle_threads(programs: impl FnOnce()) {
    /// Puts back what was there, even when a program panics.
    struct Before(bool);
    impl Drop for Before {
        fn drop(&mut self) {
            LEAVES_IDLE.set(self.0);
        }
    }
    let _before = Before(LEAVES_IDLE.replace(true));
    programs();
}

/// Whether the launch has fewer programs than threads.
#[inline(never)]
pub(in crate::kernel::cpu) fn leaves_idle() -> bool {
    LEAVES_IDLE.get()
}

/// A copy for code that is called rarely. What is passed to it would else be written to memory by the code before, which has it in registers.
#[inline(always)]
pub(in crate::kernel::cpu) fn apart<X: Copy>(x: X) -> X {
    let mut copy = x;
    *std::hint::black_box(&mut copy)
}

/// Elements of each part of a row of `n`: whole pairs of blocks, as accumulators may alternate; and how many parts there are.
fn parts(n: i64) -> (i64, usize) {
    let size = Ord::max(PART, (n / (MOST * 2 * BLOCK) as i64 + 1) * (2 * BLOCK) as i64);
    (size, (n / size) as usize + usize::from(n % size != 0))
}

/// Calls `run(first, last)` for ranges of so many parts. What they stored past the caches is there when all are done.
fn in_ranges(count: usize, run: &(dyn Fn(usize, usize) + Sync)) {
    if !leaves_idle() {
        return run(0, count);
    }
    parallel(count, 1, |first, last| {
        run(first, last);
        fence();
    });
}

/// The elements of a row of `n` that are whole blocks. Parts have no others, so that what takes what is left is compiled once.
#[inline(always)]
pub(in crate::kernel::cpu) fn whole_blocks(n: i64) -> i64 {
    n / BLOCK as i64 * BLOCK as i64
}

/// Calls `part` for each part of a row of `n` elements: which it is, where it begins and where it ends.
#[inline(always)]
fn for_each<L: Level>(n: i64, part: impl Fn(usize, [i64; 2])) {
    let (size, count) = parts(n);
    // SAFETY: closures of kernels only read what they capture, and what is written of a part is its own.
    let part = unsafe { Shared::new(&part) };
    in_ranges(count, &|first, last| {
        with_features::<L>(
            #[inline(always)]
            || {
                let mut i = first;
                while i < last {
                    let lo = i as i64 * size;
                    part.get()(i, [lo, if n - lo < size { n } else { lo + size }]);
                    i += 1;
                }
            },
        );
    });
}

/// Calls `block` for each block of the first `n` elements of a row, which are whole blocks.
#[inline(always)]
fn for_each_block<L: Level>(n: i64, block: impl Fn(At)) {
    for_each::<L>(
        n,
        #[inline(always)]
        |_, [mut i, hi]| {
            while i < hi {
                block(At::whole(i, BLOCK));
                i += BLOCK as i64;
            }
        },
    );
}

/// Writes the first `n` elements of an output's part, which are whole blocks and plain.
#[inline(never)]
pub(in crate::kernel::cpu) fn write<L: Level, T: Any, A: Lanes<Cpu<L>, Item = Val<Cpu<L>, T>>>(
    out: CpuTensor<T, 1>,
    lanes: A,
    n: i64,
) {
    for_each_block::<L>(
        n,
        #[inline(always)]
        |at| lanes::write_block::<L, T, A, BLOCK>(out, lanes, at),
    );
}

/// Materializes the first `n` elements of a row, which are whole blocks and plain.
#[inline(never)]
pub(in crate::kernel::cpu) fn materialize<L: Level, T: Any, A: Lanes<Cpu<L>, Item = Val<Cpu<L>, T>>>(
    to: CachedRow<T>,
    lanes: A,
    n: i64,
) {
    for_each_block::<L>(
        n,
        #[inline(always)]
        |at| to.store(at, &lanes::values::<L, T, A, BLOCK>(lanes, at)),
    );
}

/// Reduces `n` lanes, which are long and plain.
#[inline(never)]
pub(in crate::kernel::cpu) fn fold<L: Level, A: Lanes<Cpu<L>>, I: LaneItem<Cpu<L>>>(
    lanes: A,
    n: i64,
    init: I,
    f: &impl Fn(I, A::Item) -> I,
    combine: &impl Fn(I, I) -> I,
) -> I {
    let whole = whole_blocks(n);
    let (_, count) = parts(whole);
    let mut results = [const { MaybeUninit::<I::Array<BLOCK>>::uninit() }; MOST];
    let to = results.as_mut_ptr();
    for_each::<L>(
        whole,
        #[inline(always)]
        |part, range| {
            let (acc, _) = lanes::fold_blocks::<L, A, I>(init.splat(), lanes, range, f);
            // SAFETY: there are at most as many parts as results.
            unsafe { (*to.wrapping_add(part)).write(acc) };
        },
    );
    let mut result = init;
    with_features::<L>(
        #[inline(always)]
        || {
            // SAFETY: there is at least one part, and all were taken.
            let mut all = unsafe { results[0].assume_init() };
            let mut part = 1;
            while part < count {
                // SAFETY: see above.
                let next = unsafe { results[part].assume_init() };
                let mut j = 0;
                while j < BLOCK {
                    let lane = combine(I::lane(&all, j), I::lane(&next, j));
                    I::set_lane(&mut all, j, lane);
                    j += 1;
                }
                part += 1;
            }
            result = lanes::fold_end::<L, A, I>(all, lanes, [whole, n], f, combine);
        },
    );
    result
}
