//! Rows of scaled integers by few columns, with scales of two levels: products are multiplied by integer scales, and their sums by the
//! factor of a block.

use std::arch::x86_64::*;

use super::gemv_int8::{Few, Right, Sums};
use super::microkernel_int8::sum_of_lanes;
use super::unpacking::each_lane;
use super::{Column, Columns};
use crate::kernel::cpu::isa::{BLOCK, Level};
use crate::kernel::cpu::{At, Cpu};
use crate::kernel::lang::{Lanes, Scale, ScaledRow};

/// Words of a vector.
const OCTET: usize = 8;

/// Whether rows of `K` integers with `G` scales, by columns with `H`, are multiplied by integer scales: those with AVX2, where a factor is
/// that of a block of words, and a column has one scale for such a block. With AVX-512, scales are lanes of groups already.
pub(super) const fn is_two_level<L: Level, W: ScaledRow<Cpu<L>>>([k, g, h]: [usize; 3]) -> bool {
    let words = k / g / 4;
    L::AVX2
        && !L::AVX512
        && !W::IS_SIGNED
        && (words == 4 || words == 8)
        && W::FACTOR_GROUPS * words == BLOCK
        && (k / h / 4).is_multiple_of(BLOCK)
}

/// The bytes of two pairs in each half of a vector that go to these halves: of the first pair to the lower one.
const HALVES: [i32; OCTET] = {
    let [low, high] = [i32::from_le_bytes([0, 1, 2, 3]), i32::from_le_bytes([4, 5, 6, 7])];
    [low, low, low, low, high, high, high, high]
};

/// A block of words, and its scales as they are in memory.
pub(super) struct Block<const GROUPS: usize> {
    pub words: [i32; BLOCK],
    pub scales: [u8; GROUPS],
    pub minima: [u8; GROUPS],
    /// Whether scales and minima are.
    pub is_signed: bool,
    pub factors: [f32; 2],
}

/// The scales of a block, as they are multiplied.
struct Scales {
    /// Of each group the scale, twice, as integers of 16 bits, in memory.
    pairs: *const i32,
    /// [`HALVES`].
    halves: *const i32,
    /// The same once, with zeros above, or minima: of up to eight groups each.
    offsets: [__m256i; 2],
    factors: [f32; 2],
}

/// Partial sums of products, and of minima.
type Partial = [__m256; 2];

impl Few<'_> {
    /// [`multiply_row`](Self::multiply_row) of what [`is_two_level`], in blocks of so many groups.
    ///
    /// # Safety
    /// As for that; columns have the sums of their groups as integers.
    #[inline(always)]
    pub unsafe fn multiply_two_level<
        L: Level,
        W: ScaledRow<Cpu<L>>,
        const K: usize,
        const G: usize,
        const C: usize,
        const GROUPS: usize,
    >(
        &self,
        row: W,
        i: usize,
    ) {
        let Right::Columns { columns, sums, .. } = &self.right else { return };
        let (words, scales) = (row.words(), row.scales());
        let len = Ord::min(Ord::max(words.len().0, 0) as usize, self.left.steps / 4);
        let groups = Ord::min(Ord::max(scales.len().0, 0) as usize, self.left.groups);
        let is_plain = words.plain(0, len as i64) && scales.plain(0, groups as i64);
        let whole = if is_plain { Ord::min(len / BLOCK, groups / GROUPS) } else { 0 };
        let zero = row.zero().0;
        // Of one column, sums stay in registers.
        // SAFETY: the level has AVX2.
        let mut one: Partial = unsafe { [_mm256_setzero_ps(); 2] };
        let sums = sums.wrapping_add(i * columns.count);
        // SAFETY: there is room for the sums of all rows and columns.
        unsafe {
            if const { C > 1 } {
                sums.write_bytes(0, columns.count);
            }
            // Counted in blocks, so that the compiler sees of which segments each is.
            let mut b = 0;
            while b < whole {
                let block = read_block::<L, W, GROUPS, true>(row, b, [BLOCK, GROUPS]);
                one = add_columns::<L, W, C, GROUPS>(&block, b, zero, (columns, sums), one);
                b += 1;
            }
            while b * BLOCK < len {
                let rest = [len - b * BLOCK, groups.saturating_sub(b * GROUPS)];
                let block = read_block::<L, W, GROUPS, false>(row, b, rest);
                one = add_columns::<L, W, C, GROUPS>(&block, b, zero, (columns, sums), one);
                b += 1;
            }
            if const { C == 1 } {
                *self.to.0.add(i * self.to.1) += sum_of_lanes(_mm256_add_ps(one[0], one[1]));
            }
        }
    }
}

/// Adds the products of block `b` of a row by all columns to their sums in memory, or those of the only one to what it returns.
///
/// # Safety
/// As for [`add_block`], of each column; there must be sums of each.
#[inline(always)]
unsafe fn add_columns<L: Level, W: ScaledRow<Cpu<L>>, const C: usize, const GROUPS: usize>(
    block: &Block<GROUPS>,
    b: usize,
    zero: i32,
    (columns, sums): (&Columns, *mut Sums),
    one: Partial,
) -> Partial {
    let mut room = [0; GROUPS];
    // SAFETY: by the contract above.
    unsafe {
        let scales = spread::<L, W, GROUPS>(block, &mut room);
        if const { C == 1 } {
            return add_block::<L, W, GROUPS>(&block.words, &scales, b, zero, &columns.first, one);
        }
        let mut c = 0;
        while c < columns.count {
            let to = &mut *sums.add(c);
            let sum = [_mm256_loadu_ps(to[0].as_ptr()), _mm256_loadu_ps(to[1].as_ptr())];
            store_partial(to, add_block::<L, W, GROUPS>(&block.words, &scales, b, zero, &columns.column(c), sum));
            c += 1;
        }
    }
    one
}

/// Writes partial sums.
///
/// # Safety
/// The caller must have AVX2.
#[inline(always)]
unsafe fn store_partial(to: &mut Sums, [dots, minima]: Partial) {
    // SAFETY: by the contract above.
    unsafe {
        _mm256_storeu_ps(to[0].as_mut_ptr(), dots);
        _mm256_storeu_ps(to[1].as_mut_ptr(), minima);
    }
}

/// Block `b` of a row, of which so many words and scales are there; a `WHOLE` one is read as one.
#[inline(always)]
pub(super) fn read_block<L: Level, W: ScaledRow<Cpu<L>>, const GROUPS: usize, const WHOLE: bool>(
    row: W,
    b: usize,
    [words, groups]: [usize; 2],
) -> Block<GROUPS> {
    let (first, at) = ((b * GROUPS) as i64, b as i64);
    let (mut scales, mut minima, mut is_signed, mut factors) = ([0; GROUPS], [0; GROUPS], false, [0.0; 2]);
    let mut all = [0; BLOCK];
    each_lane::<L, _, BLOCK, WHOLE, false>(row.words(), b * BLOCK, words, [WHOLE, true, false], |k, word| {
        all[k] = word.0
    });
    if WHOLE {
        let levels = row.levels::<GROUPS>(At::whole(first, GROUPS), At::whole(at, 1));
        ([scales, minima], is_signed) = (levels.integers, levels.is_signed);
        factors = [levels.factors[0].0, levels.factors[1].0];
    }
    let mut g = 0;
    while !WHOLE && g < groups && g < GROUPS {
        let at_index = |i: i64| At { plain: false, ..At::whole(i, 1) };
        let levels = row.levels::<1>(at_index(first + g as i64), at_index(at));
        ([[scales[g]], [minima[g]]], is_signed) = (levels.integers, levels.is_signed);
        factors = [levels.factors[0].0, levels.factors[1].0];
        g += 1;
    }
    Block { words: all, scales, minima, is_signed, factors }
}

/// The scales of a block, in that room.
///
/// # Safety
/// The level must have AVX2.
#[inline(always)]
unsafe fn spread<L: Level, W: ScaledRow<Cpu<L>>, const GROUPS: usize>(
    block: &Block<GROUPS>,
    room: &mut [i32; GROUPS],
) -> Scales {
    // SAFETY: by the contract above; groups are whole vectors.
    unsafe {
        let widen = |bytes: *const u8| {
            let bytes = _mm_loadl_epi64(bytes.cast());
            if block.is_signed { _mm256_cvtepi8_epi32(bytes) } else { _mm256_cvtepu8_epi32(bytes) }
        };
        let mut offsets = [_mm256_setzero_si256(); 2];
        let mut v = 0;
        while v < GROUPS / OCTET {
            let scales = widen(block.scales.as_ptr().add(v * OCTET));
            let low = _mm256_and_si256(scales, _mm256_set1_epi32(0xffff));
            let pairs = _mm256_or_si256(low, _mm256_slli_epi32::<16>(scales));
            _mm256_storeu_si256(room.as_mut_ptr().add(v * OCTET).cast(), pairs);
            if W::HAS_ZERO {
                offsets[v] = low;
            } else if W::Scale::HAS_OFFSET {
                let minima = widen(block.minima.as_ptr().add(v * OCTET));
                offsets[v] = _mm256_and_si256(minima, _mm256_set1_epi32(0xffff));
            }
            v += 1;
        }
        let (mut pairs, mut halves) = (room.as_ptr(), HALVES.as_ptr());
        // A load that fills a vector with one of them takes no port of shuffles; LLVM would shuffle what was written, and two pairs twice.
        std::arch::asm!(
            "/* {pairs} {halves} */",
            pairs = inout(reg) pairs,
            halves = inout(reg) halves,
            options(readonly, nostack, preserves_flags)
        );
        Scales { pairs, halves, offsets, factors: block.factors }
    }
}

/// What sums are with the products of block `b` of a row by a column: of integers that stand for what is `zero` more than 0.
///
/// # Safety
/// The column must be as long, with the sums of its groups as integers, and a scale for each; the level must have AVX2.
#[inline(always)]
unsafe fn add_block<L: Level, W: ScaledRow<Cpu<L>>, const GROUPS: usize>(
    words: &[i32; BLOCK],
    scales: &Scales,
    b: usize,
    zero: i32,
    column: &Column,
    [mut dots, mut minima]: Partial,
) -> Partial {
    // SAFETY: by the contract above.
    unsafe {
        let integers = column.integers.wrapping_add(4 * BLOCK * b);
        let mut sum = _mm256_setzero_si256();
        let mut v = 0;
        while v < BLOCK / OCTET {
            let words = _mm256_loadu_si256(words.as_ptr().add(v * OCTET).cast());
            let pairs = _mm256_maddubs_epi16(words, _mm256_loadu_si256(integers.add(4 * OCTET * v).cast()));
            let scale = if const { GROUPS == BLOCK / OCTET } {
                _mm256_set1_epi32(*scales.pairs.add(v))
            } else {
                let both = _mm256_set1_epi64x(scales.pairs.add(2 * v).cast::<i64>().read_unaligned());
                _mm256_shuffle_epi8(both, _mm256_loadu_si256(scales.halves.cast()))
            };
            sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, scale));
            v += 1;
        }
        let scale = *column.scales.add(b * GROUPS);
        let mut all = _mm256_setzero_si256();
        let mut v = 0;
        while W::Scale::HAS_OFFSET && v < GROUPS / OCTET {
            // Either fits 16 bits, and what is above those of offsets is 0.
            let of_column = column.offset_sums.add(b * GROUPS + v * OCTET);
            all = _mm256_add_epi32(all, _mm256_madd_epi16(scales.offsets[v], _mm256_loadu_si256(of_column.cast())));
            v += 1;
        }
        let [factor, of_minima] = scales.factors;
        if W::HAS_ZERO {
            sum = _mm256_sub_epi32(sum, _mm256_mullo_epi32(all, _mm256_set1_epi32(zero)));
        } else if W::Scale::HAS_OFFSET {
            minima = _mm256_fnmadd_ps(_mm256_cvtepi32_ps(all), _mm256_set1_ps(of_minima * scale), minima);
        }
        dots = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), _mm256_set1_ps(factor * scale), dots);
        [dots, minima]
    }
}
