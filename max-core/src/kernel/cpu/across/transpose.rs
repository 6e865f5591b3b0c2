//! Transposes between rows of programs and vectors over programs: squares in registers, and element by element what
//! is too narrow for them.

use super::super::transpose::Word;
use super::launch::LANES;

/// Reads the rows of `count` programs: element `i` of program `l` to index `i * LANES + l`. `rows` is the first row,
/// and how many elements its neighbour and its own next element are away.
///
/// # Safety
/// The rows, of `n` elements each, must be readable, and there must be room for `n * LANES` elements, aligned to 64 bytes; the
/// machine must have AVX2, if it is an x86-64.
#[inline(always)]
pub(super) unsafe fn read<E: Copy>(room: *mut E, rows: (*const E, isize, isize), (n, count): (usize, usize)) {
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
pub(super) unsafe fn write<E: Copy>(rows: (*mut E, isize, isize), room: *const E, (n, count): (usize, usize)) {
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

/// For the least level that programs go across at, so that vectors are as wide as those that the kernel reads and writes:
/// what was stored in halves is not forwarded to a load of the whole.
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
        if step == 1 && count == LANES && next == n as isize {
            match n {
                1 => return read_whole::<W, 1>(room, rows),
                2 => return read_whole::<W, 2>(room, rows),
                3 => return read_whole::<W, 3>(room, rows),
                4 => return read_whole::<W, 4>(room, rows),
                5 => return read_whole::<W, 5>(room, rows),
                6 => return read_whole::<W, 6>(room, rows),
                7 => return read_whole::<W, 7>(room, rows),
                _ => {}
            }
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

/// For the least level that programs go across at, so that vectors are as wide as those that the kernel reads and writes:
/// what was stored in halves is not forwarded to a load of the whole.
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
        if step == 1 && count == LANES && next == n as isize {
            match n {
                1 => return write_whole::<W, 1>(rows, room),
                2 => return write_whole::<W, 2>(rows, room),
                3 => return write_whole::<W, 3>(rows, room),
                4 => return write_whole::<W, 4>(rows, room),
                5 => return write_whole::<W, 5>(rows, room),
                6 => return write_whole::<W, 6>(rows, room),
                7 => return write_whole::<W, 7>(rows, room),
                _ => {}
            }
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

/// Rows of so many elements one after the other.
///
/// # Safety
/// As for [`read`].
#[inline(always)]
unsafe fn read_whole<W: Word, const N: usize>(room: *mut W, rows: *const W) {
    // SAFETY: by the contract: `LANES` rows of `N` elements are as many elements as `N` vectors.
    unsafe {
        let all = rows.cast::<[[W; N]; LANES]>().read_unaligned();
        for i in 0..N {
            for (l, row) in all.iter().enumerate() {
                *room.add(i * LANES + l) = row[i];
            }
        }
    }
}

/// Rows of so many elements one after the other.
///
/// # Safety
/// As for [`write`].
#[inline(always)]
unsafe fn write_whole<W: Word, const N: usize>(rows: *mut W, room: *const W) {
    // SAFETY: by the contract.
    unsafe {
        let all = room.cast::<[[W; LANES]; N]>().read_unaligned();
        for l in 0..LANES {
            for (i, each) in all.iter().enumerate() {
                *rows.add(l * N + i) = each[l];
            }
        }
    }
}
