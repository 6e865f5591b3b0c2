//! Products of `f32` by AMX, which is several times as fast as vectors are, but multiplies `bf16`.
//!
//! A number of 24 bits is the sum of three of 8: its value rounded to `bf16`, what that leaves rounded again, and the rest. Of the
//! nine products of such parts, the six largest are added; the others are at most 2^-23 of the whole, in the mean far
//! less, of either sign (Henry, Tang and Heinecke, "Leveraging the bfloat16 Artificial Intelligence Datatype For
//! Higher-Precision Computations", ARITH 2019). Sums are of `f32`: of a line of the depth two, of its even and its odd steps, which
//! are then added to those before ("TDPBF16PS" in the manual that [`amx`](super::amx) names). That leaves them nearer to the exact ones than a
//! chain of fused multiply-adds.
//!
//! That holds for numbers that are neither too large nor too small, which packing finds out ([`pack`]): the parts of
//! infinities are no numbers, and AMX takes numbers below the normal ones, as the last parts of small ones are, for 0. It does
//! so with sums, too, so that of each product of parts up to 2^-126 may be lost.
//!
//! A packed tile is as [`amx`](super::amx) has it, with three blocks of each 16 rows or columns and line of the depth.

use std::arch::x86_64::*;
use std::ops::Range;

use super::amx::{Place, Product, load_sums, store_sums};
use super::factors::{LINE, PARTS};
use super::pack::{Source, prefetch, turn_words};

/// Steps of the depth in a line.
const STEPS: usize = LINE / 2;
/// Rows or columns of a block, and its bytes.
const ACROSS: usize = 16;
const BLOCK: usize = ACROSS * LINE;

/// The bits of the smallest and the largest number, but for 0, whose products are computed here, without their signs: 2^-100, of
/// which the last part is a normal number, and just below 2^63, of which no product is infinite.
const LEAST: u32 = (127 - 100) << 23;
const MOST: u32 = ((127 + 63) << 23) - 1;

/// So many steps ahead, rows of columns are asked for.
const AHEAD: usize = 8;

/// The parts of 16 numbers, each with 16 bits that are 0 below it.
#[inline(always)]
unsafe fn split(x: __m512i) -> [__m512i; PARTS] {
    // SAFETY: whoever packs for AMX has AVX-512.
    unsafe {
        let (half, upper) = (_mm512_set1_epi32(0x8000), _mm512_set1_epi32(0xffff_0000_u32.cast_signed()));
        let rounded = |x: __m512i| _mm512_and_si512(_mm512_add_epi32(x, half), upper);
        let less =
            |x: __m512i, y: __m512i| _mm512_castps_si512(_mm512_sub_ps(_mm512_castsi512_ps(x), _mm512_castsi512_ps(y)));
        let first = rounded(x);
        let rest = less(x, first);
        let second = rounded(rest);
        [first, second, less(rest, second)]
    }
}

/// Which of 16 numbers are not to be multiplied here.
#[inline(always)]
unsafe fn are_odd(x: __m512i) -> __mmask16 {
    // SAFETY: as above.
    unsafe {
        let size = _mm512_and_si512(x, _mm512_set1_epi32(0x7fff_ffff));
        let above = _mm512_sub_epi32(size, _mm512_set1_epi32(LEAST.cast_signed()));
        let odd = _mm512_cmpgt_epu32_mask(above, _mm512_set1_epi32((MOST - LEAST).cast_signed()));
        _mm512_mask_test_epi32_mask(odd, size, size)
    }
}

/// Where 16 rows or columns, and a line of the depth, are read: the first element, from a row (column) to the next, and from a
/// step of the depth to the next, of which one is 1.
#[derive(Clone, Copy)]
struct Corner {
    from: *const f32,
    strides: [isize; 2],
}

/// Packs rows, or columns, of a tile: of some steps, from a line's first one on, and not of more lines than the source has. Whether
/// all are numbers of which the product is computed well.
///
/// # Safety
/// The source must be readable as described, `out` writable for a whole tile, and the machine must have AVX-512.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(super) unsafe fn pack(
    from: Source<f32>,
    columns: bool,
    [across, depth]: [usize; 2],
    steps: Range<usize>,
    out: *mut u8,
) -> bool {
    let lines = depth.div_ceil(STEPS);
    // Blocks that are multiplied have 32 rows and columns.
    let across = Ord::min(across, from.extents[0].next_multiple_of(2 * ACROSS));
    let some = steps.start / STEPS..Ord::min(steps.end, from.extents[1]).div_ceil(STEPS);
    let strides = from.strides.map(
        #[inline(always)]
        |s| s as isize,
    );
    let mut odd = 0;
    for line in some {
        for first in (0..across).step_by(ACROSS) {
            let at = from.ptr.wrapping_offset(first as isize * strides[0] + (line * STEPS) as isize * strides[1]);
            let there = [from.extents[0].saturating_sub(first), from.extents[1] - line * STEPS];
            let to = out.wrapping_add((first / ACROSS * lines + line) * PARTS * BLOCK);
            // SAFETY: the blocks are inside of `out`; a corner is whole, or a copy of what there is of it.
            unsafe {
                let is_whole = there[0] >= ACROSS && there[1] >= STEPS;
                if is_whole && strides.contains(&1) {
                    odd |= corner(&Corner { from: at, strides }, columns, to);
                } else {
                    let part = Source { ptr: at, extents: [there[0].min(ACROSS), there[1].min(STEPS)], ..from };
                    let copy = gather(&part);
                    let strides = [STEPS as isize, 1];
                    odd |= corner(&Corner { from: copy.as_ptr().cast(), strides }, columns, to);
                }
            }
        }
    }
    odd == 0
}

/// What there is of 16 rows or columns and a line of the depth; 0 elsewhere.
#[cold]
unsafe fn gather(from: &Source<f32>) -> [[f32; STEPS]; ACROSS] {
    let mut copy = [[0.0; STEPS]; ACROSS];
    for (i, row) in copy.iter_mut().enumerate().take(from.extents[0]) {
        for (k, x) in row.iter_mut().enumerate().take(from.extents[1]) {
            let at = i as isize * from.strides[0] as isize + k as isize * from.strides[1] as isize;
            // SAFETY: the element is inside the extents.
            *x = unsafe { *from.ptr.offset(at) };
        }
    }
    copy
}

/// Packs the blocks of 16 rows, or columns, and a line of the depth. Which numbers are odd.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn corner(x: &Corner, columns: bool, out: *mut u8) -> __mmask16 {
    /// Of two vectors of words, their upper halves.
    const UPPER: [u16; STEPS] = {
        let mut upper = [0; STEPS];
        let mut i = 0;
        while i < STEPS {
            upper[i] = 2 * i as u16 + 1;
            i += 1;
        }
        upper
    };
    let is_deep = x.strides[1] == 1;
    let mut odd = 0;
    // SAFETY: by the contract of the caller.
    unsafe {
        let upper = _mm512_loadu_si512(UPPER.as_ptr().cast());
        // Words of two steps: those of a row, or those of all rows (columns) of the same two steps.
        let words = |i: usize| {
            let (a, b) = if is_deep {
                let row = x.from.wrapping_offset(i as isize * x.strides[0]);
                prefetch(row.wrapping_add(4 * STEPS), 2 * LINE);
                (row, row.wrapping_add(ACROSS))
            } else {
                let row = x.from.wrapping_offset(2 * i as isize * x.strides[1]);
                prefetch(row.wrapping_offset(AHEAD as isize * x.strides[1]), LINE);
                prefetch(row.wrapping_offset((AHEAD + 1) as isize * x.strides[1]), LINE);
                (row, row.wrapping_offset(x.strides[1]))
            };
            let (a, b) = (_mm512_loadu_si512(a.cast()), _mm512_loadu_si512(b.cast()));
            let (p, q) = (split(a), split(b));
            let mut words = p;
            let mut n = 0;
            while n < PARTS {
                words[n] = match is_deep {
                    true => _mm512_permutex2var_epi16(p[n], upper, q[n]),
                    false => _mm512_mask_blend_epi16(0xaaaa_aaaa, _mm512_srli_epi32::<16>(p[n]), q[n]),
                };
                n += 1;
            }
            (words, are_odd(a) | are_odd(b))
        };
        let mut room = [[_mm512_setzero_si512(); ACROSS]; PARTS];
        let turns = is_deep == columns;
        let (to, part) = match turns {
            true => (room.as_mut_ptr().cast::<u8>(), size_of_val(&room[0])),
            false => (out, BLOCK),
        };
        let mut i = 0;
        while i < ACROSS {
            let (words, some) = words(i);
            odd |= some;
            let mut n = 0;
            while n < PARTS {
                _mm512_storeu_si512(to.add(n * part + i * LINE).cast(), words[n]);
                n += 1;
            }
            i += 1;
        }
        let mut n = 0;
        while turns && n < PARTS {
            let turned = turn_words(room[n].as_ptr().cast(), LINE as isize);
            out.add(n * BLOCK).cast::<[[u32; ACROSS]; ACROSS]>().write_unaligned(turned);
            n += 1;
        }
    }
    odd
}

/// Asks for an eighth of the next line's blocks.
macro_rules! ask {
    ($blocks:literal, $part:literal) => {
        concat!(
            ask!(@ $blocks, $part, 0), ask!(@ $blocks, $part, 64), ask!(@ $blocks, $part, 128), ask!(@ $blocks, $part, 192),
            ask!(@ $blocks, $part, 256), ask!(@ $blocks, $part, 320), ask!(@ $blocks, $part, 384), ask!(@ $blocks, $part, 448),
        )
    };
    (@ $blocks:literal, $part:literal, $line:literal) => {
        concat!("prefetcht0 [{", $blocks, "} + {line} + 512 * ", $part, " + ", $line, "]\n")
    };
}

/// Computes the block of 32 rows and columns at `at`.
///
/// Of the parts of a line's rows and columns, one pair after the other is multiplied that has one part in common with the pair
/// before: 14 tiles are loaded for 24 products. All come from the level-2 cache, and are asked for a line before.
///
/// # Safety
/// As for [`amx::multiply`](super::amx::multiply); the tile registers must be configured.
pub(super) unsafe fn tiles(
    x: &Product,
    [i, j]: [usize; 2],
    (from, from_row): Place<*const u32>,
    (to, to_row): Place<*mut u32>,
) {
    // SAFETY: by the contract above; what is asked for is not read.
    unsafe {
        std::arch::asm!(
            load_sums!(),
            "mov {row:e}, 64",
            "4:",
            // First by third part.
            "tileloadd tmm4, [{a} + {row}]",
            "tileloadd tmm6, [{b} + {row} + 2048]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            ask!("a", 0),
            "tileloadd tmm7, [{b2} + {row} + 2048]",
            "tdpbf16ps tmm1, tmm4, tmm7",
            ask!("a", 1),
            "tileloadd tmm5, [{a2} + {row}]",
            "tdpbf16ps tmm2, tmm5, tmm6",
            ask!("a", 2),
            "tdpbf16ps tmm3, tmm5, tmm7",
            ask!("a", 3),
            // First by first.
            "tileloadd tmm6, [{b} + {row}]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            ask!("a", 4),
            "tdpbf16ps tmm2, tmm5, tmm6",
            ask!("a", 5),
            "tileloadd tmm7, [{b2} + {row}]",
            "tdpbf16ps tmm1, tmm4, tmm7",
            ask!("a2", 0),
            "tdpbf16ps tmm3, tmm5, tmm7",
            ask!("a2", 1),
            // First by second.
            "tileloadd tmm6, [{b} + {row} + 1024]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            ask!("a2", 2),
            "tdpbf16ps tmm2, tmm5, tmm6",
            ask!("a2", 3),
            "tileloadd tmm7, [{b2} + {row} + 1024]",
            "tdpbf16ps tmm1, tmm4, tmm7",
            ask!("a2", 4),
            "tdpbf16ps tmm3, tmm5, tmm7",
            ask!("a2", 5),
            // Second by second.
            "tileloadd tmm4, [{a} + {row} + 1024]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            ask!("b", 0),
            "tdpbf16ps tmm1, tmm4, tmm7",
            ask!("b", 1),
            "tileloadd tmm5, [{a2} + {row} + 1024]",
            "tdpbf16ps tmm2, tmm5, tmm6",
            ask!("b", 2),
            "tdpbf16ps tmm3, tmm5, tmm7",
            ask!("b", 3),
            // Second by first.
            "tileloadd tmm6, [{b} + {row}]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            ask!("b", 4),
            "tdpbf16ps tmm2, tmm5, tmm6",
            ask!("b", 5),
            "tileloadd tmm7, [{b2} + {row}]",
            "tdpbf16ps tmm1, tmm4, tmm7",
            ask!("b2", 0),
            "tdpbf16ps tmm3, tmm5, tmm7",
            ask!("b2", 1),
            // Third by first.
            "tileloadd tmm4, [{a} + {row} + 2048]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            ask!("b2", 2),
            "tdpbf16ps tmm1, tmm4, tmm7",
            ask!("b2", 3),
            "tileloadd tmm5, [{a2} + {row} + 2048]",
            "tdpbf16ps tmm2, tmm5, tmm6",
            ask!("b2", 4),
            "tdpbf16ps tmm3, tmm5, tmm7",
            ask!("b2", 5),
            "add {a}, {line}",
            "add {a2}, {line}",
            "add {b}, {line}",
            "add {b2}, {line}",
            "dec {k}",
            "jnz 4b",
            store_sums!(),
            c = inout(reg) from => _,
            row = inout(reg) from_row * 4 => _,
            to = inout(reg) to => _,
            to_row = in(reg) to_row * 4,
            a = inout(reg) x.left.at(i) => _,
            a2 = inout(reg) x.left.at(i + ACROSS) => _,
            b = inout(reg) x.right.add(j / ACROSS * x.stride) => _,
            b2 = inout(reg) x.right.add((j / ACROSS + 1) * x.stride) => _,
            k = inout(reg) x.lines => _,
            line = const PARTS * BLOCK,
            options(nostack),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The parts of 16 numbers.
    fn parts(x: [f32; 16]) -> [[f32; 16]; PARTS] {
        // SAFETY: vectors are as long as the arrays; the callers ask for AVX-512.
        unsafe {
            let parts = split(_mm512_loadu_si512(x.as_ptr().cast()));
            parts.map(|part| std::mem::transmute::<__m512i, [f32; 16]>(part))
        }
    }

    #[test]
    fn numbers_are_the_sums_of_their_parts() {
        if !is_x86_feature_detected!("avx512bw") || !is_x86_feature_detected!("avx512vl") {
            return;
        }
        let mut bits = 1u32;
        for _ in 0..100_000 {
            let x: [f32; 16] = std::array::from_fn(|_| {
                bits = bits.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                // All signs and mantissas, and the exponents that are multiplied here.
                let [least, most] = [LEAST >> 23, MOST >> 23];
                let exponent = least + (bits >> 9) % (most - least + 1);
                f32::from_bits(bits & 0x807f_ffff | exponent << 23 | bits >> 30)
            });
            let parts = parts(x);
            for i in 0..16 {
                let [first, second, third] = parts.map(|part| part[i]);
                assert_eq!((f64::from(first) + f64::from(second) + f64::from(third)) as f32, x[i]);
                assert!(parts.iter().all(|part| part[i].to_bits() & 0xffff == 0), "{x:?}");
                assert!(second.abs() <= x[i].abs() / 256.0 && third.abs() <= x[i].abs() / 65536.0);
            }
        }
    }

    #[test]
    fn odd_numbers_are_found() {
        if !is_x86_feature_detected!("avx512bw") || !is_x86_feature_detected!("avx512vl") {
            return;
        }
        let least = f32::from_bits(LEAST);
        let most = f32::from_bits(MOST);
        for (x, is_odd) in [
            (0.0, false),
            (-0.0, false),
            (1.0, false),
            (least, false),
            (-least, false),
            (least.next_down(), true),
            (f32::MIN_POSITIVE, true),
            (-f32::from_bits(1), true),
            (most, false),
            (-most, false),
            (most.next_up(), true),
            (f32::MAX, true),
            (f32::INFINITY, true),
            (f32::NEG_INFINITY, true),
            (f32::NAN, true),
        ] {
            for at in 0..16 {
                let mut numbers = [1.0f32; 16];
                numbers[at] = x;
                // SAFETY: a vector is as long as the array; the machine has AVX-512.
                let odd = unsafe { are_odd(_mm512_loadu_si512(numbers.as_ptr().cast())) };
                assert_eq!(odd, u16::from(is_odd) << at, "{x}");
            }
        }
    }

    #[test]
    fn every_layout_is_packed_alike() {
        if !is_x86_feature_detected!("avx512bw") || !is_x86_feature_detected!("avx512vl") {
            return;
        }
        let values: Vec<f32> = (0..70_000_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 8) as f32 - 8e6).collect();
        for extents in [[16_usize, 32], [64, 96], [33, 64], [32, 65], [1, 1], [40, 31], [15, 100]] {
            let [across, depth] = [extents[0].next_multiple_of(32), extents[1].next_multiple_of(32)];
            let [n, k] = extents.map(|n| n as i64);
            for strides in [[k, 1], [k + 3, 1], [1, n], [1, n + 5], [2, 2 * n], [3 * k, 3]] {
                let from = Source { ptr: values.as_ptr(), strides, extents };
                for columns in [false, true] {
                    let mut packed = vec![u16::MAX; across * depth * PARTS];
                    // In two parts, as threads do.
                    let half = depth / 64 * 32;
                    for steps in [half..depth, 0..half] {
                        // SAFETY: the values reach as far as the strides, the room is that of a tile, and the machine has AVX-512.
                        assert!(unsafe { pack(from, columns, [across, depth], steps, packed.as_mut_ptr().cast()) });
                    }
                    for i in 0..across {
                        for s in 0..depth {
                            let at = i as i64 * strides[0] + s as i64 * strides[1];
                            let x = if i < extents[0] && s < extents[1] { values[at as usize] } else { 0.0 };
                            let block = (i / ACROSS * (depth / STEPS) + s / STEPS) * PARTS;
                            let (i, s) = (i % ACROSS, s % STEPS);
                            let within = if columns { s / 2 * STEPS + 2 * i + s % 2 } else { i * STEPS + s };
                            for (part, expected) in parts([x; 16]).into_iter().enumerate() {
                                let found = packed[(block + part) * BLOCK / 2 + within];
                                assert_eq!(
                                    u32::from(found) << 16,
                                    expected[0].to_bits(),
                                    "{extents:?} {strides:?} {columns}"
                                );
                            }
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn odd_numbers_are_found_wherever_they_are() {
        if !is_x86_feature_detected!("avx512bw") || !is_x86_feature_detected!("avx512vl") {
            return;
        }
        let [n, k] = [37, 70];
        for strides in [[k as i64, 1], [1, n as i64], [2, 2 * n as i64]] {
            for at in (0..n).flat_map(|i| [0, 31, 32, 63, 64, 69].map(|s| i as i64 * strides[0] + s * strides[1])) {
                let mut values = vec![1.0f32; 2 * n * k];
                values[at as usize] = f32::INFINITY;
                let from = Source { ptr: values.as_ptr(), strides, extents: [n, k] };
                let mut packed = vec![0u8; 48 * 96 * 2 * PARTS];
                for columns in [false, true] {
                    // SAFETY: the values reach as far as the strides, the room is that of a tile, and the machine has AVX-512.
                    assert!(!unsafe { pack(from, columns, [48, 96], 0..96, packed.as_mut_ptr()) }, "{strides:?} {at}");
                }
            }
        }
    }
}
