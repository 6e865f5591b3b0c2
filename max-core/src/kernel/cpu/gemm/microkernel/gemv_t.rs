//! GEMV and skinny GEMM with B transposed, as dot products along the rows of both operands, which are read in place.
//!
//! It exists because transposing B for the [`microkernel`](super) costs more than a few rows gain, and
//! memory is the limit. The attention scores of one token are such a product.
//!
//! Four rows meet four columns at a time, or three where there are 16 vector registers: all accumulators grow in registers,
//! and one horizontal reduction adds up the lanes of all of them at the end. K is cut so that the rows stay in the L1 cache while
//! all columns pass.

use super::Accumulators;
use crate::kernel::cpu::isa::Level;
#[cfg(target_arch = "x86_64")]
use crate::kernel::cpu::isa::load_part;
#[cfg(target_arch = "x86_64")]
use crate::kernel::cpu::widen;
use crate::kernel::lang::Any;

/// The most rows that are multiplied here.
pub(in crate::kernel::cpu) const ROWS: usize = 8;
/// Elements along both operands that are read at once.
const STEP: usize = 16;
/// Columns that are read side by side.
const COLUMNS: usize = 4;
/// The prefetch distance in B, in bytes, at least: whole groups of columns, which are read next.
const PREFETCH_BYTES: isize = 4096;
/// Elements of the rows that are kept in the L1 cache: 16 KiB, which leaves as much for B.
const RESIDENT: usize = 4096;
/// The unit of memory, in bytes.
const LINE: usize = 64;

/// `acc += lhs · rhsᵀ`
#[derive(Clone, Copy)]
pub(in crate::kernel::cpu) struct GemvT<E> {
    pub depth: usize,
    pub rows: usize,
    /// Columns of `acc`: rows of the right operand.
    pub columns: usize,
    /// The left operand, whose rows lie `lhs_row` elements apart.
    pub lhs: *const f32,
    pub lhs_row: isize,
    /// The right operand, whose rows lie `rhs_row` elements apart.
    pub rhs: *const E,
    pub rhs_row: isize,
    pub acc: *mut f32,
    pub acc_row: usize,
}

/// Computes the GEMM.
///
/// # Safety
/// The operands must have the elements that are described, `acc` be writable by this call alone, `U` compute in `f32`,
/// and the machine must have the level, which is v3 or v4.
#[inline(always)]
pub(in crate::kernel::cpu) unsafe fn multiply<L: Level, U: Any>(x: &GemvT<U::Mem>) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: by the contract above.
    unsafe {
        if L::AVX512 { gemv_t_v4::<L, U>(x) } else { gemv_t_v3::<L, U>(x) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = x;
}

/// A GEMM without accumulators, whatever dtype B has.
#[derive(Clone, Copy)]
pub(in crate::kernel::cpu) struct Deferred {
    gemm: GemvT<u8>,
    multiply: unsafe fn(&GemvT<u8>),
}

impl Deferred {
    /// Of a GEMM, which [`multiply`] could be given with accumulators.
    #[inline(always)]
    pub(in crate::kernel::cpu) fn new<L: Level, U: Any>(gemm: GemvT<U::Mem>) -> Self {
        /// # Safety
        /// As for [`multiply`], of what B was before it was erased.
        unsafe fn erased<L: Level, U: Any>(x: &GemvT<u8>) {
            // SAFETY: by the contract above.
            unsafe { multiply::<L, U>(&with_rhs(*x, x.rhs.cast())) }
        }
        Deferred { gemm: with_rhs(gemm, gemm.rhs.cast()), multiply: erased::<L, U> }
    }

    #[inline(always)]
    pub(in crate::kernel::cpu) fn extents(&self) -> [usize; 2] {
        [self.gemm.rows, self.gemm.columns]
    }

    /// Computes the first `rows` rows of it.
    ///
    /// # Safety
    /// As for [`multiply`], where `x` are the accumulators, with which others may be given to begin with.
    #[inline(never)]
    pub(in crate::kernel::cpu) unsafe fn run(&self, rows: usize, x: &Accumulators<f32>) {
        let [all, columns] = self.extents();
        let rows = Ord::min(rows, all);
        // SAFETY: by the contract above.
        unsafe {
            let mut i = 0;
            while i < rows && x.from != x.to.cast_const() {
                let to = x.to.add(i * x.to_row);
                match x.from.is_null() {
                    true => to.write_bytes(0, columns),
                    false => to.copy_from(x.from.add(i * x.from_row), columns),
                }
                i += 1;
            }
            (self.multiply)(&GemvT { rows, acc: x.to, acc_row: x.to_row, ..self.gemm });
        }
    }
}

/// The same GEMM by another right operand.
#[inline(always)]
fn with_rhs<E, F>(x: GemvT<E>, rhs: *const F) -> GemvT<F> {
    let GemvT { depth, rows, columns, lhs, lhs_row, rhs_row, acc, acc_row, .. } = x;
    GemvT { depth, rows, columns, lhs, lhs_row, rhs, rhs_row, acc, acc_row }
}

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

#[cfg(target_arch = "x86_64")]
macro_rules! gemv_t {
    ($name:ident $block:ident $features:literal $lanes:literal $columns:literal $zero:ident $load:ident $fma:ident $accumulators:ident) => {
        /// # Safety
        /// As for [`multiply`].
        #[target_feature(enable = $features)]
        unsafe fn $name<L: Level, U: Any>(x: &GemvT<U::Mem>) {
            let mut k = 0;
            while k < x.depth {
                let depth = Ord::min(x.depth - k, RESIDENT / Ord::max(x.rows, 1) / STEP * STEP);
                // SAFETY: these steps are inside of both operands.
                let part = unsafe { GemvT { depth, lhs: x.lhs.add(k), rhs: x.rhs.add(k), ..*x } };
                let mut j = 0;
                while j < x.columns {
                    let mut i = 0;
                    // Parts of fewer rows read as many columns, and have accumulators to spare.
                    let width = if x.rows >= 4 { $columns } else { COLUMNS };
                    // SAFETY: the rows and columns are the GEMM's.
                    unsafe {
                        while i + 4 <= x.rows {
                            $block::<L, U, 4, $columns>(&part, [i, j]);
                            i += 4;
                        }
                        while i < x.rows {
                            match (x.rows - i >= 2, width == COLUMNS) {
                                (true, true) => $block::<L, U, 2, COLUMNS>(&part, [i, j]),
                                (true, false) => $block::<L, U, 2, $columns>(&part, [i, j]),
                                (false, true) => $block::<L, U, 1, COLUMNS>(&part, [i, j]),
                                (false, false) => $block::<L, U, 1, $columns>(&part, [i, j]),
                            }
                            i += 2;
                        }
                    }
                    j += width;
                }
                k += depth;
            }
        }

        /// `M` rows by `C` columns, from row and column `at` on, over all of K.
        ///
        /// # Safety
        /// As for [`multiply`]; the first row and column must be inside.
        #[inline(always)]
        unsafe fn $block<L: Level, U: Any, const M: usize, const C: usize>(x: &GemvT<U::Mem>, [i, j]: [usize; 2]) {
            let group = x.rhs_row.wrapping_mul((C * size_of::<U::Mem>()) as isize).max(1);
            let prefetch = (PREFETCH_BYTES + group - 1) / group * group;
            // SAFETY: by the contract above. Past the last column it is read again, and its sum dropped.
            unsafe {
                let lhs = x.lhs.offset(i as isize * x.lhs_row);
                let mut rhs = [x.rhs; C];
                let mut c = 0;
                while c < C {
                    rhs[c] = x.rhs.offset(Ord::min(j + c, x.columns - 1) as isize * x.rhs_row);
                    c += 1;
                }
                let mut acc = [[$zero(); COLUMNS]; 4];
                let mut k = 0;
                // Apart, so that whole steps have nothing to check.
                macro_rules! step {
                    (|$p:ident| $load_step:expr) => {{
                        let mut a = [[0.0; STEP]; M];
                        let mut r = 0;
                        while r < M {
                            let $p = lhs.offset(r as isize * x.lhs_row).add(k).cast::<[f32; STEP]>();
                            a[r] = $load_step;
                            r += 1;
                        }
                        let mut c = 0;
                        while c < C {
                            let $p = rhs[c].add(k).cast::<[U::Mem; STEP]>();
                            if k * size_of::<U::Mem>() % LINE == 0 {
                                _mm_prefetch::<_MM_HINT_T0>($p.cast::<i8>().wrapping_offset(prefetch));
                            }
                            let b = widen::<L, U, STEP>(&$load_step);
                            let b: *const f32 = b.as_ptr().cast();
                            let mut part = 0;
                            while part < STEP {
                                let b = $load(b.add(part));
                                let mut r = 0;
                                while r < M {
                                    acc[r][c] = $fma($load(a[r].as_ptr().add(part)), b, acc[r][c]);
                                    r += 1;
                                }
                                part += $lanes;
                            }
                            c += 1;
                        }
                    }};
                }
                while k + STEP <= x.depth {
                    step!(|p| p.read_unaligned());
                    k += STEP;
                }
                if k < x.depth {
                    let rest = x.depth - k;
                    step!(|p| load_part::<L, _, STEP>(p.cast(), rest));
                }
                let accumulators: [[f32; COLUMNS]; 4] = $accumulators(acc);
                let mut r = 0;
                while r < M {
                    let to = x.acc.add((i + r) * x.acc_row + j);
                    let mut c = 0;
                    while c < Ord::min(C, x.columns - j) {
                        *to.add(c) += accumulators[r][c];
                        c += 1;
                    }
                    r += 1;
                }
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
gemv_t!(gemv_t_v4 block_v4 "avx512f,avx512bw,avx512dq,avx512vl,fma,f16c" 16 4
    _mm512_setzero_ps _mm512_loadu_ps _mm512_fmadd_ps horizontal_sums_v4);
#[cfg(target_arch = "x86_64")]
gemv_t!(gemv_t_v3 block_v3 "avx2,fma,f16c" 8 3 _mm256_setzero_ps _mm256_loadu_ps _mm256_fmadd_ps horizontal_sums_v3);

/// The horizontal sum of each vector.
///
/// # Safety
/// The machine must have AVX-512.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn horizontal_sums_v4(v: [[__m512; COLUMNS]; 4]) -> [[f32; COLUMNS]; 4] {
    // SAFETY: by the contract above; the result is as large as a vector.
    unsafe {
        // Each quarter of a vector now holds a part of each column's sum.
        let (p, q, r, s) = (quarters(v[0]), quarters(v[1]), quarters(v[2]), quarters(v[3]));
        let pq = _mm512_add_ps(_mm512_shuffle_f32x4::<0x88>(p, q), _mm512_shuffle_f32x4::<0xdd>(p, q));
        let rs = _mm512_add_ps(_mm512_shuffle_f32x4::<0x88>(r, s), _mm512_shuffle_f32x4::<0xdd>(r, s));
        let all = _mm512_add_ps(_mm512_shuffle_f32x4::<0x88>(pq, rs), _mm512_shuffle_f32x4::<0xdd>(pq, rs));
        std::mem::transmute(all)
    }
}

/// The partial sums of four vectors over every fourth lane, side by side in each quarter.
///
/// # Safety
/// The machine must have AVX-512.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn quarters([a, b, c, d]: [__m512; COLUMNS]) -> __m512 {
    // SAFETY: by the contract above.
    unsafe {
        let ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
        let cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
        let (ab, cd) = (_mm512_castps_pd(ab), _mm512_castps_pd(cd));
        let (low, high) = (_mm512_unpacklo_pd(ab, cd), _mm512_unpackhi_pd(ab, cd));
        _mm512_add_ps(_mm512_castpd_ps(low), _mm512_castpd_ps(high))
    }
}

/// The horizontal sum of each vector.
///
/// # Safety
/// The machine must have AVX2.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn horizontal_sums_v3(v: [[__m256; COLUMNS]; 4]) -> [[f32; COLUMNS]; 4] {
    // SAFETY: by the contract above; a row is as large as half a vector.
    unsafe {
        let mut accumulators = [[0.0; COLUMNS]; 4];
        let mut r = 0;
        while r < 4 {
            let [a, b, c, d] = v[r];
            let all = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
            let row = _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps::<1>(all));
            _mm_storeu_ps(accumulators[r].as_mut_ptr(), row);
            r += 1;
        }
        accumulators
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;
    use crate::kernel::cpu::{V3, V4};

    fn check<L: Level>() {
        for (rows, columns, depth) in
            [(1, 1, 1), (2, 3, 15), (3, 4, 16), (4, 5, 17), (5, 9, 128), (7, 10, 1100), (8, 33, 70)]
        {
            let (lhs_row, rhs_row, acc_row) = (depth + 3, depth + 1, columns + 2);
            let lhs: Vec<f32> = (0..rows * lhs_row).map(|i| (i * 7 % 11) as f32 - 5.0).collect();
            let rhs: Vec<f32> = (0..columns * rhs_row).map(|i| (i * 5 % 13) as f32 - 6.0).collect();
            let mut acc: Vec<f32> = (0..rows * acc_row).map(|i| i as f32).collect();
            let want: Vec<f32> = (0..rows * acc_row)
                .map(|i| {
                    let (r, c) = (i / acc_row, i % acc_row);
                    let gemm = |k: usize| lhs[r * lhs_row + k] * rhs[c * rhs_row + k];
                    i as f32 + if c < columns { (0..depth).map(gemm).sum() } else { 0.0 }
                })
                .collect();
            let gemm = GemvT {
                depth,
                rows,
                columns,
                lhs: lhs.as_ptr(),
                lhs_row: lhs_row as isize,
                rhs: rhs.as_ptr(),
                rhs_row: rhs_row as isize,
                acc: acc.as_mut_ptr(),
                acc_row,
            };
            // SAFETY: the vectors have the elements described, and the caller asked for the level.
            unsafe { multiply::<L, f32>(&gemm) };
            assert_eq!(acc, want, "{rows} x {columns} x {depth}");
        }
    }

    #[test]
    fn products_are_those_of_their_definition() {
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c") {
            check::<V3>();
        }
        if is_x86_feature_detected!("avx512bw") && is_x86_feature_detected!("avx512vl") {
            check::<V4>();
        }
    }
}
