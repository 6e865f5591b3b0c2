//! Transposes between rows of programs and vectors over programs: squares in registers, fixed permutations of short rows that lie
//! one after the other, and element by element what is too narrow for either.

#[cfg(target_arch = "x86_64")]
use super::super::isa::unrolled;
use super::super::transpose::Word;
#[cfg(target_arch = "x86_64")]
use super::super::transpose::transpose_rows;
use super::launch::LANES;
#[cfg(target_arch = "x86_64")]
use super::permute::{self, permute_avx2, permute_avx512};

/// Reads the rows of `count` programs: element `i` of program `l` to index `i * LANES + l`. `rows` is the first row,
/// and how many elements its neighbour and its own next element are away.
///
/// # Safety
/// The rows, of `n` elements each, must be readable, and there must be room for `n * LANES` elements, aligned to 64 bytes; the
/// machine must have AVX2, if it is an x86-64, and AVX-512 if `avx512` says so.
#[inline(always)]
pub(super) unsafe fn read<E: Copy>(
    room: *mut E,
    rows: (*const E, isize, isize),
    (n, count): (usize, usize),
    avx512: bool,
) {
    #[cfg(target_arch = "x86_64")]
    if rows.2 == 1 && count == LANES {
        // SAFETY: by the contract; nothing is written to the rows.
        if unsafe { in_registers::<E, true>((rows.0.cast_mut(), rows.1), room, n, avx512) } {
            return;
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = avx512;
    macro_rules! as_word {
        ($($size:literal $word:ident),*) => {
            match size_of::<E>() {
                // SAFETY: by the contract; a word is an integer of the element's size.
                $($size => unsafe { read_words::<$word>(room.cast(), (rows.0.cast(), rows.1, rows.2), (n, count)) },)*
                _ => {}
            }
        };
    }
    as_word!(1 u8, 2 u16, 4 u32, 8 u64);
}

/// Writes the rows of `count` programs, as [`read`] reads them.
///
/// # Safety
/// The rows must be writable by this call alone, and the room must hold `n * LANES` elements; the machine as for [`read`].
#[inline(always)]
pub(super) unsafe fn write<E: Copy>(
    rows: (*mut E, isize, isize),
    room: *const E,
    (n, count): (usize, usize),
    avx512: bool,
) {
    #[cfg(target_arch = "x86_64")]
    if rows.2 == 1 && count == LANES {
        // SAFETY: as above; nothing is written to the room.
        if unsafe { in_registers::<E, false>((rows.0, rows.1), room.cast_mut(), n, avx512) } {
            return;
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = avx512;
    macro_rules! as_word {
        ($($size:literal $word:ident),*) => {
            match size_of::<E>() {
                // SAFETY: as above.
                $($size => unsafe { write_words::<$word>((rows.0.cast(), rows.1, rows.2), room.cast(), (n, count)) },)*
                _ => {}
            }
        };
    }
    as_word!(1 u8, 2 u16, 4 u32, 8 u64);
}

/// Reads or writes the rows of a group of [`LANES`] programs, which lie `next` elements apart, and says whether it has: by whole registers,
/// where there is a way for elements of that size.
///
/// # Safety
/// As for [`read`] and [`write`].
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn in_registers<E, const READ: bool>(
    (rows, next): (*mut E, isize),
    room: *mut E,
    n: usize,
    avx512: bool,
) -> bool {
    let (to, from) = if READ { (room, rows) } else { (rows, room) };
    // SAFETY: by the contract.
    unsafe {
        if n <= permute::LONGEST && next == n as isize {
            let permuted = match avx512 {
                true => permute_avx512::<E, READ>(to, from, n),
                false => permute_avx2::<E, READ>(to, from, n),
            };
            if permuted {
                return true;
            }
        }
        let has_squares = avx512 && size_of::<E>() == 4 && n > 0;
        if has_squares {
            squares_avx512::<READ>((rows.cast(), next), room.cast(), n);
        }
        has_squares
    }
}

/// Reads or writes the rows of a group of [`LANES`] programs, of `n` words of 4 bytes, 16 of each at a time: by vectors as long as those
/// that the kernel works with, since what was stored in parts is not forwarded to a load of the whole.
///
/// # Safety
/// As for [`read`] and [`write`]; the machine must have AVX-512.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
#[inline(never)]
unsafe fn squares_avx512<const READ: bool>((rows, next): (*mut u32, isize), room: *mut u32, n: usize) {
    use std::arch::x86_64::*;
    let width = n.min(LANES);
    let mask = u16::MAX >> (LANES - width);
    for first in (0..n).step_by(LANES) {
        // The last square ends with the rows.
        let first = first.min(n - width);
        let (row, across) = (rows.wrapping_add(first), room.wrapping_add(first * LANES));
        let mut square = [_mm512_setzero_si512(); LANES];
        unrolled!(l in LANES, 16, {
            // SAFETY: by the contract: `width` elements of each row, and as many vectors of the room.
            unsafe {
                if READ {
                    square[l] = _mm512_maskz_loadu_epi32(mask, row.offset(l as isize * next).cast());
                } else if l < width {
                    square[l] = _mm512_loadu_si512(across.add(l * LANES).cast());
                }
            }
        });
        let square = transpose_rows(square);
        unrolled!(l in LANES, 16, {
            // SAFETY: as above.
            unsafe {
                if !READ {
                    _mm512_mask_storeu_epi32(row.offset(l as isize * next).cast(), mask, square[l]);
                } else if l < width {
                    _mm512_storeu_si512(across.add(l * LANES).cast(), square[l]);
                }
            }
        });
    }
}

/// For the least level that programs go across at.
///
/// # Safety
/// As for [`read`]; the machine must have AVX2.
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2"))]
#[inline(never)]
unsafe fn read_words<W: Word>(room: *mut W, (rows, next, step): (*const W, isize, isize), (n, count): (usize, usize)) {
    // SAFETY: by the contract.
    unsafe {
        if step == 1 && count == LANES && n >= W::SIDE {
            let mut i = 0;
            while i < n {
                let (first, mut l) = (square::<W>(i, n), 0);
                while l < LANES {
                    let source = rows.offset(l as isize * next).add(first);
                    W::transpose_square::<false>(room.add(first * LANES + l), LANES as isize, source, next);
                    l += W::SIDE;
                }
                i += W::SIDE;
            }
            return;
        }
        for i in 0..n {
            let (from, to) = (rows.offset(i as isize * step), room.add(i * LANES));
            if next == 1 && count == LANES {
                to.cast::<[W; LANES]>().write_unaligned(from.cast::<[W; LANES]>().read_unaligned());
                continue;
            }
            for l in 0..LANES {
                // A program that is none has what the last one has.
                *to.add(l) = *from.offset(l.min(count - 1) as isize * next);
            }
        }
    }
}

/// For the least level that programs go across at.
///
/// # Safety
/// As for [`write`]; the machine must have AVX2.
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2"))]
#[inline(never)]
unsafe fn write_words<W: Word>((rows, next, step): (*mut W, isize, isize), room: *const W, (n, count): (usize, usize)) {
    // SAFETY: by the contract.
    unsafe {
        if step == 1 && count == LANES && n >= W::SIDE {
            let mut i = 0;
            while i < n {
                let (first, mut l) = (square::<W>(i, n), 0);
                while l < LANES {
                    let target = rows.offset(l as isize * next).add(first);
                    W::transpose_square::<false>(target, next, room.add(first * LANES + l), LANES as isize);
                    l += W::SIDE;
                }
                i += W::SIDE;
            }
            return;
        }
        for i in 0..n {
            let (from, to) = (room.add(i * LANES), rows.offset(i as isize * step));
            if next == 1 && count == LANES {
                to.cast::<[W; LANES]>().write_unaligned(from.cast::<[W; LANES]>().read_unaligned());
                continue;
            }
            for l in 0..count {
                *to.offset(l as isize * next) = *from.add(l);
            }
        }
    }
}

/// Where a square of rows of `n` elements begins: the last one ends with the row.
#[inline(always)]
fn square<W: Word>(i: usize, n: usize) -> usize {
    if i + W::SIDE > n { n - W::SIDE } else { i }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    /// Reads rows that lie `next` elements apart, and writes them elsewhere: nothing between them is touched.
    #[track_caller]
    fn check<E: Copy + PartialEq + std::fmt::Debug>(
        n: usize,
        next: usize,
        count: usize,
        avx512: bool,
        make: fn(usize) -> E,
    ) {
        #[repr(align(64))]
        struct Room<E>([E; 40 * LANES]);
        let rows: Vec<E> = (0..next * count).map(make).collect();
        let mut room = Room([make(999); 40 * LANES]);
        let mut written = vec![make(777); next * count];
        // SAFETY: so many rows are there, of which none is longer than the room, and the machine has what `avx512` says.
        unsafe {
            read(room.0.as_mut_ptr(), (rows.as_ptr(), next as isize, 1), (n, count), avx512);
            write((written.as_mut_ptr(), next as isize, 1), room.0.as_ptr(), (n, count), avx512);
        }
        for (i, (found, row)) in written.iter().zip(&rows).enumerate() {
            let expected = if i % next < n { *row } else { make(777) };
            assert_eq!(*found, expected, "{i} of {n} elements, {next} apart, {count} programs, avx512 {avx512}");
        }
        for (i, found) in room.0.iter().enumerate().take(n * LANES).filter(|(i, _)| i % LANES < count) {
            assert_eq!(*found, rows[i % LANES * next + i / LANES], "{i} of {n}, {next} apart, {count} programs");
        }
    }

    #[test]
    fn rows_come_and_go_at_any_length_and_distance() {
        let has_avx512 = is_x86_feature_detected!("avx512bw") && is_x86_feature_detected!("avx512vl");
        let levels = [is_x86_feature_detected!("avx2"), has_avx512];
        for avx512 in [false, true].into_iter().filter(|level| levels[usize::from(*level)]) {
            for n in 1..=40 {
                for (next, count) in [(n, LANES), (n + 3, LANES), (n, 5), (n + 1, 1)] {
                    check(n, next, count, avx512, |i| i as u8);
                    check(n, next, count, avx512, |i| i as u16);
                    check(n, next, count, avx512, |i| i as u32);
                    check(n, next, count, avx512, |i| i as u64);
                }
            }
        }
    }
}
