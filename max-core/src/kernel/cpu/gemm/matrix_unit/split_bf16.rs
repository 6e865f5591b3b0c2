//! Split-bf16 (bf16x3): emulates `f32` GEMM on AMX, which multiplies `bf16` several times as fast as vectors do `f32`.
//!
//! The algorithm is that of Henry, Tang and Heinecke, "Leveraging the bfloat16 Artificial Intelligence Datatype For
//! Higher-Precision Computations", ARITH 2019. A significand of 24 bits is the sum of three of 8:
//!
//! 1. the value rounded to `bf16`,
//! 2. what that leaves, rounded again,
//! 3. the rest.
//!
//! Of the nine products of such splits the six largest are added. The others are at most 2^-23 of the whole, and on
//! average far less, of either sign. Accumulators are `f32`: `TDPBF16PS` forms one sum of the even and one of the odd K
//! steps of a line, then adds both. The error is below that of a chain of fused multiply-adds.
//!
//! The split is exact only for a range of magnitudes, which packing checks ([`pack`]). Splits of infinities are NaN,
//! and AMX takes subnormals for 0: last splits of small numbers, and accumulators too. So up to 2^-126 of each product
//! may be lost.
//!
//! A packed tile is as in [`amx`](super::amx), with three blocks for each 16 rows or columns and line of K.

use std::arch::x86_64::*;
use std::ops::Range;

use super::amx::{Gemm, TilePtr, load_accumulators, store_accumulators};
use crate::kernel::cpu::pack::operand_types::{LINE, SPLITS};
use crate::kernel::cpu::pack::{Source, prefetch};
use crate::kernel::cpu::transpose::transpose_16x16;

/// Steps of K in a line.
const STEPS: usize = LINE / 2;
/// Rows or columns of a block, and its bytes.
const ACROSS: usize = 16;
const BLOCK: usize = ACROSS * LINE;

/// The bits of the smallest and largest magnitude that splits exactly, but for 0: 2^-100, of
/// which the last split is a normal number, and just below 2^63, of which no product is infinite.
const MIN_MAGNITUDE: u32 = (127 - 100) << 23;
const MAX_MAGNITUDE: u32 = ((127 + 63) << 23) - 1;

/// K steps by which rows of B are prefetched.
const PREFETCH_STEPS: usize = 8;

/// The splits of 16 numbers, each with 16 bits that are 0 below it.
#[inline(always)]
unsafe fn split(x: __m512i) -> [__m512i; SPLITS] {
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

/// The mask of those of 16 numbers whose split is not exact: non-finite ones, and those out of range.
#[inline(always)]
unsafe fn out_of_range(x: __m512i) -> __mmask16 {
    // SAFETY: as above.
    unsafe {
        let size = _mm512_and_si512(x, _mm512_set1_epi32(0x7fff_ffff));
        let above = _mm512_sub_epi32(size, _mm512_set1_epi32(MIN_MAGNITUDE.cast_signed()));
        let out_of_range =
            _mm512_cmpgt_epu32_mask(above, _mm512_set1_epi32((MAX_MAGNITUDE - MIN_MAGNITUDE).cast_signed()));
        _mm512_mask_test_epi32_mask(out_of_range, size, size)
    }
}

/// Where 16 rows or columns, and a line of K, are read: the first element, from a row (column) to the next, and from a
/// step of K to the next, of which one is 1.
#[derive(Clone, Copy)]
struct MicroTile {
    from: *const f32,
    strides: [isize; 2],
}

/// Packs rows, or columns, of a tile: of some steps, from a line's first one on, and not of more lines than the source
/// has. Whether all numbers are in the range that splits exactly.
///
/// # Safety
/// The source must be readable as described, `out` writable for a whole tile, and the machine must have AVX-512.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(in crate::kernel::cpu) unsafe fn pack(
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
    let mut invalid = 0;
    for line in some {
        for first in (0..across).step_by(ACROSS) {
            let at = from.ptr.wrapping_offset(first as isize * strides[0] + (line * STEPS) as isize * strides[1]);
            let there = [from.extents[0].saturating_sub(first), from.extents[1] - line * STEPS];
            let to = out.wrapping_add((first / ACROSS * lines + line) * SPLITS * BLOCK);
            // SAFETY: the blocks are inside of `out`; a micro-tile is whole, or a padded copy.
            unsafe {
                let is_whole = there[0] >= ACROSS && there[1] >= STEPS;
                if is_whole && strides.contains(&1) {
                    invalid |= pack_micro_tile(&MicroTile { from: at, strides }, columns, to);
                } else {
                    let part = Source { ptr: at, extents: [there[0].min(ACROSS), there[1].min(STEPS)], ..from };
                    let copy = gather(&part);
                    let strides = [STEPS as isize, 1];
                    invalid |= pack_micro_tile(&MicroTile { from: copy.as_ptr().cast(), strides }, columns, to);
                }
            }
        }
    }
    invalid == 0
}

/// What there is of 16 rows or columns and a line of K; 0 elsewhere.
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

/// Packs the blocks of 16 rows, or columns, and a line of K. The mask of numbers that are out of range.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn pack_micro_tile(x: &MicroTile, columns: bool, out: *mut u8) -> __mmask16 {
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
    let is_k_major = x.strides[1] == 1;
    let mut invalid = 0;
    // SAFETY: by the contract of the caller.
    unsafe {
        let upper = _mm512_loadu_si512(UPPER.as_ptr().cast());
        // Words of two steps: those of a row, or those of all rows (columns) of the same two steps.
        let words = |i: usize| {
            let (a, b) = if is_k_major {
                let row = x.from.wrapping_offset(i as isize * x.strides[0]);
                prefetch(row.wrapping_add(4 * STEPS), 2 * LINE);
                (row, row.wrapping_add(ACROSS))
            } else {
                let row = x.from.wrapping_offset(2 * i as isize * x.strides[1]);
                prefetch(row.wrapping_offset(PREFETCH_STEPS as isize * x.strides[1]), LINE);
                prefetch(row.wrapping_offset((PREFETCH_STEPS + 1) as isize * x.strides[1]), LINE);
                (row, row.wrapping_offset(x.strides[1]))
            };
            let (a, b) = (_mm512_loadu_si512(a.cast()), _mm512_loadu_si512(b.cast()));
            let (p, q) = (split(a), split(b));
            let mut words = p;
            let mut n = 0;
            while n < SPLITS {
                words[n] = match is_k_major {
                    true => _mm512_permutex2var_epi16(p[n], upper, q[n]),
                    false => _mm512_mask_blend_epi16(0xaaaa_aaaa, _mm512_srli_epi32::<16>(p[n]), q[n]),
                };
                n += 1;
            }
            (words, out_of_range(a) | out_of_range(b))
        };
        let mut room = [[_mm512_setzero_si512(); ACROSS]; SPLITS];
        let transposes = is_k_major == columns;
        let (to, stride) = match transposes {
            true => (room.as_mut_ptr().cast::<u8>(), size_of_val(&room[0])),
            false => (out, BLOCK),
        };
        let mut i = 0;
        while i < ACROSS {
            let (words, some) = words(i);
            invalid |= some;
            let mut n = 0;
            while n < SPLITS {
                _mm512_storeu_si512(to.add(n * stride + i * LINE).cast(), words[n]);
                n += 1;
            }
            i += 1;
        }
        let mut n = 0;
        while transposes && n < SPLITS {
            let transposed = transpose_16x16(room[n].as_ptr().cast(), LINE as isize);
            out.add(n * BLOCK).cast::<[[u32; ACROSS]; ACROSS]>().write_unaligned(transposed);
            n += 1;
        }
    }
    invalid
}

/// Prefetches an eighth of the next line's blocks.
macro_rules! prefetch_lines {
    ($blocks:literal, $part:literal) => {
        concat!(
            prefetch_lines!(@ $blocks, $part, 0), prefetch_lines!(@ $blocks, $part, 64), prefetch_lines!(@ $blocks, $part, 128), prefetch_lines!(@ $blocks, $part, 192),
            prefetch_lines!(@ $blocks, $part, 256), prefetch_lines!(@ $blocks, $part, 320), prefetch_lines!(@ $blocks, $part, 384), prefetch_lines!(@ $blocks, $part, 448),
        )
    };
    (@ $blocks:literal, $part:literal, $line:literal) => {
        concat!("prefetcht0 [{", $blocks, "} + {line} + 512 * ", $part, " + ", $line, "]\n")
    };
}

/// Computes the block of 32 rows and columns at `at`.
///
/// Of the splits of a line's rows and columns, pairs are multiplied in an order in which each shares one split with the
/// pair before: 14 tile loads for 24 tile products. All come from the L2 cache, and are prefetched a line before.
///
/// # Safety
/// As for [`amx::multiply`](super::amx::multiply); the tile registers must be configured.
pub(in crate::kernel::cpu) unsafe fn tiles(
    x: &Gemm,
    [i, j]: [usize; 2],
    (from, from_row): TilePtr<*const u32>,
    (to, to_row): TilePtr<*mut u32>,
) {
    // SAFETY: by the contract above; what is prefetched is not read.
    unsafe {
        std::arch::asm!(
            load_accumulators!(),
            "mov {row:e}, 64",
            "4:",
            // First by third split.
            "tileloadd tmm4, [{a} + {row}]",
            "tileloadd tmm6, [{b} + {row} + 2048]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            prefetch_lines!("a", 0),
            "tileloadd tmm7, [{b2} + {row} + 2048]",
            "tdpbf16ps tmm1, tmm4, tmm7",
            prefetch_lines!("a", 1),
            "tileloadd tmm5, [{a2} + {row}]",
            "tdpbf16ps tmm2, tmm5, tmm6",
            prefetch_lines!("a", 2),
            "tdpbf16ps tmm3, tmm5, tmm7",
            prefetch_lines!("a", 3),
            // First by first.
            "tileloadd tmm6, [{b} + {row}]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            prefetch_lines!("a", 4),
            "tdpbf16ps tmm2, tmm5, tmm6",
            prefetch_lines!("a", 5),
            "tileloadd tmm7, [{b2} + {row}]",
            "tdpbf16ps tmm1, tmm4, tmm7",
            prefetch_lines!("a2", 0),
            "tdpbf16ps tmm3, tmm5, tmm7",
            prefetch_lines!("a2", 1),
            // First by second.
            "tileloadd tmm6, [{b} + {row} + 1024]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            prefetch_lines!("a2", 2),
            "tdpbf16ps tmm2, tmm5, tmm6",
            prefetch_lines!("a2", 3),
            "tileloadd tmm7, [{b2} + {row} + 1024]",
            "tdpbf16ps tmm1, tmm4, tmm7",
            prefetch_lines!("a2", 4),
            "tdpbf16ps tmm3, tmm5, tmm7",
            prefetch_lines!("a2", 5),
            // Second by second.
            "tileloadd tmm4, [{a} + {row} + 1024]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            prefetch_lines!("b", 0),
            "tdpbf16ps tmm1, tmm4, tmm7",
            prefetch_lines!("b", 1),
            "tileloadd tmm5, [{a2} + {row} + 1024]",
            "tdpbf16ps tmm2, tmm5, tmm6",
            prefetch_lines!("b", 2),
            "tdpbf16ps tmm3, tmm5, tmm7",
            prefetch_lines!("b", 3),
            // Second by first.
            "tileloadd tmm6, [{b} + {row}]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            prefetch_lines!("b", 4),
            "tdpbf16ps tmm2, tmm5, tmm6",
            prefetch_lines!("b", 5),
            "tileloadd tmm7, [{b2} + {row}]",
            "tdpbf16ps tmm1, tmm4, tmm7",
            prefetch_lines!("b2", 0),
            "tdpbf16ps tmm3, tmm5, tmm7",
            prefetch_lines!("b2", 1),
            // Third by first.
            "tileloadd tmm4, [{a} + {row} + 2048]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            prefetch_lines!("b2", 2),
            "tdpbf16ps tmm1, tmm4, tmm7",
            prefetch_lines!("b2", 3),
            "tileloadd tmm5, [{a2} + {row} + 2048]",
            "tdpbf16ps tmm2, tmm5, tmm6",
            prefetch_lines!("b2", 4),
            "tdpbf16ps tmm3, tmm5, tmm7",
            prefetch_lines!("b2", 5),
            "add {a}, {line}",
            "add {a2}, {line}",
            "add {b}, {line}",
            "add {b2}, {line}",
            "dec {k}",
            "jnz 4b",
            store_accumulators!(),
            c = inout(reg) from => _,
            row = inout(reg) from_row * 4 => _,
            to = inout(reg) to => _,
            to_row = in(reg) to_row * 4,
            a = inout(reg) x.lhs.at(i) => _,
            a2 = inout(reg) x.lhs.at(i + ACROSS) => _,
            b = inout(reg) x.rhs.add(j / ACROSS * x.stride) => _,
            b2 = inout(reg) x.rhs.add((j / ACROSS + 1) * x.stride) => _,
            k = inout(reg) x.lines() => _,
            line = const SPLITS * BLOCK,
            options(nostack),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The splits of 16 numbers.
    fn splits(x: [f32; 16]) -> [[f32; 16]; SPLITS] {
        // SAFETY: vectors are as long as the arrays; the callers ask for AVX-512.
        unsafe {
            let splits = split(_mm512_loadu_si512(x.as_ptr().cast()));
            splits.map(|part| std::mem::transmute::<__m512i, [f32; 16]>(part))
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
                let [least, most] = [MIN_MAGNITUDE >> 23, MAX_MAGNITUDE >> 23];
                let exponent = least + (bits >> 9) % (most - least + 1);
                f32::from_bits(bits & 0x807f_ffff | exponent << 23 | bits >> 30)
            });
            let splits = splits(x);
            for i in 0..16 {
                let [first, second, third] = splits.map(|part| part[i]);
                assert_eq!((f64::from(first) + f64::from(second) + f64::from(third)) as f32, x[i]);
                assert!(splits.iter().all(|part| part[i].to_bits() & 0xffff == 0), "{x:?}");
                assert!(second.abs() <= x[i].abs() / 256.0 && third.abs() <= x[i].abs() / 65536.0);
            }
        }
    }

    #[test]
    fn odd_numbers_are_found() {
        if !is_x86_feature_detected!("avx512bw") || !is_x86_feature_detected!("avx512vl") {
            return;
        }
        let least = f32::from_bits(MIN_MAGNITUDE);
        let most = f32::from_bits(MAX_MAGNITUDE);
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
                let found = unsafe { out_of_range(_mm512_loadu_si512(numbers.as_ptr().cast())) };
                assert_eq!(found, u16::from(is_odd) << at, "{x}");
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
                    let mut packed = vec![u16::MAX; across * depth * SPLITS];
                    // In two splits, as threads do.
                    let half = depth / 64 * 32;
                    for steps in [half..depth, 0..half] {
                        // SAFETY: the values reach as far as the strides, the room is that of a tile, and the machine
                        // has AVX-512.
                        assert!(unsafe { pack(from, columns, [across, depth], steps, packed.as_mut_ptr().cast()) });
                    }
                    for i in 0..across {
                        for s in 0..depth {
                            let at = i as i64 * strides[0] + s as i64 * strides[1];
                            let x = if i < extents[0] && s < extents[1] { values[at as usize] } else { 0.0 };
                            let block = (i / ACROSS * (depth / STEPS) + s / STEPS) * SPLITS;
                            let (i, s) = (i % ACROSS, s % STEPS);
                            let within = if columns { s / 2 * STEPS + 2 * i + s % 2 } else { i * STEPS + s };
                            for (part, expected) in splits([x; 16]).into_iter().enumerate() {
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
                let mut packed = vec![0u8; 48 * 96 * 2 * SPLITS];
                for columns in [false, true] {
                    // SAFETY: the values reach as far as the strides, the room is that of a tile, and the machine has
                    // AVX-512.
                    assert!(!unsafe { pack(from, columns, [48, 96], 0..96, packed.as_mut_ptr()) }, "{strides:?} {at}");
                }
            }
        }
    }
}
