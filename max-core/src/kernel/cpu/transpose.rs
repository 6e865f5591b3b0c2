//! Copy and transpose kernels: transposes in registers, and runs written by non-temporal (streaming) stores.
//!
//! Plain loops get neither right: they miss the cache on one side, and read lines that they only write.
//!
//! Everything here is for the architecture's baseline, since memory bandwidth is the limit, not the vector width.

use std::mem::MaybeUninit;

use super::isa::stream_fence;

/// Bytes of a cache line.
pub(crate) const LINE: usize = 64;

/// An element to be moved, an integer of its size.
pub(crate) trait Word: Copy {
    /// Elements of a cache line, and so rows and columns of a [`transpose`] tile.
    const PER_LINE: usize = LINE / size_of::<Self>();
    /// Rows and columns that [`transpose_square`](Self::transpose_square) transposes.
    const SIDE: usize;

    /// Transposes a square in registers: its rows are `step` elements apart in the source, `distance` elements in the
    /// target, which is written by non-temporal stores if `STREAM` says so. Of the target only the first `columns` rows are written.
    ///
    /// # Safety
    /// The source must be readable and the target writable there; with `STREAM`, the rows of the target are aligned to
    /// 16 bytes.
    unsafe fn transpose_columns<const STREAM: bool>(
        target: *mut Self,
        distance: isize,
        source: *const Self,
        step: isize,
        columns: usize,
    );

    /// The same, of all rows.
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    unsafe fn transpose_square<const STREAM: bool>(
        target: *mut Self,
        distance: isize,
        source: *const Self,
        step: isize,
    ) {
        // SAFETY: by the contract.
        unsafe { Self::transpose_columns::<STREAM>(target, distance, source, step, Self::SIDE) };
    }
}

macro_rules! word {
    ($type:ident, $side:literal, $low:ident, $high:ident) => {
        impl Word for $type {
            const SIDE: usize = $side;

            #[inline(always)]
            unsafe fn transpose_columns<const STREAM: bool>(
                target: *mut $type,
                distance: isize,
                source: *const $type,
                step: isize,
                columns: usize,
            ) {
                #[cfg(target_arch = "x86_64")]
                {
                    use std::arch::x86_64::*;
                    // SAFETY: by the contract; SSE2 is part of x86-64.
                    unsafe {
                        // Loops over indices: what iterators are made of may be compiled apart, and called.
                        let mut rows = [_mm_setzero_si128(); $side];
                        let mut i = 0;
                        while i < $side {
                            rows[i] = _mm_loadu_si128(source.offset(i as isize * step).cast());
                            i += 1;
                        }
                        // Each round interleaves the first half of the rows with the second: a perfect shuffle of all
                        // elements. As many rounds as the side has bits make a transpose.
                        let mut round = 0;
                        while round < usize::ilog2($side) {
                            let half = rows;
                            let mut i = 0;
                            while i < $side / 2 {
                                rows[2 * i] = $low(half[i], half[i + $side / 2]);
                                rows[2 * i + 1] = $high(half[i], half[i + $side / 2]);
                                i += 1;
                            }
                            round += 1;
                        }
                        let mut i = 0;
                        while i < $side && i < columns {
                            let to = target.offset(i as isize * distance).cast();
                            if STREAM {
                                _mm_stream_si128(to, rows[i])
                            } else {
                                _mm_storeu_si128(to, rows[i])
                            }
                            i += 1;
                        }
                    }
                }
                #[cfg(not(target_arch = "x86_64"))]
                for column in 0..columns {
                    for row in 0..$side {
                        // SAFETY: by the contract.
                        unsafe {
                            *target.offset(column as isize * distance).add(row) =
                                *source.offset(row as isize * step).add(column)
                        };
                    }
                }
            }
        }
    };
}
word!(u8, 16, _mm_unpacklo_epi8, _mm_unpackhi_epi8);
word!(u16, 8, _mm_unpacklo_epi16, _mm_unpackhi_epi16);
word!(u32, 4, _mm_unpacklo_epi32, _mm_unpackhi_epi32);
word!(u64, 2, _mm_unpacklo_epi64, _mm_unpackhi_epi64);

/// Transposes 16 by 16 words, whose rows lie `stride` bytes apart.
///
/// # Safety
/// The rows must be readable, and the machine have AVX-512.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn transpose_16x16(rows: *const u8, stride: isize) -> [[u32; 16]; 16] {
    use std::arch::x86_64::*;
    let mut v = [_mm512_setzero_si512(); 16];
    let mut i = 0;
    while i < 16 {
        // SAFETY: a row is as long as a vector.
        v[i] = unsafe { _mm512_loadu_si512(rows.wrapping_offset(i as isize * stride).cast()) };
        i += 1;
    }
    // SAFETY: vectors are as long as rows.
    unsafe { std::mem::transmute(transpose_rows(v)) }
}

/// Transposes 16 rows of 16 words: by pairs of words, of two words, and of four.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn transpose_rows(mut v: [std::arch::x86_64::__m512i; 16]) -> [std::arch::x86_64::__m512i; 16] {
    use std::arch::x86_64::*;
    let mut pairs = v;
    let mut i = 0;
    while i < 16 {
        pairs[i] = _mm512_unpacklo_epi32(v[i], v[i + 1]);
        pairs[i + 1] = _mm512_unpackhi_epi32(v[i], v[i + 1]);
        i += 2;
    }
    // Of four rows, each quarter of vector `c` has column `c` of every four.
    let mut fours = v;
    let mut g = 0;
    while g < 16 {
        fours[g] = _mm512_unpacklo_epi64(pairs[g], pairs[g + 2]);
        fours[g + 1] = _mm512_unpackhi_epi64(pairs[g], pairs[g + 2]);
        fours[g + 2] = _mm512_unpacklo_epi64(pairs[g + 1], pairs[g + 3]);
        fours[g + 3] = _mm512_unpackhi_epi64(pairs[g + 1], pairs[g + 3]);
        g += 4;
    }
    let mut c = 0;
    while c < 4 {
        let (p, q, r, s) = (fours[c], fours[4 + c], fours[8 + c], fours[12 + c]);
        let (low, other_low) = (_mm512_shuffle_i32x4::<0x44>(p, q), _mm512_shuffle_i32x4::<0x44>(r, s));
        let (high, other_high) = (_mm512_shuffle_i32x4::<0xee>(p, q), _mm512_shuffle_i32x4::<0xee>(r, s));
        v[c] = _mm512_shuffle_i32x4::<0x88>(low, other_low);
        v[4 + c] = _mm512_shuffle_i32x4::<0xdd>(low, other_low);
        v[8 + c] = _mm512_shuffle_i32x4::<0x88>(high, other_high);
        v[12 + c] = _mm512_shuffle_i32x4::<0xdd>(high, other_high);
        c += 1;
    }
    v
}

/// Where transposed lines are put together: a cache line of elements, each with as many lines as the widest strip.
#[repr(align(64))]
pub(crate) struct Strip(MaybeUninit<[u8; (LENGTH + LINE) * LINE]>);

impl Strip {
    pub(crate) const fn new() -> Strip {
        Strip(MaybeUninit::uninit())
    }
}

/// Rows at this stride in bytes, or a multiple, conflict in the L1 cache: they share too few of its sets.
const CONFLICT_STRIDE: isize = 2048;
/// Rows of the source that are read side by side: as many streams as hardware prefetchers follow.
const PREFETCH_STREAMS: usize = 32;
/// Elements of a row of a [`Strip`].
const LENGTH: usize = 1024;

/// Writes the transpose of `height` rows of the source, each of `width` elements, as `width` rows. Both sides are a
/// first element and the distance of rows; a source row and all that is written is walked in unit steps.
///
/// The source is read a cache line at a time and in its order; rows of the result are put together in `strip`, and
/// leave it as whole lines: by non-temporal stores if `stream` says so. Where rows of the result are not aligned to
/// lines, they leave in longer pieces, so that few lines are cut.
///
/// # Safety
/// The elements of the source must be readable, those of the target writable by this call alone, the two disjoint.
pub(crate) unsafe fn transpose<W: Word>(
    (target, distance): (*mut W, isize),
    (source, step): (*const W, isize),
    (height, width): (usize, usize),
    stream: bool,
    strip: &mut Strip,
) {
    let line = W::PER_LINE;
    if width < W::SIDE && step == width as isize && height >= line && !stream {
        // SAFETY: by the contract.
        return unsafe { transpose_narrow(target, distance, source, (height, width)) };
    }
    if height < line && !stream {
        // Rows of the result are shorter than a line: several of them leave the registers one after the other.
        // SAFETY: by the contract.
        return unsafe { transpose_lines::<W, false>(target, distance, source, step, height, width) };
    }
    let aligned = (target as usize).is_multiple_of(LINE) && (distance as usize).is_multiple_of(line);
    let depth = match stream {
        true if aligned => (PREFETCH_STREAMS / line).max(1),
        true => LENGTH / line,
        false => 1,
    };
    // Whole lines leave at once where those of the source can stay in the L1 cache until then.
    let direct = stream && aligned && step * size_of::<W>() as isize % CONFLICT_STRIDE != 0;
    // Rows a power of 2 apart would meet in one set of the cache.
    let pitch = if depth == 1 { 1 } else { depth + 1 };
    let buffer = strip.0.as_mut_ptr().cast::<W>();
    for top in (0..height).step_by(line * depth) {
        let height = (height - top).min(line * depth);
        for left in (0..width).step_by(line) {
            let width = (width - left).min(line);
            // SAFETY: a part of both sides, by the contract; the buffer has room for a line of elements, each with
            // `depth` lines.
            unsafe {
                let source = source.offset(top as isize * step).add(left);
                if direct && width == line && height.is_multiple_of(line) {
                    let target = target.offset(left as isize * distance).add(top);
                    for row in (0..height).step_by(line) {
                        stream_lines(target.add(row), distance, source.offset(row as isize * step), step);
                    }
                    continue;
                }
                for row in (0..height).step_by(line) {
                    let (part, buffer) = (source.offset(row as isize * step), buffer.add(row));
                    let rows = (height - row).min(line);
                    transpose_lines::<W, true>(buffer, (line * pitch) as isize, part, step, rows, width);
                }
                let target = target.offset(left as isize * distance).add(top);
                for row in 0..width {
                    let to = target.offset(row as isize * distance);
                    copy_run(to.cast(), buffer.add(row * line * pitch).cast(), height * size_of::<W>(), stream);
                }
            }
        }
    }
}

/// Transposes rows of fewer elements than a square has, which lie one after the other: squares overlap in the source, and what they
/// read of the rows that follow is not written.
///
/// # Safety
/// As for [`transpose`].
unsafe fn transpose_narrow<W: Word>(
    target: *mut W,
    distance: isize,
    source: *const W,
    (height, width): (usize, usize),
) {
    // Rows whose first square's worth of elements is inside.
    let inside = (height * width).saturating_sub(W::SIDE) / width + 1;
    let squares = inside / W::SIDE * W::SIDE;
    // SAFETY: by the contract, and since the last row of a square is one of `inside`.
    unsafe {
        for row in (0..squares).step_by(W::SIDE) {
            let from = source.add(row * width);
            W::transpose_columns::<false>(target.add(row), distance, from, width as isize, width);
        }
        for row in squares..height {
            for column in 0..width {
                *target.offset(column as isize * distance).add(row) = *source.add(row * width + column);
            }
        }
    }
}

/// Transposes a line of elements of as many rows by non-temporal stores, a few lines at a time, so that each leaves
/// when it is whole.
///
/// # Safety
/// As for [`transpose`]; the rows of the target are lines of the cache.
#[inline(always)]
unsafe fn stream_lines<W: Word>(target: *mut W, distance: isize, source: *const W, step: isize) {
    for column in (0..W::PER_LINE).step_by(W::SIDE) {
        for row in (0..W::PER_LINE).step_by(W::SIDE) {
            // SAFETY: by the contract.
            unsafe {
                let to = target.offset(column as isize * distance).add(row);
                W::transpose_square::<true>(to, distance, source.offset(row as isize * step).add(column), step);
            }
        }
    }
}

/// Transposes rows by squares in registers, and what is narrower than one element by element: with `ALONG_SOURCE` a line of some rows of the
/// source after the other, each read once, since rows at a stride that conflicts in the L1 cache are gone at a second visit; else a
/// line of some rows of the target after the other.
///
/// # Safety
/// As for [`transpose`].
#[inline(always)]
unsafe fn transpose_lines<W: Word, const ALONG_SOURCE: bool>(
    target: *mut W,
    distance: isize,
    source: *const W,
    step: isize,
    height: usize,
    width: usize,
) {
    // SAFETY: by the contract.
    unsafe {
        if height < W::SIDE || width < W::SIDE {
            for row in 0..height {
                for column in 0..width {
                    *target.offset(column as isize * distance).add(row) =
                        *source.offset(row as isize * step).add(column);
                }
            }
            return;
        }
        let (outer, inner) = if ALONG_SOURCE { (height, width) } else { (width, height) };
        for i in (0..outer).step_by(W::SIDE) {
            // The last squares overlap those before, and end with the rows.
            let i = i.min(outer - W::SIDE);
            for j in (0..inner).step_by(W::SIDE) {
                let j = j.min(inner - W::SIDE);
                let (row, column) = if ALONG_SOURCE { (i, j) } else { (j, i) };
                let to = target.offset(column as isize * distance).add(row);
                W::transpose_square::<false>(to, distance, source.offset(row as isize * step).add(column), step);
            }
        }
    }
}

/// Copies a run of bytes: with `stream`, its whole lines by non-temporal stores. A [`stream_fence`] is the caller's to
/// make.
///
/// # Safety
/// As for [`std::ptr::copy_nonoverlapping`].
#[inline(always)]
pub(crate) unsafe fn copy_run(target: *mut u8, source: *const u8, bytes: usize, stream: bool) {
    if bytes == LINE && !stream {
        // SAFETY: by the contract.
        unsafe { target.cast::<[u8; LINE]>().write_unaligned(source.cast::<[u8; LINE]>().read_unaligned()) };
        return;
    }
    #[cfg(target_arch = "x86_64")]
    if bytes >= LINE && stream {
        use std::arch::x86_64::*;
        let head = (target as usize).wrapping_neg() % LINE;
        let tail = head + (bytes - head) / LINE * LINE;
        // SAFETY: by the contract; lines of the target are aligned, SSE2 is part of x86-64.
        unsafe {
            target.copy_from_nonoverlapping(source, head);
            let mut at = head;
            while at < tail {
                let part: [__m128i; LINE / 16] =
                    std::array::from_fn(|i| _mm_loadu_si128(source.add(at + i * 16).cast()));
                for (i, part) in part.into_iter().enumerate() {
                    _mm_stream_si128(target.add(at + i * 16).cast(), part);
                }
                at += LINE;
            }
            target.add(tail).copy_from_nonoverlapping(source.add(tail), bytes - tail);
        }
        return;
    }
    if bytes < LINE {
        // SAFETY: by the contract.
        return unsafe { copy_words(target, source, bytes) };
    }
    // SAFETY: by the contract.
    unsafe { target.copy_from_nonoverlapping(source, bytes) };
}

/// Copies without a call: by words of one size, at most a line, the last of which overlaps the one before.
///
/// # Safety
/// As for [`std::ptr::copy_nonoverlapping`].
#[inline(always)]
pub(crate) unsafe fn copy_words(target: *mut u8, source: *const u8, bytes: usize) {
    macro_rules! words {
        ($word:ty) => {{
            const SIZE: usize = size_of::<$word>();
            let mut at = 0;
            loop {
                // SAFETY: the word is inside of both, by the contract.
                unsafe {
                    target.add(at).cast::<$word>().write_unaligned(source.add(at).cast::<$word>().read_unaligned())
                };
                if at + SIZE >= bytes {
                    return;
                }
                at = Ord::min(at + SIZE, bytes - SIZE);
            }
        }};
    }
    match bytes {
        LINE.. => words!([u8; LINE]),
        16.. => words!(u128),
        8.. => words!(u64),
        4.. => words!(u32),
        1.. => words!(u8),
        0 => {}
    }
}

/// Prefetches the cache lines of `bytes` bytes to be brought near; nothing is read, so that any address will do.
#[inline(always)]
pub(crate) fn prefetch(from: *const u8, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    prefetch_to::<{ std::arch::x86_64::_MM_HINT_T0 }>(from, bytes);
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (from, bytes);
}

/// As [`prefetch`], but no nearer than the L2 cache, since other things are in use first.
#[inline(always)]
pub(crate) fn prefetch_far(from: *const u8, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    prefetch_to::<{ std::arch::x86_64::_MM_HINT_T1 }>(from, bytes);
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (from, bytes);
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn prefetch_to<const HINT: i32>(from: *const u8, bytes: usize) {
    for at in (0..bytes).step_by(LINE) {
        // SAFETY: a prefetch reads nothing; SSE is part of x86-64.
        unsafe { std::arch::x86_64::_mm_prefetch::<HINT>(from.wrapping_add(at).cast()) };
    }
}

/// Orders what [`copy_run`] and [`transpose`] streamed before what follows.
pub(crate) fn fence() {
    stream_fence();
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every count of rows and columns around the sizes of squares, lines and strips, at aligned and odd addresses.
    fn check<W: Word + PartialEq + std::fmt::Debug>(make: impl Fn(usize) -> W) {
        let mut strip = Strip::new();
        let line = W::PER_LINE;
        let counts = [0, 1, W::SIDE - 1, W::SIDE, W::SIDE + 1, line - 1, line, line + 1, 2 * line + W::SIDE];
        let tall = [LENGTH - 1, LENGTH + 1];
        for height in counts.into_iter().chain(tall) {
            for width in counts {
                for (offset, gap) in [(0, 0), (1, 0), (0, 3), (0, line - height % line)] {
                    for stream in [false, true] {
                        let (step, distance) = (width + 1, height + gap);
                        let source: Vec<W> = (0..height * step + 1).map(&make).collect();
                        let mut target = vec![make(7); width * distance + 2 * line];
                        let first = (target.as_ptr() as usize).wrapping_neg() % LINE / size_of::<W>() + offset;
                        // SAFETY: both vectors are long enough.
                        unsafe {
                            let to = (target.as_mut_ptr().add(first), distance as isize);
                            transpose(to, (source.as_ptr(), step as isize), (height, width), stream, &mut strip);
                        }
                        fence();
                        let untouched = make(7);
                        for (i, &found) in target.iter().enumerate() {
                            let inside = i.checked_sub(first).filter(|_| distance > 0);
                            let place = inside.map(|i| (i / distance, i % distance));
                            let expected = match place {
                                Some((column, row)) if column < width && row < height => source[row * step + column],
                                _ => untouched,
                            };
                            assert_eq!(found, expected, "{height}x{width} at {i}, {offset} {gap} {stream}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn transposes_of_all_sizes_and_alignments() {
        check(|i| (i * 37 % 251) as u8);
        check(|i| (i * 37) as u16);
        check(|i| i as u32);
        check(|i| i as u64);
    }

    #[test]
    fn runs_of_all_lengths_and_alignments() {
        let source: Vec<u8> = (0..1000).map(|i| (i % 251) as u8).collect();
        for offset in [0, 1, 63, 64, 65] {
            for bytes in (0..200).chain([800]) {
                for stream in [false, true] {
                    let mut target = vec![255; 1000];
                    // SAFETY: both vectors are long enough.
                    unsafe { copy_run(target.as_mut_ptr().add(offset), source.as_ptr().add(3), bytes, stream) };
                    fence();
                    assert_eq!(target[offset..offset + bytes], source[3..3 + bytes]);
                    assert!(target[..offset].iter().chain(&target[offset + bytes..]).all(|&byte| byte == 255));
                }
            }
        }
    }
}
