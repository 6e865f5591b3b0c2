//! VNNI microkernels: GEMM of VNNI-packed blocks by AVX-512's dot-product instructions `vdpbf16ps` and `vpdpbusd`.
//!
//! They serve machines without AMX, on the same packed tiles: a row of a tile register is one vector of B, and four
//! bytes of A are broadcast.

use super::amx::{Gemm, TilePtr};
use crate::kernel::cpu::pack::operand_types::LINE;
use crate::kernel::cpu_features::MatrixUnit;

/// `vpdpbusd` multiplies unsigned by signed bytes. Where both are of one kind, the left ones are taken to the other by
/// 128, and the right ones times 128 are taken from the accumulators again, which wrap around: so these are exact.
macro_rules! vnni_kernels {
    ($($name:ident $features:literal $multiply:expr, $repeat:expr, $also:expr;)*) => { $(
        /// # Safety
        /// As for [`amx::multiply`](super::amx::multiply); the machine must have the features.
        #[target_feature(enable = $features)]
        pub(in crate::kernel::cpu) unsafe fn $name(
            x: &Gemm,
            [i, j]: [usize; 2],
            (from, from_row): TilePtr<*const u32>,
            (to, to_row): TilePtr<*mut u32>,
        ) {
            use std::arch::x86_64::*;
            const GROUP: usize = MatrixUnit::Vnni.row_group();
            // SAFETY: by the contract above; vectors of words are as good as any.
            unsafe {
                let columns = [x.rhs.add(j / 16 * x.stride), x.rhs.add((j / 16 + 1) * x.stride)];
                let mut first = 0;
                while first < 32 && i + first < x.rows {
                    let rows = x.lhs.at(i + first);
                    let mut acc = [[_mm512_setzero_si512(); 2]; GROUP];
                    let mut offset = [_mm512_setzero_si512(); 2];
                    let mut r = 0;
                    while !from.is_null() && r < GROUP {
                        let from = from.add((first + r) * from_row);
                        acc[r] = [_mm512_loadu_si512(from.cast()), _mm512_loadu_si512(from.add(16).cast())];
                        r += 1;
                    }
                    let mut k = 0;
                    while k < x.words {
                        let at = k * LINE;
                        let b = [_mm512_loadu_si512(columns[0].add(at).cast()), _mm512_loadu_si512(columns[1].add(at).cast())];
                        offset = [$also(offset[0], b[0]), $also(offset[1], b[1])];
                        let mut r = 0;
                        while r < GROUP {
                            let word = rows.add(k / 16 * x.lhs.line + r * x.lhs.row + k % 16 * 4).cast::<i32>().read_unaligned();
                            let a = $repeat(word);
                            acc[r] = [$multiply(acc[r][0], a, b[0]), $multiply(acc[r][1], a, b[1])];
                            r += 1;
                        }
                        k += 1;
                    }
                    let mut r = 0;
                    while r < GROUP {
                        let mut q = 0;
                        while q < 2 {
                            let sum = _mm512_sub_epi32(acc[r][q], offset[q]);
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

/// A row of a block, rounded to `bf16` by the instruction for it; `None` where that would take denormal numbers for zeros.
///
/// # Safety
/// The machine must have AVX-512 with `bf16`, as those have that multiply by [`vnni_bf16`].
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
pub(in crate::kernel::cpu) unsafe fn narrow_bf16(row: &[f32; 32]) -> Option<[u16; 32]> {
    use std::arch::x86_64::*;
    const DENORMAL: i32 = 0x20;
    // SAFETY: by the contract; the row is of two vectors, and the result of one.
    unsafe {
        let (low, high) = (_mm512_loadu_ps(row.as_ptr()), _mm512_loadu_ps(row.as_ptr().add(16)));
        if _mm512_fpclass_ps_mask::<DENORMAL>(low) | _mm512_fpclass_ps_mask::<DENORMAL>(high) != 0 {
            return None;
        }
        let narrow: __m512i;
        // In place of the intrinsic, which would be a call: who stores blocks serves machines without the instruction, too.
        std::arch::asm!(
            "vcvtne2ps2bf16 {narrow}, {high}, {low}",
            narrow = out(zmm_reg) narrow, high = in(zmm_reg) high, low = in(zmm_reg) low,
            options(pure, nomem, nostack, preserves_flags)
        );
        Some(std::mem::transmute::<__m512i, [u16; 32]>(narrow))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::lang::Any;

    #[test]
    fn rows_are_rounded_as_elements_are() {
        if !is_x86_feature_detected!("avx512bf16") || !is_x86_feature_detected!("avx512dq") {
            return;
        }
        let mut bits = 1_u32;
        let mut denormal = 0;
        for _ in 0..200_000 {
            let row: [f32; 32] = std::array::from_fn(|_| {
                bits = bits.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                // Halves between two results, infinities and NaN among them.
                f32::from_bits(if bits & 0x300 == 0 { bits & 0xffff_8000 } else { bits })
            });
            // SAFETY: the machine has these features.
            let found = unsafe { narrow_bf16(&row) };
            assert_eq!(found.is_none(), row.iter().any(|v| v.is_subnormal()));
            denormal += usize::from(found.is_none());
            if let Some(found) = found {
                assert_eq!(found, row.map(<crate::dtype::bf16 as Any>::narrow));
            }
        }
        assert!(denormal > 1000);
    }
}
