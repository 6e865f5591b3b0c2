//! Unpacking: what the lane code of a kernel gives for a row, integers in words and scales, written to memory, or handed on in
//! blocks that stay in registers.

use super::Left;
use crate::kernel::cpu::isa::{BLOCK, Level, TAIL};
use crate::kernel::cpu::{At, Cpu};
use crate::kernel::lang::{Lanes, Scale, ScaledRow, Val, item};

/// Lanes that are computed at once behind the last block: so many scales has a block of 256 elements.
pub(super) const HALF: usize = TAIL / 2;

/// Writes row `i` of the left operand, as fast as can be, or by little code.
///
/// # Safety
/// There must be room for it.
#[inline(always)]
pub(super) unsafe fn fill_row<L: Level, W: ScaledRow<Cpu<L>>, const FAST: bool>(left: &Left, row: W, i: usize) {
    // What is not biased is so by 0.
    let bias = if left.is_biased { i32::from_ne_bytes([0x80; 4]) } else { 0 };
    // SAFETY: by the contract above.
    unsafe {
        let words = left.integers.add(i * left.row).cast_mut().cast();
        let (count, sizes) = (left.row / 4, [left.groups, left.scales_row]);
        fill_words::<L, _, FAST>(row.words(), words, count, bias);
        fill_scales::<L, W::Scale, _, false, FAST>(row.scales(), left.row_scales(i), sizes);
    }
}

/// Calls `set` with each of the `N` lanes from `first` on. A whole block is read as one; of what is shorter `w` lanes are, by half
/// vectors where all can be read, else one by one. Each of the three is a copy of what computes the lanes, and takes as long to compile;
/// only the last is there if it need not be fast. `prefetches` says whether words behind a whole block are prefetched, and `transposes`
/// whether its lanes come [transposed](At::transposes).
#[inline(always)]
pub(super) fn each_lane<L: Level, A: Lanes<Cpu<L>>, const N: usize, const WHOLE: bool, const FAST: bool>(
    lanes: A,
    first: usize,
    w: usize,
    [plain, prefetches, transposes]: [bool; 3],
    mut set: impl FnMut(usize, A::Item),
) {
    let mut k = 0;
    if WHOLE {
        let block = lanes.block::<N>(At { prefetches, transposes, ..At::whole(first as i64, N) });
        while k < N {
            set(k, lanes.lane(&block, k));
            k += 1;
        }
        return;
    }
    if FAST {
        // Both bounds, here and below, so that no check of the index remains.
        while plain && k <= const { N - HALF } && k + HALF <= w {
            let block = lanes.block::<HALF>(At::whole((first + k) as i64, HALF));
            let mut j = 0;
            while j < HALF {
                set(k + j, lanes.lane(&block, j));
                j += 1;
            }
            k += HALF;
        }
    }
    while k < w && k < N {
        set(k, item(lanes, Val((first + k) as i64)));
        k += 1;
    }
}

/// Runs the code for blocks of the first `count` lanes, whole ones where all can be read and it is to be fast, and vectors behind them,
/// the last of which may have fewer than `N` lanes; says how many lanes there are.
macro_rules! in_blocks {
    ($lanes:expr, $count:expr, of $size:expr, $fast:expr, |$first:ident, $w:ident, $plain:ident, $n:ident, $whole:ident| $block:expr) => {{
        let len = Ord::min(Ord::max($lanes.len().0, 0) as usize, $count);
        let ($plain, mut count) = ($fast && $lanes.plain(0, len as i64), 0);
        if $fast {
            // Counted in blocks, so that the compiler sees of which segments each is.
            while $plain && count < len / $size {
                const $n: usize = $size;
                const $whole: bool = true;
                let ($first, $w) = (count * $size, $size);
                $block;
                count += 1;
            }
        }
        let mut part = count * ($size / TAIL);
        while part * TAIL < len {
            const $n: usize = TAIL;
            const $whole: bool = false;
            let $first = part * TAIL;
            let $w = if len - $first < TAIL { len - $first } else { TAIL };
            $block;
            part += 1;
        }
        len
    }};
}
#[cfg(target_arch = "x86_64")]
pub(super) use in_blocks;

/// The same of scales, of which a block of weights has 8, 16 or one: behind whole blocks come a vector and half of one, each by itself, so
/// that a whole half begins where a vector does. In an array of a vector, two halves would be stored, and loaded as one, which waits
/// for both stores.
macro_rules! in_halves {
    ($lanes:expr, $count:expr, of $size:expr, $fast:expr, |$first:ident, $w:ident, $n:ident, $whole:ident| $block:expr) => {{
        let len = Ord::min(Ord::max($lanes.len().0, 0) as usize, $count);
        let (plain, mut count) = ($fast && $lanes.plain(0, len as i64), 0);
        if $fast {
            while plain && count < len / $size {
                const $n: usize = $size;
                const $whole: bool = true;
                let ($first, $w) = (count * $size, $size);
                $block;
                count += 1;
            }
        }
        let mut half = count * ($size / HALF);
        if $fast {
            // Of less than two vectors one; where blocks are no longer there is none.
            while $size > TAIL && plain && half + 1 < len / HALF {
                const $n: usize = TAIL;
                const $whole: bool = true;
                let ($first, $w) = (half * HALF, TAIL);
                $block;
                half += 2;
            }
            while plain && half < len / HALF {
                const $n: usize = HALF;
                const $whole: bool = true;
                let ($first, $w) = (half * HALF, HALF);
                $block;
                half += 1;
            }
        }
        while half * HALF < len {
            const $n: usize = HALF;
            const $whole: bool = false;
            let $first = half * HALF;
            let $w = if len - $first < HALF { len - $first } else { HALF };
            $block;
            half += 1;
        }
        len
    }};
}
#[cfg(target_arch = "x86_64")]
pub(super) use in_halves;

/// Writes the first `count` words, with some bits turned, and 0 past their end.
///
/// # Safety
/// There must be room for so many.
#[inline(always)]
unsafe fn fill_words<L: Level, A: Lanes<Cpu<L>, Item = Val<Cpu<L>, i32>>, const FAST: bool>(
    lanes: A,
    to: *mut i32,
    count: usize,
    bits: i32,
) {
    let len = in_blocks!(lanes, count, of BLOCK, FAST, |first, w, plain, N, WHOLE| {
        let mut words = [0; N];
        each_lane::<L, A, N, WHOLE, FAST>(lanes, first, w, [plain, true, false], |k, word| words[k] = word.0 ^ bits);
        // SAFETY: inside of what there is room for.
        unsafe { write(to.add(first), &words, w) };
    });
    // SAFETY: as above.
    (len..count).for_each(|j| unsafe { to.add(j).write(bits) });
}

/// Writes the first `count` scales, and their offsets where there is room for them, and 0 past their end up to `room`. Rows
/// that are `LONG` have more than a vector of them.
///
/// # Safety
/// There must be room for so many.
#[inline(always)]
pub(super) unsafe fn fill_scales<
    L: Level,
    S: Scale<Cpu<L>>,
    A: Lanes<Cpu<L>, Item = S>,
    const LONG: bool,
    const FAST: bool,
>(
    lanes: A,
    to: [*mut f32; 2],
    [count, room]: [usize; 2],
) {
    // SAFETY: inside of what there is room for.
    let len = unsafe {
        if LONG {
            in_halves!(lanes, count, of 2 * TAIL, FAST, |first, w, N, WHOLE| {
                put_scales::<L, S, A, N, WHOLE>(lanes, to, first, w);
            })
        } else {
            in_halves!(lanes, count, of TAIL, FAST, |first, w, N, WHOLE| {
                put_scales::<L, S, A, N, WHOLE>(lanes, to, first, w);
            })
        }
    };
    // Not asked for each element: LLVM makes that a store under a mask, and one to null, of which no element is stored, is left to
    // microcode.
    for to in to {
        if !to.is_null() && len < room {
            // SAFETY: as above.
            unsafe { to.add(len).write_bytes(0, room - len) };
        }
    }
}

/// Writes `w` scales from `first` on.
///
/// # Safety
/// There must be room for so many.
#[inline(always)]
unsafe fn put_scales<L: Level, S: Scale<Cpu<L>>, A: Lanes<Cpu<L>, Item = S>, const N: usize, const WHOLE: bool>(
    lanes: A,
    [scales, offsets]: [*mut f32; 2],
    first: usize,
    w: usize,
) {
    let mut both = [[0.0; N]; 2];
    each_lane::<L, A, N, WHOLE, false>(lanes, first, w, [WHOLE, true, false], |k, scale| {
        let (scale, offset) = scale.parts();
        (both[0][k], both[1][k]) = (scale.0, offset.0);
    });
    // SAFETY: by the contract above.
    unsafe {
        write(scales.add(first), &both[0], w);
        if S::HAS_OFFSET && !offsets.is_null() {
            write(offsets.add(first), &both[1], w);
        }
    }
}

/// Writes the first `w` of some lanes.
///
/// # Safety
/// There must be room for them.
#[inline(always)]
unsafe fn write<P: Copy, const N: usize>(to: *mut P, lanes: &[P; N], w: usize) {
    // SAFETY: by the contract above.
    unsafe {
        if w == N {
            return to.cast::<[P; N]>().write_unaligned(*lanes);
        }
        let mut k = 0;
        while k < w && k < N {
            to.add(k).write(lanes[k]);
            k += 1;
        }
    }
}
