//! Microkernels of scaled integers: by `vpdpbusd` (AVX-512 VNNI), and by `vpmaddubsw` (AVX2).

use std::arch::x86_64::*;

use super::super::pack::Source;
use super::amx;
use super::dot_scaled::{Column, Left, MAX_GROUPS};

/// Columns of a panel of quads.
pub(super) const VNNI_COLUMNS: usize = 16;
pub(super) const AVX2_COLUMNS: usize = 8;

/// The right operand, packed: for each panel of columns, for each four steps of K, the four bytes of each column.
pub(super) struct Packed {
    pub integers: *mut u8,
    /// Of each group, the scale of every column.
    pub scales: *mut f32,
    /// Of each group, the sum of every column's integers; with VNNI -128 times as much, what sums of products begin with there.
    pub sums: *mut i32,
    /// How many columns there is room for.
    pub across: usize,
}

/// Scales of a row's groups times those of a column's, and room for the last vector that is read from there.
struct Scales([f32; MAX_GROUPS + 16]);

/// Computes of each four integers of a column the sum, times -128, and of each group, if there are offsets.
///
/// # Safety
/// The column must be there, with room for these; the machine must have the features.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
pub(super) unsafe fn sums_vnni(left: &Left, right: &Column) {
    let group = left.steps / left.groups;
    let lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    // The first lane of each group.
    let firsts = match group {
        4 => lanes,
        8 => _mm512_slli_epi32::<1>(lanes),
        16 => _mm512_slli_epi32::<2>(lanes),
        32 => _mm512_slli_epi32::<3>(lanes),
        _ => _mm512_setzero_si512(),
    };
    let (mut k, mut place, mut all) = (0, 0, _mm512_setzero_si512());
    // SAFETY: by the contract above.
    unsafe {
        while k < left.steps {
            let b = _mm512_loadu_si512(right.integers.add(k).cast());
            let sum = _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(-128), b);
            let sum = _mm512_sub_epi32(_mm512_setzero_si512(), sum);
            _mm512_storeu_si512(right.sums.add(k / 4).cast(), sum);
            k += 64;
            if left.offsets.is_null() {
                continue;
            }
            all = _mm512_add_epi32(all, sum);
            if k % group != 0 {
                continue;
            }
            // Neighbours are added until all lanes of a group have its sum.
            if group >= 8 {
                all = _mm512_add_epi32(all, _mm512_shuffle_epi32::<0b10_11_00_01>(all));
            }
            if group >= 16 {
                all = _mm512_add_epi32(all, _mm512_shuffle_epi32::<0b01_00_11_10>(all));
            }
            if group >= 32 {
                all = _mm512_add_epi32(all, _mm512_shuffle_i32x4::<0b10_11_00_01>(all, all));
            }
            if group >= 64 {
                all = _mm512_add_epi32(all, _mm512_shuffle_i32x4::<0b01_00_11_10>(all, all));
            }
            // The next vector is written over what is behind this one's groups.
            _mm512_storeu_si512(right.group_sums.add(place).cast(), _mm512_permutexvar_epi32(firsts, all));
            place += Ord::max(64 / group, 1);
            all = _mm512_setzero_si512();
        }
    }
}

/// `to += left · right`, the rows of which are `step` elements apart.
///
/// # Safety
/// Both operands must be there, with rows of whole vectors of 64 integers and groups that divide these or are multiples; the machine
/// must have the features.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
pub(super) unsafe fn along_k_vnni(left: &Left, right: &Column, rows: usize, (to, step): (*mut f32, usize)) {
    // SAFETY: by the contract above.
    unsafe {
        let mut i = 0;
        while i < rows {
            let has_offsets = !left.offsets.is_null();
            let many = if i + 4 <= rows { 4 } else { 1 };
            match (many, has_offsets) {
                (4, false) => rows_along_k_vnni::<4, false>(left, right, i, (to, step)),
                (4, true) => rows_along_k_vnni::<4, true>(left, right, i, (to, step)),
                (_, false) => rows_along_k_vnni::<1, false>(left, right, i, (to, step)),
                (_, true) => rows_along_k_vnni::<1, true>(left, right, i, (to, step)),
            }
            i += many;
        }
    }
}

/// The same of `R` rows from `i` on.
///
/// # Safety
/// As for [`along_k_vnni`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn rows_along_k_vnni<const R: usize, const OFFSETS: bool>(
    left: &Left,
    right: &Column,
    i: usize,
    (to, step): (*mut f32, usize),
) {
    /// Scales in a vector.
    const SCALES: usize = 16;
    let group = left.steps / left.groups;
    let lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    // Which of the scales from a vector's first group on each four integers have.
    let index = match group {
        4 => lanes,
        8 => _mm512_srli_epi32::<1>(lanes),
        16 => _mm512_srli_epi32::<2>(lanes),
        32 => _mm512_srli_epi32::<3>(lanes),
        _ => _mm512_setzero_si512(),
    };
    let mut sums = [_mm512_setzero_ps(); R];
    // SAFETY: by the contract above.
    unsafe {
        let mut g = 0;
        while g < left.groups {
            let many = Ord::min(left.groups - g, SCALES);
            let mask = ((1_u32 << many) - 1) as u16;
            let of_right = _mm512_maskz_loadu_ps(mask, right.scales.add(g));
            let mut scales = [_mm512_setzero_ps(); R];
            let mut all = _mm512_setzero_ps();
            if OFFSETS {
                // The sums of the right integers, times -128, and their scales.
                all = _mm512_cvtepi32_ps(_mm512_maskz_loadu_epi32(mask, right.group_sums.add(g)));
                all = _mm512_mul_ps(_mm512_mul_ps(all, of_right), _mm512_set1_ps(-1.0 / 128.0));
            }
            let mut r = 0;
            while r < R {
                let at = (i + r) * left.scales_row + g;
                scales[r] = _mm512_mul_ps(_mm512_maskz_loadu_ps(mask, left.scales.add(at)), of_right);
                if OFFSETS {
                    // It does not matter to which lane it goes.
                    sums[r] = _mm512_fmadd_ps(_mm512_maskz_loadu_ps(mask, left.offsets.add(at)), all, sums[r]);
                }
                r += 1;
            }
            let (mut k, mut first, mut within) = (g * group, 0, 0);
            let end = (g + many) * group;
            while k < end {
                let b = _mm512_loadu_si512(right.integers.add(k).cast());
                let begin = _mm512_loadu_si512(right.sums.add(k / 4).cast());
                let place = _mm512_add_epi32(index, _mm512_set1_epi32(first));
                let mut r = 0;
                while r < R {
                    let a = _mm512_loadu_si512(left.integers.add((i + r) * left.row + k).cast());
                    let dot = _mm512_cvtepi32_ps(_mm512_dpbusd_epi32(begin, a, b));
                    sums[r] = _mm512_fmadd_ps(dot, _mm512_permutexvar_ps(place, scales[r]), sums[r]);
                    r += 1;
                }
                k += 64;
                within += 64;
                if within >= group {
                    first += Ord::max(64 / group, 1) as i32;
                    within = 0;
                }
            }
            g += many;
        }
        let mut r = 0;
        while r < R {
            *to.add((i + r) * step) += _mm512_reduce_add_ps(sums[r]);
            r += 1;
        }
    }
}

/// The same with AVX2.
///
/// # Safety
/// As for [`along_k_vnni`]; left integers are stored as they are.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn along_k_avx2(left: &Left, right: &Column, rows: usize, (to, step): (*mut f32, usize)) {
    let (group, groups) = (left.steps / left.groups, left.groups);
    let lanes = _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0);
    // Which of the scales from the first group of 16 integers on each two integers have.
    let index = match group {
        4 => _mm256_srli_epi32::<1>(lanes),
        8 => _mm256_srli_epi32::<2>(lanes),
        _ => _mm256_setzero_si256(),
    };
    let mut scales = Scales([0.0; MAX_GROUPS + 16]);
    let mut i = 0;
    // SAFETY: by the contract above.
    unsafe {
        while i < rows {
            let row = left.integers.add(i * left.row);
            let mut g = 0;
            while g < groups {
                scales.0[g] = *left.scales.add(i * left.scales_row + g) * *right.scales.add(g);
                g += 1;
            }
            let mut sums = [_mm256_setzero_ps(); 2];
            let mut k = 0;
            // Each of 16 integers, as words.
            let half = |k: usize| {
                let a = _mm256_cvtepi8_epi16(_mm_loadu_si128(row.add(k).cast()));
                let b = _mm256_cvtepi8_epi16(_mm_loadu_si128(right.integers.add(k).cast()));
                _mm256_madd_epi16(a, b)
            };
            let scale = |k: usize| {
                let first = _mm256_loadu_ps(scales.0.as_ptr().add(k / group));
                _mm256_permutevar8x32_ps(first, index)
            };
            if group >= 32 {
                while k < left.steps {
                    let dot = _mm256_add_epi32(half(k), half(k + 16));
                    let scale = _mm256_broadcast_ss(&scales.0[k / group]);
                    sums[k / 32 % 2] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), scale, sums[k / 32 % 2]);
                    k += 32;
                }
            } else {
                while k < left.steps {
                    sums[k / 16 % 2] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(half(k)), scale(k), sums[k / 16 % 2]);
                    k += 16;
                }
            }
            let (mut offsets, mut g) = (0.0, 0);
            while !left.offsets.is_null() && g < groups {
                let offset = *left.offsets.add(i * left.scales_row + g) * *right.scales.add(g);
                offsets += *right.group_sums.add(g) as f32 * offset;
                g += 1;
            }
            let sum = _mm256_add_ps(sums[0], sums[1]);
            let sum = _mm_add_ps(_mm256_castps256_ps128(sum), _mm256_extractf128_ps::<1>(sum));
            let sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
            *to.add(i * step) += _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum))) + offsets;
            i += 1;
        }
    }
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
        amx::pack_columns::<u8, 64>(from, [across, left.steps], 0..left.steps, to.integers);
        let bias = _mm512_set1_epi8(-128);
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
            let block = match (panels, some, has_offsets) {
                (1, 8, false) => block_vnni::<8, 1, false>,
                (1, 8, true) => block_vnni::<8, 1, true>,
                (1, _, false) => block_vnni::<1, 1, false>,
                (1, _, true) => block_vnni::<1, 1, true>,
                (2, 4, false) => block_vnni::<4, 2, false>,
                (2, 4, true) => block_vnni::<4, 2, true>,
                (2, _, false) => block_vnni::<1, 2, false>,
                (2, _, true) => block_vnni::<1, 2, true>,
                (_, 4, false) => block_vnni::<4, 3, false>,
                (_, 4, true) => block_vnni::<4, 3, true>,
                (_, _, false) => block_vnni::<1, 3, false>,
                (_, _, true) => block_vnni::<1, 3, true>,
            };
            // SAFETY: by the contract above.
            unsafe { block(left, right, [i, j, columns], (sum, step)) };
            i += some;
        }
        j += panels * VNNI_COLUMNS;
    }
}

/// The same of `R` rows from `i` on and `V` panels from column `j` on, of which there are `columns`.
///
/// # Safety
/// As for [`multiply_vnni`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn block_vnni<const R: usize, const V: usize, const OFFSETS: bool>(
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
        for g in 0..left.groups {
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
                let scales = _mm512_loadu_ps(right.scales.add(at));
                // The sum of the right integers times -128.
                let all = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_loadu_si512(right.sums.add(at).cast())), scales);
                let mut r = 0;
                while r < R {
                    let of_left = (i + r) * left.scales_row + g;
                    let scale = _mm512_mul_ps(scales, _mm512_set1_ps(*left.scales.add(of_left)));
                    sums[r][v] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots[r][v]), scale, sums[r][v]);
                    if OFFSETS {
                        let offset = _mm512_set1_ps(*left.offsets.add(of_left) * (-1.0 / 128.0));
                        sums[r][v] = _mm512_fmadd_ps(all, offset, sums[r][v]);
                    }
                    r += 1;
                }
                v += 1;
            }
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
    for first in (0..to.across).step_by(AVX2_COLUMNS) {
        let mut sum = _mm256_setzero_si256();
        for quad in 0..left.steps / 4 {
            let mut words = [0_u32; AVX2_COLUMNS];
            for (c, word) in words.iter_mut().enumerate().take(columns.saturating_sub(first)) {
                let column = from.ptr.wrapping_offset((first + c) as isize * across_stride);
                // SAFETY: by the contract above.
                *word = unsafe {
                    if is_plain {
                        column.add(quad * 4).cast::<u32>().read_unaligned()
                    } else {
                        let byte = |k: usize| if k < depth { *column.offset(k as isize * step) } else { 0 };
                        u32::from_le_bytes([0, 1, 2, 3].map(|b| byte(quad * 4 + b)))
                    }
                };
            }
            // SAFETY: as above.
            unsafe {
                let words = _mm256_loadu_si256(words.as_ptr().cast());
                found = _mm256_or_si256(found, _mm256_cmpeq_epi8(words, lowest));
                _mm256_storeu_si256(to.integers.add(first * left.steps + quad * 32).cast(), words);
                let pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), words);
                sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
                if (quad + 1) * 4 % group == 0 {
                    let g = quad * 4 / group;
                    _mm256_storeu_si256(to.sums.add(g * to.across + first).cast(), sum);
                    sum = _mm256_setzero_si256();
                }
            }
        }
    }
    _mm256_testz_si256(found, found) == 1
}

/// `sum += left · right`, as [`multiply_vnni`].
///
/// # Safety
/// As for that.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn multiply_avx2(
    left: &Left,
    right: &Packed,
    [rows, columns]: [usize; 2],
    (sum, step): (*mut f32, usize),
) {
    let mut j = 0;
    while j < columns {
        let panels = (columns - j).div_ceil(AVX2_COLUMNS);
        let mut i = 0;
        // SAFETY: by the contract above.
        unsafe {
            while i + 4 <= rows {
                if panels > 1 {
                    block_avx2::<4, 2>(left, right, [i, j, columns], (sum, step));
                } else {
                    block_avx2::<4, 1>(left, right, [i, j, columns], (sum, step));
                }
                i += 4;
            }
            while i < rows {
                if panels > 1 {
                    block_avx2::<1, 2>(left, right, [i, j, columns], (sum, step));
                } else {
                    block_avx2::<1, 1>(left, right, [i, j, columns], (sum, step));
                }
                i += 1;
            }
        }
        j += Ord::min(panels, 2) * AVX2_COLUMNS;
    }
}

/// The same of some rows and panels. A left integer's sign goes to the right one, for `vpmaddubsw` takes bytes without a sign on one
/// side: sums of two products fit 16 bits then.
///
/// # Safety
/// As for [`multiply_vnni`].
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn block_avx2<const R: usize, const V: usize>(
    left: &Left,
    right: &Packed,
    [i, j, columns]: [usize; 3],
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
            for _ in 0..quads {
                let mut bs = [_mm256_setzero_si256(); V];
                let mut v = 0;
                while v < V {
                    bs[v] = _mm256_loadu_si256(b.add(v * panel).cast());
                    v += 1;
                }
                let mut r = 0;
                while r < R {
                    let word = _mm256_set1_epi32(a.add(r * row).read_unaligned());
                    let magnitude = _mm256_abs_epi8(word);
                    let mut v = 0;
                    while v < V {
                        let pairs = _mm256_maddubs_epi16(magnitude, _mm256_sign_epi8(bs[v], word));
                        dots[r][v] = _mm256_add_epi32(dots[r][v], _mm256_madd_epi16(pairs, ones));
                        v += 1;
                    }
                    r += 1;
                }
                a = a.add(1);
                b = b.add(32);
            }
            let mut v = 0;
            while v < V {
                let at = g * across + j + v * AVX2_COLUMNS;
                let scales = _mm256_loadu_ps(right.scales.add(at));
                let mut r = 0;
                while r < R {
                    let of_left = (i + r) * left.scales_row + g;
                    let scale = _mm256_mul_ps(scales, _mm256_broadcast_ss(&*left.scales.add(of_left)));
                    sums[r][v] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots[r][v]), scale, sums[r][v]);
                    if !left.offsets.is_null() {
                        let all = _mm256_cvtepi32_ps(_mm256_loadu_si256(right.sums.add(at).cast()));
                        let offset = _mm256_mul_ps(scales, _mm256_broadcast_ss(&*left.offsets.add(of_left)));
                        sums[r][v] = _mm256_fmadd_ps(all, offset, sums[r][v]);
                    }
                    r += 1;
                }
                v += 1;
            }
        }
        let mut r = 0;
        while r < R {
            let mut v = 0;
            while v < V {
                let first = j + v * AVX2_COLUMNS;
                let mut all = [0.0_f32; AVX2_COLUMNS];
                _mm256_storeu_ps(all.as_mut_ptr(), sums[r][v]);
                for (c, more) in all.iter().enumerate().take(columns - first) {
                    *sum.add((i + r) * step + first + c) += more;
                }
                v += 1;
            }
            r += 1;
        }
    }
}
