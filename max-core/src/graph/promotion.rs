//! Dtype promotion: the dtype in which operands of several dtypes are combined.
//!
//! It is always the dtype of one of the operands, and only if it holds every value of all others. Anything else (`uint8`
//! with `int8`, `int32` with `float32`, `float16` with `bfloat16`) is an error: promotion never loses a value, and never
//! makes tensors larger than any operand was.

use crate::dtype::DType;

/// The dtype among `dtypes` that holds the values of all of them. `None` also for no dtypes.
pub(super) fn common(dtypes: impl Iterator<Item = DType> + Clone) -> Option<DType> {
    dtypes.clone().find(|candidate| dtypes.clone().all(|dtype| holds(*candidate, dtype)))
}

/// Whether every value of `inner` is a value of `outer`.
fn holds(outer: DType, inner: DType) -> bool {
    if outer == inner || inner == DType::Bool {
        return true;
    }
    let (inner_bits, outer_bits) = (bits(inner), bits(outer));
    match (kind(outer), kind(inner)) {
        (Kind::Float(digits, _), Kind::Unsigned) => inner_bits <= digits,
        (Kind::Float(digits, _), Kind::Signed) => inner_bits - 1 <= digits,
        (Kind::Float(digits, exponent), Kind::Float(inner_digits, inner_exponent)) => {
            inner_digits <= digits && inner_exponent <= exponent && inner_bits < outer_bits
        }
        (Kind::Signed, Kind::Unsigned) => inner_bits < outer_bits,
        (Kind::Signed, Kind::Signed) | (Kind::Unsigned, Kind::Unsigned) => inner_bits <= outer_bits,
        _ => false,
    }
}

enum Kind {
    Bool,
    Unsigned,
    Signed,
    /// Binary digits of the significand, and of the exponent.
    Float(u32, u32),
}

fn bits(dtype: DType) -> u32 {
    dtype.size_in_bytes() as u32 * 8
}

fn kind(dtype: DType) -> Kind {
    match dtype {
        DType::Bool => Kind::Bool,
        DType::U8 | DType::U16 | DType::U32 | DType::U64 => Kind::Unsigned,
        DType::I8 | DType::I16 | DType::I32 | DType::I64 => Kind::Signed,
        DType::F8E4M3FN | DType::F8E4M3FNUZ => Kind::Float(4, 4),
        DType::F8E5M2 | DType::F8E5M2FNUZ => Kind::Float(3, 5),
        DType::F16 => Kind::Float(11, 5),
        DType::BF16 => Kind::Float(8, 8),
        DType::F32 => Kind::Float(24, 8),
        DType::F64 => Kind::Float(53, 11),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn promotion_loses_no_value() {
        use DType::*;
        let cases = [
            (F32, F32, Some(F32)),
            (Bool, U8, Some(U8)),
            (F16, Bool, Some(F16)),
            (U8, I16, Some(I16)),
            (I8, I64, Some(I64)),
            (U8, F16, Some(F16)),
            (U8, BF16, Some(BF16)),
            (I16, F32, Some(F32)),
            (I32, F64, Some(F64)),
            (BF16, F32, Some(F32)),
            (F16, F64, Some(F64)),
            (F8E5M2, F16, Some(F16)),
            (F8E4M3FN, BF16, Some(BF16)),
            (U8, I8, None),
            (U64, I64, None),
            (I32, F32, None),
            (I16, F16, None),
            (I64, F64, None),
            (F16, BF16, None),
            (F8E4M3FN, F8E5M2, None),
            (F8E4M3FN, F8E4M3FNUZ, None),
            (I8, F8E4M3FN, None),
        ];
        for (a, b, expected) in cases {
            assert_eq!(common([a, b].into_iter()), expected, "{a} with {b}");
            assert_eq!(common([b, a].into_iter()), expected, "{b} with {a}");
        }
        assert_eq!(common([Bool, U8, F16].into_iter()), Some(F16));
        assert_eq!(common([].into_iter()), None);
    }

    /// Checked against the values themselves for all 8-bit types.
    #[test]
    fn every_8_bit_value_survives_where_promotion_says_so() {
        for inner in [DType::U8, DType::I8, DType::F8E4M3FN, DType::F8E5M2] {
            for outer in [DType::F16, DType::BF16, DType::F32, DType::I16, DType::F8E4M3FN, DType::F8E5M2] {
                let survives = |value: f64| {
                    crate::dispatch!(outer, T => {
                        let back = <T as crate::dtype::Element>::from_f64(value);
                        crate::dtype::Element::to_f64(back) == value || value.is_nan()
                    })
                };
                let all = (0..=255u8).all(|byte| {
                    survives(match inner {
                        DType::U8 => f64::from(byte),
                        DType::I8 => f64::from(byte as i8),
                        DType::F8E4M3FN => crate::dtype::Element::to_f64(crate::dtype::F8E4M3::from_bits(byte)),
                        _ => crate::dtype::Element::to_f64(crate::dtype::F8E5M2::from_bits(byte)),
                    })
                });
                assert_eq!(holds(outer, inner), all, "{outer} of {inner}");
            }
        }
    }
}
