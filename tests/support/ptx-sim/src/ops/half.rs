//! f16 and bf16, alone and in pairs.
//!
//! Sums and products are exact and rounded once, to the nearest even. NaN
//! results are 0x7fff. A comparison of a pair answers in two bits, the lower
//! half's first.

use super::float::odd_sum;
use super::{F1, F2, F3};
use crate::ops::softfloat::{BF16, F16, Format};
use crate::types::{Mods, Ty};

/// The two formats as the functions below see them. Their conversions are without branches and calls, so that loops of
/// them become vector instructions.
pub(crate) trait Half {
    const FORMAT: Format;
    fn widen(bits: u64) -> f32;
    /// Rounds to the nearest even.
    fn narrow(v: f32) -> u64;
}

pub(crate) struct Float16;
pub(crate) struct Brain16;

impl Half for Float16 {
    const FORMAT: Format = F16;

    #[inline]
    fn widen(bits: u64) -> f32 {
        // The fields at their places in an f32, whose exponents are higher by 112.
        let (sign, magnitude) = ((bits as u32 & 0x8000) << 16, (bits as i32 & 0x7fff) << 13);
        let normal = magnitude + (112 << 23);
        // With an exponent for the first bit, which is missing and hence taken away again.
        let least = f32::from_bits(113 << 23);
        let subnormal = (f32::from_bits(magnitude as u32 + (113 << 23)) - least).to_bits() as i32;
        let finite = if magnitude < 1 << 23 { subnormal } else { normal };
        let all = if magnitude < 31 << 23 { finite } else { magnitude | 0xff << 23 };
        f32::from_bits(all as u32 | sign)
    }

    #[inline]
    fn narrow(v: f32) -> u64 {
        let (sign, magnitude) = (v.to_bits() >> 16 & 0x8000, v.to_bits() as i32 & 0x7fff_ffff);
        // Half of the last place, or just less where that is even; a carry goes to the exponent, as it must.
        let normal = (magnitude - (112 << 23)).wrapping_add(0xfff + (magnitude >> 13 & 1)) >> 13;
        // The last place of 0.5 as an f32 is that of subnormals: the sum is rounded there.
        let subnormal = (f32::from_bits(magnitude as u32) + 0.5).to_bits() as i32 - 0.5f32.to_bits() as i32;
        let finite = if magnitude < 113 << 23 { subnormal } else { normal };
        let all = if finite < 0x7c00 { finite } else { 0x7c00 };
        u64::from(if magnitude > 0xff << 23 { 0x7fff } else { all as u32 | sign })
    }
}

impl Half for Brain16 {
    const FORMAT: Format = BF16;

    #[inline]
    fn widen(bits: u64) -> f32 {
        f32::from_bits((bits as u32) << 16)
    }

    #[inline]
    fn narrow(v: f32) -> u64 {
        let rounded = (v.to_bits().wrapping_add(0x7fff + (v.to_bits() >> 16 & 1))) >> 16;
        u64::from(if v.is_nan() { 0x7fff } else { rounded })
    }
}

/// The f32 next to a value for rounding once more: as [`odd_sum`] is the f64 next to a sum.
#[inline]
pub(crate) fn odd_f32(v: f64) -> f32 {
    let near = v as f32;
    let bits = near.to_bits();
    // Exactly, and with an infinity where that is what rounding has made.
    let lacks = v - f64::from(near);
    let set = |condition: bool| u32::from(condition).wrapping_neg();
    let inexact = set(lacks > 0.0) | set(lacks < 0.0);
    let inwards = set(lacks < 0.0) ^ (bits as i32 >> 31) as u32;
    let step = inexact & !bits & 1;
    f32::from_bits(bits.wrapping_add((step ^ inwards).wrapping_sub(inwards)))
}

#[inline]
fn load<H: Half>(m: &Mods, bits: u64) -> u64 {
    let bits = bits & 0xffff;
    let subnormal = bits & 0x7fff != 0 && bits & 0x7fff < 1 << H::FORMAT.man_bits;
    if m.ftz && subnormal { bits & 0x8000 } else { bits }
}

#[inline]
fn store<H: Half>(m: &Mods, bits: u64) -> u64 {
    let bits = load::<H>(m, bits);
    let negative = bits & 0x8000 != 0;
    let nan = H::FORMAT.is_nan(bits);
    if m.relu && negative && !nan || m.sat && (negative || nan) {
        return 0;
    }
    if m.sat && H::widen(bits) > 1.0 { H::narrow(1.0) } else { bits }
}

// What follows is inlined always: into pairs it would not be, and a loop of calls is none of vector instructions.

// Twice the precision and two bits more than f16 or bf16: rounding a sum or
// difference of two halves in f32 first cannot change the result.
#[inline(always)]
fn add<H: Half>(m: &Mods, a: u64, b: u64) -> u64 {
    store::<H>(m, H::narrow(H::widen(load::<H>(m, a)) + H::widen(load::<H>(m, b))))
}

#[inline(always)]
fn sub<H: Half>(m: &Mods, a: u64, b: u64) -> u64 {
    store::<H>(m, H::narrow(H::widen(load::<H>(m, a)) - H::widen(load::<H>(m, b))))
}

// Products may have less than the least f32, of which f64 is far away: they are exact there.
#[inline(always)]
fn product<H: Half>(m: &Mods, a: u64, b: u64) -> f64 {
    f64::from(H::widen(load::<H>(m, a))) * f64::from(H::widen(load::<H>(m, b)))
}

#[inline(always)]
fn mul<H: Half>(m: &Mods, a: u64, b: u64) -> u64 {
    store::<H>(m, H::narrow(odd_f32(product::<H>(m, a, b))))
}

#[inline(always)]
fn fma<H: Half>(m: &Mods, a: u64, b: u64, c: u64) -> u64 {
    let c = f64::from(H::widen(load::<H>(m, c)));
    store::<H>(m, H::narrow(odd_f32(odd_sum(product::<H>(m, a, b), c))))
}

fn extremum<H: Half>(m: &Mods, a: u64, b: u64, min: bool) -> u64 {
    let (mut a, mut b) = (load::<H>(m, a), load::<H>(m, b));
    let sign = (a ^ b) & 0x8000;
    if m.abs {
        (a, b) = (a & 0x7fff, b & 0x7fff);
    }
    let (x, y) = (H::widen(a), H::widen(b));
    let v = match (x.is_nan(), y.is_nan()) {
        (true, true) => return 0x7fff,
        (true, false) | (false, true) if m.nan => return 0x7fff,
        (true, false) => b,
        (false, true) => a,
        (false, false) => {
            let order = x.total_cmp(&y);
            if (min && order.is_le()) || (!min && order.is_ge()) { a } else { b }
        }
    };
    if m.xorsign { (v & 0x7fff) | sign } else { v }
}

fn min<H: Half>(m: &Mods, a: u64, b: u64) -> u64 {
    extremum::<H>(m, a, b, true)
}

fn max<H: Half>(m: &Mods, a: u64, b: u64) -> u64 {
    extremum::<H>(m, a, b, false)
}

fn neg<H: Half>(m: &Mods, a: u64) -> u64 {
    load::<H>(m, a) ^ 0x8000
}

fn abs<H: Half>(m: &Mods, a: u64) -> u64 {
    load::<H>(m, a) & 0x7fff
}

fn ex2<H: Half>(m: &Mods, a: u64) -> u64 {
    store::<H>(m, H::narrow(f64::from(H::widen(load::<H>(m, a))).exp2() as f32))
}

fn tanh<H: Half>(m: &Mods, a: u64) -> u64 {
    store::<H>(m, H::narrow(f64::from(H::widen(load::<H>(m, a))).tanh() as f32))
}

/// Picks the instance of a generic function for one of the four types.
macro_rules! unary_of {
    ($ty:expr, $f:ident) => {
        match $ty {
            Ty::F16 => &$f::<Float16>,
            Ty::Bf16 => &$f::<Brain16>,
            Ty::F16x2 => &|m, a| $f::<Float16>(m, a) | $f::<Float16>(m, a >> 16) << 16,
            Ty::Bf16x2 => &|m, a| $f::<Brain16>(m, a) | $f::<Brain16>(m, a >> 16) << 16,
            _ => return None,
        }
    };
}

macro_rules! binary_of {
    ($ty:expr, $f:ident) => {
        match $ty {
            Ty::F16 => &$f::<Float16>,
            Ty::Bf16 => &$f::<Brain16>,
            Ty::F16x2 => &|m, a, b| $f::<Float16>(m, a, b) | $f::<Float16>(m, a >> 16, b >> 16) << 16,
            Ty::Bf16x2 => &|m, a, b| $f::<Brain16>(m, a, b) | $f::<Brain16>(m, a >> 16, b >> 16) << 16,
            _ => return None,
        }
    };
}

pub(crate) fn unary(op: &str, ty: Ty) -> Option<F1> {
    Some(match op {
        "neg" => unary_of!(ty, neg),
        "abs" => unary_of!(ty, abs),
        "ex2.approx" => unary_of!(ty, ex2),
        "tanh.approx" => unary_of!(ty, tanh),
        _ => return None,
    })
}

pub(crate) fn binary(op: &str, ty: Ty) -> Option<F2> {
    Some(match op {
        "add" => binary_of!(ty, add),
        "sub" => binary_of!(ty, sub),
        "mul" => binary_of!(ty, mul),
        "min" => binary_of!(ty, min),
        "max" => binary_of!(ty, max),
        _ => return None,
    })
}

pub(crate) fn ternary(op: &str, ty: Ty) -> Option<F3> {
    Some(match (op, ty) {
        ("fma", Ty::F16) => &fma::<Float16>,
        ("fma", Ty::Bf16) => &fma::<Brain16>,
        ("fma", Ty::F16x2) => {
            &|m, a, b, c| fma::<Float16>(m, a, b, c) | fma::<Float16>(m, a >> 16, b >> 16, c >> 16) << 16
        }
        ("fma", Ty::Bf16x2) => {
            &|m, a, b, c| fma::<Brain16>(m, a, b, c) | fma::<Brain16>(m, a >> 16, b >> 16, c >> 16) << 16
        }
        _ => return None,
    })
}

/// A comparison: bit 0 for the lower half, bit 1 for the upper.
pub(crate) fn compare(op: &str, ty: Ty) -> Option<F2> {
    macro_rules! comparison {
        (|$x:ident, $y:ident| $body:expr) => {{
            fn one<H: Half>(m: &Mods, a: u64, b: u64) -> u64 {
                let ($x, $y) = (H::widen(load::<H>(m, a)), H::widen(load::<H>(m, b)));
                u64::from($body)
            }
            match ty {
                Ty::F16 => &one::<Float16>,
                Ty::Bf16 => &one::<Brain16>,
                Ty::F16x2 => &|m, a, b| one::<Float16>(m, a, b) | one::<Float16>(m, a >> 16, b >> 16) << 1,
                Ty::Bf16x2 => &|m, a, b| one::<Brain16>(m, a, b) | one::<Brain16>(m, a >> 16, b >> 16) << 1,
                _ => return None,
            }
        }};
    }
    Some(match op {
        "eq" => comparison!(|x, y| x == y),
        "ne" => comparison!(|x, y| x.partial_cmp(&y).is_some_and(|o| o.is_ne())),
        "lt" => comparison!(|x, y| x < y),
        "le" => comparison!(|x, y| x <= y),
        "gt" => comparison!(|x, y| x > y),
        "ge" => comparison!(|x, y| x >= y),
        "equ" => comparison!(|x, y| x.partial_cmp(&y).is_none_or(|o| o.is_eq())),
        "neu" => comparison!(|x, y| x != y),
        "ltu" => comparison!(|x, y| x.partial_cmp(&y).is_none_or(|o| o.is_lt())),
        "leu" => comparison!(|x, y| x.partial_cmp(&y).is_none_or(|o| o.is_le())),
        "gtu" => comparison!(|x, y| x.partial_cmp(&y).is_none_or(|o| o.is_gt())),
        "geu" => comparison!(|x, y| x.partial_cmp(&y).is_none_or(|o| o.is_ge())),
        "num" => comparison!(|x, y| !x.is_nan() && !y.is_nan()),
        "nan" => comparison!(|x, y| x.is_nan() || y.is_nan()),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::softfloat::{F32, Num, Round, binary as soft, fma as soft_fma};

    fn halves_widen<H: Half>(host: impl Fn(u16) -> f32) {
        for bits in 0..=u16::MAX {
            let (ours, host) = (H::widen(bits.into()), host(bits));
            assert!(
                ours.to_bits() == host.to_bits() || ours.is_nan() && host.is_nan(),
                "{bits:04x}: {ours:e} {host:e}"
            );
        }
    }

    fn floats_narrow<H: Half>() {
        // All signs, exponents and upper bits, with lower ones of ties and beside ties.
        for upper in 0..1u32 << 18 {
            for lower in [0, 1, 0xfff, 0x1000, 0x1001, 0x1fff, 0x2000, 0x2001, 0x3fff] {
                let bits = u64::from(upper << 14 | lower);
                let exact = H::FORMAT.round(F32.unpack(bits), Round::Near, false);
                assert_eq!(H::narrow(f32::from_bits(bits as u32)), exact, "{bits:08x}");
            }
        }
    }

    /// Any numbers, and such near each other.
    fn arithmetic<H: Half>() {
        let (m, one) = (Mods::PLAIN, H::narrow(1.0));
        let mut seed = 3u64;
        let mut next = || {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            seed >> 48
        };
        for _ in 0..300_000 {
            let [a, b, c] = [next(), next(), next()];
            let near = |v: u64| v & 0x83ff | one & !0x3ff;
            for [a, b, c] in
                [[a, b, c], [near(a), near(b), c], [near(a), near(b), near(c)], [a & 0x83ff, b, c & 0x83ff]]
            {
                assert_eq!(mul::<H>(&m, a, b), soft(H::FORMAT, Round::Near, a, b, |a: Num, b, _| a.mul(b)));
                assert_eq!(add::<H>(&m, a, b), soft(H::FORMAT, Round::Near, a, b, Num::add));
                assert_eq!(fma::<H>(&m, a, b, c), soft_fma(H::FORMAT, Round::Near, a, b, c), "{a:x} {b:x} {c:x}");
            }
        }
    }

    #[test]
    fn f16_is_exact() {
        halves_widen::<Float16>(|bits| half::f16::from_bits(bits).to_f32());
        floats_narrow::<Float16>();
        arithmetic::<Float16>();
    }

    #[test]
    fn bf16_is_exact() {
        halves_widen::<Brain16>(|bits| half::bf16::from_bits(bits).to_f32());
        floats_narrow::<Brain16>();
        arithmetic::<Brain16>();
    }
}
