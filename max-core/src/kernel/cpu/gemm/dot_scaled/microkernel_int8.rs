//! Microkernels of scaled integers: by `vpdpbusd` (AVX-512 VNNI), and by `vpmaddubsw` (AVX2).

use std::arch::x86_64::*;

use super::gemv_int8::Sums;
use super::{Column, Left};
use crate::kernel::cpu::gemm::matrix_unit::vnni_packing;
use crate::kernel::cpu::isa::Level;
use crate::kernel::cpu::pack::Source;

/// Columns of a panel of quads.
pub(super) const VNNI_COLUMNS: usize = 16;
pub(super) const AVX2_COLUMNS: usize = 8;

/// The right operand, packed: for each panel of columns, for each four steps of K, the four bytes of each column.
pub(super) struct Packed {
    pub integers: *mut u8,
    /// Of each group, the scale of every column.
    pub scales: *mut f32,
    /// Of each group, what sums of products begin with: the sum of every column's integers times what stands for 0 on the left, less than 0.
    /// Without VNNI the sum times the scale, an `f32`; or, where rows have scales of two levels, of each two groups the sums, as 16 bits.
    pub sums: *mut i32,
    /// Neighbouring groups that have one scale.
    pub groups_of_scale: usize,
    /// How many columns there is room for.
    pub across: usize,
}

/// Computes what columns are multiplied with beside their integers: of each four the sum, times what stands for 0, and of each group the
/// sum times its scale, for offsets. Says whether all integers have an opposite.
///
/// # Safety
/// The column must be there, with room for these and a vector more; the machine must have the features.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn prepare_column(left: &Left, right: &Column) -> bool {
    let [ones, smallest] = [_mm256_set1_epi8(1), _mm256_set1_epi8(-128)];
    // Where nothing stands for 0, sums are those of offsets.
    let zero = _mm256_set1_epi16(if left.zero > 0 { -i16::from(left.zero) } else { -128 });
    let mut without = _mm256_setzero_si256();
    let mut k = 0;
    // SAFETY: by the contract above.
    unsafe {
        while k < left.steps {
            let b = _mm256_loadu_si256(right.integers.add(k).cast());
            without = _mm256_or_si256(without, _mm256_cmpeq_epi8(b, smallest));
            let sum = _mm256_madd_epi16(_mm256_maddubs_epi16(ones, b), zero);
            _mm256_storeu_si256(right.sums.add(k / 4).cast(), sum);
            k += 32;
        }
        if !left.offsets.is_null() {
            match left.steps / left.groups / 4 {
                // Sums of known lengths are vectors.
                1 => sum_groups(left, right, 1),
                2 => sum_groups(left, right, 2),
                4 => sum_groups(left, right, 4),
                8 => sum_groups(left, right, 8),
                words => sum_groups(left, right, words),
            }
        }
    }
    _mm256_testz_si256(without, without) == 1
}

/// The sums of groups of `words` times four integers.
///
/// # Safety
/// As for [`prepare_column`].
#[inline(always)]
unsafe fn sum_groups(left: &Left, right: &Column, words: usize) {
    for g in 0..left.groups {
        // SAFETY: by the contract above.
        unsafe {
            let sums = std::slice::from_raw_parts(right.sums.add(g * words), words);
            let sum = sums.iter().sum::<i32>();
            if left.has_levels {
                right.offset_sums.add(g).cast::<i32>().write(sum / -128);
            } else {
                right.offset_sums.add(g).write(sum as f32 * (-1.0 / 128.0) * *right.scales.add(g));
            }
        }
    }
}

/// Writes a row's scales times those of a column.
///
/// # Safety
/// The row and the column must be there, with room for whole vectors of scales; the machine must have the features.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn scale_row(left: &Left, right: &Column, to: *mut f32) {
    let mut g = 0;
    while g < left.groups {
        // SAFETY: by the contract above; what is behind the last group is 0.
        unsafe {
            let scales = _mm256_mul_ps(_mm256_loadu_ps(left.scales.add(g)), _mm256_loadu_ps(right.scales.add(g)));
            _mm256_storeu_ps(to.add(g), scales);
        }
        g += 8;
    }
}

/// Writes vectors of a row's offsets times the sums of a column's groups.
///
/// # Safety
/// The row, which has offsets, and the column must be there, with whole vectors of them; the machine must have the features.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn add_offsets(left: &Left, right: &Column, to: &mut [f32; 16]) {
    let mut sums = [_mm256_setzero_ps(); 2];
    let mut g = 0;
    // SAFETY: by the contract above; what is behind the last group is 0.
    unsafe {
        while g < left.groups {
            for (h, sum) in sums.iter_mut().enumerate() {
                let g = g + 8 * h;
                let offset = _mm256_loadu_ps(left.offsets.add(g));
                *sum = _mm256_fmadd_ps(offset, _mm256_loadu_ps(right.offset_sums.add(g)), *sum);
            }
            g += 16;
        }
        _mm256_storeu_ps(to.as_mut_ptr(), sums[0]);
        _mm256_storeu_ps(to.as_mut_ptr().add(8), sums[1]);
    }
}

/// Adds partial sums of so many rows and columns to sums whose rows are `step` apart.
///
/// # Safety
/// Both must be there; the machine must have the features.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn add_sums(from: *const Sums, [rows, columns]: [usize; 2], (to, step): (*mut f32, usize)) {
    for i in 0..rows {
        for c in 0..columns {
            // SAFETY: by the contract above.
            unsafe { *to.add(i * step + c) += sum_of(from.add(i * columns + c).cast()) };
        }
    }
}

/// What the partial sums of a row and column come to.
///
/// # Safety
/// They must be there; the caller must have AVX2.
#[inline(always)]
pub(super) unsafe fn sum_of(v: *const f32) -> f32 {
    // SAFETY: by the contract above.
    unsafe {
        let [low, high] = [
            _mm256_add_ps(_mm256_loadu_ps(v), _mm256_loadu_ps(v.add(16))),
            _mm256_add_ps(_mm256_loadu_ps(v.add(8)), _mm256_loadu_ps(v.add(24))),
        ];
        sum_of_lanes(_mm256_add_ps(low, high))
    }
}

/// The sum of the lanes of a vector.
///
/// # Safety
/// The caller must have AVX2.
#[inline(always)]
pub(super) unsafe fn sum_of_lanes(sum: __m256) -> f32 {
    // SAFETY: by the contract above.
    unsafe {
        let sum = _mm_add_ps(_mm256_castps256_ps128(sum), _mm256_extractf128_ps::<1>(sum));
        let sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
        _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)))
    }
}

/// The scales of 16 words, by those of the first word's group on, each of `group` words.
///
/// # Safety
/// There must be a vector of scales; the level must have AVX2, and its kernels' features.
#[inline(always)]
pub(super) unsafe fn spread_scales<L: Level>(scales: *const f32, group: usize) -> [f32; 16] {
    let mut to = [0.0; 16];
    // SAFETY: by the contract above.
    unsafe {
        if L::AVX512 {
            let lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
            let scales = match group {
                1 => _mm512_loadu_ps(scales),
                2 => _mm512_permutexvar_ps(_mm512_srli_epi32::<1>(lanes), _mm512_loadu_ps(scales)),
                4 => _mm512_permutexvar_ps(_mm512_srli_epi32::<2>(lanes), _mm512_loadu_ps(scales)),
                8 => _mm512_permutexvar_ps(_mm512_srli_epi32::<3>(lanes), _mm512_loadu_ps(scales)),
                _ => _mm512_set1_ps(*scales),
            };
            _mm512_storeu_ps(to.as_mut_ptr(), scales);
            return to;
        }
        let mut h = 0;
        while h < 16 {
            let scales = match group {
                1 => _mm256_loadu_ps(scales.add(h)),
                2 => {
                    let index = _mm256_set_epi32(3, 3, 2, 2, 1, 1, 0, 0);
                    _mm256_permutevar8x32_ps(_mm256_loadu_ps(scales.add(h / 2)), index)
                }
                4 => {
                    let index = _mm256_set_epi32(1, 1, 1, 1, 0, 0, 0, 0);
                    _mm256_permutevar8x32_ps(_mm256_loadu_ps(scales.add(h / 4)), index)
                }
                8 => _mm256_set1_ps(*scales.add(h / 8)),
                _ => _mm256_set1_ps(*scales),
            };
            _mm256_storeu_ps(to.as_mut_ptr().add(h), scales);
            h += 8;
        }
    }
    to
}

/// Adds the products of 16 words by as many of a column, the sum of each word's times its scale. With AVX-512, sums of products begin with
/// those that are given.
///
/// # Safety
/// What is pointed at must be there; the level must have AVX2, and its kernels' features.
#[inline(always)]
pub(super) unsafe fn add_words<L: Level, const SIGNED: bool>(
    words: *const i32,
    (integers, sums): (*const u8, *const i32),
    scales: &[f32; 16],
    has_vnni: bool,
    acc: &mut [f32; 16],
) {
    let (scales, to) = (scales.as_ptr(), acc.as_mut_ptr());
    // SAFETY: by the contract above.
    unsafe {
        if !L::AVX512 {
            let mut h = 0;
            while h < 16 {
                let dot = dot_words::<SIGNED>(words.add(h), integers.add(4 * h));
                let (scale, to) = (_mm256_loadu_ps(scales.add(h)), to.add(h));
                _mm256_storeu_ps(to, _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), scale, _mm256_loadu_ps(to)));
                h += 8;
            }
            return;
        }
        let begin = if sums.is_null() { _mm512_setzero_si512() } else { _mm512_loadu_si512(sums.cast()) };
        let dot = dot_vector::<SIGNED>(words, integers, begin, has_vnni);
        let scale = _mm512_loadu_ps(scales);
        _mm512_storeu_ps(to, _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), scale, _mm512_loadu_ps(to)));
    }
}

/// Of 16 words and as many of a column the sums of four products, and of what is there already. Words with a sign are then multiplied
/// as bytes plus 128, if there is VNNI, and else by themselves.
///
/// # Safety
/// What is pointed at must be there; the level must have AVX-512, and its kernels' features.
#[inline(always)]
pub(super) unsafe fn dot_vector<const SIGNED: bool>(
    words: *const i32,
    integers: *const u8,
    sum: __m512i,
    has_vnni: bool,
) -> __m512i {
    // SAFETY: by the contract above.
    unsafe {
        if SIGNED && !has_vnni {
            let low = _mm512_castsi256_si512(dot_words::<true>(words, integers));
            let dot = _mm512_inserti64x4::<1>(low, dot_words::<true>(words.add(8), integers.add(32)));
            return _mm512_add_epi32(sum, dot);
        }
        let words = _mm512_loadu_si512(words.cast());
        if has_vnni {
            let words = if SIGNED { _mm512_xor_si512(words, _mm512_set1_epi8(-128)) } else { words };
            return dpbusd(sum, words, integers);
        }
        let pairs = _mm512_maddubs_epi16(words, _mm512_loadu_si512(integers.cast()));
        _mm512_add_epi32(sum, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)))
    }
}

/// Of 8 words and as many of a column the sums of four products, by `vpmaddubsw`: of magnitudes and of integers with the signs of the
/// words', whose pairs fit 16 bits if no integer of the column is -128, or if no word has a sign.
///
/// # Safety
/// Both must be there; the caller must have AVX2.
#[inline(always)]
unsafe fn dot_words<const SIGNED: bool>(words: *const i32, integers: *const u8) -> __m256i {
    // SAFETY: by the contract above.
    unsafe {
        let (a, b) = (_mm256_loadu_si256(words.cast()), _mm256_loadu_si256(integers.cast()));
        let pairs = if SIGNED {
            _mm256_maddubs_epi16(_mm256_abs_epi8(a), _mm256_sign_epi8(b, a))
        } else {
            _mm256_maddubs_epi16(a, b)
        };
        _mm256_madd_epi16(pairs, _mm256_set1_epi16(1))
    }
}

/// `vpdpbusd`, of kernels' levels, which do not have it: those with AVX-512 run on machines with and without.
///
/// # Safety
/// There must be 64 integers; the machine must have AVX-512 VNNI.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn dpbusd(sum: __m512i, words: __m512i, integers: *const u8) -> __m512i {
    let mut sum = sum;
    // SAFETY: by the contract above.
    unsafe {
        std::arch::asm!(
            "vpdpbusd {sum}, {words}, zmmword ptr [{integers}]",
            sum = inout(zmm_reg) sum, words = in(zmm_reg) words, integers = in(reg) integers,
            options(pure, readonly, nostack, preserves_flags)
        );
    }
    sum
}

/// Packs the right operand.
///
/// # Safety
/// The source must be inside its operand, and there must be room; the machine must have the features.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
pub(super) unsafe fn pack_vnni(from: &Source<u8>, left: &Left, to: &Packed) {
    let (group, across) = (left.steps / left.groups, to.across);
    // SAFETY: by the contract above; vectors are of whole lines.
    unsafe {
        vnni_packing::pack_columns::<u8, 64>(from, [across, left.steps], 0..left.steps, to.integers);
        let bias = _mm512_set1_epi8(left.zero as i8);
        for panel in 0..across / VNNI_COLUMNS {
            let mut quad = to.integers.add(panel * VNNI_COLUMNS * left.steps);
            for g in 0..left.groups {
                let mut sum = _mm512_setzero_si512();
                for _ in 0..group / 4 {
                    sum = _mm512_dpbusd_epi32(sum, bias, _mm512_loadu_si512(quad.cast()));
                    quad = quad.add(64);
                }
                let begin = _mm512_sub_epi32(_mm512_setzero_si512(), sum);
                _mm512_storeu_si512(to.sums.add(g * across + panel * VNNI_COLUMNS).cast(), begin);
            }
        }
    }
}

/// `sum += left · right`, of so many rows and columns, the rows `step` elements apart.
///
/// # Safety
/// The operands and the sum must be there; the machine must have the features.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
pub(super) unsafe fn multiply_vnni(
    left: &Left,
    right: &Packed,
    [rows, columns]: [usize; 2],
    (sum, step): (*mut f32, usize),
) {
    let has_offsets = !left.offsets.is_null();
    let mut j = 0;
    while j < columns {
        let panels = match (columns - j).div_ceil(VNNI_COLUMNS) {
            1 => 1,
            2 | 4 => 2,
            _ => 3,
        };
        let many = if panels == 1 { 8 } else { 4 };
        let mut i = 0;
        while i < rows {
            let some = if i + many <= rows { many } else { 1 };
            let block = if right.groups_of_scale > 1 {
                block_of::<true>(panels, some, has_offsets)
            } else {
                block_of::<false>(panels, some, has_offsets)
            };
            // SAFETY: by the contract above.
            unsafe { block(left, right, [i, j, columns], (sum, step)) };
            i += some;
        }
        j += panels * VNNI_COLUMNS;
    }
}

/// [`multiply_vnni`] of some rows and panels.
type Block = unsafe fn(&Left, &Packed, [usize; 3], (*mut f32, usize));

/// The block of so many panels and rows.
fn block_of<const SHARED: bool>(panels: usize, rows: usize, has_offsets: bool) -> Block {
    match (panels, rows, has_offsets) {
        (1, 8, false) => block_vnni::<8, 1, false, SHARED>,
        (1, 8, true) => block_vnni::<8, 1, true, SHARED>,
        (1, _, false) => block_vnni::<1, 1, false, SHARED>,
        (1, _, true) => block_vnni::<1, 1, true, SHARED>,
        (2, 4, false) => block_vnni::<4, 2, false, SHARED>,
        (2, 4, true) => block_vnni::<4, 2, true, SHARED>,
        (2, _, false) => block_vnni::<1, 2, false, SHARED>,
        (2, _, true) => block_vnni::<1, 2, true, SHARED>,
        (_, 4, false) => block_vnni::<4, 3, false, SHARED>,
        (_, 4, true) => block_vnni::<4, 3, true, SHARED>,
        (_, _, false) => block_vnni::<1, 3, false, SHARED>,
        (_, _, true) => block_vnni::<1, 3, true, SHARED>,
    }
}

/// The same of `R` rows from `i` on and `V` panels from column `j` on, of which there are `columns`. Of groups that have `SHARED` right
/// scales, products are scaled by the left ones, and their sum by these.
///
/// # Safety
/// As for [`multiply_vnni`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn block_vnni<const R: usize, const V: usize, const OFFSETS: bool, const SHARED: bool>(
    left: &Left,
    right: &Packed,
    [i, j, columns]: [usize; 3],
    (sum, step): (*mut f32, usize),
) {
    let (quads, across) = (left.steps / left.groups / 4, right.across);
    let mut sums = [[_mm512_setzero_ps(); V]; R];
    // SAFETY: by the contract above.
    unsafe {
        let mut a = left.integers.add(i * left.row).cast::<i32>();
        let mut b = right.integers.add(j * left.steps).cast_const();
        let row = left.row / 4;
        let panel = VNNI_COLUMNS * left.steps;
        let mut first = 0;
        while first < left.groups {
            let mut shared = [[_mm512_setzero_ps(); V]; R];
            let end = first + if SHARED { right.groups_of_scale } else { 1 };
            for g in first..end {
                let mut dots = [[_mm512_setzero_si512(); V]; R];
                let mut v = 0;
                while v < V {
                    let begin = _mm512_loadu_si512(right.sums.add(g * across + j + v * VNNI_COLUMNS).cast());
                    let mut r = 0;
                    while r < R {
                        dots[r][v] = begin;
                        r += 1;
                    }
                    v += 1;
                }
                for _ in 0..quads {
                    let mut bs = [_mm512_setzero_si512(); V];
                    let mut v = 0;
                    while v < V {
                        bs[v] = _mm512_loadu_si512(b.add(v * panel).cast());
                        v += 1;
                    }
                    let mut r = 0;
                    while r < R {
                        let word = _mm512_set1_epi32(a.add(r * row).read_unaligned());
                        let mut v = 0;
                        while v < V {
                            dots[r][v] = _mm512_dpbusd_epi32(dots[r][v], word, bs[v]);
                            v += 1;
                        }
                        r += 1;
                    }
                    a = a.add(1);
                    b = b.add(64);
                }
                let mut v = 0;
                while v < V {
                    let at = g * across + j + v * VNNI_COLUMNS;
                    let scales = if SHARED { _mm512_set1_ps(1.0) } else { _mm512_loadu_ps(right.scales.add(at)) };
                    // The sum of the right integers times -128, where there is no zero point.
                    let all = _mm512_cvtepi32_ps(_mm512_loadu_si512(right.sums.add(at).cast()));
                    let all = if SHARED { all } else { _mm512_mul_ps(all, scales) };
                    let to = if SHARED { &mut shared } else { &mut sums };
                    let mut r = 0;
                    while r < R {
                        let of_left = (i + r) * left.scales_row + g;
                        let scale = _mm512_set1_ps(*left.scales.add(of_left));
                        let scale = if SHARED { scale } else { _mm512_mul_ps(scales, scale) };
                        to[r][v] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots[r][v]), scale, to[r][v]);
                        if OFFSETS {
                            let offset = _mm512_set1_ps(*left.offsets.add(of_left) * (-1.0 / 128.0));
                            to[r][v] = _mm512_fmadd_ps(all, offset, to[r][v]);
                        }
                        r += 1;
                    }
                    v += 1;
                }
            }
            let mut v = 0;
            while SHARED && v < V {
                let scales = _mm512_loadu_ps(right.scales.add(first * across + j + v * VNNI_COLUMNS));
                let mut r = 0;
                while r < R {
                    sums[r][v] = _mm512_fmadd_ps(shared[r][v], scales, sums[r][v]);
                    r += 1;
                }
                v += 1;
            }
            first = end;
        }
        let mut r = 0;
        while r < R {
            let mut v = 0;
            while v < V {
                let first = j + v * VNNI_COLUMNS;
                let mask = if columns - first < 16 { (1 << (columns - first)) - 1 } else { !0 };
                let to = sum.add((i + r) * step + first);
                let before = _mm512_maskz_loadu_ps(mask, to);
                _mm512_mask_storeu_ps(to, mask, _mm512_add_ps(before, sums[r][v]));
                v += 1;
            }
            r += 1;
        }
    }
}

/// Packs the right operand, if each of its integers has an opposite of 8 bits: -128 has none.
///
/// # Safety
/// As for [`pack_vnni`].
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn pack_avx2(from: &Source<u8>, left: &Left, to: &Packed) -> bool {
    let ([columns, depth], group) = (from.extents, left.steps / left.groups);
    let [across_stride, step] = from.strides.map(|stride| stride as isize);
    let is_plain = step == 1 && depth == left.steps;
    let lowest = _mm256_set1_epi8(-128);
    let mut found = _mm256_setzero_si256();
    let mut even = _mm256_setzero_si256();
    for first in (0..to.across).step_by(AVX2_COLUMNS) {
        let mut sum = _mm256_setzero_si256();
        for k in (0..left.steps).step_by(32) {
            let mut parts = [_mm256_setzero_si256(); AVX2_COLUMNS];
            for (c, part) in parts.iter_mut().enumerate().take(columns.saturating_sub(first)) {
                let column = from.ptr.wrapping_offset((first + c) as isize * across_stride);
                // SAFETY: by the contract above.
                *part = unsafe {
                    if is_plain {
                        _mm256_loadu_si256(column.add(k).cast())
                    } else {
                        let mut bytes = [0_u8; 32];
                        for (b, byte) in bytes.iter_mut().enumerate().take(depth.saturating_sub(k)) {
                            *byte = *column.offset((k + b) as isize * step);
                        }
                        _mm256_loadu_si256(bytes.as_ptr().cast())
                    }
                };
            }
            for (q, words) in quads_of(parts).into_iter().enumerate() {
                let k = k + 4 * q;
                found = _mm256_or_si256(found, _mm256_cmpeq_epi8(words, lowest));
                let pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), words);
                sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
                // SAFETY: by the contract above.
                unsafe {
                    _mm256_storeu_si256(to.integers.add(first * left.steps + k * AVX2_COLUMNS).cast(), words);
                    if (k + 4) % group == 0 {
                        let g = k / group;
                        if !left.has_levels {
                            let at = g * to.across + first;
                            let offsets = _mm256_mul_ps(_mm256_cvtepi32_ps(sum), _mm256_loadu_ps(to.scales.add(at)));
                            _mm256_storeu_ps(to.sums.add(at).cast(), offsets);
                        } else if g % 2 == 0 {
                            even = sum;
                        } else {
                            let pairs = _mm256_blend_epi16::<0xaa>(even, _mm256_slli_epi32::<16>(sum));
                            _mm256_storeu_si256(to.sums.add(g / 2 * to.across + first).cast(), pairs);
                        }
                        sum = _mm256_setzero_si256();
                    }
                }
            }
        }
    }
    _mm256_testz_si256(found, found) == 1
}

/// Of 32 bytes of each of 8 columns the first four of all, the next four, and so on: a transpose of 8 x 8 words.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn quads_of(c: [__m256i; 8]) -> [__m256i; 8] {
    let pairs = [0, 2, 4, 6].map(|i| [_mm256_unpacklo_epi32(c[i], c[i + 1]), _mm256_unpackhi_epi32(c[i], c[i + 1])]);
    let fours = [0, 2].map(|i| {
        let [low, high] = [0, 1].map(|h| (pairs[i][h], pairs[i + 1][h]));
        [
            _mm256_unpacklo_epi64(low.0, low.1),
            _mm256_unpackhi_epi64(low.0, low.1),
            _mm256_unpacklo_epi64(high.0, high.1),
            _mm256_unpackhi_epi64(high.0, high.1),
        ]
    });
    let lower = [0, 1, 2, 3].map(|q| _mm256_permute2x128_si256::<0x20>(fours[0][q], fours[1][q]));
    let upper = [0, 1, 2, 3].map(|q| _mm256_permute2x128_si256::<0x31>(fours[0][q], fours[1][q]));
    [lower[0], lower[1], lower[2], lower[3], upper[0], upper[1], upper[2], upper[3]]
}

/// `sum += left · right`, as [`multiply_vnni`].
///
/// # Safety
/// As for that; no right integer may be -128.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn multiply_avx2(
    left: &Left,
    right: &Packed,
    [rows, columns]: [usize; 2],
    (sum, step): (*mut f32, usize),
) {
    let quads = left.steps / left.groups / 4;
    // So many sums of two products fit 16 bits.
    let depth = match left.is_signed {
        true => 1,
        // SAFETY: by the contract above.
        false => i16::MAX as usize / (2 * 127 * Ord::max(unsafe { largest(left, rows) }, 1)),
    };
    let sums = match depth {
        0 | 1 => FOURS,
        _ if depth < quads => SOME_PAIRS,
        _ => ALL_PAIRS,
    };
    let mut j = 0;
    while j < columns {
        let panels = Ord::min((columns - j).div_ceil(AVX2_COLUMNS), 2);
        let mut i = 0;
        while i < rows {
            let many = if i + 4 <= rows { 4 } else { 1 };
            let block = match (many, panels, sums, !left.offsets.is_null()) {
                (4, 2, FOURS, false) => block_avx2::<4, 2, FOURS, false>,
                (4, 2, FOURS, true) => block_avx2::<4, 2, FOURS, true>,
                (4, 2, SOME_PAIRS, false) => block_avx2::<4, 2, SOME_PAIRS, false>,
                (4, 2, SOME_PAIRS, true) => block_avx2::<4, 2, SOME_PAIRS, true>,
                (4, 2, _, false) => block_avx2::<4, 2, ALL_PAIRS, false>,
                (4, 2, _, true) => block_avx2::<4, 2, ALL_PAIRS, true>,
                (4, _, FOURS, false) => block_avx2::<4, 1, FOURS, false>,
                (4, _, FOURS, true) => block_avx2::<4, 1, FOURS, true>,
                (4, _, _, false) => block_avx2::<4, 1, SOME_PAIRS, false>,
                (4, _, _, true) => block_avx2::<4, 1, SOME_PAIRS, true>,
                (_, 2, _, false) => block_avx2::<1, 2, FOURS, false>,
                (_, 2, _, true) => block_avx2::<1, 2, FOURS, true>,
                (.., false) => block_avx2::<1, 1, FOURS, false>,
                (.., true) => block_avx2::<1, 1, FOURS, true>,
            };
            // SAFETY: by the contract above.
            unsafe { block(left, right, [i, j, columns], depth, (sum, step)) };
            i += many;
        }
        j += panels * AVX2_COLUMNS;
    }
}

/// The largest of left integers without a sign.
///
/// # Safety
/// They must be there, in whole vectors; the machine must have the features.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn largest(left: &Left, rows: usize) -> usize {
    let mut largest = _mm256_setzero_si256();
    for i in 0..rows {
        for k in (0..left.steps).step_by(32) {
            // SAFETY: by the contract above.
            let a = unsafe { _mm256_loadu_si256(left.integers.add(i * left.row + k).cast()) };
            largest = _mm256_max_epu8(largest, a);
        }
    }
    let mut bytes = [0_u8; 32];
    // SAFETY: there is room for a vector.
    unsafe { _mm256_storeu_si256(bytes.as_mut_ptr().cast(), largest) };
    bytes.iter().fold(0, |largest, byte| Ord::max(largest, usize::from(*byte)))
}

/// What is added of a group's products: sums of four, in 32 bits; or of two, in 16, as many as fit, or all.
const FOURS: u8 = 0;
const SOME_PAIRS: u8 = 1;
const ALL_PAIRS: u8 = 2;

/// The same of some rows and panels. `vpmaddubsw` takes bytes without a sign on one side. With `FOURS` left integers may have one: it
/// goes to the right ones, so that sums of two products fit 16 bits. Of pairs, `depth` are added before they are widened.
///
/// # Safety
/// As for [`multiply_avx2`].
#[target_feature(enable = "avx2,fma")]
unsafe fn block_avx2<const R: usize, const V: usize, const SUMS: u8, const OFFSETS: bool>(
    left: &Left,
    right: &Packed,
    [i, j, columns]: [usize; 3],
    depth: usize,
    (sum, step): (*mut f32, usize),
) {
    let (quads, across) = (left.steps / left.groups / 4, right.across);
    let ones = _mm256_set1_epi16(1);
    let mut sums = [[_mm256_setzero_ps(); V]; R];
    // SAFETY: by the contract above.
    unsafe {
        let mut a = left.integers.add(i * left.row).cast::<i32>();
        let mut b = right.integers.add(j * left.steps).cast_const();
        let row = left.row / 4;
        let panel = AVX2_COLUMNS * left.steps;
        for g in 0..left.groups {
            let mut dots = [[_mm256_setzero_si256(); V]; R];
            let mut rest = quads;
            loop {
                let many = if SUMS == SOME_PAIRS { Ord::min(rest, depth) } else { rest };
                rest -= many;
                // Of two products in 16 bits, or of four in 32.
                let mut part = [[_mm256_setzero_si256(); V]; R];
                for _ in 0..many {
                    let mut bs = [_mm256_setzero_si256(); V];
                    let mut v = 0;
                    while v < V {
                        bs[v] = _mm256_loadu_si256(b.add(v * panel).cast());
                        v += 1;
                    }
                    let mut r = 0;
                    while r < R {
                        let word = _mm256_set1_epi32(a.add(r * row).read_unaligned());
                        let magnitude = if SUMS == FOURS { _mm256_abs_epi8(word) } else { word };
                        let mut v = 0;
                        while v < V {
                            let b = if SUMS == FOURS { _mm256_sign_epi8(bs[v], word) } else { bs[v] };
                            let pairs = _mm256_maddubs_epi16(magnitude, b);
                            part[r][v] = if SUMS == FOURS {
                                _mm256_add_epi32(part[r][v], _mm256_madd_epi16(pairs, ones))
                            } else {
                                _mm256_add_epi16(part[r][v], pairs)
                            };
                            v += 1;
                        }
                        r += 1;
                    }
                    a = a.add(1);
                    b = b.add(32);
                }
                let mut r = 0;
                while r < R {
                    let mut v = 0;
                    while v < V {
                        let part = if SUMS == FOURS { part[r][v] } else { _mm256_madd_epi16(part[r][v], ones) };
                        dots[r][v] = if SUMS == SOME_PAIRS { _mm256_add_epi32(dots[r][v], part) } else { part };
                        v += 1;
                    }
                    r += 1;
                }
                if SUMS != SOME_PAIRS || rest == 0 {
                    break;
                }
            }
            let mut r = 0;
            while r < R {
                let of_left = (i + r) * left.scales_row + g;
                let scale = _mm256_broadcast_ss(&*left.scales.add(of_left));
                let mut v = 0;
                while v < V {
                    let at = g * across + j + v * AVX2_COLUMNS;
                    let scale = _mm256_mul_ps(_mm256_loadu_ps(right.scales.add(at)), scale);
                    sums[r][v] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots[r][v]), scale, sums[r][v]);
                    v += 1;
                }
                if OFFSETS {
                    let offset = _mm256_broadcast_ss(&*left.offsets.add(of_left));
                    let mut v = 0;
                    while v < V {
                        let all = _mm256_loadu_ps(right.sums.add(g * across + j + v * AVX2_COLUMNS).cast());
                        sums[r][v] = _mm256_fmadd_ps(all, offset, sums[r][v]);
                        v += 1;
                    }
                }
                r += 1;
            }
        }
        store_sums(&sums, [i, j, columns], (sum, step));
    }
}

/// Adds the sums of `R` rows and `V` panels to those in memory.
///
/// # Safety
/// As for [`multiply_avx2`].
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn store_sums<const R: usize, const V: usize>(
    sums: &[[__m256; V]; R],
    [i, j, columns]: [usize; 3],
    (sum, step): (*mut f32, usize),
) {
    for (r, sums) in sums.iter().enumerate() {
        for (v, lanes) in sums.iter().enumerate() {
            let first = j + v * AVX2_COLUMNS;
            let mut all = [0.0_f32; AVX2_COLUMNS];
            // SAFETY: by the contract above.
            unsafe {
                _mm256_storeu_ps(all.as_mut_ptr(), *lanes);
                for (c, more) in all.iter().enumerate().take(columns - first) {
                    *sum.add((i + r) * step + first + c) += more;
                }
            }
        }
    }
}
