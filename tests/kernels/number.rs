//! Numbers of every dtype as the references see them, and when a result is right.
//!
//! What runs for every element is inlined by attribute: tests are compiled in several codegen units, and little optimized.

use half::{bf16, f16};
use max::dtype::{DType, F8E4M3, F8E4M3FNUZ, F8E5M2, F8E5M2FNUZ, float8};

use crate::random::Rng;

/// A number: of an integer dtype or `bool` (0 or 1), or of a float.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Num {
    Int(i128),
    Float(f64),
}

impl Num {
    #[inline]
    pub fn float(self) -> f64 {
        match self {
            // Of 128 bits it is a call.
            Num::Int(v) => i64::try_from(v).map_or_else(|_| v as f64, |v| v as f64),
            Num::Float(v) => v,
        }
    }

    #[track_caller]
    pub fn int(self) -> i128 {
        match self {
            Num::Int(v) => v,
            Num::Float(v) => panic!("{v} is no integer"),
        }
    }

    #[inline]
    pub fn is_nan(self) -> bool {
        matches!(self, Num::Float(v) if v.is_nan())
    }
}

impl From<bool> for Num {
    fn from(v: bool) -> Self {
        Num::Int(v.into())
    }
}

/// A floating-point format: bits of its fraction, and its smallest and largest exponent of normal numbers.
#[derive(Clone, Copy)]
struct Format {
    fraction: i32,
    min: i32,
    max: i32,
}

#[inline]
fn format(dtype: DType) -> Format {
    match dtype {
        DType::F16 => Format { fraction: 10, min: -14, max: 15 },
        DType::BF16 => Format { fraction: 7, min: -126, max: 127 },
        DType::F32 => Format { fraction: 23, min: -126, max: 127 },
        DType::F64 => Format { fraction: 52, min: -1022, max: 1023 },
        other => panic!("{other} results are exact"),
    }
}

/// `2^n` for every `n` that f64 has a power for.
#[inline]
fn power(n: i32) -> f64 {
    if n >= -1022 { f64::from_bits(((n + 1023) as u64) << 52) } else { f64::from_bits(1 << (n + 1074)) }
}

#[inline]
fn exponent(v: f64) -> i32 {
    let biased = (v.to_bits() >> 52 & 0x7ff) as i32;
    if biased == 0 { -1022 } else { biased - 1023 }
}

/// The smallest positive normal number.
pub fn min_positive(dtype: DType) -> f64 {
    power(format(dtype).min)
}

/// The step between the numbers of a dtype around `v`; 0 around 0.
#[inline]
pub fn ulp(dtype: DType, v: f64) -> f64 {
    let format = format(dtype);
    if v == 0.0 { 0.0 } else { power(exponent(v).clamp(format.min, format.max) - format.fraction) }
}

/// The nearest number of a 16-bit or larger float dtype, ties to even.
#[inline]
fn round(dtype: DType, v: f64) -> f64 {
    let f = format(dtype);
    if dtype == DType::F64 || v == 0.0 || !v.is_finite() {
        return v;
    }
    let step = power(exponent(v).max(f.min) - f.fraction);
    let rounded = (v / step).round_ties_even() * step;
    let largest = (2.0 - power(-f.fraction)) * power(f.max);
    if rounded.abs() > largest { f64::INFINITY.copysign(v) } else { rounded.copysign(v) }
}

/// What kernels compute a dtype in.
#[inline]
pub fn compute(dtype: DType) -> DType {
    if dtype.is_half() || dtype.is_float8() { DType::F32 } else { dtype }
}

/// The integer that wraps to a dtype.
#[inline]
fn wrap(dtype: DType, v: i128) -> i128 {
    match dtype {
        DType::Bool => (v != 0).into(),
        DType::I8 => (v as i8).into(),
        DType::I16 => (v as i16).into(),
        DType::I32 => (v as i32).into(),
        DType::I64 => (v as i64).into(),
        DType::U8 => (v as u8).into(),
        DType::U16 => (v as u16).into(),
        DType::U32 => (v as u32).into(),
        DType::U64 => (v as u64).into(),
        other => panic!("{other} is no integer"),
    }
}

/// Writes the bytes of an element, as many as there is room for. (By their number: a copy of so many is a call.)
#[inline]
pub fn put(to: &mut [u8], element: [u8; 8]) {
    match to.len() {
        1 => to[0] = element[0],
        2 => to.copy_from_slice(&element[..2]),
        4 => to.copy_from_slice(&element[..4]),
        size => to.copy_from_slice(&element[..size]),
    }
}

/// Reads an element, as many bytes as the dtype has.
#[inline]
pub fn decode(dtype: DType, bytes: &[u8]) -> Num {
    let bits: u64 = match *bytes {
        [a] => a.into(),
        [a, b] => u16::from_le_bytes([a, b]).into(),
        [a, b, c, d] => u32::from_le_bytes([a, b, c, d]).into(),
        _ => bytes.first_chunk().map_or(0, |all| u64::from_le_bytes(*all)),
    };
    Num::Float(match dtype {
        DType::F16 => f16::from_bits(bits as u16).to_f64(),
        DType::BF16 => bf16::from_bits(bits as u16).to_f64(),
        DType::F32 => f32::from_bits(bits as u32).into(),
        DType::F64 => f64::from_bits(bits),
        DType::F8E4M3FN => float8::e4m3fn_to_f32(F8E4M3::from_bits(bits as u8)).into(),
        DType::F8E4M3FNUZ => F8E4M3FNUZ::from_bits(bits as u8).to_f32().into(),
        DType::F8E5M2 => float8::e5m2_to_f32(F8E5M2::from_bits(bits as u8)).into(),
        DType::F8E5M2FNUZ => F8E5M2FNUZ::from_bits(bits as u8).to_f32().into(),
        integer => return Num::Int(wrap(integer, bits.into())),
    })
}

/// The element of a dtype that a number becomes: rounded, or wrapped. The first bytes are those of the dtype.
#[inline]
pub fn encode(dtype: DType, v: Num) -> [u8; 8] {
    let bits: u64 = match (dtype, v) {
        (DType::F16, v) => f16::from_f64(round(dtype, v.float())).to_bits().into(),
        (DType::BF16, v) => bf16::from_f64(round(dtype, v.float())).to_bits().into(),
        (DType::F32, v) => (v.float() as f32).to_bits().into(),
        (DType::F64, v) => v.float().to_bits(),
        (DType::F8E4M3FN, v) => float8::e4m3fn_from_f32(v.float() as f32).to_bits().into(),
        (DType::F8E4M3FNUZ, v) => F8E4M3FNUZ::from_f32(v.float() as f32).to_bits().into(),
        (DType::F8E5M2, v) => float8::e5m2_from_f32(v.float() as f32).to_bits().into(),
        (DType::F8E5M2FNUZ, v) => F8E5M2FNUZ::from_f32(v.float() as f32).to_bits().into(),
        (integer, v) => wrap(integer, v.int()) as u64,
    };
    bits.to_le_bytes()
}

/// Whether two numbers become the same element of a dtype.
#[inline]
fn same_element(dtype: DType, a: Num, b: Num) -> bool {
    let [a, b] = [a, b].map(|v| u64::from_le_bytes(encode(dtype, v)));
    (a ^ b) << (64 - 8 * dtype.size_in_bytes()) == 0
}

/// A wanted result.
#[derive(Clone, Copy, Debug)]
pub struct Want {
    pub value: Num,
    /// The magnitude that rounding errors are relative to: the value's own, or that of larger numbers on the way.
    pub scale: f64,
}

impl Want {
    pub fn exact(value: Num) -> Self {
        Want { value, scale: 0.0 }
    }

    /// Whether `got`, of a dtype, is right if errors up to `ulps` units in the last place of the compute dtype at the
    /// scale are allowed before the result is rounded to its dtype. 0 allows nothing: the sign of zero counts too.
    pub fn accepts(self, dtype: DType, got: Num, ulps: f64) -> bool {
        let (Num::Float(got), Num::Float(want)) = (got, self.value) else {
            return same_element(dtype, got, self.value);
        };
        // An 8-bit float may have no infinity.
        let nan = want.is_nan() || dtype.is_float8() && decode(dtype, &encode(dtype, self.value)[..1]).is_nan();
        if nan || got.is_nan() {
            return nan && got.is_nan();
        }
        let scale = if self.scale.is_finite() { want.abs().max(self.scale) } else { want.abs() };
        let tolerance = if ulps == 0.0 { 0.0 } else { ulps * ulp(compute(dtype), scale) };
        if tolerance == 0.0 || !want.is_finite() {
            return same_element(dtype, Num::Float(got), self.value);
        }
        round(dtype, want - tolerance) <= got && got <= round(dtype, want + tolerance)
    }
}

/// How the elements of an operand are drawn.
#[derive(Clone, Copy, Debug)]
pub enum Values {
    /// Special values, all bit patterns, and small numbers.
    Any,
    /// From a range, on a coarse grid now and then so that equal ones occur; integers of small magnitude.
    Within(f64, f64),
    /// As `Within`, with a special value (infinity, NaN, zero of both signs) here and there.
    Mostly(f64, f64),
}

const SPECIAL: [f64; 16] = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    1.5,
    2.5,
    f64::INFINITY,
    f64::NEG_INFINITY,
    f64::NAN,
    f64::MAX,
    f64::MIN,
    1e-40,
    3e-8,
    65504.0,
    3.4e38,
];

/// Draws an element, as bytes.
pub fn draw(dtype: DType, values: Values, rng: &mut Rng) -> [u8; 8] {
    let float = dtype.is_float();
    if dtype == DType::Bool {
        return encode(dtype, (rng.below(2) == 1).into());
    }
    match values {
        Values::Any => match rng.below(4) {
            0 if float => match rng.below(SPECIAL.len() + 2) {
                // The smallest denormal, the largest denormal's neighbourhood.
                0 => [1, 0, 0, 0, 0, 0, 0, 0],
                1 if dtype.size_in_bytes() > 1 => encode(dtype, Num::Float(min_positive(dtype))),
                i => encode(dtype, Num::Float(SPECIAL[i % SPECIAL.len()])),
            },
            0 => {
                let bits = 8 * dtype.size_in_bytes() as u32;
                let (half, all) = (1i128 << (bits - 1), 1i128 << bits);
                encode(dtype, Num::Int(rng.one_of(&[0, 1, -1, 2, half, half - 1, all - 1, half + 1])))
            }
            1 => rng.bits().to_le_bytes(),
            2 if float => encode(dtype, Num::Float(rng.uniform(-8.0, 8.0))),
            _ if float => encode(dtype, Num::Float(rng.below(17) as f64 / 2.0 - 4.0)),
            _ => encode(dtype, Num::Int(rng.below(17) as i128 - 8)),
        },
        Values::Within(lo, hi) | Values::Mostly(lo, hi) => {
            if matches!(values, Values::Mostly(..)) && float && rng.below(40) == 0 {
                let special = [f64::INFINITY, f64::NEG_INFINITY, f64::NAN, 0.0, -0.0];
                return encode(dtype, Num::Float(rng.one_of(&special)));
            }
            let v = rng.uniform(lo, hi);
            let v = if rng.below(4) == 0 { (v * 2.0).round() / 2.0 } else { v };
            if float {
                encode(dtype, Num::Float(v))
            } else if matches!(values, Values::Mostly(..)) && rng.below(4) == 0 {
                rng.bits().to_le_bytes()
            } else {
                encode(dtype, Num::Int(v as i128))
            }
        }
    }
}
