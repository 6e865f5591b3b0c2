//! f16 and bf16, alone and in pairs.
//!
//! Sums and products are exact and rounded once, to the nearest even. NaN
//! results are 0x7fff. A comparison of a pair answers in two bits, the lower
//! half's first.

use super::{F1, F2, F3};
use crate::ops::softfloat::{BF16, F16, Format, Num, Round, binary as soft, fma as soft_fma};
use crate::types::{Mods, Ty};
use half::{bf16, f16};

/// The two formats as the functions below see them.
trait Half {
    const FORMAT: Format;
    fn widen(bits: u64) -> f32;
    fn narrow(v: f32) -> u64;
}

struct Float16;
struct Brain16;

impl Half for Float16 {
    const FORMAT: Format = F16;
    fn widen(bits: u64) -> f32 {
        f16::from_bits(bits as u16).to_f32()
    }
    fn narrow(v: f32) -> u64 {
        if v.is_nan() { 0x7fff } else { u64::from(f16::from_f32(v).to_bits()) }
    }
}

impl Half for Brain16 {
    const FORMAT: Format = BF16;
    fn widen(bits: u64) -> f32 {
        f32::from_bits((bits as u32) << 16)
    }
    fn narrow(v: f32) -> u64 {
        if v.is_nan() { 0x7fff } else { u64::from(bf16::from_f32(v).to_bits()) }
    }
}

fn load<H: Half>(m: &Mods, bits: u64) -> u64 {
    let bits = bits & 0xffff;
    let subnormal = bits & 0x7fff != 0 && bits & 0x7fff < 1 << H::FORMAT.man_bits;
    if m.ftz && subnormal { bits & 0x8000 } else { bits }
}

fn store<H: Half>(m: &Mods, bits: u64) -> u64 {
    let bits = load::<H>(m, bits);
    let negative = bits & 0x8000 != 0;
    let nan = H::FORMAT.is_nan(bits);
    if m.relu && negative && !nan || m.sat && (negative || nan) {
        return 0;
    }
    if m.sat && H::widen(bits) > 1.0 { H::narrow(1.0) } else { bits }
}

// Twice the precision and two bits more than f16 or bf16: rounding a sum,
// difference or product of two halves in f32 first cannot change the result.
fn add<H: Half>(m: &Mods, a: u64, b: u64) -> u64 {
    store::<H>(m, H::narrow(H::widen(load::<H>(m, a)) + H::widen(load::<H>(m, b))))
}

fn sub<H: Half>(m: &Mods, a: u64, b: u64) -> u64 {
    store::<H>(m, H::narrow(H::widen(load::<H>(m, a)) - H::widen(load::<H>(m, b))))
}

fn mul<H: Half>(m: &Mods, a: u64, b: u64) -> u64 {
    let (a, b) = (load::<H>(m, a), load::<H>(m, b));
    store::<H>(m, soft(H::FORMAT, Round::Near, a, b, |a: Num, b, _| a.mul(b)))
}

fn fma<H: Half>(m: &Mods, a: u64, b: u64, c: u64) -> u64 {
    let (a, b, c) = (load::<H>(m, a), load::<H>(m, b), load::<H>(m, c));
    store::<H>(m, soft_fma(H::FORMAT, Round::Near, a, b, c))
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
