//! `cvt`: between integers, floating formats, and packed narrow formats.

use super::half::{Brain16, Float16, Half};
use super::integer::extend;
use super::{F1, F2};
use crate::ops::softfloat::{BF16, E4M3, E5M2, F16, F32, F64, Format, Num, Round, TF32};
use crate::types::{Mods, Ty};

pub(crate) fn format(ty: Ty) -> Option<Format> {
    Some(match ty {
        Ty::F16 | Ty::F16x2 => F16,
        Ty::Bf16 | Ty::Bf16x2 => BF16,
        Ty::F32 => F32,
        Ty::F64 => F64,
        Ty::Tf32 => TF32,
        Ty::E4m3x2 => E4M3,
        Ty::E5m2x2 => E5M2,
        _ => return None,
    })
}

/// How one scalar conversion goes; `run` is the slow, general form and
/// [`scalar`] has direct functions for the common pairs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Convert {
    pub to: Ty,
    pub from: Ty,
    /// `.rni` and its kin on a floating result: round to an integer first.
    pub integral: bool,
}

impl Convert {
    pub fn run(&self, m: &Mods, a: u64) -> u64 {
        match (format(self.to), format(self.from)) {
            (None, None) => self.integer_to_integer(m, a),
            (Some(to), None) => {
                let v = extend(self.from, a);
                let num = Num::from_int(v < 0, v.unsigned_abs() as u64);
                // A zero has the sign of an integer: none.
                finish(m, to, to.round(num, m.round, m.finite))
            }
            (None, Some(from)) => self.float_to_integer(m, flush(m, from, a), from),
            (Some(to), Some(from)) => {
                let a = flush(m, from, a);
                let mut num = from.unpack(a);
                if let (true, Num::Finite { neg, man, exp }) = (self.integral, num)
                    && exp < 0
                {
                    let magnitude = Num::to_int(man, exp, neg, m.round).unwrap_or(u64::MAX);
                    num = Num::from_int(neg, magnitude);
                }
                finish(m, to, to.round(num, m.round, m.finite))
            }
        }
    }

    fn integer_to_integer(&self, m: &Mods, a: u64) -> u64 {
        let v = extend(self.from, a);
        let (low, high) = limits(self.to);
        let v = if m.sat { v.clamp(low, high) } else { v };
        v as u64 & mask(self.to)
    }

    /// Out of range clamps. NaN gives 0, or the sign bit alone (0x8000…) where
    /// the source is f64 or the result has 64 bits.
    fn float_to_integer(&self, m: &Mods, a: u64, from: Format) -> u64 {
        let (low, high) = limits(self.to);
        match from.unpack(a) {
            Num::Nan => {
                if self.to.bytes() == 8 || self.from == Ty::F64 {
                    1 << (8 * self.to.bytes() - 1)
                } else {
                    0
                }
            }
            Num::Inf { neg } => (if neg { low } else { high }) as u64 & mask(self.to),
            Num::Finite { neg, man, exp } => {
                let v = match Num::to_int(man, exp, neg, m.round) {
                    Some(v) if neg => -i128::from(v),
                    Some(v) => i128::from(v),
                    None if neg => low,
                    None => high,
                };
                v.clamp(low, high) as u64 & mask(self.to)
            }
        }
    }
}

fn limits(ty: Ty) -> (i128, i128) {
    let bits = 8 * ty.bytes();
    if ty.is_signed() { (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) } else { (0, (1 << bits) - 1) }
}

fn mask(ty: Ty) -> u64 {
    if ty.bytes() >= 8 { u64::MAX } else { (1 << (8 * ty.bytes())) - 1 }
}

fn sign(f: Format) -> u64 {
    1 << (f.exp_bits + f.man_bits)
}

/// `.ftz` on an f32 (or half) input or result.
#[inline]
fn flush(m: &Mods, f: Format, bits: u64) -> u64 {
    let width = f.exp_bits + f.man_bits + 1;
    let bits = if width == 64 { bits } else { bits & ((1 << width) - 1) };
    if m.ftz && f.exp_bits == 8 && f.man_bits == 23 && bits & (0xff << 23) == 0 { bits & sign(f) } else { bits }
}

/// `.ftz`, `.sat` and `.relu` on a floating result.
#[inline]
fn finish(m: &Mods, f: Format, bits: u64) -> u64 {
    let bits = flush(m, f, bits);
    let negative = bits & sign(f) != 0;
    let nan = f.is_nan(bits);
    if m.relu && negative && !nan || m.sat && (negative || nan) {
        0
    } else if m.sat {
        bits.min(f.round(Num::from_int(false, 1), Round::Near, false))
    } else {
        bits
    }
}

/// Narrows one f32 to an 8-bit or 16-bit format for the packed forms.
fn narrow(m: &Mods, to: Format, a: u64) -> u64 {
    finish(m, to, to.round(F32.unpack(a & 0xffff_ffff), m.round, m.finite))
}

/// Narrows one f32 to a half.
#[inline]
fn narrow_half<H: Half>(m: &Mods, a: u64) -> u64 {
    if m.round == Round::Near && !m.finite {
        finish(m, H::FORMAT, H::narrow(f32::from_bits(a as u32)))
    } else {
        narrow(m, H::FORMAT, a)
    }
}

/// The packed form with two f32 inputs: `a` goes into the upper half.
pub(crate) fn pack(to: Ty) -> Option<F2> {
    Some(match to {
        Ty::F16x2 => &|m, a, b| narrow_half::<Float16>(m, a) << 16 | narrow_half::<Float16>(m, b),
        Ty::Bf16x2 => &|m, a, b| narrow_half::<Brain16>(m, a) << 16 | narrow_half::<Brain16>(m, b),
        Ty::E4m3x2 => &|m, a, b| narrow(m, E4M3, a) << 8 | narrow(m, E4M3, b),
        Ty::E5m2x2 => &|m, a, b| narrow(m, E5M2, a) << 8 | narrow(m, E5M2, b),
        _ => return None,
    })
}

/// The forms with one packed input: f8 pairs from and to f16 pairs.
pub(crate) fn repack(to: Ty, from: Ty) -> Option<F1> {
    fn shrink(m: &Mods, to: Format, a: u64) -> u64 {
        let one = |v: u64| finish(m, to, to.round(F16.unpack(v & 0xffff), m.round, m.finite));
        one(a >> 16) << 8 | one(a)
    }
    fn grow(m: &Mods, from: Format, a: u64) -> u64 {
        let one = |v: u64| finish(m, F16, F16.round(from.unpack(v & 0xff), m.round, false));
        one(a >> 8) << 16 | one(a)
    }
    Some(match (to, from) {
        (Ty::E4m3x2, Ty::F16x2) => &|m, a| shrink(m, E4M3, a),
        (Ty::E5m2x2, Ty::F16x2) => &|m, a| shrink(m, E5M2, a),
        (Ty::F16x2, Ty::E4m3x2) => &|m, a| grow(m, E4M3, a),
        (Ty::F16x2, Ty::E5m2x2) => &|m, a| grow(m, E5M2, a),
        _ => return None,
    })
}

/// tf32 keeps its place in an f32: the low 13 bits are zero.
pub(crate) fn to_tf32(m: &Mods, a: u64) -> u64 {
    narrow(m, TF32, a) << 13
}

/// An f32 result, of which NaN has one pattern.
#[inline]
fn f32_bits(v: f32) -> u64 {
    u64::from(if v.is_nan() { 0x7fff_ffff } else { v.to_bits() })
}

/// A direct function for a common pair of types without special modifiers.
pub(crate) fn scalar(c: Convert, m: &Mods) -> Option<F1> {
    if m.ftz || m.sat || m.relu || m.finite || c.integral {
        return None;
    }
    Some(match (c.to, c.from, m.round) {
        (Ty::F32, Ty::F16, _) => &|_, a| f32_bits(Float16::widen(a)),
        (Ty::F32, Ty::Bf16, _) => &|_, a| f32_bits(Brain16::widen(a)),
        (Ty::F16, Ty::F32, Round::Near) => &|_, a| Float16::narrow(f32::from_bits(a as u32)),
        (Ty::Bf16, Ty::F32, Round::Near) => &|_, a| Brain16::narrow(f32::from_bits(a as u32)),
        (Ty::F32, Ty::F64, Round::Near) => &|_, a| f32_bits(f64::from_bits(a) as f32),
        (Ty::F64, Ty::F32, _) => &|_, a| {
            let v = f64::from(f32::from_bits(a as u32));
            if v.is_nan() { F64.nan } else { v.to_bits() }
        },
        (Ty::F32, Ty::S64, Round::Near) => &|_, a| f32_bits(a as i64 as f32),
        (Ty::F32, Ty::U64, Round::Near) => &|_, a| f32_bits(a as f32),
        (Ty::F32, Ty::S32, Round::Near) => &|_, a| u64::from((a as i32 as f32).to_bits()),
        (Ty::F32, Ty::U32, Round::Near) => &|_, a| u64::from((a as u32 as f32).to_bits()),
        (Ty::U32, Ty::F32, Round::Zero) => &|_, a| u64::from(f32::from_bits(a as u32) as u32),
        (Ty::S32, Ty::F32, Round::Zero) => &|_, a| u64::from(f32::from_bits(a as u32) as i32 as u32),
        (Ty::U32 | Ty::S32 | Ty::U64 | Ty::S64, Ty::U16, _) => &|_, a| a & 0xffff,
        (Ty::U64 | Ty::S64, Ty::U32, _) => &|_, a| a & 0xffff_ffff,
        (Ty::U32 | Ty::S32, Ty::S16, _) => &|_, a| u64::from(a as i16 as i32 as u32),
        (Ty::S64, Ty::S32, _) => &|_, a| a as i32 as i64 as u64,
        (Ty::U16 | Ty::S16, Ty::U32 | Ty::S32 | Ty::U64 | Ty::S64, _) => &|_, a| a & 0xffff,
        (Ty::U32 | Ty::S32, Ty::U32 | Ty::S32 | Ty::U64 | Ty::S64, _) => &|_, a| a & 0xffff_ffff,
        _ => return None,
    })
}
