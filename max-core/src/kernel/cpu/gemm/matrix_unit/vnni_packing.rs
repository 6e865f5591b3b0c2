//! Operands of matrix units, packed in blocks: rows of tile registers, and columns whose elements of a word lie side by side (VNNI
//! packing).

use std::ops::Range;

#[cfg(target_arch = "x86_64")]
use crate::kernel::cpu::pack::operand_types::LINE;
use crate::kernel::cpu::pack::{Source, prefetch};
#[cfg(target_arch = "x86_64")]
use crate::kernel::cpu::transpose::{prefetch_far, transpose_16x16};

/// K steps by which packing prefetches rows of B.
const PREFETCH_STEPS: usize = 16;
/// The same of its columns, in lines, where B is K-major.
const PREFETCH_LINES: usize = 8;

/// An element, as the low bits of a word.
pub(in crate::kernel::cpu) trait VnniElement: Copy + Default {
    fn word(self) -> u32;
}
impl VnniElement for u8 {
    #[inline(always)]
    fn word(self) -> u32 {
        self as u32
    }
}
impl VnniElement for u16 {
    #[inline(always)]
    fn word(self) -> u32 {
        self as u32
    }
}

/// Where packing reads.
pub(in crate::kernel::cpu) trait PackSource<E, const N: usize> {
    /// What an element is in memory.
    type Stored;

    fn source(&self) -> &Source<Self::Stored>;

    /// `N` elements from `[across, depth]` on, along one axis; 0 outside.
    ///
    /// # Safety
    /// The source must be readable as it says, and the machine must have AVX-512, as whoever packs for AMX does.
    unsafe fn strip(&self, at: [usize; 2], axis: usize) -> [E; N];

    /// The source, if its elements are taken as they are.
    #[inline(always)]
    fn plain(&self) -> Option<&Source<E>> {
        None
    }

    /// Prefetches what is read along the first axis soon.
    #[inline(always)]
    fn prefetch(&self, at: [usize; 2]) {
        let Source { ptr, strides, .. } = self.source();
        let there = at[1] as i64 * strides[1] + at[0] as i64 * strides[0];
        prefetch(ptr.wrapping_offset(there as isize), size_of::<[Self::Stored; N]>());
    }

    /// The lines of K of which there are elements among some steps.
    #[inline(always)]
    fn lines(&self, steps: &Range<usize>) -> Range<usize> {
        steps.start / N..Ord::min(steps.end, self.source().extents[1]).div_ceil(N)
    }

    /// Whether it is K-major: K steps lie side by side.
    #[inline(always)]
    fn is_k_major(&self) -> bool {
        self.source().strides[1] == 1
    }
}

impl<E: VnniElement, const N: usize> PackSource<E, N> for Source<E> {
    type Stored = E;

    #[inline(always)]
    fn source(&self) -> &Source<E> {
        self
    }

    #[inline(always)]
    unsafe fn strip(&self, at: [usize; 2], axis: usize) -> [E; N] {
        // SAFETY: by the contract.
        unsafe { strip::<E, N>(self, at, axis) }
    }

    #[inline(always)]
    fn plain(&self) -> Option<&Source<E>> {
        Some(self)
    }
}

/// Packs rows: for 16 rows after the other, for one line of K after the other, the rows of a tile register of `N`
/// elements; of some steps, from a line's first one on, and not of more lines than the source has.
///
/// # Safety
/// The source must be readable as described, and `out` writable for a whole tile.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(in crate::kernel::cpu) unsafe fn pack_rows<E: VnniElement, const N: usize>(
    from: &impl PackSource<E, N>,
    [across, depth]: [usize; 2],
    steps: Range<usize>,
    out: *mut E,
) {
    let lines = depth.div_ceil(N);
    let some = from.lines(&steps);
    for row in 0..across {
        // SAFETY: the row's part of each block is inside of `out`.
        let to =
            |line: usize| unsafe { out.add(((row - row % 16) * lines + line * 16 + row % 16) * N).cast::<[E; N]>() };
        let mut line = some.start;
        if let Some(source) = from.plain().filter(|source| source.strides[1] == 1 && row < source.extents[0]) {
            let first = source.ptr.wrapping_offset(row as isize * source.strides[0] as isize);
            while line < Ord::min(some.end, source.extents[1] / N) {
                // SAFETY: the whole line is inside the extents.
                unsafe { to(line).write_unaligned(first.add(line * N).cast::<[E; N]>().read_unaligned()) };
                line += 1;
            }
        }
        while line < some.end {
            // SAFETY: elements inside the extents are read, by the contract above.
            unsafe { to(line).write_unaligned(from.strip([row, line * N], 1)) };
            line += 1;
        }
    }
}

/// Packs rows of `f32` that are values of `bf16`, `depth` elements each, as many lines of them as `lines` says.
///
/// # Safety
/// The rows must be readable to the end of their last line, `out` writable for a whole tile, and the machine must have
/// AVX-512.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(in crate::kernel::cpu) unsafe fn pack_computed(
    rows: *const f32,
    [across, depth]: [usize; 2],
    lines: usize,
    out: *mut u8,
) {
    use std::arch::x86_64::*;
    const N: usize = LINE / 2;
    // Of two vectors of words, the upper halves.
    let upper: [u16; N] = std::array::from_fn(|i| 2 * i as u16 + 1);
    // SAFETY: by the contract above.
    unsafe {
        let upper = _mm512_loadu_si512(upper.as_ptr().cast());
        for row in 0..across {
            let to = out.add(((row - row % 16) * (depth / N) + row % 16) * LINE);
            for line in 0..lines {
                let from = rows.add(row * depth + line * N);
                let (low, high) = (_mm512_loadu_si512(from.cast()), _mm512_loadu_si512(from.add(16).cast()));
                _mm512_storeu_si512(to.add(line * 1024).cast(), _mm512_permutex2var_epi16(low, upper, high));
            }
        }
    }
}

/// Packs columns: for 16 columns after the other, for one line of K after the other, rows of 16 words, each of the
/// elements of one column that follow one another.
///
/// # Safety
/// As for [`pack_rows`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(in crate::kernel::cpu) unsafe fn pack_columns<E: VnniElement, const N: usize>(
    from: &impl PackSource<E, N>,
    [across, depth]: [usize; 2],
    steps: Range<usize>,
    out: *mut E,
) {
    let (lines, group) = (depth.div_ceil(N), N / 16);
    let out = out.cast::<[u32; 16]>();
    if !from.is_k_major() {
        // The elements of a word lie in different rows: along those, as many columns as elements in a line.
        let some = from.lines(&steps);
        for step in some.start * 16..some.end * 16 {
            if let Some(source) = from.plain().filter(|source| source.strides[0] == 1) {
                let (stride, k) = (source.strides[1] as isize, step * group);
                let row = source.ptr.wrapping_offset(k as isize * stride);
                let rows = Ord::min(source.extents[1].saturating_sub(k), group);
                let mut column = 0;
                // SAFETY: these elements are inside the extents, and the words inside of `out`.
                unsafe {
                    while rows == group && column + 16 <= Ord::min(across, source.extents[0]) {
                        out.add(column * lines + step).write_unaligned(words(row.add(column), stride, group));
                        column += 16;
                    }
                    while column < across {
                        let count = Ord::min(source.extents[0].saturating_sub(column), 16);
                        let words = words_of_part(row.wrapping_add(column), stride, [rows, count]);
                        out.add(column * lines + step).write_unaligned(words);
                        column += 16;
                    }
                }
                continue;
            }
            for first in (0..across).step_by(N) {
                let mut rows = [[E::default(); N]; 4];
                let mut g = 0;
                while g < group {
                    let k = step * group + g;
                    from.prefetch([first, k + PREFETCH_STEPS]);
                    // SAFETY: elements inside the extents are read, by the contract above.
                    rows[g] = unsafe { from.strip([first, k], 0) };
                    g += 1;
                }
                let mut q = 0;
                while q < group && first + q * 16 < across {
                    let mut words = [0; 16];
                    let mut g = 0;
                    while g < group {
                        let mut i = 0;
                        while i < 16 {
                            words[i] |= rows[g][q * 16 + i].word() << (8 * size_of::<E>() * g);
                            i += 1;
                        }
                        g += 1;
                    }
                    // SAFETY: the row is inside of `out`.
                    unsafe { out.add((first + q * 16) * lines + step).write_unaligned(words) };
                    q += 1;
                }
            }
        }
        return;
    }
    for first in (0..across).step_by(16) {
        for line in from.lines(&steps) {
            // The words lie together: a transpose of 16 by 16 words.
            let Source { ptr, strides, extents } = from.source();
            let column = |i: usize, line: usize| {
                ptr.wrapping_offset(((first + i) as i64 * strides[0] + (line * N) as i64) as isize)
            };
            let is_whole = from.plain().is_some() && first + 16 <= extents[0] && (line + 1) * N <= extents[1];
            let mut part = [[0u32; 16]; 16];
            let mut i = 0;
            while i < 16 {
                // Not to the L1 cache: where rows are a power of two apart, 16 lines share a set there.
                prefetch_far(column(i, line + PREFETCH_LINES).cast(), LINE);
                if !is_whole {
                    // SAFETY: elements inside the extents are read; a line is 16 words.
                    part[i] = unsafe { std::mem::transmute_copy(&from.strip([first + i, line * N], 1)) };
                }
                i += 1;
            }
            let (rows, stride) = match is_whole {
                true => (column(0, line).cast(), strides[0] as isize * size_of::<E>() as isize),
                false => (part.as_ptr().cast(), LINE as isize),
            };
            // SAFETY: the rows are those inside the extents, or the copy; the block is inside of `out`.
            unsafe {
                out.add(first * lines + line * 16)
                    .cast::<[[u32; 16]; 16]>()
                    .write_unaligned(transpose_16x16(rows, stride))
            };
        }
    }
}

/// The words of 16 columns, whose elements lie in as many rows, `stride` apart.
///
/// # Safety
/// They must be readable.
#[inline(always)]
unsafe fn words<E: VnniElement>(row: *const E, stride: isize, rows: usize) -> [u32; 16] {
    let mut words = [0; 16];
    let mut g = 0;
    while g < rows {
        let row = row.wrapping_offset(g as isize * stride);
        let next = row.wrapping_offset(PREFETCH_STEPS as isize * stride);
        prefetch(next, size_of::<E>());
        let mut i = 0;
        while i < 16 {
            // SAFETY: by the contract above.
            words[i] |= unsafe { *row.add(i) }.word() << (8 * size_of::<E>() * g);
            i += 1;
        }
        g += 1;
    }
    words
}

/// The same where some of the rows and columns are not there: 0.
///
/// # Safety
/// Those that are must be readable, and the machine must have AVX-512.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn words_of_part<E: VnniElement>(row: *const E, stride: isize, [rows, columns]: [usize; 2]) -> [u32; 16] {
    use std::arch::x86_64::*;
    let mask = ((1_u32 << columns) - 1) as u16;
    let mut words = _mm512_setzero_si512();
    // SAFETY: by the contract above; words are as good as a vector of them.
    unsafe {
        for g in 0..rows {
            let row = row.wrapping_offset(g as isize * stride);
            prefetch(row.wrapping_offset(PREFETCH_STEPS as isize * stride), size_of::<E>());
            let elements = match size_of::<E>() {
                1 => _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(mask, row.cast())),
                _ => _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, row.cast())),
            };
            let place = _mm_cvtsi32_si128((8 * size_of::<E>() * g) as i32);
            words = _mm512_or_si512(words, _mm512_sll_epi32(elements, place));
        }
        std::mem::transmute(words)
    }
}

/// `N` elements from `[across, depth]` on, along one axis; 0 outside.
#[inline(always)]
pub(in crate::kernel::cpu) unsafe fn strip<E: VnniElement, const N: usize>(
    from: &Source<E>,
    at: [usize; 2],
    axis: usize,
) -> [E; N] {
    if at[0] >= from.extents[0] || at[1] >= from.extents[1] {
        return [E::default(); N];
    }
    let (n, step) = (from.extents[axis] - at[axis], from.strides[axis] as isize);
    // SAFETY: by the contract of the callers.
    unsafe {
        let p = from.ptr.offset(at[0] as isize * from.strides[0] as isize + at[1] as isize * from.strides[1] as isize);
        if step == 1 && n >= N {
            return p.cast::<[E; N]>().read_unaligned();
        }
        let mut some = [E::default(); N];
        #[cfg(target_arch = "x86_64")]
        if step == 1 && size_of::<[E; N]>() == LINE {
            part_of_line(p.cast(), n * size_of::<E>(), some.as_mut_ptr().cast());
            return some;
        }
        let mut j = 0;
        while j < Ord::min(n, N) {
            some[j] = *p.offset(j as isize * step);
            j += 1;
        }
        some
    }
}

/// Copies the first `bytes` of a line, less than one, and zeros behind them.
///
/// # Safety
/// They must be readable, `to` be writable for a line, and the machine must have AVX-512.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn part_of_line(from: *const u8, bytes: usize, to: *mut u8) {
    use std::arch::x86_64::*;
    // SAFETY: by the contract above.
    unsafe { _mm512_storeu_si512(to.cast(), _mm512_maskz_loadu_epi8((1 << (bytes % LINE)) - 1, from.cast())) };
}
