//! VNNI microkernels: GEMM of VNNI-packed blocks by AVX-512's dot-product instructions `vdpbf16ps` and `vpdpbusd`.
//!
//! They serve machines without AMX, on the same packed tiles: a row of a tile register is one vector of B, and four
//! bytes of A are broadcast.

use super::amx::{Gemm, TilePtr};
use crate::kernel::cpu::pack::operand_types::{LINE, OperandTypes};
use crate::kernel::cpu_features::MatrixUnit;

/// Products of `Q` vectors of columns: of two, or of the first alone where those of the second are zeros.
///
/// `vpdpbusd` multiplies unsigned by signed bytes. Where both are of one kind, the left ones are taken to the other by
/// 128, and the right ones times 128 are taken from the accumulators again, which wrap around: so these are exact.
macro_rules! vnni_kernels {
    ($($name:ident $features:literal $multiply:expr, $repeat:expr, $also:expr;)*) => { $(
        /// # Safety
        /// As for [`amx::multiply`](super::amx::multiply); the machine must have the features.
        #[target_feature(enable = $features)]
        unsafe fn $name<const Q: usize>(
            x: &Gemm,
            [i, j]: [usize; 2],
            (from, from_row): TilePtr<*const u32>,
            (to, to_row): TilePtr<*mut u32>,
        ) {
            use std::arch::x86_64::*;
            const GROUP: usize = MatrixUnit::Vnni.row_group();
            // SAFETY: by the contract above; vectors of words are as good as any.
            unsafe {
                let columns = x.rhs.add(j / 16 * x.stride);
                let mut first = 0;
                while first < 32 && i + first < x.rows {
                    let rows = x.lhs.at(i + first);
                    let mut acc = [[_mm512_setzero_si512(); 2]; GROUP];
                    let mut offset = [_mm512_setzero_si512(); Q];
                    let mut r = 0;
                    while !from.is_null() && r < GROUP {
                        let from = from.add((first + r) * from_row);
                        acc[r] = [_mm512_loadu_si512(from.cast()), _mm512_loadu_si512(from.add(16).cast())];
                        r += 1;
                    }
                    let mut k = 0;
                    while k < x.words {
                        let at = k * LINE;
                        let mut b = [_mm512_setzero_si512(); Q];
                        let mut q = 0;
                        while q < Q {
                            b[q] = _mm512_loadu_si512(columns.add(q * x.stride + at).cast());
                            offset[q] = $also(offset[q], b[q]);
                            q += 1;
                        }
                        let mut r = 0;
                        while r < GROUP {
                            let word = rows.add(k / 16 * x.lhs.line + r * x.lhs.row + k % 16 * 4).cast::<i32>().read_unaligned();
                            let a = $repeat(word);
                            let mut q = 0;
                            while q < Q {
                                acc[r][q] = $multiply(acc[r][q], a, b[q]);
                                q += 1;
                            }
                            r += 1;
                        }
                        k += 1;
                    }
                    let mut r = 0;
                    while r < GROUP {
                        let mut q = 0;
                        while q < 2 {
                            let sum = if q < Q { _mm512_sub_epi32(acc[r][q], offset[q]) } else { acc[r][q] };
                            _mm512_storeu_si512(to.add((first + r) * to_row + 16 * q).cast(), sum);
                            q += 1;
                        }
                        r += 1;
                    }
                    first += GROUP;
                }
            }
        }
    )* };
}
vnni_kernels! {
    vnni_bf16 "avx512f,avx512bw,avx512vl,avx512bf16"
        |c, a: __m512i, b: __m512i| {
            let (a, b) = (std::mem::transmute::<__m512i, __m512bh>(a), std::mem::transmute::<__m512i, __m512bh>(b));
            _mm512_castps_si512(_mm512_dpbf16_ps(_mm512_castsi512_ps(c), a, b))
        },
        |a| _mm512_set1_epi32(a),
        |offset, _| offset;
    vnni_i8_i8 "avx512f,avx512bw,avx512vl,avx512vnni"
        |c, a, b| _mm512_dpbusd_epi32(c, a, b),
        |a| _mm512_set1_epi32(a ^ 0x8080_8080_u32 as i32),
        |offset, b| _mm512_dpbusd_epi32(offset, _mm512_set1_epi8(-128), b);
    vnni_i8_u8 "avx512f,avx512bw,avx512vl,avx512vnni"
        |c, a, b| _mm512_dpbusd_epi32(c, b, a),
        |a| _mm512_set1_epi32(a),
        |offset, _| offset;
    vnni_u8_i8 "avx512f,avx512bw,avx512vl,avx512vnni"
        |c, a, b| _mm512_dpbusd_epi32(c, a, b),
        |a| _mm512_set1_epi32(a),
        |offset, _| offset;
    vnni_u8_u8 "avx512f,avx512bw,avx512vl,avx512vnni"
        |c, a, b| _mm512_dpbusd_epi32(c, b, a),
        |a| _mm512_set1_epi32(a ^ 0x8080_8080_u32 as i32),
        |offset, b| _mm512_dpbusd_epi32(offset, b, _mm512_set1_epi8(-128));
}

/// Computes the block of 32 rows and columns at `at`, of operands of these types.
///
/// # Safety
/// As for [`amx::multiply`](super::amx::multiply); the machine must have the unit.
pub(super) unsafe fn block(
    x: &Gemm,
    types: OperandTypes,
    at: [usize; 2],
    from: TilePtr<*const u32>,
    to: TilePtr<*mut u32>,
) {
    // SAFETY: by the contract above.
    unsafe {
        if x.there > at[1] + 16 {
            vectors::<2>(x, types, at, from, to);
        } else {
            vectors::<1>(x, types, at, from, to);
        }
    }
}

/// The same with so many vectors of columns that are not zeros.
///
/// # Safety
/// As there.
unsafe fn vectors<const Q: usize>(
    x: &Gemm,
    types: OperandTypes,
    at: [usize; 2],
    from: TilePtr<*const u32>,
    to: TilePtr<*mut u32>,
) {
    // SAFETY: as there.
    unsafe {
        match types {
            OperandTypes::Bf16 => vnni_bf16::<Q>(x, at, from, to),
            OperandTypes::Int8(true, true) => vnni_i8_i8::<Q>(x, at, from, to),
            OperandTypes::Int8(true, false) => vnni_i8_u8::<Q>(x, at, from, to),
            OperandTypes::Int8(false, true) => vnni_u8_i8::<Q>(x, at, from, to),
            OperandTypes::Int8(false, false) => vnni_u8_u8::<Q>(x, at, from, to),
            // That is for AMX alone.
            OperandTypes::SplitF32 => {}
        }
    }
}
