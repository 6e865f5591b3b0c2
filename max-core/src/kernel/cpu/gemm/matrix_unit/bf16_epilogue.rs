//! GEMM of VNNI-packed blocks of `bf16` whose result is `bf16` too: sums are rounded in the registers in which `vdpbf16ps` has added
//! them, and stored under masks where a block is not whole.
//!
//! Where K is short, a result that is written in `f32` first and rounded later takes as long as the products. All of K is added at once:
//! 8 rows by 32 columns read two lines of the packed tile for 16 products, which the L2 cache delivers.

use std::arch::x86_64::*;

use super::amx::Gemm;
use super::vnni::{self, GROUP};
use crate::kernel::cpu::gemm::microkernel::Accumulators;
use crate::kernel::cpu::isa::unrolled;
use crate::kernel::cpu::pack::operand_types::LINE;

/// Rows by which columns pass: lines of the result that two blocks of columns share stay in the L1 cache.
const ROWS: usize = 128;

/// Where rows of the result go.
#[derive(Clone, Copy)]
pub(in crate::kernel::cpu) struct Rounded {
    pub to: *mut u16,
    /// From a row to the next.
    pub to_row: isize,
    /// Rows and columns that are written.
    pub extents: [usize; 2],
    /// Whether whole lines are written by non-temporal stores.
    pub stream: bool,
}

/// `to = from + lhs · rhs`, rounded.
///
/// # Safety
/// As for [`amx::multiply`](super::amx::multiply), with accumulators that are read alone and a result of these extents, which are not
/// more than the GEMM's; the machine must have AVX-512 with `bf16`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
pub(in crate::kernel::cpu) unsafe fn multiply(x: &Gemm, from: &Accumulators<u32>, result: &Rounded) {
    let [rows, columns] = result.extents;
    for first in (0..rows).step_by(ROWS) {
        for j in (0..columns).step_by(32) {
            for i in (first..Ord::min(first + ROWS, rows)).step_by(GROUP) {
                // SAFETY: by the contract above; of columns that are not there, none is computed that is not packed.
                unsafe {
                    if columns - j > 16 {
                        group::<2>(x, from, result, [i, j]);
                    } else {
                        group::<1>(x, from, result, [i, j]);
                    }
                }
            }
        }
    }
}

/// [`GROUP`] rows by `Q` vectors of columns, at `[i, j]`.
///
/// # Safety
/// As for [`multiply`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
unsafe fn group<const Q: usize>(x: &Gemm, from: &Accumulators<u32>, result: &Rounded, [i, j]: [usize; 2]) {
    // SAFETY: by the contract above.
    unsafe {
        let first = if from.from.is_null() { from.from } else { from.from.add(i * from.from_row + j) };
        let acc = vnni::bf16_products::<Q>(x, [i, j], vnni::sums((first, from.from_row)));
        let [count, there] = [result.extents[0] - i, result.extents[1] - j];
        let mask = u32::MAX >> (32 - Ord::min(there, 32));
        let to = result.to.wrapping_offset(i as isize * result.to_row).wrapping_add(j);
        // In the source: an array that is indexed at run time lies in memory.
        unrolled!(
            r in GROUP,
            8,
            if r < count {
                let to = to.wrapping_offset(r as isize * result.to_row);
                let row = rounded(acc[r]);
                if there < 32 {
                    _mm512_mask_storeu_epi16(to.cast(), mask, row);
                } else if result.stream && to.addr().is_multiple_of(LINE) {
                    _mm512_stream_si512(to.cast(), row);
                } else {
                    _mm512_storeu_si512(to.cast(), row);
                }
            }
        );
    }
}

/// Up to 32 numbers, rounded to `bf16`: by the instruction for it, or, where there are denormal ones, which it takes for zeros, as
/// integers.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512bf16")]
fn rounded<const Q: usize>(row: [__m512i; Q]) -> __m512i {
    const DENORMAL: i32 = 0x20;
    let (low, high) = (_mm512_castsi512_ps(row[0]), _mm512_castsi512_ps(row[Q - 1]));
    if _mm512_fpclass_ps_mask::<DENORMAL>(low) | _mm512_fpclass_ps_mask::<DENORMAL>(high) == 0 {
        // SAFETY: both are 64 bytes.
        return unsafe { std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(high, low)) };
    }
    let (low, high) = (rounded_bits(low), rounded_bits(high));
    _mm512_inserti64x4::<1>(_mm512_castsi256_si512(_mm512_cvtepi32_epi16(low)), _mm512_cvtepi32_epi16(high))
}

/// The bits of each number, rounded to `bf16`, to even where it is halfway; NaN is quiet.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn rounded_bits(v: __m512) -> __m512i {
    const NAN: i32 = 0x81;
    let (bits, upper) = (_mm512_castps_si512(v), _mm512_srli_epi32::<16>(_mm512_castps_si512(v)));
    let half = _mm512_add_epi32(_mm512_set1_epi32(0x7fff), _mm512_and_si512(upper, _mm512_set1_epi32(1)));
    let near = _mm512_srli_epi32::<16>(_mm512_add_epi32(bits, half));
    let quiet = _mm512_or_si512(upper, _mm512_set1_epi32(0x40));
    _mm512_mask_mov_epi32(near, _mm512_fpclass_ps_mask::<NAN>(v), quiet)
}

#[cfg(test)]
mod tests {
    use super::super::amx::{self, LhsTiles};
    use super::super::vnni_packing::{pack_columns, pack_rows};
    use super::*;
    use crate::kernel::cpu::pack::Source;
    use crate::kernel::cpu::pack::operand_types::OperandTypes;
    use crate::kernel::cpu_features::MatrixUnit;
    use crate::kernel::lang::Any;

    /// Results are those of sums that are written, and rounded then; of what is beside the result nothing is written.
    #[test]
    fn results_are_rounded_sums() {
        if !is_x86_feature_detected!("avx512bf16") || !is_x86_feature_detected!("avx512dq") {
            return;
        }
        let mut state = 7_u32;
        for [m, k, n] in [[1, 1, 1], [8, 32, 32], [13, 8, 16], [40, 70, 17], [130, 16, 100], [33, 1100, 68]] {
            let mut values = |count: usize| -> Vec<u16> {
                let next = |_| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    // Of either sign, from 0.5 to 2, and some denormal ones.
                    if state & 0xf00 == 0 { 3 } else { (state >> 16 & 0x807f | 0x3f00 | state & 0x80) as u16 }
                };
                (0..count).map(next).collect()
            };
            let (a, b) = (values(m * k), values(k * n));
            let [high, wide, deep] = [m, n, k].map(|extent| extent.next_multiple_of(32));
            let (mut lhs, mut rhs) = (vec![0; high * deep], vec![0; wide * deep]);
            let (mut sums, mut rounded, to_row) = (vec![1_f32; high * wide], vec![9_u16; m * (n + 3)], n + 3);
            let (types, unit) = (OperandTypes::Bf16, MatrixUnit::Vnni);
            let stride = types.group_bytes(deep);
            // SAFETY: there is room for whole blocks of both operands and of the sums, and the machine has the unit.
            unsafe {
                let from = Source { ptr: a.as_ptr(), strides: [k as i64, 1], extents: [m, k] };
                pack_rows::<u16, 32>(&from, [high, deep], 0..k, lhs.as_mut_ptr());
                let from = Source { ptr: b.as_ptr(), strides: [1, n as i64], extents: [n, k] };
                pack_columns::<u16, 32>(&from, [wide, deep], 0..k, rhs.as_mut_ptr());
                let (rhs, lhs) = (rhs.as_ptr().cast(), LhsTiles::packed(types, lhs.as_ptr().cast(), deep));
                let x = Gemm { types, unit, rows: m, columns: n, words: types.words(k), lhs, rhs, stride };
                let to = sums.as_mut_ptr().cast::<u32>();
                let mut accumulators = Accumulators { from: to.cast_const(), to, from_row: wide, to_row: wide };
                let result =
                    Rounded { to: rounded.as_mut_ptr(), to_row: to_row as isize, extents: [m, n], stream: k == 32 };
                multiply(&x, &accumulators, &result);
                if k == 8 {
                    accumulators.from = std::ptr::null();
                    multiply(&x, &accumulators, &result);
                }
                amx::multiply(&x, &accumulators);
            }
            for (i, row) in rounded.chunks(to_row).enumerate() {
                let sums = &sums[i * wide..][..n];
                let expected: Vec<u16> = sums.iter().map(|sum| <crate::dtype::bf16 as Any>::narrow(*sum)).collect();
                assert_eq!((&row[..n], &row[n..]), (&expected[..], &[9; 3][..]), "row {i} of {m}x{k}x{n}");
            }
        }
    }

    #[test]
    fn rows_are_rounded_as_elements_are() {
        if !is_x86_feature_detected!("avx512bf16") || !is_x86_feature_detected!("avx512dq") {
            return;
        }
        let (mut bits, mut denormal) = (1_u32, 0);
        for _ in 0..200_000 {
            let row: [f32; 32] = std::array::from_fn(|_| {
                bits = bits.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                // Halves between two results, infinities and NaN among them.
                f32::from_bits(if bits & 0x300 == 0 { bits & 0xffff_8000 } else { bits })
            });
            // SAFETY: the machine has these features; a row is two vectors.
            let found: [u16; 32] = unsafe {
                let [low, high] =
                    [_mm512_loadu_si512(row.as_ptr().cast()), _mm512_loadu_si512(row.as_ptr().add(16).cast())];
                std::mem::transmute(rounded([low, high]))
            };
            denormal += usize::from(row.iter().any(|v| v.is_subnormal()));
            assert_eq!(found, row.map(<crate::dtype::bf16 as Any>::narrow));
        }
        assert!(denormal > 1000);
    }
}
