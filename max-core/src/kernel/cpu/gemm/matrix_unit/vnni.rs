//! VNNI microkernels: GEMM of VNNI-packed blocks by AVX-512's dot-product instructions `vdpbf16ps` and `vpdpbusd`.
//!
//! They serve machines without AMX, on the same packed tiles: a row of a tile register is one vector of B, and four
//! bytes of A are broadcast.

use std::arch::x86_64::*;

use super::amx::{Gemm, TilePtr};
use crate::kernel::cpu::pack::operand_types::{LINE, OperandTypes};
use crate::kernel::cpu_features::MatrixUnit;

/// Rows that are multiplied together.
pub(super) const GROUP: usize = MatrixUnit::Vnni.row_group();

/// Sums of a group of rows by `Q` vectors of columns.
pub(super) type Sums<const Q: usize> = [[__m512i; Q]; GROUP];

/// For operands of some types what adds the products of a group of rows by one or two vectors of columns, and what computes a block of 32
/// rows and columns by it.
///
/// `vpdpbusd` multiplies unsigned by signed bytes. Where both are of one kind, the left ones are taken to the other by
/// 128, and the right ones times 128 are taken from the accumulators again, which wrap around: so these are exact.
macro_rules! vnni_kernels {
    ($($name:ident $products:ident $features:literal $multiply:expr, $repeat:expr, $also:expr;)*) => { $(
        /// # Safety
        /// The GEMM must have the rows and columns from `[i, j]` on; the machine must have the features.
        #[inline]
        #[target_feature(enable = $features)]
        pub(super) unsafe fn $products<const Q: usize>(x: &Gemm, [i, j]: [usize; 2], mut acc: Sums<Q>) -> Sums<Q> {
            // SAFETY: by the contract above; vectors of words are as good as any.
            unsafe {
                let (rows, columns) = (x.lhs.at(i), x.rhs.add(j / 16 * x.stride));
                let mut offset = [_mm512_setzero_si512(); Q];
                let mut k = 0;
                while k < x.words {
                    let mut b = [_mm512_setzero_si512(); Q];
                    let mut q = 0;
                    while q < Q {
                        b[q] = _mm512_loadu_si512(columns.add(q * x.stride + k * LINE).cast());
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
                    while q < Q {
                        acc[r][q] = _mm512_sub_epi32(acc[r][q], offset[q]);
                        q += 1;
                    }
                    r += 1;
                }
                acc
            }
        }

        /// # Safety
        /// As for [`amx::multiply`](super::amx::multiply); the machine must have the features.
        #[target_feature(enable = $features)]
        unsafe fn $name<const Q: usize>(
            x: &Gemm,
            [i, j]: [usize; 2],
            (from, from_row): TilePtr<*const u32>,
            (to, to_row): TilePtr<*mut u32>,
        ) {
            let mut first = 0;
            while first < 32 && i + first < x.rows {
                // SAFETY: by the contract above.
                unsafe {
                    let from = if from.is_null() { from } else { from.add(first * from_row) };
                    let acc = $products::<Q>(x, [i + first, j], sums::<Q>((from, from_row)));
                    let mut r = 0;
                    while r < GROUP {
                        let mut q = 0;
                        while q < 2 {
                            // What is added to the rest of a block are zeros.
                            let sum = if q < Q { acc[r][q] } else { vector(from, r * from_row + 16 * q) };
                            _mm512_storeu_si512(to.add((first + r) * to_row + 16 * q).cast(), sum);
                            q += 1;
                        }
                        r += 1;
                    }
                }
                first += GROUP;
            }
        }
    )* };
}

/// What products are added to; zeros for null.
///
/// # Safety
/// It must be readable.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn sums<const Q: usize>((from, row): TilePtr<*const u32>) -> Sums<Q> {
    let mut sums = [[_mm512_setzero_si512(); Q]; GROUP];
    let mut r = 0;
    while r < GROUP {
        let mut q = 0;
        while q < Q {
            // SAFETY: by the contract above.
            sums[r][q] = unsafe { vector(from, r * row + 16 * q) };
            q += 1;
        }
        r += 1;
    }
    sums
}

/// A vector of it.
///
/// # Safety
/// As there.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn vector(from: *const u32, at: usize) -> __m512i {
    // SAFETY: by the contract above.
    if from.is_null() { _mm512_setzero_si512() } else { unsafe { _mm512_loadu_si512(from.add(at).cast()) } }
}

vnni_kernels! {
    vnni_bf16 bf16_products "avx512f,avx512bw,avx512vl,avx512bf16"
        |c, a: __m512i, b: __m512i| {
            let (a, b) = (std::mem::transmute::<__m512i, __m512bh>(a), std::mem::transmute::<__m512i, __m512bh>(b));
            _mm512_castps_si512(_mm512_dpbf16_ps(_mm512_castsi512_ps(c), a, b))
        },
        |a| _mm512_set1_epi32(a),
        |offset, _| offset;
    vnni_i8_i8 i8_i8_products "avx512f,avx512bw,avx512vl,avx512vnni"
        |c, a, b| _mm512_dpbusd_epi32(c, a, b),
        |a| _mm512_set1_epi32(a ^ 0x8080_8080_u32 as i32),
        |offset, b| _mm512_dpbusd_epi32(offset, _mm512_set1_epi8(-128), b);
    vnni_i8_u8 i8_u8_products "avx512f,avx512bw,avx512vl,avx512vnni"
        |c, a, b| _mm512_dpbusd_epi32(c, b, a),
        |a| _mm512_set1_epi32(a),
        |offset, _| offset;
    vnni_u8_i8 u8_i8_products "avx512f,avx512bw,avx512vl,avx512vnni"
        |c, a, b| _mm512_dpbusd_epi32(c, a, b),
        |a| _mm512_set1_epi32(a),
        |offset, _| offset;
    vnni_u8_u8 u8_u8_products "avx512f,avx512bw,avx512vl,avx512vnni"
        |c, a, b| _mm512_dpbusd_epi32(c, b, a),
        |a| _mm512_set1_epi32(a ^ 0x8080_8080_u32 as i32),
        |offset, b| _mm512_dpbusd_epi32(offset, b, _mm512_set1_epi8(-128));
}

/// Computes the block of 32 rows and columns at `at`.
///
/// # Safety
/// As for [`amx::multiply`](super::amx::multiply); the machine must have the unit.
pub(super) unsafe fn block(x: &Gemm, at: [usize; 2], from: TilePtr<*const u32>, to: TilePtr<*mut u32>) {
    macro_rules! run {
        ($kernel:ident) => {
            // SAFETY: by the contract above.
            unsafe {
                if x.columns > at[1] + 16 { $kernel::<2>(x, at, from, to) } else { $kernel::<1>(x, at, from, to) }
            }
        };
    }
    match x.types {
        OperandTypes::Bf16 => run!(vnni_bf16),
        OperandTypes::Int8(true, true) => run!(vnni_i8_i8),
        OperandTypes::Int8(true, false) => run!(vnni_i8_u8),
        OperandTypes::Int8(false, true) => run!(vnni_u8_i8),
        OperandTypes::Int8(false, false) => run!(vnni_u8_u8),
        // That is for AMX alone.
        OperandTypes::SplitF32 => {}
    }
}
