//! Vector blocks of lanes: the loops of reductions, prefix scans and writes.
//!
//! A block is as many lanes as are loaded at once, so that LLVM vectorizes the lane code.

use std::cell::Cell;

use super::isa::{BLOCK, Level, TAIL, in_vector, shift_right, store_part, store_streaming};
use super::rows::split_reduction::{self, LONG_ROW, apart, leaves_idle, whole_blocks};
use super::tensor::{narrow, scatter_block};
use super::transpose::copy_words;
use super::{At, Cpu, CpuTensor};
use crate::dtype::DType;
use crate::kernel::lang::{Any, LaneItem, Lanes, Outs, Remainder, Target, Val};

/// Calls `part` for the blocks of `lo..hi`, all of which may have fewer lanes.
#[inline(always)]
fn each_part(lo: i64, hi: i64, part: impl Fn(At)) {
    let mut i = lo;
    while i < hi {
        let w = if hi - i < BLOCK as i64 { (hi - i) as usize } else { BLOCK };
        part(At::masked(i, w, false));
        i += BLOCK as i64;
    }
}

impl<L: Level> Cpu<L> {
    /// Calls `main` for the whole blocks of `lo..hi` that are within `start..end`, and `tail` for what is before and after, `N` lanes at
    /// most at a time: of [`BLOCK`] LLVM makes vectors, while it unrolls a loop over [`TAIL`] before it could, and takes it apart.
    #[inline(always)]
    pub(super) fn blocks<const N: usize>(
        lo: i64,
        hi: i64,
        [start, end]: [i64; 2],
        whole: impl Fn(At),
        part: impl Fn(At),
    ) {
        let mut i = lo;
        while i < hi {
            while i >= start && i + BLOCK as i64 <= end {
                whole(At::whole(i, BLOCK));
                i += BLOCK as i64;
            }
            if i < hi {
                let w = if hi - i < N as i64 { (hi - i) as usize } else { N };
                // Compiled apart, of rows: of lanes that can be read nothing else is to be checked.
                if N == BLOCK && i >= start && hi <= end {
                    part(At::masked(i, w, true));
                } else {
                    part(At::masked(i, w, false));
                }
                i += N as i64;
            }
        }
    }

    /// Calls `block` for the blocks of `lo..hi`, of which the last may be masked, if all are within `start..end`; and else, as for a last one of no
    /// more than [`TAIL`] lanes, `narrow` for so many at a time. `block` is compiled knowing that its lanes can be read: what rows of columns
    /// come to stays in registers only then.
    #[inline(always)]
    pub(super) fn column_blocks(lo: i64, hi: i64, [start, end]: [i64; 2], block: impl Fn(At), narrow: impl Fn(At)) {
        let mut i = lo;
        if lo >= start && hi <= end {
            while i + BLOCK as i64 <= hi {
                block(At::whole(i, BLOCK));
                i += BLOCK as i64;
            }
            if hi - i > TAIL as i64 {
                return block(At::masked(i, (hi - i) as usize, true));
            }
        }
        while i < hi {
            let w = if hi - i < TAIL as i64 { (hi - i) as usize } else { TAIL };
            narrow(At::masked(i, w, false));
            i += TAIL as i64;
        }
    }

    /// The same with the remainder of lanes `A`, which `narrow` does in narrow blocks.
    #[inline(always)]
    pub(super) fn blocks_of<A: Lanes<Self>>(
        lo: i64,
        hi: i64,
        range: [i64; 2],
        whole: impl Fn(At),
        part: impl Fn(At),
        narrow: impl Fn(At),
    ) {
        if const { matches!(A::REMAINDER, Remainder::Folded) } {
            each_part(lo, hi, whole);
        } else if const { matches!(A::REMAINDER, Remainder::Narrow) } {
            Self::blocks::<TAIL>(lo, hi, range, whole, narrow);
        } else if const { matches!(A::REMAINDER, Remainder::Columns) } {
            Self::column_blocks(lo, hi, range, whole, narrow);
        } else {
            Self::blocks::<BLOCK>(lo, hi, range, whole, part);
        }
    }

    /// Where the whole blocks of `lo..hi` are: everywhere if all are plain, and nowhere else.
    #[inline(always)]
    pub(super) fn whole(lo: i64, hi: i64, plain: bool) -> [i64; 2] {
        if plain { [lo, hi] } else { [hi, hi] }
    }

    /// Writes a block.
    #[inline(always)]
    pub(super) fn store_lanes<T: Any, const N: usize>(x: CpuTensor<T, 1>, at: At, block: &[T::Compute; N]) {
        if at.is_plain::<N>() || (x.strides[0] == 1 && x.holds(at.i, at.w as i64)) {
            let mem = narrow::<L, T, N>(block);
            // SAFETY: the elements `at.i .. at.i + at.w` are inside the operand, one after the other, in a part that this instance
            // owns.
            unsafe {
                let p = x.ptr.wrapping_offset(at.i as isize);
                if !at.is_whole::<N>() {
                    store_part::<L, T::Mem, N>(p, at.w, &mem);
                } else if !(x.stream && store_streaming::<L, T::Mem, N>(p, &mem)) {
                    p.cast::<[T::Mem; N]>().write_unaligned(mem);
                }
            }
        } else {
            scatter_block(x, at.i, at.w, block);
        }
    }
}

/// Calls `f` for each item, in order.
#[inline(always)]
pub(super) fn for_each<L: Level, A: Lanes<Cpu<L>>>(lanes: A, f: impl Fn(A::Item)) {
    let n = lanes.len().0;
    let mut i = 0;
    while i < n {
        let w = if n - i < TAIL as i64 { (n - i) as usize } else { TAIL };
        let block = lanes.block::<TAIL>(At::masked(i, w, false));
        let mut j = 0;
        // The constant bound lets the check of `j` in the block go.
        while j < w && j < TAIL {
            f(lanes.lane(&block, j));
            j += 1;
        }
        i += TAIL as i64;
    }
}

/// Writes all elements of an output's part.
#[inline(always)]
pub(super) fn write<L: Level, T: Any, A: Lanes<Cpu<L>, Item = Val<Cpu<L>, T>>>(out: CpuTensor<T, 1>, lanes: A) {
    // What is past the bounds would not be written.
    let n = match out.lo.checked_add(out.count) {
        Some(end) if end < out.dims[0] => end,
        _ => out.dims[0],
    };
    let plain = lanes.plain(0, n) && Cpu::<L>::plain_out(out, 0, n);
    if const { A::MOVED && is_computed_as_is::<T>() } && plain && !out.stream && n > 0 {
        let from = lanes.start();
        if !from.is_null() {
            // SAFETY: `plain` has said that the elements are inside of both, one after the other, those of `out` in a part that this
            // instance owns.
            return unsafe { copy_words(out.ptr.cast(), from, n as usize * size_of::<T::Mem>()) };
        }
    }
    let mut whole = Cpu::<L>::whole(0, n, plain);
    // A stencil's neighbours are outside at the ends of the row alone.
    let edge = BLOCK as i64;
    if !plain && n >= 4 * edge && Cpu::<L>::plain_out(out, edge, n - edge) && lanes.plain(edge, n - edge) {
        whole = [edge, n - edge];
    }
    let mut lo = super::columns::store_strips::<L, T, A>(
        lanes,
        n,
        plain,
        #[inline(always)]
        |at, v| Cpu::<L>::store_lanes(out, at, v),
    );
    if const { split_reduction::splits::<L, A>() } && plain && n >= LONG_ROW && leaves_idle() {
        lo = whole_blocks(n);
        split_reduction::write::<L, T, A>(apart(out), apart(lanes), lo);
    }
    Cpu::<L>::blocks_of::<A>(
        lo,
        n,
        whole,
        #[inline(always)]
        |at| write_block::<L, T, A, BLOCK>(out, lanes, at),
        #[inline(always)]
        |at| write_block::<L, T, A, BLOCK>(out, lanes, at),
        #[inline(always)]
        |at| write_block::<L, T, A, TAIL>(out, lanes, at),
    );
}

/// Whether kernels compute with the bits that memory holds.
const fn is_computed_as_is<T: Any>() -> bool {
    size_of::<T::Mem>() == size_of::<T::Compute>() && !matches!(T::STATIC_DTYPE, Some(DType::Bool))
}

#[inline(always)]
pub(super) fn write_block<L: Level, T: Any, A: Lanes<Cpu<L>, Item = Val<Cpu<L>, T>>, const N: usize>(
    out: CpuTensor<T, 1>,
    lanes: A,
    at: At,
) {
    Cpu::<L>::store_lanes(out, at, &values::<L, T, A, N>(lanes, at));
}

/// Reduces the lanes `lo..hi`.
#[inline(always)]
pub(super) fn fold<L: Level, A: Lanes<Cpu<L>>, I: LaneItem<Cpu<L>>>(
    lanes: A,
    [lo, hi]: [i64; 2],
    init: I,
    f: &impl Fn(I, A::Item) -> I,
    combine: &impl Fn(I, I) -> I,
) -> I {
    if hi <= lo {
        return init;
    }
    let mut acc = init.splat::<BLOCK>();
    let mut i = lo;
    if lanes.plain(lo, hi) {
        (acc, i) = fold_blocks::<L, A, I>(acc, lanes, [lo, hi], f);
        if const { matches!(A::REMAINDER, Remainder::Masked) } {
            return fold_end::<L, A, I>(acc, lanes, [i, hi], f, combine);
        }
    }
    while i < hi {
        let w = if hi - i < BLOCK as i64 { (hi - i) as usize } else { BLOCK };
        fold_part::<L, A, I>(&mut acc, lanes, At::masked(i, w, false), f);
        i += BLOCK as i64;
    }
    combined::<L, I, BLOCK>(acc, combine)
}

/// Accumulators with the whole blocks of `lo..hi`, which are plain, and where these end.
#[inline(always)]
pub(super) fn fold_blocks<L: Level, A: Lanes<Cpu<L>>, I: LaneItem<Cpu<L>>>(
    mut acc: I::Array<BLOCK>,
    lanes: A,
    [lo, hi]: [i64; 2],
    f: &impl Fn(I, A::Item) -> I,
) -> (I::Array<BLOCK>, i64) {
    let mut i = lo;
    while i + BLOCK as i64 <= hi {
        if const { alternates::<L, I>() } {
            let mut other = acc;
            fold_block::<L, A, I>(&acc, &mut other, lanes, i, f);
            i += BLOCK as i64;
            if i + BLOCK as i64 > hi {
                return (other, i);
            }
            fold_block::<L, A, I>(&other, &mut acc, lanes, i, f);
        } else {
            let block = lanes.block::<BLOCK>(At::whole(i, BLOCK));
            let mut j = 0;
            while j < BLOCK {
                let v = f(I::lane(&acc, j), lanes.lane(&block, j));
                I::set_lane(&mut acc, j, v);
                j += 1;
            }
        }
        i += BLOCK as i64;
    }
    (acc, i)
}

/// What accumulators come to with the lanes `lo..hi`, which are plain and less than a block.
#[inline(always)]
pub(super) fn fold_end<L: Level, A: Lanes<Cpu<L>>, I: LaneItem<Cpu<L>>>(
    mut acc: I::Array<BLOCK>,
    lanes: A,
    [lo, hi]: [i64; 2],
    f: &impl Fn(I, A::Item) -> I,
    combine: &impl Fn(I, I) -> I,
) -> I {
    if lo < hi {
        fold_part::<L, A, I>(&mut acc, lanes, At::masked(lo, (hi - lo) as usize, true), f);
    }
    combined::<L, I, BLOCK>(acc, combine)
}

/// Whether accumulators that a block reads are others than it writes. With AVX2, accumulators of several values lie in memory. A choice
/// between a new value and what lies where it is stored becomes a store under a mask (LLVM's DAGCombiner), which AMD's processors
/// without AVX-512 leave to microcode.
const fn alternates<L: Level, I: LaneItem<Cpu<L>>>() -> bool {
    L::AVX2 && !L::AVX512 && size_of::<I::Array<BLOCK>>() > BLOCK * size_of::<f32>()
}

/// What accumulators are with the whole block of lanes from `i` on.
#[inline(always)]
fn fold_block<L: Level, A: Lanes<Cpu<L>>, I: LaneItem<Cpu<L>>>(
    from: &I::Array<BLOCK>,
    to: &mut I::Array<BLOCK>,
    lanes: A,
    i: i64,
    f: &impl Fn(I, A::Item) -> I,
) {
    let block = lanes.block::<BLOCK>(At::whole(i, BLOCK));
    let mut j = 0;
    while j < BLOCK {
        I::set_lane(to, j, f(I::lane(from, j), lanes.lane(&block, j)));
        j += 1;
    }
}

/// Takes the lanes of a block that are there into the accumulators.
#[inline(always)]
fn fold_part<L: Level, A: Lanes<Cpu<L>>, I: LaneItem<Cpu<L>>>(
    acc: &mut I::Array<BLOCK>,
    lanes: A,
    at: At,
    f: &impl Fn(I, A::Item) -> I,
) {
    let block = lanes.block::<BLOCK>(at);
    let mut j = 0;
    while j < BLOCK {
        let old = I::lane(acc, j);
        let new = f(old, lanes.lane(&block, j));
        I::set_lane(acc, j, I::select(Val((j as u32) < at.w as u32), new, old));
        j += 1;
    }
}

/// What the partial results of lanes come to. As a tree: a linear fold over the lanes would stay scalar.
#[inline(always)]
fn combined<L: Level, I: LaneItem<Cpu<L>>, const N: usize>(mut acc: I::Array<N>, combine: &impl Fn(I, I) -> I) -> I {
    let mut width = N / 2;
    while width > 0 {
        let mut j = 0;
        while j < width {
            let v = combine(I::lane(&acc, j), I::lane(&acc, j + width));
            I::set_lane(&mut acc, j, v);
            j += 1;
        }
        width /= 2;
    }
    I::lane(&acc, 0)
}

/// The items of a block.
#[inline(always)]
pub(super) fn values<L: Level, T: Any, A: Lanes<Cpu<L>, Item = Val<Cpu<L>, T>>, const N: usize>(
    lanes: A,
    at: At,
) -> [T::Compute; N] {
    let block = lanes.block::<N>(at);
    let mut result = [T::Compute::default(); N];
    let mut j = 0;
    while j < N {
        result[j] = lanes.lane(&block, j).0;
        j += 1;
    }
    result
}

/// Writes what the lanes up to each one come to.
#[inline(always)]
pub(super) fn scan<L: Level, T: Any, A: Lanes<Cpu<L>, Item = Val<Cpu<L>, T>>>(
    out: CpuTensor<T, 1>,
    lanes: A,
    init: T::Compute,
    combine: &impl Fn(Val<Cpu<L>, T>, Val<Cpu<L>, T>) -> Val<Cpu<L>, T>,
) {
    let n = out.dims[0];
    let carry = Cell::new(init);
    // Elements before the first one are read by scans that leave out the element itself.
    let head = BLOCK as i64;
    let start = if Cpu::<L>::plain_out(out, 0, n) && lanes.plain(head, n) {
        if lanes.plain(0, n) { 0 } else { head }
    } else {
        n
    };
    if const { matches!(A::REMAINDER, Remainder::Folded) } {
        return each_part(
            0,
            n,
            #[inline(always)]
            |at| scan_block::<L, T, A, BLOCK>(out, lanes, at, (init, &carry), combine),
        );
    }
    Cpu::<L>::blocks::<BLOCK>(
        0,
        n,
        [start, n],
        #[inline(always)]
        |at| scan_block::<L, T, A, BLOCK>(out, lanes, at, (init, &carry), combine),
        #[inline(always)]
        |at| scan_block::<L, T, A, BLOCK>(out, lanes, at, (init, &carry), combine),
    );
}

/// Scans each group of [`TAIL`] lanes in log2(`TAIL`) steps, and puts before it what came up to it: what came up to the
/// block, combined with the groups of the block to its left.
#[inline(always)]
fn scan_block<L: Level, T: Any, A: Lanes<Cpu<L>, Item = Val<Cpu<L>, T>>, const N: usize>(
    out: CpuTensor<T, 1>,
    lanes: A,
    at: At,
    (init, carry): (T::Compute, &Cell<T::Compute>),
    combine: &impl Fn(Val<Cpu<L>, T>, Val<Cpu<L>, T>) -> Val<Cpu<L>, T>,
) {
    let mut v = values::<L, T, A, N>(lanes, at);
    let mut left = carry.get();
    let mut total = left;
    let mut first = 0;
    while first < N {
        // Read as one: a loop over elements is so large that groups are not unrolled, and vectors are split.
        // SAFETY: `N` is a multiple of `TAIL`, so the group is inside.
        let mut group = unsafe { v.as_ptr().wrapping_add(first).cast::<[T::Compute; TAIL]>().read() };
        scan_step::<L, T, 1>(&mut group, init, combine);
        scan_step::<L, T, 2>(&mut group, init, combine);
        scan_step::<L, T, 4>(&mut group, init, combine);
        scan_step::<L, T, 8>(&mut group, init, combine);
        // Opaque, since what is computed of `left` below would else be shared with single lanes.
        // SAFETY: the caller runs at the level.
        let lefts = unsafe { in_vector::<L, _>(&[left; TAIL]) };
        let mut whole = [init; TAIL];
        let mut j = 0;
        while j < TAIL {
            whole[j] = combine(Val(lefts[j]), Val(group[j])).0;
            j += 1;
        }
        // SAFETY: as above; written as one for the same reason as read.
        unsafe { v.as_mut_ptr().wrapping_add(first).cast::<[T::Compute; TAIL]>().write(in_vector::<L, _>(&whole)) };
        // Of what is carried on, one combination waits for the block before this one.
        let last = group[TAIL - 1];
        total = if first == 0 { last } else { combine(Val(total), Val(last)).0 };
        left = combine(Val(carry.get()), Val(total)).0;
        first += TAIL;
    }
    carry.set(left);
    Cpu::<L>::store_lanes(out, at, &v);
}

/// Combines each lane with the one `D` to its left: `init`, which changes nothing, where there is none.
#[inline(always)]
fn scan_step<L: Level, T: Any, const D: usize>(
    group: &mut [T::Compute; TAIL],
    init: T::Compute,
    combine: &impl Fn(Val<Cpu<L>, T>, Val<Cpu<L>, T>) -> Val<Cpu<L>, T>,
) {
    // SAFETY: the caller runs at the level.
    let left = unsafe { shift_right::<L, T::Compute, D>(group, init) };
    let mut next = [init; TAIL];
    let mut j = 0;
    while j < TAIL {
        next[j] = combine(Val(left[j]), Val(group[j])).0;
        j += 1;
    }
    // SAFETY: as above.
    *group = unsafe { in_vector::<L, T::Compute>(&next) };
}

#[inline(always)]
pub(super) fn outs_block<L: Level, O: Outs<Cpu<L>>, A: Lanes<Cpu<L>, Item = O::Items>, const N: usize>(
    outs: O,
    lanes: A,
    at: At,
) {
    let block = lanes.block::<N>(at);
    let mut result = O::blank::<N>();
    let mut j = 0;
    while j < N {
        O::set_lane::<N>(&mut result, j, lanes.lane(&block, j));
        j += 1;
    }
    outs.store(at, &result);
}
