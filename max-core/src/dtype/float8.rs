//! The four 8-bit float formats and their conversions.
//!
//! | dtype | type | bias | largest | −0 | infinity | NaN | out of range becomes |
//! |---|---|---|---|---|---|---|---|
//! | `float8_e4m3fn` | [`F8E4M3`] | 7 | 448 | yes | no | `0x7f`, `0xff` | NaN |
//! | `float8_e4m3fnuz` | [`F8E4M3FNUZ`] | 8 | 240 | no | no | `0x80` | NaN |
//! | `float8_e5m2` | [`F8E5M2`] | 15 | 57344 | yes | `0x7c`, `0xfc` | `0x7d`–`0x7f`, `0xfd`–`0xff` | infinity |
//! | `float8_e5m2fnuz` | [`F8E5M2FNUZ`] | 16 | 57344 | no | no | `0x80` | NaN |
//!
//! A conversion to 8 bits rounds once to the nearest value, ties to even, from `f32` as from `f64`; what is beyond the
//! largest value *after rounding* is out of range, and so is an infinity. Nothing saturates. The sign of a NaN is kept
//! where the format has one, its payload is not.
//!
//! [`F8E4M3`] and [`F8E5M2`] are the types of the `float8` crate, whose own `from_f32` and `from_f64` saturate to the
//! largest value instead. Tensors convert with the functions of this module, and so should code that must agree with them.
//!
//! ```
//! # extern crate max_core as max;
//! use max::dtype::float8::{self, F8E4M3FNUZ};
//!
//! assert_eq!(float8::e4m3fn_to_f32(float8::e4m3fn_from_f32(460.0)), 448.0);
//! assert!(float8::e4m3fn_to_f32(float8::e4m3fn_from_f32(480.0)).is_nan());
//! assert_eq!(F8E4M3FNUZ::from_f32(-0.0).to_bits(), 0);
//! ```

#[cfg(target_arch = "x86_64")]
use super::DType;
pub use ::float8::{F8E4M3, F8E5M2};
use std::cmp::Ordering;
use std::fmt;

/// What tells one 8-bit format from another.
struct Format {
    /// Stored bits of the significand.
    mantissa: u32,
    /// Exponent bias.
    bias: i32,
    /// Code of the largest finite value.
    largest: u8,
    /// What a positive value out of range becomes.
    overflow: u8,
    /// The positive NaN.
    nan: u8,
    /// The format has one zero and one NaN (`0x80`), which has the place of −0.
    unsigned_zero: bool,
}

const E4M3FN: Format = Format { mantissa: 3, bias: 7, largest: 0x7e, overflow: 0x7f, nan: 0x7f, unsigned_zero: false };
const E4M3FNUZ: Format = Format { mantissa: 3, bias: 8, largest: 0x7f, overflow: 0x80, nan: 0x80, unsigned_zero: true };
const E5M2: Format = Format { mantissa: 2, bias: 15, largest: 0x7b, overflow: 0x7c, nan: 0x7e, unsigned_zero: false };
const E5M2FNUZ: Format =
    Format { mantissa: 2, bias: 16, largest: 0x7f, overflow: 0x80, nan: 0x80, unsigned_zero: true };

/// 2^`exponent`, which must be a normal `f64`.
#[inline]
const fn power_of_two(exponent: i32) -> f64 {
    f64::from_bits(((exponent + 1023) as u64) << 52)
}

/// `value` in 64 bits, with its sign where it is NaN too: a cast may lose that.
#[inline(always)]
const fn widen(value: f32) -> f64 {
    (value as f64).copysign(f64::from_bits((value.to_bits() as u64) << 32))
}

impl Format {
    /// Rounds `value` to this format, without branches so that loops over it vectorize.
    #[inline(always)]
    const fn encode(&self, value: f64) -> u8 {
        let bits = value.to_bits();
        let magnitude = bits & (u64::MAX >> 1);
        let smallest_normal = power_of_two(1 - self.bias);

        // Normal range: add just under half of the last kept place, and the tie-breaking bit, then re-bias the exponent.
        let shift = 52 - self.mantissa;
        let odd = (magnitude >> shift) & 1;
        let rounded = (magnitude + (1 << (shift - 1)) - 1 + odd) >> shift;
        let normal = rounded.wrapping_sub(((1023 - self.bias) as u64) << self.mantissa);

        // Subnormal range: the sum's last place is the format's smallest subnormal, so the addition itself rounds.
        let magic = power_of_two(1 - self.bias - self.mantissa as i32 + 52);
        let subnormal = (f64::from_bits(magnitude) + magic).to_bits().wrapping_sub(magic.to_bits());

        let code = if magnitude < smallest_normal.to_bits() { subnormal } else { normal };
        let code = if code > self.largest as u64 { self.overflow } else { code as u8 };
        let code = if magnitude > f64::INFINITY.to_bits() { self.nan } else { code };
        let sign = ((bits >> 63) as u8) << 7;
        if self.unsigned_zero && code == 0 { 0 } else { code | sign }
    }

    /// The exact value of `code`.
    const fn decode(&self, code: u8) -> f32 {
        let magnitude = code & 0x7f;
        let sign = if code & 0x80 == 0 { 1.0 } else { -1.0 };
        if self.unsigned_zero && code == 0x80 {
            return f32::NAN;
        }
        if magnitude > self.largest {
            let infinite = magnitude == self.overflow && self.overflow != self.nan;
            return sign * if infinite { f32::INFINITY } else { f32::NAN };
        }
        let exponent = (magnitude >> self.mantissa) as i32;
        let fraction = (magnitude & ((1 << self.mantissa) - 1)) as f64;
        let unit = power_of_two(-(self.mantissa as i32));
        let value = if exponent == 0 {
            fraction * unit * power_of_two(1 - self.bias)
        } else {
            (1.0 + fraction * unit) * power_of_two(exponent - self.bias)
        };
        sign * value as f32
    }

    const fn table(&self) -> [f32; 256] {
        let mut values = [0.0; 256];
        let mut code = 0;
        while code < 256 {
            values[code] = self.decode(code as u8);
            code += 1;
        }
        values
    }
}

static E4M3FN_VALUES: [f32; 256] = E4M3FN.table();
static E4M3FNUZ_VALUES: [f32; 256] = E4M3FNUZ.table();
static E5M2_VALUES: [f32; 256] = E5M2.table();
static E5M2FNUZ_VALUES: [f32; 256] = E5M2FNUZ.table();

/// The exact values of a format's codes as the bits of `bf16`, which has all of them; `None` of another dtype.
#[cfg(target_arch = "x86_64")]
pub(crate) const fn bf16_of(dtype: DType) -> Option<&'static [u16; 256]> {
    const fn upper(values: [f32; 256]) -> [u16; 256] {
        let mut upper = [0; 256];
        let mut code = 0;
        while code < 256 {
            upper[code] = (values[code].to_bits() >> 16) as u16;
            code += 1;
        }
        upper
    }
    static OF_E4M3FN: [u16; 256] = upper(E4M3FN.table());
    static OF_E4M3FNUZ: [u16; 256] = upper(E4M3FNUZ.table());
    static OF_E5M2: [u16; 256] = upper(E5M2.table());
    static OF_E5M2FNUZ: [u16; 256] = upper(E5M2FNUZ.table());
    match dtype {
        DType::F8E4M3FN => Some(&OF_E4M3FN),
        DType::F8E4M3FNUZ => Some(&OF_E4M3FNUZ),
        DType::F8E5M2 => Some(&OF_E5M2),
        DType::F8E5M2FNUZ => Some(&OF_E5M2FNUZ),
        _ => None,
    }
}

/// The exact value of a `float8_e4m3fn`.
#[inline(always)]
pub fn e4m3fn_to_f32(value: F8E4M3) -> f32 {
    E4M3FN_VALUES[value.to_bits() as usize]
}

/// Rounds to `float8_e4m3fn`; out of range becomes NaN.
#[inline(always)]
pub const fn e4m3fn_from_f32(value: f32) -> F8E4M3 {
    e4m3fn_from_f64(widen(value))
}

/// Rounds to `float8_e4m3fn`; out of range becomes NaN.
#[inline(always)]
pub const fn e4m3fn_from_f64(value: f64) -> F8E4M3 {
    F8E4M3::from_bits(E4M3FN.encode(value))
}

/// The exact value of a `float8_e5m2`.
#[inline(always)]
pub fn e5m2_to_f32(value: F8E5M2) -> f32 {
    E5M2_VALUES[value.to_bits() as usize]
}

/// Rounds to `float8_e5m2`; out of range becomes an infinity.
#[inline(always)]
pub const fn e5m2_from_f32(value: f32) -> F8E5M2 {
    e5m2_from_f64(widen(value))
}

/// Rounds to `float8_e5m2`; out of range becomes an infinity.
#[inline(always)]
pub const fn e5m2_from_f64(value: f64) -> F8E5M2 {
    F8E5M2::from_bits(E5M2.encode(value))
}

macro_rules! define_fnuz {
    ($name:ident, $format:ident, $values:ident, $max:literal, $dtype:literal) => {
        #[doc = concat!("An element of dtype `", $dtype, "`: one zero, one NaN (`0x80`), no infinity.")]
        ///
        /// Comparisons are those of the values: NaN is unequal to itself.
        #[derive(Clone, Copy, Default)]
        #[repr(transparent)]
        pub struct $name(u8);

        impl $name {
            /// The only NaN.
            pub const NAN: Self = Self(0x80);
            #[doc = concat!("The largest value, ", $max, ".")]
            pub const MAX: Self = Self(0x7f);

            /// The value with these bits.
            #[inline(always)]
            pub const fn from_bits(bits: u8) -> Self {
                Self(bits)
            }

            /// The bits of the value.
            #[inline(always)]
            pub const fn to_bits(self) -> u8 {
                self.0
            }

            /// Rounds to the nearest value, ties to even; out of range becomes NaN.
            #[inline(always)]
            pub const fn from_f32(value: f32) -> Self {
                Self::from_f64(widen(value))
            }

            /// Rounds to the nearest value, ties to even; out of range becomes NaN.
            #[inline(always)]
            pub const fn from_f64(value: f64) -> Self {
                Self($format.encode(value))
            }

            /// The exact value.
            #[inline(always)]
            pub fn to_f32(self) -> f32 {
                $values[self.0 as usize]
            }
        }

        impl PartialEq for $name {
            fn eq(&self, other: &Self) -> bool {
                self.to_f32() == other.to_f32()
            }
        }

        impl PartialOrd for $name {
            fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
                self.to_f32().partial_cmp(&other.to_f32())
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.to_f32(), f)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.to_f32(), f)
            }
        }
    };
}
define_fnuz!(F8E4M3FNUZ, E4M3FNUZ, E4M3FNUZ_VALUES, "240", "float8_e4m3fnuz");
define_fnuz!(F8E5M2FNUZ, E5M2FNUZ, E5M2FNUZ_VALUES, "57344", "float8_e5m2fnuz");

#[cfg(test)]
mod tests {
    use super::*;

    /// Name, format, largest value, exponent of the smallest.
    const FORMATS: [(&str, Format, f32, i32); 4] = [
        ("e4m3fn", E4M3FN, 448.0, -9),
        ("e4m3fnuz", E4M3FNUZ, 240.0, -10),
        ("e5m2", E5M2, 57344.0, -16),
        ("e5m2fnuz", E5M2FNUZ, 57344.0, -17),
    ];

    #[test]
    fn largest_and_smallest_values() {
        for (name, format, largest, smallest) in FORMATS {
            assert_eq!(format.decode(format.largest), largest, "{name}");
            assert_eq!(format.decode(1), 2f32.powi(smallest), "{name}");
        }
    }

    #[test]
    fn every_code_round_trips() {
        for (name, format, ..) in FORMATS {
            for code in 0..=u8::MAX {
                let value = format.decode(code);
                let back = format.encode(value.into());
                if value.is_nan() {
                    assert!(format.decode(back).is_nan(), "{name} {code:#x}");
                } else {
                    assert_eq!(back, code, "{name} {value}");
                }
            }
        }
    }

    /// Between two neighbours: the midpoint goes to the even code, anything off it to the nearer one.
    #[test]
    fn rounds_to_the_nearest_even() {
        for (name, format, ..) in FORMATS {
            for low in 0..format.largest {
                let (a, b) = (f64::from(format.decode(low)), f64::from(format.decode(low + 1)));
                let middle = (a + b) / 2.0;
                assert_eq!(format.encode(middle), low + (low & 1), "{name} tie after {a}");
                assert_eq!(format.encode(middle.next_down()), low, "{name} after {a}");
                assert_eq!(format.encode(middle.next_up()), low + 1, "{name} before {b}");
                let negative = if format.unsigned_zero && low == 0 { 0 } else { low | 0x80 };
                assert_eq!(format.encode(-middle.next_down()), negative, "{name} after -{a}");
            }
        }
    }

    #[test]
    fn overflow_begins_half_a_place_beyond_the_largest() {
        // The largest codes but that of e4m3fn are odd, so the tie leaves the range there.
        for (format, kept, lost) in
            [(E4M3FN, 464.0, 464.1), (E4M3FNUZ, 247.9, 248.0), (E5M2, 61439.9, 61440.0), (E5M2FNUZ, 61439.9, 61440.0)]
        {
            assert_eq!(format.encode(kept), format.largest);
            assert_eq!(format.encode(lost), format.overflow);
            assert_eq!(format.encode(-lost), format.overflow | 0x80);
            assert_eq!(format.encode(f64::INFINITY), format.overflow);
            assert_eq!(format.encode(f64::MAX), format.overflow);
        }
    }

    #[test]
    fn zeros_and_nans() {
        for (name, format, ..) in FORMATS {
            let minus_zero = if format.unsigned_zero { 0 } else { 0x80 };
            assert_eq!(format.encode(-0.0), minus_zero, "{name}");
            assert_eq!(format.encode(-1e-300), minus_zero, "{name}");
            assert_eq!(format.encode(5e-324), 0, "{name}");
            assert!(format.decode(format.encode(f64::NAN)).is_nan(), "{name}");
        }
        assert_eq!(e4m3fn_from_f32(-f32::NAN).to_bits(), 0xff);
        assert_eq!(e5m2_from_f32(-f32::NAN).to_bits(), 0xfe);
        assert_eq!(F8E4M3FNUZ::from_f32(-f32::NAN).to_bits(), 0x80);
        assert_eq!(e5m2_to_f32(F8E5M2::from_bits(0xfc)), f32::NEG_INFINITY);
        assert!(e5m2_to_f32(F8E5M2::from_bits(0x7d)).is_nan());
        assert_ne!(F8E5M2FNUZ::NAN, F8E5M2FNUZ::NAN);
    }

    /// The two crate types decode as the `float8` crate itself does.
    #[test]
    fn agrees_with_the_float8_crate_on_values() {
        for code in 0..=u8::MAX {
            let (a, b) = (e4m3fn_to_f32(F8E4M3::from_bits(code)), F8E4M3::from_bits(code).to_f32());
            assert!(a == b || a.is_nan() && b.is_nan(), "{code:#x}: {a} {b}");
            let (a, b) = (e5m2_to_f32(F8E5M2::from_bits(code)), F8E5M2::from_bits(code).to_f32());
            assert!(a == b || a.is_nan() && b.is_nan(), "{code:#x}: {a} {b}");
        }
    }
}
