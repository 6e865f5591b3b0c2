//! The converting pack of 8-bit floats to `bf16`, which has all of their values.
//!
//! It exists because AMX and VNNI multiply `bf16`. AVX-512 looks up 32 codes at once: a table of 256 `bf16` is eight
//! registers, and `vpermi2w` searches two of them.

use std::arch::x86_64::*;
use std::ops::Range;

use super::super::gemm::matrix_unit::vnni_packing;
use super::super::gemm::matrix_unit::vnni_packing::PackSource;
use super::Source;
use crate::dtype::DType;
use crate::dtype::float8::bf16_of;

/// Elements that are looked up at once: those of a line of K.
const LANES: usize = 32;

/// An operand of 8-bit floats, and the `bf16` of each of their codes.
struct Codes<'a> {
    from: Source<u8>,
    table: &'a [u16; 256],
}

impl PackSource<u16, LANES> for Codes<'_> {
    type Stored = u8;

    #[inline(always)]
    fn source(&self) -> &Source<u8> {
        &self.from
    }

    #[inline(always)]
    unsafe fn strip(&self, at: [usize; 2], axis: usize) -> [u16; LANES] {
        // What is outside is the code of 0.
        // SAFETY: by the contract; vnni_packing has AVX-512.
        unsafe { look_up(self.table, vnni_packing::strip::<u8, LANES>(&self.from, at, axis)) }
    }
}

/// The elements of a table at so many indices.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn look_up(table: &[u16; 256], codes: [u8; LANES]) -> [u16; LANES] {
    // SAFETY: the vectors are as long as the arrays.
    unsafe {
        let codes = _mm512_cvtepu8_epi16(_mm256_loadu_si256(codes.as_ptr().cast()));
        let part = |i: usize| _mm512_loadu_si512(table.as_ptr().add(i * LANES).cast());
        // The lower six bits find an element among 64, the others one of these.
        let among = |i: usize| _mm512_permutex2var_epi16(part(2 * i), codes, part(2 * i + 1));
        let (second, upper) = (_mm512_set1_epi16(1 << 6), _mm512_set1_epi16(1 << 7));
        let (second, upper) = (_mm512_test_epi16_mask(codes, second), _mm512_test_epi16_mask(codes, upper));
        let below = _mm512_mask_blend_epi16(second, among(0), among(1));
        let above = _mm512_mask_blend_epi16(second, among(2), among(3));
        std::mem::transmute(_mm512_mask_blend_epi16(upper, below, above))
    }
}

/// Packs rows of an operand of 8-bit floats, or its columns, as [`vnni_packing`] packs those of `bf16`. Whether it was one.
///
/// # Safety
/// As for [`vnni_packing::pack_rows`] and [`vnni_packing::pack_columns`], of an operand of that dtype if that is an 8-bit float.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(in crate::kernel::cpu) unsafe fn pack(
    dtype: DType,
    from: Source<u8>,
    columns: bool,
    tile: [usize; 2],
    steps: Range<usize>,
    out: *mut u16,
) -> bool {
    let Some(table) = bf16_of(dtype) else { return false };
    let from = Codes { from, table };
    // SAFETY: by the contract above.
    unsafe {
        match columns {
            true => vnni_packing::pack_columns::<u16, LANES>(&from, tile, steps, out),
            false => vnni_packing::pack_rows::<u16, LANES>(&from, tile, steps, out),
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_of_every_format_is_found() {
        if !is_x86_feature_detected!("avx512bw") || !is_x86_feature_detected!("avx512vl") {
            return;
        }
        for dtype in [DType::F8E4M3FN, DType::F8E4M3FNUZ, DType::F8E5M2, DType::F8E5M2FNUZ] {
            let table = bf16_of(dtype).expect("an 8-bit float");
            for first in (0..=255u8).step_by(LANES) {
                let codes: [u8; LANES] = std::array::from_fn(|i| first + i as u8);
                // SAFETY: the machine has AVX-512.
                let found = unsafe { look_up(table, codes) };
                assert_eq!(found, codes.map(|code| table[usize::from(code)]), "{dtype} from {first}");
            }
        }
        assert!(bf16_of(DType::BF16).is_none());
        let table = bf16_of(DType::F8E4M3FN).expect("an 8-bit float");
        assert_eq!([0x00, 0x38, 0xb9, 0x01].map(|code| table[code]), [0x0000, 0x3f80, 0xbf90, 0x3b00]);
    }
}
