//! Floating point by integers: every format and every rounding mode that PTX
//! names, computed exactly and rounded once.
//!
//! A value is unpacked to [`Num`] (sign, integer mantissa, exponent), the
//! operation is exact up to a sticky lowest bit, and [`Format::round`] packs
//! the result.

/// A rounding mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Round {
    /// `.rn`: nearest, ties to even.
    Near,
    /// `.rna`: nearest, ties away from zero.
    Away,
    /// `.rz`
    Zero,
    /// `.rm`
    Down,
    /// `.rp`
    Up,
}

/// A binary format of at most 64 bits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Format {
    pub exp_bits: u32,
    pub man_bits: u32,
    /// e4m3: no infinity, and only the all-ones pattern is NaN.
    pub finite_only: bool,
    /// What a generated NaN looks like.
    pub nan: u64,
}

const fn ieee(exp_bits: u32, man_bits: u32, nan: u64) -> Format {
    Format { exp_bits, man_bits, finite_only: false, nan }
}

pub(crate) const F16: Format = ieee(5, 10, 0x7fff);
pub(crate) const BF16: Format = ieee(8, 7, 0x7fff);
pub(crate) const F32: Format = ieee(8, 23, 0x7fff_ffff);
pub(crate) const F64: Format = ieee(11, 52, 0xfff8_0000_0000_0000);
/// tf32 as the upper 19 bits of an f32, shifted down.
pub(crate) const TF32: Format = ieee(8, 10, 0x3ffff);
pub(crate) const E5M2: Format = ieee(5, 2, 0x7f);
pub(crate) const E4M3: Format = Format { exp_bits: 4, man_bits: 3, finite_only: true, nan: 0x7f };

/// An unpacked number: `Finite` is `man * 2^exp`, zero included.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Num {
    Nan,
    Inf { neg: bool },
    Finite { neg: bool, man: u128, exp: i32 },
}

impl Format {
    fn sign_bit(&self) -> u64 {
        1 << (self.exp_bits + self.man_bits)
    }

    fn exp_max(&self) -> u64 {
        (1 << self.exp_bits) - 1
    }

    /// The bits of infinity, or for e4m3 those of NaN.
    fn first_not_finite(&self) -> u64 {
        if self.finite_only { self.nan } else { self.exp_max() << self.man_bits }
    }

    fn bias(&self) -> i32 {
        (1 << (self.exp_bits - 1)) - 1
    }

    pub fn is_nan(&self, bits: u64) -> bool {
        let magnitude = bits & (self.sign_bit() - 1);
        if self.finite_only { magnitude == self.nan } else { magnitude > self.first_not_finite() }
    }

    pub fn unpack(&self, bits: u64) -> Num {
        let neg = bits & self.sign_bit() != 0;
        if self.is_nan(bits) {
            return Num::Nan;
        }
        let field = (bits >> self.man_bits) & self.exp_max();
        let man = bits & ((1 << self.man_bits) - 1);
        if field == self.exp_max() && !self.finite_only {
            return Num::Inf { neg };
        }
        let base = 1 - self.bias() - self.man_bits as i32;
        if field == 0 {
            Num::Finite { neg, man: u128::from(man), exp: base }
        } else {
            let man = u128::from(man | (1 << self.man_bits));
            Num::Finite { neg, man, exp: base + field as i32 - 1 }
        }
    }

    /// Rounds to this format. `finite` turns overflow, and infinity, into the
    /// largest finite value of the sign.
    pub fn round(&self, value: Num, mode: Round, finite: bool) -> u64 {
        let (neg, man, exp) = match value {
            Num::Nan => return self.nan,
            Num::Inf { neg } => {
                let bits = self.first_not_finite() - u64::from(finite);
                return bits | if neg { self.sign_bit() } else { 0 };
            }
            Num::Finite { neg, man, exp } => (neg, man, exp),
        };
        let sign = if neg { self.sign_bit() } else { 0 };
        if man == 0 {
            return sign;
        }
        let top = 127 - man.leading_zeros() as i32;
        let least = 1 - self.bias() - self.man_bits as i32;
        let quantum = (top + exp - self.man_bits as i32).max(least);
        let kept = round_shift(man, quantum - exp, mode, neg);
        // A carry out of the mantissa lands in the exponent field, as it must.
        let magnitude = ((quantum - least) as u64)
            .checked_shl(self.man_bits)
            .filter(|_| quantum - least < 1 << (self.exp_bits + 1))
            .map(|high| high + kept as u64);
        let limit = self.first_not_finite();
        match magnitude {
            Some(bits) if bits < limit => sign | bits,
            _ => {
                let to_max = finite
                    || match mode {
                        Round::Near | Round::Away => false,
                        Round::Zero => true,
                        Round::Down => !neg,
                        Round::Up => neg,
                    };
                sign | (limit - u64::from(to_max))
            }
        }
    }
}

/// `man / 2^shift`, rounded to an integer.
fn round_shift(man: u128, shift: i32, mode: Round, neg: bool) -> u128 {
    if shift <= 0 {
        return man << (-shift).min(127);
    }
    let shift = shift as u32;
    let (kept, rest, half) =
        if shift > 127 { (0, man, u128::MAX) } else { (man >> shift, man & ((1 << shift) - 1), 1u128 << (shift - 1)) };
    let up = match mode {
        Round::Near => rest > half || (rest == half && kept & 1 == 1),
        Round::Away => rest >= half,
        Round::Zero => false,
        Round::Down => neg && rest != 0,
        Round::Up => !neg && rest != 0,
    };
    kept + u128::from(up)
}

/// Shifts right, keeping "something was lost" in the lowest bit.
fn jam(man: u128, shift: u32) -> u128 {
    match shift {
        0 => man,
        1..=127 => (man >> shift) | u128::from(man & ((1 << shift) - 1) != 0),
        _ => u128::from(man != 0),
    }
}

impl Num {
    /// The integer `value`.
    pub fn from_int(neg: bool, magnitude: u64) -> Num {
        Num::Finite { neg, man: u128::from(magnitude), exp: 0 }
    }

    pub fn negate(self) -> Num {
        match self {
            Num::Nan => Num::Nan,
            Num::Inf { neg } => Num::Inf { neg: !neg },
            Num::Finite { neg, man, exp } => Num::Finite { neg: !neg, man, exp },
        }
    }

    pub fn is_zero(self) -> bool {
        matches!(self, Num::Finite { man: 0, .. })
    }

    fn is_negative(self) -> bool {
        matches!(self, Num::Inf { neg: true } | Num::Finite { neg: true, .. })
    }

    /// The top bit at position 125, so that a sum has room.
    fn aligned(man: u128, exp: i32) -> (u128, i32) {
        let shift = man.leading_zeros() as i32 - 2;
        if shift >= 0 { (man << shift, exp - shift) } else { (jam(man, (-shift) as u32), exp - shift) }
    }

    /// `self + other`; `mode` decides the sign of an exact zero.
    pub fn add(self, other: Num, mode: Round) -> Num {
        let (neg_a, man_a, exp_a, neg_b, man_b, exp_b) = match (self, other) {
            (Num::Nan, _) | (_, Num::Nan) => return Num::Nan,
            (Num::Inf { neg: a }, Num::Inf { neg: b }) if a != b => return Num::Nan,
            (Num::Inf { neg }, _) | (_, Num::Inf { neg }) => return Num::Inf { neg },
            (Num::Finite { neg: a, man: m, exp: e }, Num::Finite { neg: b, man: n, exp: f }) => (a, m, e, b, n, f),
        };
        let zero = |neg| Num::Finite { neg, man: 0, exp: 0 };
        match (man_a == 0, man_b == 0) {
            (true, true) if neg_a == neg_b => return zero(neg_a),
            (true, true) => return zero(mode == Round::Down),
            (true, false) => return other,
            (false, true) => return self,
            (false, false) => {}
        }
        let (mut man_a, exp_a) = Num::aligned(man_a, exp_a);
        let (mut man_b, exp_b) = Num::aligned(man_b, exp_b);
        let exp = exp_a.max(exp_b);
        man_a = jam(man_a, (exp - exp_a) as u32);
        man_b = jam(man_b, (exp - exp_b) as u32);
        if neg_a == neg_b {
            return Num::Finite { neg: neg_a, man: man_a + man_b, exp };
        }
        match man_a.cmp(&man_b) {
            std::cmp::Ordering::Equal => zero(mode == Round::Down),
            std::cmp::Ordering::Greater => Num::Finite { neg: neg_a, man: man_a - man_b, exp },
            std::cmp::Ordering::Less => Num::Finite { neg: neg_b, man: man_b - man_a, exp },
        }
    }

    /// `self * other`, exact for mantissas of up to 64 bits.
    pub fn mul(self, other: Num) -> Num {
        let neg = self.is_negative() != other.is_negative();
        match (self, other) {
            (Num::Nan, _) | (_, Num::Nan) => Num::Nan,
            (Num::Inf { .. }, b) if b.is_zero() => Num::Nan,
            (a, Num::Inf { .. }) if a.is_zero() => Num::Nan,
            (Num::Inf { .. }, _) | (_, Num::Inf { .. }) => Num::Inf { neg },
            (Num::Finite { man: a, exp: e, .. }, Num::Finite { man: b, exp: f, .. }) => {
                Num::Finite { neg, man: a * b, exp: e + f }
            }
        }
    }

    /// `self / other`, with 73 bits or more and a sticky bit.
    pub fn div(self, other: Num) -> Num {
        let neg = self.is_negative() != other.is_negative();
        match (self, other) {
            (Num::Nan, _) | (_, Num::Nan) => Num::Nan,
            (Num::Inf { .. }, Num::Inf { .. }) => Num::Nan,
            (Num::Inf { .. }, _) => Num::Inf { neg },
            (_, Num::Inf { .. }) => Num::Finite { neg, man: 0, exp: 0 },
            (a, b) if a.is_zero() && b.is_zero() => Num::Nan,
            (_, b) if b.is_zero() => Num::Inf { neg },
            (Num::Finite { man: 0, .. }, _) => Num::Finite { neg, man: 0, exp: 0 },
            (Num::Finite { man: a, exp: e, .. }, Num::Finite { man: b, exp: f, .. }) => {
                let shift = a.leading_zeros() as i32;
                let a = a << shift;
                let man = (a / b) | u128::from(!a.is_multiple_of(b));
                Num::Finite { neg, man, exp: e - shift - f }
            }
        }
    }

    /// The square root, with 62 bits or more and a sticky bit.
    pub fn sqrt(self) -> Num {
        match self {
            Num::Finite { man: 0, .. } => self,
            Num::Inf { neg: false } => self,
            Num::Finite { neg: false, man, exp } => {
                let mut shift = man.leading_zeros() as i32;
                if (exp - shift) % 2 != 0 {
                    shift -= 1;
                }
                let man = man << shift;
                let root = man.isqrt();
                let sticky = u128::from(root * root != man);
                // Two more bits below the root hold the sticky bit apart.
                Num::Finite { neg: false, man: (root << 2) | sticky, exp: (exp - shift) / 2 - 2 }
            }
            _ => Num::Nan,
        }
    }

    /// Rounds to an integer: the sign and the magnitude, or `None` for a
    /// magnitude of 2^64 or more.
    pub fn to_int(man: u128, exp: i32, neg: bool, mode: Round) -> Option<u64> {
        if man == 0 {
            return Some(0);
        }
        let top = 127 - man.leading_zeros() as i32;
        if top + exp > 64 {
            return None;
        }
        u64::try_from(round_shift(man, -exp, mode, neg)).ok()
    }
}

// Neither is inlined: what calls them has a loop for its common case, which they would keep from becoming vector instructions.

/// Rounds to this format after an operation on two values of it.
#[inline(never)]
pub(crate) fn binary(format: Format, mode: Round, a: u64, b: u64, op: fn(Num, Num, Round) -> Num) -> u64 {
    format.round(op(format.unpack(a), format.unpack(b), mode), mode, false)
}

/// `a * b + c`, rounded once.
#[inline(never)]
pub(crate) fn fma(format: Format, mode: Round, a: u64, b: u64, c: u64) -> u64 {
    let product = format.unpack(a).mul(format.unpack(b));
    format.round(product.add(format.unpack(c), mode), mode, false)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bits(values: &mut u64) -> u64 {
        *values = values.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        *values ^ (*values >> 29)
    }

    /// Nearest-even results must be those of the host's IEEE arithmetic.
    #[test]
    fn nearest_matches_the_host() {
        let mut seed = 1;
        for _ in 0..20_000 {
            let (a, b, c) = (bits(&mut seed) >> 7, bits(&mut seed) >> 9, bits(&mut seed) >> 5);
            let (a, b, c) = (a as u32, b as u32, c as u32);
            let (x, y, z) = (f32::from_bits(a), f32::from_bits(b), f32::from_bits(c));
            let same = |ours: u64, host: f32| {
                assert!(
                    ours == u64::from(host.to_bits()) || (F32.is_nan(ours) && host.is_nan()),
                    "{x:e} {y:e} {z:e}: {:e} {host:e}",
                    f32::from_bits(ours as u32)
                );
            };
            let (a, b, c) = (u64::from(a), u64::from(b), u64::from(c));
            same(binary(F32, Round::Near, a, b, Num::add), x + y);
            same(binary(F32, Round::Near, a, b, |a, b, _| a.mul(b)), x * y);
            same(binary(F32, Round::Near, a, b, |a, b, _| a.div(b)), x / y);
            same(binary(F32, Round::Near, a, b, |a, _, _| a.sqrt()), x.sqrt());
            same(fma(F32, Round::Near, a, b, c), x.mul_add(y, z));
        }
    }

    #[test]
    fn doubles_match_the_host() {
        let mut seed = 9;
        for _ in 0..20_000 {
            let (a, b, c) = (bits(&mut seed), bits(&mut seed), bits(&mut seed));
            // Exponents near each other, so that sums cancel.
            let near = |v: u64| (v & 0x801f_ffff_ffff_ffff) | 0x3fe0_0000_0000_0000;
            for (a, b, c) in [(a, b, c), (near(a), near(b), near(c))] {
                let (x, y, z) = (f64::from_bits(a), f64::from_bits(b), f64::from_bits(c));
                let same = |ours: u64, host: f64| {
                    assert!(ours == host.to_bits() || (F64.is_nan(ours) && host.is_nan()));
                };
                same(binary(F64, Round::Near, a, b, Num::add), x + y);
                same(binary(F64, Round::Near, a, b, |a, b, _| a.mul(b)), x * y);
                same(binary(F64, Round::Near, a, b, |a, b, _| a.div(b)), x / y);
                same(binary(F64, Round::Near, a, b, |a, _, _| a.sqrt()), x.sqrt());
                same(fma(F64, Round::Near, a, b, c), x.mul_add(y, z));
            }
        }
    }

    #[test]
    fn directed_modes_bracket_the_exact_sum() {
        let one = u64::from(1f32.to_bits());
        let tiny = u64::from(1e-20f32.to_bits());
        let sum = |mode| f32::from_bits(binary(F32, mode, one, tiny, Num::add) as u32);
        assert_eq!(sum(Round::Near), 1.0);
        assert_eq!(sum(Round::Zero), 1.0);
        assert_eq!(sum(Round::Down), 1.0);
        assert_eq!(sum(Round::Up), 1.0f32.next_up());
    }

    #[test]
    fn overflow_follows_the_mode() {
        let max = u64::from(f32::MAX.to_bits());
        let sum = |mode| f32::from_bits(binary(F32, mode, max, max, Num::add) as u32);
        assert_eq!(sum(Round::Near), f32::INFINITY);
        assert_eq!(sum(Round::Zero), f32::MAX);
        assert_eq!(sum(Round::Down), f32::MAX);
        assert_eq!(sum(Round::Up), f32::INFINITY);
    }

    #[test]
    fn eight_bit_formats_have_their_limits() {
        let value = |v: f32| F32.unpack(u64::from(v.to_bits()));
        assert_eq!(E4M3.round(value(448.0), Round::Near, true), 0x7e);
        assert_eq!(E4M3.round(value(1e9), Round::Near, true), 0x7e);
        assert_eq!(E4M3.round(value(-1e9), Round::Near, true), 0xfe);
        assert_eq!(E4M3.round(value(f32::NAN), Round::Near, true), 0x7f);
        assert_eq!(E4M3.round(value(0.001953125), Round::Near, true), 0x01);
        assert_eq!(E5M2.round(value(57344.0), Round::Near, true), 0x7b);
        assert_eq!(E5M2.round(value(f32::INFINITY), Round::Near, true), 0x7b);
        assert_eq!(E5M2.round(value(1.0), Round::Near, true), 0x3c);
    }
}
