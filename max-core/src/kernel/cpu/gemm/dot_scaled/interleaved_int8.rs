//! Rows of scaled integers by three to eight columns, which lie side by side in vectors: by `vpdpbusd`.
//!
//! A vector has eight integers of each column, and a row's eight next to it are one broadcast. So the lanes of a product are pairs
//! (column, half of every eight), and a group's sums are converted and scaled for all columns at once. A row is unpacked to memory first,
//! as it lies: that is an instruction for 64 integers.
//!
//! A row has the bits that it has [alone](super::gemv_int8): there, the lanes of a vector are pairs (group, half) of a
//! [block](BLOCK) of words, to which block after block is added. Here one such pair after the other is added, of all blocks, and the sums of
//! pairs are added in the order of that vector's lanes.

use std::arch::x86_64::*;

use super::Left;
use super::gemv_int8::LaneOrder;
use crate::kernel::cpu::isa::BLOCK;
use crate::kernel::cpu::pack::Source;
use crate::kernel::cpu::transpose::{LINE, prefetch_far};

/// Columns of a panel.
pub(super) const COLUMNS: usize = 8;
/// Rows that are multiplied together.
pub(super) const ROWS: usize = 4;
/// Lanes of a vector.
const VECTOR: usize = 16;
/// Most groups of a block.
const GROUPS: usize = BLOCK / 4;
/// Groups of a block that are multiplied by one loop over blocks.
pub(super) const PAIR: usize = 2;

/// Up to [`COLUMNS`] columns, prepared.
pub(super) struct Panel {
    /// For each eight steps of K, those of each column.
    integers: *mut u8,
    /// Of each group the sums of the integers of each column's halves times [what stands for 0](Left::zero), less than 0, what sums of
    /// products begin with; null where that is 0.
    begins: *mut i32,
    /// Of each scale of columns, that of each, twice.
    scales: *mut f32,
    /// Of each group, the sum of each column's integers times its scale.
    offset_sums: *mut f32,
    /// Memory for a product: sums of the groups of a block, and those of offsets.
    sums: *mut f32,
    /// Of a column.
    scale_count: usize,
    columns: usize,
}

/// A cursor that prefetches what is read next, some bytes at a time.
pub(super) struct PrefetchCursor {
    at: usize,
    /// Bytes at a time, and the lines that these begin, as many each time, so that the branch is known.
    step: usize,
    lines: usize,
}

impl PrefetchCursor {
    /// So many bytes from that address on, in parts: any, since nothing is read.
    pub fn new(at: usize, bytes: usize, parts: usize) -> Self {
        let step = bytes.div_ceil(parts);
        PrefetchCursor { at, step, lines: step.div_ceil(LINE) }
    }

    /// Prefetches the next lines.
    #[inline(always)]
    fn prefetch(&mut self) {
        for line in 0..self.lines {
            prefetch_far(std::ptr::without_provenance(self.at.wrapping_add(line * LINE)), 1);
        }
        self.at = self.at.wrapping_add(self.step);
    }
}

impl Panel {
    /// The bytes that a panel takes.
    pub fn bytes(left: &Left, scale_count: usize) -> usize {
        let of_group = VECTOR * size_of::<i32>() + COLUMNS * size_of::<f32>();
        let of_sums = ROWS * VECTOR * (VECTOR + COLUMNS) * size_of::<f32>();
        COLUMNS * left.steps + left.groups * of_group + scale_count * VECTOR * size_of::<f32>() + of_sums
    }

    /// Prepares columns of integers, with so many scales, in that memory.
    ///
    /// # Safety
    /// There must be room, and the operands; the machine must have AVX-512 VNNI.
    pub unsafe fn new(
        left: &Left,
        room: *mut u8,
        (from, scale): (&Source<u8>, &Source<f32>),
        scale_count: usize,
    ) -> Self {
        let scales = room.wrapping_add(COLUMNS * left.steps).cast::<f32>();
        let begins = scales.wrapping_add(scale_count * VECTOR).cast::<i32>();
        let offset_sums = begins.wrapping_add(left.groups * VECTOR).cast::<f32>();
        let sums = offset_sums.wrapping_add(left.groups * COLUMNS);
        let columns = from.extents[0];
        let panel = Panel { integers: room, begins, scales, offset_sums, sums, scale_count, columns };
        // SAFETY: by the contract above.
        unsafe {
            panel.write_scales(scale);
            panel.pack(left, from);
            if left.zero > 0 || !left.offsets.is_null() {
                panel.sum_groups(left);
            }
        }
        Panel { begins: if left.zero > 0 { begins } else { std::ptr::null_mut() }, ..panel }
    }

    /// Writes the scales, 0 outside of their operand.
    ///
    /// # Safety
    /// As for [`new`](Self::new).
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
    unsafe fn write_scales(&self, from: &Source<f32>) {
        let columns = Ord::min(self.columns, from.extents[0]);
        // Of a column that is not there the first one is read.
        let column = |c: usize| if c < columns { c as isize * from.strides[0] as isize } else { 0 };
        let offsets: [isize; COLUMNS] = std::array::from_fn(column);
        let mask = ((1_u32 << (2 * columns)) - 1) as u16;
        let twice = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
        let inside = if columns > 0 { Ord::min(self.scale_count, from.extents[1]) } else { 0 };
        for part in 0..self.scale_count {
            let to = self.scales.wrapping_add(part * VECTOR);
            // SAFETY: those inside are read, and there is room for both halves of each column.
            unsafe {
                let mut all = _mm512_setzero_ps();
                if part < inside {
                    let part = from.ptr.offset(part as isize * from.strides[1] as isize);
                    let each = offsets.map(|offset| *part.offset(offset));
                    let each = _mm512_castps256_ps512(_mm256_loadu_ps(each.as_ptr()));
                    all = _mm512_maskz_permutexvar_ps(mask, twice, each);
                }
                _mm512_storeu_ps(to, all);
            }
        }
    }

    /// Writes the integers.
    ///
    /// # Safety
    /// As for [`new`](Self::new).
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
    unsafe fn pack(&self, left: &Left, from: &Source<u8>) {
        let is_plain = from.strides[1] == 1 && from.extents[1] == left.steps;
        for k in (0..left.steps).step_by(64) {
            let mut lines = [_mm512_setzero_si512(); COLUMNS];
            for (c, line) in lines.iter_mut().enumerate().take(from.extents[0]) {
                let column = from.ptr.wrapping_offset(c as isize * from.strides[0] as isize);
                // SAFETY: of the column those inside are read.
                *line = unsafe {
                    if is_plain {
                        _mm512_loadu_si512(column.add(k).cast())
                    } else {
                        let mut bytes = [0_u8; 64];
                        for (b, byte) in bytes.iter_mut().enumerate().take(from.extents[1].saturating_sub(k)) {
                            *byte = *column.offset((k + b) as isize * from.strides[1] as isize);
                        }
                        _mm512_loadu_si512(bytes.as_ptr().cast())
                    }
                };
            }
            for (eight, line) in eights_of(lines).into_iter().enumerate() {
                // SAFETY: there is room for eight columns.
                unsafe { _mm512_storeu_si512(self.integers.add(COLUMNS * k + 64 * eight).cast(), line) };
            }
        }
    }

    /// Writes the sums of groups.
    ///
    /// # Safety
    /// As for [`new`](Self::new), and the integers and scales must have been written.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
    unsafe fn sum_groups(&self, left: &Left) {
        let (group, per_scale) = (left.steps / left.groups, left.groups / self.scale_count);
        let (ones, zero) = (_mm512_set1_epi8(1), _mm512_set1_epi32(-i32::from(left.zero)));
        // The even lanes of two vectors.
        let evens = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 0, 2, 4, 6, 8, 10, 12, 14);
        for g in 0..left.groups {
            let mut sum = _mm512_setzero_si512();
            // SAFETY: by the contract above.
            unsafe {
                for eight in g * group / 8..(g + 1) * group / 8 {
                    let integers = _mm512_loadu_si512(self.integers.add(64 * eight).cast());
                    sum = _mm512_dpbusd_epi32(sum, ones, integers);
                }
                _mm512_storeu_si512(self.begins.add(g * VECTOR).cast(), _mm512_mullo_epi32(sum, zero));
                let both = _mm512_cvtepi32_ps(_mm512_add_epi32(sum, _mm512_shuffle_epi32::<0b10_11_00_01>(sum)));
                let both = _mm512_mul_ps(both, _mm512_loadu_ps(self.scales.add(g / per_scale * VECTOR)));
                let all = _mm512_castps512_ps256(_mm512_permutexvar_ps(evens, both));
                _mm256_storeu_ps(self.offset_sums.add(g * COLUMNS), all);
            }
        }
    }

    /// Adds the products of the first `rows` left rows, at most [`ROWS`], to sums whose rows are so far apart, and prefetches what is next
    /// meanwhile.
    ///
    /// # Safety
    /// The rows and sums must be there; the machine must have AVX-512 VNNI.
    #[inline(never)]
    pub unsafe fn multiply(&self, left: &Left, rows: usize, (to, step): (*mut f32, usize), mut next: PrefetchCursor) {
        let words = left.steps / left.groups / 4;
        // SAFETY: by the contract above.
        unsafe {
            if rows == ROWS {
                return match words {
                    4 => self.multiply_rows::<ROWS, 4>(left, 0, (to, step), &mut next),
                    _ => self.multiply_rows::<ROWS, 8>(left, 0, (to, step), &mut next),
                };
            }
            for row in 0..rows {
                let to = (to.add(row * step), step);
                match words {
                    4 => self.multiply_rows::<1, 4>(left, row, to, &mut next),
                    _ => self.multiply_rows::<1, 8>(left, row, to, &mut next),
                }
            }
        }
    }

    /// The same of `R` rows from `row` on, with groups of `WORDS` words.
    ///
    /// # Safety
    /// As for [`multiply`](Self::multiply).
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
    unsafe fn multiply_rows<const R: usize, const WORDS: usize>(
        &self,
        left: &Left,
        row: usize,
        (to, step): (*mut f32, usize),
        next: &mut PrefetchCursor,
    ) {
        // SAFETY: by the contract above.
        unsafe {
            let order = LaneOrder::of(WORDS, left.transposes);
            let offsets = self.sums.add(R * GROUPS * VECTOR);
            if !left.offsets.is_null() {
                self.add_offsets::<R>(left, row, offsets);
            }
            let is_of_block = self.scale_count * BLOCK == left.steps / 4;
            for group in (0..BLOCK / WORDS).step_by(PAIR) {
                let mut sums = [[_mm512_setzero_ps(); R]; PAIR];
                if !left.offsets.is_null() {
                    for (p, sums) in sums.iter_mut().enumerate() {
                        for (r, sum) in sums.iter_mut().enumerate() {
                            *sum = offsets_of(offsets.add(r * VECTOR * COLUMNS), group + p, order);
                        }
                    }
                }
                match (self.begins.is_null(), is_of_block) {
                    (true, true) => self.add_groups::<R, WORDS, false, true>(left, row, group, &mut sums, next),
                    (true, false) => self.add_groups::<R, WORDS, false, false>(left, row, group, &mut sums, next),
                    (false, true) => self.add_groups::<R, WORDS, true, true>(left, row, group, &mut sums, next),
                    (false, false) => self.add_groups::<R, WORDS, true, false>(left, row, group, &mut sums, next),
                }
                for (p, sums) in sums.into_iter().enumerate() {
                    for (r, sum) in sums.into_iter().enumerate() {
                        _mm512_storeu_ps(self.sums.add((r * GROUPS + group + p) * VECTOR), sum);
                    }
                }
            }
            for r in 0..R {
                let sum = sum_of::<WORDS>(self.sums.add(r * GROUPS * VECTOR), order);
                let (mask, to) = ((1_u16 << self.columns) as u8, to.add(r * step));
                let mask = mask.wrapping_sub(1);
                _mm256_mask_storeu_ps(to, mask, _mm256_add_ps(_mm256_maskz_loadu_ps(mask, to), sum));
            }
        }
    }

    /// Adds the products of groups `group` and the next of all blocks of `R` rows.
    ///
    /// # Safety
    /// As for [`multiply`](Self::multiply).
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
    unsafe fn add_groups<const R: usize, const WORDS: usize, const BEGINS: bool, const BY_BLOCKS: bool>(
        &self,
        left: &Left,
        row: usize,
        group: usize,
        sums: &mut [[__m512; R]; PAIR],
        next: &mut PrefetchCursor,
    ) {
        let mut g = group;
        // SAFETY: by the contract above.
        unsafe {
            while g + 1 < left.groups {
                next.prefetch();
                self.add_block::<R, WORDS, BEGINS, BY_BLOCKS, PAIR>(left, row, g, sums);
                g += BLOCK / WORDS;
            }
            if g < left.groups {
                self.add_block::<R, WORDS, BEGINS, BY_BLOCKS, 1>(left, row, g, sums);
            }
        }
    }

    /// Adds the products of the `P` groups from `first` on of `R` rows.
    ///
    /// # Safety
    /// As for [`multiply`](Self::multiply).
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
    unsafe fn add_block<
        const R: usize,
        const WORDS: usize,
        const BEGINS: bool,
        const BY_BLOCKS: bool,
        const P: usize,
    >(
        &self,
        left: &Left,
        row: usize,
        first: usize,
        sums: &mut [[__m512; R]; PAIR],
    ) {
        let integers = left.integers.wrapping_add(row * left.row);
        let left_scales = left.scales.wrapping_add(row * left.scales_row + first);
        // SAFETY: by the contract above.
        unsafe {
            let mut dots = [[_mm512_setzero_si512(); R]; P];
            if BEGINS {
                let mut p = 0;
                while p < P {
                    dots[p] = [_mm512_loadu_si512(self.begins.add((first + p) * VECTOR).cast()); R];
                    p += 1;
                }
            }
            // All groups' products in turn: a chain of additions then waits for none of its own.
            let (a, b) = (integers.add(first * WORDS * 4), self.integers.add(first * WORDS * 4 * COLUMNS));
            let mut eight = 0;
            while eight < WORDS / 2 {
                let mut p = 0;
                while p < P {
                    let at = p * WORDS / 2 + eight;
                    let b = _mm512_loadu_si512(b.add(64 * at).cast());
                    let mut r = 0;
                    while r < R {
                        let a = a.add(r * left.row + 8 * at).cast::<i64>().read_unaligned();
                        dots[p][r] = _mm512_dpbusd_epi32(dots[p][r], _mm512_set1_epi64(a), b);
                        r += 1;
                    }
                    p += 1;
                }
                eight += 1;
            }
            let mut p = 0;
            while p < P {
                let g = first + p;
                let of_columns = if BY_BLOCKS { first / (BLOCK / WORDS) } else { g };
                let scales = _mm512_loadu_ps(self.scales.add(of_columns * VECTOR));
                let mut r = 0;
                while r < R {
                    let dot = _mm512_cvtepi32_ps(dots[p][r]);
                    let scale = _mm512_set1_ps(*left_scales.add(r * left.scales_row + p));
                    // In the order of a row that is alone.
                    sums[p][r] = if BY_BLOCKS {
                        _mm512_fmadd_ps(_mm512_mul_ps(dot, scale), scales, sums[p][r])
                    } else {
                        _mm512_fmadd_ps(dot, _mm512_mul_ps(scale, scales), sums[p][r])
                    };
                    r += 1;
                }
                p += 1;
            }
        }
    }

    /// Writes the sums of offsets times those of columns' groups, of `R` rows from `row` on: for each lane of a vector of groups, that of
    /// each column.
    ///
    /// # Safety
    /// As for [`multiply`](Self::multiply), and rows must have offsets.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
    unsafe fn add_offsets<const R: usize>(&self, left: &Left, row: usize, to: *mut f32) {
        let offsets = left.offsets.wrapping_add(row * left.scales_row);
        // Two groups at a time, which lie side by side: there are as many as vectors of 64 integers have, an even number.
        let [low, high] = [0, 1].map(|group| _mm256_set1_epi32(group));
        let each = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high);
        for lane in (0..VECTOR).step_by(2) {
            let mut sums = [_mm512_setzero_ps(); R];
            for g in (lane..left.groups).step_by(VECTOR) {
                // SAFETY: by the contract above.
                unsafe {
                    let all = _mm512_loadu_ps(self.offset_sums.add(g * COLUMNS));
                    let mut r = 0;
                    while r < R {
                        let both = offsets.add(r * left.scales_row + g).cast::<f64>().read_unaligned();
                        let both = _mm512_permutevar_ps(_mm512_castpd_ps(_mm512_set1_pd(both)), each);
                        sums[r] = _mm512_fmadd_ps(both, all, sums[r]);
                        r += 1;
                    }
                }
            }
            for (r, sum) in sums.into_iter().enumerate() {
                // SAFETY: as above.
                unsafe { _mm512_storeu_ps(to.add((r * VECTOR + lane) * COLUMNS), sum) };
            }
        }
    }
}

/// What the sums of a group of a block begin with: those of the two lanes in which a row that is alone has the group.
///
/// # Safety
/// There must be a vector of sums for each lane; the caller must have AVX-512.
#[inline]
#[target_feature(enable = "avx512f,avx512vl")]
unsafe fn offsets_of(offsets: *const f32, group: usize, order: &LaneOrder) -> __m512 {
    let Some(place) = order.places.get(group) else { return _mm512_setzero_ps() };
    // SAFETY: by the contract above.
    let both = unsafe { _mm512_loadu_ps(offsets.add(2 * place * COLUMNS)) };
    // One lane of a column after the other.
    _mm512_permutexvar_ps(_mm512_setr_epi32(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15), both)
}

/// The sums of columns, by those of the groups of a block, in the order in which the lanes of a row that is alone are added.
///
/// # Safety
/// There must be so many; the caller must have AVX-512.
#[inline]
#[target_feature(enable = "avx512f,avx512vl")]
unsafe fn sum_of<const WORDS: usize>(groups: *const f32, order: &LaneOrder) -> __m256 {
    let lanes = &order.groups;
    // SAFETY: by the contract above.
    let group = |g: usize| unsafe { _mm512_loadu_ps(groups.add(g * VECTOR)) };
    let both = |place: usize| match WORDS {
        4 => _mm512_add_ps(group(lanes[place]), group(lanes[place] + 8)),
        _ => group(lanes[place]),
    };
    let half = |place: usize| _mm512_add_ps(both(place), both(place + 4));
    let quarter = |place: usize| _mm512_add_ps(half(place), half(place + 2));
    let sums = _mm512_add_ps(quarter(0), quarter(1));
    let sums = _mm512_add_ps(sums, _mm512_permute_ps::<0b10_11_00_01>(sums));
    let evens = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 0, 2, 4, 6, 8, 10, 12, 14);
    _mm512_castps512_ps256(_mm512_permutexvar_ps(evens, sums))
}

/// Of 64 bytes of each of 8 columns the first eight of all, the next eight, and so on: a transpose of 8 x 8.
#[inline]
#[target_feature(enable = "avx512f")]
fn eights_of(c: [__m512i; 8]) -> [__m512i; 8] {
    let pairs = [0, 2, 4, 6].map(|i| [_mm512_unpacklo_epi64(c[i], c[i + 1]), _mm512_unpackhi_epi64(c[i], c[i + 1])]);
    // Of four columns, two of the eights that are 4 apart.
    let fours = [0, 2].map(|i| {
        [0, 1].map(|h| {
            let (a, b) = (pairs[i][h], pairs[i + 1][h]);
            [_mm512_shuffle_i64x2::<0x88>(a, b), _mm512_shuffle_i64x2::<0xdd>(a, b)]
        })
    });
    let mut all = [_mm512_setzero_si512(); 8];
    for h in 0..2 {
        for v in 0..2 {
            let (a, b) = (fours[0][h][v], fours[1][h][v]);
            all[2 * v + h] = _mm512_shuffle_i64x2::<0x88>(a, b);
            all[2 * v + h + 4] = _mm512_shuffle_i64x2::<0xdd>(a, b);
        }
    }
    all
}
