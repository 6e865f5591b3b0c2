//! The limits of dtypes, as kernels name them: `T::MAX`, `T::EPSILON`.

use super::DType;

/// The bits, in the compute type, of a dtype's largest or smallest finite value.
#[inline(always)]
pub(crate) const fn limit_bits(dtype: DType, largest: bool) -> u64 {
    macro_rules! int {
        ($t:ident, $u:ident) => {
            (if largest { $t::MAX } else { $t::MIN }) as $u as u64
        };
    }
    macro_rules! float {
        ($max:expr) => {
            (if largest { $max } else { -$max }).to_bits() as u64
        };
    }
    match dtype {
        DType::Bool => largest as u64,
        DType::I8 => int!(i8, u8),
        DType::I16 => int!(i16, u16),
        DType::I32 => int!(i32, u32),
        DType::I64 => int!(i64, u64),
        DType::U8 => int!(u8, u8),
        DType::U16 => int!(u16, u16),
        DType::U32 => int!(u32, u32),
        DType::U64 => int!(u64, u64),
        DType::F16 => float!(65504.0f32),
        DType::BF16 => float!(f32::from_bits(0x7f7f_0000)),
        DType::F32 => float!(f32::MAX),
        DType::F64 => float!(f64::MAX),
        DType::F8E4M3FN => float!(448.0f32),
        DType::F8E4M3FNUZ => float!(240.0f32),
        DType::F8E5M2 | DType::F8E5M2FNUZ => float!(57344.0f32),
    }
}

/// The distance from 1 to the next larger value of a float dtype; 0 for others.
#[inline(always)]
pub(crate) const fn epsilon(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => f64::EPSILON,
        DType::F32 => f32::EPSILON as f64,
        DType::F16 => 1.0 / 1024.0,
        DType::BF16 => 1.0 / 128.0,
        _ => 0.0,
    }
}

/// The smallest positive normal value of a float dtype; 0 for others.
#[inline(always)]
pub(crate) const fn min_positive(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => f64::MIN_POSITIVE,
        DType::F32 | DType::BF16 => f32::MIN_POSITIVE as f64,
        DType::F16 => 1.0 / 16384.0,
        _ => 0.0,
    }
}
